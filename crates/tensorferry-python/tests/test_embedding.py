"""Servers in the process of the test."""

import asyncio
import contextvars
import functools
import json
import logging
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tensorferry
from tensorferry import Client, InferenceError, ModelError, Server, save_file

EXAMPLES = Path(os.environ["TENSORFERRY_EXAMPLES"])


@tensorferry.model(inputs={"x": ("FP32", [-1, 4])}, outputs={"sum": ("FP32", [-1])})
def sums(x):
    if x.shape[1] and x[0, 0] < 0:
        raise ModelError("x is negative", status=400)
    if x[0, 0] == 13:
        raise KeyError("thirteen")
    return x.sum(axis=1)


class Words:
    inputs = {"text": ("BYTES", [-1])}
    outputs = {"words": (np.int64, [-1]), "upper": (str, [-1])}
    max_batch_size = 0

    async def infer(self, text):
        lines = [line.decode() for line in text]
        return {"words": [len(line.split()) for line in lines], "upper": [line.upper() for line in lines]}


def test_functions_and_objects_over_both_transports():
    with Server(models={"sums": sums, "words": Words, "words2": Words()}) as server:
        for url in (server.http_url, server.grpc_url):
            client = Client(url)
            assert client.is_ready() and client.is_model_ready("sums")
            assert client.model("sums").inputs[0] == tensorferry.TensorInfo("x", "FP32", (-1, 4))
            found = client.infer("sums", {"x": np.ones((3, 4), np.float32)})
            assert found["sum"].tolist() == [4, 4, 4]
            for name in ("words", "words2"):
                found = client.infer(name, {"text": ["a b c", "größe"]})
                assert found["words"].tolist() == [3, 1] and found["upper"].tolist() == [b"A B C", "GRÖSSE".encode()]
            with pytest.raises(InferenceError, match="x is negative") as error:
                client.infer("sums", {"x": -np.ones((1, 4), np.float32)})
            assert error.value.code == "InvalidArgument"
            with pytest.raises(InferenceError, match="its model failed: KeyError: 'thirteen'") as error:
                client.infer("sums", {"x": np.full((1, 4), 13, np.float32)})
            assert error.value.code == "Internal"
            with pytest.raises(InferenceError, match=r"expected shape \[-1, 4\]"):
                client.infer("sums", {"x": np.ones((1, 5), np.float32)})
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})
        with urllib.request.urlopen(f"{server.http_url}/v2/models/sums/infer", body.encode()) as answer:
            assert json.load(answer)["outputs"][0]["data"] == [10]


MODEL = '''
import asyncio

from tensorferry_model import InferenceError


class Model:
    inputs = {"x.1": {"datatype": "FP32", "shape": [-1, 2]}, "bias": {"datatype": float, "shape": [1], "optional": True}}
    outputs = {"y": ("TYPE_FP32", [-1, 2]), "told": (str, [-1])}
    max_batch_size = 0

    def __init__(self, context):
        self.context = context

    async def infer(self, x_1, request, bias=None):
        await asyncio.sleep(0)
        if request.parameters.get("refuse"):
            raise InferenceError("not now", status=429)
        loop = asyncio.get_running_loop()
        self.loop = getattr(self, "loop", loop)
        told = [self.context.name, self.context.version, str(request.id), str(self.loop is loop), "nul\\0"]
        told += [str(request.is_cancelled()), ",".join(request.outputs)]
        return {"y": x_1 + (0 if bias is None else bias[0]), "told": told}
'''


