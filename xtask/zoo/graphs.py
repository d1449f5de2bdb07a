"""Compares a server with ONNX Runtime on small random ONNX graphs, for several sizes of their free dimensions.

    python graphs.py --server PROGRAM [--count N] [--seed N] [--first N] [--steps N] [--keep FOLDER] [--verbose]

Needs numpy, onnx and onnxruntime; called by `cargo xtask zoo --graphs N`. Each graph grows node by node: operators on
shapes, slices, products, sums and windows, each applied to existing values, if ONNX Runtime can compute it. The two
free dimensions occur in no constant, so that the graph is also valid for other sizes. Both must return the same shapes
and values, and if ONNX Runtime refuses a request, the server must not fail with an internal error. Refused graphs are
counted with their reasons. The same number and seed give the same graph. The exit code is 1 if something differs; that
graph is kept.
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

import graph as grown
from graph import GROWN
from served import Server

# Sizes of the free dimensions in requests.
ASKED = [GROWN, {"n": 2, "m": 3}, {"n": 3, "m": 3}, {"n": 1, "m": 1}, {"n": 4, "m": 1}, {"n": 8, "m": 16}]
DATATYPES = {np.dtype(kind): name for kind, name in [(np.float32, "FP32"), (np.int64, "INT64"), (np.int32, "INT32"), (bool, "BOOL"), (np.uint8, "UINT8")]}


class Asked:
    """A server that gets one graph after the other."""

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
        """Loads a model. Returns the reason if it is refused, or else None."""
        shutil.rmtree(self.repository / "graph", ignore_errors=True)
        folder = self.repository / "graph" / "1"
        folder.mkdir(parents=True)
        onnx.save(model, folder / "model.onnx")
        status, answer = self.ask("/v2/repository/models/graph/load", {})
        return None if status == 200 else answer["error"]

    def infer(self, inputs):
        tensors = [
            {"name": name, "datatype": DATATYPES[value.dtype], "shape": value.shape, "data": value.ravel().tolist()}
            for name, value in inputs.items()
        ]
        return self.ask("/v2/models/graph/infer", {"inputs": tensors})


def difference(answer, outputs, expected, is_coarse):
    """Returns how a response differs from ONNX Runtime's, or None. Numbers of 16 and 8 bits may occasionally differ by one
    step."""
    found = {output["name"]: output for output in answer["outputs"]}
    for name, wanted in zip(outputs, expected):
        if found[name]["shape"] != list(wanted.shape):
            return f"{name} has shape {found[name]['shape']}, expected {list(wanted.shape)}"
        is_float = wanted.dtype in (np.float32, np.float16)
        # JSON has neither infinities nor NaN.
        values = np.array([np.nan if value is None else value for value in found[name]["data"]], np.float64 if is_float else wanted.dtype)
        wanted = np.where(np.isfinite(wanted), wanted, np.nan).astype(np.float64) if is_float else wanted
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1)
        if is_coarse:
            distances = np.abs(values.astype(np.float64) - wanted.ravel())
            is_same = not np.nanmean(np.append(distances, 0)) > 0.15 * largest
        elif is_float:
            is_same = np.allclose(values, wanted.ravel(), rtol=2e-4, atol=2e-4 * largest, equal_nan=True)
        else:
            is_same = np.array_equal(values, wanted.ravel())
        if not is_same:
            return f"{name} has {values[:6]}, expected {wanted.ravel()[:6]}"
    return None


def tried(graph, asked):
    """Returns the outcome for a graph, and its model. Outcomes that are findings begin with a capital letter."""
    made = graph.model()
    if made is None:
        return "nothing to ask", None
    model, inputs, outputs = made
    try:
        reference = grown.session(model)
    except Exception:  # ONNX Runtime's exceptions have no common type
        return "not for all sizes", None
    refusal = asked.load(model)
    if refusal is not None:
        return "refused: " + re.sub(r"'[^']*'|-?\d+", "_", refusal.split(";")[0].split(": ", 1)[-1])[:150], model
    outcome = "equal"
    for sizes in ASKED:
        given = {name: graph.values[name] if sizes is GROWN else graph.filled(*graph.inputs[name], sizes) for name in inputs}
        try:
            expected = reference.run(None, given)
        except Exception:  # ONNX Runtime's exceptions have no common type
            expected = None
        status, answer = asked.infer(given)
        if status >= 500:
            return f"STATUS {status}: {answer['error']}; {sizes}", model
        if status == 200 and expected is not None and (differs := difference(answer, outputs, expected, graph.is_coarse)):
            return f"OTHER ANSWER: {differs}; {sizes}", model
        if status != 200 and expected is not None:
            outcome = "refused for some sizes: " + re.sub(r"'[^']*'|-?\d+", "_", answer["error"].split(": ", 1)[-1])[-110:]
    return outcome, model


def work(options, first, asked, outcomes):
    """Tries one graph after the other, and sends the outcome of each."""
    onnxruntime.set_default_logger_severity(4)
    for number in range(first, options.first + options.count):
        graph = grown.Graph(options.seed, number)
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
                server = Server(options.server, temporary)
            # Some graphs crash ONNX Runtime's process.
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
            if process.exitcode > 0:
                server.stop()
                sys.exit("making a graph failed")
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
