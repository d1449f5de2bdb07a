//! `.npz`: one test for each rule of docs/formats/npy.md about archives.

use std::sync::Arc;

use fmt_core::{
    Encoding, ErrorKind::*, Format, Limits, Plan, PlannedEntry, ReadOptions, Sniff, TensorReader,
    Verification,
};
use fmt_npy::{Npz, NpzReader};
use tensor_core::{Bytes, DType, Shape, TensorSpec};

use crate::support::{archive, counting, header, npy, open_archive, small_archive, verdict, written};

/// Returns all positions of `wanted` in `bytes`.
fn find(bytes: &[u8], wanted: &[u8]) -> Vec<usize> {
    let places = bytes.windows(wanted.len()).enumerate();
    places
        .filter(|(_, window)| *window == wanted)
        .map(|(place, _)| place)
        .collect()
}

#[test]
fn n8_members_are_arrays() {
    let array = npy(&header("|u1", false, "(2,)"), &[1, 2]);
    for is_deflated in [false, true] {
        let bytes = archive(
            &[("x/y.npy", &array), ("readme.txt", b"hello"), ("z.npy", &array)],
            is_deflated,
        );
        let reader = open_archive(&bytes).unwrap();
        let names: Vec<&str> = reader.entries().iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["x/y", "z"]);
        assert_eq!(reader.tensor(1).unwrap().to_vec::<u8>().unwrap(), [1, 2]);
        assert_eq!(reader.lints().unwrap().len(), 1);
    }
    let bytes = small_archive();
    assert_eq!(Npz.sniff(&bytes, bytes.len() as u64), Sniff::Certain);
    // An archive whose first member is not an array may be another kind of file.
    let other = archive(&[("readme.txt", b"hello"), ("z.npy", &array)], false);
    assert_eq!(Npz.sniff(&other, other.len() as u64), Sniff::Possible);
    assert_eq!(verdict(open_archive(b"")), Err((Malformed, "N8")));
    assert_eq!(
        verdict(open_archive(&bytes[..bytes.len() - 1])),
        Err((Malformed, "N8"))
    );
    assert_eq!(
        verdict(open_archive(&[b"#!/bin/sh\n", &bytes[..]].concat())),
        Err((Malformed, "N8"))
    );
    assert!(open_archive(&archive(&[], false)).unwrap().entries().is_empty());
    for limits in [
        Limits {
            tensors: 1,
            ..Limits::default()
        },
        Limits {
            name_bytes: 0,
            ..Limits::default()
        },
    ] {
        let options = ReadOptions {
            limits,
            ..ReadOptions::default()
        };
        assert!(NpzReader::open(Arc::new(Bytes::from(bytes.clone())), &options).is_err());
    }
}

/// Archives without arrays are another kind of file: a PyTorch checkpoint, a wheel, a Keras model.
#[test]
fn n8_an_archive_without_arrays_is_another_file() {
    let foreign = archive(&[("m/data.pkl", b"\x80\x02}."), ("m/version", b"3\n")], false);
    assert_eq!(verdict(open_archive(&foreign)), Err((BadMagic, "N8")));
    let array = npy(&header("|u1", false, "(2,)"), &[1, 2]);
    let mixed = archive(&[("a.npy", &array), ("readme.txt", b"hello")], false);
    assert_eq!(open_archive(&mixed).unwrap().foreign_parts(), ["readme.txt"]);
}

#[test]
fn n9_methods_that_are_not_supported_are_listed() {
    let array = npy(&header("|u1", false, "(2,)"), &[1, 2]);
    let mut bytes = archive(&[("a.npy", &array)], false);
    // The method is at offset 8 of the local header and 10 of the directory entry: 12 is bzip2.
    let directory = find(&bytes, b"PK\x01\x02")[0];
    bytes[8] = 12;
    bytes[directory + 10] = 12;
    let reader = open_archive(&bytes).unwrap();
    assert!(reader.entries()[0].unsupported.as_deref().unwrap().contains("N9"));
    assert_eq!(reader.tensor(0).unwrap_err().kind(), Unsupported);
}

