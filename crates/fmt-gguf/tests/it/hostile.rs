//! Tests of damaged and hostile files.

use fmt_core::{
    Error,
    ErrorKind::{self, *},
    Limits, ReadOptions, TensorReader,
    testing::{BASE_ALLOWANCE, mutants, open_many_hostile, read_everything},
};
use fmt_gguf::{Gguf, GgufReader};

use crate::support::{RawTensor, file, sample, text};

#[test]
fn thousands_of_mutants() {
    // All files are in memory at once: about 150 MB.
    let derived: Vec<_> = mutants(&sample(), 100_000).collect();
    let opened = open_many_hostile(&Gguf, derived, &ReadOptions::default(), BASE_ALLOWANCE);
    assert!(opened > 1000, "{opened} opened");
}

#[test]
fn files_and_memory_are_judged_alike() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for mutant in mutants(&sample(), 300) {
        std::fs::write(file.path(), &mutant).unwrap();
        let verdict = |opened: Result<GgufReader, Error>| {
            opened
                .map(|reader| read_everything(&reader))
                .map_err(|error| (error.kind(), error.to_string()))
        };
        let on_disk = verdict(GgufReader::from_path(file.path()));
        assert_eq!(on_disk, verdict(GgufReader::from_bytes(mutant)));
    }
}

#[track_caller]
fn refused(bytes: Vec<u8>) -> (ErrorKind, Option<&'static str>) {
    let error = GgufReader::from_bytes(bytes).map(|_| ()).unwrap_err();
    (error.kind(), error.broken_rule())
}

#[test]
fn what_is_wrong_is_told() {
    let weights = || RawTensor("w", &[4], 0, vec![0; 16]);
    let good = file(&[], &[weights()]);
    assert_eq!(refused(b"GGUF\x03\0\0\0".to_vec()), (Truncated, Some("G2")));
    let with = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    assert_eq!(refused(with(0, b"GGML")), (BadMagic, Some("G1")));
    for version in [0u32, 1, 4, 3 << 24] {
        assert_eq!(refused(with(4, &version.to_le_bytes())), (BadVersion, Some("G1")));
    }
    for count in [8, 16] {
        assert_eq!(
            refused(with(count, &u64::MAX.to_le_bytes())),
            (OutOfBounds, Some("G2"))
        );
    }
    let twice = file(&[], &[weights(), weights()]);
    assert_eq!(refused(twice), (Duplicate, Some("G2")));
    let big = GgufReader::from_bytes(with(4, &[0, 0, 0, 3])).unwrap_err();
    assert!(big.to_string().contains("big-endian") && big.to_string().contains("gguf-convert-endian"));
    assert_eq!(refused(good[..good.len() - 20].to_vec()), (Truncated, Some("G3")));
    let in_a_block = file(&[], &[RawTensor("w", &[33], 8, vec![0; 68])]);
    assert_eq!(refused(in_a_block), (SizeMismatch, Some("G3")));
    let five = file(&[], &[RawTensor("w", &[1; 5], 24, vec![0])]);
    assert_eq!(refused(five), (Malformed, Some("G2")));
    let odd = file(&[("general.alignment", 4, 33u32.to_le_bytes().to_vec())], &[]);
    assert_eq!(refused(odd), (Malformed, Some("G2")));
    // A thousand nested arrays.
    let mut nested = Vec::new();
    for _ in 0..1000 {
        nested.extend(9u32.to_le_bytes());
        nested.extend(1u64.to_le_bytes());
    }
    assert_eq!(
        refused(file(&[("deep", 9, nested)], &[])),
        (Malformed, Some("G2"))
    );
    // The shape has 2^62 elements of four bytes.
    let huge = file(&[], &[RawTensor("w", &[1 << 31, 1 << 31], 0, vec![0; 16])]);
    assert_eq!(refused(huge), (OutOfBounds, Some("G3")));
}

#[test]
fn limits_hold() {
    let limits = Limits {
        tensors: 1,
        ..Limits::default()
    };
    let options = ReadOptions {
        limits,
        ..ReadOptions::default()
    };
    let tensors = [
        RawTensor("a", &[1], 24, vec![1]),
        RawTensor("b", &[1], 24, vec![2]),
    ];
    let bytes: tensor_core::Bytes = file(&[], &tensors).into();
    let error = GgufReader::open(std::sync::Arc::new(bytes), &options).unwrap_err();
    assert_eq!((error.kind(), error.broken_rule()), (TooLarge, Some("G2")));
}

/// Names come from untrusted files, and the messages that contain them are printed to terminals.
#[test]
fn control_characters_do_not_reach_messages() {
    let name = "\x1b[31mred";
    let bytes = file(
        &[("general.name", 8, text("x"))],
        &[
            RawTensor(name, &[4], 999, vec![]),
            RawTensor(name, &[4], 999, vec![]),
        ],
    );
    let message = GgufReader::from_bytes(bytes).unwrap_err().to_string();
    assert!(!message.contains('\x1b'), "{message:?}");
    // An odd but legal name is listed unchanged.
    let bytes = file(&[], &[RawTensor(name, &[1], 24, vec![0])]);
    if let Ok(reader) = GgufReader::from_bytes(bytes) {
        assert_eq!(reader.find(name), Some(0));
    }
}
