//! zTensor 1.x and 2.x: named objects of parts, each part a blob, and a manifest of all (docs/formats/ztensor2.md). Reading
//! only; blobs, checksums and CBOR are those of version 0.1.

mod container;
mod entries;
mod format;
mod manifest;
mod pairs;
mod parts;
mod reader;
mod shards;
mod sparse;
mod types;

pub use format::{Ztensor1, Ztensor2};
pub use reader::ObjectsReader;
