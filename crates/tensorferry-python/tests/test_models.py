"""Models in Python, served by the program of the wheel and run by the Python that has it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tensorferry import Client, InferenceError

MIB = 1 << 20


class Server:
    """A server, its clients, and what it has logged."""

    def __init__(self, repository, *options, allow=("--allow-python", "--allow-pickle"), env=None, cwd=None):
        command = [sys.executable, "-m", "tensorferry", "serve", str(repository)]
        command += ["--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0"]
        self.log = []
        self.process = subprocess.Popen(
            command + [*allow, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )
        threading.Thread(target=self._listen, daemon=True).start()
        self.urls = {}
        for line in self.process.stdout:
            address = line.rsplit(" ", 1)[-1].strip().removeprefix("http://")
            if "HTTP" in line and "http" not in self.urls:
                self.urls["http"] = f"http://{address}"
            elif "gRPC" in line and "grpc" not in self.urls:
                self.urls["grpc"] = f"grpc://{address}"
            if len(self.urls) == 2 and " after " in line:
                break
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.client = Client(self.urls["http"])

    def _listen(self):
        for line in self.process.stderr:
            self.log.append(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(30) == 0, "".join(self.log[-50:])

    def told(self, model, **request):
        """The answer to a request with more than inputs, over HTTP as it is."""
        body = urllib.request.Request(f"{self.urls['http']}/v2/models/{model}/infer", json.dumps(request).encode())
        outputs = json.load(urllib.request.urlopen(body))["outputs"]
        return {output["name"]: output["data"] for output in outputs}

    def reason(self, model):
        return {entry["name"]: entry.get("reason", "") for entry in self.client.models()}[model]

    def logged(self, text):
        for _ in range(300):
            if text in "".join(self.log):
                return True
            time.sleep(0.01)
        return False

    def event(self, text):
        """The first event of the log with this text: a line, and those behind it that are indented."""
        assert self.logged(text), f"{text!r} is not in the log"
        time.sleep(0.05)
        lines = list(self.log)
        start = next(number for number, line in enumerate(lines) if text in line)
        while lines[start].startswith("    "):
            start -= 1
        end = start + 1
        while end < len(lines) and lines[end].startswith("    "):
            end += 1
        return lines[start:end]

    def workers(self, model):
        """The processes of a model."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                parent, state = None, None
                for line in (entry / "status").read_text().splitlines():
                    if line.startswith("PPid:"):
                        parent = int(line.split()[1])
                    elif line.startswith("State:"):
                        state = line.split()[1]
            except OSError:
                continue
            if parent == self.process.pid and state != "Z" and f"{model}/1".encode() in command:
                found.append(int(entry.name))
        return found


def write(repository, name, source, config=None):
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(source)
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)
    return folder


IDENTITY = """
class Model:
    inputs = {"x": ("FP32", [-1, -1])}
    outputs = {"y": ("FP32", [-1, -1])}
    max_batch_size = 64

    def infer(self, x):
        return {"y": x}
"""

OWN = '''
import asyncio
import os

import numpy as np

import beside
from tensorferry_model import InferenceError


class Model:
    inputs = {
        "x": ("FP32", [-1, 3]),
        "input.1": {"datatype": "INT64", "shape": [-1], "optional": True},
    }
    outputs = {"y": (np.float32, [-1, 3]), "text": (str, [-1]), "told": ("BYTES", [-1])}
    max_batch_size = 0

    def __init__(self, context):
        self.context = context
        self.lines = beside.read(context.folder)
        print("made in", context.name, context.version)

    async def infer(self, x, request, input_1=None):
        await asyncio.sleep(0)
        assert not x.flags.writeable
        if input_1 is not None and input_1[0] < 0:
            raise InferenceError(f"{input_1[0]} is negative", status=429)
        if input_1 is not None and input_1[0] == 8:
            return {"text": np.array([3], dtype=object)}
        if input_1 is not None and input_1[0] == 9:
            raise InferenceError("\\udc80 no text", status="x")
        if input_1 is not None and input_1[0] == 7:
            raise ValueError("seven\\nis not liked")
        print("asked", request.id)
        told = [self.context.parameters["greeting"], request.parameters.get("who", "nobody"), *self.lines]
        return {
            "y": x.astype(np.float64) * 2,
            "text": np.array(["a", "bc", "h\\u00e9\\0"], dtype=object),
            "told": told,
        }
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    repository = tmp_path_factory.mktemp("own")
    folder = write(repository, "own", OWN, 'parameters { key: "greeting" value { string_value: "hello" } }')
    (folder / "beside.py").write_text("def read(directory):\n    return open(directory + '/lines.txt').read().split()\n")
    (folder / "lines.txt").write_text("one two")
    write(repository, "identity", IDENTITY)
    config = 'max_batch_size: 4 input { name: "s" data_type: TYPE_STRING dims: [ 2 ] } output { name: "n" data_type: TYPE_INT32 dims: [ 2 ] }'
    source = "class Model:\n    def infer(self, s):\n        import numpy as np\n        return np.vectorize(len, otypes=[int])(s)\n"
    write(repository, "lengths", source, config)
    with Server(repository) as server:
        server.folder = folder
        yield server


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_our_own_form(own, transport):
    client = Client(own.urls[transport])
    info = client.model("own")
    assert [(tensor.name, tensor.shape) for tensor in info.outputs] == [("y", (-1, 3)), ("text", (-1,)), ("told", (-1,))]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs = client.infer("own", {"x": x})
    assert np.array_equal(outputs["y"], x * 2) and outputs["y"].dtype == np.float32
    assert outputs["text"].tolist() == [b"a", b"bc", "h\u00e9\0".encode()]
    assert outputs["told"].tolist() == [b"hello", b"nobody", b"one", b"two"]
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]
    assert own.told("own", id="7", parameters={"who": "me"}, inputs=inputs)["told"][1] == "me"
    assert list(client.infer("own", {"x": x}, outputs=["text"])) == ["text"]
    assert own.logged("made in own 1") and own.logged("asked 7")


def test_nothing_is_written_to_the_repository(own):
    assert sorted(path.name for path in own.folder.iterdir()) == ["beside.py", "lines.txt", "model.py"]


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_refusals_and_failures(own, transport):
    client = Client(own.urls[transport])
    x = np.zeros((1, 3), np.float32)
    with pytest.raises(InferenceError, match="-1 is negative") as error:
        client.infer("own", {"x": x, "input.1": np.array([-1])})
    assert error.value.code == "Overloaded"
    with pytest.raises(InferenceError, match="its model.py failed: ") as error:
        client.infer("own", {"x": x, "input.1": np.array([7])})
    assert error.value.code == "Internal" and "Traceback" not in str(error.value)
    # The whole traceback is one event, as Python prints it.
    first, *traceback = own.event('raise ValueError("seven')
    assert " ERROR oip_worker" in first and "a model failed" in first and "model=\"own/1\"" in first, first
    path = own.folder / "model.py"
    line = next(number for number, line in enumerate(path.read_text().splitlines(), 1) if "raise ValueError" in line)
    assert [line[4:-1] for line in traceback] == [
        "Traceback (most recent call last):",
        f'  File "{path}", line {line}, in infer',
        '    raise ValueError("seven\\nis not liked")',
        "ValueError: seven",
        "is not liked",
    ]
    pid = own.workers("own")
    for number, expected in ((8, "an element of a BYTES tensor is int"), (9, "no text")):
        with pytest.raises(InferenceError, match=expected) as error:
            client.infer("own", {"x": x, "input.1": np.array([number])})
        assert error.value.code == "Internal"
    assert own.workers("own") == pid
    with pytest.raises(InferenceError) as error:
        client.infer("own", {"x": x[:, :2]})
    assert error.value.code == "InvalidArgument"


def test_long_tracebacks_are_whole_and_floods_of_them_are_counted(tmp_path):
    source = '''
