"""Gives a server real ONNX models with changes to their structure: none may crash it, hang it or exhaust its memory.

    python mutate.py --server PROGRAM --folder FOLDER [--count N] [--seed N] [--first N] [--jobs N] [--only REGEX] [--keep FOLDER]

FOLDER has the models that `cargo xtask zoo` downloaded; called by `cargo xtask zoo --mutations N`. Each mutant is a
small model with one to four changes: sizes and axes in shapes, attributes and constants, datatypes, operators, edges
between nodes, and nodes that are removed, repeated, or moved into nested branches and endless loops. It is loaded, and
gets inputs of the sizes that it accepts and of others. The server is watched from outside: it must stay alive, answer
health requests, keep its time limits, stop computing afterwards, and stay within its memory. Responses with status 200
must have the shapes in the metadata, and the shapes of ONNX Runtime's outputs. The same number and seed give the same
mutant. The exit code is 1 if something is found. The mutant is then kept, and so are those that give status 500 or
other values than ONNX Runtime's.
"""

import argparse
import collections
import http.client
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import threading
import time

import numpy as np
import onnx
import onnxruntime

import ort
import zoo
from mutations import Mutation
from served import Server

# Maximum size of a model in bytes.
LARGEST = 128 << 10
# Maximum seconds for loading and for running: the server's own limits, with tolerance for a busy machine.
LOAD_SECONDS, RUN_SECONDS = 8, 3
PATIENCE = 30
# Maximum seconds until a health request is answered.
HEALTH_SECONDS = 5
# Seconds for which an abandoned load may continue until it checks the time.
SETTLED_SECONDS = 90
# Maximum resident memory of the server in addition to that at its start, in bytes: while it works, and afterwards. The
# largest value of 4 GiB may be computed from one of half the size, for example by a loop that doubles it.
MOST_MEMORY, KEPT_MEMORY = (6 << 30) + (128 << 20), 512 << 20
# Maximum number of elements in an input.
MOST_ELEMENTS = 1 << 20
# Additional memory and seconds that ONNX Runtime may take for its outputs.
REFERENCE_MEMORY, REFERENCE_SECONDS = 6 << 30, 20


# NumPy has no BF16; any bytes will do.
KINDS = {"FP32": np.float32, "FP64": np.float64, "FP16": np.float16, "BF16": np.uint16, "BOOL": np.bool_, "BYTES": object}


def kind_of(datatype):
    return KINDS.get(datatype) or np.dtype(datatype.lower()).type


