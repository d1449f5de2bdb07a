//! The code that all tensor file formats share, so that each format's crate deals only with its own bytes.
//!
//! - [`ByteSource`]: a source of bytes; [`FileSource`] for files, `Bytes` for memory.
//! - [`Cursor`], [`check_overlaps`], [`check_name`], [`reserve`], [`Limits`]: reading untrusted bytes.
//! - [`NameTable`]: looks up names of millions of tensors.
//! - [`read_range`], [`read_into`], [`row_range`], [`tensor_of`], [`RawTensor`]: reading validated ranges.
//! - [`shared_ranges`]: tensors with the same bytes, such as tied weights.
//! - [`TensorStream`]: reads a tensor's bytes in parts.
//! - [`Error`]: the failure, its position, and the expected and actual values.
//! - [`TensorReader`], [`TensorWriter`], [`Format`]: a common interface to all formats, for tools. Each
//!   format's crate also has concrete types, with every feature of the format.
//! - [`Capabilities`], [`Plan::check`]: the capabilities of a format as data, and a check of plans against
//!   them; [`Outstanding`]: counts the bytes of a plan that have not arrived yet.
//! - [`AtomicFile`], [`AppendFile`], [`HeadEditor`]: files that appear, grow or change atomically;
//!   [`OutputFile`] also writes to devices and pipes; [`FileIdentity`] checks whether a path still leads to
//!   the same file; [`Sink`] tracks the position of a writer.
//! - [`TailFile`], [`edit_at_end`]: editors for formats whose index is at the end.
//! - [`open_by_path_and_bytes`]: a macro that generates constructors of readers, by path and from memory.
//! - `testing` (feature `testing`): a test kit that all format crates use.
//!
//! The crate contains no format-specific code.
//!
//! ```
//! use std::{fs, io::Write, path::Path};
//!
//! use fmt_core::AtomicFile;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = Path::new("greeting.txt");
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("greeting.txt");
//! let mut file = AtomicFile::create(&path)?;
//! file.write_all(b"hello")?;
//! // Until this call, readers see the previous file, or none.
//! assert!(!path.exists());
//! file.persist()?;
//! assert_eq!(fs::read(&path)?, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! The feature `testing` is for tests and exempt from semantic versioning: it may change in any release.

mod append_file;
mod atomic_file;
mod attributes;
mod capabilities;
mod cursor;
mod entry;
mod error;
mod extents;
mod format;
mod head_editor;
mod identity;
mod limits;
mod lints;
mod name_table;
mod names;
mod opaque;
mod open;
mod output;
mod outstanding;
mod ranges;
mod raw;
mod reader;
mod sharing;
mod sink;
mod source;
mod stream;
mod tail_file;
#[cfg(feature = "testing")]
pub mod testing;
mod writer;

/// Used by the code that [`open_by_path_and_bytes`] generates.
#[doc(hidden)]
pub use bytes::Bytes as __Bytes;

pub use append_file::AppendFile;
pub use atomic_file::{AtomicFile, CompleteFile, OutputOptions, behind_links};
pub use attributes::Attributes;
pub use capabilities::{Capabilities, Names, Texts};
pub use cursor::Cursor;
pub use entry::{Encoding, Entry, Layout, Metadata, StoredDType};
pub use error::{Error, ErrorKind};
pub use extents::{check_overlaps, holes};
pub use format::{BoxReader, BoxWriter, Format, Output, Sniff};
pub use head_editor::{EncodeHead, HeadEditor};
pub use identity::FileIdentity;
pub use limits::{Limits, ReadOptions};
pub use lints::lint_holes;
pub use name_table::NameTable;
pub use names::check_name;
pub use opaque::OpaqueDType;
pub use output::OutputFile;
pub use outstanding::{Outstanding, Piece};
pub use ranges::{check_buffer, read_into, read_range, reserve, row_range, source_error, tensor_of};
pub use raw::RawTensor;
pub use reader::{Lint, TensorReader, Verification};
pub use sharing::shared_ranges;
pub use sink::Sink;
pub use source::{ByteSource, FileSource};
pub use stream::{BytesStream, SourceStream, TENSOR_STREAM_UNIT, TensorStream};
pub use tail_file::TailFile;
pub use writer::{Plan, PlannedEntry, TensorWriter};