class Model:
    inputs = {"x": ("INT64", [1])}
    outputs = {"y": ("INT64", [1])}

    def infer(self, x):
        if x[0] < 0:
            self.deeper(50)
        raise ValueError("\u20ac" * int(x[0]) + "end")

    def deeper(self, depth):
        # The message of each cause is its own, so that Python does not fold them.
        try:
            if depth:
                self.deeper(depth - 1)
            else:
                raise KeyError("first of all")
        except Exception as error:
            raise RuntimeError(f"level {depth} " + "y" * 100) from error
'''
    write(tmp_path, "fails", source)
    with Server(tmp_path) as server:

        def fail(x):
            with pytest.raises(InferenceError, match="its model.py failed"):
                server.client.infer("fails", {"x": np.array([x])})

        fail(-1)
        assert server.logged("level 50 yyy")
        text = "".join(server.log)
        assert "KeyError: 'first of all'" in text and all(f"level {depth} " in text for depth in range(51))
        # Three bytes each.
        fail(60_000)
        assert server.logged("bytes are left out") and server.logged("\u20acend")
        for _ in range(200):
            fail(1)
        time.sleep(1.5)
        fail(2)
        assert server.logged("more often than tracebacks are logged")
        events = [line for line in server.log if "a model failed" in line and "more often" not in line]
        assert 95 <= len(events) <= 130, len(events)


POISON = "import os, sys\nopen({trace!r}, 'a').write(__name__ + '\\n')\nraise ImportError('poisoned')\n"


def test_nothing_is_imported_from_where_the_server_was_started(tmp_path):
    folder, trace = tmp_path / "cwd", tmp_path / "trace"
    folder.mkdir()
    for name in ("json", "numpy", "socket", "types", "asyncio", "helper"):
        (folder / f"{name}.py").write_text(POISON.format(trace=str(trace)))
    source = IDENTITY + "\n        import helper\n"
    source = "try:\n    import helper\nexcept ModuleNotFoundError:\n    print('no helper')\n" + IDENTITY
    write(tmp_path / "models", "identity", source)
    # `serve` itself is a Python program that is started there; the program of the wheel is what is tested.
    program = Path(sys.executable).with_name("oip-server")
    command = [str(program), str(tmp_path / "models"), "--allow-python", "--python", sys.executable]
    command += ["--http-address", f"unix:{tmp_path / 'http'}", "--grpc-address", "127.0.0.1:0"]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        client = Client(f"http+unix://{tmp_path / 'http'}")
        for _ in range(500):
            try:
                if client.is_model_ready("identity"):
                    break
            except InferenceError:
                pass
            time.sleep(0.02)
        x = np.ones((1, 2), np.float32)
        assert np.array_equal(client.infer("identity", {"x": x})["y"], x), (tmp_path / "log").read_text()
    finally:
        process.terminate()
        assert process.wait(20) == 0
    assert "no helper" in (tmp_path / "log").read_text()
    assert not trace.exists(), trace.read_text()


ENVIRONMENT = '''
import os
import sys

class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"told": (str, [-1])}
    max_batch_size = 0

    def infer(self, x):
        names = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME")
        return {"told": [sys.prefix, os.environ["PATH"].split(":")[0], *(os.environ.get(name, "") for name in names)]}
'''


def test_environments_that_configurations_name(tmp_path):
    packages = [path for path in sys.path if path.endswith("site-packages")]
    write(tmp_path / "models", "venv", ENVIRONMENT, 'parameters { key: "python" value { string_value: "env" } }')
    env = tmp_path / "models" / "venv" / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (next((env / "lib").glob("python*")) / "site-packages" / "numpy.pth").write_text("\n".join(packages))
    # As conda lays environments out: a folder with bin/python and conda-meta.
    conda = tmp_path / "conda"
    (conda / "bin").mkdir(parents=True)
    (conda / "conda-meta").mkdir()
    (conda / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (conda / "bin" / "python").chmod(0o755)
    write(tmp_path / "models", "conda", ENVIRONMENT, f'parameters {{ key: "python" value {{ string_value: "{conda}" }} }}')
    write(tmp_path / "models", "own", ENVIRONMENT)
    other = tmp_path / "other"
    other.mkdir()
    with Server(tmp_path / "models", env={"PYTHONPATH": str(other)}) as server:
        told = {}
        for name in ("venv", "conda", "own"):
            found = server.client.infer(name, {"x": np.array([1], np.int32)})["told"].tolist()
            told[name] = [text.decode() for text in found]
    assert told["venv"] == [str(env), str(env / "bin"), str(env), "", "", ""]
    assert told["conda"][1:] == [str(conda / "bin"), "", str(conda), "", ""]
    # The server's own interpreter has the server's own path.
    assert told["own"][4] == str(other)


PLACES = '''
import os
import threading
import time

import numpy as np

class Model:
    inputs = {"x": ("INT64", [1])}
    outputs = {"pid": ("INT64", [1])}
    instances = 3

    def infer(self, x):
        time.sleep(float(x[0]) / 1000)
        return {"pid": [os.getpid()]}
'''


def test_instances_are_processes_that_work_at_once(tmp_path):
    write(tmp_path, "places", PLACES)
    with Server(tmp_path) as server:
        assert len(server.workers("places")) == 1
        pids, start = [], time.monotonic()

        def call():
            pids.append(int(server.client.infer("places", {"x": np.array([1500])})["pid"][0]))

        # Processes are started as they are needed, so the first round may wait for their imports.
        for _ in range(2):
            pids.clear()
            start = time.monotonic()
            threads = [threading.Thread(target=call) for _ in range(3)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        assert len(set(pids)) == 3 and time.monotonic() - start < 3.5
        assert sorted(server.workers("places")) == sorted(pids)
        # A fourth waits for one of them.
        threads = [threading.Thread(target=call) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(server.workers("places")) == 3


COUNTING = '''
class Model:
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"sum": ("FP32", [-1])}

    def infer(self, x):
        print("asked for", len(x))
        return x.sum(axis=1)
