"""The operators that extremes.py tests, each with a valid request."""

import itertools
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(1)
OPSETS = (("ai.onnx.ml", 3), ("com.microsoft", 1))
INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
MS = "com.microsoft"


def floats(*shape, kind=np.float32):
    return random.standard_normal(shape).astype(kind)


def whole(bound, *shape, kind=np.int64):
    return random.integers(0, bound, shape).astype(kind)


def numbers(*values, kind=np.int64):
    return np.array(values, kind)


def number(value, kind=np.int64):
    return np.array(value, kind)


def truths(*shape):
    return random.random(shape) > 0.5


def texts(*values):
    return np.array([value.encode() for value in values], object)


def kind_of(array):
    return TensorProto.STRING if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype)


REGIONS = numbers(0, 0, 4, 4, 1, 1, 5, 6, 0, 2, 3, 7, 2, 2, 6, 6, kind=np.float32).reshape(4, 4)


class Case:
    """An operator, or several nodes, with a valid request. An input of `None` is omitted. `more` has requests in addition
    to the generated ones."""

    def __init__(self, op, *inputs, label="", nodes=None, opset=18, domain="", outputs=1, kinds=None, more=None, fixed=(), extra=None, **attributes):
        self.name = f"{domain.removeprefix('com.')}{'.' if domain else ''}{op}{' ' if label else ''}{label}"
        names = ["" if value is None else f"x{at}" for at, value in enumerate(inputs)]
        self.inputs = {name: np.asarray(value) for name, value in zip(names, inputs) if name}
        results = [f"y{at}" for at in range(outputs)]
        nodes = nodes or [helper.make_node(op, names, results, domain=domain, **attributes, **(extra or {}))]
        self.more = more or {}
        self.is_request_fixed = False
        ports = [
            helper.make_tensor_value_info(name, kind_of(array), array.shape if name in fixed else [None] * array.ndim)
            for name, array in self.inputs.items()
        ]
        kinds = [kinds] * outputs if isinstance(kinds, int) else kinds
        if kinds is None:
            empty = [helper.make_empty_tensor_value_info(name) for name in results]
            try:
                inferred = onnx.shape_inference.infer_shapes(self.file(nodes, ports, empty, opset))
                kinds = [output.type.tensor_type.elem_type for output in inferred.graph.output]
            except Exception:
                kinds = [0] * outputs
            first = next(iter(self.inputs.values()))
            kinds = [kind or kind_of(first) for kind in kinds]
        ends = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(results, kinds)]
        self.model = self.file(nodes, ports, ends, opset)

    def file(self, nodes, inputs, outputs, opset):
        graph = helper.make_graph(nodes, "extremes", inputs, outputs)
        opsets = [helper.make_opsetid(*pair) for pair in (("", opset), *OPSETS)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def arithmetic():
    for kind in INTEGERS:
        name = np.dtype(kind).name
        # Short and long rows are computed by different code.
        pair = whole(9, 3, 5, kind=kind) + kind(1), whole(9, 3, 5, kind=kind) + kind(1)
        wide = whole(9, 2, 64, kind=kind) + kind(1), whole(9, 2, 64, kind=kind) + kind(1)
        for op in ("Div", "Mod", "Mul", "Sub", "Add"):
            yield Case(op, *pair, label=name)
            if op in ("Div", "Mod"):
                yield Case(op, *wide, label=f"{name} long")
                yield Case(op, pair[0], number(2, kind), label=f"{name} by one")
                yield Case(op, number(7, kind), pair[1], label=f"{name} of one")
        if kind in (np.int32, np.int64):
            yield Case("Pow", *pair, label=name)
            yield Case("Abs", pair[0], label=name)
            yield Case("Neg", pair[0], label=name)
            for op in ("ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"):
                yield Case(op, pair[0], numbers(1), label=name)
            yield Case("Sign", pair[0], label=name)
        yield Case("Mod", *pair, label=f"{name} fmod", fmod=1)
        if kind in (np.uint8, np.uint16, np.uint32, np.uint64):
            yield Case("BitShift", *pair, label=f"{name} left", direction="LEFT")
            yield Case("BitShift", *pair, label=f"{name} right", direction="RIGHT")
        if kind not in (np.int16, np.uint16):
            yield Case("Clip", pair[0], number(1, kind), number(5, kind), label=name)
        yield Case("Cast", pair[0], label=f"{name} to text", to=TensorProto.STRING)
        yield Case("Cast", pair[0], label=f"{name} to FP16", to=TensorProto.FLOAT16)
    for kind in (np.float32, np.float64):
        name = np.dtype(kind).name
        pair = floats(3, 16, kind=kind), floats(3, 16, kind=kind)
        for op in ("Div", "Pow"):
            yield Case(op, *pair, label=name)
        yield Case("Mod", *pair, label=name, fmod=1)
        for to in (TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8, TensorProto.UINT64, TensorProto.BOOL, TensorProto.STRING):
            yield Case("Cast", pair[0], label=f"{name} to {TensorProto.DataType.Name(to)}", to=to)
        for op in ("ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"):
            yield Case(op, pair[0], numbers(1), label=name)
    for kind in (np.int32, np.int64):
        yield Case("Pow", floats(3, 4), whole(3, 3, 4, kind=kind), label=f"float by {np.dtype(kind).name}")
        yield Case("Pow", whole(3, 3, 4, kind=kind), floats(3, 4), label=f"{np.dtype(kind).name} by float")
    for to in (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.UINT8, TensorProto.BOOL):
        yield Case("Cast", texts("1", "0"), label=f"text to {TensorProto.DataType.Name(to)}", to=to)


def functions_of_one():
    for op in ("Abs", "Ceil", "Floor", "Round", "Exp", "Log", "Sqrt", "Sin", "Cos", "Tan", "Asin", "Atanh", "Acosh", "Erf", "Sigmoid", "Tanh", "Softplus", "Elu", "Gelu", "Mish",
               "Reciprocal", "HardSwish", "Sign", "IsNaN", "IsInf", "Not", "Celu", "Shrink", "ThresholdedRelu"):
        yield Case(op, truths(2, 16) if op == "Not" else floats(2, 16), opset=20)
    yield Case("BitwiseNot", whole(9, 3))
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        yield Case(op, floats(2, 5, 3), axis=1)
    yield Case("LpNormalization", floats(2, 5))
    yield Case("MeanVarianceNormalization", floats(2, 3, 4, 4))
    yield Case("GlobalAveragePool", floats(2, 3, 4, 4))
    yield Case("GlobalMaxPool", floats(2, 3, 4, 4))
    yield Case("GlobalLpPool", floats(2, 3, 4, 4))
    yield Case("LRN", floats(2, 3, 4, 4), size=3)
    yield Case("Flatten", floats(2, 3, 4))
    yield Case("Transpose", floats(2, 3, 4), perm=[2, 0, 1])
    yield Case("SpaceToDepth", floats(1, 3, 4, 4), blocksize=2)
    yield Case("DepthToSpace", floats(1, 8, 4, 4), blocksize=2)
    yield Case("Det", floats(2, 3, 3))
    yield Case("NonZero", floats(3, 4))
    yield Case("ArgMax", floats(3, 4), axis=1)
    yield Case("ArgMin", whole(9, 3, 4, kind=np.int32), axis=0)
    yield Case("EyeLike", floats(3, 4), k=1)
    yield Case("Shape", floats(3, 4))
    yield Case("Size", floats(3, 4))
    yield Case("Identity", floats(3, 4))
    yield Case("Unique", floats(12), outputs=4, kinds=[TensorProto.FLOAT] + [TensorProto.INT64] * 3)
    yield Case("Unique", whole(3, 4, 3), label="axis", outputs=4, kinds=TensorProto.INT64, axis=0)
    yield Case("Unique", texts("b", "a", "b"), label="text", outputs=1)
    yield Case("DynamicQuantizeLinear", floats(3, 4), outputs=3, kinds=[TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8])
    yield Case("Bernoulli", np.abs(floats(3, 4)))
    yield Case("Multinomial", np.abs(floats(3, 4)), sample_size=5, kinds=TensorProto.INT32)
    yield Case("RandomNormalLike", floats(3, 4))
    yield Case("HannWindow", number(8))
    yield Case("HammingWindow", number(8), kinds=TensorProto.FLOAT)
    yield Case("BlackmanWindow", number(8, np.int32), kinds=TensorProto.FLOAT)


def shapes():
    yield Case("Reshape", floats(2, 6), numbers(3, 4))
    yield Case("Reshape", floats(2, 6), numbers(3, 4), label="allowzero", allowzero=1)
    yield Case("Expand", floats(1, 3), numbers(4, 3))
    yield Case("Expand", texts("a"), numbers(4), label="text")
    yield Case("Tile", floats(2, 3), numbers(2, 2))
    yield Case("Tile", texts("a", "b"), numbers(2), label="text")
    yield Case("ConstantOfShape", numbers(2, 3))
    for kind in (np.int64, np.int32, np.int16, np.float32, np.float64):
        yield Case("Range", number(0, kind), number(9, kind), number(2, kind), label=np.dtype(kind).name)
    yield Case("Squeeze", floats(1, 3, 1), numbers(0))
    yield Case("Unsqueeze", floats(3), numbers(0))
    yield Case("Concat", floats(2, 3), floats(2, 3), axis=0)
    for kind in (np.int64, np.int32):
        one = lambda *values: np.array(values, kind)
        yield Case("Slice", floats(5, 6), one(1, 0), one(4, 5), one(0, 1), one(1, 2), label=np.dtype(kind).name,
                   more={"step": {"x1": [-1, -1], "x2": [np.iinfo(kind).min] * 2, "x4": [np.iinfo(kind).min] * 2},
                         "step back": {"x1": [-1, -1], "x2": [np.iinfo(kind).min] * 2, "x4": [-1, -(2**31)]},
                         "far": {"x1": [np.iinfo(kind).max, 0], "x2": [np.iinfo(kind).min, 3], "x4": [np.iinfo(kind).min, 1]}})
    yield Case("Slice", floats(5, 6), numbers(1), numbers(4), label="two inputs")
    yield Case("Split", floats(6, 2), numbers(2, 4), outputs=2)
    yield Case("Split", floats(6, 2), label="three", num_outputs=3, outputs=3)
    for mode in ("constant", "reflect", "edge", "wrap"):
        yield Case("Pad", floats(4, 5), numbers(1, 1, 2, 1), number(0, np.float32), label=mode, mode=mode, opset=19,
                   more={"cut": {"x1": [-3, -3, -3, -3]}, "cut all": {"x1": [-4, -5, 0, 0]}, "mixed": {"x1": [-4, 9, 9, -4]}, "over": {"x1": [-(2**63), 2**63 - 1, 2**63 - 1, -(2**63)]},
                         "cut and wide": {"x1": [9, 9, -8, -8]}, "wide": {"x1": [3, 4, 40, 50]}})
        yield Case("Pad", floats(4, 5), numbers(1, 2), number(0, np.float32), numbers(1), label=f"{mode} axes", mode=mode, opset=19)
    yield Case("CenterCropPad", floats(4, 5), numbers(3, 7))
    yield Case("Trilu", floats(3, 4), number(1))
    yield Case("Trilu", whole(9, 3, 4), number(1), label="int64")
    yield Case("Upsample", floats(1, 1, 2, 2), numbers(1, 1, 2, 2, kind=np.float32), opset=9, mode="linear")
    yield Case("Upsample", floats(1, 1, 2, 2), numbers(1, 1, 2, 2, kind=np.float32), opset=9, label="nearest", mode="nearest")
    for mode in ("nearest", "linear", "cubic"):
        for label, more in (("", {}), ("antialias", {"antialias": 1}), ("tf crop", {"coordinate_transformation_mode": "half_pixel_symmetric"})):
            if mode == "nearest" and label == "antialias":
                continue
            yield Case("Resize", floats(1, 1, 4, 4), None, numbers(1, 1, 2, 2, kind=np.float32), label=f"{mode} scales {label}", mode=mode, opset=19, **more)
            yield Case("Resize", floats(1, 1, 4, 4), None, None, numbers(1, 1, 3, 5), fixed=["x3"], label=f"{mode} sizes {label}", mode=mode, opset=19, **more)
        yield Case("Resize", floats(1, 1, 4, 4), numbers(0, 0, 0, 0, 1, 1, .5, .5, kind=np.float32), None, numbers(1, 1, 3, 5), fixed=["x1", "x3"], label=f"{mode} roi", mode=mode, coordinate_transformation_mode="tf_crop_and_resize", opset=19)
    yield Case("Resize", floats(1, 1, 3, 4, 4), None, numbers(1, 1, 2, 2, 2, kind=np.float32), label="linear of five", mode="linear")
    yield Case("Resize", floats(1, 4, 4, 1), None, numbers(1, 2, 2, 1, kind=np.float32), label="linear nhwc", mode="linear")
    yield Case("Resize", whole(9, 1, 1, 4, 4, kind=np.uint8), None, numbers(1, 1, 2, 2, kind=np.float32), label="uint8", mode="linear")
    yield Case("AffineGrid", floats(1, 2, 3), numbers(1, 1, 3, 4), opset=20)
    yield Case("AffineGrid", floats(1, 3, 4), numbers(1, 1, 3, 4, 2), label="of five", opset=20)
    yield Case("Col2Im", floats(1, 9, 9), numbers(5, 5), numbers(3, 3), more={"none": {"x1": [0, 0], "x2": [0, 0]}, "large": {"x1": [2**40, 2**40], "x2": [3, 3]}})
    yield Case("Col2Im", floats(1, 9, 4), numbers(5, 5), numbers(3, 3), label="strides", strides=[2, 2])


def lookups():
    data, places = floats(4, 5), whole(4, 3, 2)
    for kind in (np.int64, np.int32):
        name = np.dtype(kind).name
        yield Case("Gather", data, places.astype(kind), label=name)
        yield Case("GatherElements", data, whole(4, 4, 5, kind=kind), label=name)
        yield Case("ScatterElements", data, whole(4, 4, 5, kind=kind), floats(4, 5), label=name)
    yield Case("Gather", texts("a", "b", "c"), places % 3, label="text")
    yield Case("GatherElements", data, whole(4, 4, 5), label="axis 1", axis=1)
    for reduction in ("none", "add", "mul", "max", "min"):
        yield Case("ScatterElements", data, whole(4, 4, 5), floats(4, 5), label=reduction, reduction=reduction)
        yield Case("ScatterND", data, whole(4, 3, 2), floats(3), label=reduction, reduction=reduction)
    yield Case("Scatter", data, whole(4, 4, 5), floats(4, 5), opset=9)
    yield Case("GatherND", data, whole(4, 3, 2))
    yield Case("GatherND", floats(2, 4, 5), whole(2, 2, 3, 2), label="batch", batch_dims=1)
    yield Case("ScatterND", data, whole(4, 3, 1), floats(3, 5), label="rows")
    yield Case("OneHot", whole(4, 3), number(5), floats(2))
    yield Case("OneHot", whole(4, 3), numbers(5), floats(2), label="depth of one axis")
    yield Case("OneHot", whole(4, 3, kind=np.int32), number(5, np.int32), floats(2), label="int32")
    yield Case("OneHot", floats(3), number(5, np.float32), floats(2), label="float")
    yield Case("TopK", floats(3, 9), numbers(3), outputs=2, kinds=[TensorProto.FLOAT, TensorProto.INT64])
    yield Case("TopK", floats(3, 9), numbers(3), label="smallest, axis 0", outputs=2, kinds=[TensorProto.FLOAT, TensorProto.INT64], axis=0, largest=0, sorted=0)
    yield Case("TopK", whole(99, 3, 9), numbers(3), label="int64", outputs=2, kinds=TensorProto.INT64)
    for kind in (np.int32, np.int64):
        yield Case("CumSum", floats(3, 4), number(1, kind), label=np.dtype(kind).name)
    yield Case("CumSum", whole(3, 3, 4), number(1), label="exclusive", exclusive=1, reverse=1)
    yield Case("ReverseSequence", floats(4, 3, 2), numbers(1, 2, 3))
    yield Case("ReverseSequence", floats(3, 4, 2), numbers(1, 2, 3), label="batch first", batch_axis=0, time_axis=1)
    yield Case("Compress", floats(4, 3), truths(4), axis=0)
    yield Case("Compress", floats(4, 3), truths(12), label="flat")
    yield Case("Where", truths(3, 4), floats(3, 4), floats(3, 4))
    for axes, op in (([1], "ReduceMax"), ([0], "ReduceSum")):
        yield Case(op, floats(3, 4), numbers(*axes), label="axes")
    yield Case("ReduceMean", whole(9, 3, 4), label="int64 by attribute", axes=[1], opset=13)
    yield Case("ReduceMean", whole(9, 3, 4, kind=np.int32), label="int32 by attribute", axes=[0, 1], opset=13)
    yield Case("NonMaxSuppression", np.abs(floats(1, 6, 4)), np.abs(floats(1, 2, 6)), numbers(3), numbers(.5, kind=np.float32), numbers(.1, kind=np.float32))
    yield Case("RoiAlign", floats(2, 3, 8, 8), REGIONS, whole(2, 4), output_height=2, output_width=2)
    yield Case("RoiAlign", floats(2, 3, 8, 8), REGIONS, whole(2, 4), label="max", mode="max", output_height=2, output_width=2, sampling_ratio=2)
    yield Case("MaxRoiPool", floats(1, 3, 8, 8), np.pad(REGIONS, ((0, 0), (1, 0))), pooled_shape=[2, 2])
    yield Case("MaxUnpool", floats(1, 1, 2, 2), numbers(5, 7, 13, 15).reshape(1, 1, 2, 2), kernel_shape=[2, 2], strides=[2, 2])
    yield Case("MaxUnpool", floats(1, 1, 2, 2), numbers(5, 7, 13, 15).reshape(1, 1, 2, 2), numbers(1, 1, 4, 4), label="shape", kernel_shape=[2, 2], strides=[2, 2])
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            yield Case("GridSample", floats(1, 2, 4, 4), floats(1, 3, 3, 2), label=f"{mode} {padding}", mode=mode, padding_mode=padding, opset=20)
    yield Case("GridSample", floats(1, 2, 3, 4, 4), floats(1, 2, 3, 3, 3), label="of five", opset=20)


def windows():
    yield Case("Conv", floats(1, 2, 5, 5), floats(3, 2, 3, 3), floats(3))
    yield Case("Conv", floats(1, 2, 9), floats(3, 2, 3), label="of lines")
    yield Case("Conv", floats(1, 4, 5, 5), floats(4, 2, 3, 3), label="groups", group=2)
    yield Case("ConvTranspose", floats(1, 2, 5, 5), floats(2, 3, 3, 3), floats(3))
    yield Case("ConvTranspose", floats(1, 4, 5, 5), floats(4, 3, 3, 3), label="groups", group=2, strides=[2, 2])
    yield Case("ConvInteger", whole(9, 1, 2, 5, 5, kind=np.uint8), whole(9, 3, 2, 3, 3, kind=np.uint8), number(1, np.uint8), number(1, np.uint8))
    yield Case("DeformConv", floats(1, 2, 5, 5), floats(3, 2, 3, 3), floats(1, 18, 3, 3), opset=19)
    yield Case("MaxPool", floats(1, 2, 5, 5), kernel_shape=[2, 2], outputs=2, kinds=[TensorProto.FLOAT, TensorProto.INT64])
    yield Case("AveragePool", floats(1, 2, 5, 5), kernel_shape=[2, 2])
    yield Case("LpPool", floats(1, 2, 5, 5), kernel_shape=[2, 2])
    yield Case("InstanceNormalization", floats(2, 3, 4), floats(3), floats(3))
    yield Case("BatchNormalization", floats(2, 3, 4), floats(3), floats(3), floats(3), np.abs(floats(3)))
    yield Case("LayerNormalization", floats(2, 3, 4), floats(4), floats(4))
    yield Case("GroupNormalization", floats(2, 4, 4), floats(4), floats(4), num_groups=2, opset=21)
    yield Case("RMSNormalization", floats(2, 3, 4), floats(4), opset=23)
    yield Case("DFT", floats(1, 8, 1), number(6), axis=1, opset=17)
    yield Case("DFT", floats(1, 8, 1), number(6), number(1), label="axis", opset=20)
    yield Case("DFT", floats(1, 5, 2), None, number(1), label="inverse", inverse=1, opset=20)
    yield Case("STFT", floats(1, 64, 1), number(8), floats(16), number(16))
    yield Case("STFT", floats(1, 64, 1), number(8), None, number(16), label="no window")
    yield Case("MelWeightMatrix", number(8), number(16), number(8000), number(0, np.float32), number(4000, np.float32), kinds=TensorProto.FLOAT)


def products():
    yield Case("MatMul", floats(3, 4), floats(4, 5))
    yield Case("MatMul", whole(9, 3, 4), whole(9, 4, 5), label="int64")
    yield Case("MatMul", floats(2, 3, 4), floats(2, 4, 5), label="batches")
    yield Case("Gemm", floats(3, 4), floats(4, 5), floats(5))
    yield Case("Einsum", floats(3, 4), floats(4, 5), equation="ij,jk->ik")
    yield Case("Einsum", floats(2, 3, 4), floats(2, 4, 5), label="batches", equation="bij,bjk->bik")
    yield Case("MatMulInteger", whole(9, 3, 4, kind=np.uint8), whole(9, 4, 5, kind=np.int8), number(1, np.uint8), number(1, np.int8))
    yield Case("MatMulInteger", whole(9, 3, 4, kind=np.uint8), whole(9, 4, 5, kind=np.int8), numbers(1, kind=np.uint8), whole(9, 5, kind=np.int8), label="by column")
    scale, zero = number(.1, np.float32), number(3, np.uint8)
    yield Case("QLinearMatMul", whole(9, 3, 4, kind=np.uint8), scale, zero, whole(9, 4, 5, kind=np.uint8), scale, zero, scale, zero, kinds=TensorProto.UINT8)
    yield Case("QLinearConv", whole(9, 1, 2, 5, 5, kind=np.uint8), scale, zero, whole(9, 3, 2, 3, 3, kind=np.uint8), scale, zero, scale, zero, whole(9, 3, kind=np.int32), kinds=TensorProto.UINT8)
    yield Case("QuantizeLinear", floats(3, 4), scale, zero)
    yield Case("QuantizeLinear", floats(3, 4), np.abs(floats(4)), whole(9, 4, kind=np.int8), label="by axis", axis=1)
    yield Case("QuantizeLinear", floats(4, 8), np.abs(floats(4, 2)), whole(9, 4, 2, kind=np.uint8), label="by block", axis=1, block_size=4, opset=21)
    yield Case("DequantizeLinear", whole(9, 3, 4, kind=np.uint8), scale, zero)
    yield Case("DequantizeLinear", whole(9, 3, 4, kind=np.int32), np.abs(floats(4)), whole(9, 4, kind=np.int32), label="by axis", axis=1)
    yield Case("DequantizeLinear", whole(9, 4, 8, kind=np.int8), np.abs(floats(4, 2)), whole(9, 4, 2, kind=np.int8), label="by block", axis=1, block_size=4, opset=21)
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        for direction, count in (("forward", 1), ("bidirectional", 2)):
            states = [floats(count, 2, 5)] * (2 if op == "LSTM" else 1)
            yield Case(op, floats(4, 2, 3), floats(count, gates * 5, 3), floats(count, gates * 5, 5), floats(count, gates * 10), numbers(2, 4, kind=np.int32), *states,
                       label=direction, hidden_size=5, direction=direction, outputs=2, kinds=TensorProto.FLOAT)
    yield Case("SoftmaxCrossEntropyLoss", floats(3, 5), whole(5, 3), floats(5))
    yield Case("NegativeLogLikelihoodLoss", floats(3, 5), whole(5, 3), floats(5))
    yield Case("Dropout", floats(3, 4), number(.5, np.float32), number(True, bool))
    yield Case("Clip", floats(3, 4), number(-1, np.float32), number(1, np.float32))
    yield Case("PRelu", floats(3, 4), floats(4))
    yield Case("CastLike", floats(3, 4), whole(4, 1))
    yield Case("BlackmanWindow", number(8))


def attention():
    q, kv = floats(1, 2, 3, 4), floats(1, 2, 5, 4)
    yield Case("Attention", q, kv, kv, floats(3, 5), opset=23)
    yield Case("Attention", q, kv, kv, None, floats(1, 2, 2, 4), floats(1, 2, 2, 4), label="past", opset=23, outputs=3, kinds=TensorProto.FLOAT, is_causal=1)
    yield Case("Attention", floats(1, 3, 8), floats(1, 5, 8), floats(1, 5, 8), label="of three", opset=23, q_num_heads=2, kv_num_heads=2)
    yield Case("Attention", q, kv, kv, None, None, None, numbers(5), label="lengths", opset=24)
    yield Case("RotaryEmbedding", floats(1, 2, 3, 4), floats(8, 2), floats(8, 2), whole(8, 1, 3), opset=23)
    yield Case("TensorScatter", floats(1, 8, 4), floats(1, 3, 4), numbers(2), axis=1, opset=24)
    yield Case("TensorScatter", floats(1, 8, 4), floats(1, 3, 4), numbers(2), label="circular", axis=1, mode="circular", opset=24)
    F = TensorProto.FLOAT
    yield Case("Attention", floats(1, 3, 8), floats(8, 24), floats(24), numbers(2, kind=np.int32), domain=MS, num_heads=2, kinds=F)
    yield Case("Attention", floats(1, 3, 8), floats(8, 24), floats(24), whole(2, 1, 3, kind=np.int32), label="mask", domain=MS, num_heads=2, kinds=F)
    yield Case("Attention", floats(1, 3, 8), floats(8, 24), floats(24), whole(2, 1, 5, kind=np.int32), floats(2, 1, 2, 2, 4), label="past", domain=MS, num_heads=2, outputs=2, kinds=F)
    yield Case("MultiHeadAttention", floats(1, 3, 8), floats(1, 5, 8), floats(1, 5, 8), None, whole(2, 1, 5, kind=np.int32), domain=MS, num_heads=2, kinds=F)
    yield Case("MultiHeadAttention", floats(1, 3, 8), floats(1, 3, 8), floats(1, 3, 8), None, None, None, floats(1, 2, 2, 4), floats(1, 2, 2, 4), label="past", domain=MS, num_heads=2, outputs=3, kinds=F)
    grouped = floats(1, 3, 32), floats(1, 3, 16), floats(1, 3, 16), floats(1, 1, 4, 16), floats(1, 1, 4, 16), numbers(6, kind=np.int32)
    yield Case("GroupQueryAttention", *grouped, number(7, np.int32), domain=MS, num_heads=2, kv_num_heads=1, outputs=3, kinds=F)
    yield Case("GroupQueryAttention", *grouped, number(7, np.int32), floats(24, 8), floats(24, 8), label="rotary", domain=MS, num_heads=2, kv_num_heads=1, do_rotary=1, outputs=3, kinds=F)
    one = floats(1, 1, 16), floats(1, 1, 8), floats(1, 1, 8), floats(1, 1, 4, 8), floats(1, 1, 4, 8), numbers(4, kind=np.int32)
    yield Case("GroupQueryAttention", *one, numbers(5, kind=np.int32), label="one step", domain=MS, num_heads=2, kv_num_heads=1, local_window_size=2, outputs=3, kinds=F)
    yield Case("GroupQueryAttention", floats(1, 3, 16), floats(1, 3, 8), floats(1, 3, 8), None, None, numbers(2, kind=np.int32), number(3, np.int32), label="no past", domain=MS, num_heads=2, kv_num_heads=1, outputs=3, kinds=F)
    yield Case("DecoderMaskedMultiHeadAttention", floats(1, 1, 8), floats(1, 1, 8), floats(1, 1, 8), None, None, floats(1, 2, 8, 4), floats(1, 2, 8, 4), number(2, np.int32), numbers(0, kind=np.int32).reshape(()),
               domain=MS, num_heads=2, past_present_share_buffer=1, outputs=3, kinds=F)
    yield Case("QAttention", whole(9, 1, 3, 8, kind=np.uint8), whole(9, 8, 24, kind=np.uint8), floats(24), number(.1, np.float32), number(.1, np.float32), numbers(2, kind=np.int32), number(1, np.uint8), number(1, np.uint8), domain=MS, num_heads=2, kinds=F)
    yield Case("RotaryEmbedding", floats(1, 3, 8), whole(8, 1, 3), floats(8, 2), floats(8, 2), domain=MS, num_heads=2, kinds=F)
    yield Case("RotaryEmbedding", floats(1, 3, 8), numbers(2), floats(8, 2), floats(8, 2), label="offset", domain=MS, num_heads=2, kinds=F)
    yield Case("EmbedLayerNormalization", whole(9, 1, 3, kind=np.int32), whole(2, 1, 3, kind=np.int32), floats(9, 4), floats(8, 4), floats(2, 4), floats(4), floats(4), whole(2, 1, 3, kind=np.int32), whole(3, 1, 3, kind=np.int32), fixed=["x2", "x3", "x4", "x5", "x6"], domain=MS, outputs=2, kinds=[F, TensorProto.INT32])
    yield Case("SkipLayerNormalization", floats(1, 3, 4), floats(1, 3, 4), floats(4), floats(4), floats(4), domain=MS)
    yield Case("SkipSimplifiedLayerNormalization", floats(1, 3, 4), floats(1, 3, 4), floats(4), floats(4), domain=MS)
    yield Case("LinearAttention", floats(1, 3, 8), floats(1, 3, 8), floats(1, 3, 8), floats(1, 2, 4, 4), domain=MS, q_num_heads=2, kv_num_heads=2, update_rule="linear", outputs=2, kinds=F)
    yield Case("CausalConvWithState", floats(1, 4, 6), floats(4, 1, 3), floats(4), floats(1, 4, 2), domain=MS, outputs=2, kinds=F)
    yield Case("BiasGelu", floats(3, 4), floats(4), domain=MS)
    yield Case("FastGelu", floats(3, 4), floats(4), domain=MS)
    yield Case("QuickGelu", floats(3, 4), domain=MS)
    yield Case("Gelu", floats(3, 4), domain=MS)
    yield Case("TransposeMatMul", floats(3, 4), floats(4, 5), domain=MS)


def contributed():
    F, I, U = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8
    yield Case("FusedMatMul", floats(3, 4), floats(4, 5), domain=MS)
    yield Case("FusedGemm", floats(3, 4), floats(4, 5), floats(5), domain=MS, activation="Relu")
    yield Case("FusedConv", floats(1, 2, 5, 5), floats(3, 2, 3, 3), floats(3), domain=MS, activation="Relu")
    yield Case("MatMulNBits", floats(2, 32), whole(255, 4, 1, 16, kind=np.uint8), np.abs(floats(4)), domain=MS, K=32, N=4, bits=4, block_size=32)
    yield Case("MatMulNBits", floats(2, 32), whole(255, 4, 1, 16, kind=np.uint8), np.abs(floats(4)), whole(255, 4, kind=np.uint8), whole(1, 32, kind=np.int32), label="by group", domain=MS, K=32, N=4, bits=4, block_size=32)
    yield Case("MatMulBnb4", floats(2, 32), whole(255, 64, kind=np.uint8), np.abs(floats(8)), domain=MS, K=32, N=4, quant_type=1, block_size=16)
    yield Case("GatherBlockQuantized", whole(255, 4, 16, kind=np.uint8), whole(4, 3), np.abs(floats(4, 1)), domain=MS, block_size=32, bits=4, quantize_axis=1, gather_axis=0, kinds=F)
    yield Case("DynamicQuantizeMatMul", floats(3, 4), whole(9, 4, 5, kind=np.int8), number(.1, np.float32), number(1, np.int8), domain=MS)
    yield Case("MatMulIntegerToFloat", whole(9, 3, 4, kind=np.uint8), whole(9, 4, 5, kind=np.int8), number(.1, np.float32), number(.1, np.float32), number(1, np.uint8), number(1, np.int8), domain=MS, kinds=F)
    yield Case("MatMulInteger16", whole(9, 3, 4, kind=np.int16), whole(9, 4, 5, kind=np.int16), domain=MS, kinds=TensorProto.INT32)
    lstm = floats(4, 2, 3), whole(9, 1, 3, 20, kind=np.uint8), whole(9, 1, 5, 20, kind=np.uint8), floats(1, 40), numbers(2, 4, kind=np.int32), floats(1, 2, 5), floats(1, 2, 5), None, *[np.abs(floats(1)), numbers(1, kind=np.uint8)] * 2
    yield Case("DynamicQuantizeLSTM", *lstm, domain=MS, hidden_size=5, outputs=2, kinds=F)
    scale, zero = number(.1, np.float32), number(3, np.uint8)
    eight = whole(9, 3, 4, kind=np.uint8)
    for op in ("QLinearAdd", "QLinearMul"):
        yield Case(op, eight, scale, zero, eight, scale, zero, scale, zero, domain=MS)
    for op in ("QLinearSigmoid", "QLinearLeakyRelu"):
        yield Case(op, eight, scale, zero, scale, zero, domain=MS)
    yield Case("QLinearSoftmax", eight, scale, zero, scale, zero, domain=MS, extra={"axis": -1, "opset": 18})
    yield Case("QLinearConcat", scale, zero, eight, scale, zero, eight, scale, zero, domain=MS, axis=0, kinds=U)
    yield Case("QLinearWhere", truths(3, 4), eight, scale, zero, eight, scale, zero, scale, zero, domain=MS, kinds=U)
    image = whole(9, 1, 2, 4, 4, kind=np.uint8)
    yield Case("QLinearAveragePool", image, scale, zero, scale, zero, domain=MS, kernel_shape=[2, 2])
    yield Case("QLinearGlobalAveragePool", image, scale, zero, scale, zero, domain=MS)
    yield Case("QGemm", eight, scale, zero, whole(9, 4, 5, kind=np.uint8), scale, zero, whole(9, 5, kind=np.int32), scale, zero, domain=MS)
    yield Case("NhwcMaxPool", whole(9, 1, 4, 4, 2, kind=np.uint8), domain=MS, kernel_shape=[2, 2])
    yield Case("QuantizeLinear", floats(3, 4), scale, zero, domain=MS, kinds=U)
    yield Case("DequantizeLinear", eight, scale, zero, domain=MS, kinds=F)
    yield Case("GatherND", floats(3, 4), whole(3, 2, 2), domain=MS)
    yield Case("ExpandDims", floats(3, 4), number(1, np.int32), domain=MS)
    yield Case("Unique", floats(9), domain=MS, outputs=3, kinds=[F, I, I])
    yield Case("Pad", floats(3, 4), numbers(1, 1, 1, 1), numbers(0, kind=np.float32), domain=MS,
               more={"cut": {"x1": [-3, -3, -3, -3]}, "mixed": {"x1": [-9, 9, 9, -4]}})
    for kind in (np.int32, np.int64, np.float32):
        yield Case("Range", number(0, kind), number(9, kind), number(2, kind), label=np.dtype(kind).name, domain=MS)
    yield Case("Range", number(0), number(9), label="no step", domain=MS)
    yield Case("Trilu", floats(3, 4), number(1), domain=MS)
    yield Case("CropAndResize", floats(1, 2, 5, 5), np.abs(floats(2, 4)), whole(1, 2, kind=np.int32), numbers(3, 3, kind=np.int32), domain=MS)
    yield Case("GridSample", floats(1, 2, 4, 4), floats(1, 3, 3, 2), domain=MS)
    yield Case("MaxpoolWithMask", floats(1, 1, 4, 4), whole(2, 1, 1, 4, 4, kind=np.int32), domain=MS, kernel_shape=[2, 2])
    yield Case("ConvTransposeWithDynamicPads", floats(1, 2, 5, 5), floats(2, 3, 3, 3), numbers(0, 0, 0, 0), floats(3), domain=MS)
    yield Case("MurmurHash3", whole(9, 3, kind=np.int32), domain=MS, kinds=TensorProto.UINT32)
    yield Case("MurmurHash3", texts("a", "b"), label="text", domain=MS, kinds=TensorProto.UINT32)
    yield Case("NGramRepeatBlock", whole(3, 2, 6), floats(2, 9), domain=MS, ngram_size=2, kinds=F)
    yield Case("WordConvEmbedding", whole(3, 4, 5, kind=np.int32), floats(6, 1, 2, 3), floats(6), floats(9, 3), domain=MS, embedding_size=6, conv_window_size=2, char_embedding_size=3, kinds=F)
    yield Case("CDist", floats(3, 4), floats(5, 4), domain=MS, metric="euclidean")
    yield Case("Inverse", floats(3, 3), domain=MS)
    yield Case("DynamicTimeWarping", floats(4, 5), domain=MS, kinds=TensorProto.INT32)
    yield Case("UnfoldTensor", floats(2, 6), domain=MS, size=2, step=2)
    yield Case("Tokenizer", texts("a b", "c"), domain=MS, mark=1, pad_value="#", mincharnum=1, separators=[" "])
    yield Case("QEmbedLayerNormalization", whole(9, 1, 3, kind=np.int32), whole(2, 1, 3, kind=np.int32), whole(9, 9, 4, kind=np.uint8), whole(9, 8, 4, kind=np.uint8), whole(9, 2, 4, kind=np.uint8), whole(9, 4, kind=np.uint8), whole(9, 4, kind=np.uint8), whole(2, 1, 3, kind=np.int32), *[scale] * 5, *[zero] * 5, fixed=["x2", "x3", "x4", "x5", "x6"], domain=MS, outputs=2, kinds=[F, TensorProto.INT32])
    yield Case("MoE", floats(3, 4), floats(3, 2), floats(2, 4, 8), floats(2, 8), floats(2, 8, 4), floats(2, 4), domain=MS, k=1, activation_type="relu")
    yield Case("AttnLSTM", floats(4, 1, 3), floats(1, 20, 3), floats(1, 20, 5), domain=MS, hidden_size=5, kinds=F)


def learned():
    ml = {"domain": "ai.onnx.ml"}
    yield Case("ArrayFeatureExtractor", floats(3, 4), whole(4, 2), **ml)
    yield Case("ArrayFeatureExtractor", texts("a", "b"), whole(2, 2), label="text", **ml)
    yield Case("LabelEncoder", whole(3, 4), keys_int64s=[0, 1, 2], values_floats=[1., 2., 3.], kinds=TensorProto.FLOAT, **ml)
    yield Case("LabelEncoder", floats(4), label="of floats", keys_floats=[0., 1., 2.], values_int64s=[1, 2, 3], kinds=TensorProto.INT64, **ml)
    yield Case("LabelEncoder", texts("a", "c"), label="text", keys_strings=["a", "b"], values_int64s=[1, 2], kinds=TensorProto.INT64, **ml)
    yield Case("CategoryMapper", whole(3, 4), cats_int64s=[0, 1, 2], cats_strings=["a", "b", "c"], kinds=TensorProto.STRING, **ml)
    yield Case("CategoryMapper", texts("a", "b"), label="text", cats_int64s=[0, 1, 2], cats_strings=["a", "b", "c"], kinds=TensorProto.INT64, **ml)
    yield Case("OneHotEncoder", whole(3, 4), cats_int64s=[0, 1, 2], zeros=1, kinds=TensorProto.FLOAT, **ml)
    yield Case("OneHotEncoder", floats(4), label="of floats", cats_int64s=[0, 1, 2], zeros=1, kinds=TensorProto.FLOAT, **ml)
    yield Case("OneHotEncoder", texts("a"), label="text", cats_strings=["a", "b"], zeros=1, kinds=TensorProto.FLOAT, **ml)
    yield Case("Imputer", floats(3, 2), imputed_value_floats=[1., 2.], replaced_value_float=float("nan"), **ml)
    yield Case("Imputer", whole(3, 3, 2), label="int64", imputed_value_int64s=[1, 2], replaced_value_int64=0, **ml)
    yield Case("Scaler", floats(3, 2), offset=[1., 2.], scale=[1., 2.], kinds=TensorProto.FLOAT, **ml)
    yield Case("Scaler", whole(9, 3, 2), label="int64", offset=[1.], scale=[1.], kinds=TensorProto.FLOAT, **ml)
    for norm in ("MAX", "L1", "L2"):
        yield Case("Normalizer", floats(3, 2), label=norm, norm=norm, kinds=TensorProto.FLOAT, **ml)
    yield Case("Normalizer", whole(9, 3, 2), label="int64", norm="L1", kinds=TensorProto.FLOAT, **ml)
    yield Case("Binarizer", floats(3, 2), threshold=.5, **ml)
    yield Case("FeatureVectorizer", floats(3, 2), floats(3, 1), inputdimensions=[2, 1], kinds=TensorProto.FLOAT, **ml)
    yield Case("LinearRegressor", floats(3, 2), coefficients=[1., 2.], intercepts=[1.], kinds=TensorProto.FLOAT, **ml)
    both = [TensorProto.INT64, TensorProto.FLOAT]
    yield Case("LinearClassifier", floats(3, 2), coefficients=[1., 2., 3., 4.], intercepts=[1., 2.], classlabels_ints=[0, 1], outputs=2, kinds=both, post_transform="SOFTMAX", **ml)
    yield Case("SVMRegressor", floats(3, 2), coefficients=[1., 2.], support_vectors=[1., 2., 3., 4.], n_supports=2, rho=[.5], kernel_type="RBF", kernel_params=[.5, 0., 3.], kinds=TensorProto.FLOAT, **ml)
    yield Case("SVMClassifier", floats(3, 2), coefficients=[1., 2.], support_vectors=[1., 2., 3., 4.], vectors_per_class=[1, 1], rho=[.5], kernel_type="RBF", kernel_params=[.5, 0., 3.], classlabels_ints=[0, 1], outputs=2, kinds=both, **ml)
    tree = dict(nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[1, 0, 0], nodes_values=[.5, 0., 0.], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
                nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], nodes_missing_value_tracks_true=[1, 0, 0])
    yield Case("TreeEnsembleRegressor", floats(3, 2), n_targets=1, target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[1., 2.], kinds=TensorProto.FLOAT, **tree, **ml)
    yield Case("TreeEnsembleClassifier", floats(3, 2), class_treeids=[0, 0], class_nodeids=[1, 2], class_ids=[0, 1], class_weights=[1., 1.], classlabels_int64s=[0, 1], outputs=2, kinds=both, **tree, **ml)
    yield Case("TreeEnsembleClassifier", whole(9, 3, 2), label="int64", class_treeids=[0, 0], class_nodeids=[1, 2], class_ids=[0, 1], class_weights=[1., 1.], classlabels_int64s=[0, 1], outputs=2, kinds=both, **tree, **ml)
    yield Case("TfIdfVectorizer", whole(9, 2, 6), max_gram_length=2, max_skip_count=1, min_gram_length=1, mode="TF", ngram_counts=[0, 2], ngram_indexes=[0, 1, 2], pool_int64s=[2, 3, 5, 4], kinds=TensorProto.FLOAT)
    yield Case("TfIdfVectorizer", texts("a", "b"), label="text", max_gram_length=1, max_skip_count=0, min_gram_length=1, mode="TFIDF", ngram_counts=[0], ngram_indexes=[0, 1], pool_strings=["a", "b"], kinds=TensorProto.FLOAT)
    yield Case("StringNormalizer", texts("Ab", "the"), case_change_action="LOWER", stopwords=["the"], locale="C")
    yield Case("StringSplit", texts("a b", "c"), delimiter=" ", outputs=2, kinds=[TensorProto.STRING, TensorProto.INT64], opset=20)
    yield Case("StringConcat", texts("a", "b"), texts("c", "d"), opset=20)
    yield Case("RegexFullMatch", texts("a", "b"), pattern="(a|b)*c", opset=20)


