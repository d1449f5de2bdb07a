//! GGUF files (llama.cpp's models) behind the traits of `fmt-core`.
//!
//! Tensors of plain elements (F32, F16, BF16, F64 and the integers) are slices of the source. Quantised
//! tensors are copied as blocks in both directions; [`Dequantizer`] converts them to floats:
//! `Dequantizer::of(&opaque_dtype)`, then [`Dequantizer::stream`] around
//! [`TensorReader::stream`](fmt_core::TensorReader::stream). Metadata values are strings, with their types
//! recorded, so that they can be written back unchanged.
//!
//! ```
//! use fmt_core::TensorReader;
//! use fmt_gguf::GgufReader;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = "model.gguf"; // with one tensor, `w`, F32[1, 3]
//! # let mut file = b"GGUF\x03\0\0\0".to_vec();
//! # for word in [1u64, 0, 1] { file.extend(word.to_le_bytes()); } // one tensor, no metadata, a name of one byte
//! # file.extend(b"w\x02\0\0\0");
//! # for dim in [3u64, 1] { file.extend(dim.to_le_bytes()); }
//! # file.extend([0; 12]); // F32, at the beginning of the data
//! # file.resize(file.len().next_multiple_of(32), 0);
//! # for element in [1.0f32, 2.0, 3.0] { file.extend(element.to_le_bytes()); }
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.gguf");
//! # std::fs::write(&path, file)?;
//! let reader = GgufReader::from_path(path)?;
//! let index = reader.find("w").ok_or("no such tensor")?;
//! // GGUF lists the fastest-changing dimension first; here it is last, as everywhere else.
//! assert_eq!(reader.entries()[index].shape.dims(), [1, 3]);
//! assert_eq!(reader.tensor(index)?.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
//! # Ok(())
//! # }
//! ```
//!
//! docs/formats/gguf.md lists the decisions where the format is ambiguous.

mod blocks;
mod capabilities;
mod dequantise;
mod edit;
mod format;
mod grid_blocks;
mod grids;
mod header;
mod reader;
mod split;
mod types;
mod value;
mod words;
mod writer;

pub use dequantise::Dequantizer;
pub use edit::edit;
pub use format::Gguf;
pub use reader::GgufReader;
pub use split::Split;
