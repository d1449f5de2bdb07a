"""Tensor files of every format, a client for inference servers, and the programs ``oip-server`` and ``tensor``.

Files::

    from tensorferry import load_file, save_file, safe_open

    save_file({"w": array}, "model.safetensors", metadata={"license": "mit"})
    tensors = load_file("model.safetensors")          # any format, recognised by its content
    with safe_open("model.zt", framework="numpy") as f:
        rows = f.get_slice("w")[0:10]                  # reads only these rows

A server (Tensorferry's, Triton, MLServer, KServe)::

    from tensorferry import Client

    outputs = Client("grpc://localhost:9000").infer("digits", {"X": pixels})

``AsyncClient`` is the same for ``asyncio``; ``tensorferry.compat.tritonclient`` has the names of Triton's Python client.

A server in the same process, for tests and notebooks::

    with tensorferry.Server(models={"double": double, "digits": "digits.onnx"}) as server:
        server.client().infer("double", {"x": x})

``tensorferry serve MODELS`` runs the server, ``tensorferry inspect FILE`` and the like the tool ``tensor``.
"""

from typing import TYPE_CHECKING, Any

from ._client import AsyncClient, AsyncStream, Client, ModelInfo, Response, Stream, TensorInfo
from ._files import (
    Slice,
    Tensor,
    Writer,
    check_manifest,
    convert,
    diff,
    formats,
    load,
    load_file,
    manifest,
    safe_open,
    save,
    save_file,
    verify,
)
from ._native import InferenceError, TensorFileError, __version__

if TYPE_CHECKING:
    from ._server import ModelError, Server, model


def __getattr__(name: str) -> Any:
    # Imported when it is used: what it needs takes longer to import than all the rest.
    if name in ("ModelError", "Server", "model"):
        from . import _server

        return getattr(_server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Client",
    "InferenceError",
    "ModelError",
    "ModelInfo",
    "Response",
    "Server",
    "Slice",
    "Stream",
    "Tensor",
    "TensorFileError",
    "TensorInfo",
    "Writer",
    "__version__",
    "check_manifest",
    "convert",
    "diff",
    "formats",
    "load",
    "load_file",
    "manifest",
    "model",
    "safe_open",
    "save",
    "save_file",
    "verify",
]
