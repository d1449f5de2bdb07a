//! Opens arbitrary bytes as a PyTorch checkpoint, or as the pickle inside a checkpoint, and reads all tensors
//! in every way.
//!
//! An input that does not begin like an archive becomes the pickles of a checkpoint, so that the fuzzer need
//! not find magic numbers and zip directories. The first bit selects the format: that of PyTorch before 1.6,
//! or a zip archive.
#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use fmt_core::{ReadOptions, TensorReader, testing::read_everything};
use fmt_torch::TorchReader;
use libfuzzer_sys::fuzz_target;

/// The beginning of a checkpoint from before PyTorch 1.6: the magic number and the version. Pickles follow.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";

fuzz_target!(|data: &[u8]| {
    let file = match data.split_first() {
        _ if data.starts_with(b"PK") => data.to_vec(),
        Some((first, pickles)) if first & 1 == 0 => [LEGACY, pickles].concat(),
        Some((_, pickle)) => archive(pickle),
        None => return,
    };
    let file = Bytes::from(file);
    let open = |lenient| {
        let mut options = ReadOptions { lenient, ..ReadOptions::default() };
        options.limits.decoded_bytes = 1 << 20;
        TorchReader::open(Arc::new(file.clone()), &options)
    };
    let strict = open(false);
    // The strict and the lenient reader refuse most inputs for the same reasons. To save time, a second bit
    // selects which of the refused inputs are also opened leniently.
    let lenient = (strict.is_ok() || data[0] & 2 != 0).then(|| open(true));
    if let (Ok(strict), Some(lenient)) = (&strict, &lenient) {
        let lenient = lenient.as_ref().expect("a lenient reader takes what a strict one takes");
        assert!(strict.entries().len() <= lenient.entries().len());
    }
    for (reader, is_strict) in [(Some(strict), true), (lenient, false)] {
        let Some(Ok(reader)) = reader else {
            continue;
        };
        for (index, entry) in reader.entries().iter().enumerate() {
            let found = reader.find(&entry.name);
            let is_earlier = found.is_some_and(|first| first < index);
            assert!(found == Some(index) || !is_strict && is_earlier, "{found:?} is not {index}");
        }
        // A tensor with stride 0 can have any size. Tensors of more than 1 MiB are refused when they are
        // read, so each counts as at most 1 MiB.
        let len = |entry: &fmt_core::Entry| entry.byte_len().unwrap_or(0).min(1 << 20);
        if reader.entries().iter().map(len).sum::<u64>() <= 1 << 20 {
            read_everything(&reader);
        }
    }
});

/// Builds an archive of the pickle and two storages, without checksums.
fn archive(pickle: &[u8]) -> Vec<u8> {
    let storage: Vec<u8> = (0..=255).cycle().take(512).collect();
    let members = [("a/data.pkl", pickle), ("a/data/0", &storage), ("a/data/1", &storage[..64])];
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in members {
        let at = file.len() as u32;
        let len = (content.len() as u32).to_le_bytes();
        let fixed = [&[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &len, &len, &[name.len() as u8, 0, 0, 0]].concat();
        file.extend([b"PK\x03\x04", &fixed[..], name.as_bytes(), content].concat());
        directory.extend([b"PK\x01\x02\x0a\0", &fixed[..], &[0; 10], &at.to_le_bytes(), name.as_bytes()].concat());
    }
    let count = [members.len() as u8, 0];
    let (at, len) = (file.len() as u32, directory.len() as u32);
    file.extend(directory);
    file.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count, &len.to_le_bytes(), &at.to_le_bytes(), &[0, 0]].concat());
    file
}
