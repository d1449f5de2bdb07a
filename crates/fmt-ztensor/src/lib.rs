//! zTensor files of version 0.1, read and written: tensors at multiples of 64 bytes, raw or in Zstandard
//! frames, and a CBOR index at the end. Versions 1.x and 2.x, which are different formats of the same name,
//! are in `fmt-ztensor2`.
//!
//! docs/formats/ztensor.md describes the format byte for byte and gives a reason for every decision that the
//! specification leaves open; errors have the number of the violated rule ([`fmt_core::Error::broken_rule`]).
//!
//! | | |
//! |---|---|
//! | [`ZtensorReader`] | reads a file, with all features of the format |
//! | [`ZtensorWriter`] | writes a file to any sink |
//! | [`ZtensorEditor`] | changes names and custom fields and appends tensors, without rewriting the data |
//! | [`Ztensor`] | the format, for tools that handle all formats |
//! | [`CborValue`], [`Compression`], [`ChecksumKind`] | values of custom fields, from the crate `fmt-cbor`; storage options, from `fmt-zstd` |
//!
//! # Reading
//!
//! ```
//! use fmt_core::{TensorReader, Verification};
//! use fmt_ztensor::ZtensorReader;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = "model.zt";
//! # use fmt_ztensor::{CborValue, CustomField, TensorOptions, WriteOptions, ZtensorWriter};
//! # use tensor_core::{Shape, Tensor};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.zt");
//! # let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default())?;
//! # let tensor = Tensor::from_vec(Shape::new(&[2, 2])?, vec![1.0f32, 2.0, 3.0, 4.0])?;
//! # let field = CustomField::new("scale", CborValue::from(0.5))?;
//! # writer.tensor_with("weights", &tensor, &TensorOptions { fields: vec![field], ..TensorOptions::default() })?;
//! # std::fs::write(&path, writer.finish()?)?;
//! let reader = ZtensorReader::from_path(&path)?;
//! for (index, entry) in reader.entries().iter().enumerate() {
//!     println!("{} {}{} {:?}", entry.name, entry.dtype, entry.shape, entry.encoding);
//!     assert_eq!(reader.verify(index)?, Verification::Ok);
//! }
//! let index = reader.find("weights").ok_or("no such tensor")?;
//! let weights = reader.tensor(index)?;
//! assert_eq!(weights.view().to_cow::<f32>()?[..], [1.0, 2.0, 3.0, 4.0]);
//! assert_eq!(reader.fields(index)[0].value().as_f64(), Some(0.5));
//! # Ok(())
//! # }
//! ```
//!
//! [`ZtensorReader::from_bytes`] does not copy bytes in memory, such as a mapping by `tensor-mmap`. The
//! reader is made for untrusted files: opening one takes time and memory in proportion to its index, and
//! never panics; [`fmt_core::Limits`] bounds both.
//!
//! # Writing
//!
//! ```
//! use fmt_ztensor::{ChecksumKind, Compression, TensorOptions, WriteOptions, ZtensorReader, ZtensorWriter};
//! use tensor_core::{Shape, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = WriteOptions {
//!     tensors: TensorOptions {
//!         compression: Some(Compression::level(9)),
//!         checksum: Some(ChecksumKind::Sha256),
//!         ..TensorOptions::default()
//!     },
//!     ..WriteOptions::default()
//! };
//! let mut writer = ZtensorWriter::new(Vec::new(), options)?;
//! writer.tensor("zeros", &Tensor::from_vec(Shape::vector(1000), vec![0i64; 1000])?)?;
//! let file = writer.finish()?;
//! assert!(file.len() < 400);
//! # assert_eq!(fmt_core::TensorReader::entries(&ZtensorReader::from_bytes(file)?).len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Streaming
//!
//! The index comes last, so a file can be written while its tensors are being computed, in pieces of any
//! size, to a socket as well as to a file. The writer holds only the index and one frame of a compressed
//! tensor in memory.
//!
//! ```
//! use fmt_core::AtomicFile;
//! use fmt_ztensor::{WriteOptions, ZtensorWriter};
//! use tensor_core::{DType, Shape, TensorSpec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::path::Path::new("rows.zt");
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("rows.zt");
//! // The file appears under its name only when it is complete and on disk.
//! let mut writer = ZtensorWriter::new(AtomicFile::create(&path)?, WriteOptions::default())?;
//! writer.begin("rows", &TensorSpec::new(DType::F32, Shape::new(&[1000, 64])?)?)?;
//! for row in 0..1000u16 {
//!     let row = [f32::from(row); 64];
//!     writer.write(&row.map(f32::to_le_bytes).concat())?;
//! }
//! writer.finish()?.persist()?;
//! # assert_eq!(std::fs::metadata(&path)?.len() / 1000, 256);
//! # Ok(())
//! # }
//! ```

mod capabilities;
mod checks;
mod custom;
mod editor;
mod footer;
mod format;
mod index;
mod kind;
mod layout;
mod ledger;
mod lints;
mod options;
mod reader;
mod writer;

pub use fmt_cbor::CborValue;
pub use fmt_zstd::{ChecksumKind, Compression};

pub use custom::CustomField;
pub use editor::{ZtensorEditor, recover};
pub use format::Ztensor;
pub use options::{TensorOptions, WriteOptions};
pub use reader::ZtensorReader;
pub use writer::ZtensorWriter;
