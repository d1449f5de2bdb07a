"""Processes of models in Python as neighbours: of their memory, of threads and programs that a model starts, of each other's requests."""

import os
import signal
import sys
import threading
import time
import urllib.error

import numpy as np
import pytest
from test_models import Server, events, refusal, write
from test_streams import CONFIG, HEAD, SLOW, one, streams

from tensorferry import Client, InferenceError

MIB = 1 << 20

WAITING = '''
import asyncio
import numpy as np

class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"y": ("INT32", [1])}

    async def infer(self, x):
        for _ in range(3):
            await asyncio.sleep(x[0] / 10)
            yield x
'''

#: From the first request on no thread can be started.
NO_THREADS = WAITING.replace("import asyncio", "import _thread, asyncio, threading").replace(
    "        for _",
    """        def refuse(*_):
            raise RuntimeError("can't start new thread")

        _thread.start_new_thread = threading._start_new_thread = threading._start_joinable_thread = refuse
        for _""",
)


def test_requests_at_once_fit_a_memory_limit(tmp_path):
    write(tmp_path, "m", WAITING, 'parameters { key: "memory_limit" value { string_value: "1GiB" } }')
    with Server(tmp_path, "--instances", "1") as server:
        (process,) = server.workers("m")
        assert streams(server, "m", [10] * 220, timeout=30_000_000) == [[10] * 3] * 220
        assert server.workers("m") == [process]


def test_requests_wait_where_no_thread_can_be_started(tmp_path):
    write(tmp_path, "m", NO_THREADS)
    with Server(tmp_path, "--instances", "1") as server:
        (process,) = server.workers("m")
        for _ in range(2):
            assert streams(server, "m", [1] * 5, timeout=20_000_000) == [[1] * 3] * 5
        assert server.logged("begins no further request")
        # It still hears of clients that leave.
        start = time.monotonic()
        assert refusal(server, "m", "generate_stream", {"x": 1000, "timeout": 200_000})[0] == 504
        assert streams(server, "m", [1], timeout=20_000_000) == [[1] * 3]
        assert time.monotonic() - start < 8
        assert server.workers("m") == [process]


GIVES_BACK = (
    HEAD
    + '''
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(), request)).start()

    def answer(self, sender, request):
        time.sleep(0.2)
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x + 1)]), LAST)
'''
)