def test_a_model_py_is_served_as_it_is(tmp_path):
    namespace = {}
    exec(MODEL, namespace)
    (tmp_path / "own" / "1").mkdir(parents=True)
    (tmp_path / "own" / "1" / "model.py").write_text(MODEL)
    import tensorferry_model

    assert tensorferry.ModelError is tensorferry_model.InferenceError
    models = {"own": namespace["Model"], "file": tmp_path / "own"}
    x = np.ones((1, 2), np.float32)
    with Server(models=models, options=["--allow-python"]) as server:
        for url in (server.http_url, server.grpc_url):
            client = Client(url)
            for model, version in (("own", ""), ("file", "1")):
                for _ in range(2):
                    answer = client.request(model, {"x.1": x}, id="7")
                    told = [text.decode() for text in answer.outputs["told"]]
                    assert told[1:5] == [version, "7", "True", "nul\0"]
                    assert answer.outputs["y"].tolist() == [[1, 1]]
                assert client.infer(model, {"x.1": x, "bias": np.array([2.0])})["y"].tolist() == [[3, 3]]
                assert client.infer(model, {"x.1": x}, outputs=["told"])["told"].tolist()[-1] == b"told"
                with pytest.raises(InferenceError, match="not now") as error:
                    client.request(model, {"x.1": x}, parameters={"refuse": True})
                assert error.value.code == "Overloaded"


def test_every_input_by_its_name():
    class Named:
        inputs = {"a.b": ("INT32", [1]), "c": ("INT32", [1])}
        outputs = {"sum": ("INT32", [1])}

        def infer(self, **inputs):
            assert sorted(inputs) == ["a.b", "c"]
            return sum(inputs.values())

    with Server(models={"named": Named()}) as server:
        assert server.client().infer("named", {"a.b": np.array([1], np.int32), "c": np.array([2], np.int32)})["sum"] == [3]


def test_generators_give_several_answers():
    closed = []

    @tensorferry.model(inputs={"count": ("INT64", [1])}, outputs={"y": ("INT64", [1])})
    def count(count, request):
        try:
            for number in range(int(count[0])):
                if count[0] == 50 and number == 2:
                    raise ModelError("fifty", status=404)
                yield [number]
        finally:
            closed.append((int(count[0]), request.is_cancelled()))

    class Later:
        inputs, outputs = count.inputs, count.outputs

        async def infer(self, count):
            for number in range(int(count[0])):
                yield {"y": np.array([number])}

    with Server(models={"count": count, "later": Later}) as server:
        client = Client(server.grpc_url)

        def ask(model, number):
            with client.stream() as stream:
                stream.send(model, {"count": [number]})
                stream.finish()
                return [answer.outputs["y"].item() for answer in stream if answer.outputs]

        for model in ("count", "later"):
            for number in (0, 1, 30):
                assert ask(model, number) == list(range(number))
        with pytest.raises(InferenceError, match="fifty"):
            ask("count", 50)
        # Over HTTP, by a client that leaves: the generator is closed.
        asked = urllib.request.Request(f"{server.http_url}/v2/models/count/generate_stream", b'{"count": 1000000000}')
        with urllib.request.urlopen(asked) as events:
            assert json.loads(next(line for line in events if line.startswith(b"data: "))[6:])["y"] == 0
        for _ in range(500):
            if (1000000000, True) in closed:
                break
            threading.Event().wait(0.01)
        assert (1000000000, True) in closed and (30, False) in closed
        assert ask("count", 2) == [0, 1]


