//! Versions of models in service. The instances of a model (`run/`) or a pipeline (`pipeline/`) answer the
//! requests to a version; the two do not depend on each other.

pub(crate) mod cache;
pub(crate) mod call_order;
pub(crate) mod entry;
pub(crate) mod labels;
pub(crate) mod registry;
pub(crate) mod served_version;
pub(crate) mod status;
