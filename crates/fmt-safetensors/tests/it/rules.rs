//! One test for each rule of docs/formats/safetensors.md.

use std::sync::Arc;

use fmt_core::{ErrorKind::*, Limits, ReadOptions, TensorReader};
use fmt_safetensors::SafetensorsReader;
use tensor_core::{Bytes, DType};

use crate::support::{counting, file, open, refusal, written};

const GOOD: &str = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;

#[test]
fn s1_the_length_of_the_header() {
    for len in 0..8 {
        assert_eq!(refusal(&vec![0; len]), (Truncated, "S1"));
    }
    for (len, kind) in [
        (u64::MAX, TooLarge),
        (100_000_001, TooLarge),
        (100_000_000, Truncated),
        (54, Truncated),
    ] {
        let mut bytes = file(GOOD, 0);
        bytes[..8].copy_from_slice(&len.to_le_bytes());
        assert_eq!(refusal(&bytes), (kind, "S1"), "{len}");
    }
    // If no header follows the length, the error says that the file may be of another kind.
    for (header, is_other) in [(GOOD, false), ("GARBAGE", true)] {
        let mut bytes = file(header, 0);
        bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        let error = open(&bytes).unwrap_err().to_string();
        let is_told =
            error.starts_with("the file is not in the safetensors format, or it is damaged: the length of");
        assert_eq!(is_told, is_other, "{error}");
    }
    // Old writers produced files with a longer header than the reference crate accepts.
    let len = 100_000_008;
    let mut bytes = (len as u64).to_le_bytes().to_vec();
    bytes.extend(b"{}");
    bytes.resize(8 + len, b' ');
    assert_eq!(refusal(&bytes), (TooLarge, "S1"));
    let options = ReadOptions {
        lenient: true,
        ..ReadOptions::default()
    };
    let source = Arc::new(Bytes::from(bytes));
    assert!(SafetensorsReader::open(source, &options).is_ok());
}

