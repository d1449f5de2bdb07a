//! How models are configured: what is written, held against the model and completed from it.

mod complete;
pub(crate) mod fields;
mod normalize;
mod pbtxt;
mod tree;
mod written;

pub(crate) use complete::{Completed, Defaults, complete, complete_pipeline};
pub(crate) use written::{Syntax, Written};
