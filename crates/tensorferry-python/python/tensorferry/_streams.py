"""Streams of requests and responses (gRPC), and how native calls are awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from . import _native
from ._models import Parameter, Response, read_response
from ._requests import Request, Steps, Value


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

    def __init__(
        self, native: _native.Stream, url: str = "", encoded: Callable[[Request], Steps[tuple[Any, ...]]] | None = None
    ) -> None:
        self._native = native
        self._url = url
        self._encoded = encoded or _in_own_datatypes
        self._is_finished = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}{', finished' if self._is_finished else ''})"

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
        self._send(Request(model, inputs, version, outputs, id, parameters))

    def _send(self, request: Request) -> None:
        encoded = run(self._encoded(request))
        if self._is_finished:
            raise _stream_over()
        if not self._native.send(encoded):
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
        return read_response(answer)


class AsyncStream:
    """:class:`Stream` for ``asyncio``."""

    def __init__(
        self, native: _native.Stream, url: str = "", encoded: Callable[[Request], Steps[tuple[Any, ...]]] | None = None
    ) -> None:
        self._native = native
        self._url = url
        self._encoded = encoded or _in_own_datatypes
        self._is_finished = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}{', finished' if self._is_finished else ''})"

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
        await self._send(Request(model, inputs, version, outputs, id, parameters))

    async def _send(self, request: Request) -> None:
        encoded = await run_async(self._encoded(request))
        if self._is_finished:
            raise _stream_over()
        if not await _wait(self._native.send, encoded):
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
        return read_response(answer)


def _in_own_datatypes(request: Request) -> Steps[tuple[Any, ...]]:
    """A request of a stream without a client that could ask about models."""
    return request.native(None)
    yield


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


def run(steps: Steps[Value]) -> Value:
    """Makes the calls, and waits for each."""
    try:
        method, arguments = next(steps)
        while True:
            try:
                value = method(*arguments)
            except _native.InferenceError as error:
                method, arguments = steps.throw(error)
            else:
                method, arguments = steps.send(value)
    except StopIteration as end:
        found: Value = end.value
        return found


async def run_async(steps: Steps[Value]) -> Value:
    """As :func:`run`, awaiting each call."""
    try:
        method, arguments = next(steps)
        while True:
            try:
                value = await _wait(method, *arguments)
            except _native.InferenceError as error:
                method, arguments = steps.throw(error)
            else:
                method, arguments = steps.send(value)
    except StopIteration as end:
        found: Value = end.value
        return found


def _stream_over() -> _native.InferenceError:
    text = "the stream takes no more requests: it was finished, or it has ended"
    error = _native.InferenceError(text)
    error.kind, error.code, error.status, error.message, error.retry_after = "Usage", None, None, text, None
    return error