def test_one_task_runs_a_generator_from_its_beginning_to_its_end():
    kind = contextvars.ContextVar("kind", default="none")
    told = []

    class Steps:
        inputs, outputs = {"what": ("BYTES", [1])}, {"y": ("BYTES", [1])}

        async def infer(self, what):
            kind.set(what[0].decode())
            task = asyncio.current_task()
            try:
                match kind.get():
                    case "in time" | "too late" as case:
                        async with asyncio.timeout(20 if case == "in time" else 0.05):
                            yield [case]
                            await asyncio.sleep(0.01)
                            yield [kind.get()]
                            await asyncio.sleep(0.01 if case == "in time" else 20)
                            yield ["end"]
                    case "late while it waits":
                        try:
                            async with asyncio.timeout(0):
                                yield ["one"]
                                yield ["two"]
                                await asyncio.sleep(20)
                        except TimeoutError:
                            yield ["three"]
                        yield ["four"]
                    case "group":
                        async with asyncio.TaskGroup() as group:
                            first = group.create_task(asyncio.sleep(0.01, "first"))
                            yield ["begun"]
                            second = group.create_task(asyncio.sleep(0.01, "second"))
                            yield [await first]
                            yield [await second]
                    case "fails in a group":
                        async with asyncio.TaskGroup() as group:
                            group.create_task(self.fails())
                            yield ["begun"]
                            await asyncio.sleep(20)
                    case "for ever":
                        async with asyncio.timeout(20):
                            while True:
                                await asyncio.sleep(0)
                                yield ["more"]
            finally:
                told.append((kind.get(), asyncio.current_task() is task))

        async def fails(self):
            await asyncio.sleep(0.01)
            raise ValueError("seven")

    with Server(models={"steps": Steps}) as server:
        client = Client(server.grpc_url, timeout=10)
        ask = lambda what: [answer["y"].item().decode() for answer in client.infer_stream("steps", {"what": [what]})]
        for _ in range(2):
            assert ask("in time") == ["in time", "in time", "end"]
            with pytest.raises(InferenceError, match="TimeoutError"):
                ask("too late")
            found = ask("late while it waits")
            assert found[0] == "one" and found[-2:] == ["three", "four"], found
            assert ask("group") == ["begun", "first", "second"]
            with pytest.raises(InferenceError, match="ExceptionGroup"):
                ask("fails in a group")
        answers = client.infer_stream("steps", {"what": ["for ever"]})
        assert [next(answers)["y"].item() for _ in range(3)] == [b"more"] * 3
        answers.close()
        # The next one runs when that is closed.
        assert ask("in time")[-1] == "end"
    cases = ["in time", "too late", "late while it waits", "group", "fails in a group"]
    assert told == [(case, True) for case in [*cases, *cases, "for ever", "in time"]]


@pytest.mark.parametrize(
    ("datatype", "value", "said"),
    [
        ("INT32", [1, 2**33 + 1], r"output 'y': 8589934593 does not fit INT32 \(-2147483648 to 2147483647\)"),
        ("INT8", np.array([[3], [-129]], np.int16), "output 'y': -129 does not fit INT8"),
        ("INT64", np.array([2**63], np.uint64), "output 'y': 9223372036854775808 does not fit INT64"),
        ("INT8", np.array([200], np.uint8), "output 'y': 200 does not fit INT8"),
        ("FP32", [0.0, 1e39], r"output 'y': 1e\+39 does not fit FP32"),
        ("FP16", np.array([-70000], np.float32), "output 'y': -70000.0 does not fit FP16"),
        ("FP16", [70000], "output 'y': 70000 does not fit FP16"),
        ("BF16", [-3.3e38, 3.3e38, -1e300], r"output 'y': -1e\+300 does not fit BF16"),
    ],
)
def test_outputs_that_do_not_fit_their_datatype_are_errors(datatype, value, said):
    model = tensorferry.model(inputs={}, outputs={"y": (datatype, [-1])}, max_batch_size=0)(lambda: value)
    with Server(models={"m": model}) as server, pytest.raises(InferenceError, match=said):
        server.client().infer("m", {})


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("INT32", [-(2**31), 2**31 - 1]),
        ("INT8", np.array([127, 0], np.uint8)),
        ("INT8", np.array([], np.int64)),
        ("FP32", [2.0**127, np.inf, -np.inf]),
        ("FP16", [65504, -65504]),
        ("FP16", np.array([], np.float64)),
        ("BF16", [1.5, np.inf]),
        ("FP64", [2**60, -(2**60)]),
        ("BOOL", [True, False]),
    ],
)
def test_outputs_that_fit_their_datatype(datatype, value):
    model = tensorferry.model(inputs={}, outputs={"y": (datatype, [-1])}, max_batch_size=0)(lambda: value)
    with Server(models={"m": model}) as server:
        assert server.client().infer("m", {})["y"].tolist() == list(value)


