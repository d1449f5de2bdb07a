//! Attention: heads split and joined, masks, rotary embeddings, grouped queries with a cache.

pub(crate) mod attention_mask;
pub(crate) mod grouped_attention;
pub(crate) mod heads;
pub(crate) mod rotary;
pub(crate) mod scaled;

pub use attention_mask::{attention_mask, causal_mask};
pub use grouped_attention::grouped_attention;
pub use heads::{ranked, same_shape, split_heads, transpose_last};
pub use rotary::rotary_embedding;
pub use scaled::attention;