'''

PIPELINE = '''
platform: "ensemble"
max_batch_size: 8
input { name: "raw" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "total" data_type: TYPE_FP32 dims: [ ] }
ensemble_scheduling { step [
  { model_name: "doubling" model_version: -1 input_map { key: "x" value: "raw" } output_map { key: "y" value: "double" } },
  { model_name: "sums" model_version: -1 input_map { key: "x" value: "double" } output_map { key: "sum" value: "total" } }
] }
'''


def test_in_a_pipeline_and_with_a_cache(tmp_path):
    write(tmp_path, "sums", COUNTING)
    doubling = COUNTING.replace('"sum": ("FP32", [-1])', '"y": ("FP32", [-1, 2])').replace("x.sum(axis=1)", "x * 2")
    write(tmp_path, "doubling", doubling)
    write(tmp_path, "cached", COUNTING, "response_cache { enable: true }")
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "config.pbtxt").write_text(PIPELINE)
    (tmp_path / "both" / "1").mkdir()
    with Server(tmp_path, "--response-cache-byte-size", "1MiB") as server:
        x = np.array([[1, 2], [3, 4]], np.float32)
        assert server.client.infer("both", {"raw": x})["total"].tolist() == [6, 14], server.reason("both")
        time.sleep(0.3)
        before = sum("asked for" in line for line in server.log)
        for _ in range(5):
            assert server.client.infer("cached", {"x": x})["sum"].tolist() == [3, 7]
        assert server.client.infer("cached", {"x": x + 1})["sum"].tolist() == [5, 9]
        time.sleep(0.3)
        assert sum("asked for" in line for line in server.log) - before == 2


def test_a_pause_after_deaths_in_a_row(tmp_path):
    write(tmp_path, "bad", MISBEHAVING)
    with Server(tmp_path) as server:
        impatient = Client(server.urls["http"], attempts=1)

        def ask(deed):
            return impatient.infer("bad", {"x": np.array([deed])})

        ask(0)
        for _ in range(5):
            with pytest.raises(InferenceError, match="it ended with code 9"):
                ask(5)
        with pytest.raises(InferenceError, match="died 5 times in a row.*The next attempt is in 1 s") as error:
            ask(0)
        assert error.value.code == "Unavailable" and error.value.retry_after == 1
        # A client that tries again gets its answer.
        assert Client(server.urls["http"], attempts=5).infer("bad", {"x": np.array([0])})["y"].shape == (1,)
        ask(0)


def test_strings_and_a_configuration_that_describes_everything(own):
    info = own.client.model("lengths")
    assert info.inputs[0].shape == (-1, 2) and info.inputs[0].datatype == "BYTES"
    s = np.array([[b"", b"ab"], ["xyz", b"\0"]], dtype=object)
    assert own.client.infer("lengths", {"s": s})["n"].tolist() == [[0, 2], [3, 1]]


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("shape", [(0, 4), (1, 16), (1, 16 << 10), (1, 16385), (64, 65536), (3, 1234567)])
def test_what_goes_in_comes_out(own, transport, shape):
    client = Client(own.urls[transport])
    for seed in range(3):
        x = np.random.default_rng(seed).random(shape, dtype=np.float32)
        assert np.array_equal(client.infer("identity", {"x": x})["y"], x)


def test_requests_at_once_are_joined_and_answered_each(own):
    results = {}

    def call(index):
        x = np.full((1 + index % 3, 5), index, np.float32)
        results[index] = np.array_equal(own.client.infer("identity", {"x": x})["y"], x)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(64)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(results) == 64 and all(results.values())


LARGE = '''
import numpy as np

class Model:
    inputs = {"x": ("FP32", [-1])}
    outputs = {"part": ("FP32", [-1]), "doubled": ("FP32", [-1]), "backwards": ("FP32", [-1]), "kept": ("FP32", [-1])}
    max_batch_size = 0

    def __init__(self):
        self.kept = []

    def infer(self, x):
        # What a model keeps must stay as it is, whatever comes next.
        self.kept = [*self.kept[-2:], x]
        return {"part": x[10:-10], "doubled": x * 2, "backwards": x[::-1], "kept": np.array([x[0] for x in self.kept])}
'''


def test_large_tensors_in_shared_memory(tmp_path):
    write(tmp_path, "large", LARGE)
    with Server(tmp_path) as server:
        sizes = [20000, 1 << 20, 30000, 5 << 20, 17000, 5 << 20]
        for number, size in enumerate(sizes):
            x = np.random.default_rng(number).random(size, dtype=np.float32)
            x[0] = number
            outputs = server.client.infer("large", {"x": x})
            assert np.array_equal(outputs["part"], x[10:-10])
            assert np.array_equal(outputs["doubled"], x * 2)
            assert np.array_equal(outputs["backwards"], x[::-1])
            assert outputs["kept"].tolist() == list(range(max(0, number - 2), number + 1))


TRITON = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]})
        auto_complete_model_config.add_input({"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [4]})
        auto_complete_model_config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4]})
        auto_complete_model_config.add_output({"name": "OUTPUT1", "data_type": "TYPE_STRING", "dims": [1]})
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])
        config = pb_utils.get_output_config_by_name(model_config, "OUTPUT0")
        self.dtype = pb_utils.triton_string_to_numpy(config["data_type"])
        assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
        assert not pb_utils.using_decoupled_model_transaction_policy(model_config)
        self.name = args["model_name"] + "/" + args["model_version"]
        pb_utils.Logger.log_warn("initialized " + self.name)

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            assert pb_utils.get_input_tensor_by_name(request, "INPUT2") is None
            array = in_0.as_numpy()
            if array[0] < 0:
                error = pb_utils.TritonError("negative", pb_utils.TritonError.NOT_FOUND)
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=error))
                continue
            if array[0] == 7:
                pb_utils.MetricFamily(name="m", description="d", kind=0)
            array += in_1.as_numpy()
            text = f"{self.name} {request.request_id()} {json.loads(request.parameters()).get('who')}"
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor("OUTPUT0", array.astype(self.dtype)),
                        pb_utils.Tensor("OUTPUT1", np.array([text.encode()], dtype=np.object_)),
                    ]
                )
            )
        return responses

    def finalize(self):
        print("finalized " + self.name)
'''

SENDER = '''
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1)]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
'''

SENDER_CONFIG = '''
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_INT32 dims: [ 2 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ 2 ] }
'''


