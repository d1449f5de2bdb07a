"""Models in Python that go on with several requests at once in one process."""

import json
import threading
import time
import urllib.request

import numpy as np
import pytest
from test_models import DECOUPLED_CONFIG, STREAM, Server, events, refusal, write

CONFIG = DECOUPLED_CONFIG.replace('output { name: "text" data_type: TYPE_STRING dims: [ 1 ] }\n', "")

HEAD = '''
import asyncio, os, queue, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

LAST = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def x_of(request):
    return int(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0])

def answer(*values):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array(values, np.int32))])
'''

#: Each request is answered from a thread: its process and whether `execute` ran in the main thread, and, once so many requests are under
#: way as its input says, its number.
THREADS = (
    HEAD
    + '''
class TritonPythonModel:
    def initialize(self, args):
        self.changed, self.open = threading.Condition(), 0

    def execute(self, requests):
        is_main = threading.current_thread() is threading.main_thread()
        for request in requests:
            x = x_of(request)
            if x == 1000:
                time.sleep(3600)
            if x == 1001:
                os._exit(7)
            if x == 1002:
                request.get_response_sender().send(answer(1002), LAST)
                continue
            threading.Thread(target=self.answer, args=(request.get_response_sender(), x, is_main)).start()

    def answer(self, sender, x, is_main):
        sender.send(answer(os.getpid(), is_main))
        with self.changed:
            self.open += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.open >= x)
        sender.send(answer(self.open), LAST)
'''
)

#: One thread answers all requests, as servers of language models do: a step of each in turn.
LOOP = (
    HEAD
    + '''
class TritonPythonModel:
    def initialize(self, args):
        self.new = queue.SimpleQueue()
        threading.Thread(target=self.run, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            self.new.put((request.get_response_sender(), x_of(request)))

    def run(self):
        open = []
        while True:
            while not open or not self.new.empty():
                open.append([*self.new.get(), 0])
            for entry in open[:]:
                sender, count, done = entry
                if sender.is_cancelled() and count < 1000:
                    pb_utils.Logger.log_info("was cancelled")
                    sender.send(flags=LAST)
                    open.remove(entry)
                elif done == count:
                    sender.send(flags=LAST)
                    open.remove(entry)
                else:
                    sender.send(answer(done, len(open)))
                    entry[2] += 1
            time.sleep(0.001)
'''
)

#: `execute` is a coroutine, which waits until so many are under way as its input says.
COROUTINE = (
    HEAD
    + '''
class TritonPythonModel:
    open = 0

    async def execute(self, requests):
        for request in requests:
            x, sender = x_of(request), request.get_response_sender()
            self.open += 1
            while self.open < x:
                await asyncio.sleep(0.001)
            sender.send(answer(self.open, threading.current_thread() is threading.main_thread()))
            sender.send(flags=LAST)
'''
)

GENERATOR = '''
import asyncio, os, threading
import numpy as np

class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"y": ("INT32", [-1])}
    open = 0

    async def infer(self, x, request):
        self.open += 1
        try:
            yield np.array([os.getpid(), threading.current_thread() is threading.main_thread()], np.int32)
            while self.open < x[0]:
                await asyncio.sleep(0.001)
            yield np.array([self.open], np.int32)
            if x[0] == 3:
                raise ValueError("three")
        finally:
            if request.is_cancelled():
                print("closed")
'''


