"""Randomly grown graphs, node by node, each with the values that ONNX Runtime computes; used by `graphs.py`."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

OPSETS = [13, 17, 18, 21]
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64, np.dtype(np.int32): TensorProto.INT32, np.dtype(bool): TensorProto.BOOL}
TYPES |= {np.dtype(np.float16): TensorProto.FLOAT16, np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8}
# Sizes of the free dimensions while a graph grows. A value that is equal for both sets depends on no free dimension.
GROWN = {"n": 7, "m": 11}
ALSO = {"n": 4, "m": 6}
# Shapes of sequences and images.
USUAL = [["n", "m", 4], ["n", 3, "m", "m"], ["n", 2, 5, "m"], ["m", "n", 2], ["n", 4], ["n", "m"]]
MOST_ELEMENTS = 60_000
LARGEST = 2**63 - 1
# Operators that round or compare floats are left out, since they would amplify the noise of sums.
UNARY = ["Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Erf", "Identity", "Exp", "Softplus", "Softsign", "Elu", "Selu", "LeakyRelu", "HardSigmoid", "HardSwish"]
REDUCTIONS = ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSum", "ReduceProd", "ReduceSumSquare"]
EQUATIONS = ["ij,jk->ik", "ij,kj->ik", "ij,ij->i", "ij,jk->ki", "ij,ik->jk", "ij,kj->ijk"]


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def model_of(opset, nodes, inputs, outputs, constants):
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def nameless(name):
    """Returns a value whose type and shape are implied by other parts of the graph."""
    return onnx.ValueInfoProto(name=name)


def reads(node):
    """Yields the names that a node reads, including those in its bodies."""
    names = set(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            inner = attribute.g
            made = {name for node in inner.node for name in node.output} | {value.name for value in inner.input}
            names |= {name for node in inner.node for name in reads(node)} - made
            names |= {value.name for value in inner.output} - made
    return names


def is_float(value):
    return value.dtype == np.float32


def is_whole(value):
    return value.dtype == np.int64


def is_8_bit(value):
    return value.dtype in (np.uint8, np.int8)


def has_axes(value):
    return value.ndim > 0


class Graph:
    """A graph with the values of all its tensors: for the sizes with which it grows, which decide what may be added, and
    for other sizes."""

    def __init__(self, seed, number):
        self.random = np.random.default_rng([seed, number])
        self.nodes, self.values, self.constants, self.inputs, self.count = [], {}, {}, {}, 0
        self.others = {}
        self.opset, self.is_coarse = self.one_of(OPSETS), False
        for index in range(self.random.integers(1, 4)):
            sizes = ["n", "m", "n", "m", 1, 2, 3, 5]
            dims = [self.one_of(sizes) for _ in range(self.below(5, 1))] if self.chance(0.6) else self.one_of(USUAL)
            kind = self.one_of([np.float32] * 7 + [np.int64] * 2 + [self.one_of([np.int32, bool, np.uint8])])
            self.inputs[f"x{index}"] = kind, dims
            self.values[f"x{index}"] = self.filled(kind, dims, GROWN)
            self.others[f"x{index}"] = self.filled(kind, dims, ALSO)

    def filled(self, kind, dims, sizes):
        shape = [sizes.get(dim, dim) for dim in dims]
        if kind == np.float32:
            return self.random.integers(-8, 9, shape).astype(kind) / 4
        return self.random.integers(-3 if kind in (np.int64, np.int32) else 0, 2 if kind is bool else 6, shape).astype(kind)

    def chance(self, share):
        return self.random.random() < share

    def one_of(self, things):
        return things[self.random.integers(len(things))]

    def below(self, end, start=0):
        return int(self.random.integers(start, end))

    def pick(self, fits=lambda value: True, fixed=()):
        """Returns the name of a value that fits, preferring newer ones. The axes in `fixed` must have fixed sizes."""
        fitting = (name for name, value in self.values.items() if fits(value))
        names = [name for name in fitting if all(self.is_fixed(name, axis) for axis in fixed)]
        return names[-1 - min(len(names) - 1, int(self.random.exponential(2.5)))] if names else None

    def constant(self, value):
        self.count += 1
        self.constants[f"c{self.count}"] = np.asarray(value)
        return f"c{self.count}"

    def quarters(self, *shape, least=-4):
        return self.constant((self.random.integers(least, 5 if least < 1 else 9, shape) / 4).astype(np.float32))

    def add(self, op, inputs, outputs=1, **attributes):
        """Adds a node if its inputs exist and ONNX Runtime can compute it. Returns the names of its outputs."""
        if None in inputs:
            return None
        self.count += 1
        names = [f"v{self.count}_{index}" for index in range(outputs)]
        node = helper.make_node(op, inputs, names, **attributes)
        read = sorted(reads(node))
        ports = [self.port(name) for name in read if name in self.values]
        constants = {name: self.constants[name] for name in read if name in self.constants}
        try:
            runs = session(model_of(self.opset, [node], ports, [nameless(name) for name in names], constants))
            found, other = (runs.run(None, {port.name: values[port.name] for port in ports}) for values in (self.values, self.others))
        except Exception:  # ONNX Runtime's exceptions have no common type
            return None
        if any(value.size > MOST_ELEMENTS or value.dtype not in TYPES or not np.all(np.isfinite(value)) for value in found):
            return None
        if any(one.ndim != two.ndim for one, two in zip(found, other)):
            return None
        self.is_coarse |= any(value.dtype == np.float16 or is_8_bit(value) for value in found)
        self.nodes.append(node)
        self.values.update(zip(names, found))
        self.others.update(zip(names, other))
        return names

    def value(self, op, inputs, **attributes):
        """Adds a node, and returns the name of its only output if the node was added."""
        names = self.add(op, inputs, **attributes)
        return names[0] if names else None

    def port(self, name):
        """Returns a value with a known type and rank."""
        value = self.values[name]
        return helper.make_tensor_value_info(name, TYPES[value.dtype], [None] * value.ndim)

    def is_fixed(self, name, axis):
        """Returns whether a size does not depend on a free dimension."""
        return self.values[name].shape[axis] == self.others[name].shape[axis]

    def axis(self, name):
        return self.below(self.values[name].ndim)

    def grow(self):
        kinds = [name for name in dir(self) if name.startswith("add_")]
        getattr(self, self.one_of(kinds))()

    def add_unary(self):
        self.add(self.one_of(UNARY), [self.pick(is_float)])

    def add_pair(self):
        x = self.pick(lambda value: is_float(value) or is_whole(value))
        if x:
            y = x if self.chance(0.2) else self.pick(lambda value: value.dtype == self.values[x].dtype)
            tests = ["Less", "Greater", "Equal"] * is_whole(self.values[x])
            self.add(self.one_of(["Add", "Sub", "Mul", "Max", "Min", *tests]), [x, y])

    def add_pair_with_constant(self):
        x = self.pick(is_float)
        if x:
            shape = self.values[x].shape
            kept = shape[len(shape) - self.below(len(shape) + 1):]
            axes = range(len(shape) - len(kept), len(shape))
            y = self.quarters(*[shape[axis] if self.is_fixed(x, axis) and self.chance(0.5) else 1 for axis in axes], least=1)
            self.add(self.one_of(["Add", "Sub", "Mul", "Div", "Max", "PRelu"]), [x, y])
            self.add("Sub", [y, x])

    def add_whole_with_constant(self):
        x = self.pick(is_whole)
        # Large numbers only where results stay within 64 bits, since implementations wrap differently.
        op = self.one_of(["Add", "Sub", "Mul", "Max", "Min", "Div", "Mod"])
        number = self.one_of([1, 2, 3, 7] + [-1, 2**40, LARGEST] * (op in ("Max", "Min")))
        y = self.constant(np.array(number) if self.chance(0.5) else np.array([number]))
        self.add(op, [x, y] if self.chance(0.8) or op in ("Div", "Mod") else [y, x])

    def add_product(self):
        # ONNX Runtime returns uninitialized memory for sums without terms.
        x, y = (self.pick(lambda value: is_float(value) and has_axes(value) and value.size) for _ in range(2))
        if x and y and self.chance(0.5):
            order = list(range(self.values[y].ndim))
            order[-2:] = reversed(order[-2:])
            [y] = self.add("Transpose", [y], perm=order) or [y]
        self.add("MatMul", [x, y])

    def add_product_with_weights(self):
        x = self.pick(lambda value: is_float(value) and value.size and has_axes(value), [-1])
        if x:
            self.add("MatMul", [x, self.quarters(self.values[x].shape[-1], self.below(6, 1))])

    def add_matrices(self):
        x, y = (self.pick(lambda value: is_float(value) and value.ndim == 2) for _ in range(2))
        if self.chance(0.5):
            self.add("Gemm", [x, y], transA=self.below(2), transB=self.below(2), alpha=self.one_of([1.0, 0.5]))
        else:
            self.add("Einsum", [x, y], equation=self.one_of(EQUATIONS))

    def add_transpose(self):
        x = self.pick(lambda value: value.ndim > 1)
        if x:
            self.add("Transpose", [x], perm=[int(axis) for axis in self.random.permutation(self.values[x].ndim)])

    def add_reshape(self):
        x = self.pick(has_axes)
        shape = self.pick(lambda value: is_whole(value) and value.ndim == 1 and value.size < 5)
        if x and self.chance(0.3):
            sizes = self.value("Shape", [x])
            first = self.value("Gather", [sizes, self.constant([0])])
            shape = self.value("Concat", [first, self.constant([-1])], axis=0)
        elif self.chance(0.6):
            shape = self.constant(self.one_of([[-1], [0, -1], [-1, 1]]))
        self.add("Reshape", [x, shape])

    def add_flatten(self):
        x = self.pick(is_float)
        if x:
            self.add("Flatten", [x], axis=self.below(self.values[x].ndim + 1))

    def add_repeated(self):
        x, like = self.pick(has_axes), self.pick()
        if x is None or self.chance(0.4):
            sizes = self.value("Shape", [like])
            self.add("Expand", [x, sizes])
        elif self.chance(0.5):
            sizes = [self.below(4, 2) if size == 1 and self.chance(0.7) else 1 for size in self.values[x].shape]
            self.add("Expand", [x, self.constant([self.below(4, 1)] * self.chance(0.3) + sizes)])
        else:
            self.add("Tile", [x, self.constant(self.random.integers(1, 3, self.values[x].ndim))])

    def add_concat(self):
        x = self.pick(has_axes)
        if x:
            like = self.values[x]
            y = x if self.chance(0.3) else self.pick(lambda value: value.dtype == like.dtype and value.ndim == like.ndim)
            self.add("Concat", [x, y], axis=self.below(like.ndim, -like.ndim))

    def add_slice(self):
        x = self.pick(has_axes)
        if x:
            step = self.one_of([1, 1, 1, 2, -1])
            start, end = self.one_of([0, 0, 1, -1, -2, 2]), self.one_of([LARGEST, -1, 1, 2, 3, 100, 0])
            if step < 0:
                start, end = self.one_of([-1, 2, 100]), self.one_of([-LARGEST, 0, -100, -3])
            end = self.constant([end]) if self.chance(0.75) else self.pick(lambda value: is_whole(value) and value.shape == (1,))
            self.add("Slice", [x, self.constant([start]), end, self.constant([self.axis(x)]), self.constant([step])])

    def add_split(self):
        x = self.pick(lambda value: has_axes(value))
        shape = self.values[x].shape if x else []
        for axis in [axis for axis, size in enumerate(shape) if self.is_fixed(x, axis) and size > 1][:1]:
            self.add("Split", [x, self.constant([1, shape[axis] - 1])], 2, axis=axis)

    def add_reduction(self):
        x = self.pick(lambda value: (is_float(value) or is_whole(value)) and has_axes(value))
        if x:
            # Sums beyond 64 bits wrap differently.
            sums = ["ReduceSum"] if np.abs(self.values[x]).max(initial=0) < 2**40 else []
            op = self.one_of(REDUCTIONS if is_float(self.values[x]) else ["ReduceMax", "ReduceMin", *sums])
            axes, keeps = sorted({self.axis(x), self.axis(x)}), self.below(2)
            if op == "ReduceSum" or self.opset > 17:
                self.add(op, [x, self.constant(axes)], keepdims=keeps)
            else:
                self.add(op, [x], axes=axes, keepdims=keeps)

    def add_along_axis(self):
        x = self.pick(lambda value: is_float(value) and has_axes(value))
        if x is None:
            return
        axis = self.axis(x)
        if self.chance(0.4):
            self.add(self.one_of(["Softmax", "LogSoftmax"]), [x], axis=axis)
        elif self.chance(0.4):
            self.add("CumSum", [x, self.constant(axis)], exclusive=self.below(2), reverse=self.below(2))
        # The order of equal numbers is not specified.
        elif np.unique(self.values[x]).size == self.values[x].size:
            self.add(self.one_of(["ArgMax", "ArgMin"]), [x], axis=axis, keepdims=self.below(2))
            self.add("TopK", [x, self.constant([1])], 2, axis=axis)

    def add_shape(self):
        self.add(self.one_of(["Shape", "Shape", "Shape", "Size"]), [self.pick(has_axes)])

    def add_axis(self):
        x = self.pick(lambda value: value.ndim < 5)
        if x:
            rank = self.values[x].ndim + 1
            self.add("Unsqueeze", [x, self.constant([self.below(rank, -rank)])])

    def add_squeeze(self):
        x = self.pick(lambda value: 1 in value.shape)
        if x:
            self.add("Squeeze", [x, self.constant([self.values[x].shape.index(1)])])

    def add_gather(self):
        x = self.pick(has_axes)
        if x:
            places = self.pick(is_whole)
            if self.chance(0.5):
                places = self.constant(self.random.integers(-1, 1, self.one_of([(), (1,), (2,), (2, 2)])))
            self.add(self.one_of(["Gather", "Gather", "GatherElements"]), [x, places], axis=self.axis(x))

    def add_choice(self):
        x = self.pick(lambda value: is_float(value) or is_whole(value))
        if x:
            y = self.pick(lambda value: value.dtype == self.values[x].dtype)
            self.add("Where", [self.pick(lambda value: value.dtype == bool), x, y])

    def add_cast(self):
        # The conversion of floats that are too large for INT32 is not specified.
        x = self.pick(lambda value: not is_float(value))
        self.add("Cast", [x], to=self.one_of([TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.INT32]))

    def add_pad(self):
        x = self.pick(lambda value: is_float(value) and has_axes(value))
        if x:
            self.add("Pad", [x, self.constant(self.random.integers(-1, 2, 2 * self.values[x].ndim))], mode=self.one_of(["constant", "edge"]))

    def add_made(self):
        if self.chance(0.5):
            value = numpy_helper.from_array(np.array([2], np.float32))
            self.add("ConstantOfShape", [self.pick(lambda value: is_whole(value) and value.ndim == 1 and value.size < 5)], value=value)
        else:
            self.add("Range", [self.constant(0), self.pick(lambda value: is_whole(value) and value.ndim == 0), self.constant(1)])

    def add_window(self):
        x = self.pick(lambda value: is_float(value) and value.ndim in (3, 4), [1])
        if x:
            rank, size = self.values[x].ndim - 2, self.below(4, 1)
            steps = {"strides": [self.below(3, 1) for _ in range(rank)]}
            if self.chance(0.5):
                weights = self.quarters(self.below(5, 1), self.values[x].shape[1], *[size] * rank)
                self.add("Conv", [x, weights], pads=[self.below(3) for _ in range(2 * rank)], **steps)
            else:
                pads = [self.below((size + 1) // 2) for _ in range(2 * rank)]
                self.add(self.one_of(["MaxPool", "AveragePool"]), [x], kernel_shape=[size] * rank, pads=pads, ceil_mode=self.below(2), **steps)

    def add_normalization(self):
        x = self.pick(lambda value: is_float(value) and value.ndim > 1, [1, -1])
        if x and self.chance(0.5):
            self.add("LayerNormalization", [x, self.quarters(self.values[x].shape[-1], least=1)], axis=-1)
        elif x:
            self.add("BatchNormalization", [x, *(self.quarters(self.values[x].shape[1], least=1) for _ in range(4))])

    def add_places(self):
        if self.chance(0.3):
            self.add("NonZero", [self.pick(lambda value: has_axes(value) and not is_float(value))])
        elif self.chance(0.5):
            self.add("OneHot", [self.pick(is_whole), self.constant(4), self.constant(np.array([0, 2], np.float32))], axis=-1)
        else:
            self.add("Trilu", [self.pick(lambda value: is_float(value) and value.ndim > 1)], upper=self.below(2))

    def add_range(self):
        x = self.pick(is_float)
        if self.chance(0.4):
            self.add("Clip", [x, self.constant(np.float32(-1)), self.constant(np.float32(self.below(3)))])
        elif self.chance(0.5):
            # The square root amplifies differences close to zero.
            x = self.value("Add", [self.value("Abs", [x]), self.constant(np.float32(1))])
            self.add("Sqrt", [x])
        else:
            self.add("Pow", [x, self.constant(np.float32(self.one_of([0, 1, 2, 3])))])

    def add_many(self):
        x = self.pick(is_float)
        self.add(self.one_of(["Sum", "Mean", "Max", "Min"]), [x, self.pick(is_float), self.pick(is_float)])

    def add_test(self):
        x = self.pick(lambda value: value.dtype == bool)
        self.add("Not", [x]) if self.chance(0.3) else self.add(self.one_of(["And", "Or", "Xor"]), [x, self.pick(lambda value: value.dtype == bool)])

    def add_half(self):
        x = self.pick(is_float)
        half = self.value("Cast", [x], to=TensorProto.FLOAT16)
        if half and self.chance(0.5) and self.values[half].ndim and self.is_fixed(half, -1):
            weights = self.constant((self.random.integers(-4, 5, (self.values[half].shape[-1:] or (1,)) + (2,)) / 4).astype(np.float16))
            [half] = self.add("MatMul", [half, weights]) or [half]
        else:
            [half] = self.add(self.one_of(["Relu", "Sigmoid", "Neg", "Tanh"]), [half]) or [half]
        self.add("Cast", [half], to=TensorProto.FLOAT)

    def add_quantized(self):
        x = self.pick(is_float)
        zero = self.constant(self.one_of([np.uint8(128), np.uint8(3), np.int8(0), np.int8(-5)]))
        x = self.value("QuantizeLinear", [x, self.constant(np.float32(0.25)), zero])
        if self.chance(0.5):
            self.add("DequantizeLinear", [x, self.constant(np.float32(0.25)), zero])

    def add_dynamic(self):
        x = self.pick(lambda value: is_float(value) and value.size)
        x, scale, zero = self.add("DynamicQuantizeLinear", [x], 3) or [None] * 3
        if x and self.chance(0.5) and has_axes(self.values[x]) and self.is_fixed(x, -1):
            weights = self.constant(self.random.integers(-5, 6, (self.values[x].shape[-1], 3), np.int8))
            self.add("MatMulInteger", [x, weights, zero])
        else:
            self.add("DequantizeLinear", [x, scale, zero])

    def add_whole_product(self):
        x = self.pick(lambda value: is_8_bit(value) and value.ndim > 1 and value.size, [-1])
        if x is None:
            return
        kind = self.values[x].dtype
        zero = self.constant(np.array(3, kind))
        width = self.values[x].shape[-1]
        if self.chance(0.5):
            self.add("MatMulInteger", [x, self.constant(self.random.integers(0, 9, (width, 2)).astype(np.uint8)), *[zero] * self.below(2)])
        else:
            scale, weights = self.constant(np.float32(0.25)), self.constant(self.random.integers(-5, 6, (width, 2)).astype(np.int8))
            self.add("QLinearMatMul", [x, scale, zero, weights, scale, self.constant(np.int8(0)), self.constant(np.float32(0.5)), zero])

    def add_whole_window(self):
        x = self.pick(lambda value: is_8_bit(value) and value.ndim == 4 and value.size, [1])
        if x is None:
            return
        zero = self.constant(np.array(2, self.values[x].dtype))
        weights = self.constant(self.random.integers(-5, 6, (2, self.values[x].shape[1], 2, 2)).astype(np.int8))
        where = {"pads": [self.below(2) for _ in range(4)], "strides": [1, self.below(3, 1)]}
        if self.chance(0.5) and self.values[x].dtype == np.uint8:
            self.add("ConvInteger", [x, weights, zero], **where)
        else:
            scale = self.constant(np.float32(0.25))
            self.add("QLinearConv", [x, scale, zero, weights, scale, self.constant(np.int8(0)), self.constant(np.float32(0.5)), zero], **where)

    def add_recurrent(self):
        x = self.pick(lambda value: is_float(value) and value.ndim == 3 and value.size, [2])
        if x is None:
            return
        op, hidden = self.one_of(["LSTM", "GRU", "RNN"]), self.below(4, 1)
        gates, direction = {"LSTM": 4, "GRU": 3, "RNN": 1}[op] * hidden, self.one_of(["forward", "reverse", "bidirectional"])
        ways = 1 + (direction == "bidirectional")
        lengths = ""
        if self.chance(0.3):
            sizes = self.value("Shape", [x])
            batch = self.value("Gather", [sizes, self.constant([1])])
            lengths = self.value("Expand", [self.constant(np.array([1], np.int32)), batch])
        bias = self.quarters(ways, 2 * gates) if self.chance(0.7) else ""
        weights = [self.quarters(ways, gates, self.values[x].shape[2]), self.quarters(ways, gates, hidden), bias, lengths]
        more = {"linear_before_reset": self.below(2)} if op == "GRU" else {}
        self.add(op, [x, *weights], 2 + (op == "LSTM"), hidden_size=hidden, direction=direction, **more)

    def body(self, nodes, inputs, outputs):
        """Returns a subgraph for a node. Its outputs get declared types, since it may not run."""
        ports = [helper.make_tensor_value_info(name, kind, [None] * rank) if kind else nameless(name) for name, kind, rank in outputs]
        return helper.make_graph(nodes, "body", inputs, ports)

    def small_body(self, x, result):
        """Returns nodes that compute something from a value of the outer graph."""
        kind = self.below(4)
        if kind == 0:
            return [helper.make_node(self.one_of(["Relu", "Neg", "Tanh"]), [x], [result])]
        if kind == 1:
            return [helper.make_node("Add", [x, self.quarters(1)], [result])]
        if kind == 2 and has_axes(self.values[x]):
            return [helper.make_node("Slice", [x, self.constant([0]), self.constant([1]), self.constant([0])], [result])]
        return [helper.make_node("Identity", [x], [result])]

    def add_branch(self):
        x = self.pick(is_float)
        test = self.pick(lambda value: value.dtype == bool and value.size == 1)
        if x and (test is None or self.chance(0.5)):
            size = self.value("Size", [self.pick(has_axes)])
            test = self.value("Greater", [size, self.constant(self.below(90, 1))])
        if x:
            y = x if self.chance(0.5) else self.pick(is_float)
            self.count += 1
            bodies = [self.body(self.small_body(value, f"b{self.count}_{index}"), [], [(f"b{self.count}_{index}", None, 0)]) for index, value in enumerate([x, y])]
            self.add("If", [test], then_branch=bodies[0], else_branch=bodies[1])

    def add_loop(self):
        # The sizes of rows are not specified if there are no rows.
        x = self.pick(lambda value: is_float(value) and has_axes(value) and value.shape[0])
        if x is None:
            return
        if self.chance(0.5):
            sizes = self.value("Shape", [x])
            trips = self.value("Gather", [sizes, self.constant(0)])
        else:
            trips = self.constant(self.below(4, 1))
        self.count += 1
        turn, test, state, now, after, kept, seen = (f"b{self.count}_{index}" for index in range(7))
        nodes, rank = [helper.make_node("Identity", [test], [after])], self.values[x].ndim
        if self.chance(0.5):
            start = self.value("ReduceSum", [x, self.constant([0])], keepdims=0)
            rank -= 1
            nodes += [helper.make_node("Gather", [x, turn], [seen], axis=0), helper.make_node("Add", [state, seen], [now])]
        elif self.chance(0.3):
            start = x
            nodes += [helper.make_node("Concat", [state, x], [now], axis=0), helper.make_node("ReduceMax", [now], [seen])]
        else:
            start = x
            nodes += [helper.make_node("Mul", [state, self.constant(np.float32(0.5))], [seen]), helper.make_node("Add", [seen, x], [now])]
        nodes.append(helper.make_node("Identity", [self.one_of([now, seen])], [kept]))
        ports = [helper.make_tensor_value_info(turn, TensorProto.INT64, []), helper.make_tensor_value_info(test, TensorProto.BOOL, [])]
        state_port = helper.make_tensor_value_info(state, TensorProto.FLOAT, None)
        self.add("Loop", [trips, self.constant(True) if self.chance(0.3) else "", start], 2, body=self.body(nodes, [*ports, state_port], [(after, TensorProto.BOOL, 0), (now, TensorProto.FLOAT, rank), (kept, TensorProto.FLOAT, rank)]))

    def add_scan(self):
        x = self.pick(lambda value: is_float(value) and has_axes(value))
        start = self.value("ReduceMax" if self.opset < 18 else "ReduceSum", [x], keepdims=0)
        if start is None:
            return
        self.count += 1
        state, part, now, kept = (f"b{self.count}_{index}" for index in range(4))
        shape = self.values[x].shape
        nodes = [helper.make_node("ReduceL2", [part], [kept + "s"], keepdims=0), helper.make_node("Sub", [state, kept + "s"], [now])]
        nodes.append(helper.make_node("Add", [part, now], [kept]))
        ports = [helper.make_tensor_value_info(state, TensorProto.FLOAT, []), helper.make_tensor_value_info(part, TensorProto.FLOAT, [None] * (len(shape) - 1))]
        more = {name: [self.below(2)] for name in ("scan_input_directions", "scan_output_directions")} if self.chance(0.5) else {}
        self.add("Scan", [start, x], 2, num_scan_inputs=1, body=self.body(nodes, ports, [(now, TensorProto.FLOAT, 0), (kept, TensorProto.FLOAT, len(shape) - 1)]), **more)

    def add_image(self):
        x = self.pick(lambda value: is_float(value) and value.ndim == 4 and value.size)
        if x is None:
            return
        channels, kind = self.values[x].shape[1], self.below(6)
        if kind == 0:
            mode = self.one_of(["nearest", "linear", "cubic"])
            way = self.one_of(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
            scales = self.constant(np.array([1, 1, self.one_of([2, 1, 0.5, 1.5]), self.one_of([2, 1, 0.5, 3])], np.float32))
            self.add("Resize", [x, "", scales], mode=mode, coordinate_transformation_mode=way)
        elif kind == 1 and self.is_fixed(x, 1):
            groups = channels if self.chance(0.3) else 1
            weights = self.quarters(channels, self.below(3, 1), 2, 2)
            self.add("ConvTranspose", [x, weights], strides=[self.below(3, 1) for _ in range(2)], pads=[self.below(2) for _ in range(4)], group=groups)
        elif kind == 2:
            self.add(self.one_of(["GlobalAveragePool", "GlobalMaxPool"]), [x])
        elif kind == 3 and self.is_fixed(x, 1):
            self.add("InstanceNormalization", [x, self.quarters(channels, least=1), self.quarters(channels)])
        elif kind == 4:
            self.add(self.one_of(["DepthToSpace", "SpaceToDepth"]), [x], blocksize=self.below(3, 1))
        elif self.is_fixed(x, 1):
            groups = channels if self.chance(0.5) else 1
            weights = self.quarters(channels * self.below(3, 1), channels // groups, *[self.below(4, 1) for _ in range(2)])
            more = {"auto_pad": self.one_of(["SAME_UPPER", "SAME_LOWER", "VALID"])} if self.chance(0.5) else {"dilations": [self.below(3, 1) for _ in range(2)]}
            self.add("Conv", [x, weights, self.quarters(self.constants[weights].shape[0])], group=groups, **more)

    def add_scattered(self):
        x = self.pick(lambda value: (is_float(value) or is_whole(value)) and has_axes(value) and value.shape[0])
        if x is None:
            return
        value, kind = self.values[x], self.below(3)
        if kind == 0:
            self.add("GatherND", [x, self.constant(self.random.integers(-1, 1, (2, self.below(value.ndim + 1, 1))))])
        elif kind == 1:
            part = self.value("Gather", [x, self.constant([0])])
            self.add("ScatterND", [x, self.constant([[self.one_of([0, -1])]]), part])
        else:
            part = self.value("Slice", [x, self.constant([0]), self.constant([1]), self.constant([0])])
            places = self.value("Shape", [part])
            places = self.value("ConstantOfShape", [places], value=numpy_helper.from_array(np.array([self.one_of([0, -1])])))
            more = {"reduction": self.one_of(["none", "add"])} if self.opset > 15 else {}
            self.add("ScatterElements", [x, places, part], axis=0, **more)

    def add_list(self):
        x = self.pick(has_axes)
        if x is None:
            return
        axis = self.axis(x)
        self.count += 1
        parts, chosen = f"s{self.count}", self.below(2, -1)
        if self.chance(0.5):
            nodes = [helper.make_node("SplitToSequence", [x], [parts], axis=axis, keepdims=self.below(2))]
            nodes.append(helper.make_node("SequenceAt", [parts, self.constant(chosen)], [parts + "r"]))
        else:
            nodes = [helper.make_node("SequenceConstruct", [x] * self.below(4, 1), [parts])]
            nodes.append(helper.make_node("ConcatFromSequence", [parts], [parts + "r"], axis=axis, new_axis=self.below(2)))
        # The nodes are put into a branch, so that they count as one node.
        body = self.body(nodes, [], [(parts + "r", None, 0)])
        self.add("If", [self.constant(True)], then_branch=body, else_branch=body)

    def add_attention(self):
        x = self.pick(lambda value: is_float(value) and value.ndim == 3 and value.shape[2] % 2 == 0 and value.size, [2])
        if x is None:
            return
        width = self.values[x].shape[2]
        split = self.constant([0, 0, 2, width // 2])
        rows = []
        for place in range(3):
            row = self.value("MatMul", [x, self.quarters(width, width)])
            if self.chance(0.5):
                row = self.value("Add", [row, self.quarters(width)])
            row = self.value("Reshape", [row, split])
            rows.append(self.value("Transpose", [row], perm=[0, 2, 3, 1] if place == 1 else [0, 2, 1, 3]))
        scores = self.value("Mul", [self.value("MatMul", rows[:2]), self.constant(np.float32(0.5))])
        mixed = self.value("MatMul", [self.value("Softmax", [scores], axis=-1), rows[2]])
        mixed = self.value("Transpose", [mixed], perm=[0, 2, 1, 3])
        self.add("Reshape", [mixed, self.constant([0, 0, width])])

    def add_selected(self):
        x = self.pick(has_axes)
        if x and self.chance(0.5):
            sizes = self.value("Shape", [x])
            count = self.value("Gather", [sizes, self.constant(0)])
            places = self.value("Range", [self.constant(0), count, self.constant(1)])
            chosen = self.value("Less", [places, self.constant(self.below(4, 1))])
            self.add("Compress", [x, chosen], axis=0)
        elif x:
            # Floats that differ only in their last bits would be distinct values.
            self.add("Unique", [self.pick(is_whole)], sorted=1)

    def add_reversed(self):
        x = self.pick(lambda value: value.ndim > 1)
        sizes = self.value("Shape", [x])
        batch = self.value("Gather", [sizes, self.constant([1])])
        lengths = self.value("Expand", [self.constant([1]), batch])
        self.add("ReverseSequence", [x, lengths], batch_axis=1, time_axis=0)

    def model(self):
        """Returns the model, its inputs and its outputs; `None` if it has no inputs or no outputs."""
        used = {name for node in self.nodes for name in reads(node)}
        outputs = [name for node in self.nodes for name in node.output if name not in used][-4:]
        needed, nodes = set(outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                nodes.insert(0, node)
                needed.update(reads(node))
        inputs = [name for name in self.inputs if name in needed]
        if not inputs or not outputs:
            return None
        ports = [helper.make_tensor_value_info(name, TYPES[self.values[name].dtype], self.inputs[name][1]) for name in inputs]
        results = [helper.make_tensor_value_info(name, TYPES[self.values[name].dtype], [None] * self.values[name].ndim) for name in outputs]
        constants = {name: value for name, value in self.constants.items() if name in needed}
        return model_of(self.opset, nodes, ports, results, constants), inputs, outputs
