//! Rows of the operator table for recurrent layers.

use crate::{
    operator::{Operator, Outputs, contributed, op},
    types::Types,
};

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
    op("GRU")
        .with_inputs(&[(1, Types::NUMBERS), (2, Types::NUMBERS)])
        .gives(Outputs::Optional)
        .takes(&[
            "activations",
            "clip",
            "direction",
            "hidden_size",
            "layout",
            "linear_before_reset",
        ]),
    op("LSTM")
        .with_inputs(&[(1, Types::NUMBERS), (2, Types::NUMBERS)])
        .gives(Outputs::Optional)
        .takes(LSTM),
    op("RNN")
        .with_inputs(&[(1, Types::NUMBERS), (2, Types::NUMBERS)])
        .gives(Outputs::Optional)
        .takes(&[
            "activation_alpha",
            "activation_beta",
            "activations",
            "clip",
            "direction",
            "hidden_size",
            "layout",
        ]),
    contributed("DynamicQuantizeLSTM")
        .with_inputs(&[(9, Types::U8.and(Types::I8)), (11, Types::U8.and(Types::I8))])
        .gives(Outputs::Optional)
        .takes(LSTM),
];
