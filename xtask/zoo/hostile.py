"""Sends small malicious ONNX files and requests to a server, and measures their cost.

    python hostile.py --server PROGRAM [--only REGEX]

Needs the packages of zoo.py; called by `cargo xtask zoo --hostile`. Each case has its own server, which loads the file,
and one request with a deadline of three seconds. The exit code is 1 if a server crashes, answers with 500, loads for
more than a minute, uses more memory than the case allows, or is still busy some seconds after its response: a large
value is zeroed in one step, without checking the deadline.
"""

import argparse
import json
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from processes import memory
from served import Server, place

FLOAT, DOUBLE, INT64, TEXT = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING
LIMITS = ("--request-timeout", "3s")
# Maximum time for loading, and time after a response at which the server must be idle, in seconds.
LONGEST_LOAD, BUSY_AFTER = 60, 12
# Memory that a case may use by default, in MiB.
MEMORY = 1024


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)


def model(nodes, inputs, output=FLOAT, constants=(), opset=18, functions=()):
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants]
    graph = helper.make_graph(nodes, "hostile", values, [helper.make_tensor_value_info("y", output, None)], constants)
    opsets = [helper.make_opsetid(*pair) for pair in (("", opset), ("ai.onnx.ml", 3), ("com.microsoft", 1), ("own", 1))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)


class Case:
    """A file, a request, and the memory that both may use, in MiB."""

    def __init__(self, name, file, inputs=None, memory=MEMORY):
        self.name, self.file, self.memory = name, file, memory
        self.inputs = {key: np.asarray(value) for key, value in (inputs or {}).items()}


def texts():
    long = np.array([b"x" * 900_000], object)
    many = np.zeros(40_000, np.int64)
    pair = [("t", TEXT, ["a"]), ("n", INT64, ["b"])]
    yield Case("texts gathered", model([node("Gather", ["t", "n"], ["y"])], pair, TEXT), {"t": long, "n": many})
    places = [node("Unsqueeze", ["n", "last"], ["p"]), node("GatherND", ["t", "p"], ["y"])]
    yield Case("texts gathered by coordinates", model(places, pair, TEXT, [("last", [-1])]), {"t": long, "n": many})
    columns = [node("ArrayFeatureExtractor", ["t", "n"], ["y"], domain="ai.onnx.ml")]
    yield Case("texts as features", model(columns, pair, TEXT), {"t": long, "n": many})
    wide = [("t", TEXT, ["a"]), ("n", INT64, [1])]
    yield Case("texts expanded", model([node("Expand", ["t", "n"], ["y"])], wide, TEXT), {"t": long, "n": [40_000]})
    constant = [node("Expand", ["t", "n"], ["z"]), node("Shape", ["z"], ["s"]), node("Add", ["s", "x"], ["y"])]
    yield Case("a constant text expanded", model(constant, [("x", INT64, [1])], INT64, [("t", long), ("n", [40_000])]), {"x": [1]})
    hot = [node("OneHot", ["n", "depth", "t"], ["y"])]
    both = np.array([b"x" * 900_000, b""], object)
    yield Case("texts one hot", model(hot, pair, TEXT, [("depth", 3)]), {"t": both, "n": many})
    joined = [node("Concat", ["t" if at == 0 else f"c{at - 1}"] * 2, [f"c{at}" if at < 15 else "y"], axis=0) for at in range(16)]
    yield Case("texts doubled", model(joined, pair[:1], TEXT), {"t": long}, 2048)
    body = [node("Identity", ["on"], ["on2"]), node("Identity", ["v"], ["v2"]), node("Identity", ["v"], ["s"])]
    ports = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in [
        ("i", INT64, []), ("on", TensorProto.BOOL, []), ("v", TEXT, [1]), ("on2", TensorProto.BOOL, []), ("v2", TEXT, [1]), ("s", TEXT, [1])]]
    loop = [node("Loop", ["n", "", "t"], ["o", "y"], body=helper.make_graph(body, "body", ports[:3], ports[3:]))]
    yield Case("texts collected by a loop", model(loop, [("t", TEXT, [1]), ("n", INT64, [])], TEXT), {"t": long, "n": 40_000})


