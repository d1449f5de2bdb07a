//! The stored bytes of tensors, raw or as Zstandard frames (RFC 8878), with checksums.
//!
//! | | |
//! |---|---|
//! | [`Blob`] | reading: all bytes, a part, or a stream; within limits, on several threads, checked against CRC-32C, SHA-256 or XXH3 |
//! | [`ProvenTables`] | reading parts of compressed tensors by the table of the *seekable format*, once it is validated against its frames |
//! | [`Compressor`], [`Compression`] | writing: several threads compress frames, and the output is the same for any number of threads |
//! | [`HashingSink`], [`Hasher`], [`Claim`] | checksums computed during writing, and their string form |
//!
//! Frames come from untrusted files. Their headers are checked before anything is decoded: memory is limited
//! to the declared size of the tensor, and windows stay within
//! [`Limits::window_log`](fmt_core::Limits::window_log). Reading through a seek table returns the same bytes
//! as decoding all frames.
//!
//! ```
//! use fmt_core::Limits;
//! use fmt_zstd::{Blob, ChecksumOf, Compression, Compressor, Decoding, HashingSink, ProvenTables};
//! use tensor_core::Bytes;
//!
//! # fn main() -> Result<(), fmt_core::Error> {
//! let tensor: Vec<u8> = (0..8 << 20).map(|at| (at / 1000) as u8).collect();
//! let mut sink = HashingSink::new(Vec::new(), 0);
//! let mut compressor = Compressor::new()?;
//! compressor.begin(&Compression::default(), tensor.len() as u64)?;
//! compressor.write(&tensor, &mut sink)?;
//! compressor.finish(&mut sink)?;
//! let file = Bytes::from(sink.into_inner());
//! assert!(file.len() < tensor.len() / 100);
//!
//! let blob = Blob {
//!     decoding: Decoding { source: &file, limits: &Limits::default(), threads: 2 },
//!     tensor: "ramp",
//!     range: 0..file.len() as u64,
//!     len: tensor.len() as u64,
//!     is_zstd: true,
//!     swapped: 1,
//!     checksum: None,
//!     checksum_is_of: ChecksumOf::Stored,
//!     is_zero_or_one: false,
//!     rules: &[],
//! };
//! assert_eq!(blob.bytes()?, tensor);
//! // This decodes one frame of 1 MiB.
//! let part = blob.part(&ProvenTables::default(), 0, 3_000_000..3_000_010)?;
//! assert_eq!(part, tensor[3_000_000..3_000_010]);
//! # Ok(())
//! # }
//! ```
//!
//! The feature `testing` is for tests and exempt from semantic versioning: it may change in any release.

mod blob;
mod checksum;
mod compress;
mod compression;
mod decode;
mod frames;
mod hashed;
mod parallel;
mod rows;
mod rules;
mod sink;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;

pub use blob::{Blob, ChecksumOf};
pub use checksum::{ChecksumKind, Claim, Hasher};
pub use compress::Compressor;
pub use compression::Compression;
pub use decode::{Decoding, memory};
pub use parallel::default_threads;
pub use rows::ProvenTables;
pub use rules::{BOOLEANS, CHECKSUMS, FRAMES, LEVELS, MEMORY, TABLES};
pub use sink::HashingSink;
