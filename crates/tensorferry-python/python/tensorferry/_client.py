"""Clients for servers of the Open Inference Protocol (KServe V2), over HTTP and gRPC, without grpcio and protobuf."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from . import _native
from ._models import ModelInfo, Parameter, Response, TensorInfo, read_outputs, read_response
from ._native import Client as NativeClient
from ._requests import Models, Request, Steps
from ._streams import AsyncStream, Stream, _wait, run, run_async
from ._tensors import Array


class _Base:
    """What both clients have in common: settings, and how requests and answers are spelled."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float | None = 60.0,
        connect_timeout: float = 5.0,
        headers: Mapping[str, str] | None = None,
        authorities: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        compress: str | None = None,
        accept_compressed: bool = False,
        attempts: int = 3,
        max_response_bytes: int = 256 << 20,
    ) -> None:
        if (certificate is None) != (key is None):
            raise ValueError("certificate and key must be given together, as paths of PEM files")
        identity = None
        if certificate is not None and key is not None:
            identity = (_read(certificate), _read(key))
        made = _native.Client(
            url,
            {
                "timeout": timeout,
                "connect_timeout": connect_timeout,
                "authorities": None if authorities is None else _read(authorities),
                "certificate": identity,
                "compress": compress,
                "accept_compressed": accept_compressed,
                "attempts": attempts,
                "max_response_bytes": max_response_bytes,
            },
        )
        self.url = url
        self._models = Models()
        self._made: NativeClient | None = made.with_headers(checked_headers(headers)) if headers else made

    @property
    def _native(self) -> NativeClient:
        if self._made is None:
            raise RuntimeError(f"the client of {self.url} is closed")
        return self._made

    def _about(self, model: str | None, method: Callable[..., Any], *arguments: Any) -> Steps[Any]:
        """A call about a model, or about all. The error for an unknown one says which is meant."""
        return self._models.about(self._native, model, method, *arguments)

    def _encoded(self, request: Request) -> Steps[tuple[Any, ...]]:
        """A request of a stream in the model's datatypes."""
        return self._models.encoded(self._native, request)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}{'' if self._made is not None else ', closed'})"