def files():
    empty = node("Identity", ["x"], ["y"])
    empty.attribute.extend([onnx.AttributeProto() for _ in range(100_000)])
    function = helper.make_function("own", "f", ["x"], ["y"], [empty], [helper.make_opsetid("", 18)])
    names = ["x", *(f"v{at}" for at in range(999)), "y"]
    uses = [node("f", [name], [after], domain="own") for name, after in zip(names, names[1:])]
    yield Case("a function of empty attributes", model(uses, [("x", FLOAT, [1])], functions=[function]))
    one = numpy_helper.from_array(np.ones(1, np.float32))
    made = [node("ConstantOfShape", ["s"], ["a"], value=one), node("ConstantOfShape", ["t"], ["b"], value=one)]
    after = [node("ReduceMax", ["c"], ["r"], keepdims=0), node("Add", ["x", "r"], ["y"])]
    single = [("x", FLOAT, [1])]
    sizes = [("s", [1 << 14, 1 << 14]), ("t", [1 << 14, 1 << 14])]
    yield Case("a product of constants", model([*made, node("MatMul", ["a", "b"], ["c"]), *after], single, constants=sizes), {"x": np.ones(1, np.float32)}, 4096)
    sizes = [("s", [1, 1, 4096, 4096]), ("t", [1, 1, 2048, 2048])]
    yield Case("a convolution of constants", model([*made, node("Conv", ["a", "b"], ["c"]), *after], single, constants=sizes), {"x": np.ones(1, np.float32)})
    steps = [node("Shape", ["x"], ["s0"])]
    for at in range(70):
        steps += [node("Add", [f"s{at}", "three"], [f"a{at}"]), node("Div", [f"a{at}", "two"], [f"s{at + 1}"])]
    steps.append(node("ConstantOfShape", ["s70"], ["y"]))
    yield Case("sizes in seventy steps", model(steps, [("x", FLOAT, ["n"])], constants=[("three", [3]), ("two", [2])]), {"x": np.ones(5, np.float32)})


    chain = [node("ConstantOfShape", ["n"], ["e0"], value=numpy_helper.from_array(np.full(1, 1.1, np.float32)))]
    chain += [node("Sin", [f"e{at}"], [f"e{at + 1}"]) for at in range(200)] + [node("ReduceSum", ["e200"], ["r"], keepdims=0), node("Add", ["x", "r"], ["y"])]
    yield Case("a chain on a constant", model(chain, single, constants=[("n", [1 << 28])]), {"x": np.ones(1, np.float32)}, 2048)
    doubled = [node("Concat", [f"c{at}"] * 2, [f"c{at + 1}" if at < 11 else "e0"], axis=0) for at in range(12)]
    for at in range(500):
        doubled += [node("Sin" if at % 2 else "Neg", [f"e{at}"], [f"e{at + 1}"]), node("Gather", [f"e{at + 1}", "x"], [f"g{at}"])]
    doubled.append(node("Sum", [f"g{at}" for at in range(500)], ["y"]))
    yield Case("constants that are all read", model(doubled, [("x", INT64, [1])], constants=[("c0", np.ones(512, np.float32))]), {"x": np.zeros(1, np.int64)})
    separators = [node("Tokenizer", ["x"], ["y"], domain="com.microsoft", mark=0, pad_value="", mincharnum=1, separators=[f"[a-z]{{{at % 40 + 1}}}{at}" for at in range(5000)])]
    yield Case("thousands of separators", model(separators, [("x", TEXT, ["n"])], TEXT), {"x": np.array([b"abc"], object)})


def lists():
    expanded = node("Expand", ["x", "s"], ["e"])

    def of_many(name, nodes, kind, number, output, **others):
        last = [node("ReduceMax", ["r"], ["y"], keepdims=0)] if output == INT64 else []
        inputs = [("x", kind, ["n"]), ("s", INT64, [1])]
        return Case(name, model([expanded, *nodes, *last], inputs, output, **others), {"x": np.zeros(1, number), "s": [1 << 26]}, 3072)

    hot = [node("OneHot", ["e", "depth", "both"], ["r"])]
    yield of_many("many one hot", hot, TensorProto.UINT8, np.uint8, INT64, constants=[("depth", 1), ("both", [0, 1])])
    codes = [node("LabelEncoder", ["e"], ["r"], domain="ai.onnx.ml", keys_int64s=[0], values_int64s=[5])]
    yield of_many("many labels", codes, INT64, np.int64, INT64)
    letters = [node("Gather", ["x", "n"], ["e"]), node("Tokenizer", ["e"], ["y"], domain="com.microsoft", mark=0, pad_value="", mincharnum=1, separators=[""])]
    yield Case("many tokens", model(letters, [("x", TEXT, ["a"]), ("n", INT64, ["b"])], TEXT), {"x": np.array([b"a" * 900_000], object), "n": np.zeros(500, np.int64)})
    parts = [node("Expand", ["x", "s"], ["e"]), node("Unique", ["e"], ["y"], axis=0)]
    yield Case("long parts of an axis", model(parts, [("x", TensorProto.UINT8, ["n", 1]), ("s", INT64, [2])], TensorProto.UINT8),
               {"x": np.zeros((4096, 1), np.uint8), "s": [4096, 50_000]})
    order = [expanded, node("RandomUniformLike", ["e"], ["r"]), node("TopK", ["r", "s"], ["t", "p"]), node("ReduceMax", ["t"], ["y"], keepdims=0)]
    yield Case("a long order", model(order, [("x", FLOAT, ["n"]), ("s", INT64, [1])]), {"x": np.zeros(1, np.float32), "s": [1 << 26]}, 4096)