def test_requests_at_once_are_answered_each():
    rows = []

    @tensorferry.model(inputs={"x": ("INT64", [-1])}, outputs={"y": ("INT64", [-1])})
    def double(x):
        rows.append(len(x))
        return {"y": 2 * x}

    with Server(models={"double": double}) as server, ThreadPoolExecutor(16) as pool:
        client = server.client()
        answers = pool.map(lambda number: client.infer("double", {"x": [number]})["y"].tolist(), range(400))
        assert list(answers) == [[2 * number] for number in range(400)]
    assert sum(rows) >= 400


def test_a_stop_answers_what_runs_and_frees_the_address():
    entered, leave = threading.Event(), threading.Event()

    @tensorferry.model(inputs={"x": ("INT64", [-1])}, outputs={"y": ("INT64", [-1])})
    def slow(x):
        entered.set()
        leave.wait(20)
        return x

    server = Server(models={"slow": slow}, grpc=None)
    assert server.grpc_url is None and server.url == server.http_url
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(server.client().infer, "slow", {"x": [1]})
        assert entered.wait(20)
        stopping = pool.submit(server.stop)
        leave.set()
        assert stopping.result(20) and answer.result(20)["y"].tolist() == [1]
    assert server.stop()
    address = server.http_url.removeprefix("http://")
    with Server(models={"slow": slow}, http=address, grpc=None) as again:
        assert again.http_url == server.http_url
    # One that is forgotten ends too.
    forgotten = Server(models={"slow": slow})
    url = forgotten.url
    del forgotten
    with pytest.raises(InferenceError):
        Client(url, attempts=1).is_live()


def test_a_hang_ends_with_its_time():
    leave = threading.Event()

    @tensorferry.model(inputs={"x": ("INT64", [-1])}, outputs={"y": ("INT64", [-1])})
    def hang(x):
        leave.wait(20)
        return x

    server = Server(models={"hang": hang}, drain_timeout=0.2)
    with pytest.raises(InferenceError) as error:
        server.client(timeout=0.3).infer("hang", {"x": [1]})
    assert error.value.code == "DeadlineExceeded" or error.value.kind == "Timeout"
    assert server.stop() is False
    leave.set()


def test_files_beside_functions(tmp_path):
    pytest.importorskip("joblib")
    import joblib
    from sklearn.linear_model import LinearRegression

    save_file({"embed": np.arange(12, dtype=np.float32).reshape(4, 3)}, tmp_path / "table.safetensors")
    joblib.dump(LinearRegression().fit([[0.0], [1.0]], [0.0, 2.0]), tmp_path / "line.joblib")
    request = json.loads((EXAMPLES / "requests" / "one_digit.json").read_text())
    image = np.array(request["inputs"][0]["data"], dtype=np.float32).reshape(1, 64)
    models = {
        "sums": sums,
        "digits": EXAMPLES / "models" / "digits",
        "table": tmp_path / "table.safetensors",
        "line": tmp_path / "line.joblib",
    }
    with Server(models=models, options=["--allow-pickle"]) as server:
        for url in (server.http_url, server.grpc_url):
            client = Client(url)
            assert client.infer("digits", {"X": image})["label"].tolist() == [7]
            assert client.infer("table", {}, outputs=["embed"])["embed"].tolist()[3] == [9, 10, 11]
            assert client.infer("line", {"X": np.array([[3.0]])})["predict"].round(6).tolist() == [6]
            with pytest.raises(InferenceError, match="expected"):
                client.infer("digits", {"X": image[:, :3]})
        child = server._child._process.pid
        folder = server._child._folder
    assert not os.path.exists(f"/proc/{child}") and not os.path.exists(folder)


