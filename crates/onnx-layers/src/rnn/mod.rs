//! Recurrent layers: `RNN`, `LSTM` and `GRU`.

pub(crate) mod cells;
pub(crate) mod gate_functions;
pub(crate) mod recurrent;

pub use recurrent::recurrent;

/// Returns whether recurrent operators support the activation function `name`.
#[must_use]
pub fn is_activation(name: &str) -> bool {
    gate_functions::Activation::of(name).is_some()
}
