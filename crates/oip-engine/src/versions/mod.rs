//! Versions of models in service. A request is answered by a model's instances (`run/`) or by a pipeline
//! (`pipeline/`), which do not depend on each other.

pub(crate) mod cache;
pub(crate) mod call_order;
pub(crate) mod entry;
pub(crate) mod labels;
pub(crate) mod registry;
pub(crate) mod served_version;
pub(crate) mod status;
