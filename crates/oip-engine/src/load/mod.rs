//! Loading, replacing and unloading the versions of models in repositories.

pub(crate) mod control;
mod error;
mod example;
pub(crate) mod lifecycle;
pub(crate) mod loader;
pub(crate) mod memory_shares;
pub(crate) mod poll;
pub(crate) mod retirement;
mod row_settings;
pub(crate) mod warm_up;

pub(crate) use error::LoadError;