def test_what_cannot_be_served_says_why(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"nothing of the kind")
    with pytest.raises(RuntimeError, match="broken"):
        Server(models={"broken": tmp_path / "broken.onnx"})
    with pytest.raises(FileNotFoundError, match="none.onnx"):
        Server(models={"none": str(tmp_path / "none.onnx")})
    with pytest.raises(ValueError, match="does not declare its inputs"):
        Server(models={"f": lambda x: x})
    with pytest.raises(ValueError, match="datatype and a shape"):
        Server(models={"f": tensorferry.model(inputs={"x": "FP32"}, outputs={})(lambda x: x)})
    with pytest.raises(ValueError, match="unknown dims"):
        Server(models={"f": tensorferry.model(inputs={"x": {"datatype": "FP32", "dims": [1]}}, outputs={})(lambda x: x)})
    with pytest.raises(ValueError, match="no parameter for the input 'x'"):
        Server(models={"f": tensorferry.model(inputs={"x": ("FP32", [1])}, outputs={})(lambda z: z)})
    with pytest.raises(ValueError, match="a/b"):
        Server(models={"a/b": sums})
    with pytest.raises(ValueError, match="127.0.0.1:8080"):
        Server(models={"sums": sums}, http="8080")
    with Server(models={"sums": sums}) as server, pytest.raises(OSError):
        Server(models={"sums": sums}, http=server.http_url.removeprefix("http://"), grpc=None)


#: A program that ends while a model answers four requests, without a stop of its server.
ENDS = """
import sys, threading, time
import numpy as np
import tensorferry

@tensorferry.model(inputs={"x": ("FP32", [-1])}, outputs={"y": ("FP32", [-1])}, max_batch_size=0)
def slow(x):
    entered.set()
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        time.sleep(0.01)
    return x

def ask():
    try:
        print(tensorferry.Client(server.url, attempts=1).infer("slow", {"x": np.ones(1, np.float32)})["y"].tolist(), flush=True)
    except Exception:
        pass

entered = threading.Event()
server = tensorferry.Server({"slow": slow}, drain_timeout=float(sys.argv[2]))
for _ in range(4):
    threading.Thread(target=ask, daemon=True).start()
entered.wait()
time.sleep(0.2)
sys.exit(3)
"""


@pytest.mark.parametrize(("seconds", "drain", "answers"), [(0.4, 20, 4), (1000, 0.2, 0)])
def test_a_program_that_ends_while_a_model_runs_ends_as_it_says(seconds, drain, answers):
    start = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, str(seconds), str(drain)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (3, "")
    assert ended.stdout.splitlines() == ["[1.0]"] * answers
    assert time.monotonic() - start < 15


#: A program whose server is dropped while a model runs, and that ends then.
DROPS = """
import sys, threading, time
import numpy as np
import tensorferry

@tensorferry.model(inputs={"x": ("FP32", [-1])}, outputs={"y": ("FP32", [-1])}, max_batch_size=0)
def slow(x):
    entered.set()
    while True:
        time.sleep(0.001)

def ask():
    try:
        client.infer("slow", {"x": np.ones(1, np.float32)})
    except Exception:
        pass

entered = threading.Event()
server = tensorferry.Server({"slow": slow})
client = server.client(attempts=1)
threading.Thread(target=ask, daemon=True).start()
entered.wait()
del server
sys.exit(3)
"""


def test_a_program_that_has_dropped_a_server_while_its_model_runs_ends_as_it_says():
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", DROPS], capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stderr) == (3, "")


OF_A_FILE = """
import os
import time


class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"y": ("INT32", [1])}
    max_batch_size = 0

    def infer(self, x, request):
        if x[0] < 0:
            time.sleep(1000)
        time.sleep(x[0] / 1000)
        return {"y": x}
"""

SEVERAL_OF_A_FILE = """
from pathlib import Path

from tensorferry_model import InferenceError


class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"y": ("INT32", [1])}

    def infer(self, x):
        try:
            for number in range(x[0]):
                if x[0] == 50 and number == 7:
                    raise InferenceError("seven", status=404)
                yield {"y": x * 0 + number}
        finally:
            if x[0] > 50:
                (Path(__file__).parent / "ended").write_text("")
"""


