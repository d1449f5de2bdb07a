//! Selects elements by index, condition or order.

pub(crate) mod coordinates;
pub(crate) mod gather_elements;
pub(crate) mod indexed;
pub(crate) mod keys;
pub(crate) mod lookup;
pub(crate) mod non_zero;
pub(crate) mod selection;
pub(crate) mod sequences;
pub(crate) mod sorting;
pub(crate) mod top_k;
pub(crate) mod unique;

pub use indexed::{scatter, taken};
pub use lookup::one_hot;
pub use non_zero::non_zero;
pub use sequences::{compress, reverse_sequence};
pub use sorting::sort_by;
pub use top_k::top_k;
pub use unique::unique;