def flow():
    node, info, F, I, B = helper.make_node, helper.make_tensor_value_info, TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    body = helper.make_graph(
        [node("Identity", ["on"], ["on2"]), node("Add", ["v", "v"], ["v2"]), node("Identity", ["v"], ["s"])], "body",
        [info("i", I, []), info("on", B, []), info("v", F, [None])], [info("on2", B, []), info("v2", F, [None]), info("s", F, [None])])
    yield Case("Loop", number(3), number(True, bool), floats(2), outputs=2, kinds=F, body=body)
    scan = helper.make_graph([node("Add", ["s", "e"], ["s2"]), node("Identity", ["s2"], ["o"])], "body",
                             [info("s", F, [None]), info("e", F, [None])], [info("s2", F, [None]), info("o", F, [None])])
    yield Case("Scan", floats(3), floats(4, 3), outputs=2, kinds=F, body=scan, num_scan_inputs=1)
    yield Case("Scan", floats(3), floats(4, 3), label="backwards", outputs=2, kinds=F, body=scan, num_scan_inputs=1, scan_input_directions=[1], scan_output_directions=[1])
    branch = lambda op: helper.make_graph([node(op, ["x1"], ["r"])], op, [], [info("r", F, [None])])
    yield Case("If", number(True, bool), floats(3), nodes=[node("If", ["x0"], ["y0"], then_branch=branch("Neg"), else_branch=branch("Abs"))], kinds=F)
    yield Case("SequenceAt", floats(3), floats(2), number(1), nodes=[node("SequenceConstruct", ["x0", "x1"], ["q"]), node("SequenceAt", ["q", "x2"], ["y0"])])
    yield Case("SequenceInsert", floats(3), floats(2), number(1), nodes=[node("SequenceConstruct", ["x0"], ["q"]), node("SequenceInsert", ["q", "x1", "x2"], ["r"]), node("ConcatFromSequence", ["r"], ["y0"], axis=0)])
    yield Case("SequenceErase", floats(3), floats(2), number(1), nodes=[node("SequenceConstruct", ["x0", "x1"], ["q"]), node("SequenceErase", ["q", "x2"], ["r"]), node("SequenceLength", ["r"], ["y0"])], kinds=I)
    yield Case("SplitToSequence", floats(6, 2), number(2), number(1), nodes=[node("SplitToSequence", ["x0", "x1"], ["q"]), node("SequenceAt", ["q", "x2"], ["y0"])])
    yield Case("SplitToSequence", floats(6, 2), numbers(2, 4), number(1), label="sizes", nodes=[node("SplitToSequence", ["x0", "x1"], ["q"]), node("SequenceAt", ["q", "x2"], ["y0"])])
    yield Case("SplitToSequence", floats(6, 2), number(1), label="no sizes", nodes=[node("SplitToSequence", ["x0"], ["q"], keepdims=0), node("SequenceAt", ["q", "x1"], ["y0"])])
    yield Case("ConcatFromSequence", floats(2, 3), floats(2, 3), label="stacked", nodes=[node("SequenceConstruct", ["x0", "x1"], ["q"]), node("ConcatFromSequence", ["q"], ["y0"], axis=0, new_axis=1)])