#[test]
fn s2_the_header_is_an_object() {
    for header in [
        "",
        " ",
        "[]",
        "null",
        "\"a\"",
        "{",
        "{}x",
        "{}{}",
        "{\"a\"}",
        "{\"a\":1}",
        "{\"a\":{}}",
        "\u{feff}{}",
        r#"{"a":{"dtype":"U8","shape":[2]}}"#,
        r#"{"a":{"dtype":"U8","data_offsets":[0,2]}}"#,
        r#"{"a":{"shape":[2],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":1,"shape":[2],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"U8","shape":["2"],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"U8","shape":2,"data_offsets":[0,2]}}"#,
        r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0]}}"#,
        r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2,2]}}"#,
        r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],}}"#,
        r#"{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#,
    ] {
        assert_eq!(refusal(&file(header, 2)), (Malformed, "S2"), "{header}");
    }
    let mut not_text = file(GOOD, 2);
    not_text[10] = 0xff;
    assert_eq!(refusal(&not_text), (Malformed, "S2"));

    let error = open(&file(r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":7}}"#, 2)).unwrap_err();
    // The seven is the 47th byte of the header.
    assert_eq!(error.byte(), Some(8 + 46));

    // Only a lenient reader accepts leading white space; trailing white space is always accepted.
    let spaced = Bytes::from(file(&format!(" \n{GOOD}"), 2));
    assert!(open(&spaced).is_err());
    let lenient = ReadOptions {
        lenient: true,
        ..ReadOptions::default()
    };
    assert!(SafetensorsReader::open(Arc::new(spaced), &lenient).is_ok());
    assert!(open(&file(&format!("{GOOD}   "), 2)).is_ok());
    // Unknown keys are ignored.
    assert!(open(&file(&GOOD.replace("\"shape\"", "\"more\":[{}],\"shape\""), 2)).is_ok());
}

/// Of two tensors with the same name, the reference crate silently keeps an arbitrary one.
#[test]
fn s3_names_occur_once() {
    let twice = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    let error = open(&file(twice, 2)).unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule(), error.tensor()),
        (Duplicate, Some("S3"), Some("a"))
    );
    // A name that is escaped differently is still the same name.
    assert_eq!(
        refusal(&file(&twice.replacen("\"a\"", r#""\u0061""#, 1), 2)),
        (Duplicate, "S3")
    );
    // Duplicate names are rejected even for tensors without bytes.
    let empty = r#"{"b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    assert_eq!(refusal(&file(empty, 0)), (Duplicate, "S3"));
}

#[test]
fn s4_dtypes_that_are_not_known_are_listed() {
    let header = r#"{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"F4","shape":[4],"data_offsets":[2,4]},"c":{"dtype":"Q9","shape":[7],"data_offsets":[4,5]},"d":{"dtype":"I8","shape":[],"data_offsets":[5,6]}}"#;
    let reader = open(&file(header, 6)).unwrap();
    for index in 0..3 {
        assert!(reader.entries()[index].unsupported.is_some());
        let error = reader.tensor(index).unwrap_err();
        assert_eq!((error.kind(), error.broken_rule()), (Unsupported, Some("S4")));
        // Tensors with dtypes of the reference crate are copied unchanged.
        assert_eq!(reader.verify(index).is_err(), index == 2);
        assert_eq!(reader.stream(index).is_err(), index == 2);
    }
    assert_eq!(reader.entries()[1].byte_len(), Some(2));
    assert_eq!(reader.entries()[0].stored_size(), 2);
    assert_eq!(reader.tensor(3).unwrap().to_vec::<i8>().unwrap(), [5]);
}

#[test]
fn s5_data_is_covered_without_holes() {
    let offsets = |a: &str, b: &str, data: usize| {
        let tensor = |offsets: &str| format!(r#"{{"dtype":"U8","shape":[2],"data_offsets":[{offsets}]}}"#);
        let header = format!(r#"{{"a":{},"b":{}}}"#, tensor(a), tensor(b));
        open(&file(&header, data))
            .map(drop)
            .map_err(|error| (error.kind(), error.broken_rule().unwrap()))
    };
    assert_eq!(offsets("0,2", "2,4", 4), Ok(()));
    assert_eq!(offsets("2,4", "0,2", 4), Ok(()));
    let outside = Err((OutOfBounds, "S5"));
    assert_eq!(offsets("0,2", "3,5", 5), outside); // a hole
    assert_eq!(offsets("1,3", "3,5", 5), outside); // a hole at the start
    assert_eq!(offsets("0,2", "1,3", 4), outside); // an overlap
    assert_eq!(offsets("0,2", "0,2", 2), outside); // the same
    assert_eq!(offsets("0,2", "2,4", 3), Err((Truncated, "S5")));
    assert_eq!(offsets("0,2", "2,0", 4), outside); // end before start
    assert_eq!(offsets("0,2", "2,18446744073709551615", 4), outside);
    assert_eq!(offsets("0,2", "2,4", 5), Err((SizeMismatch, "S5"))); // extra data at the end
    assert_eq!(refusal(&file("{}", 1)), (SizeMismatch, "S5"));
}

#[test]
fn s6_lengths_follow_from_dtype_and_shape() {
    let tensor = |dtype: &str, shape: &str, len: u64| {
        let header = format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{len}]}}}}"#);
        let opened = open(&file(&header, len as usize));
        opened
            .map(drop)
            .map_err(|error| (error.kind(), error.broken_rule().unwrap()))
    };
    let mismatch = Err((SizeMismatch, "S6"));
    assert_eq!(tensor("F32", "[2]", 7), mismatch);
    assert_eq!(tensor("F32", "[2]", 9), mismatch);
    assert_eq!(tensor("F32", "[]", 4), Ok(()));
    assert_eq!(tensor("F32", "[]", 0), mismatch);
    assert_eq!(tensor("F4", "[3]", 2), mismatch); // one and a half bytes
    assert_eq!(tensor("F4", "[3]", 1), mismatch);
    assert_eq!(tensor("F6_E2M3", "[4]", 3), Ok(()));
    let overflow = Err((Overflow, "S6"));
    assert_eq!(tensor("U8", "[9223372036854775808,2]", 0), overflow);
    assert_eq!(tensor("U8", "[4294967296,4294967296]", 0), overflow);
    assert_eq!(tensor("F64", "[2305843009213693952]", 0), overflow);
    // A dimension of 0 anywhere means no elements.
    assert_eq!(tensor("U8", "[9223372036854775808,4,0]", 0), Ok(()));
    assert_eq!(tensor("U8", "[0,9223372036854775808,4]", 0), Ok(()));
}

