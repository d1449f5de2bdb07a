//! X

mod element_type;
mod error;
#[cfg(test)]
mod extreme_numbers;
#[cfg(test)]
#[path = "../../backend-onnx/tests/it/fixtures.rs"]
mod fixtures;
mod lower;
mod lowered;
#[cfg(test)]
mod made_up;
mod operators;
mod outcome;
mod steps;

pub use element_type::computed;
pub use error::{RunError, RunErrorKind};
pub use steps::Session;
