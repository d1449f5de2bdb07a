//! Operators for convolutions of floats and of 8-bit integers, transposed and deformable convolutions, and
//! `Col2Im`.

pub(crate) mod byte_convolution;
pub(crate) mod byte_layout;
pub(crate) mod channels_last;
pub(crate) mod columns;
pub(crate) mod conv_transpose;
pub(crate) mod convolution;
pub(crate) mod deformed;
mod filtered_pixels;
pub(crate) mod geometry;
mod image_lines;
pub(crate) mod integer_windows;
pub(crate) mod layout;
mod packed_channels;
mod pixel_products;
mod pixel_segments;
pub(crate) mod unfolded;
pub(crate) mod window;
pub(crate) mod windows;

pub use channels_last::channels_last_conv;
pub use columns::col_2_im;
pub use conv_transpose::conv_transpose;
pub use deformed::deform_conv;
pub use integer_windows::{conv_integer, q_linear_conv};
pub use windows::conv;