#[test]
fn s7_metadata_is_text_by_key() {
    let opened = |metadata: &str| open(&file(&format!(r#"{{"__metadata__":{metadata}}}"#), 0));
    let reader = opened(r#"{"b":"2","a":"1"}"#).unwrap();
    assert_eq!(reader.metadata().keys().collect::<Vec<_>>(), ["a", "b"]);
    assert!(opened("null").unwrap().metadata().is_empty());
    assert!(opened("{}").unwrap().metadata().is_empty());
    for metadata in [
        "1",
        "[]",
        r#"{"a":1}"#,
        r#"{"a":null}"#,
        r#"{"a":{}}"#,
        r#"{"a":"1","a":"2"}"#,
        r#"{"a":"1"},"__metadata__":{}"#,
    ] {
        assert_eq!(opened(metadata).unwrap_err().kind(), Malformed, "{metadata}");
    }
}

#[test]
fn s8_limits() {
    let tensor = r#"{"dtype":"U8","shape":[1,1],"data_offsets":"#;
    let header = format!(r#"{{"aa":{tensor}[0,1]}},"b":{tensor}[1,2]}}}}"#);
    let bytes = Bytes::from(file(&header, 2));
    let opened = |limits: Limits| {
        let options = ReadOptions {
            limits,
            ..ReadOptions::default()
        };
        let opened = SafetensorsReader::open(Arc::new(bytes.clone()), &options);
        opened.map(drop).map_err(|error| error.kind())
    };
    let limits = Limits::default;
    for (tensors, wanted) in [(1, Err(TooLarge)), (2, Ok(()))] {
        assert_eq!(opened(Limits { tensors, ..limits() }), wanted);
    }
    for (rank, wanted) in [(1, Err(TooLarge)), (2, Ok(()))] {
        assert_eq!(opened(Limits { rank, ..limits() }), wanted);
    }
    for (name_bytes, wanted) in [(1, Err(BadName)), (2, Ok(()))] {
        assert_eq!(
            opened(Limits {
                name_bytes,
                ..limits()
            }),
            wanted
        );
    }
    let len = header.len() as u64;
    for (index_bytes, wanted) in [(len - 1, Err(TooLarge)), (len, Ok(()))] {
        assert_eq!(
            opened(Limits {
                index_bytes,
                ..limits()
            }),
            wanted
        );
    }
    // Dimensions are kept only up to the maximum rank.
    let many = format!(
        r#"{{"a":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,1]}}}}"#,
        "1,".repeat(1000)
    );
    assert_eq!(refusal(&file(&many, 1)), (Malformed, "S2"));
}

#[test]
fn s9_data_that_is_not_aligned_is_reported() {
    let (narrow, wide) = (counting(DType::I8, &[3]), counting(DType::F64, &[2]));
    let none = Default::default();
    let odd = open(&written(&[("a", &narrow), ("b", &wide)], &none)).unwrap();
    assert_eq!(odd.lints().unwrap().len(), 1);
    assert_eq!(odd.tensor(1).unwrap(), wide);
    let even = open(&written(&[("b", &wide), ("a", &narrow)], &none)).unwrap();
    assert_eq!(even.lints().unwrap(), []);
    assert_eq!(even.entries()[0].range.start % 64, 0);
}

/// S8: the memory for reading a header is a small multiple of the header's length. Each shape takes memory
/// only for its actual dimensions.
#[test]
fn s8_memory_for_many_tensors_is_bounded() {
    const COUNT: usize = 20_000;
    let tensors = (0..COUNT).map(|number| {
        let end = number + 1;
        format!(
            r#""model.layers.{number}.weight":{{"dtype":"U8","shape":[1,1],"data_offsets":[{number},{end}]}}"#
        )
    });
    let header = format!("{{{}}}", tensors.collect::<Vec<_>>().join(","));
    let bytes = tensor_core::Bytes::from(file(&header, COUNT));
    let mut opened = None;
    let allocated = allocation_counter::measure(|| opened = SafetensorsReader::from_bytes(bytes).ok());
    assert_eq!(opened.unwrap().entries().len(), COUNT);
    let most = 6 * header.len() as u64;
    assert!(allocated.bytes_max <= most, "{} for {most}", allocated.bytes_max);
}
