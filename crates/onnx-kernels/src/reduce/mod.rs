//! Operators that reduce along axes.

pub(crate) mod cum_sum;
pub(crate) mod fold;
pub(crate) mod reductions;
pub(crate) mod sums;

pub use cum_sum::cum_sum;
pub use fold::groups;
pub use reductions::{argument, channels_last_global_average, global_pool, reduce};
