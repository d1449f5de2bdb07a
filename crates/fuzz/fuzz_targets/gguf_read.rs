//! Any bytes as a GGUF file: opened, and read in every way. The header is read by a crate that is not of this workspace.
#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use fmt_core::{Format, ReadOptions, Sniff, TensorReader, testing::read_everything};
use fmt_gguf::{Gguf, GgufReader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let source = Arc::new(Bytes::copy_from_slice(data));
    let Ok(reader) = GgufReader::open(source, &ReadOptions::default()) else {
        return;
    };
    assert_eq!(Gguf.sniff(&data[..data.len().min(512)], data.len() as u64), Sniff::Certain);
    read_everything(&reader);
    for (index, entry) in reader.entries().iter().enumerate() {
        assert_eq!(reader.find(&entry.name), Some(index), "a name occurs twice");
        assert_eq!(reader.tensor(index).is_ok(), entry.unsupported.is_none());
    }
});
