//! Opening arbitrary bytes as a TensorBuffers file and reading everything in it must succeed, or fail with an
//! error that names the violated rule. The lenient reader must accept every file that the strict one accepts,
//! and every way of reading a tensor must give the same bytes.
#![no_main]

use std::sync::Arc;

use fmt_core::{ReadOptions, TensorReader, testing::read_everything};
use fmt_tbuf::TbufReader;
use libfuzzer_sys::fuzz_target;
use tensor_core::Bytes;

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    let open = |lenient| {
        let options = ReadOptions {
            lenient,
            ..ReadOptions::default()
        };
        TbufReader::open(Arc::new(bytes.clone()), &options)
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
        }
    }
});
