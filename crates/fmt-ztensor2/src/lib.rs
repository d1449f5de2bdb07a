//! zTensor files of versions 1.x and 2.x: a file contains named objects that consist of parts, a blob for
//! each part, and a CBOR manifest of all objects. This crate reads both versions and writes 2.x. Version 0.1,
//! another format of the same name, is in `fmt-ztensor`.
//!
//! docs/formats/ztensor2.md describes both versions; errors name the violated rule
//! ([`fmt_core::Error::broken_rule`]).
//!
//! | | |
//! |---|---|
//! | [`ObjectsReader`] | reads a file of either version |
//! | [`Ztensor1`], [`Ztensor2`] | the formats, for tools that handle all formats |
//!
//! ```
//! use fmt_core::{Format, Plan, PlannedEntry, TensorReader, Verification};
//! use fmt_ztensor2::{ObjectsReader, Ztensor2};
//! use tensor_core::{DType, Shape, TensorSpec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut file = Vec::new();
//! let spec = TensorSpec::new(DType::U8, Shape::vector(3))?;
//! let plan = Plan { entries: vec![PlannedEntry::dense("steps", spec)], ..Plan::default() };
//! let mut writer = Ztensor2.create(Box::new(&mut file), plan)?;
//! writer.write(&[1, 2, 3])?;
//! writer.finish()?;
//!
//! let reader = ObjectsReader::from_bytes(file)?;
//! let steps = reader.find("steps").ok_or("no such tensor")?;
//! assert_eq!(reader.tensor(steps)?.to_vec::<u8>()?, [1, 2, 3]);
//! assert_eq!(reader.verify(steps)?, Verification::Ok);
//! # Ok(())
//! # }
//! ```
//!
//! The reader is made for untrusted files: opening one takes time and memory proportional to its manifest,
//! and never panics; [`fmt_core::Limits`] bounds both.

mod capabilities;
mod container;
mod deterministic;
mod entries;
mod format;
mod manifest;
mod pairs;
mod parts;
mod reader;
mod shards;
mod sparse;
mod types;
mod writer;

pub use format::{Ztensor1, Ztensor2};
pub use reader::ObjectsReader;
