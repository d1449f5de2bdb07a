//! Triton's model configuration: protobuf text, JSON or TOML in, a checked and completed configuration out.
//!
//! A configuration is read in two steps. [`WrittenConfig::read`] takes its text and proves that it is sound in itself:
//! known fields have the right form and do not contradict each other, fields without effect are listed as warnings.
//! [`complete`] then holds it against a model's metadata and fills in what is not written, as Triton's
//! auto-complete does; [`complete_pipeline`] does that for a pipeline, which has no file.

mod complete;
mod fields;
mod normalize;
mod pbtxt;
mod tree;
mod written;

pub use complete::{Completed, Defaults, complete, complete_pipeline};
pub use written::{Syntax, WrittenConfig, WrittenTensor};

/// The models that a pipeline runs, as often as it does; none for other models.
pub fn steps(config: &oip_types::ModelConfig) -> impl Iterator<Item = &str> {
    let scheduling = config.ensemble_scheduling.iter();
    scheduling.flat_map(|scheduling| scheduling.step.iter().map(|step| step.model_name.as_str()))
}
