"""The forms of ONNX Runtime's own operators that `contrib.py` tests: the usual form of each, and changes to it."""

import numpy as np
from operators import Constant, floats, whole

INT32, INT64, UINT8, INT8 = np.int32, np.int64, np.uint8, np.int8


class Form:
    """An operator with the values of its inputs and attributes, and changes to these, by name."""

    def __init__(self, op, values, changes, domain="com.microsoft", opset=17):
        self.op, self.values, self.changes, self.domain, self.opset = op, values, changes, domain, opset


def ints(values, kind=INT32):
    return np.array(values, kind)


def signed(*shape):
    return (whole(200, *shape) - 100).astype(INT8)


def unsigned(*shape):
    return whole(255, *shape, kind=UINT8)


def scale(*values):
    return Constant(np.array(values if len(values) > 1 else values[0], np.float32))


def byte(value, kind=UINT8):
    return Constant(np.array(value, kind))


def each(name, values):
    """Returns a change for each value of an input or attribute."""
    return {f"{name} {label}": {name: value} for label, value in values.items()}


def numbers(name, *values):
    return {f"{name}={value}": {name: value} for value in values}


def attention_bias(name, heads, rows, total):
    shapes = [(1, 1), (1, heads), (2, 1), (2, heads)]
    return {f"{name} {list(shape)}": {name: floats(*shape, rows, total)} for shape in shapes}


def multi_head():
    keys, by_head = floats(2, 5, 8), floats(2, 2, 5, 4)
    masks = {
        "lengths": ints([3, 5]), "lengths and starts": ints([3, 5, 0, 3, 6, 0, 5, 10]), "rows": ints([[1, 1, 1, 0, 0], [1] * 5]),
        "nothing": ints([[0] * 5, [1] * 5]), "with the past": ints([[1] * 6 + [0] * 3, [0] + [1] * 8]), "matrix": ints(np.tri(3, 5, 1)[None].repeat(2, 0)),
        "other numbers": ints([[2, -1, 1, 0, 7]] * 2),
    }
    return Form("MultiHeadAttention", dict(query=floats(2, 3, 8), key=keys, value=floats(2, 5, 8), num_heads=2), {
        "one head": dict(num_heads=1),
        "wider values": dict(value=floats(2, 5, 12)),
        "bias": dict(bias=floats(24)),
        "constant bias": dict(bias=Constant(floats(24))),
        "wider values and bias": dict(value=floats(2, 5, 12), bias=floats(28)),
        "keys by head": dict(key=by_head, value=floats(2, 2, 5, 4)),
        "keys of one head": dict(key=floats(2, 1, 5, 8), value=floats(2, 1, 5, 8), num_heads=1),
        "keys by head and bias": dict(key=by_head, value=floats(2, 2, 5, 4), bias=floats(24)),
        "keys of one head and bias": dict(key=floats(2, 1, 5, 8), value=floats(2, 1, 5, 8), num_heads=1, bias=floats(24)),
        "keys by head, values in rows": dict(key=by_head),
        "keys in rows, values by head": dict(value=by_head),
        "queries by head": dict(query=floats(2, 2, 3, 4)),
        "keys and values packed": dict(key=floats(2, 5, 2, 2, 4), value=None),
        "all packed": dict(query=floats(2, 3, 2, 3, 4), key=None, value=None),
        "queries alone": dict(key=None, value=None),
        "no values": dict(value=None),
        "as many keys": dict(key=floats(2, 3, 8), value=floats(2, 3, 8)),
        "one row": dict(query=floats(2, 1, 8), key=floats(2, 1, 8), value=floats(2, 1, 8)),
        "past": dict(past_key=floats(2, 2, 4, 4), past_value=floats(2, 2, 4, 4)),
        "no past yet": dict(past_key=floats(2, 2, 0, 4), past_value=floats(2, 2, 0, 4)),
        "past of keys alone": dict(past_key=by_head),
        "room for the past": dict(past_sequence_length=ints([2])),
        "indirection": dict(cache_indirection=ints(np.zeros((2, 1, 4)))),
        "present": dict(outputs=[0, 1, 2]),
        "present alone": dict(outputs=[1, 2]),
        "scores": dict(outputs=[0, 3]),
        **each("key_padding_mask", masks),
        **attention_bias("attention_bias", 2, 3, 5),
        "attention_bias with the past": dict(attention_bias=floats(1, 2, 3, 9)),
        **numbers("unidirectional", 1), **numbers("scale", 0.3, 0.0), **numbers("mask_filter_value", -2.0),
    })


def attention():
    masks = {
        "lengths": ints([3, 2]), "ends and starts": ints([3, 2, 1, 0]), "lengths and offsets": ints([3, 2, 0, 3, 6, 0, 3, 6]),
        "rows": ints([[1, 1, 0], [0, 1, 1]]), "nothing": ints([[0] * 3, [1] * 3]), "with the past": ints([[1] * 6 + [0], [0] + [1] * 6]),
        "matrix": ints(np.tri(3)[None].repeat(2, 0)), "Megatron's": ints(np.tri(8)[None, None].repeat(2, 0)), "other numbers": ints([[2, -1, 1], [0, 7, 1]]),
    }
    past = dict(past=floats(2, 2, 2, 4, 4), outputs=[0, 1])
    return Form("Attention", dict(input=floats(2, 3, 6), weights=Constant(floats(6, 24)), bias=Constant(floats(24)), num_heads=2), {
        "one head": dict(num_heads=1),
        "no bias": dict(bias=None),
        "past": past,
        "past and its mask": past | dict(mask_index=masks["with the past"]),
        "past without present": dict(past=floats(2, 2, 2, 4, 4)),
        "no past yet": dict(past=floats(2, 2, 2, 0, 4), outputs=[0, 1]),
        "present": dict(outputs=[0, 1]),
        "room for the past": dict(past=floats(2, 2, 2, 8, 4), past_sequence_length=ints([2]), past_present_share_buffer=1, outputs=[0, 1]),
        "three values for two keys": dict(weights=Constant(floats(6, 20)), bias=Constant(floats(20)), qkv_hidden_sizes=[8, 8, 4]),
        "sizes that are equal": dict(qkv_hidden_sizes=[8, 8, 8]),
        **each("mask_index", masks),
        **attention_bias("attention_bias", 2, 3, 3),
        **numbers("unidirectional", 1), **numbers("scale", 0.3, 0.0), **numbers("mask_filter_value", -2.0), **numbers("do_rotary", 1),
        **numbers("rotary_embedding_dim", 32),
    })


