//! Opening arbitrary bytes as a zTensor file of version 1 or 2 and reading everything in it must succeed, or
//! fail with an error that names the violated rule. Memory must stay in proportion to the file, and every way
//! of reading a tensor must give the same bytes.
//!
//! An input that does not begin like a zTensor file becomes a manifest after some data, so that the fuzzer
//! need not find lengths and hashes. The first bit selects version 1 or 2. If the input is a whole file of
//! version 2, the hash in the file is corrected.
#![no_main]

use std::sync::Arc;

use fmt_core::{Limits, ReadOptions, TensorReader, testing::read_everything};
use fmt_ztensor2::ObjectsReader;
use libfuzzer_sys::fuzz_target;
use tensor_core::Bytes;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC_V1: &[u8; 8] = b"ZTEN1000";
const MAGIC_V2: &[u8; 8] = b"\x89ZT2\r\n\x1a\n";

fuzz_target!(|data: &[u8]| {
    let file = if data.starts_with(MAGIC_V1) {
        data.to_vec()
    } else if data.starts_with(MAGIC_V2) {
        rehashed(data.to_vec())
    } else {
        match data.split_first() {
            Some((first, manifest)) if first & 1 == 0 => v1(manifest),
            Some((_, manifest)) => v2(manifest),
            None => return,
        }
    };
    let bytes = Bytes::from(file);
    let open = |lenient| {
        let options = ReadOptions {
            lenient,
            // Limits the decoded size, because large valid tensors only make fuzzing slow.
            limits: Limits {
                decoded_bytes: 1 << 20,
                ..Limits::default()
            },
        };
        ObjectsReader::open(Arc::new(bytes.clone()), &options)
    };
    let (strict, lenient) = (open(false), open(true));
    match &strict {
        Ok(reader) => {
            read_everything(reader);
            let lenient = lenient.expect("a lenient reader takes what a strict one takes");
            assert_eq!(reader.entries(), lenient.entries());
            for (index, entry) in reader.entries().iter().enumerate() {
                assert_eq!(reader.find(&entry.name), Some(index));
            }
            reader.metadata();
        }
        Err(error) => {
            assert!(error.broken_rule().is_some(), "no rule: {error}");
            if let Ok(reader) = lenient {
                read_everything(&reader);
            }
        }
    }
});

/// Builds a file of version 1: a few blobs at multiples of 64, and a manifest.
fn v1(manifest: &[u8]) -> Vec<u8> {
    let mut file = MAGIC_V1.to_vec();
    file.resize(64, 0);
    file.extend((0..=255).cycle().take(512));
    file.extend_from_slice(manifest);
    file.extend((manifest.len() as u64).to_le_bytes());
    file.extend(MAGIC_V1);
    file
}

/// Builds a file of version 2: two blobs of one page each, and a manifest.
fn v2(manifest: &[u8]) -> Vec<u8> {
    let mut file = MAGIC_V2.to_vec();
    file.resize(4096, 0);
    file.extend((0..=255).cycle().take(8192));
    file.extend_from_slice(manifest);
    for word in [12288, manifest.len() as u64, xxh3_64(manifest)] {
        file.extend(word.to_le_bytes());
    }
    file.extend([2, 0, 0, 0, 0, 0, 0, 0]);
    file.extend(MAGIC_V2);
    file
}

fn rehashed(mut file: Vec<u8>) -> Vec<u8> {
    let Some(footer) = file.len().checked_sub(40) else {
        return file;
    };
    let word = |at: usize| file[at..].first_chunk().map(|word| u64::from_le_bytes(*word));
    let place = word(footer).zip(word(footer + 8)).and_then(|(offset, len)| {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        file.get(offset..offset.checked_add(len)?)
    });
    if let Some(hash) = place.map(xxh3_64) {
        file[footer + 16..footer + 24].copy_from_slice(&hash.to_le_bytes());
    }
    file
}
