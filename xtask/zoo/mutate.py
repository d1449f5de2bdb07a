"""Real ONNX models with their structure changed, given to a server: none may end it, hang it or make it balloon.

    python mutate.py --server PROGRAM --folder FOLDER [--count N] [--seconds N] [--first N] [--seed N] [--only REGEX] [--keep FOLDER]

FOLDER has the models that `cargo xtask zoo` fetched. Each mutant is a model of at most 2 MB with one to four changes: sizes and
axes in shapes, attributes and constants, operators, links between nodes, datatypes, nodes in branches of branches and in loops
without an end. It is loaded, and run once if that succeeds. The exit code is 1 when the server ends, answers nobody in
time, or takes more memory than it should; the mutant is then kept.
"""

import argparse
import collections
import pathlib
import re
import shutil
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import zoo

LARGEST = 2 << 20
SIZES = [-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 64, 1000, 65537, 2**31 - 1, 2**40, 2**62, 2**63 - 1]
# What a load and a run may take: the server's own limits and some patience on a busy machine.
LOAD_SECONDS, RUN_SECONDS = 60, 10
PATIENCE = 30
# Resident memory of the server beyond what it had before, in bytes.
MOST_MEMORY = 6 << 30
DEEPEST = 25


def graphs(graph):
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


class Mutation:
    """One change of a model, of a kind that chance chooses; says what it did, or nothing if there was no place for it."""

    def __init__(self, random):
        self.random = random

    def pick(self, things):
        things = list(things)
        return things[self.random.integers(len(things))] if things else None

    def apply(self, model):
        graph = self.pick(graphs(model.graph))
        kind = self.pick([
            self.input_size, self.constant, self.constant, self.constant_shape, self.attribute, self.attribute, self.operator, self.link,
            self.datatype, self.drop, self.repeat, self.branch, self.loop, self.claim,
        ])
        return kind(model, graph)

    def input_size(self, model, graph):
        port = self.pick(model.graph.input)
        dims = port.type.tensor_type.shape.dim if port else []
        dim = self.pick(dims)
        if dim is None:
            return None
        if self.random.random() < 0.3:
            dim.dim_param = "n"
        else:
            dim.dim_value = self.pick(SIZES)
        return "input size"

    def constant(self, model, graph):
        """A number of a constant of whole numbers: mostly shapes, axes and pads."""
        tensors = [tensor for tensor in graph.initializer if tensor.data_type == TensorProto.INT64]
        tensors += [
            attribute.t for node in graph.node if node.op_type == "Constant" for attribute in node.attribute
            if attribute.t.data_type == TensorProto.INT64
        ]
        tensor = self.pick(tensors)
        if tensor is None:
            return None
        values = numpy_helper.to_array(tensor).copy()
        if values.size == 0:
            return None
        values.reshape(-1)[self.random.integers(values.size)] = self.pick(SIZES)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        return "constant"

    def constant_shape(self, model, graph):
        """A constant of another shape, with as many numbers as that takes, or not."""
        tensor = self.pick(graph.initializer)
        if tensor is None or not tensor.dims:
            return None
        place = self.random.integers(len(tensor.dims))
        if self.random.random() < 0.5:
            tensor.dims[place] = self.pick(SIZES)
            return "claimed shape"
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(np.roll(values, 1).swapaxes(0, place)), tensor.name))
        return "turned constant"

    def attribute(self, model, graph):
        node = self.pick(node for node in graph.node if node.attribute)
        attribute = self.pick(node.attribute) if node else None
        if attribute is None:
            return None
        if attribute.type == onnx.AttributeProto.INT:
            attribute.i = self.pick(SIZES)
        elif attribute.type == onnx.AttributeProto.INTS:
            change = self.random.integers(3)
            if change == 0 and attribute.ints:
                del attribute.ints[-1]
            elif change == 1:
                attribute.ints.append(self.pick(SIZES))
            elif attribute.ints:
                attribute.ints[self.random.integers(len(attribute.ints))] = self.pick(SIZES)
        elif attribute.type == onnx.AttributeProto.FLOAT:
            attribute.f = self.pick([0.0, -1.0, 1e38, float("nan"), float("inf")])
        else:
            node.attribute.remove(attribute)
        return "attribute"

    def operator(self, model, graph):
        node, other = self.pick(graph.node), self.pick(graph.node)
        if node is None or node.op_type == other.op_type:
            return None
        node.op_type = other.op_type
        if self.random.random() < 0.5:
            del node.attribute[:]
            node.attribute.extend(other.attribute)
        return "operator"

    def link(self, model, graph):
        node, other = self.pick(graph.node), self.pick(graph.node)
        values = [value for value in [*other.input, *other.output] if value] if other else []
        if node is None or not node.input or not values:
            return None
        node.input[self.random.integers(len(node.input))] = self.pick(values)
        return "link"

    def datatype(self, model, graph):
        port = self.pick(model.graph.input)
        if port is None:
            return None
        port.type.tensor_type.elem_type = int(self.random.integers(1, 17))
        return "datatype"

    def drop(self, model, graph):
        node = self.pick(graph.node)
        if node is None:
            return None
        graph.node.remove(node)
        return "dropped node"

    def repeat(self, model, graph):
        """A node that is applied to its own result, again and again: sizes may double each time."""
        node = self.pick(node for node in graph.node if node.input and len(node.output) == 1 and node.input[0])
        if node is None:
            return None
        place = list(graph.node).index(node)
        result, last = node.output[0], node.input[0]
        copies = []
        for index in range(int(self.pick([2, 20, 200]))):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = f"{node.name}~{index}"
            copy.input[0], copy.output[0] = last, f"{result}~{index}"
            if self.random.random() < 0.3 and len(copy.input) > 1:
                copy.input[1] = last
            last = copy.output[0]
            copies.append(copy)
        copies[-1].output[0] = result
        graph.node.remove(node)
        for copy in reversed(copies):
            graph.node.insert(place, copy)
        return "repeated node"

    def inner(self, node):
        outputs = [helper.make_empty_tensor_value_info(f"{name}~") for name in node.output]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for index, output in enumerate(outputs):
            copy.output[index] = output.name
        return copy, outputs

    def branch(self, model, graph):
        """A node inside of branches of branches."""
        node = self.pick(node for node in graph.node if node.output and all(node.output))
        if node is None:
            return None
        place = list(graph.node).index(node)
        graph.node.remove(node)
        for level in range(int(self.pick([1, 3, DEEPEST]))):
            copy, outputs = self.inner(node)
            condition = helper.make_node("Constant", [], [f"{node.name}~c{level}"], value=helper.make_tensor("c", TensorProto.BOOL, [], [1]))
            taken = helper.make_graph([copy], f"b{level}", [], outputs)
            # The other one is small, or the model would double with each level.
            numbers = [
                helper.make_node("Constant", [], [output.name], value=helper.make_tensor("x", TensorProto.FLOAT, [1], [0.0]))
                for output in outputs
            ]
            other = helper.make_graph(numbers, f"o{level}", [], outputs)
            outer = helper.make_node("If", [condition.output[0]], list(node.output), then_branch=taken, else_branch=other)
            outer.name = f"{node.name}~{level}"
            graph.node.insert(place, condition)
            node = outer
            place += 1
        graph.node.insert(place, node)
        return "branches"

    def loop(self, model, graph):
        """A node that is computed without end, or very often."""
        node = self.pick(node for node in graph.node if len(node.output) == 1 and node.output[0])
        if node is None:
            return None
        place = list(graph.node).index(node)
        copy, outputs = self.inner(node)
        go_on = helper.make_node("Identity", ["c~in"], ["c~out"])
        body = helper.make_graph(
            [copy, go_on], "body",
            [helper.make_tensor_value_info("i~", TensorProto.INT64, []), helper.make_tensor_value_info("c~in", TensorProto.BOOL, [])],
            [helper.make_tensor_value_info("c~out", TensorProto.BOOL, []), *outputs],
        )
        count = helper.make_node("Constant", [], [f"{node.name}~n"], value=helper.make_tensor("n", TensorProto.INT64, [], [self.pick(SIZES)]))
        loop = helper.make_node("Loop", [count.output[0] if self.random.random() < 0.7 else "", ""], list(node.output), body=body)
        graph.node.remove(node)
        graph.node.insert(place, loop)
        graph.node.insert(place, count)
        return "loop"

    def claim(self, model, graph):
        port = self.pick(graph.output)
        if port is None:
            return None
        port.type.tensor_type.shape.dim.add().dim_value = self.pick(SIZES)
        return "claimed output"