def given_sizes():
    """Yields cases with sizes that depend on values in a request, and are known only while the model runs."""
    chain = [node("SequenceConstruct", ["n"], ["q"]), node("SequenceAt", ["q", "zero"], ["m"]), node("ConstantOfShape", ["m"], ["e0"])]
    chain += [node("Sin", [f"e{at}"], [f"e{at + 1}"]) for at in range(200)] + [node("ReduceSum", ["e200"], ["y"], keepdims=0)]
    yield Case("a size that is given", model(chain, [("n", INT64, [1])], constants=[("zero", 0)]), {"n": [1 << 27]}, 4096)
    rows = [node("SequenceConstruct", ["x"], ["q"]), node("SequenceAt", ["q", "zero"], ["v0"])]
    for at in range(12):
        rows += [node("Expand", [f"v{at}", "s"], [f"w{at}"]), node("ReduceMax", [f"w{at}"], [f"m{at}"], keepdims=1), node("SequenceConstruct", [f"m{at}"], [f"q{at}"]),
                 node("SequenceAt", [f"q{at}", "zero"], [f"v{at + 1}"])]
    yield Case("values between loops and lists", model([*rows, node("Identity", ["v12"], ["y"])], [("x", FLOAT, [1]), ("s", INT64, [1])], constants=[("zero", 0)]), {"x": np.ones(1, np.float32), "s": [1 << 26]}, 2048)


def trees():
    depth = 300_000
    count = 2 * depth + 1
    deep = {
        "nodes_treeids": [0] * count, "nodes_nodeids": list(range(count)), "nodes_featureids": [0] * count,
        "nodes_modes": ["BRANCH_LEQ", "LEAF"] * depth + ["LEAF"], "nodes_values": [float(-at) for at in range(count)],
        "nodes_truenodeids": [at + 1 if at % 2 == 0 and at < 2 * depth else 0 for at in range(count)],
        "nodes_falsenodeids": [at + 2 if at % 2 == 0 and at < 2 * depth else 0 for at in range(count)],
        "target_nodeids": [2 * depth], "target_treeids": [0], "target_ids": [0], "target_weights": [1.0], "n_targets": 1,
    }
    yield Case("a deep tree", model([node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **deep)], [("x", FLOAT, ["n", 1])]),
               {"x": np.full((20_000, 1), 1e9, np.float32)})
    vectors, features = 4000, 50
    machine = node("SVMRegressor", ["x"], ["y"], domain="ai.onnx.ml", coefficients=[1.0] * vectors, kernel_params=[0.1, 0.0, 3.0], kernel_type="RBF",
                   n_supports=vectors, rho=[0.0], support_vectors=[0.5] * (vectors * features))
    yield Case("support vectors", model([machine], [("x", FLOAT, ["n", features])]), {"x": np.ones((200_000, features), np.float32)})


