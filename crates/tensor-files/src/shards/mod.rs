//! Sharded checkpoints: a JSON index maps tensors to files, as Hugging Face's libraries write them; GGUF
//! files contain this information themselves.

mod find;
mod index;
mod names;
mod open;
mod set;
mod write;

pub(crate) use find::{Checkpoint, FoundCheckpoint, find};
pub use index::ShardIndex;
pub use names::is_index;
pub use open::open_shards;
pub(crate) use open::{open_index, read_index};
pub(crate) use set::open_set;
pub use write::{ShardOptions, ShardedCheckpoint, convert_sharded};
