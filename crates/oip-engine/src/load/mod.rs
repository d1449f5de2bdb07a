//! Model repositories: finding, checking, loading, replacing and unloading versions.

pub(crate) mod control;
pub(crate) mod digests;
mod error;
mod example;
pub(crate) mod files;
mod foreign;
pub(crate) mod labels;
pub(crate) mod lifecycle;
pub(crate) mod loader;
mod loose;
pub(crate) mod memory_shares;
pub(crate) mod model_folder;
pub(crate) mod poll;
pub(crate) mod registry;
pub(crate) mod repositories;
pub(crate) mod repository;
pub(crate) mod repository_error;
pub(crate) mod retirement;
mod root;
mod row_settings;
pub(crate) mod upstream;
pub(crate) mod version_key;
pub(crate) mod warm_up;

pub(crate) use error::LoadError;
