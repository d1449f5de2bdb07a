//! Any bytes as a PyTorch checkpoint, and as the pickle of one: opened, and read in every way.
#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use fmt_core::{ReadOptions, TensorReader, testing::read_everything};
use fmt_torch::TorchReader;
use libfuzzer_sys::fuzz_target;

/// What a checkpoint before PyTorch 1.6 begins with: the magic number and the version. Pickles follow.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";

fuzz_target!(|data: &[u8]| {
    let files = [data.to_vec(), [LEGACY, data].concat()];
    for (file, lenient) in files.into_iter().flat_map(|file| [(file.clone(), false), (file, true)]) {
        let mut options = ReadOptions { lenient, ..ReadOptions::default() };
        options.limits.decoded_bytes = 1 << 20;
        let Ok(reader) = TorchReader::open(Arc::new(Bytes::from(file)), &options) else {
            continue;
        };
        // A tensor may be expanded to any length; what is larger than this is refused.
        let len = |entry: &fmt_core::Entry| entry.byte_len().unwrap_or(0).min(1 << 20);
        if reader.entries().iter().map(len).sum::<u64>() <= 8 << 20 {
            read_everything(&reader);
        }
    }
});