def memory(server):
    """Resident bytes."""
    pages = pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def small_inputs(server, name):
    """Inputs of the smallest sizes that the server says the model takes."""
    metadata = server.metadata(name)
    inputs = {}
    for port in metadata["inputs"]:
        shape = [1 if dim < 0 else dim for dim in port["shape"]]
        if int(np.prod([min(dim, 1 << 24) for dim in shape], dtype=np.float64)) > 1 << 22:
            return None
        kind = {"BYTES": object, "FP32": np.float32, "FP64": np.float64, "FP16": np.float16, "BOOL": np.bool_}.get(port["datatype"])
        if kind is object:
            inputs[port["name"]] = np.full(shape, "a", dtype=object)
        else:
            inputs[port["name"]] = np.ones(shape, kind or port["datatype"].lower())
    return inputs


def tried(server, repository, content):
    """The result for a mutant."""
    name = "mutant"
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(content)
    try:
        start = time.monotonic()
        refusal = server.call(f"/v2/repository/models/{name}/load")
        taken = time.monotonic() - start
        if taken > LOAD_SECONDS + PATIENCE:
            return f"LOAD TOOK {taken:.0f} s"
        if refusal is not None:
            return "refused" if taken < 5 else f"refused after {5 * round(taken / 5)} s"
        inputs = small_inputs(server, name)
        if inputs is None:
            return "loaded"
        start = time.monotonic()
        try:
            server.infer(name, inputs)
            result = "answered"
        except Exception as error:
            result = "not answered" if "[500]" not in str(error) else "answered with 500"
        taken = time.monotonic() - start
        return f"RUN TOOK {taken:.0f} s" if taken > RUN_SECONDS + PATIENCE else result
    finally:
        if server.is_running():
            server.call(f"/v2/repository/models/{name}/unload")
        shutil.rmtree(repository / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first mutant, to go on with a run that ended")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true", help="print every outcome")
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("mutants"))
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    paths = [path for path in sorted(options.folder.glob("*.onnx")) if path.stat().st_size <= LARGEST and re.search(options.only, path.name)]
    limits = ["--request-timeout", f"{RUN_SECONDS}s", "--max-request-timeout", f"{RUN_SECONDS}s", "--load-timeout", f"{LOAD_SECONDS}s"]
    counts, kinds, bad, server = collections.Counter(), collections.Counter(), 0, None
    with tempfile.TemporaryDirectory() as temporary:
        repository = pathlib.Path(temporary)
        started = time.monotonic()
        for index in range(options.first, options.first + options.count):
            if time.monotonic() - started > options.seconds:
                print(f"ended before {options.seed}-{index}")
                break
            random = np.random.default_rng([options.seed, index])
            path = paths[random.integers(len(paths))]
            try:
                model = onnx.load(path, load_external_data=False)
            except Exception:  # a pointer to a file, or a damaged one
                counts["cannot be read"] += 1
                continue
            mutation = Mutation(random)
            try:
                done = [mutation.apply(model) for _ in range(random.integers(1, 5))]
                kinds.update(kind for kind in done if kind)
                content = model.SerializeToString()
            except Exception:  # too deep for its own package
                counts["cannot be written"] += 1
                continue
            if server is None or not server.is_running():
                server = zoo.Server(options.server, str(repository), limits=limits)
                idle = memory(server)
            try:
                result = tried(server, repository, content)
            except Exception as error:
                result = f"NO ANSWER: {error}"
            if not server.is_running():
                result = f"SERVER ENDED with exit code {server.process.returncode}"
            elif memory(server) - idle > MOST_MEMORY:
                result = f"TOOK {(memory(server) - idle) >> 20} MiB"
                server.stop()
            counts[result if result[0].islower() else result.split()[0]] += 1
            if not result[0].islower():
                bad += 1
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{options.seed}-{index}.onnx").write_bytes(content)
                print(f"{options.seed}-{index} {path.name}: {', '.join(map(str, done))}: {result}", flush=True)
            if options.verbose:
                print(f"{options.seed}-{index} {path.name}: {', '.join(map(str, done))}: {result}", flush=True)
            if (index + 1) % 250 == 0:
                print(f"{index + 1}: {dict(counts)}", flush=True)
        if server is not None:
            server.stop()
    print(f"changes: {dict(kinds)}")
    print(f"outcomes: {dict(counts)}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
