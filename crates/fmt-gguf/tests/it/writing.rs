//! Tests of written files, and of contents that the format cannot hold.

use fmt_core::{ErrorKind, Format, Metadata, OpaqueDType, Plan, PlannedEntry, TensorReader};
use fmt_gguf::{Gguf, GgufReader};
use tensor_core::{DType, Shape, TensorSpec};

use crate::support::{file, sample, text};

/// Copies a file through the generic interface, `piece` bytes at a time.
fn copied(reader: &GgufReader, piece: usize) -> Vec<u8> {
    let entries = reader.entries().iter().map(|entry| match &entry.dtype {
        fmt_core::StoredDType::Opaque(dtype) => {
            PlannedEntry::opaque(&*entry.name, dtype.clone(), entry.shape.clone()).unwrap()
        }
        _ => PlannedEntry::dense(&*entry.name, entry.spec().unwrap()),
    });
    let plan = Plan {
        entries: entries.collect(),
        metadata: reader.metadata().clone(),
    };
    let mut data = Vec::new();
    for index in 0..reader.entries().len() {
        let (mut stream, mut buffer) = (reader.stream(index).unwrap(), [0; 64]);
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => break,
                len => data.extend(&buffer[..len]),
            }
        }
    }
    let mut out = Vec::new();
    let mut writer = Gguf.create(Box::new(&mut out), plan).unwrap();
    for piece in data.chunks(piece) {
        writer.write(piece).unwrap();
    }
    let len = writer.finish().unwrap();
    assert_eq!(len, out.len() as u64);
    out
}

fn tensors(reader: &GgufReader) -> Vec<(String, String, String)> {
    let entries = reader.entries().iter();
    let described = entries.map(|entry| {
        (
            entry.name.clone(),
            entry.dtype.to_string(),
            entry.shape.to_string(),
        )
    });
    described.collect()
}

#[test]
fn copies_are_the_same() {
    let reader = GgufReader::from_bytes(sample()).unwrap();
    for piece in [1, 7, 100_000] {
        let copy = copied(&reader, piece);
        let copy = GgufReader::from_bytes(copy).unwrap();
        assert_eq!(copy.metadata(), reader.metadata());
        assert_eq!(tensors(&copy), tensors(&reader));
        assert_eq!(copy.tensor(0).unwrap(), reader.tensor(0).unwrap());
        assert_eq!(copy.tensor(4).unwrap(), reader.tensor(4).unwrap());
    }
    // The files are equally long, but not equal, because the sample's keys are in another order.
    assert_eq!(copied(&reader, 100).len(), sample().len());
}

#[test]
fn values_keep_their_types() {
    let mut nested = 9u32.to_le_bytes().to_vec();
    nested.extend(2u64.to_le_bytes());
    for numbers in [&[1i16, -2][..], &[300]] {
        nested.extend(3u32.to_le_bytes());
        nested.extend((numbers.len() as u64).to_le_bytes());
        numbers
            .iter()
            .for_each(|number| nested.extend(number.to_le_bytes()));
    }
    let floats: Vec<u8> = [6u32.to_le_bytes().to_vec(), 4u64.to_le_bytes().to_vec()]
        .into_iter()
        .chain([0.1f32, f32::INFINITY, f32::MIN_POSITIVE, 1e20].map(|float| float.to_le_bytes().to_vec()))
        .flatten()
        .collect();
    let empty = [8u32.to_le_bytes().to_vec(), 0u64.to_le_bytes().to_vec()].concat();
    let values = [
        ("a.u8", 0, vec![255]),
        ("b.i8", 1, vec![128]),
        ("c.u16", 2, 65535u16.to_le_bytes().to_vec()),
        ("d.i32", 5, (-7i32).to_le_bytes().to_vec()),
        ("e.bool", 7, vec![1]),
        ("f.u64", 10, u64::MAX.to_le_bytes().to_vec()),
        ("g.i64", 11, i64::MIN.to_le_bytes().to_vec()),
        ("h.f64", 12, 1.0f64.to_le_bytes().to_vec()),
        ("i.number as text", 8, text("7")),
        ("j.nested", 9, nested),
        ("k.floats", 9, floats),
        ("l.empty", 9, empty),
        ("m.escapes", 8, text("a\"\n\u{1}ß")),
    ];
    let original = file(&values, &[]);
    let reader = GgufReader::from_bytes(original.clone()).unwrap();
    assert_eq!(reader.metadata()["j.nested"], "[[1,-2],[300]]");
    // The keys are sorted, so the bytes are identical too.
    assert_eq!(copied(&reader, 1), original);
}

