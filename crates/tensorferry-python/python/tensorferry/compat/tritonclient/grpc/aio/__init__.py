"""``tritonclient.grpc.aio`` over this package's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ....._streams import _wait, awaited
from ..._calls import AsyncCalls, Headers, exception
from ..._plugin import InferenceServerClientPlugin, Request
from ..._tensors import InferInput as _InferInput
from ..._tensors import InferRequestedOutput as _InferRequestedOutput
from ...utils import *  # noqa: F403
from ...utils import InferenceServerException, raise_error
from .. import (
    MAX_GRPC_MESSAGE_SIZE,
    InferInput,
    InferRequestedOutput,
    InferResult,
    KeepAliveOptions,
    _GrpcCalls,
    model_config_pb2,
    raise_error_grpc,
    service_pb2,
)
from . import auth


class InferenceServerClient(AsyncCalls, _GrpcCalls):
    """The asynchronous client of one server: ``host:port``; each call is to be awaited."""

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
        _GrpcCalls.__init__(self, url, ssl, root_certificates, private_key, certificate_chain)

    async def infer(
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
        return InferResult(await self._infer(lambda: native, request, client_timeout))

    def stream_infer(
        self,
        inputs_iterator: AsyncIterator[dict[str, Any]],
        stream_timeout: float | None = None,
        headers: Headers = None,
        compression_algorithm: str | None = None,
    ) -> ResponseIterator:
        """Sends the requests that the iterator gives; ``async for`` over what this gives yields ``(result, error)`` for each response,
        and its ``cancel()`` ends the stream."""
        with self._translated():
            native = self._connection(headers, compression_algorithm, compression_algorithm is not None)
        return ResponseIterator(self, native.stream(), inputs_iterator, stream_timeout)


#: What a request over a stream may leave out.
_DEFAULTS = {
    "model_version": "",
    "outputs": None,
    "request_id": "",
    "sequence_id": 0,
    "sequence_start": False,
    "sequence_end": False,
    "priority": 0,
    "timeout": None,
    "parameters": None,
}


class ResponseIterator:
    """The responses of a stream, and the task that sends its requests."""

    def __init__(
        self, client: AsyncCalls, stream: Any, requests: AsyncIterator[dict[str, Any]], timeout: float | None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._client = client
        self._stream = stream
        self._timeout = timeout
        self._deadline = None if timeout is None else loop.time() + timeout
        self._sending = loop.create_task(self._send(requests))
        self._is_cancelled = False

    def __aiter__(self) -> ResponseIterator:
        return self

    async def __anext__(self) -> tuple[InferResult | None, InferenceServerException | None]:
        try:
            async with asyncio.timeout_at(self._deadline):
                answer = await awaited(self._stream)
        except TimeoutError:
            self._end()
            raise InferenceServerException("Deadline Exceeded", "StatusCode.DEADLINE_EXCEEDED") from None
        except Exception as error:
            if self._is_cancelled:
                raise asyncio.CancelledError from None
            return None, exception(error, is_grpc=True)
        if answer is not None:
            return InferResult(answer), None
        if self._is_cancelled:
            raise asyncio.CancelledError
        # A request that could not be sent is the caller's to know.
        await self._sending
        raise StopAsyncIteration

    def cancel(self) -> bool:
        """Ends the stream; whether it ran. Who waits for a response gets ``asyncio.CancelledError``."""
        is_first = not self._is_cancelled
        self._is_cancelled = True
        self._end()
        return is_first

    def __del__(self) -> None:
        self._stream.cancel()

    def _end(self) -> None:
        self._stream.cancel()
        self._sending.cancel()

    async def _send(self, requests: AsyncIterator[dict[str, Any]]) -> None:
        try:
            async for given in requests:
                if not isinstance(given, dict):
                    raise_error("inputs_iterator is not yielding a dict")
                if "model_name" not in given or "inputs" not in given:
                    raise_error("model_name and/or inputs is missing from inputs_iterator's yielded dict")
                spelled = {**_DEFAULTS, **given}
                spelled["is_final_response_wanted"] = spelled.pop("enable_empty_final_response", False)
                with self._client._translated():
                    await _wait(self._stream.send, self._client._request(**spelled))
        finally:
            self._stream.finish()


__all__ = [
    "MAX_GRPC_MESSAGE_SIZE",
    "InferInput",
    "InferRequestedOutput",
    "InferResult",
    "InferenceServerClient",
    "InferenceServerClientPlugin",
    "InferenceServerException",
    "KeepAliveOptions",
    "Request",
    "auth",
    "model_config_pb2",
    "raise_error_grpc",
    "service_pb2",
]
