"""Tensor files of every format, a client for inference servers, and the programs ``oip-server`` and ``tensor``.

Files::

    from tensorferry import load_file, save_file, safe_open

    save_file({"w": array}, "model.zt", metadata={"license": "mit"})
    tensors = load_file("model.safetensors")          # any format, recognised by its content
    with safe_open("model.zt", framework="numpy") as f:
        rows = f.get_slice("w")[0:10]                  # reads only these rows

A server (Tensorferry's, Triton, MLServer, KServe)::

    from tensorferry import Client

    outputs = Client("grpc://localhost:9000").infer("digits", {"X": pixels})

``tensorferry serve MODELS`` runs the server, ``tensorferry inspect FILE`` and the like the tool ``tensor``.
"""

from ._client import Client, ModelInfo, TensorInfo
from ._files import (
    Slice,
    Tensor,
    convert,
    diff,
    formats,
    load,
    load_file,
    safe_open,
    save,
    save_file,
    verify,
)
from ._native import InferenceError, TensorFileError, __version__

__all__ = [
    "Client",
    "InferenceError",
    "ModelInfo",
    "Slice",
    "Tensor",
    "TensorFileError",
    "TensorInfo",
    "__version__",
    "convert",
    "diff",
    "formats",
    "load",
    "load_file",
    "safe_open",
    "save",
    "save_file",
    "verify",
]