#[test]
fn alignment_is_that_of_the_metadata() {
    let values = [("general.alignment", 4, 64u32.to_le_bytes().to_vec())];
    let reader = GgufReader::from_bytes(file(&values, &[])).unwrap();
    let spec = TensorSpec::new(DType::I8, Shape::vector(3)).unwrap();
    let plan = Plan {
        entries: vec![
            PlannedEntry::dense("a", spec.clone()),
            PlannedEntry::dense("none", TensorSpec::new(DType::F32, Shape::vector(0)).unwrap()),
            PlannedEntry::dense("b", spec),
        ],
        metadata: reader.metadata().clone(),
    };
    let mut out = Vec::new();
    let mut writer = Gguf.create(Box::new(&mut out), plan).unwrap();
    writer.write(&[1, 2, 3, 4, 5, 6]).unwrap();
    writer.finish().unwrap();
    let reader = GgufReader::from_bytes(out.clone()).unwrap();
    for entry in reader.entries() {
        assert!(entry.range.start.is_multiple_of(64), "{entry:?}");
    }
    assert_eq!(reader.tensor(2).unwrap().to_vec::<i8>().unwrap(), [4, 5, 6]);
    // The file is also padded after the last tensor, because GGML reads that padding.
    assert!(out.len().is_multiple_of(64));
}