def test_files_of_tritons_python_backend(tmp_path):
    write(tmp_path, "add", TRITON, 'name: "add" backend: "python"')
    write(tmp_path, "sender", SENDER, SENDER_CONFIG)
    with Server(tmp_path) as server:
        for transport in ("http", "grpc"):
            client = Client(server.urls[transport])
            a, b = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
            outputs = client.infer("add", {"INPUT0": a, "INPUT1": b})
            assert outputs["OUTPUT0"].tolist() == [10, 11, 12, 13]
            assert outputs["OUTPUT1"].tolist()[0].startswith(b"add/1 ") and outputs["OUTPUT1"].tolist()[0].endswith(b" None")
            with pytest.raises(InferenceError, match="negative") as error:
                client.infer("add", {"INPUT0": a - 5, "INPUT1": b})
            assert error.value.code == "NotFound"
            with pytest.raises(InferenceError, match="pb_utils.MetricFamily is not supported"):
                client.infer("add", {"INPUT0": a + 7, "INPUT1": b})
            x = np.array([[1, 2], [3, 4]], np.int32)
            assert np.array_equal(client.infer("sender", {"X": x})["Y"], x + 1)
        inputs = [{"name": f"INPUT{i}", "datatype": "FP32", "shape": [4], "data": [i, 2, 3, 4]} for i in (0, 1)]
        answer = server.told("add", id="an id", parameters={"who": "me"}, inputs=inputs)
        assert answer["OUTPUT1"] == ["add/1 an id me"]
        assert server.logged("initialized add/1")
    assert server.logged("finalized add/1")


NAMES = '''
import asyncio
import json
import logging

import numpy as np
import triton_python_backend_utils as pb_utils

from .beside import ABOVE as relative
from beside import ABOVE as plain
from shared_of_models import SHARED

AT_IMPORT = __name__, __package__, __spec__.name


class Kept:
    pass


class TritonPythonModel:
    def initialize(self, args):
        logger = pb_utils.Logger
        logger.log("for information", logger.INFO)
        logger.log("of a warning", logger.WARNING)
        logger.log("of an error", level=logger.ERROR)
        logger.log_error("two\\nlines")
        logger.log_verbose("for nobody")

    def execute(self, requests):
        responses = []
        for request in requests:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
            wrong = []
            try:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            except pb_utils.TritonModelException as error:
                wrong.append(str(error))
            try:
                pb_utils.Metric
            except pb_utils.TritonModelException as error:
                wrong.append(str(error))
            texts = np.array([b"a", "b\u00e9", 7, b"c\\0"], dtype=object)
            raw = pb_utils.serialize_byte_tensor(texts)
            told = {
                "at_import": AT_IMPORT,
                "imports": [relative, plain, SHARED],
                "folder": pb_utils.get_model_dir(),
                "has": [hasattr(pb_utils, "Metric"), hasattr(pb_utils, "Tensor"), hasattr(pb_utils, "nothing")],
                "wrong": wrong,
                "raw": [type(raw).__name__, len(raw), pb_utils.deserialize_bytes_tensor(raw)[3] == b"c\\0"],
                "serialized": pb_utils.serialize_byte_tensor(np.array([1.0])) is None,
                "types": pb_utils.TRITON_STRING_TO_NUMPY["TYPE_FP16"] is np.float16,
                "trace": request.trace().get_context(),
                "timeout": 0 < request.timeout() <= 5_000_000,
                "kept": Kept.__module__,
            }
            text = np.array([json.dumps(told).encode()], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", text)], parameters={"a": 1}))
        return responses
'''

NAMES_CONFIG = '''
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_STRING dims: [ 1 ] }
'''


def test_what_files_of_triton_import_and_call(tmp_path):
    folder = write(tmp_path, "names", NAMES, NAMES_CONFIG)
    (folder / "beside.py").write_text("ABOVE = 'beside'\n")
    (folder.parent / "shared_of_models.py").write_text("SHARED = 'shared'\n")
    with Server(tmp_path, "--request-timeout", "5s") as server:
        for _ in range(2):
            inputs = [{"name": "X", "datatype": "INT32", "shape": [1], "data": [1]}]
            told = json.loads(server.told("names", inputs=inputs)["Y"][0])
        assert told["at_import"] == ["1.model", "1", "1.model"] and told["kept"] == "1.model"
        assert told["imports"] == ["beside", "beside", "shared"]
        assert told["folder"] == str(folder)
        assert told["has"] == [False, True, False]
        assert "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in told["wrong"][0]
        assert told["wrong"][1] == "pb_utils.Metric is not supported by this server"
        assert told["raw"] == ["bytes", 4 * 4 + 1 + 3 + 1 + 2, True]
        assert told["serialized"] and told["types"] and told["timeout"] and told["trace"] is None
        # Levels are those of the server's log; what is verbose is for debugging.
        levels = {"for information": "INFO", "of a warning": "WARN", "of an error": "ERROR", "lines": "ERROR"}
        for text, level in levels.items():
            [line] = [line for line in server.log if f'line="{text}"' in line]
            assert f" {level} " in line, line
        assert not server.logged("for nobody")
        said = [line for line in server.log if "parameters of an InferenceResponse are not sent" in line]
        assert len(said) == 1 and " WARN " in said[0]


LATER = '''
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if x[0] == 3:
                continue
            threading.Thread(target=self.answer, args=(request.get_response_sender(), x.copy())).start()
        return [None] * len(requests) if x[0] == 5 else None

    def answer(self, sender, x):
        time.sleep(0.05)
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1)])
        if x[0] == 4:
            try:
                sender.send(flags=final)
            except pb_utils.TritonModelException as error:
                print("refused:", error)
            sender.send(response)
            try:
                sender.send(response)
            except pb_utils.TritonModelException as error:
                print("refused:", error)
            sender.send(flags=final)
            return
        sender.send(response, flags=final)
'''

LATER_CONFIG = SENDER_CONFIG.replace("max_batch_size: 8", "").replace("dims: [ 2 ]", "dims: [ 1 ]")


def test_a_sender_answers_after_execute_has_returned(tmp_path):
    write(tmp_path, "later", LATER, LATER_CONFIG)
    with Server(tmp_path) as server:
        for x in (1, 5, 4, 1):
            assert server.client.infer("later", {"X": np.array([x], np.int32)})["Y"].tolist() == [x + 1]
        assert server.logged("sends a response before, or with, the final flag")
        assert server.logged("sends exactly one response to a request")
        with pytest.raises(InferenceError, match="let go of a request without a response") as error:
            server.client.infer("later", {"X": np.array([3], np.int32)})
        assert error.value.code == "Internal"
        assert server.client.infer("later", {"X": np.array([1], np.int32)})["Y"].tolist() == [2]