def cases():
    for group in (arithmetic, functions_of_one, shapes, lookups, windows, products, attention, contributed, learned, flow):
        yield from group()


EXTREMES = (0, -1, 1, 2**31 - 1, 2**31, 2**63 - 1, -(2**31), -(2**63))


class ChangedFile:
    """A case whose file contains an extreme integer, and only its valid request."""

    more = {}
    is_request_fixed = True

    def __init__(self, case, name, has_fixed_dims):
        self.model = onnx.ModelProto()
        self.model.CopyFrom(case.model)
        self.inputs = dict(case.inputs)
        self.name = f"{case.name}, {name}{', fixed dimensions' if has_fixed_dims else ''}"
        for port in self.model.graph.input if has_fixed_dims else ():
            for dim, size in zip(port.type.tensor_type.shape.dim, self.inputs[port.name].shape):
                dim.dim_value = size

    def with_attribute(self, at, positions, value):
        attribute = self.model.graph.node[0].attribute[at]
        if attribute.type == onnx.AttributeProto.INT:
            attribute.i = value
        for position in positions:
            attribute.ints[position] = value
        return self

    def with_constant(self, name, positions, value):
        ports = self.model.graph.input
        del ports[next(at for at, port in enumerate(ports) if port.name == name)]
        constant = self.inputs.pop(name).copy()
        for position in positions:
            constant.reshape(-1)[position] = value
        self.model.graph.initializer.append(numpy_helper.from_array(constant, name))
        return self


