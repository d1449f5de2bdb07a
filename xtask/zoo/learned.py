"""Compares a server with ONNX Runtime on every operator of ai.onnx.ml with all settings of its options.

    python learned.py --server PROGRAM [--only REGEX] [--keep FOLDER] [--verbose]

Needs numpy, onnx and onnxruntime; called by `cargo xtask zoo --learned`. Exports of trained models use few of the
options. Here each case is one node with invented numbers: signs of weights, classes that no leaf scores, base values,
missing values, types of inputs and labels, one row and many. All outputs must be equal. Refused cases are counted with
their reasons; differences that docs/onnx.md lists as intended are counted separately. The exit code is 1 if anything
else differs; that model and its inputs are kept.
"""

import argparse
import collections
import http.client
import json
import pathlib
import re
import shutil
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

from learned_cases import cases, texts
from served import Server

DATATYPES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32", "int16": "INT16", "bool": "BOOL", "object": "BYTES"}
KINDS = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "INT32": np.int32, "INT16": np.int16, "BOOL": bool}


def packed(value):
    if value.dtype != object:
        return np.ascontiguousarray(value).tobytes()
    encoded = [text.encode() for text in value.ravel()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in encoded)


def unpacked(datatype, shape, data):
    if datatype != "BYTES":
        return np.frombuffer(data, KINDS[datatype]).reshape(shape)
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        found.append(data[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return texts(found).reshape(shape)


class Asked:
    """A server that gets one model after the other."""

    def __init__(self, address, repository):
        self.connection, self.repository = http.client.HTTPConnection(address, timeout=60), pathlib.Path(repository)

    def ask(self, path, body, header=None):
        headers = {"Content-Type": "application/json"} if header is None else {"Inference-Header-Content-Length": str(header)}
        self.connection.request("POST", path, body, headers)
        response = self.connection.getresponse()
        return response, response.read()

    def load(self, model):
        """Loads a model. Returns the reason if it is refused, or else None."""
        folder = self.repository / "case" / "1"
        shutil.rmtree(self.repository / "case", ignore_errors=True)
        folder.mkdir(parents=True)
        onnx.save(model, folder / "model.onnx")
        response, body = self.ask("/v2/repository/models/case/load", b"{}")
        return None if response.status == 200 else json.loads(body)["error"]

    def infer(self, inputs):
        """Returns the outputs by name, or the status and message of the error."""
        parts = [packed(value) for value in inputs.values()]
        tensors = [
            {"name": name, "shape": value.shape, "datatype": DATATYPES[str(value.dtype)], "parameters": {"binary_data_size": len(part)}}
            for (name, value), part in zip(inputs.items(), parts)
        ]
        header = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
        response, body = self.ask("/v2/models/case/infer", b"".join([header, *parts]), len(header))
        if response.status != 200:
            return None, (response.status, json.loads(body)["error"])
        length = int(response.getheader("Inference-Header-Content-Length", len(body)))
        outputs, at = {}, length
        for output in json.loads(body[:length])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            outputs[output["name"]] = unpacked(output["datatype"], output["shape"], body[at : at + size])
            at += size
        return outputs, None


def difference(found, expected, is_coarse):
    """Returns how outputs differ, or None. PROBIT of nearly one half is the root of a small difference, so few of its
    digits are accurate."""
    for (name, found), wanted in zip(found.items(), expected):
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return f"{name} is {found.dtype}{list(found.shape)}, expected {wanted.dtype}{list(wanted.shape)}"
        if wanted.dtype.kind == "f":
            is_same = np.isclose(found, wanted, rtol=2e-5, atol=2e-3 if is_coarse else 2e-6, equal_nan=True)
        else:
            is_same = found == wanted
        if not np.all(is_same):
            at = tuple(int(place) for place in np.argwhere(~np.asarray(is_same))[0])
            return f"{name}{list(at)} is {found[at]!r}, expected {wanted[at]!r} ({np.sum(~np.asarray(is_same))} of {wanted.size})"
    return None


def outcome(case, asked):
    """Returns the result of a case. Findings begin with a capital letter."""
    model = case.model()
    reason = None
    try:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        expected = session.run(None, case.inputs)
    except Exception as error:  # ONNX Runtime's exceptions have no common type
        reason = re.sub(r"\d+", "_", str(error))[-80:]
    refusal = asked.load(model)
    if refusal is not None:
        refusal = re.sub(r"'[^']*'|-?\d+", "_", refusal.split("; ")[0].split(": ", 1)[-1])[:150]
        return f"refused: {refusal}" if reason is None else "neither takes it"
    found, error = asked.infer(case.inputs)
    if error is not None:
        status, message = error
        if case.refused and status == 400 and case.refused in message:
            return f"refused: {case.refused}"
        return "neither takes it" if reason is not None and status < 500 else f"STATUS {status}: {message[-150:]}"
    if reason is not None:
        return f"answered here only: {reason}"
    differs = difference(found, expected, case.attributes.get("post_transform") == "PROBIT")
    if differs is None:
        return "equal"
    return f"a choice: {case.choice}" if case.choice else f"DIFFERS: {differs}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--only", default="", help="cases whose operator and name match this regular expression")
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("learned"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print and keep what is refused, too")
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    counts = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(options.server, temporary)
        try:
            asked = Asked(server.address, temporary)
            for number, case in enumerate(cases(options.seed)):
                if not re.search(options.only, f"{case.op} {case.name}"):
                    continue
                result = outcome(case, asked)
                counts[case.op][re.split("[:]", result)[0] if result[0].isupper() else result] += 1
                if result[0].isupper():
                    kinds = ", ".join(str(value.dtype) for value in case.inputs.values())
                    print(f"{number} {case.op} {kinds}, {case.name}: {result[:300]}", flush=True)
                    options.keep.mkdir(parents=True, exist_ok=True)
                    onnx.save(case.model(), options.keep / f"{number}.onnx")
        finally:
            server.stop()
    for op, outcomes in counts.items():
        for result, count in outcomes.most_common():
            print(f"{count:6} {op} {result}")
    return int(any(result[0].isupper() for outcomes in counts.values() for result in outcomes))


if __name__ == "__main__":
    sys.exit(main())
