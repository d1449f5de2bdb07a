"""Small ONNX graphs made by chance, answered by a server and by ONNX Runtime, for several sizes of their free dimensions.

    python graphs.py --server PROGRAM [--count N] [--seed N] [--first N] [--steps N] [--keep FOLDER] [--verbose]

Needs numpy, onnx and onnxruntime; called by `cargo xtask zoo --graphs N`. Each graph is grown node by node: operators of shapes, slices,
products, sums and windows, each applied to values that are there already, if ONNX Runtime computes it. Free dimensions are two numbers
that no constant depends on, so that the graph makes sense for others too. What both answer must be the same in shape and value, and what
ONNX Runtime refuses must not be the server's failure. Refused graphs are counted with their reasons. A graph is the same for the same
number and seed. The exit code is 1 when something differs; the graph is then kept.
"""

import argparse
import collections
import http.client
import json
import multiprocessing
import pathlib
import re
import shutil
import signal
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import zoo

OPSET = 17
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64, np.dtype(np.int32): TensorProto.INT32, np.dtype(bool): TensorProto.BOOL}
# Sizes of the free dimensions while a graph grows, which nothing else is a multiple of, and those that are asked with.
GROWN = {"n": 7, "m": 11}
ASKED = [GROWN, {"n": 2, "m": 3}, {"n": 3, "m": 3}, {"n": 1, "m": 1}, {"n": 4, "m": 1}, {"n": 8, "m": 16}]
MOST_ELEMENTS = 60_000
LARGEST = 2**63 - 1
# Of what rounds or compares floats, the noise of sums would show.
UNARY = ["Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Erf", "Identity", "Exp"]
REDUCTIONS = ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSum", "ReduceProd", "ReduceSumSquare"]
EQUATIONS = ["ij,jk->ik", "ij,kj->ik", "ij,ij->i", "ij,jk->ki", "ij,ik->jk", "ij,kj->ijk"]


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def model_of(nodes, inputs, outputs, constants):
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def is_float(value):
    return value.dtype == np.float32


def is_whole(value):
    return value.dtype == np.int64


def is_fixed(size):
    """Whether a size follows from no free dimension."""
    return all(size % free for free in GROWN.values())


def has_axes(value):
    return value.ndim > 0


