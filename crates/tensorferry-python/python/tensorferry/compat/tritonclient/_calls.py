"""The calls of all four clients. Each is written once: ``_run`` waits for it, or gives back a coroutine that does.

Only the signatures of ``infer`` and its variants stand in each client: they are tritonclient's, and programs, editors and type
checkers read them there.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Self

from ... import _native
from ..._requests import checked
from ..._streams import _wait
from ._plugin import InferenceServerClientPlugin, Request
from .utils import (
    TRITON_RESERVED_REQUEST_PARAMS,
    TRITON_RESERVED_REQUEST_PARAMS_PREFIX,
    InferenceServerException,
)

Headers = Mapping[str, str] | None
Seconds = float | None

_MAX_RESPONSE = (1 << 31) - 1


class NoConnection(InferenceServerException, ConnectionError):
    """No connection, or one that broke. Triton's client over HTTP raises the system's errors, which programs catch that wait for a
    server."""


class Refused(NoConnection, ConnectionRefusedError):
    """Nothing listens there."""


class OutOfTime(InferenceServerException, TimeoutError):
    """No answer in time."""


def exception(error: Exception, is_grpc: bool) -> InferenceServerException:
    """An error of this package as Triton's client raises it."""
    status = getattr(error, "status", None)
    text = getattr(error, "message", None) or str(error)
    kind = getattr(error, "kind", None)
    if not is_grpc:
        # The server may be the first to say it, since it is told how long this client waits.
        if kind == "Timeout" or getattr(error, "code", None) == "DeadlineExceeded":
            return OutOfTime(text, status)
        if kind in ("Connect", "Broken"):
            return Refused(text) if text.startswith("connection refused") else NoConnection(text)
    if status is None and is_grpc:
        status = {"Timeout": "DEADLINE_EXCEEDED", "Connect": "UNAVAILABLE", "Broken": "UNAVAILABLE"}.get(kind or "")
    if status is not None and is_grpc:
        status = f"StatusCode.{status}"
    return InferenceServerException(text, status)


class Connections:
    """The native clients behind one client, one for each kind of compression."""

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        self.url = url
        self._settings = settings
        self._natives: dict[tuple[str | None, bool], _native.Client] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def get(self, compress: str | None = None, accept_compressed: bool = False) -> _native.Client:
        """The client of this kind. Raises ``RuntimeError`` for one that is closed."""
        key = compress, accept_compressed
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the client of {self.url} is closed")
            found = self._natives.get(key)
            if found is None:
                settings = {**self._settings, "compress": compress, "accept_compressed": accept_compressed}
                found = self._natives[key] = _native.Client(self.url, settings)
            return found

    def close(self) -> None:
        """Lets go of all connections."""
        with self._lock:
            self._is_closed = True
            self._natives.clear()


