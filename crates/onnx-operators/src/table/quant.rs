//! Rows of the operator table for quantization.

use crate::{
    operator::{Operator, Outputs, contributed, inner, op},
    types::Types,
};

pub(super) const ROWS: &[Operator] = &[
    op("DequantizeLinear")
        .since(10)
        .takes(&["axis", "block_size", "output_dtype"]),
    op("DynamicQuantizeLinear").since(11).gives(Outputs::Exactly(3)),
    op("QuantizeLinear")
        .since(10)
        .takes(&["axis", "block_size", "output_dtype", "precision", "saturate"]),
    contributed("GatherBlockQuantized")
        .with_inputs(&[(1, Types::NUMBERS)])
        .takes(&["bits", "block_size", "gather_axis", "quantize_axis"]),
    contributed("QLinearAdd").alike(&[2, 5, 7]).with_inputs(&[
        (1, Types::F32),
        (4, Types::F32),
        (6, Types::F32),
    ]),
    contributed("QLinearMul").alike(&[2, 5, 7]).with_inputs(&[
        (1, Types::F32),
        (4, Types::F32),
        (6, Types::F32),
    ]),
    inner("GatherBlockQuantized")
        .with_inputs(&[(1, Types::NUMBERS)])
        .takes(&["bits", "block_size", "gather_axis", "quantize_axis"]),
    inner("Requantize").takes(&["axis"]),
];
