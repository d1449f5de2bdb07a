//! Versions of models in service, above the two ways to answer a request: a model's instances (`run/`) and a
//! pipeline (`pipeline/`), which do not know each other.

pub(crate) mod cache;
pub(crate) mod call_order;
pub(crate) mod entry;
pub(crate) mod labels;
pub(crate) mod registry;
pub(crate) mod served_version;
pub(crate) mod status;
