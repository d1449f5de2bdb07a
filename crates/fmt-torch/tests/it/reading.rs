//! Tests of supported and rejected checkpoint contents.

use std::sync::Arc;

use fmt_core::{Encoding, Error, ErrorKind, Format, ReadOptions, Sniff, TensorReader, Verification};
use fmt_torch::{Torch, TorchReader};
use tensor_core::Bytes;

use crate::support::*;

fn open(file: Vec<u8>) -> Result<TorchReader, Error> {
    TorchReader::from_bytes(file)
}

fn values(reader: &TorchReader, name: &str) -> Vec<f32> {
    let index = reader.find(name).unwrap();
    reader.tensor(index).unwrap().to_vec().unwrap()
}

#[test]
fn both_layouts_are_read() {
    for file in [small(), legacy()] {
        assert_eq!(
            Torch.sniff(&file[..file.len().min(512)], file.len() as u64),
            Sniff::Certain
        );
        let reader = open(file.clone()).unwrap();
        assert_eq!(values(&reader, "w"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(reader.entries()[0].shape.dims(), [2, 3]);
        assert_eq!(
            reader.rows(0, 1..2).unwrap().to_vec::<f32>().unwrap(),
            [3.0, 4.0, 5.0]
        );
        assert!(reader.foreign_parts().is_empty());
    }
    let reader = open(small()).unwrap();
    assert_eq!(reader.verify(0).unwrap(), Verification::Ok);
    let mut damaged = small();
    let start = reader.entries()[0].range.start as usize;
    damaged[start] ^= 1;
    assert_eq!(
        open(damaged).unwrap().verify(0).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
}

#[test]
fn views_of_one_storage() {
    let transposed = View {
        dims: &[3, 2],
        strides: &[1, 3],
        ..MATRIX
    };
    let column = View {
        offset: 2,
        dims: &[2],
        strides: &[3],
        ..MATRIX
    };
    let expanded = View {
        offset: 5,
        dims: &[4],
        strides: &[0],
        ..MATRIX
    };
    let row = View {
        offset: 3,
        dims: &[1, 3],
        strides: &[77, 1],
        ..MATRIX
    };
    let tensors = [
        ("t", transposed),
        ("c", column),
        ("e", expanded),
        ("r", row),
        ("w", MATRIX),
    ];
    let reader = open(archive(&Pickle::state(&tensors).0, &[("data/0", &floats())])).unwrap();
    assert_eq!(values(&reader, "t"), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(values(&reader, "c"), [2.0, 5.0]);
    assert_eq!(values(&reader, "e"), [5.0; 4]);
    assert_eq!(values(&reader, "r"), [3.0, 4.0, 5.0]);
    assert_eq!(reader.entries()[0].encoding, Encoding::Strided);
    assert_eq!(reader.entries()[3].encoding, Encoding::Raw);
    // Storages are shared, not copied.
    assert_eq!(reader.entries()[4].range.start, reader.entries()[0].range.start);
}

#[test]
fn big_endian_hosts() {
    let swapped: Vec<u8> = floats()
        .chunks(4)
        .flat_map(|float| float.iter().rev().copied())
        .collect();
    let members: [(&str, &[u8]); 2] = [("byteorder", b"big"), ("data/0", &swapped)];
    let reader = open(archive(&Pickle::state(&[("w", MATRIX)]).0, &members)).unwrap();
    assert!(reader.entries()[0].is_big_endian);
    assert_eq!(values(&reader, "w"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
}

/// Files of the legacy layout are little-endian, whatever they say about the host that wrote them.
#[test]
fn the_old_form_of_big_endian_hosts() {
    let mut file = legacy();
    let says = file
        .windows(13)
        .position(|bytes| bytes == b"little_endian")
        .unwrap();
    let place = says + file[says..].iter().position(|byte| *byte == 0x88).unwrap();
    file[place] = 0x89;
    let reader = open(file).unwrap();
    assert!(!reader.entries()[0].is_big_endian);
    assert_eq!(values(&reader, "w"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
}

/// All numbers of a long list are read as metadata: a loss history may have far more values than there are
/// tensors.
#[test]
fn long_lists_of_numbers() {
    let mut pickle = Pickle::new()
        .raw(b"}(")
        .text("w")
        .tensor(&MATRIX)
        .text("losses")
        .raw(b"](");
    for step in 0..10_000 {
        pickle = pickle.int(step);
    }
    let reader = open(archive(&pickle.raw(b"eu.").0, &[("data/0", &floats())])).unwrap();
    assert_eq!(reader.metadata()["losses.9999"], "9999");
}

/// Reads a training checkpoint: nested dictionaries, lists, numbers and strings.
#[test]
fn nested_values_have_names() {
    let pickle = Pickle::new()
        .raw(b"}(")
        .text("model")
        .raw(b"}")
        .text("layer.0")
        .tensor(&MATRIX)
        .raw(b"s")
        .text("epoch")
        .int(7)
        .text("name")
        .text("tiny")
        .text("moments")
        .raw(b"](")
        .tensor(&MATRIX)
        .raw(b"\x89e")
        .raw(b"u.");
    let reader = open(archive(&pickle.0, &[("data/0", &floats()), ("code/x.py", b"1")])).unwrap();
    let names: Vec<_> = reader.entries().iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, ["model.layer.0", "moments.0"]);
    assert_eq!(reader.metadata()["epoch"], "7");
    assert_eq!(reader.metadata()["name"], "tiny");
    assert_eq!(reader.metadata()["moments.1"], "false");
    assert_eq!(reader.foreign_parts(), ["model/code/x.py"]);
}

/// A `TorchScript` program that starts with other files, as some exporters write it, is recognized by
/// PyTorch's padding.
#[test]
fn programs_with_other_files_in_front_are_recognised() {
    use std::io::Write;
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let members: [(&str, &[u8]); 4] = [
        ("extra/config.txt", b"{}"),
        ("data/0", &floats()),
        ("data.pkl", &Pickle::state(&[("w", MATRIX)]).0),
        ("code/x.py", b"pass"),
    ];
    for (name, bytes) in members {
        let mut options = zip::write::FileOptions::<zip::write::ExtendedFileOptions>::default()
            .compression_method(zip::CompressionMethod::Stored);
        options
            .add_extra_field(u16::from_le_bytes(*b"FB"), *b"ZZZZZZZ", false)
            .unwrap();
        zip.start_file(format!("yolo/{name}"), options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    let file = zip.finish().unwrap().into_inner();
    assert_eq!(Torch.sniff(&file[..256], file.len() as u64), Sniff::Certain);
    let reader = open(file).unwrap();
    assert_eq!(values(&reader, "w").len(), 6);
    let lints: Vec<String> = reader
        .lints()
        .unwrap()
        .into_iter()
        .map(|lint| lint.message)
        .collect();
    assert_eq!(
        lints,
        ["it is a TorchScript program: its tensors are listed, and its code is not read (P1)"]
    );
    assert_eq!(
        reader.foreign_parts(),
        ["yolo/extra/config.txt", "yolo/code/x.py"]
    );
}

#[test]
fn code_is_refused_by_name() {
    let refused = |pickle: Pickle| {
        let error = open(archive(&pickle.0, &[("data/0", &floats())])).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, text) = refused(Pickle::new().global("os", "system").text("true").raw(b"\x85R."));
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(
        text.contains("'os.system'") && text.contains("state_dict"),
        "{text}"
    );
    let (kind, text) = refused(Pickle::new().text("builtins").text("eval").raw(b"\x93."));
    assert!(
        kind == ErrorKind::Unsupported && text.contains("'builtins.eval'"),
        "{text}"
    );
    // The opcodes are INST, OBJ and EXT1.
    for opcode in [&b"(i__main__\nA\n."[..], b"(o.", b"\x82\x01."] {
        let (kind, text) = refused(Pickle::new().raw(opcode));
        assert!(
            kind == ErrorKind::Unsupported && text.contains("opcode"),
            "{text}"
        );
    }
    // NEWOBJ and REDUCE are applied to values that are not classes or functions.
    assert_eq!(refused(Pickle::new().raw(b"))\x81.")).0, ErrorKind::Malformed);
    assert_eq!(refused(Pickle::new().int(1).raw(b")R.")).0, ErrorKind::Malformed);
}

/// Returns a checkpoint whose dictionary has a plain tensor, and what `other` appends.
fn beside(other: impl FnOnce(Pickle) -> Pickle) -> Vec<u8> {
    let pickle = Pickle::new().raw(b"}(").text("w").tensor(&MATRIX).text("other");
    let pickle = other(pickle).raw(b"u.");
    archive(&pickle.0, &[("data/0", &floats())])
}

/// Returns a call of `_rebuild_from_type_v2`, as for tensor subclasses.
fn of_class(pickle: Pickle, function: &str, arguments: impl FnOnce(Pickle) -> Pickle) -> Pickle {
    let pickle = pickle.global("torch._tensor", "_rebuild_from_type_v2").raw(b"(");
    let pickle = pickle
        .global("torch._utils", function)
        .global("mylib.tensors", "Tagged");
    // The attributes are a tensor and a string.
    let pickle = arguments(pickle)
        .raw(b"}(")
        .text("scale")
        .tensor(&MATRIX)
        .text("note")
        .text("x");
    pickle.raw(b"utR")
}

/// A tensor that cannot be read does not prevent reading other tensors.
#[test]
fn tensors_beside_others_that_are_not_read() {
    let storage = |pickle: Pickle| {
        let pickle = pickle.raw(b"(").text("storage").global("torch", "QInt8Storage");
        pickle.text("0").text("cpu").int(6).raw(b"tQ")
    };
    let file = beside(|pickle| {
        let pickle = storage(pickle.global("torch._utils", "_rebuild_qtensor").raw(b"("));
        let pickle = pickle.int(0).ints(&[2, 3]).ints(&[3, 1]);
        let pickle = pickle
            .raw(b"(")
            .global("torch", "per_tensor_affine")
            .int(1)
            .int(0);
        pickle.raw(b"t\x89NtR")
    });
    for lenient in [false, true] {
        let options = ReadOptions {
            lenient,
            ..ReadOptions::default()
        };
        let reader = TorchReader::open(Arc::new(Bytes::from(file.clone())), &options).unwrap();
        assert_eq!(values(&reader, "w"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let other = &reader.entries()[reader.find("other").unwrap()];
        assert_eq!(
            (other.dtype.to_string(), other.shape.dims()),
            ("quantised".to_owned(), &[2, 3][..])
        );
        assert!(other.unsupported.is_some() && reader.foreign_parts().is_empty());
    }

    // The elements of a subclass are read, and the class is reported; none of its code is run.
    let arguments = |pickle: Pickle| {
        let pickle = pickle.raw(b"((").text("storage").global("torch", "FloatStorage");
        let pickle = pickle.text("0").text("cpu").int(6).raw(b"tQ").int(1);
        pickle.ints(&[2]).ints(&[1]).raw(b"\x89Nt")
    };
    let file = beside(|pickle| of_class(pickle, "_rebuild_tensor_v2", arguments));
    let reader = open(file).unwrap();
    assert_eq!(values(&reader, "other"), [1.0, 2.0]);
    assert_eq!(
        reader.foreign_parts(),
        ["the class mylib.tensors.Tagged of tensors"]
    );
    assert!(
        reader.lints().unwrap()[0]
            .message
            .contains("'mylib.tensors.Tagged'")
    );

    // A subclass that wraps other tensors.
    let arguments = |pickle: Pickle| {
        let pickle = pickle.raw(b"(").raw(b"N").global("torch", "float32");
        pickle.ints(&[4, 5]).raw(b"t")
    };
    let file = beside(|pickle| of_class(pickle, "_rebuild_wrapper_subclass", arguments));
    let reader = open(file).unwrap();
    let names: Vec<&str> = reader.entries().iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, ["w", "other", "other.scale"]);
    assert_eq!(reader.entries()[1].shape.dims(), [4, 5]);
    assert_eq!(values(&reader, "other.scale").len(), 6);
    assert_eq!(reader.metadata()["other.note"], "x");

    // A user-defined function is code, whatever its purpose.
    let file = beside(|pickle| {
        let pickle = pickle.global("torch._tensor", "_rebuild_from_type_v2").raw(b"(");
        let pickle = pickle.global("mylib", "rebuild").global("torch", "Tensor");
        pickle.raw(b"))tR")
    });
    let refused = open(file).unwrap_err();
    assert!(refused.to_string().contains("'mylib.rebuild'"), "{refused}");
    // A class that is only mentioned is also rejected.
    let file = beside(|pickle| pickle.global("mylib", "Config"));
    let refused = open(file).unwrap_err();
    assert!(refused.to_string().contains("'mylib.Config'"), "{refused}");
}

/// Tied weights share a storage. A transposed square matrix has the same bytes, but is a different tensor.
#[test]
fn tied_weights_are_told() {
    let square = View {
        dims: &[2, 2],
        strides: &[2, 1],
        ..MATRIX
    };
    let turned = View {
        strides: &[1, 2],
        ..square
    };
    let later = View { offset: 2, ..square };
    let state = [
        ("a", square),
        ("t", turned),
        ("u", turned),
        ("l", later),
        ("b", square),
    ];
    let reader = open(archive(&Pickle::state(&state).0, &[("data/0", &floats())])).unwrap();
    assert_eq!(reader.shared(), [(4, 0)]);
}

#[test]
fn tensors_lie_in_their_storages() {
    let wrong = |view: View<'_>| {
        let file = archive(&Pickle::state(&[("w", view)]).0, &[("data/0", &floats())]);
        let error = open(file).unwrap_err();
        assert_eq!(error.tensor(), Some("w"));
        error.kind()
    };
    let views = [
        View { offset: 1, ..MATRIX },
        View {
            dims: &[2, 4],
            ..MATRIX
        },
        View {
            strides: &[i32::MAX, 1],
            ..MATRIX
        },
        View { key: "1", ..MATRIX },
        View {
            kind: "DoubleStorage",
            ..MATRIX
        },
    ];
    for view in views {
        assert_eq!(wrong(view), ErrorKind::OutOfBounds);
    }
    assert_eq!(
        wrong(View {
            strides: &[1],
            ..MATRIX
        }),
        ErrorKind::SizeMismatch
    );
    let empty = View {
        offset: 1000,
        dims: &[0, 3],
        ..MATRIX
    };
    let file = archive(&Pickle::state(&[("w", empty)]).0, &[("data/0", &floats())]);
    assert!(values(&open(file).unwrap(), "w").is_empty());
}

#[test]
fn dtypes_without_arithmetic_are_listed() {
    let complex = View {
        kind: "ComplexFloatStorage",
        count: 3,
        dims: &[3],
        strides: &[1],
        ..MATRIX
    };
    let reader = open(archive(
        &Pickle::state(&[("z", complex)]).0,
        &[("data/0", &floats())],
    ))
    .unwrap();
    let entry = &reader.entries()[0];
    assert_eq!(
        (entry.dtype.to_string(), entry.byte_len()),
        ("C64".to_owned(), Some(24))
    );
    assert_eq!(reader.tensor(0).unwrap_err().kind(), ErrorKind::Unsupported);
    let mut bytes = [0; 32];
    assert_eq!(reader.stream(0).unwrap().read(&mut bytes).unwrap(), 24);
    assert_eq!(bytes[..24], floats());
}
