//! TensorBuffers files (`.tbuf`): the bytes of tensors one after the other, and a FlatBuffers index at the end.
//!
//! Because the index comes last, a file is written as a stream, without knowing beforehand what will be in it, and
//! appended to without being written anew. Because the index is small and validated as a whole when a file is opened, each
//! tensor is then one slice of a mapping, or one read of a file.
//!
//! | to | there is |
//! |---|---|
//! | read | [`TbufReader`], on a path, on [`Bytes`](tensor_core::Bytes) in memory or mapped, on any [`ByteSource`](fmt_core::ByteSource) |
//! | write | [`TbufWriter`], to anything that takes bytes; with [`AtomicFile`](fmt_core::AtomicFile) the file appears when it is complete |
//! | rename, append | [`TbufEditor`], atomically or in place ([`recover`] after a crash) |
//! | deal with all formats alike | [`TensorBuffers`], an implementation of [`Format`](fmt_core::Format) |
//!
//! # Reading
//!
//! ```
//! use fmt_core::TensorReader;
//! use fmt_tbuf::TbufReader;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = "model.tbuf";
//! # use {fmt_tbuf::*, tensor_core::*};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.tbuf");
//! # let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default())?;
//! # writer.tensor("encoder.weight", &Tensor::from_vec(Shape::new(&[2, 2])?, vec![1.0f32, 2.0, 3.0, 4.0])?)?;
//! # std::fs::write(&path, writer.finish()?)?;
//! let reader = TbufReader::from_path(&path)?;
//! for entry in reader.entries() {
//!     println!("{}: {}{}, bytes {:?}", entry.name, entry.dtype, entry.shape, entry.range);
//! }
//! let index = reader.find("encoder.weight").ok_or("no such tensor")?;
//! let weight = reader.tensor(index)?;
//! assert_eq!(weight.view().to_cow::<f32>()?[..], [1.0, 2.0, 3.0, 4.0]);
//! # Ok(())
//! # }
//! ```
//!
//! From a path, each tensor is read when it is asked for. From `Bytes`, nothing is copied, and with `tensor-mmap` a file
//! can be such bytes; its contract is then the caller's to keep.
//!
//! # Writing
//!
//! ```
//! use fmt_core::AtomicFile;
//! use fmt_tbuf::{TbufWriter, WriteOptions};
//! use tensor_core::{Shape, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::path::Path::new("model.tbuf");
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.tbuf");
//! let mut writer = TbufWriter::new(AtomicFile::create(&path)?, WriteOptions::default())?;
//! writer.set_model("tiny")?;
//! writer.tensor("bias", &Tensor::from_vec(Shape::vector(3), vec![1i32, 2, 3])?)?;
//! writer.finish()?.persist()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Streaming
//!
//! A tensor's bytes may come in any pieces; none is kept. Anything that implements [`Write`](std::io::Write) will do,
//! a socket as well as a file.
//!
//! ```
//! use fmt_core::TensorReader;
//! use fmt_tbuf::{TbufReader, TbufWriter, WriteOptions};
//! use tensor_core::{DType, Shape, TensorSpec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut sink = Vec::new();
//! let mut writer = TbufWriter::new(&mut sink, WriteOptions::default())?;
//! writer.begin("samples", &TensorSpec::new(DType::I16, Shape::new(&[1000, 4])?)?)?;
//! for sample in 0..1000i16 {
//!     writer.write(&[sample.to_le_bytes(); 4].concat())?;
//! }
//! writer.finish()?;
//! assert_eq!(TbufReader::from_bytes(sink)?.rows(0, 7..8)?.to_vec::<i16>()?, [7; 4]);
//! # Ok(())
//! # }
//! ```
//!
//! # What the format can hold
//!
//! | | |
//! |---|---|
//! | dtypes | `i8` to `i64`, `u8` to `u64`, `f32`, `f64`; not `bool`, `f16`, `bf16` |
//! | layout | dense, row-major, little-endian, uncompressed; rank up to 64 |
//! | size | every tensor begins below 4 GiB and has at most 2³² − 1 bytes |
//! | metadata | the name of a model |
//! | checksums | none |
//!
//! Anything else is refused before it is written, with a message that says what would fit.
//!
//! # Untrusted files
//!
//! Whatever the bytes are, opening them ends, in time and memory in proportion to the index, with a reader or with an
//! [`Error`](fmt_core::Error) that says what is wrong, at which byte, and which rule it breaks. The rules are those of
//! `docs/formats/tensorbuffers.md`, which describes the format byte for byte. The crate has no `unsafe` code but what
//! the FlatBuffers compiler generates, and that runs only over an index that FlatBuffers' verifier has accepted.
//!
//! The format has no checksums: a changed byte within a tensor's data goes unnoticed.

mod capabilities;
mod editor;
mod footer;
mod format;
#[expect(
    unsafe_code,
    unreachable_pub,
    elided_lifetimes_in_paths,
    explicit_outlives_requirements,
    unused_extern_crates,
    clippy::all,
    clippy::doc_markdown,
    clippy::unwrap_used,
    reason = "written by the FlatBuffers compiler"
)]
mod generated;
mod index;
mod layout;
mod ledger;
mod lints;
mod names;
mod options;
mod reader;
mod writer;

pub use editor::{TbufEditor, recover};
pub use format::TensorBuffers;
pub use layout::tensor_id;
pub use options::WriteOptions;
pub use reader::TbufReader;
pub use writer::TbufWriter;
