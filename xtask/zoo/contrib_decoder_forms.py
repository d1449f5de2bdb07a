"""Forms for `contrib.py` of the operators that ONNX Runtime's exports of decoders contain: mixtures of experts, linear
attention, attention over a cache, causal convolutions and products with 4-bit floats."""

import numpy as np
from contrib_forms import Form, attention_bias, floats, ints, numbers, unsigned
from operators import Constant

EXPERTS, HIDDEN, INNER, TOKENS = 4, 32, 64, 5


def weights(*shape):
    return Constant(floats(*shape) / 4)


def scales(*shape):
    return Constant(np.abs(floats(*shape)) / 50 + 0.01)


def activations():
    """Changes for the activation: functions of each element, and SwiGLU with its parameters."""
    return numbers("activation_type", "relu", "gelu", "silu", "identity", "swiglu", "tanh")


def experts():
    values = dict(
        input=floats(TOKENS, HIDDEN), router_probs=floats(TOKENS, EXPERTS), fc1_experts_weights=weights(EXPERTS, INNER, HIDDEN),
        fc2_experts_weights=weights(EXPERTS, HIDDEN, INNER),
    )
    fused = dict(activation_type="swiglu", fc1_experts_weights=weights(EXPERTS, 2 * INNER, HIDDEN))
    gate = dict(fc3_experts_weights=weights(EXPERTS, INNER, HIDDEN))
    return Form("MoE", values, {
        "three axes": dict(input=floats(1, TOKENS, HIDDEN)), "two sequences": dict(input=floats(2, 3, HIDDEN), router_probs=floats(6, EXPERTS)),
        "one token": dict(input=floats(1, HIDDEN), router_probs=floats(1, EXPERTS)), "no tokens": dict(input=floats(0, HIDDEN), router_probs=floats(0, EXPERTS)),
        "equal probabilities": dict(router_probs=np.zeros((TOKENS, EXPERTS), np.float32)),
        "bias of the first layer": dict(fc1_experts_bias=Constant(floats(EXPERTS, INNER))),
        "bias of the second layer": dict(fc2_experts_bias=Constant(floats(EXPERTS, HIDDEN))),
        # A third layer and SwiGLU in halves are for GPUs: ONNX Runtime refuses them on a CPU.
        "third layer and its bias": gate | dict(fc3_experts_bias=Constant(floats(EXPERTS, INNER))), "swiglu, in halves": fused | dict(swiglu_fusion=2),
        "swiglu, interleaved": fused | dict(swiglu_fusion=1),
        "swiglu, interleaved, with its bias": fused | dict(swiglu_fusion=1, fc1_experts_bias=Constant(floats(EXPERTS, 2 * INNER))),
        "swiglu of gpt-oss": fused | dict(swiglu_fusion=1, activation_alpha=1.702, activation_beta=1.0, swiglu_limit=0.5),
        **activations(), **numbers("k", 2, 4, 5, 0), **numbers("normalize_routing_weights", 1), **numbers("use_sparse_mixer", 1),
        **numbers("swiglu_limit", 0.3), **numbers("swiglu_fusion", 1), **numbers("activation_alpha", 1.702), **numbers("activation_beta", 1.0),
    })


