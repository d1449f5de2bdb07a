//! zTensor 1.x and 2.x: named objects of parts, each part a blob, and a manifest of all (docs/formats/ztensor2.md). Read
//! with what reads version 0.1: blobs, checksums, CBOR. Version 2.x is written too.

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
mod writer;

pub use format::{Ztensor1, Ztensor2};
pub use reader::ObjectsReader;
