//! Pipelines: models whose outputs feed other models, known to clients as one.
//!
//! A pipeline is what Triton calls an ensemble: a configuration with `ensemble_scheduling` and no file. Its steps are a
//! graph, whose edges are tensors with names of the pipeline's own. [`plan::Pipeline`] is the graph, proven at load:
//! every tensor has one source, every input a tensor, datatypes and shapes fit along each edge, and there is no cycle.
//! [`run`] runs it: a step starts when its tensors are there, steps that do not need each other run at the same time,
//! and tensors are passed on without copies.

mod plan;
mod run;

pub(crate) use plan::Pipeline;
pub(crate) use run::run;
