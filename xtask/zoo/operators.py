"""Compares a server with ONNX Runtime on single ONNX operators with inputs of usual size, by responses and CPU time.

    python operators.py --server PROGRAM --folder FOLDER [--only REGEX] [--page FILE | --both]

Needs the packages of zoo.py; called by `cargo xtask zoo --operators`. The zoo's models use each operator only a few
times, and a median over models hides an operator that is fifty times slower. Responses must be equal as defined in
zoo.py; otherwise the exit code is 1. Times do not affect it. For timing, a model returns only the first element of its
result, and the time is that of a request minus that of a model that takes the same inputs and returns the first element
of one of them, so that the cost of transport is excluded. With --both, each operator has two servers of its own, with
the built-in runtime and with ONNX Runtime (both.py), and times include transport.
"""

import argparse
import functools
import pathlib
import re
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
import tritonclient.http as client
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import np_to_triton_dtype

import both
import ort
import zoo
from served import ONE_THREAD, Server

# Seconds of runs over which the CPU time of one run is measured.
MEASURED = 0.3
# An operator is slow if it takes more than this many times ONNX Runtime's time, and at least this many milliseconds.
SLOW, LONG = 5, 2
# The heading of the page's last section, which is written by hand from `cargo bench -p onnx-gemm`.
PRODUCTS = "## Matrix products"

random = np.random.default_rng(1)


def floats(*shape, kind=np.float32):
    return random.standard_normal(shape).astype(kind)


def whole(bound, *shape, kind=np.int64):
    return random.integers(0, bound, shape).astype(kind)


def truths(*shape):
    return random.random(shape) > 0.5


class Constant:
    def __init__(self, value):
        self.value = np.asarray(value)


class Case:
    """An operator with its inputs, which are arrays or constants. An input of `None` is omitted."""

    def __init__(self, name, op, *inputs, opset=17, outputs=1, **attributes):
        self.name, self.op, self.opset = name, op, opset
        self.names = ["" if value is None else f"x{at}" for at, value in enumerate(inputs)]
        pairs = [(name, value) for name, value in zip(self.names, inputs) if name]
        self.inputs = {name: np.asarray(value) for name, value in pairs if not isinstance(value, Constant)}
        self.constants = {name: value.value for name, value in pairs if isinstance(value, Constant)}
        self.outputs = [f"y{at}" for at in range(outputs)]
        self.attributes = attributes

    def shapes(self):
        return ", ".join(f"{np_to_triton_dtype(value.dtype)} {list(value.shape)}" for value in self.inputs.values())

    def graph(self, nodes, first_of, outputs, constants):
        nodes = nodes + [
            helper.make_node("Reshape", [first_of, "all"], ["flat"]),
            helper.make_node("Gather", ["flat", "at"], ["one"]),
            helper.make_node("Cast", ["one"], ["first"], to=TensorProto.FLOAT),
        ]
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in self.inputs.items()
        ]
        constants = [numpy_helper.from_array(value, name) for name, value in constants.items()]
        constants += [numpy_helper.from_array(np.array([-1]), "all"), numpy_helper.from_array(np.array([0]), "at")]
        outputs = [*outputs, helper.make_tensor_value_info("first", TensorProto.FLOAT, None)]
        graph = helper.make_graph(nodes, "operator", inputs, outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)

    def model(self):
        node = [helper.make_node(self.op, self.names, self.outputs, **self.attributes)]
        inferred = onnx.shape_inference.infer_shapes(self.graph(node, "y0", [], self.constants))
        kinds = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
        outputs = [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None) for name in self.outputs]
        return self.graph(node, "y0", outputs, self.constants)

    def nothing(self):
        """Returns a model that takes the same inputs and uses only one of them."""
        return self.graph([], next(iter(self.inputs)), [], {})


IMAGE = floats(1, 32, 96, 96)
MATRIX = floats(1000, 1000)
WHOLE = whole(1000, 1000, 1000)


