"""``tritonclient.grpc`` over this package's own client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from ...._streams import received
from .. import _tensors
from .._calls import Calls, Headers, Seconds, exception
from .._plugin import InferenceServerClientPlugin, Request
from .._tensors import InferInput as _InferInput
from .._tensors import InferRequestedOutput as _InferRequestedOutput
from ..utils import *  # noqa: F403
from ..utils import InferenceServerException, raise_error

#: Called with ``result=`` and ``error=``, of which one is None.
Callback = Callable[..., object]

INT32_MAX = 2**31 - 1
MAX_GRPC_MESSAGE_SIZE = INT32_MAX


class InferInput(_InferInput):
    """An input: its name, shape and datatype, and then its data by :meth:`set_data_from_numpy`."""


class InferRequestedOutput(_InferRequestedOutput):
    """An output that is wanted; with ``class_count``, its highest classes instead of its values."""

    def __init__(self, name: str, class_count: int = 0) -> None:
        super().__init__(name, True, class_count)


class InferResult(_tensors.InferResult):
    """What a model answered."""

    def __init__(self, answer: tuple[Any, ...]) -> None:
        super().__init__(answer, is_grpc=True)


class CallContext:
    """A call that runs."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        """Ends it; its callback is told so."""
        self._cancel()


class KeepAliveOptions:
    """Taken and not needed: this client notices by itself when a connection is gone."""

    def __init__(
        self,
        keepalive_time_ms: int = INT32_MAX,
        keepalive_timeout_ms: int = 20000,
        keepalive_permit_without_calls: bool = False,
        http2_max_pings_without_data: int = 2,
    ) -> None:
        self.keepalive_time_ms = keepalive_time_ms
        self.keepalive_timeout_ms = keepalive_timeout_ms
        self.keepalive_permit_without_calls = keepalive_permit_without_calls
        self.http2_max_pings_without_data = http2_max_pings_without_data


class _GrpcCalls(Calls):
    """The calls as ``tritonclient.grpc`` spells them."""

    _is_grpc = True

    def __init__(
        self,
        url: str,
        ssl: bool = False,
        root_certificates: str | None = None,
        private_key: str | None = None,
        certificate_chain: str | None = None,
    ) -> None:
        certificate, key = _read(certificate_chain), _read(private_key)
        super().__init__(
            url,
            timeout=None,
            connect_timeout=20.0,
            ssl=ssl,
            authorities=_read(root_certificates),
            certificate=(certificate, key) if certificate is not None and key is not None else None,
        )

    def is_server_live(self, headers: Headers = None, client_timeout: Seconds = None) -> Any:
        """Whether the server answers."""
        return self._run(headers, "server_live", (), timeout=client_timeout)

    def is_server_ready(self, headers: Headers = None, client_timeout: Seconds = None) -> Any:
        """Whether the server wants requests."""
        return self._run(headers, "server_ready", (), timeout=client_timeout)

    def is_model_ready(
        self,
        model_name: str,
        model_version: str = "",
        headers: Headers = None,
        client_timeout: Seconds = None,
    ) -> Any:
        """Whether a model takes requests."""
        return self._is_model_ready(model_name, model_version, headers, client_timeout)

    def get_server_metadata(
        self, headers: Headers = None, as_json: bool = False, client_timeout: Seconds = None
    ) -> Any:
        """Name, version and extensions."""
        return self._metadata(headers, as_json, client_timeout)

    def get_model_metadata(
        self,
        model_name: str,
        model_version: str = "",
        headers: Headers = None,
        as_json: bool = False,
        client_timeout: Seconds = None,
    ) -> Any:
        """What a model takes and gives."""
        return self._model_metadata(model_name, model_version, headers, as_json, client_timeout)

    def get_model_config(
        self,
        model_name: str,
        model_version: str = "",
        headers: Headers = None,
        as_json: bool = False,
        client_timeout: Seconds = None,
    ) -> Any:
        """How a model is configured."""
        return self._model_config(model_name, model_version, headers, as_json, client_timeout)

    def get_model_repository_index(
        self, headers: Headers = None, as_json: bool = False, client_timeout: Seconds = None
    ) -> Any:
        """The models of the repository."""
        return self._index(headers, as_json, client_timeout)

    def load_model(
        self,
        model_name: str,
        headers: Headers = None,
        config: str | None = None,
        files: Mapping[str, bytes] | None = None,
        client_timeout: Seconds = None,
    ) -> Any:
        """Loads a model."""
        return self._load(model_name, headers, config, files, client_timeout)

    def unload_model(
        self,
        model_name: str,
        headers: Headers = None,
        unload_dependents: bool = False,
        client_timeout: Seconds = None,
    ) -> Any:
        """Unloads a model."""
        return self._unload(model_name, headers, unload_dependents, client_timeout)

    def get_inference_statistics(
        self,
        model_name: str = "",
        model_version: str = "",
        headers: Headers = None,
        as_json: bool = False,
        client_timeout: Seconds = None,
    ) -> Any:
        """What happened to requests."""
        return self._statistics(model_name, model_version, headers, as_json, client_timeout)

    def get_log_settings(
        self, headers: Headers = None, as_json: bool = False, client_timeout: Seconds = None
    ) -> Any:
        """The settings of the log."""
        return self._log_settings({}, headers, as_json, client_timeout)

    def update_log_settings(
        self,
        settings: Mapping[str, Any],
        headers: Headers = None,
        as_json: bool = False,
        client_timeout: Seconds = None,
    ) -> Any:
        """Changes settings of the log, and gives all of them."""
        return self._log_settings(settings, headers, as_json, client_timeout)

    def get_system_shared_memory_status(
        self,
        region_name: str = "",
        headers: Headers = None,
        as_json: bool = False,
        client_timeout: Seconds = None,
    ) -> Any:
        """The regions that are registered."""
        return self._shared_memory_status(region_name, headers, as_json, client_timeout)

    def register_system_shared_memory(
        self,
        name: str,
        key: str,
        byte_size: int,
        offset: int = 0,
        headers: Headers = None,
        client_timeout: Seconds = None,
    ) -> Any:
        """Registers a region."""
        return self._register(name, key, byte_size, offset, headers, client_timeout)

    def unregister_system_shared_memory(
        self, name: str = "", headers: Headers = None, client_timeout: Seconds = None
    ) -> Any:
        """Takes a region back, or all of them."""
        return self._unregister(name, headers, client_timeout)

    def get_cuda_shared_memory_status(
        self,
        region_name: str = "",
        headers: Headers = None,
        as_json: bool = False,
        client_timeout: Seconds = None,
    ) -> Any:
        """The regions of graphics cards' memory that are registered."""
        return self._cuda_memory_status(region_name, headers, as_json, client_timeout)

    def register_cuda_shared_memory(
        self,
        name: str,
        raw_handle: bytes | str,
        device_id: int,
        byte_size: int,
        headers: Headers = None,
        client_timeout: Seconds = None,
    ) -> Any:
        """Registers a region of a graphics card's memory by the handle of its driver, in base64."""
        return self._register_cuda(name, raw_handle, device_id, byte_size, headers, client_timeout)

    def unregister_cuda_shared_memory(
        self, name: str = "", headers: Headers = None, client_timeout: Seconds = None
    ) -> Any:
        """Takes a region of a graphics card's memory back, or all of them."""
        return self._unregister_cuda(name, headers, client_timeout)

    def get_trace_settings(
        self,
        model_name: str | None = None,
        headers: Headers = None,
        as_json: bool = False,
        client_timeout: Seconds = None,
    ) -> Any:
        """The settings of traces, of a model or of the server."""
        return self._trace_settings(model_name, {}, headers, as_json, client_timeout)

    def update_trace_settings(
        self,
        model_name: str | None = None,
        settings: Mapping[str, Any] = {},
        headers: Headers = None,
        as_json: bool = False,
        client_timeout: Seconds = None,
    ) -> Any:
        """Changes settings of traces, and gives all of them; None takes a change back."""
        return self._trace_settings(model_name, settings, headers, as_json, client_timeout)


