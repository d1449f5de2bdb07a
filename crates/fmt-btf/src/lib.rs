//! TFRT's Binary Tensor Format (BTF): a table of offsets, followed by one record for each tensor, dense or
//! sparse (COO).
//!
//! The structure is validated when a file is opened; after that, tensors are slices of the source. The format
//! aligns data to 8 bytes, which is enough to view all of its dtypes in place.
//!
//! ```
//! use fmt_btf::{BtfReader, BtfWriter, WriteOptions};
//! use fmt_core::TensorReader;
//! use tensor_core::{Bytes, Shape, SparseCoo, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dense = Tensor::from_vec(Shape::new(&[2, 2])?, vec![1i32, 0, 0, 4])?;
//! let sparse = SparseCoo::from_dense(&dense.view());
//!
//! // Writing: all tensors are declared first, since the offset table is at the start.
//! let mut writer = BtfWriter::new(Vec::new(), vec![(&dense).into(), (&sparse).into()], WriteOptions::default())?;
//! writer.tensor(&dense)?;
//! writer.sparse(&sparse)?;
//! let file = Bytes::from(writer.finish()?);
//!
//! // Reading: from bytes in memory (which may be a mapping of `tensor-mmap`), a path, or any source.
//! let reader = BtfReader::from_bytes(file.clone())?;
//! let read = reader.tensor(0)?;
//! assert_eq!(read.view().as_slice::<i32>()?, [1, 0, 0, 4]);
//! assert!(file.as_ptr_range().contains(&read.bytes().as_ptr())); // not copied
//! assert_eq!(reader.sparse(1)?.to_dense(1 << 20)?, dense);
//! # Ok(())
//! # }
//! ```
//!
//! Streaming: bytes may arrive in pieces of any size, and are written directly to the sink.
//!
//! ```
//! use fmt_btf::{BtfWriter, RecordSpec, WriteOptions};
//! use tensor_core::{DType, Shape, TensorSpec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let spec = TensorSpec::new(DType::F32, Shape::new(&[1000, 1000])?)?;
//! let mut writer = BtfWriter::new(std::io::sink(), vec![RecordSpec::dense(spec)], WriteOptions::default())?;
//! let row = [0; 4000];
//! for _ in 0..1000 {
//!     writer.write(&row)?;
//! }
//! writer.finish()?;
//! # Ok(())
//! # }
//! ```
//!
//! | type | purpose |
//! |---|---|
//! | [`BtfReader`] | reading, with all features of the format ([`Record`]) |
//! | [`BtfWriter`] | writing, with the choices that the format leaves ([`WriteOptions`]) |
//! | [`Names`] | tensor names, in a file next to the data, since the format has none |
//! | [`Btf`] | the format, for tools that handle all formats ([`fmt_core::Format`]) |
//!
//! docs/formats/btf.md describes every byte, and the rules (`B1` and so on) that errors name
//! ([`fmt_core::Error::broken_rule`]).

mod arena;
mod capabilities;
mod format;
mod index;
mod layout;
mod lints;
mod names;
mod options;
mod order;
mod reader;
mod record;
mod table;
mod window;
mod writer;

pub use format::Btf;
pub use names::Names;
pub use options::{CooCode, WriteOptions};
pub use reader::{BtfReader, Record};
pub use record::RecordSpec;
pub use writer::BtfWriter;