def convolutions():
    yield Case("3x3", "Conv", IMAGE, Constant(floats(32, 32, 3, 3)), pads=[1] * 4)
    yield Case("3x3, computed weights", "Conv", IMAGE, floats(32, 32, 3, 3), pads=[1] * 4)
    yield Case("3x3, dilated", "Conv", IMAGE, Constant(floats(32, 32, 3, 3)), pads=[4] * 4, dilations=[4, 4])
    yield Case("3x3, 8 groups", "Conv", IMAGE, Constant(floats(64, 4, 3, 3)), pads=[1] * 4, group=8)
    yield Case("7x7, depthwise", "Conv", IMAGE, Constant(floats(32, 1, 7, 7)), pads=[3] * 4, group=32)
    yield Case("of lines", "Conv", floats(1, 256, 2000), Constant(floats(256, 256, 3)), pads=[1, 1])
    yield Case("of lines, one channel", "Conv", floats(1, 1, 48000), Constant(floats(258, 1, 256)), strides=[64])
    yield Case("of lines, depthwise", "Conv", floats(1, 256, 4000), Constant(floats(256, 1, 31)), pads=[15, 15], group=256)
    yield Case("3x3x3", "Conv", floats(1, 16, 24, 24, 24), Constant(floats(16, 16, 3, 3, 3)), pads=[1] * 6)
    yield Case("3x7x7, stride", "Conv", floats(1, 3, 16, 64, 64), Constant(floats(16, 3, 3, 7, 7)), pads=[1, 3, 3] * 2, strides=[1, 2, 2])
    yield Case("4x4, stride 2", "ConvTranspose", IMAGE, Constant(floats(32, 16, 4, 4)), strides=[2, 2], pads=[1] * 4)
    yield Case("2x2, stride 2", "ConvTranspose", IMAGE, Constant(floats(32, 16, 2, 2)), strides=[2, 2])
    yield Case("depthwise", "ConvTranspose", IMAGE, Constant(floats(32, 1, 4, 4)), strides=[2, 2], pads=[1] * 4, group=32)
    yield Case("of lines", "ConvTranspose", floats(1, 64, 2000), Constant(floats(64, 32, 16)), strides=[8], pads=[4, 4])
    yield Case("3x3x3", "ConvTranspose", floats(1, 8, 16, 16, 16), Constant(floats(8, 8, 3, 3, 3)), strides=[2] * 3)
    yield Case("2x2x2, stride 2", "ConvTranspose", floats(1, 32, 16, 16, 16), Constant(floats(32, 16, 2, 2, 2)), strides=[2] * 3)
    eight = whole(255, 1, 64, 56, 56, kind=np.uint8)
    weights = Constant((whole(100, 64, 64, 3, 3) - 50).astype(np.int8))
    scale, zero = Constant(np.float32(0.1)), Constant(np.uint8(3))
    yield Case("3x3", "ConvInteger", eight, weights, zero, pads=[1] * 4)
    yield Case("3x3", "QLinearConv", eight, scale, zero, weights, scale, Constant(np.int8(0)), Constant(np.float32(9)), zero, pads=[1] * 4)


