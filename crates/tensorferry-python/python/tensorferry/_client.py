"""Clients for servers of the Open Inference Protocol (KServe V2), over HTTP and gRPC, without grpcio and protobuf."""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._dtypes import OIP, dtype_name, from_oip
from ._native import Client as NativeClient

#: A parameter of a request or an output.
Parameter = bool | int | float | str
Array = NDArray[Any]


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


@dataclass(frozen=True)
class Response:
    """All that a server says in answer to a request: the outputs by name, which model and version ran, and parameters."""

    outputs: dict[str, Array]
    model: str
    version: str | None = None
    id: str | None = None
    parameters: dict[str, Parameter] = field(default_factory=dict)


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
            raise ValueError("certificate and key go together: both are paths of PEM files")
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
        self._made: NativeClient | None = made.with_headers(checked_headers(headers)) if headers else made

    @property
    def _native(self) -> NativeClient:
        if self._made is None:
            raise RuntimeError(f"the client of {self.url} is closed")
        return self._made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


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

    Failures raise :class:`InferenceError` with the server's own message. ``with Client(url) as client`` closes it at the end; one
    that is dropped closes its connections too.
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
        return bool(self._native.model_ready(model, version))

    def server(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        return _object(self._native.server_metadata())

    def model(self, model: str, version: str | None = None) -> ModelInfo:
        """What the server says about a model."""
        return _model_info(model, self._native.model_metadata(model, version))

    def config(self, model: str, version: str | None = None) -> dict[str, Any]:
        """A model's configuration, in the form of config.pbtxt as JSON."""
        return _object(self._native.model_config(model, version))

    def statistics(self, model: str | None = None, version: str | None = None) -> list[dict[str, Any]]:
        """What happened to requests since models were loaded: counts and nanoseconds for each version."""
        return _list(self._native.statistics(model, version))

    def models(self) -> list[dict[str, Any]]:
        """The models of the server's repository, with version, state and the reason of a failure."""
        return _index(self._native.repository_index())

    def load_model(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """Loads a model of the repository, or loads it again; with ``config`` instead of its config.pbtxt."""
        self._native.load_model(model, None if config is None else json.dumps(config))

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
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Array]:
        """Runs a model.

        ``inputs`` are arrays by name, or what ``numpy.asarray`` takes; strings and bytes become BYTES. Returns the
        outputs by name, all of them unless ``outputs`` names some: read-only arrays over the response's own memory, and
        arrays of ``bytes`` objects for BYTES. ``timeout`` (seconds) is for this call, within the client's own.

        Raises :class:`InferenceError`; ``TypeError`` for an input that is no tensor of the protocol.
        """
        request = _request(model, inputs, version, outputs, id, parameters)
        return _outputs(self._native.infer(request, timeout))

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
        """As :meth:`infer`, and gives all that the server said."""
        request = _request(model, inputs, version, outputs, id, parameters)
        return _response(self._native.infer(request, timeout))

    def stream(self) -> Stream:
        """Opens a stream (gRPC): requests go out and responses come back while it is open."""
        return Stream(self._native.stream())

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
        with self.stream() as stream:
            stream.send(model, inputs, version=version, outputs=outputs, id=id, parameters=_streaming(parameters))
            stream.finish()
            for response in stream:
                if response.outputs:
                    yield response.outputs
                if response.parameters.get("triton_final_response") is True:
                    return


class Stream:
    """Requests and responses over one stream. Responses come in any number and order; ``id`` tells whose they are.

    ::

        with client.stream() as stream:
            stream.send("words", {"text": lines}, id="1")
            stream.finish()
            for response in stream:
                print(response.id, response.outputs)

    One thread may send while another takes responses. A request that fails raises :class:`InferenceError` when its turn
    comes, and the stream goes on.
    """

    def __init__(self, native: _native.Stream) -> None:
        self._native = native
        self._is_finished = False

    def send(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        outputs: Iterable[str] = (),
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        """Sends a request; waits while 16 others have not been sent. Raises :class:`InferenceError` if the stream has ended, with its
        reason."""
        request = _request(model, inputs, version, outputs, id, parameters)
        if self._is_finished:
            raise _stream_over()
        if not self._native.send(request):
            self._native.wait()
            self._native.take_error()
            raise _stream_over()

    def finish(self) -> None:
        """Says that no more requests come; those that were sent are answered."""
        self._is_finished = True
        self._native.finish()

    def cancel(self) -> None:
        """Ends the stream at once."""
        self._native.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Response]:
        return self

    def __next__(self) -> Response:
        answer = received(self._native)
        if answer is None:
            raise StopIteration
        return _response(answer)


class AsyncClient(_Base):
    """:class:`Client` for ``asyncio``: the same calls, to be awaited. A call that is cancelled ends at the server too."""

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
        return bool(await _wait(self._native.model_ready, model, version))

    async def server(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        return _object(await _wait(self._native.server_metadata))

    async def model(self, model: str, version: str | None = None) -> ModelInfo:
        """What the server says about a model."""
        return _model_info(model, await _wait(self._native.model_metadata, model, version))

    async def config(self, model: str, version: str | None = None) -> dict[str, Any]:
        """A model's configuration, in the form of config.pbtxt as JSON."""
        return _object(await _wait(self._native.model_config, model, version))

    async def statistics(self, model: str | None = None, version: str | None = None) -> list[dict[str, Any]]:
        """What happened to requests since models were loaded."""
        return _list(await _wait(self._native.statistics, model, version))

    async def models(self) -> list[dict[str, Any]]:
        """The models of the server's repository."""
        return _index(await _wait(self._native.repository_index))

    async def load_model(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """Loads a model of the repository, or loads it again; with ``config`` instead of its config.pbtxt."""
        await _wait(self._native.load_model, model, None if config is None else json.dumps(config))

    async def unload_model(self, model: str) -> None:
        """Unloads a model."""
        await _wait(self._native.unload_model, model, False)

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
        request = _request(model, inputs, version, outputs, id, parameters)
        return _outputs(await _wait(self._native.infer, request, timeout))

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
        request = _request(model, inputs, version, outputs, id, parameters)
        return _response(await _wait(self._native.infer, request, timeout))

    def stream(self) -> AsyncStream:
        """Opens a stream (gRPC)."""
        return AsyncStream(self._native.stream())

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
        async with self.stream() as stream:
            await stream.send(
                model, inputs, version=version, outputs=outputs, id=id, parameters=_streaming(parameters)
            )
            stream.finish()
            async for response in stream:
                if response.outputs:
                    yield response.outputs
                if response.parameters.get("triton_final_response") is True:
                    return


class AsyncStream:
    """:class:`Stream` for ``asyncio``."""

    def __init__(self, native: _native.Stream) -> None:
        self._native = native
        self._is_finished = False

    async def send(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        outputs: Iterable[str] = (),
        id: str | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        """As :meth:`Stream.send`."""
        request = _request(model, inputs, version, outputs, id, parameters)
        if self._is_finished:
            raise _stream_over()
        if not await _wait(self._native.send, request):
            await _wait(self._native.wait)
            self._native.take_error()
            raise _stream_over()

    def finish(self) -> None:
        """Says that no more requests come; those that were sent are answered."""
        self._is_finished = True
        self._native.finish()

    def cancel(self) -> None:
        """Ends the stream at once."""
        self._native.cancel()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[Response]:
        return self

    async def __anext__(self) -> Response:
        answer = await awaited(self._native)
        if answer is None:
            raise StopAsyncIteration
        return _response(answer)


def received(stream: _native.Stream) -> tuple[Any, ...] | None:
    """The next answer of a stream, or None at its end."""
    while True:
        stream.wait()
        if (taken := stream.take()) is not None:
            return taken[0]


async def awaited(stream: _native.Stream) -> tuple[Any, ...] | None:
    """As :func:`received`. A wait that is cancelled loses no answer: it is taken afterwards, without another wait."""
    while True:
        await _wait(stream.wait)
        if (taken := stream.take()) is not None:
            return taken[0]


async def _wait(method: Callable[..., Any], *arguments: Any) -> Any:
    """Starts a native call and waits for its callback, which comes from another thread."""
    # Not above: programs that do not need it need not wait for it.
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(error: BaseException | None, value: Any) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def told(error: BaseException | None, value: Any) -> None:
        try:
            loop.call_soon_threadsafe(settle, error, value)
        except RuntimeError:
            # The loop was closed: nobody waits any more.
            pass

    call = method(*arguments, callback=told)
    try:
        return await future
    except asyncio.CancelledError:
        call.cancel()
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


def _model_info(name: str, text: str) -> ModelInfo:
    found = _object(text)

    def tensors(role: str) -> tuple[TensorInfo, ...]:
        rows = found.get(role) or ()
        return tuple(
            TensorInfo(row["name"], row["datatype"], tuple(int(dim) for dim in row["shape"])) for row in rows
        )

    versions = tuple(found.get("versions") or ())
    return ModelInfo(name, versions, found.get("platform") or "", tensors("inputs"), tensors("outputs"))


def _stream_over() -> _native.InferenceError:
    text = "the stream takes no more requests: it was finished, or it has ended"
    error = _native.InferenceError(text)
    error.kind, error.code, error.status, error.message, error.retry_after = "Usage", None, None, text, None
    return error


def _streaming(parameters: Mapping[str, Parameter] | None) -> dict[str, Parameter]:
    return {"triton_enable_empty_final_response": True, **(parameters or {})}


def _request(
    model: str,
    inputs: Mapping[str, Any],
    version: str | None,
    outputs: Iterable[str],
    id: str | None,
    parameters: Mapping[str, Parameter] | None,
) -> tuple[Any, ...]:
    given: list[Any] = [(name, *tensor(name, array), {}) for name, array in inputs.items()]
    if isinstance(outputs, str):
        # Its letters would be names.
        raise TypeError(f"outputs: expected names, found the text {outputs!r}")
    outputs = list(outputs)
    for name in outputs:
        if not isinstance(name, str):
            raise TypeError(f"outputs: expected names that are str, found {name!r}")
    return checked(model, version, given, [(name, {}) for name in outputs], id, dict(parameters or {}))


def checked(
    model: str, version: str | None, inputs: list[Any], outputs: list[Any], id: str | None, parameters: dict[str, Any]
) -> tuple[Any, ...]:
    """A request as the native half takes it. Raises ``TypeError`` and ``ValueError`` that name the argument."""
    for name, value in {"version": version, "id": id}.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name}: expected str or None, found {value!r}")
    parameters = {name: _parameter(name, value) for name, value in parameters.items()}
    return model, version, inputs, outputs, id, parameters


def _parameter(name: str, value: Any) -> Parameter:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"parameter {name!r}: expected bool, int, float or str, found {type(value).__name__}")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"parameter {name!r}: expected a whole number of 64 bits, found {value}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"parameter {name!r}: expected a finite number, found {value}")
    return value


def tensor(name: str, value: Any, role: str = "input") -> tuple[str, list[int], Any]:
    """A tensor as the native half takes it: the protocol's datatype, shape, and bytes, or elements of BYTES. Raises ``TypeError`` that
    names it."""
    array = np.asarray(value)
    if array.dtype.kind in "SU" and not isinstance(value, (np.ndarray, np.generic)):
        # NumPy's own texts lose zeros at the end, elements that are objects do not.
        array = np.asarray(value, dtype=object)
    if array.dtype.kind in "USO":
        place = f"{role} {name!r}"
        return "BYTES", list(array.shape), [_bytes(place, element) for element in array.reshape(-1)]
    try:
        datatype = OIP[dtype_name(array.dtype)]
    except KeyError:
        raise TypeError(f"{role} {name!r}: dtype {array.dtype} is not one of the protocol's") from None
    return datatype, list(array.shape), np.ascontiguousarray(little_endian(array)).reshape(-1).view(np.uint8)


def little_endian(array: Array) -> Array:
    """The same array, or a copy if its bytes stand the other way round."""
    return array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array


def _bytes(place: str, element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode()
    raise TypeError(f"{place}: expected str or bytes, found {type(element).__name__}")


def _outputs(answer: tuple[Any, ...]) -> dict[str, Array]:
    return {name: array(datatype, shape, data) for name, datatype, shape, data, _ in answer[4]}


def _response(answer: tuple[Any, ...]) -> Response:
    model, version, id, parameters, _ = answer
    return Response(_outputs(answer), model, version, id, parameters)


def array(datatype: str, shape: list[int], data: Any) -> Array:
    """A tensor's array over its bytes: read-only, without a copy; elements of BYTES are ``bytes`` objects."""
    if datatype != "BYTES":
        return np.frombuffer(data, dtype=from_oip(datatype)).reshape(shape)
    raw, elements, at = memoryview(data), [], 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 4], "little")
        elements.append(bytes(raw[at + 4 : at + 4 + length]))
        at += 4 + length
    found = np.empty(len(elements), dtype=object)
    found[:] = elements
    return found.reshape(shape)


__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Client",
    "ModelInfo",
    "Response",
    "Stream",
    "TensorInfo",
]
