//! Checkpoints in many files: an index in JSON beside them says which tensor stands in which file, as Hugging Face's
//! libraries write them; GGUF's files say it of themselves.

mod find;
mod index;
mod names;
mod open;
mod set;
mod write;

pub(crate) use find::{Checkpoint, Found, find};
pub use index::ShardIndex;
pub use names::is_index;
pub use open::open_shards;
pub(crate) use open::{open_index, read_index};
pub(crate) use set::open_set;
pub use write::{ShardOptions, Sharded, convert_sharded};