def places(count):
    """Yields all elements of a list, then only the first, then only the last."""
    yield "all", range(count)
    if count > 1:
        yield "the first", [0]
        yield "the last", [count - 1]


def files():
    """Yields the cases with extreme integers in the file: in attributes and in constant inputs, with and without fixed
    dimensions."""
    for case in cases():
        for at, attribute in enumerate(case.model.graph.node[0].attribute):
            if attribute.type not in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS):
                continue
            for (place, positions), value, is_fixed in itertools.product(places(len(attribute.ints)), EXTREMES, (False, True)):
                yield ChangedFile(case, f"{place} of {attribute.name} is {value}", is_fixed).with_attribute(at, positions, value)
        for name, array in case.inputs.items():
            if array.dtype not in (np.int32, np.int64) or array.size == 0 or len(case.inputs) == 1:
                continue
            limits = np.iinfo(array.dtype)
            for (place, positions), value, is_fixed in itertools.product(places(array.size), EXTREMES, (False, True)):
                if limits.min <= value <= limits.max:
                    yield ChangedFile(case, f"{place} of the constant {name} is {value}", is_fixed).with_constant(name, positions, value)


# Only tests of the onnx package with tensors of these types are used.
KNOWN = {
    getattr(TensorProto, name)
    for name in ("FLOAT", "DOUBLE", "FLOAT16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL", "STRING")
}


