//! Quantization.

use crate::operator::{Operator, Outputs, contributed, inner, op};

pub(super) const ROWS: &[Operator] = &[
    op("DequantizeLinear")
        .since(10)
        .takes(&["axis", "block_size", "output_dtype"]),
    op("DynamicQuantizeLinear").since(11).gives(Outputs::Exactly(3)),
    op("QuantizeLinear")
        .since(10)
        .takes(&["axis", "block_size", "output_dtype", "precision", "saturate"]),
    contributed("GatherBlockQuantized").takes(&["bits", "block_size", "gather_axis", "quantize_axis"]),
    contributed("QLinearAdd"),
    contributed("QLinearMul"),
    inner("GatherBlockQuantized").takes(&["bits", "block_size", "gather_axis", "quantize_axis"]),
    inner("Requantize").takes(&["axis"]),
];
