"""Models in Python that ask other models of the server while they answer."""

import json
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
from test_models import IDENTITY, STREAM, Server, write

from tensorferry import Client, InferenceError

CALLER = '''
import gc
import os
import resource
import threading

import numpy as np
from tensorferry_model import InferenceError


class Model:
    inputs = {"x": ("FP32", [-1, -1]), "what": (str, [1])}
    outputs = {"y": ("FP32", [-1, -1]), "text": (str, [1])}
    max_batch_size = 0

    def __init__(self, context):
        self.context = context
        try:
            context.infer("double", {"x": np.ones((1, 1), np.float32)})
            self.early = "answered"
        except InferenceError as error:
            self.early = f"{error.status} {error}"

    def infer(self, x, what):
        return getattr(self, what[0].decode())(x)

    def told(self, text):
        return {"y": np.zeros((0, 0), np.float32), "text": [str(text)]}

    def double(self, x):
        return {"y": self.context.infer("double", {"x": x})["y"], "text": [str(os.getpid())]}

    def early_call(self, x):
        return self.told(self.early)

    def of_its_own(self, x):
        # No memory of the request, and not in one piece.
        return {"y": self.context.infer("double", {"x": np.repeat(x * 3, 2, 1)[:, ::2]}, outputs=["y"], version=1)["y"], "text": [""]}

    def kept(self, x):
        arrays = [self.context.infer("double", {"x": x + i})["y"] for i in range(5)]
        return {"y": sum(arrays), "text": [""]}

    def unknown(self, x):
        return self.context.infer("missing", {"x": x})

    def malformed(self, x):
        return self.context.infer("double", {"x": x[0]})

    def itself(self, x):
        return self.context.infer("caller", {"x": x, "what": ["double"]})

    def back(self, x):
        return self.context.infer("asks_caller", {"x": x})

    def dies(self, x):
        try:
            self.context.infer("dies", {"x": x})
        except InferenceError as error:
            return self.told(f"{error.status} {error}")

    def sleeps(self, x):
        return self.context.infer("sleeps", {"x": x})

    def hurried(self, x):
        try:
            self.context.infer("sleeps", {"x": x}, timeout=0.3)
        except InferenceError as error:
            return self.told(f"{error.status} {error}")

    def stream(self, x):
        answers = [answer["text"][0].decode() for answer in self.context.stream("count", {"x": x[0].astype(np.int32)})]
        return self.told(",".join(answers))

    def large_stream(self, x):
        sizes = [int(answer["y"][-1]) * answer["y"].nbytes for answer in self.context.stream("count", {"x": np.array([80], np.int32)})]
        return self.told(len(sizes) == 80 and sizes[3] == 3 << 22)

    def failing_stream(self, x):
        found = []
        try:
            for answer in self.context.stream("count", {"x": np.array([50], np.int32)}):
                found.append(int(answer["y"][0]))
        except InferenceError as error:
            return self.told(f"{found} {error}")

    def left(self, x):
        answers = self.context.stream("count", {"x": np.array([99], np.int32)})
        first = int(next(answers)["y"][0])
        answers.close()
        # The only process of that model is there for the next one.
        return self.told(f"{first} {list(answers)} {len(list(self.context.stream('count', {'x': np.array([2], np.int32)})))}")

    def forgotten(self, x):
        def look():
            answers = self.context.stream("count", {"x": np.array([99], np.int32)})
            return int(next(answers)["y"][0])

        first = look()
        gc.collect()
        return self.told(f"{first} {len(list(self.context.stream('count', {'x': np.array([2], np.int32)})))}")

    def rebound(self, x):
        # The only process of that model is there for the second stream while this one waits for it.
        answers = self.context.stream("count", {"x": np.array([99], np.int32)})
        first = int(next(answers)["y"][0])
        answers = self.context.stream("count", {"x": np.array([99], np.int32)})
        return self.told(f"{first} {int(next(answers)['y'][0])}")

    def many_rebound(self, x):
        # With the two that are open while the name is bound anew, as many as a request may have.
        others = [self.context.stream("count", {"x": np.array([1], np.int32)}) for _ in range(254)]
        for _ in range(300):
            answers = self.context.stream("count", {"x": np.array([99], np.int32)})
        del answers
        return self.told(sum(int(next(other)["y"][0]) == 0 for other in others))

    def dropped(self, x):
        def files():
            with open("/proc/self/maps") as maps:
                return [len(os.listdir("/proc/self/fd")), maps.read().count("memfd:")]

        found = []
        for _ in range(3):
            for _ in range(100):
                assert self.context.infer("double", {"x": x})["y"][0, 0] == 2
            found.append(files())
        return self.told(found)

    def too_many_files(self, x):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, hard))
        kept, refused = [], ""
        try:
            for _ in range(20):
                kept.append(self.context.infer("double", {"x": x})["y"])
        except InferenceError as error:
            refused = f"{error.status} {error}"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        kept.clear()
        return self.told(f"{refused}; {self.context.infer('double', {'x': x})['y'][0, 0]}")

    def wrong_use(self, x):
        try:
            self.context.infer("count", {"x": np.array([2], np.int32)})
        except InferenceError as error:
            return self.told(f"{error.status} {error}")

    def bad_parameter(self, x):
        return self.context.infer("double", {"x": x}, parameters={"p": float("nan")})

    def threads(self, x):
        found = [None] * 8

        def ask(i):
            found[i] = [self.context.infer("double", {"x": x + i + 100 * j})["y"] for j in range(10)]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return self.told(all(np.array_equal(found[i][j], 2 * (x + i + 100 * j)) for i in range(8) for j in range(10)))

    def too_many(self, x):
        kept = []
        try:
            for _ in range(300):
                kept.append(self.context.stream("sleeps", {"x": x}))
        except InferenceError as error:
            return self.told(f"{len(kept)} {error.status} {error}")

    def unanswered(self, x):
        # A thread that goes on when the request is over.
        threading.Thread(target=lambda: self.context.infer("sleeps", {"x": x}), daemon=True).start()
        return self.told("")
'''

