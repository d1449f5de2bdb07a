//! LightGBM's files, which are text.

mod file;
mod objective;
mod tree;

pub(crate) use file::read;
pub(crate) use objective::Link;
