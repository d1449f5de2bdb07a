//! Operators for normalizations, and `Softmax`.

pub(crate) mod batch_normalization;
pub(crate) mod channels;
pub(crate) mod hardmax;
pub(crate) mod local_normalization;
pub(crate) mod losses;
pub(crate) mod normalize;
pub(crate) mod softmax;

pub use batch_normalization::batch_normalization;
pub use channels::{Channels, channels};
pub use hardmax::hardmax;
pub use local_normalization::{lp, lrn};
pub use losses::loss;
pub use normalize::normalize;
pub use softmax::softmax;
