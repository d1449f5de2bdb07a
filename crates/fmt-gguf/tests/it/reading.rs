//! Tests that read valid files.

use fmt_core::{ErrorKind, OpaqueDType, ReadOptions, StoredDType, TensorReader, testing::open_hostile};
use fmt_gguf::{Gguf, GgufReader};
use tensor_core::{Bytes, DType};

use crate::support::{RawTensor, file, sample};

#[test]
fn plain_tensors_are_slices_of_the_file() {
    let bytes = Bytes::from(sample());
    let reader = GgufReader::from_bytes(bytes.clone()).unwrap();
    let specs: Vec<String> = reader
        .entries()
        .iter()
        .map(|entry| format!("{} {} {}", entry.name, entry.dtype, entry.shape))
        .collect();
    assert_eq!(
        specs,
        [
            "embed f32 [2, 3]",
            "half f16 [4]",
            "brain bf16 [2, 1, 2]",
            "quantised Q8_0 [2, 32]",
            "ids i64 [2]"
        ]
    );
    let embed = reader.tensor(0).unwrap();
    assert_eq!(embed.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let at = reader.entries()[0].range.start as usize;
    assert_eq!(embed.bytes().as_ptr(), bytes[at..].as_ptr(), "it was copied");
    assert_eq!(
        reader.rows(0, 1..2).unwrap().to_vec::<f32>().unwrap(),
        [3.0, 4.0, 5.0]
    );
    assert_eq!(reader.tensor(4).unwrap().to_vec::<i64>().unwrap(), [7, -1]);
    // All ways of reading agree, in memory and on disk.
    open_hostile(&Gguf, &bytes, &ReadOptions::default()).unwrap();
}

#[test]
fn quantised_tensors_are_listed_and_refused() {
    let reader = GgufReader::from_bytes(sample()).unwrap();
    let entry = &reader.entries()[3];
    assert_eq!(entry.dtype, StoredDType::Opaque(OpaqueDType::new("Q8_0", 32, 34)));
    assert_eq!(entry.stored_size(), 68);
    let error = reader.tensor(3).unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule()),
        (ErrorKind::Unsupported, Some("G4"))
    );
    assert_eq!(
        error.to_string(),
        "tensor 'quantised': it is quantised, as GGML's Q8_0"
    );
}

#[test]
fn every_plain_type() {
    for (number, dtype) in [
        (0, DType::F32),
        (1, DType::F16),
        (24, DType::I8),
        (25, DType::I16),
        (26, DType::I32),
        (27, DType::I64),
        (28, DType::F64),
        (30, DType::BF16),
    ] {
        let bytes: Vec<u8> = (0..dtype.size() as u8 * 3).collect();
        let reader =
            GgufReader::from_bytes(file(&[], &[RawTensor("w", &[3], number, bytes.clone())])).unwrap();
        assert_eq!(reader.entries()[0].dtype, StoredDType::Known(dtype));
        assert_eq!(reader.tensor(0).unwrap().bytes()[..], bytes);
    }
}

#[test]
fn metadata_is_text() {
    let reader = GgufReader::from_bytes(sample()).unwrap();
    let metadata: Vec<(&str, &str)> = reader
        .metadata()
        .iter()
        .map(|(key, value)| (&**key, &**value))
        .collect();
    assert_eq!(
        metadata,
        [
            ("general.file_type", "7"),
            ("general.name", "tiny"),
            (
                "gguf.types",
                r#"{"general.file_type":"u32","tiny.limit":"f64","tiny.rope.scale":"f32","tokenizer.tokens":"[string]"}"#
            ),
            ("tiny.limit", "\"inf\""),
            ("tiny.rope.scale", "0.1"),
            ("tokenizer.tokens", r#"["<s>","\"a\""]"#),
        ]
    );
}

/// A tensor of unknown type has an unknown length; other tensors remain readable.
#[test]
fn unknown_types_are_listed() {
    let tensors = [
        RawTensor("new", &[4], 999, vec![7; 10]),
        RawTensor("w", &[1], 24, vec![5]),
    ];
    let reader = GgufReader::from_bytes(file(&[], &tensors)).unwrap();
    let entry = &reader.entries()[0];
    assert_eq!(entry.dtype, StoredDType::Unknown("type 999".to_owned()));
    assert_eq!(entry.stored_size(), 32);
    assert_eq!(reader.tensor(0).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(reader.tensor(1).unwrap().to_vec::<i8>().unwrap(), [5]);
}

/// Reads a header that is longer than the first read.
#[test]
fn long_headers_are_read_from_files() {
    let mut tokens = 8u32.to_le_bytes().to_vec();
    tokens.extend(200_000u64.to_le_bytes());
    (0..200_000).for_each(|number| tokens.extend(crate::support::text(&number.to_string())));
    let bytes = file(&[("tokens", 9, tokens)], &[RawTensor("w", &[1], 24, vec![5])]);
    assert!(bytes.len() > 2 << 20);
    let disk = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(disk.path(), &bytes).unwrap();
    let reader = GgufReader::from_path(disk.path()).unwrap();
    assert!(reader.metadata()["tokens"].ends_with("\"199999\"]"));
    assert_eq!(reader.tensor(0).unwrap().to_vec::<i8>().unwrap(), [5]);
}
