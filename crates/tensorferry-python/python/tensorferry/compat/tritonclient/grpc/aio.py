"""``tritonclient.grpc.aio`` over this package's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ...._client import _wait
from .._calls import AsyncCalls, exception
from .._tensors import InferInput as _InferInput
from .._tensors import InferRequestedOutput as _InferRequestedOutput
from ..utils import InferenceServerException
from . import Headers, InferInput, InferRequestedOutput, InferResult, _GrpcCalls


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

    async def __aenter__(self) -> InferenceServerClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets go of the connections."""
        self._connections.close()

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
            native = self._connections.get(headers, compression_algorithm, compression_algorithm is not None)
            request = self._request(
                model_name, inputs, model_version, outputs, request_id, sequence_id, sequence_start, sequence_end,
                priority, timeout, parameters,
            )  # fmt: skip
        return InferResult(await self._infer(lambda: native, request, client_timeout))

    async def stream_infer(
        self,
        inputs_iterator: AsyncIterator[dict[str, Any]],
        stream_timeout: float | None = None,
        headers: Headers = None,
        compression_algorithm: str | None = None,
    ) -> AsyncIterator[tuple[InferResult | None, InferenceServerException | None]]:
        """Sends the requests that the iterator gives, and yields ``(result, error)`` for each response."""
        with self._translated():
            native = self._connections.get(headers, compression_algorithm, compression_algorithm is not None)
        stream = native.stream()

        async def send() -> None:
            try:
                async for given in inputs_iterator:
                    given = dict(given)
                    parameters = dict(given.pop("parameters", None) or {})
                    if given.pop("enable_empty_final_response", False):
                        parameters["triton_enable_empty_final_response"] = True
                    spelled = {
                        "model_version": "", "outputs": None, "request_id": "", "sequence_id": 0,
                        "sequence_start": False, "sequence_end": False, "priority": 0, "timeout": None, **given,
                    }  # fmt: skip
                    with self._translated():
                        await _wait(stream.send, self._request(**spelled, parameters=parameters))
            finally:
                stream.finish()

        sending = asyncio.ensure_future(send())
        try:
            async with asyncio.timeout(stream_timeout):
                while True:
                    try:
                        answer = await _wait(stream.receive)
                    except Exception as error:
                        yield None, exception(error, is_grpc=True)
                        continue
                    if answer is None:
                        break
                    yield InferResult(answer), None
            await sending
        except TimeoutError:
            raise InferenceServerException("Deadline Exceeded", "StatusCode.DEADLINE_EXCEEDED") from None
        finally:
            stream.cancel()
            sending.cancel()


__all__ = ["InferInput", "InferRequestedOutput", "InferResult", "InferenceServerClient", "InferenceServerException"]
