"""A client for servers of the Open Inference Protocol (KServe V2), over HTTP and gRPC, without grpcio and protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native
from ._dtypes import OIP, from_oip


@dataclass(frozen=True)
class TensorInfo:
    """A model's input or output: its name, the protocol's datatype, and its shape, with -1 for free dimensions."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelInfo:
    """What a server says about a model."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


class Client:
    """A client for one server: ``http://host:8080`` or ``grpc://host:9000``.

    Threads may share it. ``timeout`` is in seconds, for each call (None: no limit). Failures raise
    :class:`InferenceError` with the server's own message.
    """

    def __init__(
        self, url: str, *, timeout: float | None = 60.0, headers: Mapping[str, str] | None = None
    ) -> None:
        self._native = _native.Client(url, timeout, list((headers or {}).items()))
        self.url = url

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def is_live(self) -> bool:
        """Whether the server answers."""
        return self._native.server_live()

    def is_ready(self) -> bool:
        """Whether the server wants requests."""
        return self._native.server_ready()

    def is_model_ready(self, model: str, version: str | None = None) -> bool:
        """Whether a model takes requests."""
        return self._native.model_ready(model, version)

    def server(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        name, version, extensions = self._native.server_metadata()
        return {"name": name, "version": version, "extensions": extensions}

    def model(self, model: str, version: str | None = None) -> ModelInfo:
        """What the server says about a model."""
        versions, platform, inputs, outputs = self._native.model_metadata(model, version)

        def tensors(rows: Iterable[tuple[str, str, list[int]]]) -> tuple[TensorInfo, ...]:
            return tuple(TensorInfo(name, datatype, tuple(shape)) for name, datatype, shape in rows)

        return ModelInfo(model, tuple(versions), platform, tensors(inputs), tensors(outputs))

    def models(self) -> list[dict[str, Any]]:
        """The models of the server's repository, with version, state and the reason of a failure."""
        return [
            {"name": name, "version": version, "state": state, "reason": reason}
            for name, version, state, reason in self._native.models()
        ]

    def load_model(self, model: str) -> None:
        """Loads a model of the repository, or loads it again."""
        self._native.load_model(model)

    def unload_model(self, model: str) -> None:
        """Unloads a model."""
        self._native.unload_model(model)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        outputs: Iterable[str] = (),
    ) -> dict[str, np.ndarray]:
        """Runs a model.

        ``inputs`` are arrays by name, or what ``numpy.asarray`` takes; strings and bytes become BYTES. Returns the
        outputs by name, all of them unless ``outputs`` names some: read-only arrays over the response's own memory, and
        arrays of ``bytes`` objects for BYTES.
        """
        given = [(name, *_input(name, array)) for name, array in inputs.items()]
        response = self._native.infer(model, version, given, list(outputs))
        return {name: _output(datatype, shape, data) for name, datatype, shape, data in response}


def _input(name: str, value: Any) -> tuple[str, list[int], Any]:
    array = np.asarray(value)
    if array.dtype.kind in "USO":
        return "BYTES", list(array.shape), [_bytes(name, element) for element in array.reshape(-1)]
    try:
        datatype = OIP[array.dtype.name]
    except KeyError:
        raise TypeError(f"input {name!r}: dtype {array.dtype} is not one of the protocol's") from None
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return datatype, list(array.shape), np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _bytes(name: str, element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode()
    raise TypeError(f"input {name!r}: expected str or bytes, found {type(element).__name__}")


def _output(datatype: str, shape: list[int], data: Any) -> np.ndarray:
    if datatype != "BYTES":
        return np.frombuffer(data, dtype=from_oip(datatype)).reshape(shape)
    raw, elements, at = memoryview(data), [], 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 4], "little")
        elements.append(bytes(raw[at + 4 : at + 4 + length]))
        at += 4 + length
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)