def streams(server, model, xs, **request):
    """The answers to some requests at once."""
    found = {}

    def run(number, x):
        found[number] = events(server, model, x, **request)

    threads = [threading.Thread(target=run, args=item) for item in enumerate(xs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(threads), "a request is not answered"
    return [[event.get("y", event.get("error")) for event in found[number]] for number in range(len(threads))]


def one(value):
    """An output of one element, which events have without a list."""
    return value if isinstance(value, list) else [value]


def test_execute_is_called_again_while_senders_are_open(tmp_path):
    write(tmp_path, "threads", THREADS, CONFIG)
    with Server(tmp_path, "--instances", "1") as server:
        (process,) = server.workers("threads")
        # No request ends before all have been given to the model.
        found = streams(server, "threads", [2, 2])
        assert [answers[0] for answers in found] == [[process, 1]] * 2
        assert [one(answers[1]) for answers in found] == [[2]] * 2
        found = streams(server, "threads", [32] * 30)
        assert all(answers[0] == [process, 1] and one(answers[1]) == [32] for answers in found)
        # One after the other uses what is there, also where `execute` gives all.
        for number in range(33, 80):
            assert one(events(server, "threads", number)[1]["y"]) == [number]
            assert [event["y"] for event in events(server, "threads", 1002)] == [1002]
        assert server.workers("threads") == [process]
        statistics = json.load(urllib.request.urlopen(f"{server.urls['http']}/v2/models/threads/stats"))
        assert statistics["model_stats"][0]["inference_stats"]["success"]["count"] == 2 + 30 + 2 * 47
    assert "is gone" not in "".join(server.log)


def test_one_thread_of_the_model_answers_all(tmp_path):
    write(tmp_path, "loop", LOOP, CONFIG)
    with Server(tmp_path, "--instances", "1") as server:
        (process,) = server.workers("loop")
        found = streams(server, "loop", [50] * 20)
        assert all([step for step, _ in answers] == list(range(50)) for answers in found)
        assert max(beside for answers in found for _, beside in answers) > 10
        # A client that leaves ends its own request.
        survivor = threading.Thread(target=lambda: found.append(events(server, "loop", 900)))
        survivor.start()
        assert len(events(server, "loop", 999, take=3)) == 3
        assert server.logged("was cancelled")
        # The model goes on with one of these for longer than a process may, which costs the others nothing.
        assert len(events(server, "loop", 1 << 30, take=3)) == 3
        start = time.monotonic()
        while time.monotonic() - start < 6:
            assert [event["y"][0] for event in events(server, "loop", 5)] == list(range(5))
        survivor.join(60)
        assert [event["y"][0] for event in found[-1]] == list(range(900))
        assert server.workers("loop") == [process]


@pytest.mark.parametrize(("source", "config"), [(COROUTINE, CONFIG), (GENERATOR, None)], ids=["coroutine", "generator"])
def test_coroutines_wait_at_once(tmp_path, source, config):
    write(tmp_path, "m", source, config)
    with Server(tmp_path, "--instances", "1") as server:
        (process,) = server.workers("m")
        found = streams(server, "m", [12] * 12)
        if config is None:
            assert all(answers[0] == [process, 1] and one(answers[1]) == [12] for answers in found)
            answers = streams(server, "m", [3])[0]
            assert answers[0] == [process, 1] and "ValueError: three" in answers[-1]
            # Those that wait for ever end with their clients, or with their time: more of them than a process may go on with.
            for _ in range(70):
                assert len(events(server, "m", 1 << 30, take=1)) == 1
            assert server.logged("closed")
            found = events(server, "m", 1 << 30, timeout=500_000)
            assert "deadline" in found[-1]["error"]
            for _ in range(500):
                closed = "".join(server.log).count('line="closed')
                time.sleep(0.01)
                if closed == 71:
                    break
            assert closed == 71
        else:
            assert all(answers == [[12, 1]] for answers in found)
        assert server.workers("m") == [process]


def test_generators_that_do_not_wait_run_one_after_the_other(tmp_path):
    write(tmp_path, "m", STREAM)
    with Server(tmp_path, "--instances", "1") as server:
        found = streams(server, "m", [20] * 5)
        assert found == [list(range(20))] * 5
        assert len(server.workers("m")) == 1


def test_a_process_that_ends_takes_the_requests_that_it_has(tmp_path):
    write(tmp_path, "threads", THREADS, CONFIG)
    with Server(tmp_path, "--instances", "1") as server:
        found = []
        open = [threading.Thread(target=lambda: found.append(events(server, "threads", 100))) for _ in range(5)]
        for thread in open:
            thread.start()
        time.sleep(1)
        assert "it ended with code 7" in refusal(server, "threads", "generate_stream", {"x": 1001})[1]
        for thread in open:
            thread.join(60)
        assert len(found) == 5 and all("it ended with code 7" in answers[-1]["error"] for answers in found)
        assert one(events(server, "threads", 1)[1]["y"]) == [1]
        # A death is counted once: five of them make a pause.
        for _ in range(3):
            assert "it ended with code 7" in refusal(server, "threads", "generate_stream", {"x": 1001})[1]
        assert one(events(server, "threads", 1)[1]["y"]) == [1]


def test_a_hang_of_execute_ends_the_process(tmp_path):
    write(tmp_path, "threads", THREADS, CONFIG)
    with Server(tmp_path, "--instances", "1") as server:
        (process,) = server.workers("threads")
        assert refusal(server, "threads", "generate_stream", {"x": 1000, "timeout": 300_000})[0] == 504
        assert one(events(server, "threads", 1)[1]["y"]) == [1]
        assert server.workers("threads") != [process]


LARGE = (
    HEAD.replace("import asyncio", "import asyncio, tensorferry")
    + '''
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(), request)).start()

    def answer(self, sender, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        for step in range(3):
            time.sleep(0.02)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x + step)]))
        # The input itself.
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]), LAST)
'''
).replace(", tensorferry", "")


def test_large_tensors_of_several_requests_at_once(tmp_path):
    from tensorferry import Client

    write(tmp_path, "large", LARGE, CONFIG.replace("dims: [ 1 ]", "dims: [ -1 ]"))
    with Server(tmp_path, "--instances", "1") as server:
        client, failures = Client(server.urls["grpc"]), []

        def run(number):
            for round in range(4):
                x = np.full((1 << 18) + number * round, number, np.int32)
                answers = [outputs["y"] for outputs in client.infer_stream("large", {"x": x})]
                if len(answers) != 4 or not all((answer == x + step).all() for answer, step in zip(answers, (0, 1, 2, 0))):
                    failures.append((number, round, len(answers)))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        assert len(server.workers("large")) == 1


ASKING = (
    HEAD
    + '''
def asked(x):
    request = pb_utils.InferenceRequest(
        model_name="slow", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", np.array([x], np.int32))]
    )
    response = request.exec()
    if response.has_error():
        return pb_utils.InferenceResponse(error=response.error())
    return answer(int(pb_utils.get_output_tensor_by_name(response, "y").as_numpy()[0]))

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(), x_of(request))).start()

    def answer(self, sender, x):
        # What asks with 5 is still waiting when those are over that ask later.
        sender.send(asked(x))
        sender.send(flags=LAST)
'''
)

ASKING_GENERATOR = '''
import numpy as np

class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"y": ("INT32", [-1])}

    def __init__(self, context):
        self.context = context

    async def infer(self, x):
        for _ in range(2):
            yield (await self.context.infer_async("slow", {"x": x}))["y"]
'''

SLOW = '''
import time

class Model:
    inputs = {"x": ("INT32", [1])}
    outputs = {"y": ("INT32", [1])}
    instances = 8

    def infer(self, x):
        time.sleep(int(x[0]) / 10)
        return x * 2
'''


@pytest.mark.parametrize(("source", "config", "count"), [(ASKING, CONFIG, 1), (ASKING_GENERATOR, None, 2)], ids=["threads", "generator"])
def test_requests_at_once_ask_other_models(tmp_path, source, config, count):
    write(tmp_path, "asking", source, config)
    write(tmp_path, "slow", SLOW)
    with Server(tmp_path, "--instances", "1") as server:
        streams(server, "asking", [1] * 8)
        for _ in range(3):
            found = streams(server, "asking", [8, 1, 5, 1, 3, 2])
            assert found == [[2 * x] * count for x in (8, 1, 5, 1, 3, 2)]
        assert len(server.workers("asking")) == 1