def pools():
    yield Case("2x2, stride 2", "MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2])
    yield Case("3x3, stride 2", "MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    yield Case("5x5", "MaxPool", IMAGE, kernel_shape=[5, 5], pads=[2] * 4)
    yield Case("13x13", "MaxPool", IMAGE, kernel_shape=[13, 13], pads=[6] * 4)
    yield Case("3x3x3", "MaxPool", floats(1, 16, 32, 64, 64), kernel_shape=[3] * 3, strides=[2] * 3)
    yield Case("2x2, with places", "MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], outputs=2)
    yield Case("of lines", "MaxPool", floats(1, 64, 8000), kernel_shape=[4], strides=[4])
    yield Case("2x2, stride 2", "AveragePool", IMAGE, kernel_shape=[2, 2], strides=[2, 2])
    yield Case("3x3", "AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1] * 4)
    yield Case("5x5, padding counts", "AveragePool", IMAGE, kernel_shape=[5, 5], pads=[2] * 4, count_include_pad=1)
    yield Case("2x3x3", "AveragePool", floats(1, 16, 16, 64, 64), kernel_shape=[2, 3, 3])
    yield Case("of lines", "AveragePool", floats(1, 64, 8000), kernel_shape=[25])
    yield Case("3x3", "LpPool", IMAGE, kernel_shape=[3, 3])
    yield Case("", "GlobalAveragePool", IMAGE)
    yield Case("", "GlobalMaxPool", IMAGE)
    yield Case("7x7", "RoiAlign", IMAGE, np.abs(floats(100, 4)) * 40, whole(1, 100), output_height=7, output_width=7, sampling_ratio=2)


def images():
    for mode in ("nearest", "linear", "cubic"):
        yield Case(f"{mode}, 2.5", "Resize", IMAGE, None, Constant(np.array([1, 1, 2.5, 2.5], np.float32)), mode=mode)
    yield Case("linear, three axes", "Resize", floats(1, 4, 16, 48, 48), None, Constant(np.array([1, 1, 2, 2, 2], np.float32)), mode="linear")
    yield Case("nearest, 2", "Upsample", IMAGE, Constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest", opset=9)
    yield Case("", "GridSample", IMAGE, floats(1, 96, 96, 2), opset=16)
    yield Case("", "DepthToSpace", IMAGE, blocksize=2)
    yield Case("", "SpaceToDepth", IMAGE, blocksize=2)
    for mode in ("constant", "reflect", "edge"):
        yield Case(mode, "Pad", IMAGE, Constant([0, 0, 8, 8] * 2), mode=mode)
    yield Case("3x3", "Col2Im", floats(1, 288, 8836), Constant([96, 96]), Constant([3, 3]), opset=18)
    boxes = np.abs(floats(1, 3000, 4))
    yield Case("", "NonMaxSuppression", boxes, np.abs(floats(1, 1, 3000)), Constant([200]), Constant(np.float32(0.5)), Constant(np.float32(0.1)))


def products():
    yield Case("300x300", "MatMul", floats(300, 300), floats(300, 300))
    yield Case("300x300, FP64", "MatMul", floats(300, 300, kind=np.float64), floats(300, 300, kind=np.float64))
    yield Case("200x200, INT64", "MatMul", whole(9, 200, 200), whole(9, 200, 200))
    yield Case("200x200, INT32", "MatMul", whole(9, 200, 200, kind=np.int32), whole(9, 200, 200, kind=np.int32))
    yield Case("64 of 64x64", "MatMul", floats(64, 64, 64), floats(64, 64, 64))
    yield Case("one for all", "MatMul", floats(2, 12, 128, 64), floats(1, 1, 64, 128))
    yield Case("a row and its weights", "MatMul", floats(1, 768), Constant(floats(768, 768)))
    yield Case("a query and its keys", "MatMul", floats(1, 12, 1, 64), floats(1, 12, 64, 500))
    yield Case("weights and values", "MatMul", floats(1, 12, 1, 500), floats(1, 12, 500, 64))
    yield Case("20,000 rows", "MatMul", floats(20000, 1, 16), floats(20000, 16, 8))
    yield Case("20,000 of 3x3", "MatMul", floats(20000, 3, 3), floats(20000, 3, 3))
    yield Case("500 pairs of vectors", "MatMul", floats(500, 1, 64), floats(500, 64, 1))
    yield Case("a vector", "MatMul", floats(2000, 2000), floats(2000))
    yield Case("an outer product", "MatMul", floats(1000, 1), floats(1, 1000))
    yield Case("transposed first", "Gemm", floats(300, 300), floats(300, 300), floats(300), transA=1)
    yield Case("transposed weights", "Gemm", floats(300, 300), Constant(floats(300, 300)), Constant(floats(300)), transB=1)
    eight = [whole(255, 300, 300, kind=np.uint8), whole(255, 300, 300, kind=np.uint8)]
    scale, zero = Constant(np.float32(0.1)), Constant(np.uint8(3))
    yield Case("300x300", "MatMulInteger", *eight)
    yield Case("8 of 100x100", "MatMulInteger", whole(255, 8, 100, 100, kind=np.uint8), whole(255, 8, 100, 100, kind=np.uint8))
    yield Case("300x300", "QLinearMatMul", eight[0], scale, zero, eight[1], scale, zero, Constant(np.float32(9)), zero)
    yield Case("bd,bd->b", "Einsum", floats(20000, 64), floats(20000, 64), equation="bd,bd->b")
    yield Case("bhid,bhjd->bhij", "Einsum", floats(1, 8, 128, 64), floats(1, 8, 128, 64), equation="bhid,bhjd->bhij")
    yield Case("", "Det", floats(10000, 3, 3))


def rearranged():
    yield Case("rows", "Gather", MATRIX, whole(1000, 500))
    yield Case("columns", "Gather", MATRIX, whole(1000, 500), axis=1)
    yield Case("", "GatherElements", MATRIX, whole(1000, 1000, 1000))
    yield Case("", "GatherND", MATRIX, whole(1000, 300000, 2))
    yield Case("", "ScatterElements", MATRIX, np.argsort(floats(1000, 1000), 0), MATRIX)
    yield Case("sums", "ScatterElements", MATRIX, whole(1000, 1000, 1000), MATRIX, axis=1, reduction="add", opset=18)
    yield Case("rows", "ScatterND", MATRIX, np.arange(0, 1000, 2)[:, None], floats(500, 1000), opset=16)
    places = np.argwhere(truths(1000, 1000))
    yield Case("numbers", "ScatterND", MATRIX, places, floats(len(places)), opset=16)
    yield Case("two axes", "Transpose", MATRIX, perm=[1, 0])
    yield Case("two axes, INT64", "Transpose", WHOLE, perm=[1, 0])
    yield Case("pixels to planes, UINT8", "Transpose", whole(255, 1, 480, 640, 3, kind=np.uint8), perm=[0, 3, 1, 2])
    yield Case("five axes", "Transpose", floats(4, 16, 20, 16, 40), perm=[0, 3, 1, 4, 2])
    yield Case("of rows", "Concat", floats(1000, 500), floats(1000, 500), axis=1)
    yield Case("in four", "Split", MATRIX, axis=1, num_outputs=4, outputs=4, opset=18)
    yield Case("each third column", "Slice", MATRIX, Constant([0]), Constant([1000]), Constant([1]), Constant([3]))
    yield Case("backwards", "Slice", MATRIX, Constant([-1]), Constant([-2000]), Constant([1]), Constant([-1]))
    yield Case("columns", "Expand", floats(1000, 1), Constant([1000, 1000]))
    yield Case("10x10", "Tile", floats(100, 100), Constant([10, 10]))
    yield Case("", "ReverseSequence", floats(100, 100, 50), whole(100, 100), time_axis=0, batch_axis=1)
    yield Case("", "Compress", MATRIX, truths(1000), axis=0)
    yield Case("", "NonZero", truths(1000, 1000))
    yield Case("", "Unique", whole(1000, 300000))
    yield Case("50 of 10,000", "TopK", floats(100, 10000), Constant([50]), axis=1, outputs=2)
    yield Case("all", "TopK", floats(10, 100000), Constant([100000]), axis=1, outputs=2)
    yield Case("100 kinds", "OneHot", whole(100, 10000), Constant(100), Constant(np.array([0, 1], np.float32)))
    yield Case("", "Trilu", MATRIX)
    yield Case("", "EyeLike", MATRIX)
    yield Case("a million", "Range", Constant(np.int64(0)), np.int64(1000000), Constant(np.int64(1)))


def along_axes():
    for op in ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceL2", "ReduceProd", "ReduceLogSumExp"):
        yield Case("middle axis", op, floats(100, 100, 100), axes=[1])
    yield Case("middle axis, INT64", "ReduceMax", whole(100, 100, 100, 100), axes=[1])
    yield Case("first axis, INT64", "ReduceSum", WHOLE, Constant([0]))
    yield Case("all", "ReduceMean", MATRIX)
    yield Case("middle axis", "ArgMax", floats(1, 100, 100, 100), axis=1)
    yield Case("last axis", "ArgMax", floats(10000, 100), axis=-1)
    yield Case("first axis, INT32", "ArgMin", whole(100, 1000, 1000, kind=np.int32), axis=0)
    yield Case("middle axis", "CumSum", floats(100, 100, 100), Constant(1))
    yield Case("last axis", "Softmax", MATRIX, axis=-1)
    yield Case("middle axis", "Softmax", floats(1, 100, 100, 100), axis=1)
    yield Case("last axis", "LogSoftmax", MATRIX, axis=-1)
    yield Case("last axis", "Hardmax", MATRIX, axis=-1)
    channels = [Constant(floats(32)), Constant(floats(32))]
    yield Case("", "BatchNormalization", IMAGE, *channels, Constant(floats(32)), Constant(np.abs(floats(32))))
    yield Case("", "InstanceNormalization", IMAGE, *channels)
    yield Case("8 groups", "GroupNormalization", IMAGE, *channels, num_groups=8, opset=21)
    yield Case("of 768", "LayerNormalization", floats(1000, 768), Constant(floats(768)), Constant(floats(768)))
    yield Case("first axis", "LpNormalization", MATRIX, axis=0)
    yield Case("", "MeanVarianceNormalization", IMAGE)
    yield Case("5 channels", "LRN", IMAGE, size=5)
    yield Case("", "STFT", floats(1, 48000, 1), Constant(160), Constant(np.hanning(400).astype(np.float32)), Constant(400))
    yield Case("1,024", "DFT", floats(100, 1024, 1), axis=1)


def functions():
    since = {"Gelu": 20, "Mish": 18}
    # Inputs in the ranges on which the functions are defined.
    within, positive = np.tanh(MATRIX) * np.float32(0.99), np.abs(MATRIX)
    given = {"Acos": within, "Asin": within, "Atanh": within, "Acosh": positive + 1, "Log": positive, "Sqrt": positive}
    for op in (
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu",
        "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
        "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu",
    ):
        yield Case("", op, given.get(op, MATRIX), opset=since.get(op, 17))
    yield Case("", "Not", truths(1000, 1000))
    yield Case("each channel", "PRelu", IMAGE, Constant(floats(32, 1, 1)))
    yield Case("0 to 6", "Clip", MATRIX, Constant(np.float32(0)), Constant(np.float32(6)))
    yield Case("INT64", "Clip", WHOLE, Constant(np.int64(3)), Constant(np.int64(600)))
    for name, value, to in (
        ("INT64 to FP32", WHOLE, TensorProto.FLOAT), ("FP32 to INT64", MATRIX, TensorProto.INT64), ("FP32 to BOOL", MATRIX, TensorProto.BOOL),
        ("UINT8 to FP32", whole(255, 1000, 1000, kind=np.uint8), TensorProto.FLOAT), ("FP32 to FP16", MATRIX, TensorProto.FLOAT16),
        ("FP16 to FP32", MATRIX.astype(np.float16), TensorProto.FLOAT), ("INT32 to INT64", WHOLE.astype(np.int32), TensorProto.INT64),
        ("BOOL to FP32", truths(1000, 1000), TensorProto.FLOAT),
    ):
        yield Case(name, "Cast", value, to=to)
    yield Case("", "DynamicQuantizeLinear", MATRIX, outputs=3)
    yield Case("", "QuantizeLinear", MATRIX, Constant(np.float32(0.1)), Constant(np.uint8(3)))
    yield Case("", "DequantizeLinear", whole(255, 1000, 1000, kind=np.uint8), Constant(np.float32(0.1)), Constant(np.uint8(3)))


def pairs():
    column, row = floats(1000, 1), floats(1, 1000)
    for op in ("Add", "Sub", "Mul", "Div"):
        yield Case("", op, MATRIX, MATRIX)
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
        yield Case("a column", op, MATRIX, column)
        yield Case("FP64, a column", op, MATRIX.astype(np.float64), column.astype(np.float64))
        yield Case("INT64, a row", op, WHOLE + 1, whole(1000, 1000) + 1)
        yield Case("INT32, a row", op, (WHOLE + 1).astype(np.int32), (whole(1000, 1000) + 1).astype(np.int32))
    yield Case("each with each", "Sub", floats(1, 1000, 1, 32), floats(1, 1, 1000, 32))
    for op in ("Less", "Equal", "GreaterOrEqual"):
        yield Case("a column", op, MATRIX, column)
        yield Case("INT64", op, WHOLE, whole(1000, 1000, 1000))
    for op in ("And", "Or", "Xor"):
        yield Case("a column", op, truths(1000, 1000), truths(1000, 1))
    yield Case("", "Where", truths(1000, 1000), column, row)
    yield Case("a mask of heads", "Where", truths(1, 1, 1000, 1000), floats(4, 1, 1, 1000), Constant(np.float32(-1e9)))
    yield Case("by a number", "Pow", np.abs(MATRIX), Constant(np.float32(1.7)))
    yield Case("", "Pow", np.abs(MATRIX), MATRIX)
    yield Case("INT64", "Mod", WHOLE, Constant(np.int64(7)))
    yield Case("fmod", "Mod", MATRIX, floats(1000, 1000), fmod=1)
    yield Case("UINT32", "BitShift", whole(9, 1000, 1000, kind=np.uint32), Constant(np.uint32(2)), direction="LEFT")
    yield Case("INT64, a row", "BitwiseAnd", WHOLE, whole(9, 1000), opset=18)
    yield Case("three", "Sum", MATRIX, MATRIX, floats(1000))
    yield Case("three", "Mean", MATRIX, MATRIX, floats(1000))


def networks():
    lstm = [Constant(floats(1, 512, 128) / 10), Constant(floats(1, 512, 128) / 10)]
    gru = [Constant(floats(1, 384, 128) / 10), Constant(floats(1, 384, 128) / 10)]
    yield Case("100 steps", "LSTM", floats(100, 1, 128), *lstm, hidden_size=128, outputs=3)
    yield Case("100 steps, computed weights", "LSTM", floats(100, 1, 128), *(weights.value for weights in lstm), hidden_size=128, outputs=3)
    yield Case("100 steps of 4", "GRU", floats(100, 4, 128), *gru, hidden_size=128, outputs=2)
    yield Case("200 steps of 4", "RNN", floats(200, 4, 128), *(Constant(weights.value[:, :128]) for weights in gru), hidden_size=128, outputs=2)
    yield Case("8 heads", "Attention", floats(1, 8, 256, 64), floats(1, 8, 256, 64), floats(1, 8, 256, 64), opset=23)


def cases():
    for group in (convolutions, pools, images, products, rearranged, along_axes, functions, pairs, networks):
        yield from group()


def processor_time(server, name, inputs):
    """Returns the milliseconds that the server needs for the first element of a model's result."""
    tensors = []
    for key, value in inputs.items():
        tensors.append(client.InferInput(key, list(value.shape), np_to_triton_dtype(value.dtype)))
        tensors[-1].set_data_from_numpy(value)
    with client.InferenceServerClient(server.address, network_timeout=240, connection_timeout=240) as connection:
        wanted = [client.InferRequestedOutput("first")]
        return zoo.milliseconds(lambda: connection.infer(name, tensors, outputs=wanted), server.processor_time)


def chosen(options):
    """Returns the cases with their names and files."""
    for case in cases():
        name = f"{case.op} {case.name}".strip()
        if re.search(options.only, name):
            path = options.folder / (re.sub(r"\W+", "-", name) + ".onnx")
            onnx.save(case.model(), path)
            yield name, path, case


def cases_of_both(options, _known):
    for name, path, case in chosen(options):
        try:
            session = ort.session_of(path)
            answers = session.run(None, case.inputs)
        except Exception as error:  # ONNX Runtime's exceptions have no common type
            print(f"{name}\n  left out: {str(error).splitlines()[0][:100]}", flush=True)
            continue
        outputs = [output.name for output in session.get_outputs()]

        def judge(inputs, answers, found, path=path, outputs=outputs):
            return zoo.compared(path, outputs, inputs, list(answers.values()), [found.get(output) for output in outputs])

        yield both.Case(name, path, [(case.inputs, dict(zip(outputs, answers)))], judge, ["first"])


def operator_time(server, repository, case):
    """Returns the milliseconds that a server needs for an operator: those of a request, less those of its transport."""
    times = []
    for model in (case.nothing(), case.model()):
        version = repository / "timed" / "1"
        version.mkdir(parents=True, exist_ok=True)
        onnx.save(model, version / "model.onnx")
        if server.call("/v2/repository/models/timed/load") is not None:
            return None
        times.append(processor_time(server, "timed", case.inputs))
    server.call("/v2/repository/models/timed/unload")
    return max(times[1] - times[0], 0)


def measured(servers, case_name, path, case):
    """Returns a row of the page: the case, its times, its verdict and the reason."""
    try:
        session = ort.session_of(path)
        answers = session.run(None, case.inputs)
    except Exception as error:  # ONNX Runtime's exceptions have no common type
        return case_name, case.shapes(), None, None, "left out", str(error).splitlines()[0][:100]
    (server, repository), (other, other_repository) = servers
    verdict, why, _ = zoo.verdict(server, repository, path, "checked", (session, case.inputs, answers))
    ours = alone = None
    if verdict in ("equal", "noise", "differs"):
        ours = operator_time(server, repository, case)
        alone = operator_time(other, other_repository, case)
    return case_name, case.shapes(), alone, ours, verdict, why


def page(rows):
    compared = [(ours / alone, ours) for _, _, alone, ours, _, _ in rows if alone and ours is not None]
    ratios = sorted(ratio for ratio, ours in compared)
    slow = sum(ratio > SLOW and ours > LONG for ratio, ours in compared)
    equal = sum(verdict == "equal" for *_, verdict, _ in rows)
    middle = ratios[len(ratios) // 2] if ratios else 0
    lines = [
        "# Single operators", "",
        "ONNX operators, each in a model of its own with inputs of a usual size, run by the built-in runtime and by ONNX Runtime.",
        "`cargo xtask zoo --operators --page` writes this page. Verdicts are explained in [Real models](zoo.md). Times are",
        "milliseconds of processor time on one thread in the same server, without the transport of the inputs.", "",
        f"Machine: {zoo.processor()}.", "",
        f"{equal} of {len(rows)} cases are equal. The median is {middle:.1f} times ONNX Runtime's time. {slow} cases take more than {SLOW} times",
        f"ONNX Runtime's time and more than {LONG} ms.", "",
        "| operator | inputs | built-in, ms | ORT, ms | times | verdict |", "|---|---|---|---|---|---|",
    ]
    for name, shapes, alone, ours, verdict, why in rows:
        times = "" if not alone or ours is None else f"{ours / alone:.1f}"
        numbers = ["" if value is None else f"{value:.2f}" for value in (ours, alone)]
        reason = f": {why}" if why and verdict != "equal" else ""
        lines.append(f"| {' | '.join([name, shapes, *numbers, times, (verdict + reason).replace('|', '/')])} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--both", action="store_true")
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    zoo.MEASURED = MEASURED
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.both:
        both.MEASURED = MEASURED
        return both.run(options.server, functools.partial(cases_of_both, options), zoo.processor())
    rows, servers = [], {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, path, case in chosen(options):
            for runtime, library in ((both.RUNTIMES[0], None), (both.RUNTIMES[1], ort.LIBRARY)):
                repository = pathlib.Path(temporary, runtime)
                repository.mkdir(exist_ok=True)
                if runtime not in servers or not servers[runtime][0].is_running():
                    servers[runtime] = Server(options.server, repository, library, ONE_THREAD), repository
            row = measured(servers.values(), name, path, case)
            rows.append(row)
            _, _, alone, ours, verdict, why = row
            numbers = f"{ours:9.2f} {alone:9.2f}" if alone is not None and ours is not None else " " * 19
            is_slow = alone and ours is not None and ours > SLOW * alone and ours > LONG
            print(f"{verdict:<9} {numbers} {'SLOW' if is_slow else '    '} {name} {why[:150]}", flush=True)
        for server, _ in servers.values():
            server.stop()
    if options.page:
        _, heading, products = options.page.read_text().partition(PRODUCTS) if options.page.exists() else ("", "", "")
        rest = f"\n{heading}{products}" if heading else ""
        options.page.write_text(page(rows) + rest)
    return int(any(verdict in zoo.WRONG or verdict == "refused" for *_, verdict, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
