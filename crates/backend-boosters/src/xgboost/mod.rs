//! XGBoost's model formats, JSON and UBJSON.

mod file;
mod linear;
mod objective;
mod trees;
mod ubj;

pub(crate) use file::{Options, read_json, read_ubj};
pub(crate) use linear::Linear;
pub(crate) use objective::Link;
