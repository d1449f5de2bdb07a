"""Compares a server with ONNX Runtime on ONNX Runtime's own operators (`com.microsoft`) in all their forms.

    python contrib.py --server PROGRAM [--only REGEX] [--pairs N]

`contrib_forms.py` and `contrib_decoder_forms.py` have the usual form of each operator and changes to it: every optional
input present or omitted, every attribute at a value other than its default, every permitted rank. Each form, each
change and each pair of changes is requested, with fixed and with free sizes. If no change covers a part of ONNX
Runtime's schema for the operator, that is an error, so that a new release shows what is new. ONNX Runtime runs in a
separate process, since some forms crash it. A response must be equal, or the reason of the refusal must name the
operator; otherwise the exit code is 1. Called by `cargo xtask zoo --contrib`.
"""

import argparse
import collections
import itertools
import multiprocessing
import pathlib
import re
import shutil
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import contrib_decoder_forms
import contrib_forms
import ort
import zoo
from operators import Constant
from served import Server

SCHEMAS = {(schema.domain, schema.name): schema for schema in get_all_operator_schema()}
# Seconds after which ONNX Runtime counts as hanging.
PATIENCE = 60
WRONG = ("differs", "fails", "misleads", "server ended")
# Intended differences, by case; docs/onnx.md describes them.
CHOICES = [
    (r"MatMulNBits: .*accuracy_level=4", "input A is not rounded to 8 bits, which the attribute allows"),
    (r"MultiHeadAttention: (?!.*present).*past", "ONNX Runtime reads keys that it has not written where the present ones are not wanted"),
    (r"Tokenizer: .*nothing", "ONNX Runtime leaves an axis out where there are no texts"),
    (r"GatherBlockQuantized: .*beyond|Unique: .*NaN", "such values are an error"),
    (r"QMoE: .*eight bits.*(in|of) blocks|QMoE: .*blocks.*accuracy_level=4", "ONNX Runtime rounds the input of each layer to 8 bits"),
    (r"QMoE: .*zero points of the first layer", "ONNX Runtime rounds the weights of the other layer to 4 bits again, in blocks"),
    (r"QMoE: (?!.*interleaved).*swiglu_fusion=1", "ONNX Runtime reads memory that it has not written where the activation is not SwiGLU"),
    (r"MatMulBnb4: .*not transposed", "ONNX Runtime reads memory that it has not written"),
    (r"DecoderMaskedMultiHeadAttention: .*(no cache.*bias|bias.*no cache)", "ONNX Runtime omits the bias of keys and values without a cache"),
    (
        r"DecoderMaskedMultiHeadAttention: .*((beams|indirection).*attention_bias|attention_bias.*(beams|indirection))",
        "ONNX Runtime adds the bias of the first sequence to all sequences of a beam search",
    ),
    (
        r"DecoderMaskedMultiHeadAttention: .*mask of other numbers.*(beams|indirection)",
        "ONNX Runtime masks numbers below 0 without a beam search only",
    ),
    (r"MatMulNBits: zero points.*order of groups", "ONNX Runtime ignores the zero points where g_idx is given"),
]
# Keys of a change that are neither inputs nor attributes.
SPECIAL = ("outputs", "free", "computed")