class Graph:
    """A graph with a value for everything in it, for the sizes it is grown with."""

    def __init__(self, seed, number):
        self.random = np.random.default_rng([seed, number])
        self.nodes, self.values, self.constants, self.inputs, self.count = [], {}, {}, {}, 0
        for index in range(self.random.integers(1, 4)):
            sizes = ["n", "m", "n", "m", 1, 2, 3, 5]
            dims = [sizes[place] for place in self.random.integers(len(sizes), size=self.random.integers(1, 5))]
            kind = np.float32 if self.random.random() < 0.8 else np.int64
            self.inputs[f"x{index}"] = kind, dims
            self.values[f"x{index}"] = self.filled(kind, dims, GROWN)

    def filled(self, kind, dims, sizes):
        shape = [sizes.get(dim, dim) for dim in dims]
        return self.random.integers(-8, 9, shape).astype(kind) / 4 if kind == np.float32 else self.random.integers(-3, 6, shape)

    def chance(self, share):
        return self.random.random() < share

    def one_of(self, things):
        return things[self.random.integers(len(things))]

    def below(self, end, start=0):
        return int(self.random.integers(start, end))

    def pick(self, fits=lambda value: True):
        """The name of a value, newer ones first of all."""
        names = [name for name, value in self.values.items() if fits(value)]
        return names[-1 - min(len(names) - 1, int(self.random.exponential(2.5)))] if names else None

    def constant(self, value):
        self.count += 1
        self.constants[f"c{self.count}"] = np.asarray(value)
        return f"c{self.count}"

    def quarters(self, *shape, least=-4):
        return self.constant((self.random.integers(least, 5 if least < 1 else 9, shape) / 4).astype(np.float32))

    def add(self, op, inputs, outputs=1, **attributes):
        """Adds a node if there are its inputs and ONNX Runtime computes it; the names of its outputs."""
        if None in inputs:
            return None
        self.count += 1
        names = [f"v{self.count}_{index}" for index in range(outputs)]
        node = helper.make_node(op, inputs, names, **attributes)
        given = {name: self.values[name] for name in inputs if name in self.values}
        ports = [helper.make_tensor_value_info(name, TYPES[value.dtype], value.shape) for name, value in given.items()]
        constants = {name: self.constants[name] for name in inputs if name in self.constants}
        try:
            found = session(model_of([node], ports, [onnx.ValueInfoProto(name=name) for name in names], constants)).run(None, given)
        except Exception:  # its exceptions have no common type
            return None
        if any(value.size > MOST_ELEMENTS or value.dtype not in TYPES or not np.all(np.isfinite(value)) for value in found):
            return None
        self.nodes.append(node)
        self.values.update(zip(names, found))
        return names

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
            y = self.quarters(*[size if is_fixed(size) and self.chance(0.5) else 1 for size in kept], least=1)
            self.add(self.one_of(["Add", "Sub", "Mul", "Div", "Max", "PRelu"]), [x, y])
            self.add("Sub", [y, x])

    def add_whole_with_constant(self):
        x = self.pick(is_whole)
        # Beyond 64 bits numbers wrap in other places.
        op = self.one_of(["Add", "Sub", "Mul", "Max", "Min", "Div", "Mod"])
        number = self.one_of([1, 2, 3, 7] + [-1, 2**40, LARGEST] * (op in ("Max", "Min")))
        y = self.constant(np.array(number) if self.chance(0.5) else np.array([number]))
        self.add(op, [x, y] if self.chance(0.8) or op in ("Div", "Mod") else [y, x])

    def add_product(self):
        # ONNX Runtime's sums of nothing are what stood in memory.
        x, y = (self.pick(lambda value: is_float(value) and has_axes(value) and value.size) for _ in range(2))
        if x and y and self.chance(0.5):
            order = list(range(self.values[y].ndim))
            order[-2:] = reversed(order[-2:])
            [y] = self.add("Transpose", [y], perm=order) or [y]
        self.add("MatMul", [x, y])

    def add_product_with_weights(self):
        x = self.pick(lambda value: is_float(value) and value.size and has_axes(value) and is_fixed(value.shape[-1]))
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
            [sizes] = self.add("Shape", [x]) or [None]
            [first] = self.add("Gather", [sizes, self.constant([0])]) or [None]
            [shape] = self.add("Concat", [first, self.constant([-1])], axis=0) or [None]
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
            [sizes] = self.add("Shape", [like]) or [None]
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
        x = self.pick(lambda value: any(is_fixed(size) and size > 1 for size in value.shape))
        if x:
            shape = self.values[x].shape
            axis = next(axis for axis, size in enumerate(shape) if is_fixed(size) and size > 1)
            self.add("Split", [x, self.constant([1, shape[axis] - 1])], 2, axis=axis)

    def add_reduction(self):
        x = self.pick(lambda value: (is_float(value) or is_whole(value)) and has_axes(value))
        if x:
            op = self.one_of(REDUCTIONS if is_float(self.values[x]) else ["ReduceMax", "ReduceMin", "ReduceSum"])
            axes, keeps = sorted({self.axis(x), self.axis(x)}), self.below(2)
            if op == "ReduceSum":
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
        # Which one of equal numbers comes first is left open.
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
        # Nothing says what floats that are too large for it become as INT32.
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
        x = self.pick(lambda value: is_float(value) and value.ndim in (3, 4) and is_fixed(value.shape[1]))
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
        x = self.pick(lambda value: is_float(value) and value.ndim > 1 and is_fixed(value.shape[1]) and is_fixed(value.shape[-1]))
        if x and self.chance(0.5):
            self.add("LayerNormalization", [x, self.quarters(self.values[x].shape[-1], least=1)], axis=-1)
        elif x:
            self.add("BatchNormalization", [x, *(self.quarters(self.values[x].shape[1], least=1) for _ in range(4))])

    def add_places(self):
        if self.chance(0.3):
            self.add("NonZero", [self.pick(has_axes)])
        elif self.chance(0.5):
            self.add("OneHot", [self.pick(is_whole), self.constant(4), self.constant(np.array([0, 2], np.float32))], axis=-1)
        else:
            self.add("Trilu", [self.pick(lambda value: is_float(value) and value.ndim > 1)], upper=self.below(2))

    def model(self):
        """The model, its inputs and its outputs, `None` if there are none."""
        used = {name for node in self.nodes for name in node.input}
        outputs = [name for node in self.nodes for name in node.output if name not in used][-4:]
        needed, nodes = set(outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                nodes.insert(0, node)
                needed.update(node.input)
        inputs = [name for name in self.inputs if name in needed]
        if not inputs or not outputs:
            return None
        ports = [helper.make_tensor_value_info(name, TYPES[self.values[name].dtype], self.inputs[name][1]) for name in inputs]
        results = [helper.make_tensor_value_info(name, TYPES[self.values[name].dtype], [None] * self.values[name].ndim) for name in outputs]
        constants = {name: value for name, value in self.constants.items() if name in needed}
        return model_of(nodes, ports, results, constants), inputs, outputs


class Asked:
    """A server that is given one graph after the other."""

    def __init__(self, address, repository):
        self.address, self.repository = address, repository

    def ask(self, path, body):
        connection = http.client.HTTPConnection(self.address, timeout=120)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"{}")
        finally:
            connection.close()

    def load(self, model):
        """Why the model is refused, or nothing."""
        shutil.rmtree(self.repository / "graph", ignore_errors=True)
        folder = self.repository / "graph" / "1"
        folder.mkdir(parents=True)
        onnx.save(model, folder / "model.onnx")
        status, answer = self.ask("/v2/repository/models/graph/load", {})
        return None if status == 200 else answer["error"]

    def infer(self, inputs):
        tensors = [
            {"name": name, "datatype": "FP32" if is_float(value) else "INT64", "shape": value.shape, "data": value.ravel().tolist()}
            for name, value in inputs.items()
        ]
        return self.ask("/v2/models/graph/infer", {"inputs": tensors})