def long_runs():
    def ones(*shape, kind=np.float32):
        return np.ones(shape, kind)

    images = [("x", FLOAT, [1, "c", "h", "w"]), ("g", FLOAT, [1, "a", "b", 2])]
    yield Case("cubic samples", model([node("GridSample", ["x", "g"], ["y"], mode="cubic")], images), {"x": ones(1, 256, 8, 8), "g": np.zeros((1, 1000, 1000, 2), np.float32)}, 2048)
    window = [node("Conv", ["x", "w"], ["y"], pads=[240] * 4)]
    yield Case("a window as large as its image", model(window, [("x", FLOAT, [1, 1, 480, 480])], constants=[("w", ones(2, 1, 480, 480))]), {"x": ones(1, 1, 480, 480)})
    for op in ("MaxPool", "AveragePool", "LpPool"):
        pool = [node(op, ["x"], ["y"], kernel_shape=[480, 480], pads=[240, 240, 239, 239])]
        yield Case(f"{op} as large as its image", model(pool, [("x", FLOAT, [1, 1, 480, 480])]), {"x": ones(1, 1, 480, 480)})
    pool = [node("MaxPool", ["x"], ["y", "p"], kernel_shape=[480, 480], pads=[240, 240, 239, 239])]
    yield Case("MaxPool with places", model(pool, [("x", FLOAT, [1, 1, 480, 480])]), {"x": ones(1, 1, 480, 480)})
    for name, kind, number in [("FP32", FLOAT, np.float32), ("FP64", DOUBLE, np.float64), ("FP16", TensorProto.FLOAT16, np.float16)]:
        sizes = [("x", kind, [1, 2, 480, 480]), ("w", kind, [2, 1, 479, 479])]
        image, weights = ones(1, 2, 480, 480, kind=number), ones(2, 1, 479, 479, kind=number)
        deep = [node("Conv", ["x", "w"], ["y"], pads=[239] * 4, group=2)]
        yield Case(f"windows of each channel in {name}", model(deep, sizes[:1], kind, [("w", weights)]), {"x": image})
        yield Case(f"computed windows in {name}", model(deep, sizes, kind), {"x": image, "w": weights})
    for name, op, kind, number, output in [("8 bits", "MatMulInteger", TensorProto.UINT8, np.uint8, TensorProto.INT32), ("FP64", "Gemm", DOUBLE, np.float64, DOUBLE),
                                           ("FP32", "MatMul", FLOAT, np.float32, FLOAT), ("INT64", "MatMul", INT64, np.int64, INT64)]:
        depth = 3_000_000 // np.dtype(number).itemsize // 1000
        pair = [("a", kind, ["n", "d"]), ("b", kind, ["d", "m"])]
        yield Case(f"a product in {name}", model([node(op, ["a", "b"], ["y"])], pair, output), {"a": ones(8000, depth, kind=number), "b": ones(depth, 8000, kind=number)}, 2048)
    pair = [("a", FLOAT, ["n", 1]), ("b", FLOAT, [1, "m"])]
    yield Case("powers", model([node("Pow", ["a", "b"], ["y"])], pair), {"a": np.full((20_000, 1), 1.1, np.float32), "b": np.full((1, 20_000), 1.7, np.float32)}, 2048)
    drawn = [node("Expand", ["x", "n"], ["e"]), node("RandomNormalLike", ["e"], ["r"]), node("ReduceMax", ["r"], ["y"])]
    yield Case("random numbers", model(drawn, [("x", FLOAT, [1]), ("n", INT64, [1])]), {"x": ones(1), "n": [300_000_000]}, 3072)
    layer = [node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=512)]
    constants = [("w", np.zeros((1, 2048, 1), np.float32)), ("r", np.zeros((1, 2048, 512), np.float32))]
    yield Case("a long LSTM", model(layer, [("x", FLOAT, ["n", "b", 1])], constants=constants), {"x": ones(50_000, 4, 1)}, 2048)


EXTREMES = (0, 1, -1, 1 << 31, (1 << 63) - 1, -1 << 63)


