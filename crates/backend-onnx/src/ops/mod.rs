//! Operators: which are known, how tract's are held to what ONNX means, and those that are computed here.

pub(crate) mod access;
mod activation;
mod attributes;
mod branch;
mod cast;
mod concat;
mod conditions;
mod contrib;
mod counting;
mod elementwise;
mod gate_functions;
mod grid_sample;
mod guard;
mod kernel;
mod lookup;
mod normalize;
mod output;
mod pad;
mod quantize;
mod random;
mod recurrent;
mod reduce;
mod registry;
mod resize;
mod rule;
mod sequences;
mod slice;
mod steps;
mod table;
mod text;
mod tokenizer;
mod types;
mod vector;

use std::fmt;

pub(crate) use attributes::Attributes;
pub(crate) use elementwise::has_zero;
pub(crate) use guard::{Limit, Refusal};
pub(crate) use kernel::{Fact, Kernel, kernel};
pub(crate) use registry::{OUTPUT, check, onnx, outputs, registered_name, resolved};
pub(crate) use rule::{NEWEST, Outputs};
pub(crate) use steps::{gives_unknown_sizes, is_stepwise, shaping_inputs};

/// What is wrong with the values of an input, found while a model runs.
#[derive(Debug)]
pub(crate) struct BadInput(pub(crate) String);

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}
