"""Random changes to the structure of ONNX models. `mutate.py` gives the results to a server."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZES = [-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 64, 1000, 65537, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1]
DEEPEST = 40


def graphs(graph):
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


class Mutation:
    """A random change to a model. `apply` returns its description, or None if there was nothing to change."""

    def __init__(self, random):
        self.random = random

    def pick(self, things):
        things = list(things)
        return things[self.random.integers(len(things))] if things else None

    def apply(self, model):
        graph = self.pick(graphs(model.graph))
        kind = self.pick([
            self.input_size, self.constant, self.constant, self.constant_shape, self.attribute, self.attribute, self.operator, self.link,
            self.datatype, self.constant_datatype, self.constant_bytes, self.drop, self.twice, self.repeat, self.branch, self.choice,
            self.loop, self.growth, self.scan, self.claim,
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
        """Changes a number in an integer constant; most of these are shapes, axes and pads."""
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
        """Changes the shape of a constant, with or without the matching number of elements."""
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

    def constant_datatype(self, model, graph):
        tensor = self.pick(graph.initializer)
        if tensor is None:
            return None
        if self.random.random() < 0.5:
            tensor.data_type = int(self.random.integers(1, 17))
            return "claimed datatype"
        kind = self.pick([np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_])
        values = numpy_helper.to_array(tensor)
        if values.dtype.kind not in "fiub":
            return None
        with np.errstate(all="ignore"):
            tensor.CopyFrom(numpy_helper.from_array(values.astype(kind), tensor.name))
        return "constant of another type"

    def constant_bytes(self, model, graph):
        """Changes the bytes of a constant: fewer or more than its shape needs, or different values."""
        tensor = self.pick(tensor for tensor in graph.initializer if tensor.raw_data)
        if tensor is None:
            return None
        content = bytearray(tensor.raw_data)
        change = self.random.integers(3)
        if change == 0:
            del content[self.random.integers(len(content)):]
        elif change == 1:
            content += bytes(int(self.random.integers(1, 64)))
        else:
            for place in self.random.integers(len(content), size=8):
                content[place] = self.pick([0, 0x7F, 0x80, 0xFF])
        tensor.raw_data = bytes(content)
        return "bytes of a constant"

    def twice(self, model, graph):
        """Duplicates a node, with the same outputs or with unused ones."""
        node = self.pick(graph.node)
        if node is None:
            return None
        copy = graph.node.add()
        copy.CopyFrom(node)
        if self.random.random() < 0.5:
            for index in range(len(copy.output)):
                copy.output[index] += "~twice"
        return "doubled node"

    def drop(self, model, graph):
        node = self.pick(graph.node)
        if node is None:
            return None
        graph.node.remove(node)
        return "dropped node"

    def repeat(self, model, graph):
        """Applies a node to its own result repeatedly, so that sizes may double each time."""
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
        """Moves a node into nested branches."""
        node = self.pick(node for node in graph.node if node.output and all(node.output))
        if node is None:
            return None
        place = list(graph.node).index(node)
        graph.node.remove(node)
        for level in range(int(self.pick([1, 3, DEEPEST]))):
            copy, outputs = self.inner(node)
            condition = helper.make_node("Constant", [], [f"{node.name}~{place}~c{level}"], value=helper.make_tensor("c", TensorProto.BOOL, [], [1]))
            taken = helper.make_graph([copy], f"b{level}", [], outputs)
            # The other branch is small; otherwise the model would double with each level.
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

    def choice(self, model, graph):
        """Moves a node into a branch that depends on the shape or a value of an input at run time. The other branch
        returns something else."""
        node = self.pick(node for node in graph.node if len(node.output) == 1 and node.output[0])
        port = self.pick(model.graph.input)
        if node is None or port is None:
            return None
        place = list(graph.node).index(node)
        name = f"{node.name}~{place}~if"
        nodes = [
            helper.make_node("Size" if self.random.random() < 0.7 else "Identity", [port.name], [f"{name}~size"]),
            helper.make_node("Cast", [f"{name}~size"], [f"{name}~number"], to=TensorProto.INT64),
            helper.make_node("Constant", [], [f"{name}~most"], value=helper.make_tensor("m", TensorProto.INT64, [], [self.pick(SIZES)])),
            helper.make_node("Greater", [f"{name}~number", f"{name}~most"], [f"{name}~c"]),
        ]
        copy, outputs = self.inner(node)
        taken = helper.make_graph([copy], "taken", [], outputs)
        if self.random.random() < 0.5 and node.input and node.input[0]:
            other = helper.make_node("Identity", [node.input[0]], [outputs[0].name])
        else:
            other = helper.make_node("Constant", [], [outputs[0].name], value=helper.make_tensor("x", TensorProto.FLOAT, [1, 1], [0.0]))
        other = helper.make_graph([other], "other", [], outputs)
        bodies = [taken, other] if self.random.random() < 0.5 else [other, taken]
        nodes.append(helper.make_node("If", [f"{name}~c"], list(node.output), then_branch=bodies[0], else_branch=bodies[1], name=name))
        graph.node.remove(node)
        for new in reversed(nodes):
            graph.node.insert(place, new)
        return "branch at run time"

    def growth(self, model, graph):
        """Adds a value that grows with each iteration of a loop: it doubles, or a copy is kept per iteration."""
        node = self.pick(node for node in graph.node if len(node.output) == 1 and node.output[0])
        if node is None:
            return None
        place = list(graph.node).index(node)
        name = f"{node.name}~{place}~grow"
        result = node.output[0]
        node.output[0] = f"{name}~before"
        nodes = [
            helper.make_node("Concat", ["v~in", "v~in"], ["v~out"], axis=int(self.pick([0, 0, -1, 1]))),
            helper.make_node("Identity", ["c~in"], ["c~out"]),
            helper.make_node("Identity", ["v~in"], ["row~"]),
        ]
        body = helper.make_graph(
            nodes, "body",
            [
                helper.make_tensor_value_info("i~", TensorProto.INT64, []), helper.make_tensor_value_info("c~in", TensorProto.BOOL, []),
                helper.make_empty_tensor_value_info("v~in"),
            ],
            [helper.make_tensor_value_info("c~out", TensorProto.BOOL, []), helper.make_empty_tensor_value_info("v~out")],
        )
        outputs = [result]
        if self.random.random() < 0.5:
            del body.node[0]
            body.node[1].output[0] = "v~out"
            body.node.add().CopyFrom(helper.make_node("Identity", ["v~in"], ["row~"]))
            body.output.append(helper.make_empty_tensor_value_info("row~"))
            outputs = [f"{name}~last", result]
        count = helper.make_tensor("n", TensorProto.INT64, [], [self.pick([*SIZES, 20, 30, 40])])
        graph.node.insert(place + 1, helper.make_node("Loop", [f"{name}~n", "", f"{name}~before"], outputs, body=body, name=name))
        graph.node.insert(place + 1, helper.make_node("Constant", [], [f"{name}~n"], value=count))
        return "growth"

    def scan(self, model, graph):
        """Computes a node for each row of its first input."""
        node = self.pick(node for node in graph.node if len(node.output) == 1 and node.output[0] and node.input and node.input[0])
        if node is None:
            return None
        place = list(graph.node).index(node)
        copy, outputs = self.inner(node)
        copy.input[0] = "row~"
        body = helper.make_graph([copy], "body", [helper.make_empty_tensor_value_info("row~")], outputs)
        axis = int(self.pick([0, 0, 1, -1, *SIZES]))
        outer = helper.make_node(
            "Scan", [node.input[0]], list(node.output), body=body, num_scan_inputs=int(self.pick([1, 1, 1, 0, 2, -1])),
            scan_input_axes=[axis], name=f"{node.name}~scan",
        )
        graph.node.remove(node)
        graph.node.insert(place, outer)
        return "scan"

    def loop(self, model, graph):
        """Computes a node in an endless or very long loop."""
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
        count = helper.make_node("Constant", [], [f"{node.name}~{place}~n"], value=helper.make_tensor("n", TensorProto.INT64, [], [self.pick(SIZES)]))
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
