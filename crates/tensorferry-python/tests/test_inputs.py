"""Inputs as people give them: lists of numbers, arrays of another datatype, and names with a letter too few."""

import array
import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import tensorferry
from tensorferry import AsyncClient, Client, InferenceError, Server

DATATYPES = ("BOOL", "UINT8", "UINT64", "INT8", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64")


def same(datatype):
    """A model that gives its input back, and what NumPy calls its datatype."""

    @tensorferry.model(
        inputs={"x": (datatype, [-1]), "unused": {"datatype": "FP32", "shape": [1], "optional": True}},
        outputs={"y": (datatype, [-1])},
    )
    def function(x, unused=None):
        return x

    return function


@tensorferry.model(inputs={"x": ("FP32", [-1, 3])}, outputs={"sum": ("FP32", [-1])})
def sums(x):
    return x.sum(axis=1)


@tensorferry.model(inputs={"x": ("INT64", [-1])}, outputs={"y": ("INT64", [-1])})
def counts(x):
    yield x
    yield x + 1


@pytest.fixture(scope="module")
def server():
    models = {datatype: same(datatype) for datatype in (*DATATYPES, "BYTES")}
    with Server(models={"sums": sums, "counts": counts, **models}) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def client(server, request):
    return Client(server.http_url if request.param == "http" else server.grpc_url)


class Stub(ThreadingHTTPServer):
    """A server whose errors say little. Its model `m` has one input of a datatype, which may change; calls are counted."""

    def __init__(self, datatype, *, metadata=200):
        super().__init__(("127.0.0.1", 0), Handler)
        self.datatype, self.metadata, self.calls, self.sent = datatype, metadata, Counter(), []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.calls["metadata"] += 1
        tensor = {"name": "x", "datatype": self.server.datatype, "shape": [-1]}
        said = {"name": "m", "platform": "", "inputs": [tensor], "outputs": [{**tensor, "name": "y"}]}
        self.answer(self.server.metadata, said if self.server.metadata == 200 else {"error": "no"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path.endswith("/index"):
            self.server.calls["index"] += 1
            return self.answer(200, [{"name": "m"}])
        self.server.calls["infer"] += 1
        head = json.loads(body[: int(self.headers.get("inference-header-content-length", len(body)))])
        (tensor,) = head["inputs"]
        self.server.sent.append(tensor["datatype"])
        if tensor["datatype"] != self.server.datatype:
            return self.answer(400, {"error": "bad request"})
        output = {"name": "y", "datatype": "INT32", "shape": [1], "data": [1]}
        self.answer(200, {"model_name": "m", "outputs": [output]})

    def answer(self, status, said):
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("datatype", DATATYPES)
def test_a_list_of_numbers_gets_the_datatype_of_the_model(client, datatype):
    for numbers in ([1, 0, 1], [1.0, 0.0, 1.0], (True, False, True), [True, 0, 1.0]):
        found = client.infer(datatype, {"x": numbers})["y"]
        assert found.shape == (3,) and found.astype(np.float64).tolist() == [1, 0, 1]
        assert found.dtype == client.infer(datatype, {"x": found})["y"].dtype
    assert client.infer(datatype, {"x": []})["y"].shape == (0,)
    assert client.infer(datatype, {"x": range(2)})["y"].astype(int).tolist() == [0, 1]


def test_numbers_are_those_that_were_given(client):
    assert client.infer("INT64", {"x": [(1 << 60) + 1, 1.0]})["y"].tolist() == [(1 << 60) + 1, 1]
    assert client.infer("UINT64", {"x": [(1 << 64) - 1, 0]})["y"].tolist() == [(1 << 64) - 1, 0]
    assert client.infer("INT8", {"x": [-128, 127]})["y"].tolist() == [-128, 127]
    assert client.infer("FP32", {"x": [0.1, float("inf"), 1 << 100]})["y"].tolist() == np.float32([0.1, np.inf, 2.0**100]).tolist()
    assert np.isnan(client.infer("FP16", {"x": [float("nan")]})["y"]).all()
    assert client.infer("sums", {"x": [[1, 2, 3], [0.5, 0.5, 0.5]]})["sum"].tolist() == [6, 1.5]
    assert client.infer("sums", {"x": [np.ones(3), [1, 2, 3]]})["sum"].tolist() == [3, 6]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    near = [1 + 2**-8, 1 + 3 * 2**-8, 3.3e38, 1e-40, float("nan"), -0.1]
    found = client.infer("BF16", {"x": near})["y"]
    assert found.tobytes() == np.float32(near).astype(ml_dtypes.bfloat16).tobytes()


#: bfloat16 where NumPy has none: the same bits, whose names are typed.
WITHOUT_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None
import tensorferry
numbers = [float(number) for number in sys.argv[2:]]
found = tensorferry.Client(sys.argv[1]).infer("BF16", {"x": numbers})["y"]
print(found.dtype.names, found.tobytes().hex())
"""


def test_a_list_becomes_bfloat16_without_ml_dtypes(server):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numbers = ["1.00390625", "1.01171875", "3.3e38", "1e-40", "nan", "-0.1", "inf"]
    command = [sys.executable, "-c", WITHOUT_ML_DTYPES, server.url, *numbers]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bits = np.float32([float(number) for number in numbers]).astype(ml_dtypes.bfloat16).tobytes()
    assert found == f"('bfloat16',) {bits.hex()}\n"


@pytest.mark.parametrize(
    ("datatype", "numbers", "said"),
    [
        ("INT64", [1.5], "is INT64: expected integers, found 1.5"),
        ("INT64", [float("nan")], "is INT64: expected integers, found nan"),
        ("INT8", [1, 300], "is INT8: expected numbers from -128 to 127, found 300"),
        ("UINT64", [-1], "is UINT64: expected numbers from 0 to 18446744073709551615, found -1"),
        ("INT64", [1 << 63, -1], "expected numbers from -9223372036854775808 to 9223372036854775807, found 9223372036854775808"),
        ("BOOL", [0, 2], "is BOOL: expected True or False, found 2"),
        ("FP16", [1, 70000], "is FP16: 70000.0 is too large for it"),
        ("BF16", [1e39], "is BF16: 1e[+]39 is too large for it"),
        ("FP64", [10**400], "is FP64: an integer is too large for it"),
    ],
)
def test_a_number_that_the_datatype_cannot_hold_is_refused(client, datatype, numbers, said):
    with pytest.raises(ValueError, match=f"^input 'x' of model '{datatype}'.*{said}"):
        client.infer(datatype, {"x": numbers})


def test_what_is_no_list_of_numbers_is_refused_by_name(client):
    with pytest.raises(ValueError, match="input 'x': expected lists of one length"):
        client.infer("FP32", {"x": [[1, 2], [3]]})
    with pytest.raises(TypeError, match="input 'x': expected only numbers .* found None as well"):
        client.infer("FP32", {"x": [1.0, None]})
    with pytest.raises(TypeError, match="input 'x' of model 'BYTES' is BYTES: expected str or bytes, found 1"):
        client.infer("BYTES", {"x": [1, 2]})
    with pytest.raises(InferenceError, match="input 'x' of model 'FP32' is FP32 and this list has strings"):
        client.infer("FP32", {"x": ["1"]})
    assert client.infer("BYTES", {"x": ["1", b"2"]})["y"].tolist() == [b"1", b"2"]
    assert client.infer("BYTES", {"x": []})["y"].tolist() == []


def test_the_model_is_asked_about_once_and_only_for_lists():
    with Stub("FP32") as stub:
        client = Client(stub.url)
        for _ in range(3):
            client.infer("m", {"x": np.ones(1, np.float32)})
        assert stub.calls == {"infer": 3}
        for _ in range(3):
            client.infer("m", {"x": [1]})
        assert stub.calls == {"infer": 6, "metadata": 1} and set(stub.sent) == {"FP32"}

        async def run():
            waiting = AsyncClient(stub.url)
            for _ in range(3):
                await waiting.infer("m", {"x": [1]})

        asyncio.run(run())
        assert stub.calls == {"infer": 9, "metadata": 2}


def test_a_model_that_is_loaded_again_with_another_datatype():
    with Stub("INT64") as stub:
        client = Client(stub.url)
        client.infer("m", {"x": [1]})
        stub.datatype = "FP32"
        # Which the server refuses at first.
        client.infer("m", {"x": [1]})
        assert stub.sent == ["INT64", "INT64", "FP32"]
        stub.datatype = "INT64"
        client.infer("m", {"x": [2.0]})
        stub.datatype = "FP64"
        # Which does not fit what was known.
        client.infer("m", {"x": [1.5]})
        assert stub.sent[3:] == ["FP32", "INT64", "FP64"]

        async def run():
            waiting = AsyncClient(stub.url)
            await waiting.infer("m", {"x": [1]})
            stub.datatype = "INT32"
            await waiting.infer("m", {"x": [1]})

        asyncio.run(run())
        assert stub.sent[6:] == ["FP64", "FP64", "INT32"]


def test_streams_take_lists_too(server):
    client = Client(server.grpc_url)
    assert [found["y"].tolist() for found in client.infer_stream("counts", {"x": [1, 2.0]})] == [[1, 2], [2, 3]]
    with client.stream() as stream:
        stream.send("FP32", {"x": [1, 2]})
        stream.finish()
        assert next(stream).outputs["y"].dtype == np.float32
    with pytest.raises(InferenceError, match="pass x.astype"):
        list(client.infer_stream("counts", {"x": np.ones(1, np.int8)}))

    async def run():
        waiting = AsyncClient(server.grpc_url)
        found = [outputs["y"].tolist() async for outputs in waiting.infer_stream("counts", {"x": [1]})]
        async with waiting.stream() as stream:
            await stream.send("FP16", {"x": [1, 2]})
            stream.finish()
            found.append((await anext(stream)).outputs["y"].dtype.name)
        with pytest.raises(InferenceError, match="did you mean 'counts'"):
            _ = [outputs async for outputs in waiting.infer_stream("count", {"x": [1]})]
        return found

    assert asyncio.run(run()) == [[1], [2], "float16"]


def test_a_stream_after_the_model_was_loaded_again():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    client = Client(f"grpc://{address}")
    for datatype, found in (("INT64", np.int64), ("FP32", np.float32), ("INT8", np.int8)):
        with Server(models={"m": same(datatype)}, grpc=address, http=None):
            (only,) = client.infer_stream("m", {"x": [1]})
            assert only["y"].dtype == found


def test_a_server_that_says_nothing_about_its_models_judges_the_list_itself():
    with Stub("FP64", metadata=404) as stub:
        client = Client(stub.url)
        client.infer("m", {"x": [1.0]})
        with pytest.raises(InferenceError, match="bad request") as error:
            client.infer("m", {"x": [1]})
        assert stub.sent == ["FP64", "INT64"] and error.value.message == "bad request"


def test_a_time_limit_is_for_the_question_about_the_model_too():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"http://127.0.0.1:{silent.getsockname()[1]}", attempts=1)
        with pytest.raises(InferenceError, match="0.05 s") as error:
            client.infer("m", {"x": [1]}, timeout=0.05)
        assert error.value.kind == "Timeout"
        with pytest.raises(ValueError, match="timeout"):
            client.infer("m", {"x": [1]}, timeout=-1)


@pytest.mark.parametrize(
    ("datatype", "value", "said"),
    [
        ("FP32", np.ones(1), "is FP32 and this array is float64 (FP64): pass x.astype(np.float32)"),
        ("FP32", np.float64(1.0).reshape(1), "pass x.astype(np.float32)"),
        ("FP32", np.ones(1, np.int64), "is FP32 and this array is int64 (INT64): pass x.astype(np.float32)"),
        ("INT64", np.ones(1), "pass x.astype(np.int64), which cuts fractions off"),
        ("INT8", np.ones(1, np.int64), "pass x.astype(np.int8), if its numbers fit"),
        ("INT64", np.ones(1, np.int8), "is INT64 and this array is int8 (INT8): pass x.astype(np.int64)"),
        ("BOOL", np.ones(1), "pass x.astype(bool)"),
        ("BF16", np.ones(1), "pass x.astype(ml_dtypes.bfloat16)"),
        ("FP32", array.array("d", [1.0]), "and this array is float64 (FP64): pass np.asarray(x).astype(np.float32)"),
        ("FP32", np.array(["1"]), "is FP32 and this array has strings (BYTES): pass x.astype(np.float32)"),
        ("BYTES", np.ones(1), "is BYTES and this array is float64 (FP64): pass x.astype(str)"),
    ],
)
def test_an_array_of_another_datatype_gets_the_line_that_helps(client, datatype, value, said):
    with pytest.raises(InferenceError) as error:
        client.infer(datatype, {"x": value})
    assert str(error.value).endswith(said) and f"input 'x' of model '{datatype}' is {datatype}" in str(error.value)
    assert "pass" not in error.value.message and error.value.code == "InvalidArgument"
    # It is what the line says.
    line = said.split("pass ")[1].split(", ")[0]
    x = eval(line, {"x": value, "np": np, "ml_dtypes": pytest.importorskip("ml_dtypes")})
    client.infer(datatype, {"x": x})


def test_an_array_is_explained_to_a_server_with_few_words():
    with Stub("FP32") as stub:
        for attempt in (1, 2):
            with pytest.raises(InferenceError, match=r"bad request .*: pass x.astype\(np.float32\)"):
                Client(stub.url).infer("m", {"x": np.ones(1)})
            assert stub.calls == {"infer": attempt, "metadata": attempt}


def test_a_refusal_for_another_reason_stays_as_it_is(client):
    with pytest.raises(InferenceError) as error:
        client.infer("sums", {"x": np.ones((1, 4), np.float32)})
    assert error.value.message in str(error.value) and ";" not in str(error.value)
    with pytest.raises(InferenceError, match="expected shape") as error:
        client.infer("sums", {"x": [[1, 2]]})
    assert ";" not in str(error.value)


def test_a_name_that_is_not_there_suggests_the_nearest(client):
    x = np.ones((1, 3), np.float32)
    for call in (
        lambda: client.infer("sum", {"x": x}),
        lambda: client.infer("Sums", {"x": [[1, 2, 3]]}),
        lambda: client.model("sum"),
        lambda: client.config("sum"),
        lambda: client.statistics("sum"),
        lambda: client.is_model_ready("sum"),
    ):
        with pytest.raises(InferenceError, match="does not exist.*; did you mean 'sums'[?]$") as error:
            call()
        assert error.value.code == "NotFound" and "did you" not in error.value.message
    with pytest.raises(InferenceError, match="model 'sums' has no input 'X'; did you mean 'x'[?]$"):
        client.infer("sums", {"X": x})
    with pytest.raises(InferenceError, match="model 'sums' has no input 'X'; did you mean 'x'[?]$"):
        client.infer("sums", {"X": [[1, 2, 3]]})
    with pytest.raises(InferenceError, match="model 'sums' has no input 'pixels'; it has 'x'$"):
        client.infer("sums", {"pixels": x})
    with pytest.raises(InferenceError, match="model 'sums' has no output 'summ'; did you mean 'sum'[?]$"):
        client.infer("sums", {"x": x}, outputs=["summ"])
    with pytest.raises(KeyError, match="there is no output 'Sum'; did you mean 'sum'[?]"):
        client.infer("sums", {"x": x})["Sum"]
    with pytest.raises(InferenceError) as error:
        client.model("something else")
    assert "did you mean" not in str(error.value)


def test_an_awaited_client_suggests_names_too(server):
    async def run():
        client = AsyncClient(server.http_url)
        for call in (client.infer("sum", {"x": [[1, 2, 3]]}), client.model("sum"), client.request("sum", {})):
            with pytest.raises(InferenceError, match="; did you mean 'sums'[?]$"):
                await call
        with pytest.raises(InferenceError, match=r"pass x.astype\(np.float32\)$"):
            await client.infer("sums", {"x": np.ones((1, 3))})

    asyncio.run(run())
