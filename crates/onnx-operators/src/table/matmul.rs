//! Rows of the operator table for matrix products.

use crate::{
    operator::{Operator, contributed, inner, op},
    types::Types,
};

/// The element types of matrix products.
const FACTORS: Types = Types::FLOATS.and(Types::I32);
const WIDE: Types = Types::I64.and(Types::U32).and(Types::U64);

pub(super) const ROWS: &[Operator] = &[
    op("Det").since(11),
    op("Einsum")
        .since(12)
        .takes(&["equation"])
        .of(FACTORS.and(Types::I64))
        .in_fp32(),
    op("Gemm")
        .takes(&["alpha", "beta", "broadcast", "transA", "transB"])
        .of(Types::FLOATS)
        .in_fp32(),
    op("MatMul").of(FACTORS.and(WIDE)).in_fp32(),
    op("MatMulInteger").since(10).of(Types::ALL).sizes_from(2, 8),
    op("QLinearMatMul").since(10).of(Types::ALL).sizes_from(1, 8),
    contributed("MatMulBnb4").takes(&["K", "N", "block_size", "quant_type", "training_mode", "transB"]),
    contributed("MatMulNBits").takes(&[
        "K",
        "N",
        "accuracy_level",
        "bits",
        "block_size",
        "weight_prepacked",
    ]),
    contributed("MoE").takes(&[
        "activation_alpha",
        "activation_beta",
        "activation_type",
        "k",
        "normalize_routing_weights",
        "swiglu_fusion",
        "swiglu_limit",
        "swiglu_limit_after_activation",
        "use_sparse_mixer",
    ]),
    contributed("QMoE").takes(&[
        "accuracy_level",
        "activation_alpha",
        "activation_beta",
        "activation_type",
        "block_size",
        "expert_weight_bits",
        "fc1_expert_weight_bits",
        "fc2_expert_weight_bits",
        "fc3_expert_weight_bits",
        "k",
        "normalize_routing_weights",
        "quant_type",
        "swiglu_fusion",
        "swiglu_limit",
        "swiglu_limit_after_activation",
        "use_sparse_mixer",
        "weights_prepacked",
    ]),
    inner("DequantizedMatMul"),
];
