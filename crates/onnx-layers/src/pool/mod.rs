//! Operators that pool over windows of images.

pub(crate) mod average_pool;
pub(crate) mod axis;
pub(crate) mod lp_pool;
pub(crate) mod max_pool;
pub(crate) mod max_unpool;
pub(crate) mod plane_pool;
pub(crate) mod pooling;
pub(crate) mod pools;

pub use lp_pool::{global_lp_pool, lp_pool};
pub use max_unpool::max_unpool;
pub use pools::{averages, channels_last_averages, channels_last_maxima, maxima};