class Case:
    """A form of an operator: its inputs, keyed by their names in the schema, its attributes, and the requested outputs."""

    def __init__(self, form, labels, values):
        self.op, self.domain, self.label = form.op, form.domain, ", ".join(labels) or "plain"
        schema = SCHEMAS[self.domain, self.op]
        self.opset = form.opset
        self.outputs = values.get("outputs", [0])
        self.is_free = values.get("free", False)
        is_computed = values.get("computed", False)
        names = [port.name for port in schema.inputs]
        unknown = set(values) - set(names) - set(schema.attributes) - set(SPECIAL)
        self.is_known = not unknown
        self.attributes = {name: values[name] for name in schema.attributes if values.get(name) is not None}
        self.names, self.inputs, self.constants = [], {}, {}
        for port in names:
            given = values.get(port)
            # The last input of some operators is variadic.
            for at, value in enumerate(given if isinstance(given, list) else [given]):
                name = "" if value is None else f"{port}{at or ''}"
                self.names.append(name)
                if isinstance(value, Constant) and not is_computed:
                    self.constants[name] = value.value
                elif value is not None:
                    self.inputs[name] = value.value if isinstance(value, Constant) else np.asarray(value)
        while self.names and not self.names[-1]:
            self.names.pop()

    def __str__(self):
        return f"{self.op}: {self.label}"

    def model(self, kinds):
        """Builds the model. Its outputs have the types `kinds`, or no declared types."""
        count = max(self.outputs) + 1
        outputs = [f"y{at}" if at in self.outputs else "" for at in range(count)]
        attributes = {name: value for name, value in self.attributes.items()}
        node = helper.make_node(self.op, self.names, outputs, name="the node", domain=self.domain, **attributes)
        inputs = []
        for name, value in self.inputs.items():
            shape = [f"{name}_{axis}" for axis in range(value.ndim)] if self.is_free else value.shape
            kind = TensorProto.STRING if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, shape))
        given = [output for output in outputs if output]
        if kinds is None:
            results = [ValueInfoProto(name=output) for output in given]
        else:
            results = [helper.make_tensor_value_info(output, kind, None) for output, kind in zip(given, kinds)]
        constants = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph([node], "form", inputs, results, constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def cases(form, pairs):
    """Yields the form, its changes, and pairs of changes that do not affect the same thing."""
    changes = [("free sizes", {"free": True}), ("computed weights", {"computed": True}), *form.changes.items()]
    chosen = [(), *((change,) for change in changes)]
    both = [pair for pair in itertools.combinations(changes, 2) if not set(pair[0][1]) & set(pair[1][1])]
    # If there are too many pairs, takes a sample spread evenly over all pairs.
    step = max(1, -(-len(both) // pairs)) if pairs else len(both) + 1
    for picked in chosen + both[::step]:
        values = dict(form.values)
        for _, change in picked:
            values |= change
        case = Case(form, [label for label, _ in picked], values)
        if case.is_known and case.inputs:
            yield case


def untouched(form):
    """Returns the parts of the schema that no change sets to a different value, omits or adds."""
    schema = SCHEMAS[form.domain, form.op]
    touched = {name for change in form.changes.values() for name in change}
    optional = [port.name for port in schema.inputs if "Optional" in str(port.option)]
    outputs = {at for values in [form.values, *form.changes.values()] for at in values.get("outputs", [0])}
    missing = [name for name in [*optional, *schema.attributes] if name not in touched]
    return missing + [f"output {at}" for at in range(len(schema.outputs)) if at not in outputs]


def answers_of(connection):
    """Runs models until the connection closes: sends the types of the outputs and the outputs, or the error."""
    onnxruntime.set_default_logger_severity(4)
    kinds = {"bool": TensorProto.BOOL, "string": TensorProto.STRING, "float": TensorProto.FLOAT, "double": TensorProto.DOUBLE}
    while (task := connection.recv()) is not None:
        model, inputs = task
        try:
            session = ort.session_of(model)
            types = [port.type[len("tensor("):-1] for port in session.get_outputs()]
            types = [kinds.get(name) or TensorProto.DataType.Value(name.upper()) for name in types]
            connection.send((types, session.run(None, inputs)))
        except Exception as error:  # ONNX Runtime's exceptions have no common type
            connection.send((None, str(error).replace("\n", " ")[:200]))


class Reference:
    """ONNX Runtime in a separate process."""

    def __init__(self, patience=PATIENCE):
        self.process, self.patience = None, patience

    def answer(self, model, inputs):
        if self.process is None:
            self.connection, theirs = multiprocessing.Pipe()
            self.process = multiprocessing.Process(target=answers_of, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
        try:
            self.connection.send((model, inputs))
            if self.connection.poll(self.patience):
                return self.connection.recv()
            reason = "hangs"
        except (EOFError, ConnectionError):
            self.process.join()
            reason = f"ended with {self.process.exitcode}"
        self.process.kill()
        self.process = None
        return None, reason


def judged(server, reference, repository, case):
    """Returns the verdict on a case, and the reason for the verdict."""
    types, wanted = reference.answer(case.model(None).SerializeToString(), case.inputs)
    kinds = types or [TensorProto.FLOAT] * len(case.outputs)
    folder = repository / "form" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(case.model(kinds), path)
    found, refusal = None, server.call("/v2/repository/models/form/load")
    if refusal is None:
        try:
            response = server.infer("form", case.inputs)
            found = [response.as_numpy(f"y{at}") for at in case.outputs]
        except Exception as error:
            refusal = str(error)
    if not server.is_running():
        return "server ended", f"exit code {server.process.returncode}"
    refusal = refusal and " ".join(refusal.split())
    if types is None:
        if refusal is None:
            return "answered", f"ONNX Runtime: {wanted}"
        return "neither", f"{refusal[:300]} | ONNX Runtime: {wanted}"
    if refusal is not None:
        if "[500]" in refusal or "the model failed" in refusal:
            return "fails", refusal
        # A reason about an operator that this one was rewritten to does not help users, since it is not in the file.
        named = case.op in refusal and "operators of the domain" not in refusal
        if choice := chosen(case):
            return "choice", choice
        return ("refused" if named else "misleads"), refusal
    differences = [zoo.difference(f"y{at}", *pair) for at, *pair in zip(case.outputs, wanted, found)]
    differences = [text for text in differences if text]
    if not differences:
        return "equal", ""
    for exact in zoo.exact_answers(path, case.inputs):
        if not any(zoo.difference("", *pair) for pair in zip(exact, found)):
            return "equal", "to ONNX Runtime with exact sums of 8 bits"
    if choice := chosen(case):
        return "choice", choice
    if zoo.is_noise(path, case.inputs, wanted, found):
        return "noise", differences[0]
    pairs = [(a.astype(int), b.astype(int)) for a, b in zip(wanted, found) if a.dtype in (np.uint8, np.int8) and a.shape == b.shape]
    if len(pairs) == len(wanted) and all(np.abs(a - b).max() <= 1 and (a != b).sum() <= max(1, a.size // 10) for a, b in pairs):
        return "noise", f"{differences[0]}, by 1"
    # The state is quantized to 8 bits in each step, so a difference in the last bit can become one of these steps.
    if case.op == "DynamicQuantizeLSTM" and all(np.abs(a - b).max() <= np.abs(a).max() / 127 for a, b in zip(wanted, found)):
        return "noise", f"{differences[0]}, at most a step of 8 bits"
    return "differs", differences[0]


def chosen(case):
    return next((why for pattern, why in CHOICES if re.search(pattern, str(case))), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--pairs", type=int, default=200, help="pairs of changes for each operator, at most")
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    counts, reference, server = collections.Counter(), Reference(), None
    with tempfile.TemporaryDirectory() as temporary:
        for form in itertools.chain(contrib_forms.forms(), contrib_decoder_forms.forms()):
            if (form.domain, form.op) not in SCHEMAS:
                counts["untouched"] += 1
                print(f"untouched {form.op}: ONNX Runtime has no such operator", flush=True)
                continue
            if not re.search(options.only, form.op):
                continue
            for name in untouched(form):
                counts["untouched"] += 1
                print(f"untouched {form.op}: {name}", flush=True)
            for case in cases(form, options.pairs):
                if server is None or not server.is_running():
                    server = Server(options.server, temporary)
                verdict, why = judged(server, reference, pathlib.Path(temporary), case)
                counts[verdict] += 1
                if verdict != "equal":
                    print(f"{verdict:<9} {case} | {why}", flush=True)
        if server is not None:
            server.stop()
        shutil.rmtree(temporary, ignore_errors=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    return int(any(counts[verdict] for verdict in (*WRONG, "untouched")))


if __name__ == "__main__":
    sys.exit(main())
