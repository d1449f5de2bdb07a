"""Finds operators of ONNX Runtime that crash its process if an input has no elements, and checks that a server with this
library survives them.

    python empties.py [--server PROGRAM] [--only REGEX]

The input shapes of each operator consist of symbolic dimensions. The script sets one or two of these dimensions to 0
wherever they occur, and also sets each dimension of each input to 0 alone. ONNX Runtime runs in a separate process, and
the cases that crash it are reported. With a server, the cases that crash ONNX Runtime must be refused with 400. The
others must give the same response; the number that the server's guard refuses as well is reported, since which of them
crash depends on the version and the processor. Called by `cargo xtask zoo --empties`.
"""

import argparse
import collections
import itertools
import pathlib
import re
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, ValueInfoProto, helper

import ort
import zoo
from contrib import Reference
from served import Server

# Seconds after which ONNX Runtime counts as hanging.
PATIENCE = 5
SIZES = dict(
    batch=2, rows=3, keys=5, past=4, numbers=8, heads=2, width=4, one=1, two=2, input=3, gates=16, twice=32, packed=24, long=6, channels=2, height=5,
    breadth=6, kernel=2, frames=2, window=4, total=9,
)
RECURRENT = dict(X="rows batch input", W="one gates input", R="one gates width", B="one twice", lengths="batch:int32", h="one batch width", c="one batch width")
KEYS = dict(query="batch rows numbers", key="batch keys numbers", value="batch keys numbers")
PAST = dict(past_key="batch heads past width", past_value="batch heads past width")


class Operator:
    """An operator, the dimensions and types of its inputs, and the number of requested outputs."""

    def __init__(self, op, inputs, outputs=1, domain="", opset=17, label="", sizes=None, values=None, **attributes):
        self.op, self.outputs, self.domain, self.opset, self.label, self.attributes = op, outputs, domain, opset, label, attributes
        self.sizes, self.values = SIZES | (sizes or {}), values or {}
        ports = [(name, port and port.partition(":")) for name, port in inputs.items()]
        self.ports = [(name, port and (port[0].split(), np.dtype(port[2] or "float32"))) for name, port in ports]

    def __str__(self):
        return " ".join(filter(None, [self.op, self.domain, self.label]))

    def shapes(self, sizes):
        return {name: [sizes[dim] for dim in port[0]] for name, port in self.ports if port}

    def model(self, is_typed):
        names = [name if port else "" for name, port in self.ports]
        outputs = [f"y{at}" for at in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attributes)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(port[1]), [f"{name}_{axis}" for axis in range(len(port[0]))])
            for name, port in self.ports if port
        ]
        results = [ValueInfoProto(name=name) for name in outputs]
        if is_typed:
            results = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, is_typed)]
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(helper.make_graph([node], "empty", inputs, results), opset_imports=opsets, ir_version=9)

    def request(self, shapes):
        random, inputs = np.random.default_rng(1), {}
        for name, port in self.ports:
            if not port:
                continue
            value = self.values.get(name)
            if value is None:
                kind = port[1]
                value = random.random(shapes[name]).astype(kind) if kind.kind == "f" else np.ones(shapes[name], kind)
            inputs[name] = np.resize(np.asarray(value, port[1]), shapes[name]) if np.prod(shapes[name]) else np.zeros(shapes[name], port[1])
        return inputs

    def forms(self):
        """Yields the dimensions that are 0, with the resulting shapes."""
        used = list(dict.fromkeys(dim for _, port in self.ports if port for dim in port[0]))
        yield "nothing", self.shapes(self.sizes)
        for zeros in [(dim,) for dim in used] + list(itertools.combinations(used, 2)):
            yield "all " + " and ".join(zeros), self.shapes(self.sizes | dict.fromkeys(zeros, 0))
        for name, port in self.ports:
            for axis in range(len(port[0]) if port else 0):
                shapes = self.shapes(self.sizes)
                shapes[name][axis] = 0
                yield f"axis {axis} of {name}", shapes


def body(*names):
    """Returns a graph that adds to a state and returns an element."""
    nodes = [helper.make_node("Add", ["state", "element"], ["next"]), helper.make_node("Identity", ["next"], ["made"])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("state", "element")]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("next", "made")]
    return helper.make_graph(nodes, "body", inputs, outputs)