def packed_experts():
    def layer(number, rows, columns, bits=4, block=None):
        """Returns the weights of a layer with their scales; `block` is the number of elements for each scale."""
        blocks = () if block is None else (columns // block,)
        return {
            f"fc{number}_experts_weights": Constant(unsigned(EXPERTS, rows, columns * bits // 8)),
            f"fc{number}_scales": scales(EXPERTS, rows, *blocks),
        }

    def zero_points(number, *shape):
        return {f"fc{number}_zero_points": Constant(unsigned(EXPERTS, *shape))}

    def layers(bits=4, block=None, width=INNER):
        named = {} if block is None else dict(block_size=block)
        return layer(1, width, HIDDEN, bits, block) | layer(2, HIDDEN, INNER, bits, block) | dict(expert_weight_bits=bits) | named

    fused = layer(1, 2 * INNER, HIDDEN) | dict(activation_type="swiglu")
    in_blocks = layers(4, 16, 2 * INNER) | dict(activation_type="swiglu", swiglu_fusion=1)
    gate = layer(3, INNER, HIDDEN)
    everyone = Constant(np.ones(EXPERTS, np.float32))
    # Weights of FP4 and FP8, global scales and scales of activations are for GPUs. On a CPU, ONNX Runtime ignores them.
    of_floats = {
        **{f"quant_type={kind}": dict(quant_type=kind) for kind in ("fp4", "nvfp4", "fp8", "wfp4afp8")},
        "global scales": dict(fc1_global_scale=everyone, fc2_global_scale=everyone),
        "scales of activations": dict(fc1_act_scale=everyone, fc2_act_scale=everyone),
        "block scales of activations": dict(fc1_act_block_scale=Constant(floats(EXPERTS, 1, 1)), fc2_act_block_scale=Constant(floats(EXPERTS, 1, 1))),
    }
    values = dict(input=floats(TOKENS, HIDDEN), router_probs=floats(TOKENS, EXPERTS)) | layers()

    def half_of(value):
        is_float = isinstance(value, Constant) and value.value.dtype == np.float32
        return Constant(value.value.astype(np.float16)) if is_float else value

    half = {name: half_of(value) for name, value in values.items()} | {name: values[name].astype(np.float16) for name in ("input", "router_probs")}
    return Form("QMoE", values, {
        "three axes": dict(input=floats(1, TOKENS, HIDDEN)), "one token": dict(input=floats(1, HIDDEN), router_probs=floats(1, EXPERTS)),
        "no tokens": dict(input=floats(0, HIDDEN), router_probs=floats(0, EXPERTS)),
        "two bits": layers(2), "eight bits": layers(8), "usual bits": dict(expert_weight_bits=None),
        "blocks": layers(4, 16), "blocks of 32": layers(4, 32), "eight bits in blocks": layers(8, 16), "two bits in blocks": layers(2, 16),
        # Layers of different bits, a third layer and SwiGLU in halves are for GPUs: ONNX Runtime refuses them on a CPU.
        "eight bits in the first layer": layer(1, INNER, HIDDEN, 8) | dict(fc1_expert_weight_bits=8),
        "eight bits in the second layer": layer(2, HIDDEN, INNER, 8) | dict(fc2_expert_weight_bits=8),
        "eight bits in the third layer": layer(3, INNER, HIDDEN, 8) | dict(fc3_expert_weight_bits=8, activation_type="swiglu"),
        "third layer, its bias and zero points": gate | zero_points(3, INNER // 2) | dict(
            fc3_experts_bias=Constant(floats(EXPERTS, INNER)), activation_type="swiglu",
        ),
        "third layer without scales": gate | dict(fc3_scales=None), "swiglu, in halves": fused | dict(swiglu_fusion=2),
        "eight bits in both layers by their own attributes": layers(8) | dict(expert_weight_bits=4, fc1_expert_weight_bits=8, fc2_expert_weight_bits=8),
        "bias of the first layer": dict(fc1_experts_bias=Constant(floats(EXPERTS, INNER))),
        "bias of the second layer": dict(fc2_experts_bias=Constant(floats(EXPERTS, HIDDEN))),
        "no scales": dict(fc1_scales=None), "no scales of the second layer": dict(fc2_scales=None),
        "zero points": zero_points(1, INNER // 2) | zero_points(2, HIDDEN // 2), "zero points of the first layer": zero_points(1, INNER // 2),
        "zero points of blocks": layers(4, 16) | zero_points(1, INNER, 1) | zero_points(2, HIDDEN, 2),
        "eight bits, zero points": layers(8) | zero_points(1, INNER) | zero_points(2, HIDDEN),
        "eight bits, zero points of blocks": layers(8, 16) | zero_points(1, INNER, 2) | zero_points(2, HIDDEN, 4),
        "two bits, zero points": layers(2) | zero_points(1, INNER // 4) | zero_points(2, HIDDEN // 4),
        "router_weights": dict(router_weights=np.abs(floats(TOKENS, EXPERTS))),
        "FP16": half, "FP16 in blocks": half | {name: half_of(value) for name, value in layers(4, 16).items()},
        "swiglu, interleaved": fused | dict(swiglu_fusion=1), "swiglu, interleaved, in blocks": in_blocks, "swiglu of gpt-oss": in_blocks | dict(activation_alpha=1.702, activation_beta=1.0, swiglu_limit=0.5),
        **activations(), **numbers("k", 2, 4, 5, 0), **numbers("normalize_routing_weights", 1), **numbers("use_sparse_mixer", 1),
        **numbers("swiglu_limit", 0.3), **numbers("swiglu_fusion", 1), **numbers("activation_alpha", 1.702), **numbers("activation_beta", 1.0),
        **numbers("accuracy_level", 1, 4), **numbers("weights_prepacked", 0, 1), **numbers("block_size", 0, 24), **of_floats,
    })


def linear_attention():
    heads, depth, width = 2, 4, 6

    def rows(*last):
        return {name: floats(2, 3, size) for name, size in zip(("query", "key", "value"), last)}

    def decay(size):
        return dict(decay=-np.abs(floats(2, 3, size)))

    def rate(size):
        return dict(beta=np.abs(floats(2, 3, size)) / 3)

    def state(*leading):
        return dict(past_state=floats(*leading, 2, heads, depth, width))

    values = rows(heads * depth, heads * depth, heads * width) | decay(heads) | rate(heads) | dict(outputs=[0, 1], q_num_heads=heads, kv_num_heads=heads)
    return Form("LinearAttention", values, {
        "linear": dict(update_rule="linear", decay=None, beta=None), "gated": dict(update_rule="gated", beta=None),
        "delta": dict(update_rule="delta", decay=None), "gated_delta": dict(update_rule="gated_delta"),
        "linear with all inputs": dict(update_rule="linear"), "unknown rule": dict(update_rule="other"),
        "no decay": dict(decay=None), "no beta": dict(beta=None),
        "decay of each key element": decay(heads * depth), "one decay": decay(1), "one beta": rate(1),
        "past": state(), "state alone": dict(outputs=[1]), "output alone": dict(outputs=[0]),
        "one token": dict(
            query=floats(2, 1, 8), key=floats(2, 1, 8), value=floats(2, 1, 12), decay=-np.abs(floats(2, 1, 2)), beta=np.abs(floats(2, 1, 2)), **state(),
        ),
        "no tokens": dict(query=floats(2, 0, 8), key=floats(2, 0, 8), value=floats(2, 0, 12), decay=floats(2, 0, 2), beta=floats(2, 0, 2), **state()),
        "more queries": rows(4 * depth, heads * depth, heads * width) | dict(q_num_heads=4),
        "fewer queries": rows(depth, heads * depth, heads * width) | dict(q_num_heads=1),
        "fewer queries and keys": rows(depth, depth, heads * width) | dict(q_num_heads=1),
        "three query heads": rows(3 * depth, heads * depth, heads * width) | dict(q_num_heads=3),
        "no heads": dict(q_num_heads=0), "no value heads": dict(kv_num_heads=0),
        "three states": dict(state_window=3), "five states": dict(state_window=5), "two states, past": dict(state_window=2) | state(2),
        "nine states": dict(state_window=9),
        **numbers("scale", 0.3, 0.0, 1.0), **numbers("chunk_size", 2, 64),
    })


def causal_conv():
    weight = Constant(floats(4, 1, 3))
    last = dict(input=floats(2, 5, 4), channels_last=1)
    return Form("CausalConvWithState", dict(input=floats(2, 4, 5), weight=weight, outputs=[0, 1]), {
        "bias": dict(bias=Constant(floats(4))), "past": dict(past_state=floats(2, 4, 2)), "output alone": dict(outputs=[0]), "state alone": dict(outputs=[1]),
        "one token": dict(input=floats(2, 4, 1)), "one token and past": dict(input=floats(2, 4, 1), past_state=floats(2, 4, 2)),
        "no tokens": dict(input=floats(2, 4, 0), past_state=floats(2, 4, 2)), "one tap": dict(weight=Constant(floats(4, 1, 1))),
        "four taps": dict(weight=Constant(floats(4, 1, 4))), "computed weight": dict(weight=floats(4, 1, 3)),
        "dilation": dict(dilation=2), "dilation and past": dict(dilation=2, past_state=floats(2, 4, 4)), "no dilation": dict(dilation=0),
        "channels last": last, "channels last and past": last | dict(past_state=floats(2, 2, 4)),
        "channels last on two axes": last | dict(input=floats(2, 5, 2, 2)), "channels last on two axes and past": last | dict(input=floats(2, 5, 2, 2), past_state=floats(2, 2, 2, 2)),
        "three states": dict(state_window=3), "seven states": dict(state_window=7), "two states and past": dict(state_window=2, past_state=floats(2, 2, 4, 2)),
        "images": dict(ndim=2, input=floats(2, 4, 5, 6), weight=Constant(floats(4, 1, 3, 3))),
        "volumes": dict(ndim=3, input=floats(2, 4, 3, 5, 6), weight=Constant(floats(4, 1, 3, 3, 3))),
        **numbers("activation", "silu", "swish", "none", "relu"), **numbers("ndim", 1, 4),
    })


def decoder_attention():
    def cache(rows):
        return dict(past_key=floats(2, 2, rows, 4), past_value=floats(2, 2, rows, 4))

    def length(rows):
        return dict(past_sequence_length=ints([rows]))

    no_cache = dict(past_key=None, past_value=None, past_sequence_length=None, past_present_share_buffer=0)
    by_head = no_cache | dict(key=floats(2, 2, 5, 4), value=floats(2, 2, 5, 4), outputs=[0])
    # The cache without a shared buffer, packed keys and values, and output 3 are for GPUs: ONNX Runtime refuses them on
    # a CPU. Each has one form here, for the server's sake.
    apart = dict(past_sequence_length=None, past_present_share_buffer=0)
    indirection = dict(cache_indirection=ints(np.array([[[0, 1, 0, 1, 0, 0], [1, 0, 0, 1, 0, 0]]])))
    values = dict(
        query=floats(2, 1, 8), key=floats(2, 1, 8), value=floats(2, 1, 8), num_heads=2, past_present_share_buffer=1, outputs=[0, 1, 2], **cache(6), **length(3),
    )
    return Form("DecoderMaskedMultiHeadAttention", values, {
        "one head": dict(num_heads=1, past_key=floats(2, 1, 6, 8), past_value=floats(2, 1, 6, 8)), "two heads for one": dict(num_heads=1),
        "first token": length(0), "last token": length(5), "no room": length(6), "no length": dict(past_sequence_length=None),
        "length as a constant": dict(past_sequence_length=Constant(ints([3]))), "output alone": dict(outputs=[0]),
        "mask": dict(mask_index=ints([[1, 1, 0, 1], [0, 1, 1, 1]])), "mask of nothing": dict(mask_index=ints([[0] * 4, [1] * 4])),
        "mask of other numbers": dict(mask_index=ints([[2, -1, 0, 1], [0, 7, 1, 1]])), "lengths": dict(mask_index=ints([3, 4])),
        "beams": dict(beam_width=ints([2])) | indirection, "beam_width": dict(beam_width=ints([1])), "indirection alone": indirection,
        "bias": dict(bias=Constant(floats(24))), "computed bias": dict(bias=floats(24)),
        **attention_bias("attention_bias", 2, 1, 4),
        "keys by head": by_head, "keys by head and mask": by_head | dict(mask_index=ints([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1]])),
        "keys by head and bias": by_head | dict(bias=Constant(floats(24))), "keys by head and attention bias": by_head | dict(attention_bias=floats(2, 2, 1, 5)),
        "one head by head": by_head | dict(num_heads=1, key=floats(2, 1, 5, 8), value=floats(2, 1, 5, 8)),
        "no cache": no_cache | dict(outputs=[0]), "no cache, bias": no_cache | dict(outputs=[0], bias=Constant(floats(24))),
        "cache apart": apart, "all packed": dict(query=floats(2, 1, 24), key=None, value=None), "no values": dict(value=None),
        "past of keys alone": dict(past_value=None), "scores": dict(outputs=[0, 1, 2, 3], output_qk=1), "wider values": dict(value=floats(2, 1, 12)),
        "two tokens": dict(query=floats(2, 2, 8), key=floats(2, 2, 8), value=floats(2, 2, 8)),
        **numbers("scale", 0.3, 0.0), **numbers("mask_filter_value", -2.0), **numbers("output_qk", 1),
    })


def four_bit_floats():
    rows, columns = 6, 40

    def packed(kind, block, rows=rows, columns=columns):
        count = rows * columns
        return dict(
            B=Constant(unsigned((count + 1) // 2)), absmax=Constant(np.abs(floats(-(-count // block))) + 0.1), quant_type=kind, block_size=block, N=rows,
            K=columns,
        )

    base = packed(1, 16)
    return Form("MatMulBnb4", dict(A=floats(3, columns)) | base, {
        "FP4": packed(0, 16), "NF4": packed(1, 16), "unknown type": packed(2, 16), "long blocks": packed(1, 64), "FP4 in long blocks": packed(0, 128),
        "a last block that is short": packed(1, 32, 3, 24) | dict(A=floats(3, 24)), "an odd count": packed(1, 16, 5, 25) | dict(A=floats(3, 25)),
        "short blocks": packed(1, 8), "blocks of 24": packed(1, 24),
        "a batch": dict(A=floats(2, 3, columns)), "four axes": dict(A=floats(2, 1, 3, columns)), "one row": dict(A=floats(1, columns)), "a row": dict(A=floats(columns)),
        "no rows": dict(A=floats(0, columns)),
        "not transposed": dict(transB=0, A=floats(3, rows)), "transposed": dict(transB=1),
        "weights in a column": dict(B=Constant(base["B"].value[:, None])), "absmax in a column": dict(absmax=Constant(base["absmax"].value[:, None])),
        "short rows": dict(A=floats(3, 8)), "no size": dict(N=0), "no depth": dict(K=0),
        **numbers("training_mode", 1),
    })


def forms():
    yield experts()
    yield packed_experts()
    yield linear_attention()
    yield causal_conv()
    yield decoder_attention()
    yield four_bit_floats()
