//! Rows of the operator table for attention, caches of keys and values, and rotary position embedding.

use crate::{
    operator::{Operator, Outputs, contributed, inner, op},
    types::Types,
};

pub(super) const ROWS: &[Operator] = &[
    op("Attention").since(23).gives(Outputs::Optional).takes(&[
        "is_causal",
        "kv_num_heads",
        "q_num_heads",
        "qk_matmul_output_mode",
        "scale",
        "softcap",
        "softmax_precision",
    ]),
    op("RotaryEmbedding")
        .with_inputs(&[(3, Types::I64)])
        .since(23)
        .takes(&["interleaved", "num_heads", "rotary_embedding_dim"]),
    op("TensorScatter").since(24).takes(&["axis", "mode"]),
    contributed("CausalConvWithState")
        .gives(Outputs::Exactly(2))
        .takes(&[
            "activation",
            "channels_last",
            "dilation",
            "input_channel_offset",
            "input_channels",
            "ndim",
            "state_channels_last",
            "state_length",
            "state_update_capacity",
            "state_window",
        ]),
    contributed("GroupQueryAttention")
        .with_inputs(&[(5, Types::NUMBERS), (6, Types::NUMBERS)])
        .gives(Outputs::Exactly(3))
        .takes(&[
            "causal",
            "do_rotary",
            "k_quant_type",
            "kv_cache_bit_width",
            "kv_num_heads",
            "local_window_size",
            "num_heads",
            "qk_output",
            "rotary_interleaved",
            "scale",
            "smooth_softmax",
            "softcap",
            "v_quant_type",
        ]),
    contributed("LinearAttention").gives(Outputs::Exactly(2)).takes(&[
        "chunk_size",
        "kv_num_heads",
        "q_num_heads",
        "scale",
        "state_window",
        "update_rule",
    ]),
    contributed("RotaryEmbedding")
        .with_inputs(&[(1, Types::NUMBERS)])
        .takes(&[
            "interleaved",
            "is_packed_batching",
            "num_heads",
            "rotary_embedding_dim",
            "scale",
        ]),
    inner("AttentionMask").takes(&["mask_filter_value"]),
    inner("CachedRows"),
    inner("CausalMask"),
    inner("FusedAttention")
        .of(Types::FLOATS)
        .alike(&[1, 2, 3, 4, 5, 6])
        .in_fp32()
        .takes(&["axis", "stages", "transposes"]),
    inner("Ranked").takes(&["input", "least", "most"]),
    inner("SameShape"),
    inner("SplitHeads")
        .with_inputs(&[(0, Types::FLOATS)])
        .takes(&["num_heads", "part", "scale"]),
    inner("TransposeLast"),
];