class Watched:
    """A server, with threads that continuously watch its memory and health."""

    def __init__(self, program, repository):
        limits = ["--request-timeout", f"{RUN_SECONDS}s", "--max-request-timeout", f"{RUN_SECONDS}s", "--load-timeout", f"{LOAD_SECONDS}s"]
        self.server = Server(program, str(repository), limits=limits)
        self.idle = self.resident()
        self.peak = self.idle
        self.sick = None
        for look in (self.look_at_memory, self.look_at_health):
            threading.Thread(target=look, daemon=True).start()

    def resident(self):
        """Returns the resident memory in bytes, as given by `ps`."""
        pages = pathlib.Path(f"/proc/{self.server.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def look_at_memory(self):
        while self.is_running():
            try:
                self.peak = max(self.peak, self.resident())
            except (OSError, IndexError):  # the process has just ended
                return
            if self.peak - self.idle > MOST_MEMORY + (2 << 30):
                # Ends the server before it takes the memory that other processes need.
                self.server.process.kill()
            time.sleep(0.02)

    def look_at_health(self):
        while self.is_running():
            start = time.monotonic()
            try:
                status, _, _ = self.ask("GET", "/v2/health/ready", timeout=PATIENCE)
            except (OSError, http.client.HTTPException) as error:
                status = error
            taken = time.monotonic() - start
            if self.is_running() and (status != 200 or taken > HEALTH_SECONDS):
                self.sick = f"health: {status} after {taken:.1f} s"
            time.sleep(0.1)

    def is_running(self):
        return self.server.is_running()

    def ask(self, method, path, body=None, headers=None, timeout=60.0):
        """Returns the status, the headers and the content of a response."""
        host, port = self.server.address.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def settles(self):
        """Returns whether the server stops computing in time."""
        end = time.monotonic() + SETTLED_SECONDS + PATIENCE
        while time.monotonic() < end and self.is_running():
            before = self.server.processor_time()
            time.sleep(0.5)
            if self.server.processor_time() - before < 0.2:
                return True
        return not self.is_running()

    def infer(self, name, inputs):
        """Returns the status, and the outputs by name or the error."""
        described, content = [], b""
        for key, (datatype, values) in inputs.items():
            if values.dtype == object:
                raw = b"".join(len(x).to_bytes(4, "little") + x.encode() for x in values.ravel())
            else:
                raw = np.ascontiguousarray(values).tobytes()
            size = {"binary_data_size": len(raw)}
            described.append({"name": key, "shape": list(values.shape), "datatype": datatype, "parameters": size})
            content += raw
        head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
        lengths = {"Inference-Header-Content-Length": str(len(head))}
        status, headers, answer = self.ask("POST", f"/v2/models/{name}/infer", head + content, lengths, RUN_SECONDS + PATIENCE)
        if status != 200:
            return status, answer.decode(errors="replace")
        length = int(headers.get("Inference-Header-Content-Length", len(answer)))
        place, outputs = length, {}
        for output in json.loads(answer[:length])["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size", 0)
            outputs[output["name"]] = (output["datatype"], output["shape"], answer[place:place + size])
            place += size
        return status, outputs


def sizes_of_inputs(ports, random):
    """Yields the shapes of all inputs together: first small sizes that the model accepts, then sizes that it may not
    accept."""
    chosen = []
    for size in (1, int(random.choice([2, 3, 7, 16]))):
        chosen.append([[size if dim < 0 else dim for dim in port["shape"]] for port in ports])
    named = [[int(random.choice([1, 2, 3, 5, 33, 320])) if dim < 0 else dim for dim in port["shape"]] for port in ports]
    chosen.append(named)
    odd = [list(shape) for shape in chosen[random.integers(3)]]
    if odd:
        shape = odd[random.integers(len(odd))]
        change = random.integers(4)
        if change == 0 or not shape:
            shape.append(1)
        elif change == 1:
            del shape[0]
        elif change == 2:
            shape[random.integers(len(shape))] = 0
        else:
            shape[random.integers(len(shape))] = int(random.choice([2, 5, 999, 4097]))
    chosen.append(odd)
    return chosen


def made_up(ports, shapes, random):
    """Returns values for inputs, ones or random; None if the sizes are too large for a request."""
    inputs = {}
    is_odd = random.random() < 0.5
    for port, shape in zip(ports, shapes):
        if np.prod(shape, dtype=np.float64) > MOST_ELEMENTS:
            return None
        kind = kind_of(port["datatype"])
        if kind is object:
            values = np.full(shape, "a", dtype=object)
        elif not is_odd:
            values = np.ones(shape, kind)
        elif np.issubdtype(kind, np.integer):
            limits = np.iinfo(kind)
            values = random.choice(np.array([limits.min, limits.max, limits.max // 2, 0, 1, 2, 3], dtype=kind), size=shape)
        elif kind is np.bool_:
            values = random.random(shape) < 0.5
        else:
            values = random.standard_normal(shape).astype(kind)
        inputs[port["name"]] = (port["datatype"], np.asarray(values))
    return inputs


def reference_loop(pipe):
    """Runs models with ONNX Runtime in a separate process, which may crash or use any amount of time and memory."""
    import resource

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (REFERENCE_MEMORY, REFERENCE_MEMORY))
    onnxruntime.set_default_logger_severity(4)
    model, session = None, None
    while True:
        number, path, inputs = pipe.recv()
        try:
            if number != model:
                model, session = number, None
                session = ort.session_of(path)
            outputs = {} if session is None else dict(zip([port.name for port in session.get_outputs()], session.run(None, inputs)))
            pipe.send({name: values for name, values in outputs.items() if isinstance(values, np.ndarray)})
        except BaseException:  # ONNX Runtime's exceptions have no common type
            pipe.send({})


class Reference:
    def __init__(self):
        self.process = None

    def answers(self, number, path, inputs):
        """Returns ONNX Runtime's outputs, or None. `number` identifies the model."""
        if self.process is None or not self.process.is_alive():
            context = multiprocessing.get_context("spawn")
            self.pipe, other = context.Pipe()
            self.process = context.Process(target=reference_loop, args=(other,), daemon=True)
            self.process.start()
            other.close()
        try:
            self.pipe.send((number, str(path), {name: values for name, (_, values) in inputs.items()}))
            if self.pipe.poll(REFERENCE_SECONDS):
                return self.pipe.recv()
        except (EOFError, OSError):
            pass
        self.process.kill()
        self.process.join()
        return {}


def has_other_rank(port, shape):
    """Returns whether a declared shape consists only of -1 but has the wrong rank; the file itself declares it."""
    return len(shape) != len(port["shape"]) and all(dim == -1 for dim in port["shape"])


def faults(metadata, outputs):
    """Returns the faults in a successful response, regardless of ONNX Runtime."""
    for port in metadata["outputs"]:
        if port["name"] not in outputs:
            return f"{port['name']} is missing"
        datatype, shape, raw = outputs[port["name"]]
        if datatype != port["datatype"]:
            return f"{port['name']} is {datatype}, expected {port['datatype']}"
        if not has_other_rank(port, shape) and (
            len(shape) != len(port["shape"]) or any(wanted not in (-1, found) for wanted, found in zip(port["shape"], shape))
        ):
            return f"{port['name']} has shape {shape}, expected {port['shape']}"
        kind = kind_of(datatype)
        if kind is not object and len(raw) != np.dtype(kind).itemsize * int(np.prod(shape, dtype=np.float64)):
            return f"{port['name']} has {len(raw)} bytes for shape {shape}"
    return None


def has_free_order(path):
    """Returns whether results may have any order: that of TopK with `sorted` 0."""
    topk = (node for node in onnx.load(path, load_external_data=False).graph.node if node.op_type == "TopK")
    return any(attribute.name == "sorted" and attribute.i == 0 for node in topk for attribute in node.attribute)


def compared(outputs, expected, in_order=True):
    """Returns how a response differs from ONNX Runtime's: in a shape, in values, or not. Without `in_order`, each output
    only has to consist of the same values."""
    other = None
    for name, wanted in expected.items():
        datatype, shape, raw = outputs.get(name, ("", [], b""))
        if list(wanted.shape) != list(shape):
            return f"OTHER SHAPE: {name} has shape {shape}, ONNX Runtime's has {list(wanted.shape)}"
        kind = kind_of(datatype)
        if kind is object or wanted.dtype == object:
            continue
        found = np.frombuffer(raw, kind).reshape(shape)
        if not in_order:
            wanted, found = np.sort(wanted, axis=None), np.sort(found, axis=None)
        with np.errstate(all="ignore"):
            other = other or zoo.difference(name, wanted, found)
    return other and f"other values: {other}"


def asked(watched, reference, number, path, random):
    """Sends requests to a loaded mutant. Returns their results, worst first."""
    status, _, content = watched.ask("GET", "/v2/models/mutant")
    if status != 200:
        return f"NO METADATA: {status}"
    metadata = json.loads(content)
    results = []
    for index, shapes in enumerate(sizes_of_inputs(metadata["inputs"], random)):
        inputs = made_up(metadata["inputs"], shapes, random)
        if inputs is None:
            continue
        start = time.monotonic()
        status, outputs = watched.infer("mutant", inputs)
        taken = time.monotonic() - start
        asked_with = {name: list(values.shape) for name, (_, values) in inputs.items()}
        if taken > RUN_SECONDS + PATIENCE:
            return f"RUN TOOK {taken:.0f} s: {asked_with}"
        if status == 200:
            fault = faults(metadata, outputs)
            if fault is not None:
                return f"WRONG ANSWER: {fault}; asked with {asked_with}"
            expected = reference.answers(number, path, inputs)
            difference = compared(outputs, expected)
            if difference and difference.startswith("other values") and has_free_order(path):
                difference = compared(outputs, expected, in_order=False)
            if difference and difference[0].isupper():
                return f"{difference}; asked with {asked_with}"
            ranks = [port["name"] for port in metadata["outputs"] if has_other_rank(port, outputs[port["name"]][1])]
            results.append(difference or (f"other rank than the file says: {ranks[0]}" if ranks else "answered"))
        elif status == 500:
            results.append(f"answered with 500: {outputs}; asked with {asked_with}")
        elif status == 504:
            results.append("took longer than its deadline")
        else:
            results.append("not answered")
    order = ("answered with", "other", "answered", "took", "not")
    results.sort(key=lambda result: next(place for place, start in enumerate(order) if result.startswith(start)))
    return results[0] if results else "loaded"


def tried(watched, reference, number, repository, content, random):
    """Loads and tests a mutant. Returns the result."""
    folder = repository / "mutant" / "1"
    folder.mkdir(parents=True)
    path = folder / "model.onnx"
    path.write_bytes(content)
    watched.peak = watched.resident()
    try:
        start = time.monotonic()
        status, _, reason = watched.ask("POST", "/v2/repository/models/mutant/load", b"{}", timeout=LOAD_SECONDS + 2 * PATIENCE)
        taken = time.monotonic() - start
        if taken > LOAD_SECONDS + PATIENCE:
            return f"LOAD TOOK {taken:.0f} s"
        if status == 200:
            return asked(watched, reference, number, path, random)
        if taken > LOAD_SECONDS and not watched.settles():
            return "STILL BUSY after a load that was given up"
        return "refused" if taken < 5 else "refused after 5 s and more"
    finally:
        try:
            watched.ask("POST", "/v2/repository/models/mutant/unload", b"{}")
        except (OSError, http.client.HTTPException):  # it has crashed or hangs, which the next check shows
            pass
        shutil.rmtree(repository / "mutant")


class Job:
    """Tests mutants one after the other, on its own server."""

    def __init__(self, options, paths, next_number, say):
        self.options, self.paths, self.next_number, self.say = options, paths, next_number, say
        self.watched, self.reference = None, Reference()

    def run(self):
        with tempfile.TemporaryDirectory() as temporary:
            while (number := self.next_number()) is not None:
                self.say(number, *self.mutant(number, pathlib.Path(temporary)))
            if self.watched is not None:
                self.watched.server.stop()

    def mutant(self, number, repository):
        """Creates and tests a mutant. Returns its source, its changes, the result and its content."""
        random = np.random.default_rng([self.options.seed, number])
        path = self.paths[random.integers(len(self.paths))]
        model = onnx.load(path, load_external_data=False)
        mutation, done = Mutation(random), []
        try:
            while not any(done):
                done = [mutation.apply(model) for _ in range(random.integers(1, 5))]
            content = model.SerializeToString()
        except Exception:  # the onnx package cannot write it: too deep or malformed
            return path, done, "cannot be written", b""
        return path, done, self.result(number, repository, content, random), content

    def result(self, number, repository, content, random):
        if self.watched is None or not self.watched.is_running():
            self.watched = Watched(self.options.server, repository)
        watched = self.watched
        try:
            result = tried(watched, self.reference, number, repository, content, random)
        except Exception as error:
            result = f"NO ANSWER: {error!r}"
        taken = watched.peak - watched.idle
        if taken > MOST_MEMORY:
            result = f"TOOK {taken >> 20} MiB"
        elif not watched.is_running():
            result = f"SERVER ENDED with exit code {watched.server.process.returncode}"
        elif watched.sick:
            result, watched.sick = f"SICK: {watched.sick}", None
        elif (kept := self.kept_memory(watched)) > KEPT_MEMORY:
            result = f"KEPT {kept >> 20} MiB"
        if result.startswith(("TOOK", "KEPT")):
            watched.server.process.kill()
            watched.server.process.wait()
        return result

    def kept_memory(self, watched):
        """Returns the memory that is still in use some time after the model was unloaded; an abandoned load may continue
        for a while."""
        end = time.monotonic() + SETTLED_SECONDS
        kept = watched.resident() - watched.idle
        while kept > KEPT_MEMORY and time.monotonic() < end and watched.is_running():
            time.sleep(0.5)
            kept = watched.resident() - watched.idle
        return kept


def outcome(result):
    """Returns the kind of a result, without its details."""
    return re.match("[A-Z ]+", result)[0].strip() if result[0].isupper() else result.split(":")[0]


def is_suspect(result):
    """Returns whether a mutant should be inspected. Damaged models may be refused."""
    return result[0].isupper() or result.startswith(("answered with 500", "other values"))


def can_be_read(path):
    """Returns whether a file is a model; some packages contain pointers to files instead."""
    try:
        onnx.load(path, load_external_data=False)
    except Exception:  # the onnx package's exceptions have no common type
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first mutant, to go on with a run that ended")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="servers at the same time")
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true", help="print every outcome")
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("mutants"))
    options = parser.parse_args()
    paths = [path for path in sorted(options.folder.glob("*.onnx")) if path.stat().st_size <= LARGEST and re.search(options.only, path.name)]
    paths = [path for path in paths if can_be_read(path)]
    if not paths:
        raise SystemExit(f"{options.folder} has no models of at most {LARGEST} bytes whose names match {options.only!r}")
    numbers, lock = iter(range(options.first, options.first + options.count)), threading.Lock()
    counts, kinds, found, started = collections.Counter(), collections.Counter(), [], time.monotonic()

    def next_number():
        with lock:
            return next(numbers, None) if time.monotonic() - started < options.seconds else None

    def say(number, path, done, result, content):
        with lock:
            is_kept = is_suspect(result)
            counts[outcome(result)] += 1
            kinds.update(kind for kind in done if kind)
            if result[0].isupper():
                found.append(number)
            if is_kept:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{options.seed}-{number}.onnx").write_bytes(content)
            if is_kept or options.verbose:
                print(f"{options.seed}-{number} {path.name}: {', '.join(kind for kind in done if kind)}: {result[:600]}", flush=True)
            if sum(counts.values()) % 250 == 0:
                print(f"{sum(counts.values())} in {time.monotonic() - started:.0f} s", flush=True)

    jobs = [threading.Thread(target=Job(options, paths, next_number, say).run) for _ in range(options.jobs)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    left = next(numbers, None)
    if left is not None:
        print(f"the time is over; go on with --first {left}")
    print(f"changes: {dict(kinds)}")
    print(f"outcomes of {sum(counts.values())} mutants of {len(paths)} models, seed {options.seed}\n\n| outcome | mutants |\n|---|---|")
    for result, count in counts.most_common():
        print(f"| {result} | {count} |")
    return int(bool(found) or not counts)


if __name__ == "__main__":
    sys.exit(main())