def raise_error_grpc(rpc_error: Exception) -> NoReturn:
    """Raises an error of a call as :class:`InferenceServerException`."""
    raise exception(rpc_error, is_grpc=True) from None


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()


class InferenceServerClient(_GrpcCalls):
    """A client of one server: ``host:port``. Threads may share it.

    ``keepalive_options`` and ``channel_args`` are taken and not needed. Calls raise ``InferenceServerException``.
    """

    def __init__(
        self,
        url: str,
        verbose: bool = False,
        ssl: bool = False,
        root_certificates: str | None = None,
        private_key: str | None = None,
        certificate_chain: str | None = None,
        creds: object = None,
        keepalive_options: object = None,
        channel_args: object = None,
    ) -> None:
        if creds is not None:
            self._refuse("creds")
        super().__init__(url, ssl, root_certificates, private_key, certificate_chain)
        # Callbacks run here: they may take long, and make calls.
        self._callbacks: ThreadPoolExecutor | None = None
        self._stream: _Stream | None = None
        self._starting = threading.Lock()

    def __enter__(self) -> InferenceServerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None:
            # No more requests come. Its thread ends after the last response.
            stream.native.finish()

    def close(self) -> None:
        """Ends the stream and lets go of the connections."""
        self.stop_stream()
        self._connections.close()

    def infer(
        self,
        model_name: str,
        inputs: Sequence[_InferInput],
        model_version: str = "",
        outputs: Sequence[_InferRequestedOutput] | None = None,
        request_id: str = "",
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout: int | None = None,
        client_timeout: float | None = None,
        headers: Headers = None,
        compression_algorithm: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> InferResult:
        """Runs a model. ``timeout`` is for the server, in microseconds; ``client_timeout`` for this call, in seconds."""
        with self._translated():
            native = self._connection(headers, compression_algorithm, compression_algorithm is not None)
            request = self._request(
                model_name, inputs, model_version, outputs, request_id, sequence_id, sequence_start, sequence_end,
                priority, timeout, parameters,
            )  # fmt: skip
            return InferResult(native.infer(request, client_timeout))

    def async_infer(
        self,
        model_name: str,
        inputs: Sequence[_InferInput],
        callback: Callback,
        model_version: str = "",
        outputs: Sequence[_InferRequestedOutput] | None = None,
        request_id: str = "",
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout: int | None = None,
        client_timeout: float | None = None,
        headers: Headers = None,
        compression_algorithm: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> CallContext:
        """Runs a model; ``callback(result=..., error=...)`` is called from another thread when it has ended."""
        with self._starting:
            if self._callbacks is None:
                self._callbacks = ThreadPoolExecutor(4, thread_name_prefix="tensorferry-callback")
            pool = self._callbacks
        once = threading.Lock()

        def tell(result: InferResult | None, error: InferenceServerException | None) -> None:
            # The first to end the call tells of it, and nobody releases the lock.
            if once.acquire(blocking=False):
                pool.submit(callback, result=result, error=error)

        def told(error: Any, answer: Any) -> None:
            if error is not None:
                tell(None, exception(error, is_grpc=True))
            else:
                tell(InferResult(answer), None)

        with self._translated():
            native = self._connection(headers, compression_algorithm, compression_algorithm is not None)
            request = self._request(
                model_name, inputs, model_version, outputs, request_id, sequence_id, sequence_start, sequence_end,
                priority, timeout, parameters,
            )  # fmt: skip
            call = native.infer(request, client_timeout, callback=told)

        def cancel() -> None:
            call.cancel()
            tell(None, InferenceServerException("Locally cancelled by application!", "StatusCode.CANCELLED"))

        return CallContext(cancel)

    def start_stream(
        self,
        callback: Callback,
        stream_timeout: float | None = None,
        headers: Headers = None,
        compression_algorithm: str | None = None,
    ) -> None:
        """Opens the stream of this client; ``callback(result=..., error=...)`` is called for each response."""
        if self._stream is not None:
            raise_error("cannot start another stream with one already running")
        with self._translated():
            native = self._connection(headers, compression_algorithm, compression_algorithm is not None)
            self._stream = _Stream(native.stream(), callback, stream_timeout)

    def stop_stream(self, cancel_requests: bool = False) -> None:
        """Ends the stream: once all requests are answered, or at once with ``cancel_requests``."""
        if self._stream is not None:
            self._stream.stop(cancel_requests)
            self._stream = None

    def async_stream_infer(
        self,
        model_name: str,
        inputs: Sequence[_InferInput],
        model_version: str = "",
        outputs: Sequence[_InferRequestedOutput] | None = None,
        request_id: str = "",
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        enable_empty_final_response: bool = False,
        priority: int = 0,
        timeout: int | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Sends a request over the stream."""
        if self._stream is None:
            raise_error("stream not available, use start_stream() to make one available.")
        with self._translated():
            request = self._request(
                model_name, inputs, model_version, outputs, request_id, sequence_id, sequence_start, sequence_end,
                priority, timeout, parameters, enable_empty_final_response,
            )  # fmt: skip
            if not self._stream.native.send(request):
                raise_error("The stream is no longer in valid state, the error detail is reported through provided callback. "
                            "A new stream should be started after stopping the current stream.")  # fmt: skip


class _Stream:
    """A stream, and the thread that takes its responses."""

    def __init__(self, native: Any, callback: Callback, timeout: float | None) -> None:
        self.native = native
        self._callback = callback
        self._is_cancelled = False
        self._timer = threading.Timer(timeout, self._time_is_over) if timeout is not None else None
        self._thread = threading.Thread(target=self._listen, name="tensorferry-stream", daemon=True)
        self._thread.start()
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def _time_is_over(self) -> None:
        self._is_cancelled = True
        self.native.cancel()
        error = InferenceServerException("Deadline Exceeded", "StatusCode.DEADLINE_EXCEEDED")
        self._callback(result=None, error=error)

    def _listen(self) -> None:
        while True:
            try:
                answer = received(self.native)
            except Exception as error:
                if not self._is_cancelled:
                    self._callback(result=None, error=exception(error, is_grpc=True))
                continue
            if answer is None:
                if self._timer is not None:
                    self._timer.cancel()
                return
            self._callback(result=InferResult(answer), error=None)

    def stop(self, cancel_requests: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if cancel_requests:
            self._is_cancelled = True
            self.native.cancel()
        else:
            self.native.finish()
        if threading.current_thread() is not self._thread:
            self._thread.join()


__all__ = [
    "CallContext",
    "InferInput",
    "InferRequestedOutput",
    "InferResult",
    "InferenceServerClient",
    "InferenceServerClientPlugin",
    "InferenceServerException",
    "KeepAliveOptions",
    "MAX_GRPC_MESSAGE_SIZE",
    "Request",
]