def test_a_file_that_hangs_is_given_up_with_its_request(tmp_path):
    (tmp_path / "m.py").write_text(OF_A_FILE)
    # So that the test need not wait until the program gives up the model's process.
    with Server({"m": tmp_path / "m.py"}, options=["--allow-python"], drain_timeout=1) as server:
        ask = lambda number, timeout: server.client(attempts=1).infer("m", {"x": np.array([number], np.int32)}, timeout=timeout)
        for _ in range(3):
            with pytest.raises(InferenceError) as error:
                ask(-1, 0.5)
            assert error.value.kind == "Timeout" or error.value.code == "DeadlineExceeded"
        # The engine's threads are free again at once; the model's process is replaced by the program.
        found, until = None, time.monotonic() + 30
        while found is None and time.monotonic() < until:
            try:
                found = ask(1, 10)["y"].tolist()
            except InferenceError as error:
                assert "all of its" not in error.message
                time.sleep(0.1)
        assert found == [1]
        start = time.monotonic()
        server.stop()
        assert time.monotonic() - start < 15


def test_several_answers_of_a_file(tmp_path):
    (tmp_path / "several.py").write_text(SEVERAL_OF_A_FILE)
    with Server({"several": tmp_path / "several.py"}, options=["--allow-python"]) as server:
        client = Client(server.grpc_url)
        for count in (0, 1, 5):
            answers = client.infer_stream("several", {"x": np.array([count], np.int32)})
            assert [answer["y"].item() for answer in answers] == list(range(count))
        with pytest.raises(InferenceError, match="seven"):
            list(client.infer_stream("several", {"x": np.array([50], np.int32)}))
        assert server.client().config("several")["model_transaction_policy"]["decoupled"] is True
        # A client that leaves: the generator is closed.
        ended = Path(server._child._folder) / "models" / "several" / "1" / "ended"
        answers = client.infer_stream("several", {"x": np.array([1000000000], np.int32)})
        assert [next(answers)["y"].item() for _ in range(3)] == [0, 1, 2] and not ended.exists()
        answers.close()
        until = time.monotonic() + 20
        while not ended.exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert ended.exists()


