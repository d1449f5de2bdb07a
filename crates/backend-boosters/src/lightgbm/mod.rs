//! LightGBM's text model format.

mod file;
mod objective;
mod tree;

pub(crate) use file::read;
pub(crate) use objective::Link;