class Client(_Base):
    """A client for one server: ``http://host:8080``, ``grpc://host:9000``, ``https://``, ``grpcs://``.

    Threads may share it. It waits without the interpreter's lock.

    - ``timeout``: seconds for each call with all its attempts (None: no limit); ``connect_timeout`` for each connection.
    - ``headers``: sent with every call, such as ``{"authorization": "Bearer ..."}``; gRPC calls them metadata.
    - ``authorities``: a PEM file with the certificates that the server's must be signed by (the system's, if None);
      ``certificate`` and ``key``: PEM files that this client shows to servers that ask for a certificate.
    - ``compress``: ``"gzip"`` or ``"deflate"`` for requests; ``accept_compressed`` for responses.
    - ``attempts``: how often a call is made that the server refused for now or that was never sent (429, 503, no
      connection). An inference whose response broke off is not repeated.
    - ``max_response_bytes``: what a response may have, as it is sent and as tensors.

    Failures raise :class:`InferenceError`: its ``message`` is the server's own, its text also says the server and what was meant.
    ``with Client(url) as client`` closes it at the end; one that is dropped closes its connections too.
    """

    def close(self) -> None:
        """Closes the connections once the calls that run have ended. Later calls raise ``RuntimeError``."""
        self._made = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_live(self) -> bool:
        """Whether the server answers."""
        return bool(self._native.server_live())

    def is_ready(self) -> bool:
        """Whether the server wants requests."""
        return bool(self._native.server_ready())

    def is_model_ready(self, model: str, version: str | None = None) -> bool:
        """Whether a model takes requests."""
        return bool(run(self._about(model, self._native.model_ready, model, version)))

    def server(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        return _object(self._native.server_metadata())

    def model(self, model: str, version: str | None = None) -> ModelInfo:
        """What the server says about a model: versions, platform, inputs and outputs. What else a server says of it is dropped."""
        return run(self._models.info(self._native, model, version))

    def config(self, model: str, version: str | None = None) -> dict[str, Any]:
        """A model's configuration, in the form of config.pbtxt as JSON."""
        return _object(run(self._about(model, self._native.model_config, model, version)))

    def statistics(self, model: str | None = None, version: str | None = None) -> list[dict[str, Any]]:
        """What happened to requests since models were loaded: counts and nanoseconds for each version."""
        return _list(run(self._about(model, self._native.statistics, model, version)))

    def models(self) -> list[dict[str, Any]]:
        """The models of the server's repository: ``name``, ``version``, ``state`` and the ``reason`` of a failure. What else a server says
        of them is dropped."""
        return _index(self._native.repository_index())

    def load_model(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """Loads a model of the repository, or loads it again; with ``config`` instead of its config.pbtxt."""
        run(self._about(model, self._native.load_model, model, None if config is None else json.dumps(config)))
        self._models.forget(model)

    def unload_model(self, model: str) -> None:
        """Unloads a model."""
        run(self._about(model, self._native.unload_model, model))

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        outputs: Iterable[str] = (),
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Array]:
        """Runs a model.

        ``inputs`` are tensors by name:

        - An array (or what NumPy takes for one, such as a torch tensor) is sent in the datatype that it has. One that is row-major
          and little-endian is copied once, into the request, else twice. Of a masked array the mask is not sent.
        - A list of numbers (tuple, range, number) is sent in the model's datatype, of which the server is asked once for each
          model, and again when it refuses the request. Floats are rounded to it; a number that would become another one, such as
          1.5 for INT64 or 300 for INT8, is a ``ValueError``. Where the server says nothing of the model, it is INT64, FP64 or BOOL.
        - str and bytes, alone or in lists and arrays, are BYTES; str is sent as UTF-8.

        Returns the outputs by name, all of them unless ``outputs`` names some: read-only arrays over the response's own memory, not
        copied, and arrays of ``bytes`` objects for BYTES, which are copied. BF16 is that of ``ml_dtypes``, or typed bits where it is
        not installed. ``timeout`` (seconds) is for this call, the question about the model included, within the client's own.

        An error for a wrong name says which is the nearest, and for an array of another datatype the line that converts it; to know
        them costs a call or two after the one that failed.

        Raises :class:`InferenceError`; ``TypeError`` for an input that is no tensor of the protocol, ``ValueError`` for numbers.
        """
        request = Request(model, inputs, version, outputs, id, parameters)
        return read_outputs(run(self._models.infer(self._native, request, timeout)))

    def request(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        outputs: Iterable[str] = (),
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        timeout: float | None = None,
    ) -> Response:
        """As :meth:`infer`, and gives all that the server said: also the model's version, the id, and parameters of the response.
        Parameters of single outputs are dropped."""
        request = Request(model, inputs, version, outputs, id, parameters)
        return read_response(run(self._models.infer(self._native, request, timeout)))

    def stream(self) -> Stream:
        """Opens a stream (gRPC): requests go out and responses come back while it is open."""
        return Stream(self._native.stream(), self.url, self._encoded)

    def infer_stream(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        outputs: Iterable[str] = (),
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Iterator[dict[str, Array]]:
        """Runs a model that gives several responses to one request (gRPC): yields the outputs of each as it comes.

        A loop that is left early tells the server that nobody waits any more.
        """
        request = Request(model, inputs, version, outputs, id, _streaming(parameters))
        is_first = is_again = True
        while is_again:
            is_again = False
            try:
                with self.stream() as stream:
                    stream._send(request)
                    stream.finish()
                    for response in stream:
                        is_first = False
                        if response.outputs:
                            yield response.outputs
                        if response.parameters.get("triton_final_response") is True:
                            return
            except _native.InferenceError as error:
                is_again = run(self._models.explain(self._native, request, error)) and is_first
                if not is_again:
                    raise


class AsyncClient(_Base):
    """:class:`Client` for ``asyncio``: the same calls, to be awaited. A call that is cancelled ends at the server too."""

    # The signatures stand in both classes, and in both of _streams.py: editors and type checkers read there what to await.

    async def close(self) -> None:
        """Closes the connections once the calls that run have ended. Later calls raise ``RuntimeError``."""
        self._made = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def is_live(self) -> bool:
        """Whether the server answers."""
        return bool(await _wait(self._native.server_live))

    async def is_ready(self) -> bool:
        """Whether the server wants requests."""
        return bool(await _wait(self._native.server_ready))

    async def is_model_ready(self, model: str, version: str | None = None) -> bool:
        """Whether a model takes requests."""
        return bool(await run_async(self._about(model, self._native.model_ready, model, version)))

    async def server(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        return _object(await _wait(self._native.server_metadata))

    async def model(self, model: str, version: str | None = None) -> ModelInfo:
        """What the server says about a model."""
        return await run_async(self._models.info(self._native, model, version))

    async def config(self, model: str, version: str | None = None) -> dict[str, Any]:
        """A model's configuration, in the form of config.pbtxt as JSON."""
        return _object(await run_async(self._about(model, self._native.model_config, model, version)))

    async def statistics(self, model: str | None = None, version: str | None = None) -> list[dict[str, Any]]:
        """What happened to requests since models were loaded."""
        return _list(await run_async(self._about(model, self._native.statistics, model, version)))

    async def models(self) -> list[dict[str, Any]]:
        """The models of the server's repository."""
        return _index(await _wait(self._native.repository_index))

    async def load_model(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """Loads a model of the repository, or loads it again; with ``config`` instead of its config.pbtxt."""
        await run_async(self._about(model, self._native.load_model, model, None if config is None else json.dumps(config)))
        self._models.forget(model)

    async def unload_model(self, model: str) -> None:
        """Unloads a model."""
        await run_async(self._about(model, self._native.unload_model, model))

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        outputs: Iterable[str] = (),
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Array]:
        """As :meth:`Client.infer`."""
        request = Request(model, inputs, version, outputs, id, parameters)
        return read_outputs(await run_async(self._models.infer(self._native, request, timeout)))

    async def request(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        outputs: Iterable[str] = (),
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        timeout: float | None = None,
    ) -> Response:
        """As :meth:`Client.request`."""
        request = Request(model, inputs, version, outputs, id, parameters)
        return read_response(await run_async(self._models.infer(self._native, request, timeout)))

    def stream(self) -> AsyncStream:
        """Opens a stream (gRPC)."""
        return AsyncStream(self._native.stream(), self.url, self._encoded)

    async def infer_stream(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        outputs: Iterable[str] = (),
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> AsyncIterator[dict[str, Array]]:
        """As :meth:`Client.infer_stream`."""
        request = Request(model, inputs, version, outputs, id, _streaming(parameters))
        is_first = is_again = True
        while is_again:
            is_again = False
            try:
                async with self.stream() as stream:
                    await stream._send(request)
                    stream.finish()
                    async for response in stream:
                        is_first = False
                        if response.outputs:
                            yield response.outputs
                        if response.parameters.get("triton_final_response") is True:
                            return
            except _native.InferenceError as error:
                is_again = await run_async(self._models.explain(self._native, request, error)) and is_first
                if not is_again:
                    raise


def checked_headers(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Headers as the native half takes them. Raises ``TypeError`` that names the header."""
    for name, value in headers.items():
        if not isinstance(name, str):
            raise TypeError(f"headers: expected names that are str, found {name!r}")
        if not isinstance(value, str):
            raise TypeError(f"header {name!r}: expected str, found {value!r}")
    return list(headers.items())


def _read(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _object(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def _list(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    return found


def _index(text: str) -> list[dict[str, Any]]:
    return [
        {
            "name": model["name"],
            "version": model.get("version") or None,
            "state": model.get("state") or "",
            "reason": model.get("reason") or "",
        }
        for model in _list(text)
    ]


def _streaming(parameters: Mapping[str, Parameter] | None) -> dict[str, Parameter]:
    return {"triton_enable_empty_final_response": True, **(parameters or {})}


__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Client",
    "ModelInfo",
    "Response",
    "Stream",
    "TensorInfo",
]