@pytest.mark.skipif(sys.platform != "linux", reason="regions of memory are Linux's")
def test_shared_memory_that_stays_is_bounded(tmp_path):
    write(tmp_path, "m", GIVES_BACK, CONFIG.replace("dims: [ 1 ]", "dims: [ -1 ]"))

    def shared(process):
        whole = 0
        for name in os.listdir(f"/proc/{process}/fd"):
            try:
                if "memfd:oip-worker" in os.readlink(f"/proc/{process}/fd/{name}"):
                    whole += os.stat(f"/proc/{process}/fd/{name}").st_size
            except OSError:
                pass
        return whole

    with Server(tmp_path, "--instances", "1") as server:
        client = Client(server.urls["grpc"])

        def run(mib):
            x = np.full(mib << 18, 3, np.int32)
            (answer,) = client.infer_stream("m", {"x": x})
            assert (answer["y"] == 4).all()

        for mib in (20, 1, 60):
            threads = [threading.Thread(target=run, args=(mib,)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            time.sleep(0.1)
            assert shared(server.process.pid) <= 128 * MIB
        # Large ones, small ones and failures in turn: both sides know what is kept.
        for mib in (30, 60, 1, 55, 57, 60, 1, 16, 16):
            run(mib)
            time.sleep(0.1)
            assert shared(server.process.pid) <= 128 * MIB


#: Threads that are there before any request answer all of them: x counts calls that take as many tenths of a second.
POOL = (
    HEAD
    + '''
def ask(x):
    request = pb_utils.InferenceRequest(
        model_name="slow", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", np.array([x], np.int32))]
    )
    response = request.exec()
    if response.has_error():
        raise ValueError(response.error().message())
    return response

class TritonPythonModel:
    def initialize(self, args):
        self.jobs = queue.SimpleQueue()
        for _ in range(8):
            threading.Thread(target=self.run, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            self.jobs.put((request.get_response_sender(), x_of(request)))

    def run(self):
        while True:
            sender, x = self.jobs.get()
            if x == 0:
                # Sends at once, and goes on until its client has left.
                sender.send(answer(0))
                time.sleep(0.8)
                sender.send(answer(0))
                while not sender.is_cancelled():
                    time.sleep(0.01)
                sender.send(flags=LAST)
                continue
            if x == 1:
                sender.send(answer(1))
                time.sleep(0.6)
                sender.send(flags=LAST)
                continue
            try:
                ask(3)
                ask(x)
                sender.send(answer(x), LAST)
            except ValueError as error:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), LAST)
'''
)


def later(server, model, x, found, **request):
    def run():
        start = time.monotonic()
        answers = events(server, model, x, **request)
        found.append((x, [event.get("y", event.get("error")) for event in answers], time.monotonic() - start))

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.1)
    return thread


@pytest.mark.parametrize("leaving", [{"take": 2}, {"timeout": 900_000}], ids=["closed", "late"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_a_client_that_leaves_fails_no_call_of_others(tmp_path, is_first, leaving):
    write(tmp_path, "m", POOL, CONFIG)
    write(tmp_path, "slow", SLOW)
    with Server(tmp_path, "--instances", "1") as server:
        found = []
        leaves = lambda: later(server, "m", 0, found, **leaving)
        threads = [leaves()] if is_first else []
        threads += [later(server, "m", 12, found) for _ in range(3)]
        threads += [] if is_first else [leaves()]
        for thread in threads:
            thread.join(30)
        assert sorted(answers for x, answers, _ in found if x == 12) == [[12]] * 3
        assert len(found) == 4 and len(server.workers("m")) == 1


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_an_end_does_not_wait_for_calls_of_others(tmp_path, is_first):
    write(tmp_path, "m", POOL, CONFIG)
    write(tmp_path, "slow", SLOW)
    with Server(tmp_path, "--instances", "1") as server:
        found = []
        threads = [later(server, "m", x, found) for x in ((1, 40, 40) if is_first else (40, 40, 1))]
        for thread in threads:
            thread.join(30)
        assert sorted((x, answers) for x, answers, _ in found) == [(1, [1]), (40, [40]), (40, [40])]
        (short,) = [seconds for x, _, seconds in found if x == 1]
        assert short < 3


STARTED = (
    POOL.split("class TritonPythonModel")[0].replace("import asyncio", "import asyncio, concurrent.futures")
    + '''
class TritonPythonModel:
    def initialize(self, args):
        self.pool = concurrent.futures.ThreadPoolExecutor(8)

    def execute(self, requests):
        for request in requests:
            arguments = (request.get_response_sender(), x_of(request))
            if arguments[1] % 2:
                self.pool.submit(self.answer, *arguments)
            else:
                threading.Thread(target=self.answer, args=arguments).start()

    def answer(self, sender, x):
        time.sleep(0.3)
        start = time.monotonic()
        try:
            ask(x)
            sender.send(answer(x), LAST)
        except ValueError as error:
            print(f"call {x} ended", "in time" if time.monotonic() - start < 3 else "late", error)
            sender.send(flags=LAST)
'''
)


@pytest.mark.parametrize("x", [40, 41], ids=["thread", "pool"])
def test_calls_of_threads_belong_to_the_request_that_started_them(tmp_path, x):
    write(tmp_path, "m", STARTED, CONFIG)
    write(tmp_path, "slow", SLOW)
    with Server(tmp_path, "--instances", "1") as server:
        found = []
        # A pool's thread is used again.
        assert one(events(server, "m", 1)[0]["y"]) == [1]
        threads = [later(server, "m", 30, found), later(server, "m", x, found, timeout=1_500_000), later(server, "m", 31, found)]
        assert server.logged(f"call {x} ended in time")
        for thread in threads:
            thread.join(30)
        assert sorted(answers for each, answers, _ in found if each != x) == [[30], [31]]


ENGINE = '''
import asyncio
import numpy as np

class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"y": ("INT32", [1])}

    def __init__(self, context):
        self.context, self.engine = context, None

    async def run(self):
        while True:
            x, future = await self.jobs.get()
            try:
                future.set_result((await self.context.infer_async("slow", {"x": x}))["y"])
            except Exception as error:
                future.set_exception(error)

    async def infer(self, x):
        if self.engine is None:
            self.jobs = asyncio.Queue()
            self.engine = asyncio.create_task(self.run())
        future = asyncio.get_running_loop().create_future()
        await self.jobs.put((x, future))
        yield await future
'''


def test_a_task_outlives_the_request_that_started_it(tmp_path):
    write(tmp_path, "m", ENGINE)
    write(tmp_path, "slow", SLOW)
    with Server(tmp_path, "--instances", "1") as server:
        for x in (1, 2, 3):
            assert one(events(server, "m", x)[0]["y"]) == [2 * x]
        found = streams(server, "m", [1, 2, 3])
        assert found == [[2], [4], [6]]


PROGRAMS = '''
import multiprocessing
import os
import signal
import subprocess
import threading
from tensorferry_model import InferenceError

def double(x):
    return 2 * x

def sockets():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    return sum(link.startswith("socket:") for link in found)

def forked(deed):
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(send, str(deed()).encode())
        os._exit(0)
    os.close(send)
    text = os.read(receive, 100).decode()
    os.close(receive)
    os.waitpid(child, 0)
    return text

class Model:
    inputs = {"what": (str, [1])}
    outputs = {"text": (str, [1])}
    max_batch_size = 0

    def __init__(self, context):
        self.context = context

    def infer(self, what):
        return {"text": [str(getattr(self, what[0].decode())())]}

    def signals(self):
        codes = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            with subprocess.Popen(["sleep", "60"]) as program:
                program.send_signal(number)
                try:
                    codes.append(program.wait(5))
                except subprocess.TimeoutExpired:
                    program.kill()
        return codes

    def pool(self):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(double, [1, 2, 3])

    def sockets(self):
        return f"{sockets() > 0} {forked(sockets)}"

    def asks(self):
        def ask():
            try:
                return self.context.infer("other", {"what": ["sockets"]})
            except InferenceError as error:
                return f"{error.status} {error}"

        return forked(ask)

    def handlers(self):
        return forked(lambda: [signal.getsignal(number) == signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGHUP)])
'''


def test_programs_that_a_model_starts_end_by_signals(tmp_path):
    write(tmp_path, "m", PROGRAMS)
    with Server(tmp_path) as server:
        ask = lambda what: server.client.infer("m", {"what": [what]})["text"][0].decode()
        (process,) = server.workers("m")
        assert ask("signals") == str([-15, -2, -1, -3])
        assert ask("pool") == "[2, 4, 6]"
        assert ask("sockets") == "True 0"
        assert ask("handlers") == "[True, True]"
        assert ask("asks") == "501 a process that the model has forked cannot call other models: let its parent call them"
        # The process itself goes on.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            os.kill(process, number)
        assert ask("pool") == "[2, 4, 6]"
        assert server.workers("m") == [process]


ACROSS = '''
import asyncio
import contextvars

LEVEL = contextvars.ContextVar("level", default=0)

class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"text": (str, [])}

    async def infer(self, x, request):
        BODY
'''

ACROSS_YIELDS = {
    "variable": '''
task = asyncio.current_task()
token = LEVEL.set(7)
try:
    yield "begun"
    yield f"{LEVEL.get()} {asyncio.current_task() is task}"
finally:
    LEVEL.reset(token)
    print("ended", asyncio.current_task() is task)
''',
    "timeout": '''
try:
    async with asyncio.timeout(0.3):
        yield "begun"
        await asyncio.sleep(20)
except TimeoutError:
    yield "late"
''',
    "group": '''
async def fail():
    await asyncio.sleep(0.1)
    raise ValueError("of a task")

try:
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        for number in range(2000):
            yield f"{number}"
            await asyncio.sleep(0.001)
except ExceptionGroup as error:
    yield f"{error.exceptions[0]}"
''',
    "leaves": '''
try:
    yield "begun"
    await asyncio.sleep(20)
finally:
    await asyncio.sleep(0.01)
    print("left", request.is_cancelled())
''',
}


def test_one_task_runs_an_asynchronous_generator(tmp_path):
    for name, body in ACROSS_YIELDS.items():
        # From Python 3.11 on there are timeouts and groups.
        if name in ("variable", "leaves") or sys.version_info >= (3, 11):
            write(tmp_path, name, ACROSS.replace("BODY", body.replace("\n", "\n        ")))
    with Server(tmp_path) as server:

        def texts(model, **options):
            return [event.get("text", event) for event in events(server, model, 0, **options)]

        assert texts("variable") == ["begun", "7 True"]
        assert server.logged("ended True")
        if sys.version_info >= (3, 11):
            assert texts("timeout") == ["begun", "late"]
            for _ in range(5):
                answers = texts("group")
                assert answers[0] == "0" and answers[-1] == "of a task" and len(answers) < 1000
        assert texts("leaves", take=1) == ["begun"]
        assert server.logged("left True")
        # One that leaves between two steps.
        assert texts("variable", take=1) == ["begun"]


NUMBERS = '''
import numpy as np

class Model:
    inputs = {"x": ("FP64", [-1])}
    outputs = {"small": ("INT8", [-1]), "int": ("INT32", [-1]), "big": ("UINT64", [-1]), "float": ("FP32", [-1])}
    max_batch_size = 0

    def infer(self, x, request):
        (name,) = request.outputs
        return {name: x if name == "float" else x.astype(np.uint64 if name == "big" else np.int64).reshape(-1)}
'''


def test_numbers_that_an_output_cannot_hold_are_refused(tmp_path):
    write(tmp_path, "m", NUMBERS)
    with Server(tmp_path) as server:

        def given(name, *values):
            return server.client.infer("m", {"x": np.array(values, np.float64)}, outputs=[name])[name].tolist()

        assert given("small", 127, -128) == [127, -128]
        assert given("int", 5, -(2.0**31)) == [5, -(2**31)]
        assert given("big", 2.0**63) == [2**63]
        assert given("float", 0.1, np.inf, -np.inf, 1e-300) == pytest.approx([0.1, np.inf, -np.inf, 0])
        assert np.isnan(given("float", np.nan)).all()
        assert given("small") == []
        for name, values, expected in [
            ("small", [1, 300], "the output 'small' has 300 at [1], which INT8 cannot hold: expected -128 to 127"),
            ("int", [5, 2.0**32 + 7], "the output 'int' has 4294967303 at [1], which INT32 cannot hold"),
            ("float", [np.inf, 1e300], "the output 'float' has 1e+300 at [1], which FP32 cannot hold"),
        ]:
            with pytest.raises(InferenceError) as error:
                given(name, *values)
            assert error.value.status == "500" and expected in str(error.value)


STRINGS = '''
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x, y = (pb_utils.get_input_tensor_by_name(request, name).as_numpy().astype(np.int32) for name in ("x", "y"))
            out = (x + y).astype(pb_utils.triton_string_to_numpy("TYPE_STRING"))
            asked = pb_utils.InferenceRequest(
                model_name="echo", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", (x - y).astype(object))]
            ).exec()
            if asked.has_error():
                raise ValueError(asked.error().message())
            echoed = pb_utils.get_output_tensor_by_name(asked, "y").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("sum", out), pb_utils.Tensor("difference", echoed)]))
        return responses
'''

STRINGS_CONFIG = 'backend: "python"' + "".join(
    f' {role} {{ name: "{name}" data_type: TYPE_STRING dims: [ -1 ] }}'
    for role, name in [("input", "x"), ("input", "y"), ("output", "sum"), ("output", "difference")]
)


def test_objects_are_written_as_triton_writes_them(tmp_path):
    write(tmp_path, "m", STRINGS, STRINGS_CONFIG)
    write(
        tmp_path,
        "echo",
        'class Model:\n    inputs = {"x": (str, [-1])}\n    outputs = {"y": (str, [-1])}\n\n    def infer(self, x):\n        return x\n',
    )
    with Server(tmp_path) as server:
        found = server.client.infer("m", {"x": ["5", "7"], "y": ["1", "2"]})
        assert found["sum"].tolist() == [b"6", b"9"] and found["difference"].tolist() == [b"4", b"5"]


NAMED = (
    HEAD
    + '''
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]

    def execute(self, requests):
        if x_of(requests[0]) == 1:
            os._exit(3)
        time.sleep(0.5)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text", np.array([self.name], object))]) for _ in requests]
'''
)


def test_instances_have_the_names_of_tritons(tmp_path):
    config = 'backend: "python" input { name: "x" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "text" data_type: TYPE_STRING dims: [ 1 ] }'
    write(tmp_path, "m", NAMED, config + " instance_group [ { count: 3 } ]")
    write(tmp_path, "groups", NAMED, config + ' instance_group [ { count: 1 }, { name: "own" count: 2 } ]')
    with Server(tmp_path) as server:

        def names(model):
            found = []
            run = lambda: found.append(Client(server.urls["http"]).infer(model, {"x": np.zeros(1, np.int32)})["text"][0].decode())
            for _ in range(4):
                threads = [threading.Thread(target=run) for _ in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(30)
            return sorted(set(found))

        assert names("m") == ["m_0_0", "m_0_1", "m_0_2"]
        assert names("groups") == ["groups_0_0", "own_0", "own_1"]
        # A process that takes another one's place has its name.
        with pytest.raises(InferenceError):
            server.client.infer("m", {"x": np.ones(1, np.int32)})
        assert names("m") == ["m_0_0", "m_0_1", "m_0_2"]


DECORATED = '''
import asyncio
import functools

def passes(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

def hides(function):
    return lambda self, x: function(self, x)

def waits(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return asyncio.run(function(*args, **kwargs))
    return wrapper

def collects(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return list(function(*args, **kwargs))[-1]
    return wrapper

class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"y": ("INT32", [1])}

'''


def test_forms_of_infer(tmp_path):
    generator = "def infer(self, x):\n        yield x\n        yield x + 1\n"
    for name, source in {
        "static": "@staticmethod\n    def infer(x):\n        return x + 1\n",
        "of_class": "@classmethod\n    def infer(cls, x):\n        return x + 1\n",
        "steps": "@passes\n    " + generator,
        "async_steps": "@passes\n    async " + generator,
        "awaited": "@passes\n    async def infer(self, x):\n        return x + 1\n",
        "waits": "@waits\n    async def infer(self, x):\n        return x + 1\n",
        "hidden": "@hides\n    " + generator,
        "collected": "@collects\n    " + generator,
    }.items():
        write(tmp_path, name, DECORATED + "    " + source)
    with Server(tmp_path) as server:
        for model in ("static", "of_class", "awaited", "waits"):
            assert server.client.infer(model, {"x": np.array([3], np.int32)})["y"] == [4], model
        for model in ("steps", "async_steps"):
            assert [event["y"] for event in events(server, model, 3)] == [3, 4], model
        with pytest.raises(InferenceError, match="infer\\(\\) returned generator but is not a generator function.*functools.wraps"):
            server.client.infer("hidden", {"x": np.array([3], np.int32)})
        with pytest.raises(urllib.error.HTTPError) as error:
            events(server, "collected", 3)
        assert b"infer() returned ndarray, expected a generator" in error.value.read()


EXECUTE = {
    "decorated": """
def traced(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

class TritonPythonModel:
    @traced
    async def execute(self, requests):
        return await run(requests)
""",
    "given": """
class TritonPythonModel:
    def execute(self, requests):
        return run(requests)
""",
    "waited": """
def waits(function):
    @functools.wraps(function)
    def wrapper(*args):
        return asyncio.run(function(*args))
    return wrapper

class TritonPythonModel:
    @waits
    async def execute(self, requests):
        return await run(requests)
""",
}

RUN = """
async def run(requests):
    await asyncio.sleep(0.01)
    return [answer(x_of(request)) for request in requests]
"""

RUN_DECOUPLED = """
async def run(requests):
    for request in requests:
        sender = request.get_response_sender()
        for number in range(x_of(request)):
            await asyncio.sleep(0.01)
            sender.send(answer(number))
        sender.send(flags=LAST)
"""


def test_forms_of_execute(tmp_path):
    head = HEAD + "import functools\n"
    plain = CONFIG.replace("model_transaction_policy { decoupled: true }", "")
    assert plain != CONFIG
    for form, source in EXECUTE.items():
        write(tmp_path, form, head + RUN + source, plain)
        write(tmp_path, f"{form}_steps", head + RUN_DECOUPLED + source, CONFIG)
    with Server(tmp_path) as server:
        for form in EXECUTE:
            for x in (3, 4):
                assert server.client.infer(form, {"x": np.array([x], np.int32)})["y"] == [x], form
            assert streams(server, f"{form}_steps", [2, 3]) == [[0, 1], [0, 1, 2]], form


#: Lets go of another model's answers long after its client has left.
LATE = """
import asyncio
import numpy as np

class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"y": ("INT32", [1])}

    def __init__(self, context):
        self.context = context

    async def infer(self, x, request):
        answers = self.context.stream("numbers", {"x": np.array([99], np.int32)})
        yield (await anext(answers))["y"]
        while not request.is_cancelled():
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                pass
        await asyncio.sleep(6)
        try:
            answers.close()
            print("let go")
        except BaseException as error:
            print("did not let go:", repr(error))
"""

COUNTS = """
class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"y": ("INT32", [1])}

    def infer(self, x):
        for number in range(x[0]):
            yield x * 0 + number
"""


def test_a_request_that_was_given_up_lets_go_of_its_calls(tmp_path):
    write(tmp_path, "m", LATE)
    write(tmp_path, "numbers", COUNTS)
    with Server(tmp_path, "--instances", "1") as server:
        assert events(server, "m", 1, take=1) == [{"model_name": "m", "model_version": "1", "y": 0}]
        until = time.monotonic() + 20
        while "let go" not in "".join(server.log) and time.monotonic() < until:
            time.sleep(0.1)
        assert "did not let go" not in "".join(server.log) and "let go" in "".join(server.log)