def operators():
    own = dict(domain="com.microsoft")
    yield Operator("LSTM", RECURRENT, outputs=3, hidden_size=4)
    yield Operator("LSTM", dict(X="rows batch input", W="two gates input", R="two gates width"), outputs=3, hidden_size=4, direction="bidirectional", label="plain")
    yield Operator("GRU", {name: port for name, port in RECURRENT.items() if name != "c"}, outputs=2, hidden_size=4, sizes=dict(gates=12, twice=24))
    yield Operator("GRU", dict(X="rows batch input", W="one gates input", R="one gates width"), outputs=2, hidden_size=4, sizes=dict(gates=12), label="plain")
    yield Operator("RNN", {name: port for name, port in RECURRENT.items() if name != "c"}, outputs=2, hidden_size=4, sizes=dict(gates=4, twice=8))
    quantized = dict(
        X="rows batch input", W="one input gates:int8", R="one width gates:int8", B="one twice", lengths="batch:int32", h="one batch width", c="one batch width",
        P=None, W_scale="one", W_zero_point="one:int8", R_scale="one", R_zero_point="one:int8",
    )
    yield Operator("DynamicQuantizeLSTM", quantized, outputs=3, hidden_size=4, **own)
    images = dict(X="batch channels height breadth", W="channels long kernel two")
    yield Operator("ConvTranspose", images)
    yield Operator("ConvTranspose", images | dict(B="long"), strides=[2, 2], label="strides")
    yield Operator("ConvTranspose", dict(X="batch channels height", W="channels long kernel"), label="lines")
    yield Operator("Conv", dict(X="batch channels height breadth", W="long channels kernel two"))
    yield Operator("STFT", dict(signal="batch total one", step=":int64", window="window"), values=dict(step=2))
    yield Operator("STFT", dict(signal="batch total one", step=":int64", window=None, length=":int64"), values=dict(step=2, length=4), label="no window")
    yield Operator("DFT", dict(x="batch total one"), axis=1)
    yield Operator("Scan", dict(state="width", elements="rows width"), outputs=2, body=body(), num_scan_inputs=1)
    yield Operator("Unique", dict(x="rows"), outputs=4)
    yield Operator("Unique", dict(x="rows width"), outputs=4, axis=1, label="axis 1")
    yield Operator("Unique", dict(x="rows width"), outputs=4, axis=0, label="axis 0")
    yield Operator("Unique", dict(x="rows"), outputs=3, **own)
    by_head = dict(q="batch heads rows width", k="batch heads keys width", v="batch heads keys width")
    rows = dict(q="batch rows numbers", k="batch keys numbers", v="batch keys numbers")
    past = dict(past_key="batch heads past width", past_value="batch heads past width")
    for label, inputs, attributes in [("by head", by_head, {}), ("rows", rows, dict(q_num_heads=2, kv_num_heads=2))]:
        yield Operator("Attention", inputs, opset=23, label=label, **attributes)
        yield Operator("Attention", inputs, opset=23, label=f"{label}, causal", is_causal=1, **attributes)
        masked = inputs | dict(mask="rows keys")
        yield Operator("Attention", masked, outputs=1, opset=23, label=f"{label}, masked", **attributes)
        behind = inputs | dict(mask=None) | past
        yield Operator("Attention", behind, outputs=4, opset=23, label=f"{label}, past", **attributes)
        yield Operator("Attention", behind, outputs=3, opset=23, label=f"{label}, past, causal", is_causal=1, **attributes)
    weights = dict(input="batch rows long", weights="long packed", bias="packed")
    earlier = dict(mask=None, past="two batch heads past width")
    yield Operator("Attention", weights, num_heads=2, **own)
    yield Operator("Attention", weights | earlier, outputs=2, num_heads=2, label="past", **own)
    yield Operator("Attention", weights | earlier, outputs=2, num_heads=2, unidirectional=1, label="past, causal", **own)
    for label, mask in [("rows", "batch rows:int32"), ("lengths", "batch:int32"), ("matrix", "batch rows rows:int32")]:
        yield Operator("Attention", weights | dict(mask=mask), num_heads=2, label=label, **own)
    yield Operator("Attention", weights | dict(mask="batch total:int32", past="two batch heads past width"), outputs=2, num_heads=2, sizes=dict(total=7), label="past, rows", **own)
    yield Operator("MultiHeadAttention", KEYS, num_heads=2, **own)
    yield Operator("MultiHeadAttention", KEYS | dict(bias="packed"), num_heads=2, label="bias", **own)
    yield Operator("MultiHeadAttention", KEYS | dict(bias=None, mask="batch keys:int32"), num_heads=2, label="rows", **own)
    earlier = KEYS | dict(bias=None, mask=None, added=None) | PAST
    yield Operator("MultiHeadAttention", earlier, outputs=3, num_heads=2, label="past", **own)
    yield Operator("MultiHeadAttention", earlier, outputs=3, num_heads=2, unidirectional=1, label="past, causal", **own)
    crossed = dict(query="batch rows numbers", key="batch heads keys width", value="batch heads keys width")
    yield Operator("MultiHeadAttention", crossed, num_heads=2, label="by head", **own)
    quantized = dict(
        input="batch rows long:uint8", weight="long packed:int8", bias="packed", input_scale="one", weight_scale="one", mask="batch:int32", input_zero="one:uint8",
        weight_zero="one:int8",
    )
    yield Operator("QAttention", quantized, num_heads=2, **own)
    yield Operator("QAttention", quantized | dict(mask=None, past="two batch heads past width"), outputs=2, num_heads=2, label="past", **own)
    shared = dict(query="batch rows packed", key="batch rows numbers", value="batch rows numbers")
    counts = dict(ends="batch:int32", total=":int32")
    sizes = dict(packed=64, numbers=32, width=16)
    prompt = dict(outputs=3, num_heads=4, kv_num_heads=2, sizes=sizes, **own)
    yield Operator("GroupQueryAttention", shared | dict(pk=None, pv=None) | counts, values=dict(ends=2, total=3), **prompt)
    yield Operator("GroupQueryAttention", shared | PAST | counts, values=dict(ends=2, total=3), label="past", **prompt)
    word = prompt | dict(sizes=sizes | dict(rows=1, batch=1))
    yield Operator("GroupQueryAttention", shared | PAST | counts, values=dict(ends=4, total=5), label="a word", **word)
    yield Operator("GroupQueryAttention", dict(query="batch rows twice", key=None, value=None) | PAST | counts, values=dict(ends=2, total=3), label="packed", **(prompt | dict(sizes=sizes | dict(twice=128))))
    masked = dict(q="batch one numbers", k="batch one numbers", v="batch one numbers", mask="batch total:int32", added=None) | {
        "pk": "batch heads total width", "pv": "batch heads total width", "length": "one:int32",
    }
    yield Operator("DecoderMaskedMultiHeadAttention", masked, outputs=3, num_heads=2, past_present_share_buffer=1, values=dict(length=3), **own)
    yield Operator("RotaryEmbedding", dict(x="batch rows numbers", at="one:int64", cos="total width", sin="total width"), **own)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    counts, reference, server = collections.Counter(), Reference(PATIENCE), None
    with tempfile.TemporaryDirectory() as temporary:
        for operator in operators():
            if not re.search(options.only, str(operator)):
                continue
            content = operator.model(None).SerializeToString()
            kinds, why = reference.answer(content, operator.request(operator.shapes(operator.sizes)))
            if kinds is None:
                counts["does not work"] += 1
                print(f"{operator} does not work: {why}", flush=True)
                continue
            if options.server:
                path = pathlib.Path(temporary) / "form" / "1" / "model.onnx"
                path.parent.mkdir(parents=True, exist_ok=True)
                onnx.save(operator.model(kinds), path)
            is_loaded = False
            for label, shapes in operator.forms():
                request = operator.request(shapes)
                found, answers = reference.answer(content, request)
                ends = found is None and str(answers).startswith(("ended", "hangs"))
                counts["ends ONNX Runtime" if ends else "fails" if found is None else "answers"] += 1
                if ends:
                    print(f"{operator}: {label} {answers}", flush=True)
                if not options.server:
                    continue
                if server is None or not server.is_running():
                    server, is_loaded = Server(options.server, temporary, ort.LIBRARY), False
                if not is_loaded:
                    refusal = server.call("/v2/repository/models/form/load")
                    if refusal is not None:
                        print(f"{operator} is not loaded: {refusal}", flush=True)
                        counts["not loaded"] += 1
                        break
                    is_loaded = True
                try:
                    response = server.infer("form", request)
                    ours = [response.as_numpy(f"y{at}") for at in range(operator.outputs)]
                    verdict = "answered" if found is None else next(filter(None, map(zoo.difference, "abcd", answers, ours)), None)
                except Exception as error:
                    # An error without a status means that no response arrived.
                    refusal = str(error)
                    is_guarded = "ONNX Runtime cannot run" in refusal
                    counts["refused as a precaution"] += is_guarded and not ends
                    verdict = None if is_guarded else f"refused: {refusal}" if found else refusal if ends and "[400]" not in refusal else None
                if not server.is_running():
                    verdict = f"the server ended with {server.process.returncode}"
                if verdict:
                    counts["WRONG"] += 1
                    print(f"WRONG {operator}: {label} | {verdict}", flush=True)
            if server is not None and server.is_running():
                server.call("/v2/repository/models/form/unload")
        if server is not None:
            server.stop()
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return int(any(counts[name] for name in ("WRONG", "not loaded")))


if __name__ == "__main__":
    sys.exit(main())