class Recorded:
    """A test from the onnx package, with free dimensions."""

    more = {}
    is_request_fixed = False

    def __init__(self, folder):
        self.name = folder.name.removeprefix("test_")
        self.model = onnx.load(folder / "model.onnx")
        self.inputs = {}
        for at, port in enumerate(self.model.graph.input):
            tensor = onnx.TensorProto()
            tensor.ParseFromString((folder / "test_data_set_0" / f"input_{at}.pb").read_bytes())
            array = numpy_helper.to_array(tensor)
            if array.dtype.kind in "US" or array.dtype == object:
                encoded = [value.encode() if isinstance(value, str) else value for value in array.reshape(-1)]
                array = np.array([None] * len(encoded), object)
                array[:] = encoded
                array = array.reshape(tensor.dims)
            self.inputs[port.name] = array
            for dim in port.type.tensor_type.shape.dim:
                dim.Clear()
        for port in self.model.graph.output:
            port.type.tensor_type.ClearField("shape")


def recorded():
    """Yields the onnx package's tests of single operators, for tensors that NumPy supports."""
    root = pathlib.Path(onnx.__file__).parent / "backend/test/data/node"
    for folder in sorted(root.glob("test_*")):
        model = onnx.load(folder / "model.onnx")
        ports = [*model.graph.input, *model.graph.output]
        known = all(
            port.type.HasField("tensor_type") and port.type.tensor_type.elem_type in KNOWN for port in ports
        )
        files = all((folder / "test_data_set_0" / f"input_{at}.pb").exists() for at in range(len(model.graph.input)))
        if known and files and model.graph.input and "_expanded" not in folder.name and "training" not in folder.name:
            yield Recorded(folder)
