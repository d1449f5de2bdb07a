//! Operators for resizing and sampling images, and for bounding boxes.

pub(crate) mod affine_grid;
pub(crate) mod grid_sample;
pub(crate) mod non_max_suppression;
pub(crate) mod resize;
pub(crate) mod roi_align;

pub use affine_grid::affine_grid;
pub use grid_sample::grid_sample;
pub use non_max_suppression::non_max_suppression;
pub use resize::resize;
pub use roi_align::roi_align;