def quantized_attention():
    masks = {
        "lengths": ints([3, 2]), "ends and starts": ints([3, 2, 1, 0]), "rows": ints([[1, 1, 0], [0, 1, 1]]), "matrix": ints(np.tri(3)[None].repeat(2, 0)),
        "nothing": ints([[0] * 3, [1] * 3]),
    }
    values = dict(
        input=unsigned(2, 3, 6), weight=Constant(signed(6, 24)), bias=Constant(floats(24)), input_scale=scale(0.02), weight_scale=scale(0.01),
        input_zero_point=byte(120), num_heads=2,
    )
    return Form("QAttention", values, {
        "one head": dict(num_heads=1),
        "signed input": dict(input=signed(2, 3, 6), input_zero_point=byte(3, INT8)),
        "unsigned weights": dict(weight=Constant(unsigned(6, 24)), weight_zero_point=byte(130)),
        "no zero point": dict(input_zero_point=None),
        "zero point of weights": dict(weight_zero_point=byte(3, INT8)),
        "zero points of columns": dict(weight_zero_point=Constant(signed(24))),
        "scales of columns": dict(weight_scale=Constant(np.abs(floats(24)) / 50)),
        "scales in lists": dict(weight_scale=Constant(np.array([0.01], np.float32)), input_scale=Constant(np.array([0.02], np.float32))),
        "past": dict(past=floats(2, 2, 2, 4, 4), outputs=[0, 1]),
        "no past yet": dict(past=floats(2, 2, 2, 0, 4), outputs=[0, 1]),
        "present": dict(outputs=[0, 1]),
        **each("mask_index", masks),
        **numbers("unidirectional", 1), **numbers("scale", 0.3), **numbers("mask_filter_value", -2.0), **numbers("do_rotary", 1),
        **numbers("past_present_share_buffer", 1),
    })


def grouped():
    values = dict(
        query=floats(2, 3, 64), key=floats(2, 3, 32), value=floats(2, 3, 32), seqlens_k=ints([2, 2]), total_sequence_length=ints(3), num_heads=4,
        kv_num_heads=2,
    )
    caches = dict(cos_cache=Constant(floats(12, 8)), sin_cache=Constant(floats(12, 8)))
    word = dict(query=floats(1, 1, 64), key=floats(1, 1, 32), value=floats(1, 1, 32), seqlens_k=ints([4]), total_sequence_length=ints(5))
    past = dict(past_key=floats(1, 2, 4, 16), past_value=floats(1, 2, 4, 16))
    everything = dict(outputs=[0, 1, 2])
    return Form("GroupQueryAttention", values | everything, {
        "shorter rows": dict(seqlens_k=ints([1, 2])),
        "packed": dict(query=floats(2, 3, 128), key=None, value=None),
        "fewer heads": dict(num_heads=2, kv_num_heads=1, query=floats(2, 3, 32), key=floats(2, 3, 16), value=floats(2, 3, 16)),
        "as many keys": dict(kv_num_heads=4, key=floats(2, 3, 64), value=floats(2, 3, 64)),
        "one word": word | past,
        "more words": past | dict(query=floats(1, 2, 64), key=floats(1, 2, 32), value=floats(1, 2, 32), seqlens_k=ints([5]), total_sequence_length=ints(6)),
        "words in a buffer": dict(past_key=floats(2, 2, 9, 16), past_value=floats(2, 2, 9, 16)),
        "no words yet": dict(past_key=floats(2, 2, 0, 16), past_value=floats(2, 2, 0, 16)),
        "past of keys alone": dict(past_key=floats(2, 2, 4, 16)),
        "no keys": dict(key=None),
        "rotary": dict(do_rotary=1) | caches,
        "rotary, interleaved": dict(do_rotary=1, rotary_interleaved=1) | caches,
        "rotary of a half": dict(do_rotary=1, cos_cache=Constant(floats(12, 4)), sin_cache=Constant(floats(12, 4))),
        "rotary at positions": dict(do_rotary=1, position_ids=ints([[3, 4, 5], [0, 1, 7]], INT64)) | caches,
        "rotary without caches": dict(do_rotary=1),
        "caches without rotary": caches,
        "one list of lengths": dict(seqlens_k=ints([[2], [2]])),
        "length in a list": dict(total_sequence_length=ints([3])),
        "scores": dict(qk_output=1, outputs=[0, 1, 2, 3]),
        "weights": dict(qk_output=2, outputs=[0, 1, 2, 3]),
        "the response alone": dict(outputs=[0]),
        "norms": dict(q_norm_weight=Constant(floats(16)), k_norm_weight=Constant(floats(16)), qk_norm_epsilon=1e-3, q_norm_epsilon=1e-3, k_norm_epsilon=1e-3),
        "eight bits": dict(k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", kv_cache_bit_width=8, k_scale=scale(0.01), v_scale=scale(0.01),
                           past_key=signed(2, 2, 0, 16), past_value=signed(2, 2, 0, 16)),
        "padded queries": dict(query_seqlens=ints([3, 3]), past_key=floats(2, 2, 9, 16), past_value=floats(2, 2, 9, 16)),
        **attention_bias("attention_bias", 4, 3, 3),
        "head_sink": dict(head_sink=Constant(floats(4))),
        **numbers("local_window_size", 0, 2), **numbers("softcap", 0.7), **numbers("smooth_softmax", 1), **numbers("scale", 0.3), **numbers("causal", 0),
        **numbers("sliding_window_cache", 1),
    })