DOUBLE = IDENTITY.replace('{"y": x}', '{"y": x * 2}')
SLEEPS = IDENTITY.replace('return {"y": x}', "import time; time.sleep(60)")
DIES = IDENTITY.replace('return {"y": x}', "import os; os._exit(7)")
ASKS_CALLER = '''
class Model:
    inputs = {"x": ("FP32", [-1, -1])}
    outputs = {"y": ("FP32", [-1, -1])}

    def __init__(self, context):
        self.context = context

    def infer(self, x):
        return {"y": self.context.infer("caller", {"x": x, "what": ["double"]})["y"]}
'''
ASYNC = '''
import asyncio

class Model:
    inputs = {"x": ("FP32", [-1, -1])}
    outputs = {"y": ("FP32", [-1, -1])}
    max_batch_size = 0

    def __init__(self, context):
        self.context = context

    async def infer(self, x):
        answers = await asyncio.gather(*(self.context.infer_async("double", {"x": x + i}) for i in range(100)))
        count = 0
        async for answer in self.context.stream("count", {"x": x[0, :1].astype("int32")}):
            count += 1
        return {"y": sum(answer["y"] for answer in answers) + count}
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    models = {"caller": CALLER, "double": DOUBLE, "sleeps": SLEEPS, "dies": DIES, "asks_caller": ASKS_CALLER}
    for name, source in {**models, "async": ASYNC, "count": STREAM}.items():
        write(repository, name, source)
    with Server(repository) as server:
        yield server


def ask(server, what, x=None, **options):
    x = np.ones((1, 4), np.float32) if x is None else x
    return server.client.infer("caller", {"x": x, "what": np.array([what], object)}, **options)


def text(server, what, x=None, **options):
    return ask(server, what, x, **options)["text"][0].decode()


@pytest.mark.parametrize("columns", [4, 1 << 20])
def test_a_model_asks_another_one(server, columns):
    x = np.arange(columns, dtype=np.float32).reshape(1, -1)
    for what, factor in (("double", 2), ("of_its_own", 6)):
        if what == "double" or columns < 100:
            assert np.array_equal(ask(server, what, x)["y"], x * factor), what
    assert np.array_equal(ask(server, "kept", x)["y"], 10 * x + 20)


def test_errors_are_those_of_the_other_model(server):
    for what, code, expected in (
        ("unknown", "NotFound", "model 'missing' does not exist"),
        ("malformed", "InvalidArgument", "model 'double': input 'x': expected"),
        ("bad_parameter", "InvalidArgument", "the parameter 'p' is nan, expected text, a finite number or a bool"),
        ("itself", "Internal", "model 'caller' cannot call itself"),
    ):
        with pytest.raises(InferenceError, match=expected) as error:
            ask(server, what)
        assert error.value.code == code, what
    died = text(server, "dies")
    assert died.startswith("500 model 'dies'") and "it ended with code 7" in died
    assert text(server, "wrong_use").startswith("501 model 'count': it is decoupled")
    assert text(server, "early_call") == "503 other models can be called only while a request is answered"


def test_models_that_would_wait_for_each_other_are_refused(server):
    # The order of the calls does not matter here.
    x = np.ones((1, 4), np.float32)
    assert np.array_equal(server.client.infer("asks_caller", {"x": x})["y"], 2 * x)
    with pytest.raises(InferenceError, match="model 'caller' cannot call 'asks_caller', which calls 'caller' in turn"):
        ask(server, "back")


def test_several_answers_of_another_model(server):
    x = np.full((1, 1), 3, np.float32)
    assert ask(server, "stream", x)["text"][0] == b"number 0,number 1,number 2"
    assert text(server, "large_stream") == "True"
    failed = text(server, "failing_stream")
    assert failed.startswith("[0, 1] ") and "ValueError: fifty" in failed
    assert text(server, "left") == "0 [] 2"
    assert text(server, "forgotten") == "0 2"
    assert text(server, "rebound", timeout=20) == "0 0"
    assert text(server, "many_rebound", timeout=20) == "254"


@pytest.mark.skipif(sys.platform != "linux", reason="there is shared memory on Linux only")
def test_memory_of_answers_is_given_back_with_them(server):
    x = np.ones((1, 1 << 16), np.float32)
    found = [json.loads(text(server, "dropped", x)) for _ in range(2)]
    files, maps = zip(*(counts for round in found for counts in round))
    # One may be on its way out.
    assert max(files) <= min(files) + 2 and max(maps) <= min(maps) + 2, found
    before = text(server, "double")
    told = text(server, "too_many_files", x)
    assert told.startswith("500 its response cannot be read: OSError: ") and "Too many open files" in told and told.endswith("; 2.0"), told
    assert text(server, "double") == before, "the process was replaced"


def test_many_at_once(server):
    assert text(server, "threads") == "True"
    x = np.full((1, 3), 2, np.float32)
    expected = sum(2 * (x + i) for i in range(100)) + 2
    assert np.array_equal(server.client.infer("async", {"x": x})["y"], expected)


def test_time_and_cancellation_reach_the_other_model(server):
    before = text(server, "double")
    for _ in range(2):
        with pytest.raises(InferenceError) as error:
            ask(server, "sleeps", timeout=0.5)
        assert error.value.code in ("DeadlineExceeded", "Timeout", "Cancelled"), error.value
    assert text(server, "hurried").startswith("504 ")
    assert text(server, "too_many") == "256 429 a request may make at most 256 calls at once"
    ask(server, "unanswered")
    # The model that waited was told, and not killed.
    assert text(server, "double") == before


TRITON = '''
import asyncio
import json
import numpy as np
import triton_python_backend_utils as pb_utils