def difference(answer, outputs, expected):
    """How an answer differs from ONNX Runtime's, or nothing."""
    found = {output["name"]: output for output in answer["outputs"]}
    for name, wanted in zip(outputs, expected):
        if found[name]["shape"] != list(wanted.shape):
            return f"{name} has shape {found[name]['shape']}, expected {list(wanted.shape)}"
        values = np.array([np.nan if value is None else value for value in found[name]["data"]], np.float64 if is_float(wanted) else wanted.dtype)
        if is_float(wanted):
            # JSON has neither infinities nor NaN.
            wanted = np.where(np.isfinite(wanted), wanted, np.nan).astype(np.float64)
            largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1)
            is_same = np.allclose(values, wanted.ravel(), rtol=2e-4, atol=2e-4 * largest, equal_nan=True)
        else:
            is_same = np.array_equal(values, wanted.ravel())
        if not is_same:
            return f"{name} has {values[:6]}, expected {wanted.ravel()[:6]}"
    return None


def tried(graph, asked):
    """The outcome for a graph, and its model; findings begin with a capital letter."""
    made = graph.model()
    if made is None:
        return "nothing to ask", None
    model, inputs, outputs = made
    try:
        reference = session(model)
    except Exception:  # its exceptions have no common type
        return "not for all sizes", None
    refusal = asked.load(model)
    if refusal is not None:
        return "refused: " + re.sub(r"'[^']*'|-?\d+", "_", refusal.split(";")[0].split(": ", 1)[-1])[:150], model
    outcome = "equal"
    for sizes in ASKED:
        given = {name: graph.values[name] if sizes is GROWN else graph.filled(*graph.inputs[name], sizes) for name in inputs}
        try:
            expected = reference.run(None, given)
        except Exception:  # its exceptions have no common type
            expected = None
        status, answer = asked.infer(given)
        if status >= 500:
            return f"STATUS {status}: {answer['error']}; {sizes}", model
        if status == 200 and expected is not None and (differs := difference(answer, outputs, expected)):
            return f"OTHER ANSWER: {differs}; {sizes}", model
        if status != 200 and expected is not None:
            outcome = "refused for some sizes: " + re.sub(r"'[^']*'|-?\d+", "_", answer["error"].split(": ", 1)[-1])[-110:]
    return outcome, model


def work(options, first, asked, outcomes):
    """Tries one graph after the other, and sends the outcome of each."""
    onnxruntime.set_default_logger_severity(4)
    for number in range(first, options.first + options.count):
        graph = Graph(options.seed, number)
        for _ in range(options.steps):
            graph.grow()
        try:
            outcome, model = tried(graph, asked)
        except (OSError, http.client.HTTPException) as error:
            outcome, model = f"NO ANSWER: {error!r}", graph.model()[0]
        if outcome[0].isupper() or (options.verbose and outcome.startswith("refused")):
            options.keep.mkdir(parents=True, exist_ok=True)
            onnx.save(model, options.keep / f"{options.seed}-{number}.onnx")
        outcomes.send((number, outcome))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=14, help="nodes that are tried for each graph")
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("graphs"))
    parser.add_argument("--verbose", action="store_true", help="print and keep what is refused, too")
    options = parser.parse_args()
    counts, has_finding, server = collections.Counter(), False, None
    with tempfile.TemporaryDirectory() as temporary:
        first, is_done = options.first, False
        while not is_done:
            if server is None or not server.is_running():
                server = zoo.Server(options.server, temporary)
            # ONNX Runtime ends its process at some graphs.
            outcomes, sent = multiprocessing.Pipe(False)
            asked = Asked(server.address, pathlib.Path(temporary))
            process = multiprocessing.get_context("spawn").Process(target=work, args=(options, first, asked, sent))
            process.start()
            sent.close()
            while server.is_running():
                try:
                    number, outcome = outcomes.recv()
                except EOFError:
                    break
                first = number + 1
                is_finding = outcome[0].isupper()
                has_finding |= is_finding
                counts[re.match("[A-Z ]+", outcome)[0].strip() if is_finding else outcome] += 1
                if is_finding or (options.verbose and outcome.startswith("refused")):
                    print(f"{options.seed}-{number}: {outcome[:400]}", flush=True)
            if not server.is_running():
                process.kill()
                has_finding = True
                print(f"{options.seed}-{first}: THE SERVER ENDED", flush=True)
            process.join()
            is_done = process.exitcode == 0
            if not is_done:
                counts["ONNX Runtime ended"] += process.exitcode != -signal.SIGKILL
                first += 1
        server.stop()
    for outcome, count in counts.most_common():
        print(f"{count:6} {outcome}")
    return int(has_finding or not counts["equal"])


if __name__ == "__main__":
    sys.exit(main())
