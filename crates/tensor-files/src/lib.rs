//! Tensor files of all supported formats behind one interface.
//!
//! ```
//! use tensor_files::{ConvertOptions, convert, diff, format_of_path, open, verify};
//! # use fmt_core::{Format, Plan, PlannedEntry};
//! # use tensor_core::{DType, Shape, TensorSpec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (a, b) = (std::path::Path::new("a.safetensors"), std::path::Path::new("b.npz"));
//! # let folder = tempfile::tempdir()?;
//! # let (a, b) = (folder.path().join("a.safetensors"), folder.path().join("b.npz"));
//! # let spec = TensorSpec::new(DType::U8, Shape::vector(3))?;
//! # let plan = Plan { entries: vec![PlannedEntry::dense("weights", spec)], ..Plan::default() };
//! # let mut file = Vec::new();
//! # let mut writer = tensor_files::format("safetensors").ok_or("no such format")?.create(Box::new(&mut file), plan)?;
//! # writer.write(&[1, 2, 3])?;
//! # writer.finish()?;
//! # std::fs::write(&a, file)?;
//! // The format is detected from the file's first bytes, or else from its name.
//! let reader = open(&a, &Default::default())?;
//! assert_eq!(reader.format(), "safetensors");
//!
//! // The target appears when it is complete. Content that it cannot store is an error, unless loss is allowed.
//! let target = format_of_path(&b).ok_or("no format has files with such a name")?;
//! convert(&*reader, target, &b, &ConvertOptions::default())?;
//!
//! let copy = open(&b, &Default::default())?;
//! assert!(verify(&*copy)?.is_sound());
//! assert!(diff(&*reader, &*copy, Default::default()).is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! Each format is a feature: `btf`, `gguf`, `npy` (which includes `.npz`), `onnx` (the weights of models,
//! read only), `safetensors`, `tbuf`, `torch` (read only), `ztensor`. All are on by default.
//!
//! Files are read on demand. To map a file instead, pass a mapping of `tensor-mmap` to [`open_source`] and
//! fulfil that crate's contract.

#[cfg(feature = "btf")]
mod btf_names;
mod cast;
mod checkpoint;
mod composite;
mod convert;
mod diff;
mod distance;
mod explain;
#[cfg(feature = "onnx")]
mod external_weights;
mod loss;
mod manifest;
mod open;
mod read_ahead;
mod recast;
mod registry;
mod scaling;
mod select;
mod shards;
mod sources;
mod split;
mod verify;

pub use checkpoint::{checkpoint_files, open, open_composite};
pub use composite::{Composite, Source};
pub use convert::{Conversion, ConvertOptions, Progress, convert, convert_into, losses};
pub use diff::{Difference, DifferenceKind, Tolerance, diff};
pub use distance::Distance;
pub use explain::explain;
pub use loss::{AllowedLoss, Loss};
pub use manifest::{Manifest, ManifestEntry};
pub use open::open_source;
pub use read_ahead::read_ahead;
pub use recast::Recast;
pub use registry::{detect, format, format_of_path, formats};
pub use select::{Pattern, Renaming, Selection};
pub use shards::{ShardIndex, ShardOptions, ShardedCheckpoint, convert_sharded, is_index, open_shards};
pub use sources::SourceFiles;
pub use verify::{Report, verify};
