"""``tritonclient.http`` over this package's own client."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from .. import _tensors
from .._calls import Calls, Headers, exception
from .._plugin import InferenceServerClientPlugin, Request
from .._tensors import InferInput, InferRequestedOutput, read_response, request_body
from ..utils import *  # noqa: F403
from ..utils import InferenceServerException, raise_error


class InferResult(_tensors.InferResult):
    """What a model answered."""

    def __init__(self, answer: tuple[Any, ...], typed: frozenset[str] = frozenset()) -> None:
        super().__init__(answer, is_grpc=False, typed=typed)

    @classmethod
    def from_response_body(
        cls,
        response_body: bytes,
        verbose: bool = False,
        header_length: int | None = None,
        content_encoding: str | None = None,
    ) -> InferResult:
        """A response that another client received: its body, and the values of the headers ``Inference-Header-Content-Length`` and
        ``Content-Encoding``, if it has them."""
        if content_encoding not in (None, "identity"):
            # "deflate" is zlib's format; 32 recognises gzip's as well.
            try:
                response_body = zlib.decompress(response_body, wbits=zlib.MAX_WBITS | 32)
            except zlib.error as error:
                raise_error(f"malformed response: {content_encoding}: {error}")
        return cls(*read_response(response_body, None if header_length is None else int(header_length)))


class InferAsyncRequest:
    """A request that runs."""

    def __init__(self, future: Future[Any], verbose: bool = False, typed: frozenset[str] = frozenset()) -> None:
        self._future = future
        self._typed = typed

    def get_result(self, block: bool = True, timeout: float | None = None) -> InferResult:
        """Waits for the result, at most ``timeout`` seconds; without ``block`` not at all."""
        try:
            answer = self._future.result(timeout if block else 0)
        except (FutureTimeout, CancelledError):
            raise_error("failed to obtain inference response")
        except Exception as error:
            raise exception(error, is_grpc=False) from None
        return InferResult(answer, self._typed)


def _typed(outputs: Sequence[InferRequestedOutput] | None) -> frozenset[str]:
    """The outputs that are to come as JSON."""
    return frozenset(output.name() for output in outputs or () if output._is_typed())


def _no_query(query_params: object) -> None:
    if query_params:
        raise_error("query_params: not supported by this client")


class _HttpCalls(Calls):
    """The calls as ``tritonclient.http`` spells them."""

    def __init__(
        self,
        url: str,
        verbose: bool = False,
        connection_timeout: float = 60.0,
        network_timeout: float | None = 60.0,
        ssl: bool = False,
        ssl_options: Mapping[str, Any] | None = None,
        insecure: bool = False,
    ) -> None:
        if insecure:
            self._refuse("insecure: servers whose certificates are not checked")
        options = dict(ssl_options or {})
        read = {name: _read(options.pop(name, None)) for name in ("ca_certs", "certfile", "keyfile")}
        if options:
            self._refuse(f"ssl_options {', '.join(sorted(options))}")
        certificate, key = read["certfile"], read["keyfile"]
        super().__init__(
            url,
            timeout=network_timeout,
            connect_timeout=connection_timeout,
            ssl=ssl,
            authorities=read["ca_certs"],
            certificate=(certificate, key) if certificate is not None and key is not None else None,
        )

    def is_server_live(self, headers: Headers = None, query_params: object = None) -> Any:
        """Whether the server answers, and by 200."""
        _no_query(query_params)
        return self._run(headers, "server_live", (), is_question=True)

    def is_server_ready(self, headers: Headers = None, query_params: object = None) -> Any:
        """Whether the server wants requests."""
        _no_query(query_params)
        return self._run(headers, "server_ready", (), is_question=True)

    def is_model_ready(
        self, model_name: str, model_version: str = "", headers: Headers = None, query_params: object = None
    ) -> Any:
        """Whether a model takes requests; False for one that does not exist."""
        _no_query(query_params)
        return self._is_model_ready(model_name, model_version, headers, is_question=True)

    def get_server_metadata(self, headers: Headers = None, query_params: object = None) -> Any:
        """Name, version and extensions."""
        _no_query(query_params)
        return self._metadata(headers, True)

    def get_model_metadata(
        self, model_name: str, model_version: str = "", headers: Headers = None, query_params: object = None
    ) -> Any:
        """What a model takes and gives."""
        _no_query(query_params)
        return self._model_metadata(model_name, model_version, headers, True)

    def get_model_config(
        self, model_name: str, model_version: str = "", headers: Headers = None, query_params: object = None
    ) -> Any:
        """How a model is configured."""
        _no_query(query_params)
        return self._model_config(model_name, model_version, headers, True)

    def get_model_repository_index(self, headers: Headers = None, query_params: object = None) -> Any:
        """The models of the repository."""
        _no_query(query_params)
        return self._index(headers, True)

    def load_model(
        self,
        model_name: str,
        headers: Headers = None,
        query_params: object = None,
        config: str | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Any:
        """Loads a model."""
        _no_query(query_params)
        return self._load(model_name, headers, config, files)

    def unload_model(
        self,
        model_name: str,
        headers: Headers = None,
        query_params: object = None,
        unload_dependents: bool = False,
    ) -> Any:
        """Unloads a model."""
        _no_query(query_params)
        return self._unload(model_name, headers, unload_dependents)

    def get_inference_statistics(
        self, model_name: str = "", model_version: str = "", headers: Headers = None, query_params: object = None
    ) -> Any:
        """What happened to requests."""
        _no_query(query_params)
        return self._statistics(model_name, model_version, headers, True)

    def get_log_settings(self, headers: Headers = None, query_params: object = None) -> Any:
        """The settings of the log."""
        _no_query(query_params)
        return self._log_settings({}, headers, True)

    def update_log_settings(
        self, settings: Mapping[str, Any], headers: Headers = None, query_params: object = None
    ) -> Any:
        """Changes settings of the log, and gives all of them."""
        _no_query(query_params)
        return self._log_settings(settings, headers, True)

    def get_system_shared_memory_status(
        self, region_name: str = "", headers: Headers = None, query_params: object = None
    ) -> Any:
        """The regions that are registered."""
        _no_query(query_params)
        return self._shared_memory_status(region_name, headers, True)

    def register_system_shared_memory(
        self, name: str, key: str, byte_size: int, offset: int = 0, headers: Headers = None, query_params: object = None
    ) -> Any:
        """Registers a region."""
        _no_query(query_params)
        return self._register(name, key, byte_size, offset, headers)

    def unregister_system_shared_memory(
        self, name: str = "", headers: Headers = None, query_params: object = None
    ) -> Any:
        """Takes a region back, or all of them."""
        _no_query(query_params)
        return self._unregister(name, headers)

    def get_cuda_shared_memory_status(
        self, region_name: str = "", headers: Headers = None, query_params: object = None
    ) -> Any:
        """The regions of graphics cards' memory that are registered."""
        _no_query(query_params)
        return self._cuda_memory_status(region_name, headers, True)

    def register_cuda_shared_memory(
        self,
        name: str,
        raw_handle: bytes | str,
        device_id: int,
        byte_size: int,
        headers: Headers = None,
        query_params: object = None,
    ) -> Any:
        """Registers a region of a graphics card's memory by the handle of its driver, in base64."""
        _no_query(query_params)
        return self._register_cuda(name, raw_handle, device_id, byte_size, headers)

    def unregister_cuda_shared_memory(
        self, name: str = "", headers: Headers = None, query_params: object = None
    ) -> Any:
        """Takes a region of a graphics card's memory back, or all of them."""
        _no_query(query_params)
        return self._unregister_cuda(name, headers)

    def get_trace_settings(
        self, model_name: str | None = None, headers: Headers = None, query_params: object = None
    ) -> Any:
        """The settings of traces, of a model or of the server."""
        _no_query(query_params)
        return self._trace_settings(model_name, {}, headers, True)

    def update_trace_settings(
        self,
        model_name: str | None = None,
        settings: Mapping[str, Any] = {},
        headers: Headers = None,
        query_params: object = None,
    ) -> Any:
        """Changes settings of traces, and gives all of them; None takes a change back."""
        _no_query(query_params)
        return self._trace_settings(model_name, settings, headers, True)

    @staticmethod
    def generate_request_body(
        inputs: Sequence[InferInput],
        outputs: Sequence[InferRequestedOutput] | None = None,
        request_id: str = "",
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout: int | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> tuple[bytes, int | None]:
        """The body of a request that another client is to send, and how many bytes of it are JSON, which is the header
        ``Inference-Header-Content-Length``; None if all are."""
        given = Calls._request(
            "any", inputs, "", outputs, request_id, sequence_id, sequence_start, sequence_end, priority, timeout,
            parameters,
        )  # fmt: skip
        body: tuple[bytes, int | None] = request_body(inputs, outputs or (), given)
        return body

    @staticmethod
    def parse_response_body(
        response_body: bytes,
        verbose: bool = False,
        header_length: int | None = None,
        content_encoding: str | None = None,
    ) -> InferResult:
        """As :meth:`InferResult.from_response_body`."""
        return InferResult.from_response_body(response_body, verbose, header_length, content_encoding)

    def _prepared(
        self,
        headers: Headers,
        query_params: object,
        request_compression_algorithm: str | None,
        response_compression_algorithm: str | None,
    ) -> Any:
        _no_query(query_params)
        return self._connection(headers, request_compression_algorithm, response_compression_algorithm is not None)


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()


class InferenceServerClient(_HttpCalls):
    """A client of one server: ``host:port``. Threads may share it.

    ``concurrency`` and ``max_greenlets`` are taken and not needed. With ``ssl``, ``ssl_options`` may have ``ca_certs``,
    ``certfile`` and ``keyfile``. Calls raise ``InferenceServerException``.
    """

    def __init__(
        self,
        url: str,
        verbose: bool = False,
        concurrency: int = 1,
        connection_timeout: float = 60.0,
        network_timeout: float = 60.0,
        max_greenlets: int | None = None,
        ssl: bool = False,
        ssl_options: Mapping[str, Any] | None = None,
        ssl_context_factory: object = None,
        insecure: bool = False,
    ) -> None:
        if ssl_context_factory is not None:
            self._refuse("ssl_context_factory")
        super().__init__(url, verbose, connection_timeout, network_timeout, ssl, ssl_options, insecure)

    def __enter__(self) -> InferenceServerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the connections."""
        self._connections.close()

    def infer(
        self,
        model_name: str,
        inputs: Sequence[InferInput],
        model_version: str = "",
        outputs: Sequence[InferRequestedOutput] | None = None,
        request_id: str = "",
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout: int | None = None,
        headers: Headers = None,
        query_params: object = None,
        request_compression_algorithm: str | None = None,
        response_compression_algorithm: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> InferResult:
        """Runs a model. ``timeout`` is for the server, in microseconds."""
        with self._translated():
            native = self._prepared(
                headers, query_params, request_compression_algorithm, response_compression_algorithm
            )
            request = self._request(
                model_name, inputs, model_version, outputs, request_id, sequence_id, sequence_start, sequence_end,
                priority, timeout, parameters,
            )  # fmt: skip
            return InferResult(native.infer(request), _typed(outputs))

    def async_infer(
        self,
        model_name: str,
        inputs: Sequence[InferInput],
        model_version: str = "",
        outputs: Sequence[InferRequestedOutput] | None = None,
        request_id: str = "",
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout: int | None = None,
        headers: Headers = None,
        query_params: object = None,
        request_compression_algorithm: str | None = None,
        response_compression_algorithm: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> InferAsyncRequest:
        """Runs a model; :meth:`InferAsyncRequest.get_result` waits for the result."""
        future: Future[Any] = Future()

        def told(error: BaseException | None, answer: Any) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(answer)

        with self._translated():
            native = self._prepared(
                headers, query_params, request_compression_algorithm, response_compression_algorithm
            )
            request = self._request(
                model_name, inputs, model_version, outputs, request_id, sequence_id, sequence_start, sequence_end,
                priority, timeout, parameters,
            )  # fmt: skip
            native.infer(request, callback=told)
        return InferAsyncRequest(future, typed=_typed(outputs))


__all__ = [
    "InferAsyncRequest",
    "InferInput",
    "InferRequestedOutput",
    "InferResult",
    "InferenceServerClient",
    "InferenceServerClientPlugin",
    "InferenceServerException",
    "Request",
]
