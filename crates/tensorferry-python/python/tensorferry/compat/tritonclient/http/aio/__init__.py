"""``tritonclient.http.aio`` over this package's own client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..._calls import AsyncCalls, Headers
from ..._plugin import InferenceServerClientPlugin, Request
from ...utils import *  # noqa: F403
from ...utils import InferenceServerException
from .. import InferInput, InferRequestedOutput, InferResult, _HttpCalls, _no_query, _typed
from . import auth


class InferenceServerClient(AsyncCalls, _HttpCalls):
    """The asynchronous client of one server: ``host:port``; each call is to be awaited."""

    def __init__(
        self,
        url: str,
        verbose: bool = False,
        conn_limit: int = 100,
        conn_timeout: float = 60.0,
        ssl: bool = False,
        ssl_context: object = None,
    ) -> None:
        if ssl_context is not None:
            self._refuse("ssl_context")
        _HttpCalls.__init__(self, url, verbose, conn_timeout, None, ssl)

    async def infer(
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
        return InferResult(await self._infer(lambda: native, request, None), _typed(outputs))


__all__ = [
    "InferInput",
    "InferRequestedOutput",
    "InferResult",
    "InferenceServerClient",
    "InferenceServerClientPlugin",
    "InferenceServerException",
    "Request",
    "auth",
]
