//! Recurrent layers.

use crate::operator::{Operator, Outputs, contributed, op};

const LSTM: &[&str] = &[
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "input_forget",
    "layout",
];

pub(super) const ROWS: &[Operator] = &[
    op("GRU").gives(Outputs::Optional).takes(&[
        "activations",
        "clip",
        "direction",
        "hidden_size",
        "layout",
        "linear_before_reset",
    ]),
    op("LSTM").gives(Outputs::Optional).takes(LSTM),
    op("RNN").gives(Outputs::Optional).takes(&[
        "activation_alpha",
        "activation_beta",
        "activations",
        "clip",
        "direction",
        "hidden_size",
        "layout",
    ]),
    contributed("DynamicQuantizeLSTM")
        .gives(Outputs::Optional)
        .takes(LSTM),
];