#[test]
fn n10_names_occur_once() {
    let array = npy(&header("|u1", false, "(2,)"), &[1, 2]);
    let mut bytes = archive(&[("a.npy", &array), ("b.npy", &array)], false);
    for place in find(&bytes, b"b.npy") {
        bytes[place] = b'a';
    }
    assert_eq!(verdict(open_archive(&bytes)), Err((Duplicate, "N10")));
}

#[test]
fn n11_checksums_and_lengths() {
    // The data is incompressible, so that the last bytes of the member are data even when it is deflated.
    let data: Vec<u8> = (0..400u32)
        .map(|byte| (byte.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    let array = npy(&header("<f4", false, "(100,)"), &data);
    for is_deflated in [false, true] {
        let good = archive(&[("a.npy", &array)], is_deflated);
        let reader = open_archive(&good).unwrap();
        assert_eq!(reader.verify(0).unwrap(), Verification::Ok);
        let entry = &reader.entries()[0];
        assert!(entry.checksum.as_deref().unwrap().starts_with("crc32:"));
        assert_eq!(entry.encoding == Encoding::Deflate, is_deflated);
        // A bit of the data is flipped.
        let mut bytes = good.clone();
        bytes[entry.range.end as usize - 20] ^= 0x10;
        let reader = open_archive(&bytes).unwrap();
        assert_eq!(verdict(reader.verify(0)), Err((Corrupt, "N11")));
        assert_eq!(verdict(reader.read_into(0, &mut [0; 400])), Err((Corrupt, "N11")));
        // Data that is read from a file is copied, so its checksum is verified.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        std::fs::write(&path, &bytes).unwrap();
        let reader = NpzReader::from_path(&path).unwrap();
        assert_eq!(verdict(reader.tensor(0)), Err((Corrupt, "N11")));
    }
    // The data, compressed or not, is longer or shorter than the header says.
    for is_deflated in [false, true] {
        let longer = [&array[..], b"x"].concat();
        assert_eq!(
            verdict(open_archive(&archive(&[("a.npy", &longer)], is_deflated))),
            Err((SizeMismatch, "N11"))
        );
        let shorter = &array[..array.len() - 1];
        assert_eq!(
            verdict(open_archive(&archive(&[("a.npy", shorter)], is_deflated))),
            Err((Truncated, "N6"))
        );
    }
}

/// Memory for the size that an archive claims is allocated only if the size is plausible and within the
/// limit.
#[test]
fn n11_bombs() {
    let zeros = vec![0; 1 << 20];
    let array = npy(&header("|u1", false, "(1048576,)"), &zeros);
    let bytes = archive(&[("a.npy", &array)], true);
    assert!(bytes.len() < 2000);
    assert_eq!(
        open_archive(&bytes).unwrap().tensor(0).unwrap().bytes().len(),
        1 << 20
    );
    let options = ReadOptions {
        limits: Limits {
            decoded_bytes: (1 << 20) - 1,
            ..Limits::default()
        },
        ..ReadOptions::default()
    };
    let reader = NpzReader::open(Arc::new(Bytes::from(bytes)), &options).unwrap();
    assert_eq!(verdict(reader.tensor(0)), Err((TooLarge, "N7")));

    // The data is a thousandth of the claimed size.
    let huge = npy(&header("|u1", false, "(1000000000,)"), &[]);
    let mut bytes = archive(&[("a.npy", &huge)], true);
    let directory = find(&bytes, b"PK\x01\x02")[0];
    let claimed = (huge.len() as u32 + 1_000_000_000).to_le_bytes();
    bytes[directory + 24..directory + 28].copy_from_slice(&claimed);
    bytes[22..26].copy_from_slice(&claimed);
    assert_eq!(verdict(open_archive(&bytes)), Err((SizeMismatch, "N11")));
}

#[test]
fn n12_members_do_not_overlap() {
    let array = npy(&header("|u1", false, "(2,)"), &[1, 2]);
    let mut bytes = archive(&[("a.npy", &array), ("b.npy", &array)], false);
    let directory = find(&bytes, b"PK\x01\x02");
    // The first member's data extends to the end of the second.
    let grown = (directory[0] - (30 + 5)) as u32;
    for place in [18, 22, directory[0] + 20, directory[0] + 24] {
        bytes[place..place + 4].copy_from_slice(&grown.to_le_bytes());
    }
    assert!(open_archive(&bytes).is_err());
}

#[test]
fn n13_names_that_cannot_be_written() {
    let spec = TensorSpec::new(DType::U8, Shape::vector(1)).unwrap();
    let create = |names: &[&str]| {
        let entries = names.iter().map(|name| PlannedEntry::dense(*name, spec.clone()));
        let plan = Plan {
            entries: entries.collect(),
            ..Plan::default()
        };
        verdict(Npz.create(Box::new(Vec::new()), plan))
    };
    for name in ["a", "a/b.c", "\u{e9}", "..a", "a b"] {
        assert_eq!(create(&[name]), Ok(()), "{name}");
    }
    for name in ["", "/a", "a/", "../a", "a/../b", "./a", "a//b", "a\\b", "a\0"] {
        assert_eq!(create(&[name]), Err((BadName, "N13")), "{name}");
    }
    assert_eq!(create(&["a", "a"]), Err((Duplicate, "N10")));
}

#[test]
fn the_same_tensors_give_the_same_bytes() {
    let tensors = [
        counting(DType::F64, &[3]),
        counting(DType::U8, &[0, 2]),
        counting(DType::I16, &[]),
    ];
    let named = [("a", &tensors[0]), ("b/c", &tensors[1]), ("\u{e9}", &tensors[2])];
    let whole = written(&Npz, &named, usize::MAX);
    for piece in [1, 3, 8] {
        assert!(written(&Npz, &named, piece) == whole);
    }
    let reader = open_archive(&whole).unwrap();
    for (name, tensor) in named {
        let index = reader.find(name).unwrap();
        assert_eq!(reader.tensor(index).unwrap(), *tensor);
        assert_eq!(reader.entries()[index].range.start % 64, 0, "{name}");
        assert_eq!(reader.verify(index).unwrap(), Verification::Ok);
    }
}

/// Writing fails, no matter after how many bytes the sink is full.
#[test]
fn a_sink_that_is_full() {
    let tensor = counting(DType::U8, &[50]);
    let len = written(&Npz, &[("a", &tensor)], usize::MAX).len();
    for room in 0..len {
        let mut full = vec![0; room];
        let plan = Plan {
            entries: vec![PlannedEntry::dense("a", tensor.spec().clone())],
            ..Plan::default()
        };
        let mut writer = Npz.create(Box::new(&mut full[..]), plan).unwrap();
        let written = writer.write(tensor.bytes());
        let kind = written
            .and_then(|()| writer.finish().map(drop))
            .unwrap_err()
            .kind();
        assert_eq!(kind, Io);
    }
}

/// An abandoned file does not look complete: the archive's directory is missing.
#[test]
fn a_writer_that_is_dropped() {
    let tensor = counting(DType::U8, &[50]);
    let plan = || Plan {
        entries: vec![PlannedEntry::dense("a", tensor.spec().clone()); 1],
        ..Plan::default()
    };
    let mut out = Vec::new();
    drop(Npz.create(Box::new(&mut out), plan()).unwrap());
    assert!(out.is_empty());
    let mut writer = Npz.create(Box::new(&mut out), plan()).unwrap();
    writer.write(&[1; 49]).unwrap();
    drop(writer);
    assert!(open_archive(&out).is_err());
    let mut writer = Npz.create(Box::new(&mut out), plan()).unwrap();
    writer.write(&[1; 49]).unwrap();
    assert_eq!(writer.finish().unwrap_err().kind(), SizeMismatch);
    assert!(open_archive(&out).is_err());
}
