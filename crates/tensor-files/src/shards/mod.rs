//! Checkpoints in many files: an index in JSON beside them says which tensor stands in which file, as Hugging Face's
//! libraries write them.

mod find;
mod index;
mod open;
mod write;

pub(crate) use find::{Checkpoint, find};
pub use index::ShardIndex;
pub use open::open_shards;
pub(crate) use open::{open_index, read_index};
pub use write::{ShardOptions, Sharded, convert_sharded};
