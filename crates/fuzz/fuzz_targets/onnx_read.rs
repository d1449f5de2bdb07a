//! Opens arbitrary bytes as an ONNX model, and as the graph inside a model, and reads all tensors in every
//! way.
#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use fmt_core::{ReadOptions, testing::read_everything};
use fmt_onnx::OnnxReader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The graph is at most 16,383 bytes long, so that its encoded length has two bytes.
    let len = data.len().min(0x3FFF);
    let head = [0x08, 8, 0x3A, len as u8 | 0x80, (len >> 7) as u8];
    for file in [data.to_vec(), [&head, &data[..len]].concat()] {
        let mut options = ReadOptions::default();
        options.limits.decoded_bytes = 1 << 20;
        if let Ok(reader) = OnnxReader::open(Arc::new(Bytes::from(file)), &options) {
            read_everything(&reader);
        }
    }
});