def request(name, x, **options):
    return pb_utils.InferenceRequest(
        model_name=name, requested_output_names=["y"], inputs=[pb_utils.Tensor("x", x)], **options
    )


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for one in requests:
            x = pb_utils.get_input_tensor_by_name(one, "x").as_numpy()
            what = int(pb_utils.get_input_tensor_by_name(one, "what").as_numpy()[0])
            if what == 0:
                response = request("double", x, request_id="7", model_version=1, parameters={"a": 1}).exec()
            elif what == 1:
                response = request("missing", x).exec()
                assert response.has_error() and response.error().code() == pb_utils.TritonError.NOT_FOUND
            elif what == 2:
                total = 0
                for answer in request("count", np.array([4], np.int32)).exec(decoupled=True):
                    if answer.has_error():
                        raise pb_utils.TritonModelException(answer.error().message())
                    total += int(pb_utils.get_output_tensor_by_name(answer, "y").as_numpy()[0])
                response = pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 0 + total)])
            else:
                first = request("double", x).exec()
                if first.has_error():
                    raise pb_utils.TritonModelException(first.error().message())
                y = pb_utils.get_output_tensor_by_name(first, "y")
                y.as_numpy()[...] += 1
                response = request("double", y.as_numpy()).exec()
            if response.has_error():
                responses.append(pb_utils.InferenceResponse(error=response.error()))
            else:
                y = pb_utils.get_output_tensor_by_name(response, "y")
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y.as_numpy())]))
        return responses