#: Asynchronous models, which answer by tasks that go on after `execute` has returned.
TASKS = '''
import asyncio
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.tasks = set()

    async def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            task = asyncio.create_task(self.answer(request.get_response_sender(), x.copy()))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def answer(self, sender, x):
        await asyncio.sleep(0.05)
        if x[0] == 3:
            return
        if x[0] == 4:
            sys.exit("of a task")
        response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1)])
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''


def test_tasks_of_an_asynchronous_execute_go_on_after_it(tmp_path):
    decoupled = "model_transaction_policy { decoupled: true }"
    write(tmp_path, "tasks", TASKS, LATER_CONFIG)
    write(tmp_path, "decoupled", TASKS, LATER_CONFIG + decoupled)

    def infer(server, model, x):
        inputs = {"X": np.array([x], np.int32)}
        if model == "tasks":
            return [server.client.infer(model, inputs, timeout=20)["Y"].tolist()]
        with Client(server.urls["grpc"]) as client:
            return [outputs["Y"].tolist() for outputs in client.infer_stream(model, inputs)]

    with Server(tmp_path, "--request-timeout", "20s") as server:
        for model in ("tasks", "decoupled"):
            pids = server.workers(model)
            for x in (1, 2):
                assert infer(server, model, x) == [[x + 1]], (model, x)
            for x in (3, 4):
                with pytest.raises(InferenceError, match="let go of a request without a response"):
                    infer(server, model, x)
            assert infer(server, model, 1) == [[2]], model
            assert server.workers(model) == pids, model
        assert server.logged("SystemExit: of a task")


#: A model of either form that raises what no model should.
RAISES_OWN = """
import asyncio, sys

class Model:
    inputs = {"X": ("INT32", [1])}
    outputs = {"Y": ("INT32", [1])}

    def infer(self, X):
        if X[0] == 1:
            sys.exit("the end")
        if X[0] == 2:
            raise asyncio.CancelledError
        if X[0] == 3:
            raise ConnectionResetError("of a database")
        if X[0] == 4:
            raise KeyboardInterrupt
        return X
"""

RAISES_OWN_ASYNC = RAISES_OWN.replace("def infer", "async def infer").replace(
    "raise asyncio.CancelledError", "task = asyncio.ensure_future(asyncio.sleep(1)); task.cancel(); await task"
)

RAISES_TRITON = """
import asyncio, sys
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        [request] = requests
        X = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
""" + RAISES_OWN[RAISES_OWN.index("        if X[0] == 1") : RAISES_OWN.index("        return X")] + """
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", X)])]
"""

RAISES_TRITON_ASYNC = RAISES_TRITON.replace("def execute", "async def execute").replace(
    "raise asyncio.CancelledError", "task = asyncio.ensure_future(asyncio.sleep(1)); task.cancel(); await task"
)


def test_whatever_a_model_raises_fails_its_request_only(tmp_path):
    models = {"own": RAISES_OWN, "own_async": RAISES_OWN_ASYNC, "triton": RAISES_TRITON, "triton_async": RAISES_TRITON_ASYNC}
    streams = {name.replace("own", "stream"): models[name].replace("return X", "yield X") for name in ("own", "own_async")}
    raised = {1: "SystemExit: the end", 2: "CancelledError", 3: "ConnectionResetError: of a database", 4: "KeyboardInterrupt"}
    for name, source in {**models, **streams}.items():
        write(tmp_path, name, source, LATER_CONFIG if "triton" in name else None)
    with Server(tmp_path) as server:
        for name in models:
            pids = server.workers(name)
            for x, expected in raised.items():
                with pytest.raises(InferenceError, match="its model.py failed: ") as error:
                    server.client.infer(name, {"X": np.array([x], np.int32)})
                assert expected in str(error.value) and error.value.code == "Internal", (name, x)
            assert server.client.infer(name, {"X": np.array([5], np.int32)})["Y"].tolist() == [5], name
            assert server.workers(name) == pids, name
        for name in streams:
            pids = server.workers(name)
            for x, expected in raised.items():
                status, message = refusal(server, name, "generate_stream", {"X": [x]})
                assert status == 500 and "its model.py failed: " in message and expected in message, (name, x, message)
            assert [event["Y"] for event in events(server, name, None, X=[5])] == [5]
            assert server.workers(name) == pids, name
        # As for other exceptions, the log has the traceback, from the model's own line on.
        traceback = "".join(server.event("SystemExit: the end"))
        assert "model.py" in traceback and 'sys.exit("the end")' in traceback and "<tensorferry" not in traceback, traceback


BF16 = '''
import ctypes

import ml_dtypes
import numpy as np
import triton_python_backend_utils as pb_utils

pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Framework:
    """Stands for a tensor of a framework that asks for the newer form, or has it."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **arguments):
        return self.tensor.__dlpack__(**arguments)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "X")
            capsule = tensor.to_dlpack()
            # DLPack's code for bfloat16, 16 bits, one lane.
            told = ctypes.string_at(pointer(capsule, b"dltensor") + 20, 4)
            assert told == bytes([4, 16, 1, 0]), told
            for lent in (capsule, tensor.to_dlpack(), tensor, Framework(tensor)):
                other = pb_utils.Tensor.from_dlpack("Y", lent)
                assert other.as_numpy().dtype == ml_dtypes.bfloat16
                assert np.shares_memory(other.as_numpy(), tensor.as_numpy())
            turned = pb_utils.Tensor("T", np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3).T)
            back = pb_utils.Tensor.from_dlpack("T", turned.to_dlpack()).as_numpy()
            assert back.shape == (3, 2) and (back == turned.as_numpy()).all()
            half = pb_utils.Tensor("H", np.arange(3, dtype=np.float16))
            assert pb_utils.Tensor.from_dlpack("H", half.to_dlpack()).as_numpy().dtype == np.float16
            responses.append(pb_utils.InferenceResponse([other]))
        return responses
'''


def test_bf16_by_dlpack(tmp_path):
    import ml_dtypes

    write(tmp_path, "bf16", BF16, LATER_CONFIG.replace("INT32", "BF16").replace("dims: [ 1 ]", "dims: [ -1 ]"))
    with Server(tmp_path) as server:
        for count in (5, 1 << 17):
            x = np.arange(count).astype(ml_dtypes.bfloat16)
            y = server.client.infer("bf16", {"X": x})["Y"]
            assert y.dtype == x.dtype and np.array_equal(y, x)


JOINED = '''
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            s = pb_utils.get_input_tensor_by_name(request, "S").as_numpy()
            print("executed", request.request_id())
            if x[0, 0] == 13:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("thirteen", pb_utils.TritonError.NOT_FOUND)))
                continue
            told = json.dumps([len(requests), request.request_id(), s[0, 0].decode(), request.requested_output_names()])
            outputs = [pb_utils.Tensor("Y", x * 2), pb_utils.Tensor("TOLD", np.array([[told.encode()]] * len(x), dtype=object))]
            wanted = request.requested_output_names()
            responses.append(pb_utils.InferenceResponse([output for output in outputs if output.name() in wanted]))
        time.sleep(0.1)
        return responses
'''

JOINED_CONFIG = '''
backend: "python"
max_batch_size: 16
input [ { name: "X" data_type: TYPE_INT32 dims: [ 2 ] }, { name: "S" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 2 ] }, { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]
'''


def at_once(server, model, count, first=lambda number: number):
    """The answers to requests of one to three rows that come together."""
    answers = {}

    def ask(number):
        rows = 1 + number % 3
        x = np.full((rows, 2), first(number), np.int32)
        texts = np.array([[f"text {number}"]] * rows, dtype=object)
        outputs = ["TOLD"] if number % 4 == 3 else []
        client = Client(server.urls["grpc" if number % 2 else "http"])
        try:
            answers[number] = client.request(model, {"X": x, "S": texts}, id=f"id {number}", outputs=outputs)
        except InferenceError as error:
            answers[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return answers


def test_triton_requests_are_joined_where_that_is_written_and_stay_requests(tmp_path):
    write(tmp_path, "joined", JOINED, JOINED_CONFIG + "dynamic_batching { max_queue_delay_microseconds: 50000 }")
    write(tmp_path, "alone", JOINED, JOINED_CONFIG)
    told = """
    @staticmethod
    def auto_complete_config(config):
        config.set_dynamic_batching()
        return config
