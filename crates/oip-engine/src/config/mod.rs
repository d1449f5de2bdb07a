//! How models are configured: what is written, held against the model and completed from it.

mod complete;
pub(crate) mod fields;
mod normalize;
mod pbtxt;
mod tree;
mod written;

pub(crate) use complete::{Completed, Defaults, complete, complete_pipeline};
pub(crate) use written::{Syntax, Written};

/// The models that a pipeline runs, as often as it does; none for other models.
pub(crate) fn steps(config: &oip_types::ModelConfig) -> impl Iterator<Item = &str> {
    let scheduling = config.ensemble_scheduling.iter();
    scheduling.flat_map(|scheduling| scheduling.step.iter().map(|step| step.model_name.as_str()))
}
