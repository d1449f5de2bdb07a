//! Operators for attention: they split and merge heads, apply masks and rotary embeddings, and update
//! key-value caches.

pub(crate) mod attention_mask;
pub(crate) mod block_sizes;
pub(crate) mod cache;
pub(crate) mod causal_conv;
pub(crate) mod fused_attention;
pub(crate) mod grouped_attention;
pub(crate) mod heads;
pub(crate) mod linear;
pub(crate) mod query_block;
pub(crate) mod rotary;
pub(crate) mod scaled;
pub(crate) mod score_mask;

pub use attention_mask::{attention_mask, causal_mask};
pub use cache::{cached_rows, tensor_scatter};
pub use causal_conv::causal_conv;
pub use fused_attention::fused_attention;
pub use grouped_attention::grouped_attention;
pub use heads::{ranked, same_shape, split_heads, transpose_last};
pub use linear::linear_attention;
pub use rotary::rotary_embedding;
pub use scaled::attention;