"""
    write(tmp_path, "completed", JOINED + told, JOINED_CONFIG)
    with Server(tmp_path) as server:
        sizes = {}
        for model in ("joined", "alone", "completed"):
            for number, answer in at_once(server, model, 12).items():
                outputs, rows = answer.outputs, 1 + number % 3
                assert answer.id == f"id {number}"
                size, id, text, wanted = json.loads(outputs["TOLD"][0, 0])
                assert (id, text) == (f"id {number}", f"text {number}")
                assert sorted(wanted) == (["TOLD"] if number % 4 == 3 else ["TOLD", "Y"])
                assert sorted(outputs) == sorted(wanted) and outputs["TOLD"].shape == (rows, 1)
                if "Y" in outputs:
                    assert outputs["Y"].tolist() == [[2 * number] * 2] * rows
                sizes.setdefault(model, []).append(size)
        assert max(sizes["joined"]) > 1 and max(sizes["completed"]) > 1
        assert max(sizes["alone"]) == 1
        config = json.load(urllib.request.urlopen(f"{server.urls['http']}/v2/models/alone/config"))
        assert config["max_batch_size"] == 16 and "dynamic_batching" not in config
        with pytest.raises(InferenceError, match="at most 16"):
            server.client.infer("alone", {"X": np.zeros((17, 2), np.int32), "S": np.full((17, 1), b"", object)})
        # An error belongs to one of them.
        answers = at_once(server, "joined", 12, first=lambda number: 13 if number == 5 else number)
        for number, answer in answers.items():
            if number == 5:
                assert isinstance(answer, InferenceError) and "thirteen" in str(answer) and answer.code == "NotFound"
            else:
                assert json.loads(answer.outputs["TOLD"][0, 0])[1] == f"id {number}"
        answers = at_once(server, "joined", 12, first=lambda number: 13)
        assert all("thirteen" in str(answer) for answer in answers.values())
        # Nothing is run again for the sake of the others.
        time.sleep(0.3)
        executed = [line for line in server.log if 'model="joined/1"' in line and 'line="executed' in line]
        assert len(executed) == 3 * 12


STREAM = '''
import os, time

class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"y": ("INT32", [-1]), "text": (str, [1])}

    def infer(self, x, request):
        count = int(x[0])
        try:
            for i in range(10**9 if count == 99 else count):
                if count == 50 and i == 2:
                    raise ValueError("fifty")
                if count == 60 and i == 2:
                    os._exit(6)
                if count == 70 and i == 2:
                    time.sleep(3600)
                if count == 90 and i == 1:
                    raise ValueError("ninety")
                size = {80: 1 << 20, 90: 18 << 20}.get(count, 1)
                yield {"y": x.repeat(size) * 0 + i, "text": [f"number {i}"]}
        finally:
            print("closed", count, request.is_cancelled())
'''

DECOUPLED = '''
import threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = int(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0])
            if x == 7:
                continue
            threading.Thread(target=self.answer, args=(request.get_response_sender(), x)).start()
        return None

    def answer(self, sender, count):
        for i in range(10**9 if count == 99 else count):
            if sender.is_cancelled():
                pb_utils.Logger.log_info("was cancelled")
                break
            time.sleep(0.001)
            error = pb_utils.TritonError("five") if count == 5 and i == 2 else None
            tensors = [pb_utils.Tensor("y", np.array([i], np.int32)), pb_utils.Tensor("text", np.array([b"t"], np.object_))]
            last = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if count == 3 and i == 2 else 0
            sender.send(pb_utils.InferenceResponse([] if error else tensors, error=error), last)
        if count != 3:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''

DECOUPLED_CONFIG = '''
backend: "python"
input { name: "x" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
model_transaction_policy { decoupled: true }
'''


def events(server, model, x, take=None, **request):
    """The events of a stream, as they come; of `take` of them the connection is closed."""
    body = json.dumps({**({} if x is None else {"x": x}), **request}).encode()
    asked = urllib.request.Request(f"{server.urls['http']}/v2/models/{model}/generate_stream", data=body)
    found = []
    with urllib.request.urlopen(asked, timeout=60) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
            if len(found) == take:
                break
    return found


def refusal(server, model, call, body):
    asked = urllib.request.Request(f"{server.urls['http']}/v2/models/{model}/{call}", data=json.dumps(body).encode())
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(asked, timeout=60)
    return error.value.code, json.loads(error.value.read())["error"]


def test_several_answers_to_one_request(tmp_path):
    write(tmp_path, "stream", STREAM)
    write(tmp_path, "async", STREAM.replace("def infer", "async def infer"))
    write(tmp_path, "decoupled", DECOUPLED, DECOUPLED_CONFIG)
    with Server(tmp_path) as server:
        for model in ("stream", "async", "decoupled"):
            for count in (0, 1, 3, 40):
                found = events(server, model, count)
                assert [event["y"] for event in found] == list(range(count)), (model, count)
            # A client that leaves ends them, and the only process is there for the next one.
            assert len(events(server, model, 99, take=20)) == 20
            assert server.logged("was cancelled" if model == "decoupled" else "closed 99"), model
            assert len(events(server, model, 2)) == 2
            # So does the end of its time.
            found = events(server, model, 99, timeout=1_000_000)
            assert "deadline" in found[-1]["error"], found[-1]
            config = json.load(urllib.request.urlopen(f"{server.urls['http']}/v2/models/{model}/config"))
            assert config["model_transaction_policy"] == {"decoupled": True}
            body = {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]}
            status, message = refusal(server, model, "infer", body)
            assert status == 501 and "it is decoupled" in message and "generate_stream" in message
            status, message = refusal(server, model, "generate", {"x": 2})
            assert status == 400 and "more than one response" in message
        assert "is gone" not in "".join(server.log), "a process was replaced"
        assert [event["text"] for event in events(server, "stream", 2)] == ["number 0", "number 1"]
        # Larger than a frame: by the region that is used again for each.
        # Beyond 64 MiB the shared memory is not kept: also not by a process whose model fails then.
        for _ in range(2):
            with pytest.raises(Exception, match="ninety"):
                answers_by_tritonclient(server, "stream", 90)
        large = answers_by_tritonclient(server, "stream", 80)
        assert [(len(answer), int(answer[0]), int(answer[-1])) for answer in large] == [(1 << 20, i, i) for i in range(80)]
        assert [int(answer[0]) for answer in answers_by_tritonclient(server, "decoupled", 4)] == [0, 1, 2, 3]


def answers_by_tritonclient(server, model, count):
    """Answers over gRPC, by the client that others use."""
    grpcclient = pytest.importorskip("tritonclient.grpc")
    import queue

    answers = queue.Queue()
    with grpcclient.InferenceServerClient(server.urls["grpc"].removeprefix("grpc://")) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        tensor = grpcclient.InferInput("x", [1], "INT32")
        tensor.set_data_from_numpy(np.array([count], np.int32))
        client.async_stream_infer(model, [tensor], enable_empty_final_response=True)
        found = []
        while True:
            result, error = answers.get(timeout=60)
            if error is not None:
                raise error
            if result.get_response().parameters["triton_final_response"].bool_param:
                return found
            found.append(result.as_numpy("y"))


def test_streams_that_go_wrong(tmp_path):
    write(tmp_path, "stream", STREAM)
    write(tmp_path, "decoupled", DECOUPLED, DECOUPLED_CONFIG)
    with Server(tmp_path) as server:
        for count, expected in ((50, "ValueError: fifty"), (60, "it ended with code 6")):
            found = events(server, "stream", count)
            assert [event.get("y") for event in found] == [0, 1, None]
            assert expected in found[2]["error"]
            assert len(events(server, "stream", 3)) == 3
        # One that hangs is killed 4 s after nobody waits any more.
        assert len(events(server, "stream", 70, take=2)) == 2
        start = time.monotonic()
        assert len(events(server, "stream", 3)) == 3
        assert time.monotonic() - start < 20
        found = events(server, "decoupled", 5)
        assert [event.get("y") for event in found] == [0, 1, None] and "five" in found[2]["error"]
        status, message = refusal(server, "decoupled", "generate_stream", {"x": 7})
        assert status == 500 and "TRITONSERVER_RESPONSE_COMPLETE_FINAL" in message
        assert len(events(server, "decoupled", 3)) == 3


def test_saved_estimators(tmp_path):
    joblib = pytest.importorskip("joblib")
    import pickle

    from sklearn.datasets import load_iris
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    classifier = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, names)
    regressor = LinearRegression().fit(x[:, :2], x[:, 2])
    scaler = StandardScaler().fit(x)
    for name in ("classifier", "regressor", "scaler"):
        (tmp_path / name / "1").mkdir(parents=True)
    joblib.dump(classifier, tmp_path / "classifier/1/model.joblib")
    (tmp_path / "regressor/1/model.pkl").write_bytes(pickle.dumps(regressor))
    joblib.dump(scaler, tmp_path / "scaler/1/model.joblib")
    with Server(tmp_path) as server:
        # As KServe's servers do: predictions, unless more is asked for.
        assert list(server.client.infer("classifier", {"X": x})) == ["predict"]
        outputs = server.client.infer("classifier", {"X": x}, outputs=["predict", "predict_proba"])
        assert np.array_equal(outputs["predict_proba"], classifier.predict_proba(x))
        assert [name.decode() for name in outputs["predict"]] == classifier.predict(x).tolist()
        assert np.array_equal(server.client.infer("regressor", {"X": x[:, :2]})["predict"], regressor.predict(x[:, :2]))
        assert np.array_equal(server.client.infer("scaler", {"X": x})["transform"], scaler.transform(x))
        with pytest.raises(InferenceError, match="X"):
            server.client.infer("regressor", {"X": x})
        for name, expected in (("classifier", classifier.predict(x[:3])), ("regressor", regressor.predict(x[:3, :2]))):
            columns = 4 if name == "classifier" else 2
            body = json.dumps({"instances": x[:3, :columns].tolist()}).encode()
            answer = json.load(urllib.request.urlopen(f"{server.urls['http']}/v1/models/{name}:predict", body))
            assert answer == {"predictions": expected.tolist()}
        # Each request gets what it names, whatever comes together.
        found = {}

        def ask(number):
            named = {"outputs": ["predict_proba"]} if number % 2 else {}
            found[number] = server.client.infer("classifier", {"X": x[number : number + 1]}, **named)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert all(list(outputs) == (["predict_proba"] if number % 2 else ["predict"]) for number, outputs in found.items())


def test_boosters_by_their_own_packages(tmp_path):
    lightgbm = pytest.importorskip("lightgbm")
    x = np.random.default_rng(0).random((200, 5), np.float32)
    x[::7, 1] = np.nan
    booster = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(x, (x[:, 0] > 0.5).astype(int)), 5)
    config = 'runtime: "python"'
    for name, more in (("python", config), ("embedded", "")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(more)
        (tmp_path / name / "1" / "model.txt").write_text(booster.model_to_string())
    with Server(tmp_path) as server:
        assert json.load(urllib.request.urlopen(f"{server.urls['http']}/v2/models/python"))["platform"] == "lightgbm_python"
        # Either runtime has the same names and the same bits.
        for name in ("python", "embedded"):
            assert np.array_equal(server.client.infer(name, {"input-0": x})["output-0"], booster.predict(x)), name
    with Server(tmp_path, allow=()) as server:
        assert "--allow-python" in server.reason("python")
        assert np.array_equal(server.client.infer("embedded", {"input-0": x})["output-0"], booster.predict(x))


def test_boosters_of_xgboost_by_their_own_package(tmp_path):
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(0)
    x, classes = rng.random((200, 5), np.float32), rng.integers(0, 3, 200)
    settings = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3}
    booster = xgboost.train(settings, xgboost.DMatrix(x, label=classes), 5)
    models = {"json": 'runtime: "python"', "ubj": 'runtime: "python"', "embedded": ""}
    for name, config in models.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
        booster.save_model(tmp_path / name / "1" / ("model.json" if name == "json" else "model.ubj"))
    x[::7, 1] = np.nan
    with Server(tmp_path) as server:
        for name, config in models.items():
            platform = json.load(urllib.request.urlopen(f"{server.urls['http']}/v2/models/{name}"))["platform"]
            assert platform == ("xgboost_python" if config else "tensorferry_xgboost"), name
            answer = server.client.infer(name, {"input-0": x})["output-0"]
            assert np.array_equal(answer, booster.predict(xgboost.DMatrix(x))), name


BAD = {
    "syntax": ("class Model(:\n", "SyntaxError"),
    "import": ("import no_such_module_at_all\n", "No module named 'no_such_module_at_all' (its Python is /"),
    "empty": ("x = 1\n", "neither a class Model nor a class TritonPythonModel"),
    "no_infer": ("class Model:\n    inputs = outputs = {}\n", "has no method infer"),
    "undescribed": ("class Model:\n    def infer(self, x): ...\n", "neither the class Model of its model.py has inputs"),
    "raises": (IDENTITY + "\n    def __init__(self): raise RuntimeError('not today')\n", "RuntimeError: not today"),
    "exits": ("raise SystemExit(3)\n", "ended the process: SystemExit: 3"),
    "dies": ("import os\nos._exit(5)\n", "it ended with code 5"),
    "datatype": (IDENTITY.replace('"FP32"', '"FP31"'), "'FP31' is no datatype"),
    "parameter": (IDENTITY.replace("self, x", "self, z"), "infer() of its model.py has no parameter for the input 'x'"),
}


def test_models_that_cannot_be_loaded_say_why(tmp_path):
    for name, (source, _) in BAD.items():
        write(tmp_path, name, source)
    write(tmp_path, "good", IDENTITY)
    write(tmp_path, "elsewhere", IDENTITY, 'parameters { key: "python" value { string_value: "no/such/venv" } }')
    bare = subprocess.run([sys.executable, "-c", "import sys; print(sys._base_executable)"], capture_output=True, text=True)
    write(tmp_path, "bare", IDENTITY, f'parameters {{ key: "python" value {{ string_value: "{bare.stdout.strip()}" }} }}')
    with Server(tmp_path) as server:
        for name, (_, expected) in BAD.items():
            assert expected in server.reason(name), name
        assert "where there is no Python" in server.reason("elsewhere")
        if subprocess.run([bare.stdout.strip(), "-c", "import numpy"], capture_output=True).returncode != 0:
            assert "has no numpy" in server.reason("bare")
        x = np.ones((1, 2), np.float32)
        assert np.array_equal(server.client.infer("good", {"x": x})["y"], x)
        assert server.logged("import no_such_module_at_all")


def test_nothing_runs_without_the_operators_word(tmp_path):
    trace = tmp_path / "trace"
    repository = tmp_path / "models"
    write(repository, "program", f"open({str(trace)!r}, 'w')\n")
    (repository / "object" / "1").mkdir(parents=True)
    (repository / "object" / "1" / "model.pkl").write_bytes(b"cos\nsystem\n(S'touch %b'\ntR." % str(trace).encode())
    with Server(repository, allow=()) as server:
        assert "--allow-python" in server.reason("program")
        assert "--allow-pickle" in server.reason("object")
    assert not trace.exists()


MISBEHAVING = '''
import os
import signal
import time

import numpy as np


class Model:
    inputs = {"x": ("INT64", [1])}
    outputs = {"y": ("INT64", [1])}

    def __init__(self):
        self.leaked = []

    def infer(self, x):
        match int(x[0]):
            case 1:
                os.kill(os.getpid(), signal.SIGSEGV)
            case 2:
                while True:
                    pass
            case 3:
                self.leaked.append(np.ones(16 << 20, np.uint8))
            case 4:
                np.ones(1 << 40, np.uint8)
            case 5:
                os._exit(9)
            case 6:
                time.sleep(1000)
        return np.array([os.getpid()])
'''

LIMITED = 'parameters { key: "memory_limit" value { string_value: "1GiB" } }'


@pytest.fixture
def misbehaving(tmp_path):
    write(tmp_path, "bad", MISBEHAVING, LIMITED)
    write(tmp_path, "good", IDENTITY)
    with Server(tmp_path, "--request-timeout", "20s") as server:

        def ask(deed):
            return int(server.client.infer("bad", {"x": np.array([deed])})["y"][0])

        server.ask = ask
        yield server


@pytest.mark.parametrize("deed, expected", [(1, "it was terminated by SIGSEGV"), (5, "it ended with code 9")])
def test_a_death_takes_one_request(misbehaving, deed, expected):
    first = misbehaving.ask(0)
    with pytest.raises(InferenceError, match=expected):
        misbehaving.ask(deed)
    second = misbehaving.ask(0)
    assert first != second and misbehaving.workers("bad") == [second]


def test_a_kill_from_outside_takes_nothing(misbehaving):
    first = misbehaving.ask(0)
    os.kill(first, signal.SIGKILL)
    for _ in range(500):
        if misbehaving.workers("bad") not in ([], [first]):
            break
        time.sleep(0.01)
    assert misbehaving.ask(0) != first


@pytest.mark.parametrize("deed", [2, 6])
def test_a_hang_ends_with_its_request(misbehaving, deed):
    first = misbehaving.ask(0)
    impatient = Client(misbehaving.urls["grpc"], timeout=1)
    with pytest.raises(InferenceError):
        impatient.infer("bad", {"x": np.array([deed])})
    # Four seconds of grace, and the start of a process.
    assert misbehaving.ask(0) != first
    assert first not in misbehaving.workers("bad")


def test_a_leak_ends_at_its_limit(misbehaving):
    first = misbehaving.ask(0)
    for _ in range(80):
        try:
            assert misbehaving.ask(3) == first
        except InferenceError as error:
            assert "memory" in str(error), error
            assert "may use 1 GiB of memory" in str(error), error
            break
    else:
        pytest.fail("1.25 GiB were taken under a limit of 1 GiB")
    assert misbehaving.ask(0) != first


def test_one_allocation_that_is_too_large_is_an_error(misbehaving):
    first = misbehaving.ask(0)
    with pytest.raises(InferenceError, match="MemoryError"):
        misbehaving.ask(4)
    assert misbehaving.ask(0) == first


def test_a_neighbour_notices_nothing(misbehaving):
    failures = []
    is_over = threading.Event()

    def good():
        client = Client(misbehaving.urls["http"])
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        while not is_over.is_set():
            try:
                if not np.array_equal(client.infer("good", {"x": x})["y"], x):
                    failures.append("wrong")
            except InferenceError as error:
                failures.append(error)

    thread = threading.Thread(target=good)
    thread.start()
    for deed in (1, 5, 1, 0):
        try:
            misbehaving.ask(deed)
        except InferenceError:
            pass
    is_over.set()
    thread.join()
    assert not failures


def test_processes_end_with_the_server(tmp_path):
    write(tmp_path, "identity", IDENTITY, "instance_group { count: 2 }")
    server = Server(tmp_path)
    workers = server.workers("identity")
    assert len(workers) == 1
    server.process.kill()
    server.process.wait()
    for _ in range(500):
        if not any(Path(f"/proc/{pid}").exists() for pid in workers):
            break
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_a_client_cannot_choose_the_interpreter(tmp_path):
    write(tmp_path, "identity", IDENTITY)
    with Server(tmp_path, "--model-control-mode", "explicit", "--load-model", "identity") as server:

        def load(config):
            body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
            request = urllib.request.Request(f"{server.urls['http']}/v2/repository/models/identity/load", body)
            return urllib.request.urlopen(request)

        with pytest.raises(urllib.error.HTTPError) as error:
            load({"parameters": {"python": {"string_value": sys.executable}}})
        assert b"parameters.python is allowed only for configurations in the repository" in error.value.read()
        assert load({"parameters": {"other": {"string_value": "x"}}}).status == 200


def test_the_tour():
    pytest.importorskip("joblib")
    tour = Path(__file__).parent.parent / "examples" / "tour.py"
    shown = subprocess.run([sys.executable, str(tour)], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    assert "iris [0, 0, 0]" in shown.stdout and f"words {list(range(20))}" in shown.stdout, shown.stdout
    assert "'words': 5" in shown.stdout, shown.stdout
    assert "stream [3, 2, 1, 0]" in shown.stdout and "events [2, 1, 0]" in shown.stdout, shown.stdout
    assert "asyncio [0, 0, 1, 1, 2]" in shown.stdout and "own [3.0, 12.0]" in shown.stdout, shown.stdout
    assert "weights [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]" in shown.stdout, shown.stdout
