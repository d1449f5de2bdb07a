//! safetensors files behind the traits of `fmt-core`.
//!
//! The [`safetensors`](https://docs.rs/safetensors) crate is the reference implementation; use it if you need
//! nothing but safetensors. This crate is for tools that handle many formats: it implements the traits of
//! [`fmt_core`], reads from any source without loading the file, writes as a stream, and rejects invalid
//! files that the reference crate accepts, above all those with duplicate names. Names and widths of dtypes
//! are those of the reference crate; tests compare the two.
//!
//! ```
//! use fmt_core::TensorReader;
//! use fmt_safetensors::{SafetensorsReader, SafetensorsWriter};
//! use tensor_core::{Shape, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let weights = Tensor::from_vec(Shape::new(&[3, 2])?, vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//!
//! // Writing: all tensors are planned first, because the header comes first. Then bytes are written in pieces.
//! let tensors = [("weights".to_owned(), weights.spec().clone())];
//! let metadata = [("format".to_owned(), "pt".to_owned())].into();
//! let mut writer = SafetensorsWriter::new(Vec::new(), &tensors, &metadata)?;
//! for row in weights.bytes().chunks(8) {
//!     writer.write(row)?;
//! }
//! let file = writer.finish()?;
//!
//! // Reading: from bytes in memory, a path, or any source.
//! let reader = SafetensorsReader::from_bytes(file)?;
//! assert_eq!(reader.metadata()["format"], "pt");
//! assert_eq!(reader.get("weights")?, weights);
//! let index = reader.find("weights").ok_or("no such tensor")?;
//! assert_eq!(reader.rows(index, 1..2)?.to_vec::<f32>()?, [3.0, 4.0]);
//! # Ok(())
//! # }
//! ```
//!
//! docs/formats/safetensors.md has the rules (`S1` and so on) that errors name
//! ([`fmt_core::Error::broken_rule`]).

mod capabilities;
mod edit;
mod format;
mod header;
mod layout;
mod reader;
mod writer;

pub use edit::edit;
pub use format::Safetensors;
pub use reader::SafetensorsReader;
pub use writer::SafetensorsWriter;