def rotary():
    values = dict(input=floats(2, 3, 16), position_ids=ints([0], INT64), cos_cache=Constant(floats(10, 4)), sin_cache=Constant(floats(10, 4)))
    half = dict(cos_cache=Constant(floats(10, 2)), sin_cache=Constant(floats(10, 2)))
    return Form("RotaryEmbedding", values, {
        "by head": dict(input=floats(2, 2, 3, 8)),
        "at": dict(position_ids=ints([5], INT64)),
        "positions": dict(position_ids=ints([[1, 0, 9], [3, 3, 4]], INT64)),
        "of a half": dict(rotary_embedding_dim=4, num_heads=2) | half,
        "of a half of all": dict(rotary_embedding_dim=4) | half,
        "small caches": half,
        "heads": dict(num_heads=2),
        "width": dict(rotary_embedding_dim=8),
        "rows alone": dict(input=floats(3, 16)),
        **numbers("interleaved", 1), **numbers("is_packed_batching", 1), **numbers("scale", 2.0),
    })


def packed():
    def weights(bits, block, depth=40, columns=5):
        blocks = -(-depth // block)
        return dict(
            B=Constant(unsigned(columns, blocks, block * bits // 8)), scales=Constant(np.abs(floats(columns, blocks)) / 9), bits=bits, block_size=block,
            K=depth, N=columns,
        )

    flat = weights(4, 16)
    flat["scales"] = Constant(flat["scales"].value.ravel())
    yield Form("MatMulNBits", dict(A=floats(3, 40)) | weights(4, 16), {
        "scales in a row": flat,
        "two bits": weights(2, 16), "eight bits": weights(8, 16), "long blocks": weights(4, 128),
        "eight bits, zero points": weights(8, 32) | dict(zero_points=Constant(unsigned(5, 2))),
        "two bits, zero points": weights(2, 16) | dict(zero_points=Constant(unsigned(5, 1))),
        "zero points": dict(zero_points=Constant(unsigned(5, 2))),
        "zero points in a row": dict(zero_points=Constant(unsigned(10))),
        "zero points that are floats": dict(zero_points=Constant(np.abs(floats(5, 3)) * 4)),
        "order of groups": dict(g_idx=Constant(ints(np.arange(40) // 16))),
        "order of groups, mixed": dict(g_idx=Constant(ints(np.arange(40) % 3))),
        "bias": dict(bias=Constant(floats(5))),
        "a batch": dict(A=floats(2, 3, 40)), "a row": dict(A=floats(40)), "one row": dict(A=floats(1, 40)), "four axes": dict(A=floats(2, 1, 3, 40)),
        **numbers("accuracy_level", 1, 4), **numbers("weight_prepacked", 1),
    })

    def table(bits, rows=6, columns=32, block=16):
        return dict(
            data=Constant(unsigned(rows, columns * bits // 8)), scales=Constant(np.abs(floats(rows, columns // block))), bits=bits, block_size=block,
        )

    four = dict(indices=ints([4, 0, 0, 5], INT64), gather_axis=0, quantize_axis=1)
    yield Form("GatherBlockQuantized", four | table(4), {
        "two bits": table(2), "eight bits": table(8), "long blocks": table(4, columns=256, block=128),
        "zero points": dict(zero_points=Constant(unsigned(6, 1))),
        "eight bits, zero points": table(8) | dict(zero_points=Constant(unsigned(6, 2))),
        "INT32 indices": dict(indices=ints([[4, 0], [1, 5]])), "one index": dict(indices=ints(3, INT64)), "from the end": dict(indices=ints([-1, -6], INT64)),
        "beyond": dict(indices=ints([6, 0], INT64)),
        "three axes": dict(data=Constant(unsigned(6, 3, 16)), scales=Constant(np.abs(floats(6, 3, 2))), quantize_axis=2),
        **numbers("quantize_axis", -1, 0), **numbers("gather_axis", 1, -2),
        "usual attributes": dict(gather_axis=None, quantize_axis=None, bits=None),
        "no block size": dict(block_size=None),
    })


def activated(parameters):
    names = {
        "Relu": [], "Tanh": [], "Sigmoid": [], "LeakyRelu": [0.2], "Clip": [-0.5, 0.6], "HardSigmoid": [0.3, 0.4], "Elu": [0.5], "Softplus": [],
        "Softsign": [], "HardSwish": [], "Selu": [], "ThresholdedRelu": [0.3], "ParametricSoftplus": [0.5, 0.6], "ScaledTanh": [0.5, 0.6],
    }
    changes = {}
    for name, values in names.items():
        changes[f"activation {name}"] = dict(activation=name) | (parameters(values) if values else {})
        if values:
            changes[f"activation {name}, no parameters"] = dict(activation=name)
    return changes


def fused():
    image, kernel = floats(1, 4, 5, 6), Constant(floats(6, 4, 3, 3))
    yield Form("FusedConv", dict(X=image, W=kernel), {
        "bias": dict(B=Constant(floats(6))),
        "sum": dict(Z=floats(1, 6, 3, 4)),
        "sum of one": dict(Z=floats(1, 6, 1, 1)),
        "bias and sum": dict(B=Constant(floats(6)), Z=floats(1, 6, 3, 4)),
        "groups": dict(W=Constant(floats(6, 2, 3, 3)), group=2),
        "lines": dict(X=floats(1, 4, 9), W=Constant(floats(6, 4, 3))),
        "volumes": dict(X=floats(1, 4, 5, 4, 5), W=Constant(floats(6, 4, 3, 2, 3))),
        **activated(lambda values: dict(activation_params=values)),
        "pads": dict(pads=[1, 0, 2, 1]), "strides": dict(strides=[2, 1]), "dilations": dict(dilations=[2, 2]), "kernel_shape": dict(kernel_shape=[3, 3]),
        **numbers("auto_pad", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"),
    })

    def separate(values):
        return dict(zip(["activation_alpha", "activation_beta", "activation_gamma"], values))

    yield Form("FusedGemm", dict(A=floats(3, 4), B=Constant(floats(4, 5)), activation="Relu"), {
        "plain": dict(activation=None),
        **activated(separate),
        "row": dict(C=Constant(floats(5))), "column": dict(C=Constant(floats(3, 1))), "matrix": dict(C=floats(3, 5)), "number": dict(C=floats()),
        "transA": dict(transA=1, A=floats(4, 3)), "transB": dict(transB=1, B=Constant(floats(5, 4))), **numbers("alpha", 0.3), **numbers("beta", 0.4, 0.0),
        "gamma": dict(activation_gamma=0.5),
    })
    for op in ("FusedMatMul", "TransposeMatMul"):
        batches = {
            "transBatchA": dict(transBatchA=1, A=floats(3, 2, 4)), "transBatchB": dict(transBatchB=1, B=floats(4, 2, 5)),
            "transBatchA of four axes": dict(transBatchA=1, A=floats(2, 3, 2, 4), B=floats(2, 3, 4, 5)),
            "transposed both ways": dict(transBatchA=1, transA=1, A=floats(4, 2, 3)),
        }
        yield Form(op, dict(A=floats(2, 3, 4), B=floats(2, 4, 5)), {
            "matrices": dict(A=floats(3, 4), B=floats(4, 5)),
            "constant": dict(B=Constant(floats(4, 5))),
            "one for all": dict(B=floats(1, 4, 5)),
            "four axes": dict(A=floats(2, 2, 3, 4), B=floats(2, 4, 5)),
            "a vector": dict(B=floats(4)), "a vector first": dict(A=floats(4)), "vectors": dict(A=floats(4), B=floats(4)),
            "FP64": dict(A=floats(2, 3, 4, kind=np.float64), B=floats(2, 4, 5, kind=np.float64)),
            "transA": dict(transA=1, A=floats(2, 4, 3)), "transB": dict(transB=1, B=floats(2, 5, 4)), "transA alone": dict(transA=1),
            **numbers("alpha", 0.3, 0.0), **(batches if op == "FusedMatMul" else {}),
        })


def gelus():
    ranks = {"a number": floats(), "a list": floats(8), "four axes": floats(2, 1, 3, 8), "nothing": floats(0, 8)}
    yield Form("Gelu", dict(X=floats(2, 3, 8) * 3), {**each("X", ranks), "FP64": dict(X=floats(3, kind=np.float64))})
    yield Form("BiasGelu", dict(A=floats(2, 3, 8) * 3, B=floats(8)), {**each("A", ranks), "matrix": dict(B=floats(3, 8)), "number": dict(B=floats(1))})
    yield Form("FastGelu", dict(X=floats(2, 3, 8) * 3), {**each("X", ranks), "bias": dict(bias=floats(8)), "number": dict(bias=floats(1))})
    yield Form("QuickGelu", dict(X=floats(2, 3, 8) * 3), {**each("X", ranks), **numbers("alpha", 0.7, 0.0, -1.0, 1.0)})


def normalizations():
    def skipped(op, beta):
        yield Form(op, dict(input=floats(2, 3, 8), skip=floats(2, 3, 8), gamma=floats(8)), {
            "one for all": dict(skip=floats(1, 3, 8)), "one matrix": dict(skip=floats(3, 8)), "one row": dict(skip=floats(8)),
            "a row": dict(input=floats(3, 8), skip=floats(3, 8)),
            "more rows": dict(input=floats(1, 3, 8)),
            **({"beta": dict(beta=floats(8))} if beta else {}),
            "bias": dict(bias=floats(8)),
            "mean": dict(outputs=[0, 1]), "deviation": dict(outputs=[0, 2]), "sum": dict(outputs=[0, 3]), "all outputs": dict(outputs=[0, 1, 2, 3]),
            **numbers("epsilon", 0.1, 0.0),
        })

    yield from skipped("SkipLayerNormalization", True)
    yield from skipped("SkipSimplifiedLayerNormalization", False)
    ranks = {"a row": floats(8), "rows": floats(3, 8), "four axes": floats(2, 2, 3, 8), "FP64": floats(3, 8, kind=np.float64)}
    two = dict(scale=floats(3, 8), axis=1)
    yield Form("SimplifiedLayerNormalization", dict(X=floats(2, 3, 8), scale=floats(8)), {
        **each("X", ranks), "two axes": two, "two axes from the end": two | dict(axis=-2), "wide scale": dict(scale=floats(3, 8)),
        **numbers("axis", 2, -1, 0), **numbers("epsilon", 0.1), **numbers("stash_type", 1), "deviation": dict(outputs=[0, 1]),
        "FP64 scale": dict(scale=floats(8, kind=np.float64)),
    }, domain="", opset=17)
    two = dict(Scale=floats(3, 8), B=floats(3, 8), axis=1)
    for opset in (11, 17):
        yield Form("LayerNormalization", dict(X=floats(2, 3, 8), Scale=floats(8), B=floats(8)), {
            **each("X", ranks), "no bias": dict(B=None), "two axes": two, "two axes from the end": two | dict(axis=-2),
            **numbers("axis", 2, -1, 0), **numbers("epsilon", 0.1), **numbers("stash_type", 1), "mean": dict(outputs=[0, 1]), "deviation": dict(outputs=[0, 2]),
            "all outputs": dict(outputs=[0, 1, 2]),
        }, domain="", opset=opset)
    tables = dict(
        word_embedding=Constant(floats(10, 8)), position_embedding=Constant(floats(6, 8)), segment_embedding=Constant(floats(2, 8)), gamma=Constant(floats(8)),
        beta=Constant(floats(8)),
    )
    words, mask = ints([[1, 2, 3], [9, 0, 0]]), ints([[1, 1, 1], [1, 0, 0]])
    yield Form("EmbedLayerNormalization", dict(input_ids=words, segment_ids=ints([[0, 1, 1], [0, 0, 0]]), outputs=[0, 1]) | tables, {
        "no segments": dict(segment_ids=None, segment_embedding=None),
        "segments without a table": dict(segment_embedding=None),
        "a table without segments": dict(segment_ids=None),
        "mask": dict(mask=mask), "lengths alone": dict(outputs=[1]),
        "holes in the mask": dict(mask=ints([[0, 1, 1], [1, 0, 1]])),
        "positions": dict(position_ids=ints([[5, 0, 1], [2, 2, 3]])), "one row of positions": dict(position_ids=ints([[5, 0, 1]])),
        "sum": dict(outputs=[0, 1, 2]), "all outputs": dict(mask=mask, outputs=[0, 1, 2]),
        "beyond the words": dict(input_ids=ints([[1, 2, 10], [9, 0, 0]])), "from the end": dict(input_ids=ints([[1, 2, -1], [9, 0, 0]])),
        "too many words": dict(input_ids=ints([[1] * 7]), segment_ids=ints([[1] * 7])),
        **numbers("epsilon", 0.1), **numbers("mask_index_type", 0, 1, 2),
    })


def integer_products():
    columns = Constant(np.abs(floats(4)) / 50)
    weights = {
        "unsigned": dict(B=Constant(unsigned(8, 4))), "of three axes": dict(B=Constant(signed(2, 8, 4))), "a vector": dict(B=Constant(signed(8))),
    }
    yield Form("DynamicQuantizeMatMul", dict(A=floats(2, 3, 8), B=Constant(signed(8, 4)), b_scale=scale(0.01)), {
        **weights, "matrix": dict(A=floats(3, 8)), "row": dict(A=floats(8)),
        "scales of columns": dict(b_scale=columns),
        "scale in a list": dict(b_scale=Constant(np.array([0.02], np.float32))),
        "zero point": dict(b_zero_point=byte(3, INT8)),
        "zero points": dict(b_zero_point=Constant(signed(4)), b_scale=columns),
        "unsigned, zero point": dict(B=Constant(unsigned(8, 4)), b_zero_point=byte(120)),
        "bias": dict(bias=Constant(floats(4))), "bias of rows": dict(bias=Constant(floats(3, 4))),
    })
    yield Form("MatMulIntegerToFloat", dict(A=unsigned(2, 3, 8), B=Constant(signed(8, 4)), a_scale=scale(0.03), b_scale=scale(0.01)), {
        **weights, "matrix": dict(A=unsigned(3, 8)), "row": dict(A=unsigned(8)), "signed": dict(A=signed(2, 3, 8)),
        "signed, zero point": dict(A=signed(2, 3, 8), a_zero_point=byte(-5, INT8)),
        "scales of columns": dict(b_scale=columns),
        "scales in lists": dict(b_scale=Constant(np.array([0.02], np.float32)), a_scale=Constant(np.array([0.02], np.float32))),
        "scales of rows": dict(a_scale=Constant(np.abs(floats(3)))),
        "zero point": dict(a_zero_point=byte(100)), "zero point of weights": dict(b_zero_point=byte(3, INT8)),
        "zero points of columns": dict(b_zero_point=Constant(signed(4)), b_scale=columns),
        "bias": dict(bias=Constant(floats(4))),
    })
    values = dict(
        A=unsigned(3, 8), a_scale=scale(0.03), a_zero_point=byte(100), B=Constant(signed(8, 4)), b_scale=scale(0.01), b_zero_point=byte(3, INT8),
        y_scale=scale(0.05), y_zero_point=byte(128),
    )
    bias = Constant(ints(whole(2000, 4) - 1000))
    yield Form("QGemm", values, {
        "signed": dict(A=signed(3, 8), a_zero_point=byte(-5, INT8), y_zero_point=byte(-3, INT8)),
        "unsigned weights": dict(B=Constant(unsigned(8, 4)), b_zero_point=byte(130)),
        "floats": dict(y_scale=None, y_zero_point=None),
        "scale without zero point": dict(y_zero_point=None), "zero point without scale": dict(y_scale=None),
        "scales of columns": dict(b_scale=columns, b_zero_point=Constant(signed(4))),
        "bias": dict(C=bias), "bias of rows": dict(C=Constant(ints(whole(2000, 3, 4) - 1000))), "bias of a number": dict(C=Constant(ints([500]))),
        "transA": dict(transA=1, A=unsigned(8, 3)), "transB": dict(transB=1, B=Constant(signed(4, 8))), **numbers("alpha", 0.3),
        "scales in lists": dict(a_scale=Constant(np.array([0.03], np.float32)), b_scale=Constant(np.array([0.01], np.float32))),
    })


def quantized_values():
    rows = floats(3, 4) * 20
    per_axis = Constant(np.abs(floats(4)) + 0.1)
    yield Form("QuantizeLinear", dict(x=rows, y_scale=scale(0.3), y_zero_point=byte(100)), {
        "no zero point": dict(y_zero_point=None), "INT8": dict(y_zero_point=byte(-3, INT8)), "UINT16": dict(y_zero_point=byte(900, np.uint16)),
        "INT16": dict(y_zero_point=byte(-30, np.int16)),
        "of columns": dict(y_scale=per_axis, y_zero_point=Constant(unsigned(4)), axis=1), "of columns, by default": dict(y_scale=per_axis, y_zero_point=Constant(unsigned(4))),
        "of rows": dict(y_scale=Constant(np.abs(floats(3)) + 0.1), y_zero_point=Constant(unsigned(3)), axis=0),
        "from the end": dict(y_scale=per_axis, y_zero_point=Constant(unsigned(4)), axis=-1),
        "a number": dict(x=floats()), "a list": dict(x=floats(4) * 9), "four axes": dict(x=floats(2, 4, 1, 3) * 9), "INT32": dict(x=ints(whole(99, 3, 4))),
        "scale in a list": dict(y_scale=Constant(np.array([0.3], np.float32)), y_zero_point=Constant(np.array([3], UINT8))),
        **numbers("axis", 0),
    })
    yield Form("DequantizeLinear", dict(x=unsigned(3, 4), x_scale=scale(0.3), x_zero_point=byte(100)), {
        "no zero point": dict(x_zero_point=None), "INT8": dict(x=signed(3, 4), x_zero_point=byte(-3, INT8)),
        "UINT16": dict(x=whole(60000, 3, 4, kind=np.uint16), x_zero_point=byte(900, np.uint16)), "INT16": dict(x=whole(900, 3, 4, kind=np.int16), x_zero_point=byte(-30, np.int16)),
        "INT32": dict(x=ints(whole(9999, 3, 4)), x_zero_point=None), "INT32 with a zero point": dict(x=ints(whole(9999, 3, 4)), x_zero_point=byte(0, INT32)),
        "of columns": dict(x_scale=per_axis, x_zero_point=Constant(unsigned(4)), axis=1),
        "of columns, by default": dict(x_scale=per_axis, x_zero_point=Constant(unsigned(4))),
        "of rows": dict(x_scale=Constant(np.abs(floats(3))), x_zero_point=Constant(unsigned(3)), axis=0),
        "from the end": dict(x_scale=per_axis, x_zero_point=Constant(unsigned(4)), axis=-1),
        "a number": dict(x=unsigned()), "a list": dict(x=unsigned(4)), "four axes": dict(x=unsigned(2, 4, 1, 3)),
        "scale in a list": dict(x_scale=Constant(np.array([0.3], np.float32)), x_zero_point=Constant(np.array([3], UINT8))),
        **numbers("axis", 0),
    })


def quantized_operators():
    for op in ("QLinearAdd", "QLinearMul"):
        values = dict(
            A=unsigned(2, 3, 4), A_scale=scale(0.05), A_zero_point=byte(120), B=unsigned(2, 3, 4), B_scale=scale(0.04), B_zero_point=byte(100),
            C_scale=scale(0.1), C_zero_point=byte(130),
        )
        small = dict(A=signed(2, 3, 4), A_zero_point=byte(-5, INT8), B=signed(2, 3, 4), B_zero_point=byte(7, INT8), C_zero_point=byte(3, INT8))
        yield Form(op, values, {
            "signed": small, "no zero point of A": dict(A_zero_point=None), "no zero point of B": dict(B_zero_point=None), "no zero point of C": dict(C_zero_point=None),
            "a row": dict(B=unsigned(4)), "a column": dict(B=unsigned(3, 1)), "a number": dict(B=unsigned()), "constant": dict(B=Constant(unsigned(4))),
            "a row first": dict(A=unsigned(4)),
            "scales in lists": dict(A_scale=Constant(np.array([0.05], np.float32)), C_scale=Constant(np.array([0.1], np.float32))),
            "scales of columns": dict(A_scale=Constant(np.abs(floats(4)))),
        })
    one = dict(X=unsigned(2, 3, 4), X_scale=scale(0.05), X_zero_point=byte(120), Y_scale=scale(0.01), Y_zero_point=byte(10))
    forms = {
        "signed": dict(X=signed(2, 3, 4), X_zero_point=byte(-5, INT8), Y_zero_point=byte(-3, INT8)), "no zero point of X": dict(X_zero_point=None),
        "no zero point of Y": dict(Y_zero_point=None), "a list": dict(X=unsigned(9)), "a number": dict(X=unsigned()), "four axes": dict(X=unsigned(2, 2, 3, 4)),
        "scales in lists": dict(X_scale=Constant(np.array([0.05], np.float32)), Y_scale=Constant(np.array([0.01], np.float32))),
        "signed without zero points": dict(X=signed(2, 3, 4), X_zero_point=None, Y_zero_point=None),
    }
    yield Form("QLinearSigmoid", one, forms)
    yield Form("QLinearLeakyRelu", one, forms | numbers("alpha", 0.3, 0.0, -0.5))
    small = dict(X=signed(2, 3, 4), x_zero_point=byte(-5, INT8), y_zero_point=byte(-128, INT8))
    softmax = dict(X=unsigned(2, 3, 4), X_scale=scale(0.05), x_zero_point=byte(120), y_scale=scale(1 / 256), y_zero_point=byte(0), opset=17)
    for opset in (12, 17):
        # `opset` is also an attribute of the operator.
        yield Form("QLinearSoftmax", softmax | dict(opset=opset), {
            "signed": small, "no zero point of X": dict(x_zero_point=None), "a list": dict(X=unsigned(9)), "matrix": dict(X=unsigned(3, 9)), "four axes": dict(X=unsigned(2, 2, 3, 4)),
            **numbers("axis", -1, 1, 0, 2), **numbers("opset", 12, 13),
        }, opset=opset)
    image = dict(X=unsigned(1, 3, 5, 6), x_scale=scale(0.05), x_zero_point=byte(120), y_scale=scale(0.03), y_zero_point=byte(10))
    small = dict(X=signed(1, 3, 5, 6), x_zero_point=byte(-5, INT8), y_zero_point=byte(-3, INT8))
    ranks = {"lines": dict(X=unsigned(1, 3, 9)), "volumes": dict(X=unsigned(1, 3, 4, 5, 4))}
    yield Form("QLinearGlobalAveragePool", image, {"signed": small, **ranks, **numbers("channels_last", 1)})
    yield Form("QLinearAveragePool", image | dict(kernel_shape=[2, 2]), {
        "signed": small, "no zero point of x": dict(x_zero_point=None), "no zero point of y": dict(y_zero_point=None),
        "lines": ranks["lines"] | dict(kernel_shape=[3]), "volumes": ranks["volumes"] | dict(kernel_shape=[2, 2, 2]),
        "strides": dict(strides=[2, 2]), "pads": dict(pads=[1, 0, 1, 1]), "wide strides": dict(strides=[2, 2], kernel_shape=[3, 3]),
        "no kernel": dict(kernel_shape=None), **numbers("ceil_mode", 1), **numbers("count_include_pad", 1), **numbers("channels_last", 1),
        **numbers("auto_pad", "SAME_UPPER", "SAME_LOWER", "VALID"),
    })
    yield Form("NhwcMaxPool", dict(x=unsigned(1, 5, 6, 3), kernel_shape=[2, 2]), {
        "signed": dict(x=signed(1, 5, 6, 3)), "lines": dict(x=unsigned(1, 9, 3), kernel_shape=[3]), "volumes": dict(x=unsigned(1, 4, 5, 4, 3), kernel_shape=[2, 2, 2]),
        "strides": dict(strides=[2, 2]), "pads": dict(pads=[1, 0, 1, 1]), "dilations": dict(dilations=[2, 2]), "wide strides": dict(strides=[2, 2], kernel_shape=[3, 3]),
        "no kernel": dict(kernel_shape=None), **numbers("ceil_mode", 1), **numbers("auto_pad", "SAME_UPPER", "SAME_LOWER", "VALID"),
    })
    parts = [unsigned(2, 3), scale(0.05), byte(120), unsigned(2, 4), scale(0.04), byte(100)]
    small = [signed(2, 3), scale(0.05), byte(5, INT8), signed(2, 4), scale(0.04), byte(-9, INT8)]
    joined = dict(Y_scale=scale(0.1), Y_zero_point=byte(30))
    yield Form("QLinearConcat", joined | dict(inputs=parts, axis=1), {
        "signed": dict(inputs=small, Y_zero_point=byte(-3, INT8)), "one": dict(inputs=parts[:3]), "three": dict(inputs=parts + parts[:3]),
        "the same": dict(inputs=parts[:3] * 2, axis=0), "a constant": dict(inputs=[*parts[:3], Constant(unsigned(2, 4)), *parts[4:]]),
        "no zero point": dict(inputs=[*parts[:2], None, *parts[3:]]), "no zero point at the end": dict(inputs=parts[:5]),
        "no zero point of the result": dict(Y_zero_point=None), "its own scale": dict(Y_scale=scale(0.05), Y_zero_point=byte(120)),
        **numbers("axis", -1, 0, 2), "no axis": dict(axis=None),
    })
    yield Form("QLinearWhere", dict(
        condition=floats(2, 3) > 0, X=unsigned(2, 3), x_scale=scale(0.05), x_zero_point=byte(120), Y=unsigned(2, 3), y_scale=scale(0.04),
        y_zero_point=byte(100), z_scale=scale(0.1), z_zero_point=byte(30),
    ), {
        "signed": dict(X=signed(2, 3), x_zero_point=byte(5, INT8), Y=signed(2, 3), y_zero_point=byte(-9, INT8), z_zero_point=byte(-3, INT8)),
        "a row": dict(Y=unsigned(3)), "a number": dict(X=unsigned()), "a column of conditions": dict(condition=floats(2, 1) > 0),
        "a constant": dict(Y=Constant(unsigned(2, 3))), "no zero point": dict(x_zero_point=None),
        "scales in lists": dict(x_scale=Constant(np.array([0.05], np.float32))),
    })


def others():
    values = np.array([2, 1, 1, 3, 4, 3], np.float32)
    yield Form("Unique", dict(x=values, outputs=[0, 1, 2]), {
        "values": dict(outputs=[0]), "counts": dict(outputs=[0, 2]), "places": dict(outputs=[1]), "nothing": dict(x=floats(0)), "matrix": dict(x=floats(2, 3)),
        "INT64": dict(x=whole(4, 9)), "FP64": dict(x=floats(5, kind=np.float64)), "NaN": dict(x=np.array([np.nan, 1, np.nan], np.float32)),
    })
    yield Form("Trilu", dict(X=floats(2, 3, 4)), {
        **{f"k={k}": dict(k=Constant(ints(k, INT64))) for k in (0, 1, -1, 9)}, "k in a list": dict(k=Constant(ints([1], INT64))), "computed k": dict(k=ints(1, INT64)),
        **numbers("upper", 0, 1), "matrix": dict(X=floats(3, 4)), "a list": dict(X=floats(4)), "INT64": dict(X=whole(9, 3, 4)), "BOOL": dict(X=floats(3, 4) > 0),
    })
    yield Form("GridSample", dict(X=floats(1, 2, 5, 6), Grid=floats(1, 3, 4, 2)), {
        **numbers("mode", "nearest", "bicubic", "bilinear", "linear", "cubic"), **numbers("padding_mode", "border", "reflection", "zeros"), **numbers("align_corners", 1, 0),
        "volumes": dict(X=floats(1, 2, 3, 5, 6), Grid=floats(1, 2, 3, 4, 3)), "two images": dict(X=floats(2, 2, 5, 6), Grid=floats(2, 3, 4, 2)),
    })
    yield Form("Range", dict(start=ints(1), limit=ints(9), delta=ints(2)), {
        "no step": dict(delta=None), "backwards": dict(start=ints(9), limit=ints(1), delta=ints(-3)), "nothing": dict(limit=ints(-9)), "no steps": dict(delta=ints(0)),
        "FP32": dict(start=np.float32(0.5), limit=np.float32(3), delta=np.float32(0.4)), "FP64": dict(start=np.float64(0.5), limit=np.float64(3), delta=np.float64(0.4)),
        "FP32, no step": dict(start=np.float32(0.5), limit=np.float32(3), delta=None), "INT64, no step": dict(start=ints(1, INT64), limit=ints(4, INT64), delta=None),
        "INT16": dict(start=ints(1, np.int16), limit=ints(9, np.int16), delta=ints(2, np.int16)),
        "lists": dict(start=ints([1]), limit=ints([9]), delta=ints([2])), "constants": dict(start=Constant(ints(1)), delta=Constant(ints(2))),
    })
    units, width = 4, 3

    def weights(directions, kind=signed):
        zero = byte([0] * directions, INT8 if kind is signed else UINT8)
        return dict(
            W=Constant(kind(directions, width, 4 * units)), R=Constant(kind(directions, units, 4 * units)),
            W_scale=Constant(np.abs(floats(directions)) / 50 + 0.01), R_scale=Constant(np.abs(floats(directions)) / 50 + 0.01), W_zero_point=zero,
            R_zero_point=zero,
        )

    state = dict(initial_h=floats(1, 2, units), initial_c=floats(1, 2, units))
    both = dict(initial_h=floats(2, 2, units), initial_c=floats(2, 2, units), B=Constant(floats(2, 32)), direction="bidirectional")
    yield Form("DynamicQuantizeLSTM", dict(X=floats(5, 2, width), hidden_size=units, outputs=[0, 1, 2]) | weights(1), {
        "bias": dict(B=Constant(floats(1, 32))), "lengths": dict(sequence_lens=ints([5, 2])), "no length": dict(sequence_lens=ints([0, 5])), "state": state,
        "h alone": dict(initial_h=floats(1, 2, units)), "c alone": dict(initial_c=floats(1, 2, units)), "peepholes": dict(P=Constant(floats(1, 3 * units))),
        "both directions": weights(2) | dict(direction="bidirectional"), "both directions, all inputs": weights(2) | both, "backwards": dict(direction="reverse"),
        "unsigned": weights(1, unsigned), "zero point": dict(W_zero_point=byte([3], INT8), R_zero_point=byte([-2], INT8)),
        "scales of columns": dict(
            W_scale=Constant(np.abs(floats(1, 16)) / 50), R_scale=Constant(np.abs(floats(1, 16)) / 50), W_zero_point=byte([[0] * 16], INT8),
            R_zero_point=byte([[0] * 16], INT8),
        ),
        "last alone": dict(outputs=[1]), "all rows": dict(outputs=[0]), "cell": dict(outputs=[2]),
        "activations": dict(activations=["HardSigmoid", "Affine", "Softsign"], activation_alpha=[0.3, 0.4], activation_beta=[0.1, 0.2]),
        "relus": dict(activations=["Sigmoid", "Relu", "Relu"]),
        **numbers("clip", 0.3), **numbers("input_forget", 1), "no hidden size": dict(hidden_size=None),
    })
    texts = np.array(["ab c", "déjà vu", "a,b;c"], dtype=object)
    base = dict(X=texts, mark=0, pad_value="#", mincharnum=1, separators=[" "])
    yield Form("Tokenizer", base, {
        "marked": dict(mark=1), "long words": dict(mincharnum=2), "matrix": dict(X=texts[None]), "cube": dict(X=texts[None, None]), "nothing": dict(X=texts[:0]),
        "empty text": dict(X=np.array(["", "a b"], dtype=object)), "letters": dict(separators=[""]), "two separators": dict(separators=[",", ";"]),
        "regular separators": dict(separators=["[,; ]"]), "words": dict(separators=None, tokenexp="[a-z]+"), "neither": dict(separators=None),
        "other padding": dict(pad_value=""),
    })


def forms():
    yield multi_head()
    yield attention()
    yield quantized_attention()
    yield grouped()
    yield rotary()
    yield from packed()
    yield from fused()
    yield from gelus()
    yield from normalizations()
    yield from integer_products()
    yield from quantized_values()
    yield from quantized_operators()
    yield from others()
