//! NumPy's formats: `.npy`, which holds one array, and `.npz`, a zip archive of those.
//!
//! Reads headers of versions 1 to 3, in both byte orders and both memory orders; row-major little-endian
//! arrays are not copied. Headers are parsed as literals: nothing is evaluated, and pickled objects are
//! rejected. Archives are handled by the [`zip`] crate, inflating by [`flate2`].
//!
//! ```
//! use fmt_core::{Format, Plan, PlannedEntry, TensorReader};
//! use fmt_npy::{Npz, NpzReader};
//! use tensor_core::{Shape, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let weights = Tensor::from_vec(Shape::new(&[3, 2])?, vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//!
//! // Writing as a stream: arrays are planned first, then their bytes are written in pieces of any size.
//! let plan = Plan {
//!     entries: vec![PlannedEntry::dense("weights", weights.spec().clone())],
//!     ..Plan::default()
//! };
//! let mut file = Vec::new();
//! let mut writer = Npz.create(Box::new(&mut file), plan)?;
//! for row in weights.bytes().chunks(8) {
//!     writer.write(row)?;
//! }
//! writer.finish()?;
//!
//! // Read from bytes in memory; a path or any other source works as well.
//! let reader = NpzReader::from_bytes(file)?;
//! let index = reader.find("weights").ok_or("no such array")?;
//! assert_eq!(reader.tensor(index)?, weights);
//! assert_eq!(reader.rows(index, 2..3)?.to_vec::<f32>()?, [5.0, 6.0]);
//! # Ok(())
//! # }
//! ```
//!
//! docs/formats/npy.md has the rules (`N1` and so on) that errors name ([`fmt_core::Error::broken_rule`]).

mod array;
mod capabilities;
mod columns;
mod header;
mod npy;
mod npz;
mod npz_writer;
mod order;
mod sink;
mod texts;

pub use npy::{Npy, NpyReader};
pub use npz::NpzReader;
pub use npz_writer::Npz;
pub use texts::TextWidth;