class Calls:
    """What clients of both transports have. Results are plain values, or coroutines that give them."""

    _is_grpc = False

    def __init__(
        self,
        url: str,
        *,
        timeout: float | None,
        connect_timeout: float,
        ssl: bool,
        authorities: bytes | None = None,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        if "://" in url:
            raise InferenceServerException(f"url should not include the scheme: expected host:port, found {url!r}")
        scheme = ("grpc" if self._is_grpc else "http") + ("s" if ssl else "")
        settings = {
            "timeout": timeout,
            "connect_timeout": connect_timeout,
            "authorities": authorities,
            "certificate": certificate,
            # Triton's clients do not repeat calls.
            "attempts": 1,
            "max_response_bytes": _MAX_RESPONSE,
        }
        self._connections = Connections(f"{scheme}://{url}", settings)
        self._plugin: InferenceServerClientPlugin | None = None
        with self._translated():
            self._connections.get()

    def __repr__(self) -> str:
        return f"InferenceServerClient({self._connections.url!r})"

    def register_plugin(self, plugin: InferenceServerClientPlugin) -> None:
        """Has a plugin change the headers of every request from now on. There is at most one."""
        if self._plugin is not None:
            raise InferenceServerException("A plugin is already registered. Please unregister the previous plugin first before "
                                           "registering a new plugin.")  # fmt: skip
        self._plugin = plugin

    def plugin(self) -> InferenceServerClientPlugin | None:
        """The plugin that is registered, or None."""
        return self._plugin

    def unregister_plugin(self) -> None:
        """Takes the plugin back."""
        if self._plugin is None:
            raise InferenceServerException("No plugin has been registered.")
        self._plugin = None

    def _connection(
        self,
        headers: Mapping[str, str] | None,
        compress: str | None = None,
        accept_compressed: bool = False,
    ) -> _native.Client:
        """The client for a request with these headers, and those that the plugin adds."""
        if self._plugin is not None:
            request = Request(dict(headers or {}))
            self._plugin(request)
            headers = request.headers
        client = self._connections.get(compress, accept_compressed)
        if not headers:
            return client
        return client.with_headers([(name, str(value)) for name, value in headers.items()])

    def _translated(self) -> _Translated:
        return _Translated(self._is_grpc)

    def _run(
        self,
        headers: Mapping[str, str] | None,
        call: str,
        arguments: tuple[Any, ...],
        finish: Callable[[Any], Any] = lambda found: found,
        *,
        timeout: float | None = None,
        is_question: bool = False,
    ) -> Any:
        """Makes a call and gives what ``finish`` makes of its result; with ``is_question`` a refusal is False. Asynchronous clients
        override it."""
        try:
            with self._translated():
                found = getattr(self._connection(headers), call)(*arguments, timeout=timeout)
        except InferenceServerException as error:
            return _refusal(error, is_question)
        return finish(found)

    def _plain(self, found: Any, as_json: bool) -> Any:
        from ._tensors import message

        return message(found) if self._is_grpc and not as_json else found

    def _refuse(self, what: str) -> NoReturn:
        raise InferenceServerException(f"{what}: not supported by this client")

    # The calls, for subclasses to spell.

    def _is_model_ready(
        self, name: str, version: str, headers: Headers, timeout: Seconds = None, is_question: bool = False
    ) -> Any:
        return self._run(headers, "model_ready", (name, _version(version)), timeout=timeout, is_question=is_question)

    def _metadata(self, headers: Headers, as_json: bool, timeout: Seconds = None) -> Any:
        return self._run(
            headers, "server_metadata", (), lambda text: self._plain(json.loads(text), as_json), timeout=timeout
        )

    def _model_metadata(self, name: str, version: str, headers: Headers, as_json: bool, timeout: Seconds = None) -> Any:
        finish = lambda text: self._plain(json.loads(text), as_json)  # noqa: E731
        return self._run(headers, "model_metadata", (name, _version(version)), finish, timeout=timeout)

    def _model_config(self, name: str, version: str, headers: Headers, as_json: bool, timeout: Seconds = None) -> Any:
        def finish(text: str) -> Any:
            config = json.loads(text)
            if self._is_grpc:
                from .grpc.model_config_pb2 import numbered

                config = {"config": config if as_json else numbered(config)}
            return self._plain(config, as_json)

        return self._run(headers, "model_config", (name, _version(version)), finish, timeout=timeout)

    def _index(self, headers: Headers, as_json: bool, timeout: Seconds = None) -> Any:
        def finish(text: str) -> Any:
            models = json.loads(text)
            return self._plain({"models": models} if self._is_grpc else models, as_json)

        return self._run(headers, "repository_index", (), finish, timeout=timeout)

    def _load(
        self,
        name: str,
        headers: Headers,
        config: str | None,
        files: Mapping[str, bytes] | None,
        timeout: Seconds = None,
    ) -> Any:
        given = {}
        for path, content in (files or {}).items():
            if not path.startswith("file:"):
                raise InferenceServerException(f"files: expected names such as 'file:1/model.onnx', found {path!r}")
            given[path.removeprefix("file:")] = bytes(content)
        return self._run(headers, "load_model", (name, config, given), timeout=timeout)

    def _unload(self, name: str, headers: Headers, unload_dependents: bool, timeout: Seconds = None) -> Any:
        return self._run(headers, "unload_model", (name, unload_dependents), timeout=timeout)

    def _statistics(self, name: str, version: str, headers: Headers, as_json: bool, timeout: Seconds = None) -> Any:
        finish = lambda text: self._plain({"model_stats": json.loads(text)}, as_json)  # noqa: E731
        return self._run(headers, "statistics", (name or None, _version(version)), finish, timeout=timeout)

    def _log_settings(
        self, changes: Mapping[str, Any], headers: Headers, as_json: bool, timeout: Seconds = None
    ) -> Any:
        def finish(text: str) -> Any:
            found = json.loads(text)
            if self._is_grpc:
                field = {bool: "bool_param", int: "uint32_param", str: "string_param"}
                found = {"settings": {name: {field[type(value)]: value} for name, value in found.items()}}
            return self._plain(found, as_json)

        return self._run(headers, "log_settings", (json.dumps(dict(changes)),), finish, timeout=timeout)

    def _shared_memory_status(self, name: str, headers: Headers, as_json: bool, timeout: Seconds = None) -> Any:
        def finish(text: str) -> Any:
            regions = json.loads(text)
            if self._is_grpc:
                regions = {"regions": {region["name"]: region for region in regions}}
            return self._plain(regions, as_json)

        return self._run(headers, "shared_memory_status", (name or None,), finish, timeout=timeout)

    def _register(
        self, name: str, key: str, byte_size: int, offset: int, headers: Headers, timeout: Seconds = None
    ) -> Any:
        return self._run(headers, "register_shared_memory", (name, key, offset, byte_size), timeout=timeout)

    def _unregister(self, name: str, headers: Headers, timeout: Seconds = None) -> Any:
        return self._run(headers, "unregister_shared_memory", (name or None,), timeout=timeout)

    def _cuda_memory_status(self, name: str, headers: Headers, as_json: bool, timeout: Seconds = None) -> Any:
        def finish(text: str) -> Any:
            regions = json.loads(text)
            if self._is_grpc:
                regions = {"regions": {region["name"]: region for region in regions}}
            return self._plain(regions, as_json)

        return self._run(headers, "cuda_memory_status", (name or None,), finish, timeout=timeout)

    def _register_cuda(
        self,
        name: str,
        raw_handle: bytes | str,
        device_id: int,
        byte_size: int,
        headers: Headers,
        timeout: Seconds = None,
    ) -> Any:
        # Handles are given in base64.
        handle = base64.b64decode(raw_handle)
        return self._run(headers, "register_cuda_memory", (name, handle, device_id, byte_size), timeout=timeout)

    def _unregister_cuda(self, name: str, headers: Headers, timeout: Seconds = None) -> Any:
        return self._run(headers, "unregister_cuda_memory", (name or None,), timeout=timeout)

    def _trace_settings(
        self,
        model: str | None,
        changes: Mapping[str, Any],
        headers: Headers,
        as_json: bool,
        timeout: Seconds = None,
    ) -> Any:
        def finish(found: dict[str, list[str]]) -> Any:
            if self._is_grpc:
                settings = {"settings": {name: {"value": values} for name, values in found.items()}}
                return self._plain(settings, as_json)
            is_text = {name: name != "trace_level" and len(values) == 1 for name, values in found.items()}
            return {name: values[0] if is_text[name] else values for name, values in found.items()}

        given = {name: _texts(value) for name, value in changes.items()}
        return self._run(headers, "trace_settings", (model or None, given), finish, timeout=timeout)

    @staticmethod
    def _request(
        model_name: str,
        inputs: Sequence[Any],
        model_version: str,
        outputs: Sequence[Any] | None,
        request_id: str,
        sequence_id: int | str,
        sequence_start: bool,
        sequence_end: bool,
        priority: int,
        timeout: int | None,
        parameters: Mapping[str, Any] | None,
        is_final_response_wanted: bool = False,
    ) -> tuple[Any, ...]:
        """A request as the native half takes it."""
        version = _version(model_version)
        given = dict(parameters or {})
        for name in given:
            if name in TRITON_RESERVED_REQUEST_PARAMS or name.startswith(TRITON_RESERVED_REQUEST_PARAMS_PREFIX):
                raise InferenceServerException(f'Parameter "{name}" is a reserved parameter and cannot be specified.')
        if sequence_id not in (0, ""):
            given.update(sequence_id=sequence_id, sequence_start=sequence_start, sequence_end=sequence_end)
        if priority:
            given["priority"] = priority
        if timeout is not None:
            given["timeout"] = timeout
        if is_final_response_wanted:
            given["triton_enable_empty_final_response"] = True
        try:
            return checked(
                model_name,
                version,
                [tensor._native() for tensor in inputs],
                [output._native() for output in outputs or ()],
                request_id or None,
                given,
            )
        except (TypeError, ValueError) as error:
            raise InferenceServerException(str(error)) from None


def _version(version: str) -> str | None:
    if version is not None and not isinstance(version, str):
        raise InferenceServerException("model version must be a string")
    return version or None


def _refusal(error: InferenceServerException, is_question: bool) -> bool:
    if is_question and error.status() is not None:
        return False
    raise error


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]


class _Translated:
    """Raises this package's errors as Triton's client does."""

    def __init__(self, is_grpc: bool) -> None:
        self._is_grpc = is_grpc

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, (_native.InferenceError, ValueError)):
            raise exception(error, self._is_grpc) from error


class AsyncCalls(Calls):
    """:class:`Calls` whose results are coroutines."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets go of the connections."""
        self._connections.close()

    def _run(
        self,
        headers: Mapping[str, str] | None,
        call: str,
        arguments: tuple[Any, ...],
        finish: Callable[[Any], Any] = lambda found: found,
        *,
        timeout: float | None = None,
        is_question: bool = False,
    ) -> Any:
        async def run() -> Any:
            try:
                with self._translated():
                    method = partial(getattr(self._connection(headers), call), timeout=timeout)
                    found = await _wait(method, *arguments)
            except InferenceServerException as error:
                return _refusal(error, is_question)
            return finish(found)

        return run()

    async def _infer(self, native: Callable[[], _native.Client], request: Any, timeout: float | None) -> Any:
        with self._translated():
            return await _wait(native().infer, request, timeout)
