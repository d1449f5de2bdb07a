"""What a notebook shows of each public class."""

import asyncio
import importlib
import inspect
import os
from pathlib import Path

import numpy as np
import pytest

import tensorferry
import tensorferry_model
from tensorferry import AsyncClient, Client, Server, Writer, safe_open, save_file


@tensorferry.model(inputs={"x": ("FP32", [-1, 4])}, outputs={"sum": ("FP32", [-1]), "twice": ("FP32", [-1, 4])})
def sums(x):
    return {"sum": x.sum(axis=1), "twice": 2 * x}


@pytest.mark.parametrize("module", [tensorferry, tensorferry_model])
def test_each_public_class_says_what_it_is(module):
    classes = [value for value in (getattr(module, name) for name in module.__all__) if inspect.isclass(value)]
    assert classes and [found for found in classes if found.__repr__ is object.__repr__] == []


def test_clients_and_what_they_give():
    x = np.ones((1, 4), np.float32)
    with Server(models={"sums": sums}) as server:
        client = Client(server.grpc_url)
        assert repr(server) == f"Server('{server.url}': sums)"
        assert repr(client) == f"Client('{server.grpc_url}')"
        assert repr(client.model("sums")) == "ModelInfo('sums': x FP32[-1, 4] -> sum FP32[-1], twice FP32[-1, 4])"
        assert repr(client.model("sums").inputs[0]) == "TensorInfo('x', FP32[-1, 4])"
        assert repr(client.infer("sums", {"x": x}, outputs=["sum"])) == "{'sum': array([4.], dtype=float32)}"
        response = client.request("sums", {"x": np.ones((1000, 4), np.float32)})
        assert repr(response) == "Response('sums': sum float32[1000], twice float32[1000, 4])"
        assert repr(client.request("sums", {"x": x})) == "Response('sums': sum float32[1] [4.0], twice float32[1, 4] [[2.0, 2.0, 2.0, 2.0]])"
        with client.stream() as stream:
            assert repr(stream) == f"Stream('{server.grpc_url}')"
            stream.finish()
            assert repr(stream) == f"Stream('{server.grpc_url}', finished)"
        client.close()
        assert repr(client) == f"Client('{server.grpc_url}', closed)"

        async def run():
            async with AsyncClient(server.grpc_url) as waiting:
                assert repr(waiting) == f"AsyncClient('{server.grpc_url}')"
                assert repr(waiting.stream()) == f"AsyncStream('{server.grpc_url}')"

        asyncio.run(run())
    assert repr(server) == f"Server('{server.url}': sums, stopped)"


def test_a_model_with_versions_and_many_tensors():
    tensors = tuple(tensorferry.TensorInfo(f"t{number}", "INT8", ()) for number in range(10))
    info = tensorferry.ModelInfo("m", ("1", "2"), "onnx", tensors, ())
    assert repr(info) == (
        "ModelInfo('m', version 1, 2: t0 INT8[], t1 INT8[], t2 INT8[], t3 INT8[], t4 INT8[], t5 INT8[], ... 4 more -> nothing)"
    )


def test_files(tmp_path):
    path = str(tmp_path / "a.safetensors")
    save_file({"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.int8)}, path)
    with safe_open(path) as file:
        assert repr(file) == f"safe_open('{path}', safetensors, 2 tensors: w float32[2, 3], b int8[3])"
        assert repr(file["w"]) == "Tensor('w', float32[2, 3])"
        assert repr(file.get_slice("w")) == "Slice('w', float32[2, 3])"
    with Writer(path) as writer:
        assert repr(writer) == f"Writer('{path}', 0 tensors)"
        writer.add("w", np.ones(3))
        assert repr(writer) == f"Writer('{path}', 1 tensor)"
    assert repr(writer) == f"Writer('{path}', 1 tensor, closed)"


def test_what_a_model_is_told():
    context = tensorferry_model.Context("m", "1", "/models/m/1")
    assert repr(context) == "Context('m', version='1', folder='/models/m/1')"
    request = tensorferry_model.Request("7", {"a": 1}, ["y"])
    assert repr(request) == "Request(id='7', parameters={'a': 1}, outputs=['y'])"


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_names_of_tritons_client(transport):
    triton = importlib.import_module(f"tensorferry.compat.tritonclient.{transport}")
    with Server(models={"sums": sums}) as server:
        url = (server.http_url if transport == "http" else server.grpc_url).split("://")[1]
        client = triton.InferenceServerClient(url)
        tensor = triton.InferInput("x", [1, 4], "FP32").set_data_from_numpy(np.ones((1, 4), np.float32))
        output = triton.InferRequestedOutput("sum")
        result = client.infer("sums", [tensor], outputs=[output])
        assert repr(client) == f"InferenceServerClient('{transport}://{url}')"
        assert repr(tensor) == "InferInput('x', [1, 4], 'FP32')"
        assert repr(output) == "InferRequestedOutput('sum')"
        assert repr(result) == "InferResult('sums': sum FP32[1])"


def test_tensors_that_are_sparse_or_cannot_be_read():
    accepted = Path(os.environ["TENSORFERRY_CORPORA"]) / "fmt-btf" / "tests" / "corpus" / "accept"
    shown = {repr(safe_open(accepted / name)["0"]) for name in ("b1-dense-and-sparse.btf", "bt-13-layout-255-is-listed.btf")}
    assert shown == {"Tensor('0', int32[3], coo)", "Tensor('0', int8[2], unsupported)"}