def numbers():
    """Yields cases with extreme numbers for sizes, axes, positions and steps in the file. A Rust test does this for every
    operator."""
    x = [("x", FLOAT, ["n", 2, 4, 4])]
    size = [node("Shape", ["x"], ["s"], start=0, end=1)]
    made = node("ConstantOfShape", ["c"], ["y"])
    for number in EXTREMES:
        one, pair = np.array([number]), np.array([number, number])
        for op in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"):
            yield Case(f"{op} of a size and {number}", model([*size, node(op, ["s", "k"], ["c"]), made], x, constants=[("k", one)]))
        bounds = [("b", [-1]), ("e", one), ("a", [0]), ("t", one)]
        yield Case(f"Slice by {number}", model([node("Slice", ["x", "b", "e", "a", "t"], ["y"])], x, constants=bounds))
        yield Case(f"Slice along {number}", model([node("Slice", ["x", "b", "b", "a"], ["y"])], x, constants=[("b", [-1]), ("a", one)]))
        for op in ("Expand", "Reshape", "Split", "Squeeze", "Unsqueeze", "ReduceMax", "TopK"):
            outputs = ["y", "z"] if op in ("Split", "TopK") else ["y"]
            yield Case(f"{op} with {number}", model([node(op, ["x", "k"], outputs)], x, constants=[("k", pair if op == "Split" else one)]))
        yield Case(f"Tile with {number}", model([node("Tile", ["x", "k"], ["y"])], x, constants=[("k", np.array([number] * 4))]))
        yield Case(f"Pad with {number}", model([node("Pad", ["x", "k"], ["y"])], x, constants=[("k", np.array([0] * 7 + [number]))]))
        yield Case(f"Resize with {number}", model([node("Resize", ["x", "", "", "k"], ["y"])], x, constants=[("k", np.array([1, 2, 4, number]))]))
        yield Case(f"OneHot with {number}", model([node("OneHot", ["n", "k", "v"], ["y"])], [("n", INT64, ["n"])], constants=[("k", np.array(number)), ("v", np.zeros(2, np.float32))]))
        for op in ("Conv", "MaxPool", "AveragePool", "ConvTranspose"):
            weights = [("w", np.ones((2, 2, 2, 2), np.float32))] if op.startswith("Conv") else []
            for name in ("dilations", "group", "kernel_shape", "output_padding", "pads", "strides"):
                if (name == "group" and not weights) or (name == "output_padding" and op != "ConvTranspose") or (name == "dilations" and op == "AveragePool"):
                    continue
                kept = {} if weights else {"kernel_shape": [2, 2]}
                value = number if name == "group" else [number] * (4 if name == "pads" else 2)
                attributes = {**kept, name: value}
                yield Case(f"{op} with {name} {number}", model([node(op, ["x", *(name for name, _ in weights)], ["y"], **attributes)], x, constants=weights))


def cases():
    for group in (texts, files, lists, given_sizes, trees, long_runs, numbers):
        yield from group()


def asked(server, inputs):
    """Returns the status and the text of the response, or the reason why there is none."""
    tensors, content = [], b""
    for name, value in inputs.items():
        encoded = serialize_byte_tensor(value).item() if value.dtype == object else value.tobytes()
        tensors.append({"name": name, "datatype": np_to_triton_dtype(value.dtype), "shape": value.shape,
                        "parameters": {"binary_data_size": len(encoded)}})
        content += encoded
    header = json.dumps({"inputs": tensors}).encode()
    headers = {"Inference-Header-Content-Length": str(len(header)), "Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"http://{server.address}/v2/models/hostile/infer", header + content, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return 200, f"{len(response.read())} bytes"
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")[:160]
    except OSError as error:
        return None, str(error)


def seconds_busy(server):
    """Returns for how many seconds the server continues to compute."""
    for seconds in range(BUSY_AFTER + 1):
        before = server.processor_time()
        time.sleep(1)
        if not server.is_running() or server.processor_time() - before < 0.3:
            return seconds
    return BUSY_AFTER + 1


def faults(options, case):
    """Returns the faults of a server in a case, and a summary of what it did."""
    with tempfile.TemporaryDirectory() as folder:
        place(folder, "hostile", case.file)
        size = case.file.ByteSize()
        server = Server(options.server, folder, limits=LIMITS)
        try:
            began = time.monotonic()
            refusal = server.call("/v2/repository/models/hostile/load")
            loading = time.monotonic() - began
            did = f"{size} bytes, {'refused' if refusal else 'loaded'} in {loading:.1f} s"
            found = ["loads for too long"] if loading > LONGEST_LOAD else []
            if refusal is None and case.inputs:
                began = time.monotonic()
                status, text = asked(server, case.inputs)
                did += f", {status} in {time.monotonic() - began:.1f} s ({text})"
                found += ["fails"] if status in (None, 500) else []
            busy = seconds_busy(server) if server.is_running() else 0
            if not server.is_running():
                return ["has ended"], did
            peak = memory(server.process, "VmHWM") >> 20
            did += f", {peak} MiB, busy for {busy} s more"
            found += ["takes too much memory"] if peak > case.memory else []
            found += ["is busy for too long"] if busy > BUSY_AFTER else []
            return found, did
        finally:
            server.process.kill()
            server.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    failed = 0
    for case in cases():
        if not re.search(options.only, case.name):
            continue
        found, did = faults(options, case)
        failed += bool(found)
        print(f"{'FAULT' if found else 'ok':<6} {case.name}: {', '.join([*found, did])}", flush=True)
    print(f"{failed} with faults")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
