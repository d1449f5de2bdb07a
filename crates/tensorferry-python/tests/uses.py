"""What a program with types does with the package; mypy and pyright read it, and nobody runs it."""

import asyncio
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

import tensorferry
import tensorferry.numpy
import tensorferry.torch
import tensorferry.compat.tritonclient.grpc as grpcclient
import tensorferry.compat.tritonclient.http as httpclient
from tensorferry.compat.tritonclient.http.auth import BasicAuth
from tensorferry.compat.tritonclient.utils import shared_memory
from tensorferry import AsyncClient, Client, Server, Writer, load_file, safe_open, save_file
from tensorferry_model import Context, InferenceError, Request


def files() -> float:
    weights: dict[str, NDArray[np.float32]] = {"w": np.zeros((2, 3), np.float32)}
    length: int = save_file(weights, "a.zt")
    with Writer("b.safetensors") as writer:
        writer.add("w", weights["w"])
    with safe_open("a.zt", framework="numpy", mmap=True) as file:
        for name, tensor in file.items():
            print(name, tensor.shape, tensor.view().dtype, file.get_slice(name)[0:1])
    tensorferry.numpy.save_file(weights, "c.safetensors", {"license": "mit"})
    tensorferry.torch.save_model(object(), "d.safetensors", force_contiguous=True)
    mode: dict[str, str] | None = safe_open("a.zt").metadata()
    print(mode, tensorferry.torch.load_file("a.zt", device="cpu"), safe_open("a.zt").get_slice("w").get_dtype())
    differences: list[dict[str, str]] = tensorferry.diff("a.zt", "b.safetensors")
    return float(load_file("a.zt")["w"].sum()) + length + len(differences)


def closed() -> bool:
    with Client("unix:///run/oip.sock") as client:
        return client.is_live()


def calls(client: Client) -> list[str]:
    outputs = client.infer("digits", {"X": np.zeros((1, 64), np.float32)}, timeout=2.0)
    response = client.request("digits", {"X": [[0.0] * 64]}, id="1", parameters={"priority": 1})
    label: NDArray[np.int64] = response.outputs["label"]
    print(client.infer("digits", {"X": (1, 2.5)}), label)
    with client.stream() as stream:
        stream.send("words", {"text": ["a b"]})
        stream.finish()
        for answer in stream:
            print(answer.id, answer.outputs["words"].shape)
    return [info.name for info in client.model("digits").inputs] + list(outputs) + [response.model]


async def awaited() -> int:
    client = AsyncClient("grpc://localhost:9000", authorities=None)
    answers = await asyncio.gather(*(client.infer("digits", {"X": np.zeros((1, 64))}) for _ in range(3)))
    async for outputs in client.infer_stream("words", {"text": ["a"]}):
        print(outputs["words"])
    return len(answers)


@tensorferry.model(inputs={"x": ("FP32", [-1])}, outputs={"y": ("FP32", [-1])})
def double(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return x + x


class Counting:
    inputs = {"count": {"datatype": "INT64", "shape": [1]}}
    outputs = {"y": ("INT64", [1])}

    def __init__(self, context: Context) -> None:
        self.name = context.name

    def infer(self, count: NDArray[np.int64], request: Request) -> Iterator[list[int]]:
        if request.is_cancelled():
            raise InferenceError(f"{self.name} is cancelled", status=499)
        yield from ([number] for number in range(int(count[0])))


def serve() -> str:
    with Server(models={"double": double, "digits": "digits.onnx", "counting": Counting}) as server:
        return server.url


def triton() -> None:
    for module in (httpclient, grpcclient):
        client = module.InferenceServerClient("localhost:8000")
        tensor = module.InferInput("x", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        result = client.infer("double", [tensor], outputs=[module.InferRequestedOutput("y")])
        print(result.as_numpy("y"))
        client.register_plugin(BasicAuth("name", "password"))
        region = shared_memory.create_shared_memory_region("r", "/r", 4)
        shared_memory.set_shared_memory_region(region, [np.zeros(1, np.float32)])
        client.register_system_shared_memory("r", "/r", 4)
        tensor.set_shared_memory("r", 4)
        shared_memory.destroy_shared_memory_region(region)
