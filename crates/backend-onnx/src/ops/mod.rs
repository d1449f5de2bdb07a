//! Operators: which are known, how tract's are held to what ONNX means, and those that are computed here.

pub(crate) mod access;
mod activation;
mod attributes;
mod branch;
mod cast;
mod conditions;
mod elementwise;
mod guard;
mod kernel;
mod lookup;
mod normalize;
mod output;
mod quantize;
mod recurrent;
mod reduce;
mod registry;
mod rule;
mod sequences;
mod slice;
mod table;
mod text;
mod types;
mod vector;

pub(crate) use attributes::Attributes;
pub(crate) use elementwise::has_zero;
pub(crate) use kernel::{Fact, Kernel, kernel};
pub(crate) use registry::{OUTPUT, check, onnx, outputs, registered_name};
pub(crate) use rule::Outputs;
