//! Recurrent layers.

pub(crate) mod cells;
pub(crate) mod gate_functions;
pub(crate) mod recurrent;

pub use recurrent::recurrent;

/// Whether a recurrent operator knows a function by this name.
#[must_use]
pub fn is_activation(name: &str) -> bool {
    gate_functions::Activation::of(name).is_some()
}