#[test]
fn what_has_no_place_is_refused() {
    let refused = |entries: Vec<PlannedEntry>, metadata: &[(&str, &str)]| {
        let metadata: Metadata = metadata
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let plan = Plan { entries, metadata };
        let error = Gguf.create(Box::new(std::io::sink()), plan).err().unwrap();
        (error.kind(), error.to_string())
    };
    let dense = |name: &str, dtype, dims: &[u64]| {
        PlannedEntry::dense(name, TensorSpec::new(dtype, Shape::new(dims).unwrap()).unwrap())
    };
    let (kind, text) = refused(vec![dense("w", DType::U8, &[1])], &[]);
    assert!(
        kind == ErrorKind::Unsupported && text.contains("i8 to i64"),
        "{text}"
    );
    let (kind, text) = refused(vec![dense("w", DType::I8, &[1; 5])], &[]);
    assert!(
        kind == ErrorKind::Unsupported && text.contains("4 dimensions"),
        "{text}"
    );
    let twice = vec![dense("w", DType::I8, &[1]), dense("w", DType::I8, &[1])];
    assert_eq!(refused(twice, &[]).0, ErrorKind::Duplicate);
    let opaque = |name, elements, bytes, dims: &[u64]| {
        let dtype = OpaqueDType::new(name, elements, bytes);
        vec![PlannedEntry::opaque("w", dtype, Shape::new(dims).unwrap()).unwrap()]
    };
    assert_eq!(
        refused(opaque("F8_E4M3", 1, 1, &[4]), &[]).0,
        ErrorKind::Unsupported
    );
    // The 64 elements fill two blocks, but a block would span two rows.
    assert_eq!(
        refused(opaque("Q8_0", 32, 34, &[4, 16]), &[]).0,
        ErrorKind::Unsupported
    );
    let types = ("gguf.types", r#"{"n":"u8"}"#);
    for text in ["256", "-1", "1.5", "true", "\"1\"", "[1]", ""] {
        let (kind, message) = refused(vec![], &[types, ("n", text)]);
        assert!(
            kind == ErrorKind::Unsupported && message.contains("'n'"),
            "{message}"
        );
    }
    assert_eq!(refused(vec![], &[("gguf.types", "no")]).0, ErrorKind::Unsupported);
    assert_eq!(
        refused(vec![], &[("general.alignment", "7")]).0,
        ErrorKind::Malformed
    );
}

/// The error names the unsupported layout; a scalar is written, with a lint.
#[test]
fn g8_sparse_tensors_are_refused_and_scalars_are_a_lint() {
    let plan = |entry| Plan {
        entries: vec![entry],
        metadata: Metadata::new(),
    };
    let spec = TensorSpec::new(DType::F32, Shape::vector(3)).unwrap();
    let sparse = PlannedEntry::coo("s", spec, 2);
    let refused = Gguf
        .create(Box::new(std::io::sink()), plan(sparse))
        .err()
        .unwrap();
    assert!(refused.to_string().contains("found coo of 2"), "{refused}");

    let scalar = TensorSpec::new(DType::F32, Shape::new(&[]).unwrap()).unwrap();
    let mut out = Vec::new();
    let mut writer = Gguf
        .create(Box::new(&mut out), plan(PlannedEntry::dense("s", scalar)))
        .unwrap();
    writer.write(&1f32.to_le_bytes()).unwrap();
    writer.finish().unwrap();
    let reader = GgufReader::from_bytes(out).unwrap();
    let lints = reader.lints().unwrap();
    assert_eq!(lints.len(), 1);
    assert_eq!(lints[0].tensor.as_deref(), Some("s"));
    assert!(
        lints[0].message.contains("without dimensions"),
        "{}",
        lints[0].message
    );
}

/// Tokens of byte-level vocabularies are bytes and not always UTF-8; they are preserved.
#[test]
fn strings_that_are_not_utf_8_are_kept() {
    let array = |strings: &[&[u8]]| {
        let mut out = 8u32.to_le_bytes().to_vec();
        out.extend((strings.len() as u64).to_le_bytes());
        for string in strings {
            out.extend((string.len() as u64).to_le_bytes());
            out.extend(*string);
        }
        out
    };
    let raw = |bytes: &[u8]| [&(bytes.len() as u64).to_le_bytes(), bytes].concat();
    let bytes = file(
        &[
            ("general.author", 8, raw(b"J\xf6rg")),
            (
                "tokenizer.ggml.tokens",
                9,
                array(&[b"<s>", b"\xe4\xbd", b"", b"\xff"]),
            ),
        ],
        &[],
    );
    let reader = GgufReader::from_bytes(bytes.clone()).unwrap();
    let metadata = reader.metadata();
    assert_eq!(metadata["general.author"], "4af67267");
    assert_eq!(
        metadata["tokenizer.ggml.tokens"],
        r#"["<s>",{"hex":"e4bd"},"",{"hex":"ff"}]"#
    );
    assert_eq!(
        metadata["gguf.types"],
        r#"{"general.author":"hex","tokenizer.ggml.tokens":"[string]"}"#
    );
    assert_eq!(copied(&reader, 100), bytes);
    for (kind, wrong) in [
        ("hex", "4af"),
        ("hex", "4g"),
        ("hex", "+4"),
        ("[hex]", "[]"),
        ("[string]", r#"[{"hex":"f"}]"#),
        ("[string]", r#"[{"hex":"ff","more":1}]"#),
        ("[string]", r#"[{"text":"ff"}]"#),
        ("[string]", "[{}]"),
        ("[u8]", r#"[{"hex":"ff"}]"#),
        ("string", r#"{"hex":"ff"}"#),
    ] {
        let types = format!(r#"{{"key":"{kind}"}}"#);
        let metadata =
            [("key", wrong), ("gguf.types", &types)].map(|(key, text)| (key.to_owned(), text.to_owned()));
        let plan = Plan {
            metadata: Metadata::from(metadata),
            ..Plan::default()
        };
        let created = Gguf.create(Box::new(std::io::sink()), plan).map(drop);
        // Braces are valid in a string.
        assert_eq!(created.is_err(), kind != "string", "{kind} {wrong}");
    }
}
