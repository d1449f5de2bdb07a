"""Runs single operators with extreme values: finds those that crash a process of ONNX Runtime, and checks that none
crashes a server.

    python extremes.py [--server PROGRAM] [--library PATH] [--only REGEX] [--threads N]

Needs numpy, onnx and onnxruntime; called by `cargo xtask zoo --extremes`. Every case is one operator whose inputs all
come with the request and have free dimensions: those in extreme_cases.py, and the onnx package's tests of operators.
Integers in the file (attributes and constant inputs) get extreme values too, with free and with fixed dimensions. A
valid request is changed in one place at a time: an input, or its first element, becomes the smallest or largest value,
-1, 0, NaN or infinite; a dimension becomes 0; or two integers are combined. ONNX Runtime runs the changed requests in
processes that may crash, with limits on memory and time. With `--server`, the changes that crashed a process, and some
others, are sent to a server with the library, which must keep running. The exit code is 1 if it does not, or if an
operator that is not in KNOWN crashes a process. The server's rules are in `onnx_runtime/traps/table.rs` of
backend-onnx.
"""

import argparse
import itertools
import json
import os
import pathlib
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import numpy as np
import onnx
import onnxruntime

import extreme_cases

# Limits in bytes: the address space and data of a process that runs cases; those of a server, including memory that its
# threads reserve; and the memory that a server may actually use, with a limit of 512 MiB for values.
MEMORY, SERVER_MEMORY, SERVER_PEAK = 4 << 30, 12 << 30, 3 << 30
# Timeout of a request in a process, in seconds.
PATIENCE = 8
# Number of crashes of one model after which its other changes are skipped.
MOST_DEATHS = 40
# The server gets one in `SAMPLED` of the changes that crash no process.
SAMPLED = 15

# Operators with values that crash the process, in some version since 1.31.
KNOWN = {
    "Attention", "AttnLSTM", "Conv", "ConvTranspose", "DequantizeLinear", "Div", "DynamicQuantizeLSTM", "FeatureVectorizer", "FusedConv", "GRU", "GatherND", "InstanceNormalization", "Inverse", "LSTM",
    "LinearAttention", "Loop", "MoE", "Mod", "MultiHeadAttention", "QAttention", "QLinearConv", "QuantizeLinear", "RNN", "RoiAlign", "RotaryEmbedding", "STFT", "Scan",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Split", "SplitToSequence", "Unique", "WordConvEmbedding",
}
DATATYPES = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "object": "BYTES"}

TEXT = [b"", b"a", b"-1", b"9223372036854775808", "\u00e9\u4e2d".encode(), b"x" * 5000]


def extremes(dtype):
    """Yields the values that an input of this type is filled with."""
    if dtype == object:
        return TEXT
    if dtype == bool:
        return [True, False]
    if np.issubdtype(dtype, np.floating):
        most = np.finfo(dtype).max
        return [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 0.5, 1e4, most, -most, np.finfo(dtype).smallest_subnormal]
    limits = np.iinfo(dtype)
    middle = [value for value in (-1, 0, 1, 2, 100, 2**31 - 1, 2**31, 2**40, -(2**31), -2) if limits.min <= value <= limits.max]
    return list(dict.fromkeys([limits.min, limits.max, limits.min + 1, limits.max - 1, *middle]))


def changes(case):
    """Yields a valid request of a case, and requests that differ from it in one place: the change, and the inputs."""
    yield "as it is", dict(case.inputs)
    if case.is_request_fixed:
        return
    for name, array in case.inputs.items():
        for value in extremes(array.dtype):
            for places in ("all", "first", "last"):
                if array.size == 0 or (array.size == 1 and places != "all"):
                    continue
                changed = array.copy()
                flat = changed.reshape(-1)
                at = {"all": slice(None), "first": 0, "last": -1}[places]
                # Assigning to a slice would split strings into characters.
                if places == "all":
                    flat[:] = [value] * flat.size
                else:
                    flat[at] = value
                shown = value[:12] if isinstance(value, bytes) else value
                yield f"{name}: {places} {shown}", {**case.inputs, name: changed}
    whole = [name for name, array in case.inputs.items() if array.dtype != object and np.issubdtype(array.dtype, np.integer)]
    for first, second in itertools.islice(itertools.combinations(whole, 2), 10):
        a, b = case.inputs[first], case.inputs[second]
        for x, y in itertools.product(extremes(a.dtype)[:8], extremes(b.dtype)[:8]):
            yield f"{first}: {x}, {second}: {y}", {**case.inputs, first: np.full_like(a, x), second: np.full_like(b, y)}
    for name, array in case.inputs.items():
        for axis in range(array.ndim):
            for size in (0, 1, array.shape[axis] + 1, 67):
                if size == array.shape[axis]:
                    continue
                shape = list(array.shape)
                shape[axis] = size
                grown = np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)
                yield f"{name}: axis {axis} has {size}", {**case.inputs, name: grown}
    for size in range(1 + max((array.ndim for array in case.inputs.values()), default=0)):
        # All inputs lose the same axis, then all axes.
        empty = {}
        for name, array in case.inputs.items():
            shape = [0 if axis == size or size == max(a.ndim for a in case.inputs.values()) else dim for axis, dim in enumerate(array.shape)]
            empty[name] = np.zeros(shape, array.dtype) if array.dtype != object else np.full(shape, b"", object)
        yield (f"all: axis {size} has 0" if size < max(a.ndim for a in case.inputs.values()) else "all empty"), empty
    # Dimensions of the same size are often the same dimension, so all of them become 0 together.
    for size in sorted({dim for array in case.inputs.values() for dim in array.shape if dim > 1}):
        empty = {}
        for name, array in case.inputs.items():
            shape = [0 if dim == size else dim for dim in array.shape]
            empty[name] = array if 0 not in shape else np.zeros(shape, array.dtype)
        yield f"all: every {size} is 0", empty
    for label, inputs in case.more.items():
        yield label, {**case.inputs, **{name: np.asarray(value, case.inputs[name].dtype) for name, value in inputs.items()}}