'''

TRITON_ASYNC = '''
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for one in requests:
            x = pb_utils.get_input_tensor_by_name(one, "x")
            asked = [
                pb_utils.InferenceRequest(model_name="double", requested_output_names=["y"], inputs=[x]).async_exec()
                for _ in range(5)
            ]
            # As Triton's: futures that are under way, with callbacks and for `asyncio.wait`.
            called = []
            asked[0].add_done_callback(lambda future: called.append(future.result().has_error()))
            done, _ = await asyncio.wait(asked)
            await asyncio.sleep(0)
            assert done == set(asked) and called == [False]
            answers = [future.result() for future in asked]
            streams = await asyncio.gather(*(
                pb_utils.InferenceRequest(
                    model_name="count", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", np.array([3], np.int32))]
                ).async_exec(decoupled=True)
                for _ in range(1)
            ))
            count = sum(1 for stream in streams for _ in stream)
            y = sum(pb_utils.get_output_tensor_by_name(answer, "y").as_numpy() for answer in answers) + count
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
'''

#: Changes its input once it has asked with it.
CHANGES = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for one in requests:
            tensor = pb_utils.get_input_tensor_by_name(one, "x")
            asked = pb_utils.InferenceRequest(model_name="double", requested_output_names=["y"], inputs=[tensor]).async_exec()
            x = tensor.as_numpy()
            x += 1
            answer = await asked
            responses.append(pb_utils.InferenceResponse(answer.output_tensors(), error=answer.error()))
        return responses
'''

TRITON_CONFIG = '''
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] }
input { name: "what" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, -1 ] }
'''


def test_tritons_form(tmp_path):
    write(tmp_path, "bls", TRITON, TRITON_CONFIG)
    write(tmp_path, "async", TRITON_ASYNC, TRITON_CONFIG)
    write(tmp_path, "double", DOUBLE)
    write(tmp_path, "count", STREAM)
    with Server(tmp_path) as server:
        for transport, columns in (("http", 4), ("grpc", 4), ("http", 1 << 20)):
            client = Client(server.urls[transport])
            x = np.arange(columns, dtype=np.float32).reshape(1, -1)

            def infer(what, model="bls", client=client, x=x):
                return client.infer(model, {"x": x, "what": np.array([what], np.int32)})["y"]

            assert np.array_equal(infer(0), 2 * x)
            with pytest.raises(InferenceError, match="model 'missing' does not exist") as error:
                infer(1)
            assert error.value.code == "NotFound"
            assert np.array_equal(infer(2), x * 0 + 6)
            assert np.array_equal(infer(3), 4 * x + 2)
            assert np.array_equal(infer(0, "async"), 10 * x + 3)
        # Each call is a request of its own to the other model.
        statistics = json.load(urllib.request.urlopen(f"{server.urls['http']}/v2/models/double/stats"))
        assert statistics["model_stats"][0]["inference_stats"]["success"]["count"] == 3 * (1 + 2 + 5)


def test_inputs_that_a_model_changes_later_were_sent_before(tmp_path):
    write(tmp_path, "changes", CHANGES, TRITON_CONFIG)
    write(tmp_path, "double", DOUBLE)
    with Server(tmp_path) as server:
        for columns in [4] + [1 << 18] * 40:
            x = np.full((1, columns), 3, np.float32)
            y = server.client.infer("changes", {"x": x, "what": np.zeros(1, np.int32)})["y"]
            assert np.array_equal(y, 2 * x), f"{np.count_nonzero(y != 6)} of {columns} elements changed"
