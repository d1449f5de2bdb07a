//! Operators that view, copy and repeat elements without interpreting them.

pub(crate) mod blocks;
pub(crate) mod center;
pub(crate) mod counting;
pub(crate) mod eye_like;
pub(crate) mod fill;
pub(crate) mod kept;
pub(crate) mod moved_axis;
pub(crate) mod moves;
pub(crate) mod pad;
pub(crate) mod parts;
pub(crate) mod slice;
pub(crate) mod texts;
pub(crate) mod views;

pub use blocks::blocks;
pub use center::center_crop_pad;
pub use counting::{range, trilu};
pub use eye_like::eye_like;
pub use fill::{condition, constant_of_shape, expand, tile};
pub use kept::{dropout, identity};
pub use moves::{Transpose, gather, transpose_of};
pub use pad::pad;
pub use parts::{concat, split};
pub use slice::slice;
pub use views::{flatten, reshape, shape, size, squeeze, unsqueeze};