def test_instances_of_a_file_run_at_once(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text(OF_A_FILE)
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "python"\ninstance_group { count: 6 }\n')
    with Server({"m": tmp_path / "m"}, options=["--allow-python"]) as server, ThreadPoolExecutor(6) as pool:
        client = server.client()

        def seconds(number):
            start = time.monotonic()
            list(pool.map(lambda _: client.infer("m", {"x": np.array([number], np.int32)}), range(6)))
            return time.monotonic() - start

        # The first requests start processes.
        seconds(300)
        assert min(seconds(1000) for _ in range(3)) < 1.9


def test_a_fork_that_ends_leaves_the_server_alone(tmp_path):
    (tmp_path / "m.py").write_text(OF_A_FILE)
    program = """
import os, sys
import numpy as np
import tensorferry

server = tensorferry.Server({"m": sys.argv[1]}, options=["--allow-python"])
ask = lambda: server.client(attempts=1).infer("m", {"x": np.array([1], np.int32)})["y"].tolist()
assert ask() == [1]
for end in (lambda: None, server.stop, server.__del__):
    child = os.fork()
    if child == 0:
        end()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.path.exists(server._child._folder) and ask() == [1]
folder = server._child._folder
assert server.stop() and not os.path.exists(folder)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "m.py")], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_links_to_files(tmp_path):
    # As in a cache of Hugging Face: names that are links, which lead out of their folder.
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc").write_text(OF_A_FILE)
    for name, target in (("relative", "../blobs/abc"), ("absolute", tmp_path / "blobs" / "abc")):
        (tmp_path / name).mkdir()
        os.symlink(target, tmp_path / name / "model.py")
    models = {f"{name}{end}": tmp_path / name / end for name in ("relative", "absolute") for end in ("", "model.py")}
    models = {name.replace(".", "_"): path for name, path in models.items()}
    with Server(models, options=["--allow-python"]) as server:
        for name in models:
            assert server.client().infer(name, {"x": np.array([1], np.int32)})["y"].tolist() == [1]


@pytest.mark.parametrize("name", [".h", "a/b", "..", "", "a\0b", "/a"])
def test_names_that_no_folder_can_have(tmp_path, name):
    (tmp_path / "m.py").write_text(OF_A_FILE)
    with pytest.raises(ValueError, match="expected a name that a directory can have"):
        Server({name: tmp_path / "m.py"}, options=["--allow-python"])


def test_a_folder_is_served_under_any_name(tmp_path):
    config = """
# name: "comment"
backend: "python" name : "own"  # the folder's
parameters { key: "name" value { string_value: "name: \\"x\\" }" } }
input [ { name: "x" data_type: TYPE_INT32 dims: [ 1 ] } ] output { name: "y" data_type: TYPE_INT32 dims: [ 1 ] }
"""
    for version in ("1", "3"):
        (tmp_path / "own" / version).mkdir(parents=True)
        (tmp_path / "own" / version / "model.py").write_text(OF_A_FILE.replace('{"y": x}', f'{{"y": x + {version}}}'))
    (tmp_path / "own" / "config.pbtxt").write_text(config)
    with Server({"other": tmp_path / "own", "own": tmp_path / "own"}, options=["--allow-python"]) as server:
        client = server.client()
        for name in ("other", "own"):
            # The newest version, without a number.
            assert client.infer(name, {"x": np.array([10], np.int32)})["y"].tolist() == [13]
            found = client.config(name)
            assert found["name"] == name and [tensor["name"] for tensor in found["input"]] == ["x"]
    assert (tmp_path / "own" / "config.pbtxt").read_text() == config


@pytest.mark.parametrize(
    ("config", "left"),
    [
        ("name: 'a' backend: \"python\"", "backend: \"python\""),
        ("name: \"a\\\"}\" \"b\";\nplatform: \"x\"\n", "platform: \"x\"\n"),
        ("max_batch_size: 1, name: \"a\", backend: \"b\"", "max_batch_size: 1, backend: \"b\""),
        ("input < name: \"x\" >\n#name: \"y\"\nname:\"z\"", "input < name: \"x\" >\n#name: \"y\"\n"),
        ("a_name: \"x\" name_of: \"y\"", "a_name: \"x\" name_of: \"y\""),
    ],
)
def test_configurations_without_their_name(config, left):
    assert tensorferry._server.without_name(config) == left


def test_a_model_that_is_not_found_is_not_waited_for(tmp_path, monkeypatch):
    (tmp_path / "m.py").write_text(OF_A_FILE)
    placed = tensorferry._server.place
    monkeypatch.setattr(tensorferry._server, "place", lambda path, folder: placed(path, folder.with_name("other")))
    with pytest.raises(RuntimeError, match="found no such model"):
        Server({"m": tmp_path / "m.py"}, options=["--allow-python"])


def test_only_refusals_are_refusals(caplog):
    spec = {"inputs": {"what": ("BYTES", [1])}, "outputs": {"y": ("INT32", [1])}}

    def error(what):
        if what == "http":
            return urllib.error.HTTPError("http://upstream", 404, "not found there", {}, None)
        if what == "odd":
            odd = RuntimeError("odd")
            odd.status = 70000
            return odd
        if what == "exit":
            return SystemExit("bye")
        if what == "cancelled":
            return asyncio.CancelledError()
        return ModelError(what, status=int(what))

    @tensorferry.model(**spec)
    def fails(what):
        raise error(what[0].decode())

    @tensorferry.model(**spec)
    def fails_later(what):
        yield {"y": np.ones(1, np.int32)}
        raise error(what[0].decode())

    with Server({"fails": fails, "later": fails_later}) as server:
        client, streams = server.client(attempts=1), Client(server.grpc_url)

        def code(what):
            with pytest.raises(InferenceError) as error:
                client.infer("fails", {"what": [what]})
            with pytest.raises(InferenceError) as streamed:
                list(streams.infer_stream("later", {"what": [what]}))
            # Behind the model's name, which HTTP has.
            said, message = (raised.value.message.partition(": ")[2].strip() for raised in (streamed, error))
            assert said == message
            return error.value.code, message

        for what, kind in {"http": "HTTPError", "odd": "RuntimeError", "exit": "SystemExit", "cancelled": "CancelledError"}.items():
            caplog.clear()
            found, message = code(what)
            assert found == "Internal" and message.startswith(f"its model failed: {kind}")
            assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
            assert all(record.exc_info for record in caplog.records)
        caplog.clear()
        assert code("404") == ("NotFound", "404") and code("70000") == ("Internal", "70000")
        assert not caplog.records


def test_a_class_is_closed_with_the_server(caplog):
    closed = []

    class Own:
        inputs, outputs = {"x": ("INT32", [1])}, {"y": ("INT32", [1])}

        def infer(self, x):
            return x

        def close(self):
            closed.append(self)

    class Bad(Own):
        def close(self):
            raise ValueError("not today")

    given = Own()
    server = Server({"own": Own, "bad": Bad, "given": given})
    assert server.stop() and server.stop()
    # What the caller made is the caller's.
    assert [type(model) for model in closed] == [Own] and given not in closed
    assert ["model 'bad': its close() failed"] == [record.getMessage() for record in caplog.records]
    with Server({"own": Own}) as server:
        address = server.http_url.removeprefix("http://")
        with pytest.raises(OSError):
            Server({"own": Own}, http=address)
        assert len(closed) == 2
    assert len(closed) == 3


def test_what_a_model_keeps_for_its_thread_stays():
    kept, gone = threading.local(), threading.Event()
    level = contextvars.ContextVar("level", default=0)

    class Kept:
        calls = 0

    @tensorferry.model(inputs={"x": ("INT32", [1])}, outputs={"y": ("INT32", [2])})
    def counts(x):
        if not hasattr(kept, "of_thread"):
            kept.of_thread = Kept()
            weakref.finalize(kept.of_thread, gone.set)
        kept.of_thread.calls += 1
        level.set(level.get() + 1)
        return np.array([kept.of_thread.calls, level.get()], np.int32)

    with Server({"counts": counts}) as server:
        client = server.client()
        ask = lambda: client.infer("counts", {"x": np.zeros(1, np.int32)})["y"].tolist()
        assert [ask() for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]
        assert not gone.is_set()
    # The thread ends with the server.
    assert gone.wait(10)


def passes(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def test_forms_of_functions():
    spec = {"inputs": {"x": ("INT32", [1])}, "outputs": {"y": ("INT32", [1])}}

    @tensorferry.model(**spec)
    @passes
    def steps(x):
        yield x
        yield x + 1

    @tensorferry.model(**spec)
    @passes
    async def async_steps(x):
        yield x
        yield x + 1

    @tensorferry.model(**spec)
    @passes
    async def awaited(x):
        return x + 1

    @tensorferry.model(**spec)
    def hidden(x):
        return (x + number for number in range(2))

    def collects(x):
        yield x

    @tensorferry.model(**spec)
    @functools.wraps(collects)
    def collected(x):
        return list(collects(x))[-1]

    models = {"steps": steps, "async_steps": async_steps, "awaited": awaited, "hidden": hidden, "collected": collected}
    with Server(models) as server:
        client, streams = server.client(), Client(server.grpc_url)
        x = np.array([3], np.int32)
        assert client.infer("awaited", {"x": x})["y"].tolist() == [4]
        for name in ("steps", "async_steps"):
            assert [answer["y"].tolist() for answer in streams.infer_stream(name, {"x": x})] == [[3], [4]], name
        with pytest.raises(InferenceError, match="returned generator but is not a generator function.*functools.wraps"):
            client.infer("hidden", {"x": x})
        with pytest.raises(InferenceError, match="returned ndarray, expected a generator"):
            list(streams.infer_stream("collected", {"x": x}))


def test_elements_that_are_no_strings_are_said_of_the_output():
    @tensorferry.model(inputs={"x": ("INT32", [1])}, outputs={"y": ("BYTES", [2])})
    def texts(x):
        return ["one", 2]

    with Server({"texts": texts}) as server:
        with pytest.raises(InferenceError, match="output 'y': expected str or bytes, found int"):
            server.client().infer("texts", {"x": np.zeros(1, np.int32)})