def decoded(array):
    return np.array([value.decode(errors="replace") for value in array.reshape(-1)], object).reshape(array.shape) if array.dtype == object else array


def run_once(session, inputs):
    if any(array.dtype == object for array in inputs.values()):
        return session.run(None, {name: decoded(array) for name, array in inputs.items()})
    # Like a value between two operators, a value without elements has no memory, so reading it crashes the process.
    kind = onnxruntime.OrtValue
    return session.run_with_ort_values(None, {
        name: kind.ortvalue_from_numpy(array) if array.size else kind.ortvalue_from_shape_and_type(array.shape, array.dtype)
        for name, array in inputs.items()
    })


def child(case, first, pipe, threads):
    """Runs the changes of a case, starting at index `first`. Reports each before it runs, and its result afterwards."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)

    def say(kind, number=0, text=""):
        text = text.encode(errors="replace")[:2000]
        os.write(pipe, struct.pack("<cII", kind, number, len(text)) + text)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    signal.alarm(PATIENCE if case.is_request_fixed else 0)
    try:
        session = onnxruntime.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime does not accept the case
        say(b"R", 0, str(error))
        return
    for number, (_, inputs) in enumerate(changes(case)):
        if number < first:
            continue
        say(b"B", number)
        signal.alarm(PATIENCE)
        try:
            run_once(session, inputs)
            say(b"G", number)
        except Exception as error:
            say(b"F", number, str(error))
        signal.alarm(0)
    say(b"E")


class Outcome:
    def __init__(self):
        self.refused, self.answered, self.failed, self.deaths, self.messages = None, 0, 0, {}, {}


def message(pipe):
    head = b""
    while len(head) < 9:
        part = os.read(pipe, 9 - len(head))
        if not part:
            return None
        head += part
    kind, number, length = struct.unpack("<cII", head)
    text = b""
    while len(text) < length:
        text += os.read(pipe, length - len(text))
    return kind, number, text.decode(errors="replace")


def run(case, threads):
    """Runs all changes of a case. After a crash, a new process continues with the next change."""
    outcome, first = Outcome(), 0
    while True:
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reading)
            try:
                child(case, first, writing, threads)
            finally:
                os._exit(0)
        os.close(writing)
        current = None
        while found := message(reading):
            kind, number, text = found
            if kind == b"R":
                outcome.refused = text
            elif kind == b"B":
                current = number
            elif kind == b"G":
                outcome.answered, current = outcome.answered + 1, None
            elif kind == b"F":
                outcome.failed, current = outcome.failed + 1, None
                outcome.messages[number] = text
        os.close(reading)
        status = os.waitpid(process, 0)[1]
        if not os.WIFSIGNALED(status):
            return outcome
        name = signal.Signals(os.WTERMSIG(status)).name
        name = "time" if name == "SIGALRM" else name
        if current is None:
            # The process was killed while it loaded the model, or after all changes.
            outcome.deaths[0] = name
            return outcome
        outcome.deaths[current] = name
        first = current + 1
        if len(outcome.deaths) >= MOST_DEATHS:
            return outcome


def operators(case):
    return {node.op_type for node in case.model.graph.node}


class Server:
    """A server with the library, which loads one model after the other."""

    def __init__(self, program, library, repository):
        arguments = [
            program, "--config", pathlib.Path(repository) / "limits.toml", "--model-repository", repository, "--model-control-mode", "explicit", "--http-address", "127.0.0.1:0",
            "--grpc-address", "127.0.0.1:0", "--instances", "1", "--request-timeout", "10s", "--onnxruntime", library,
        ]
        pathlib.Path(repository, "limits.toml").write_text('onnxruntime-memory = "512MiB"\n')
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (SERVER_MEMORY, SERVER_MEMORY))
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=limit)
        self.address = None
        for line in self.process.stdout:
            if "HTTP" in line:
                self.address = line.split()[-1].removeprefix("http://")
                break
        if self.address is None:
            raise SystemExit("the server does not start")

    def is_running(self):
        return self.process.poll() is None

    def peak(self):
        """Returns the peak memory of the server in bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) << 10

    def post(self, path, body, headers=None):
        request = urllib.request.Request(f"http://{self.address}{path}", body, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, ""
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")[:200]
        except OSError as error:
            # The process of a crashing server takes a moment to end.
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                pass
            return None, str(error)

    def infer(self, inputs):
        tensors, content = [], b""
        for name, array in inputs.items():
            raw = b"".join(struct.pack("<I", len(value)) + value for value in array.reshape(-1)) if array.dtype == object else array.tobytes()
            datatype = DATATYPES.get(array.dtype.name, array.dtype.name.upper())
            tensors.append({"name": name, "datatype": datatype, "shape": array.shape, "parameters": {"binary_data_size": len(raw)}})
            content += raw
        head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
        return self.post("/v2/models/extremes/infer", head + content, headers)


def served(server, repository, case, outcome):
    """Sends to a server the changes that crashed a process and some others. Returns them by status, and the one that
    crashed the server."""
    folder = pathlib.Path(repository) / "extremes" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(case.model, folder / "model.onnx")
    status, text = server.post("/v2/repository/models/extremes/load", b"{}")
    if status != 200:
        return {f"refused ({text})": 1}, None if server.is_running() else "loading"
    counts = {}
    for number, (label, inputs) in enumerate(changes(case)):
        is_quick = number not in outcome.messages or "llocat" not in outcome.messages[number]
        is_asked = outcome.deaths.get(number, "time") != "time" or (number % SAMPLED == 0 and number not in outcome.deaths and is_quick)
        if not is_asked:
            continue
        status, text = server.infer(inputs)
        counts[status] = counts.get(status, 0) + 1
        if not server.is_running():
            return counts, label
        if status == 500:
            counts.setdefault(f"500: {text}", 0)
    return counts, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="a program, which is given the changes too")
    parser.add_argument("--library", help="the library for the server (default: that of the Python package)")
    parser.add_argument("--only", default="", help="a regular expression for names of cases")
    parser.add_argument("--threads", type=int, default=1, help="threads of one run in a process")
    parser.add_argument("--messages", help="a file for the errors of failed runs, one JSON list a line")
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    package = pathlib.Path(onnxruntime.__file__).parent / "capi"
    library = options.library or str(next(package.glob("libonnxruntime.so*")))
    print(f"ONNX Runtime {onnxruntime.__version__}", flush=True)
    faults, table, tried = [], {}, set()
    with tempfile.TemporaryDirectory() as repository:
        server = Server(options.server, library, repository) if options.server else None
        for case in itertools.chain(extreme_cases.cases(), extreme_cases.files(), extreme_cases.recorded()):
            if not re.search(options.only, case.name):
                continue
            outcome = run(case, options.threads)
            names = [label for label, _ in changes(case)]
            if outcome.refused:
                if not case.is_request_fixed:
                    print(f"not run {case.name}: {outcome.refused[:200]}", flush=True)
                continue
            tried |= operators(case)
            if options.messages:
                with open(options.messages, "a") as file:
                    for number, text in outcome.messages.items():
                        print(json.dumps([case.name, names[number], text]), file=file)
            died = {}
            for number, how in outcome.deaths.items():
                died.setdefault(how, []).append(names[number])
            signals = {how: which for how, which in died.items() if how != "time"}
            if signals:
                for operator in operators(case):
                    table.setdefault(operator, set()).update(signals)
                if not operators(case) & KNOWN:
                    faults.append(f"{case.name} ends the process: {signals}")
            line = f"{outcome.answered} answered, {outcome.failed} failed"
            line += "".join(f", {how} {len(which)} ({'; '.join(which[:4])})" for how, which in died.items())
            if 0 in outcome.messages:
                line += f"; the valid request fails: {outcome.messages[0][:200]}"
            if server:
                counts, end = served(server, repository, case, outcome)
                line += f"; the server: {', '.join(f'{count} of {status}' if count else status for status, count in counts.items())}"
                if end is not None:
                    faults.append(f"{case.name} ends the server: {end}")
                    server = Server(options.server, library, repository)
                elif server.peak() > SERVER_PEAK:
                    faults.append(f"{case.name}: the server takes {server.peak() >> 20} MiB")
                    server.process.kill()
                    server.process.wait()
                    server = Server(options.server, library, repository)
            if signals or not case.is_request_fixed:
                print(f"{'ENDS' if signals else 'ok':<5} {case.name}: {line}", flush=True)
        if server:
            server.process.kill()
            server.process.wait()
    print(f"{len(tried)} operators; processes were ended by " + ", ".join(f"{operator} ({', '.join(sorted(how))})" for operator, how in sorted(table.items())))
    for fault in faults:
        print(f"FAULT {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
