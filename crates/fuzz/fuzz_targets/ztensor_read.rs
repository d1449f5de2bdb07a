//! Opening arbitrary bytes as a zTensor file and reading everything in it must succeed, or fail with an error
//! that names the violated rule. The lenient reader must accept every file that the strict one accepts, every
//! way of reading a tensor must give the same bytes, and rewriting the index must lose nothing.
//!
//! An input that does not begin like a zTensor file becomes an index after some data, so that the fuzzer need
//! not find the length at the end.
#![no_main]

use std::sync::Arc;

use fmt_core::{Limits, ReadOptions, TensorReader, testing::read_everything};
use fmt_ztensor::{CborValue, ZtensorReader};
use libfuzzer_sys::fuzz_target;
use tensor_core::Bytes;

fuzz_target!(|data: &[u8]| {
    let bytes = if data.starts_with(b"ZTEN") {
        Bytes::copy_from_slice(data)
    } else {
        let len = (data.len() as u64).to_le_bytes();
        [b"ZTEN0001", &[0; 56][..], &[7; 200], data, &len].concat().into()
    };
    let open = |lenient| {
        let options = ReadOptions {
            lenient,
            // Limits the decoded size, because large valid tensors only make fuzzing slow.
            limits: Limits {
                decoded_bytes: 1 << 20,
                ..Limits::default()
            },
        };
        ZtensorReader::open(Arc::new(bytes.clone()), &options)
    };
    let (strict, lenient) = (open(false), open(true));
    for opened in [&strict, &lenient] {
        match opened {
            Ok(reader) => {
                read_everything(reader);
            }
            Err(error) => assert!(error.broken_rule().is_some(), "no rule: {error}"),
        }
    }
    if let Ok(reader) = &strict {
        let lenient = lenient.expect("a lenient reader takes what a strict one takes");
        assert_eq!(reader.entries(), lenient.entries());
        for (index, entry) in reader.entries().iter().enumerate() {
            assert_eq!(reader.find(&entry.name), Some(index));
            for field in reader.fields(index) {
                let value = CborValue::from_cbor(field.value().as_bytes());
                assert_eq!(value.expect("what was walked over is well-formed"), *field.value());
            }
        }
    }
});
