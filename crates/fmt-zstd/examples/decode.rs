//! Decodes a file of Zstandard frames with a given decoded size, and prints its checksum.
//!
//! ```sh
//! cargo run --package fmt-zstd --example decode -- weights.zst 67108864
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use fmt_core::{ByteSource, FileSource, Limits};
use fmt_zstd::{Blob, ChecksumKind, ChecksumOf, Decoding, Hasher, default_threads};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which file?")?;
    let len = arguments.next().ok_or("how many bytes does it hold?")?.parse()?;
    let source = FileSource::open(path.as_ref())?;
    let blob = Blob {
        decoding: Decoding {
            source: &source,
            limits: &Limits::default(),
            threads: default_threads(),
        },
        tensor: &path,
        range: 0..source.len(),
        len,
        is_zstd: true,
        swapped: 1,
        checksum: None,
        checksum_is_of: ChecksumOf::Stored,
        is_zero_or_one: false,
        rules: &[],
    };
    let mut hasher = Hasher::new(ChecksumKind::Sha256);
    hasher.update(&blob.bytes()?);
    println!("{}", hasher.finish());
    Ok(())
}
