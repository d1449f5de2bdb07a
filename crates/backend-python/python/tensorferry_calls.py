"""Requests to other models of the server, for both forms of a model."""

import asyncio
import contextvars
import json
import math
import queue

import numpy as np

from tensorferry_tensors import as_array, datatype_of

#: The worker of the request that this code answers, in a process that answers several at once. Coroutines and what they start have it;
#: threads of models do not (before Python 3.14).
_current = contextvars.ContextVar("worker", default=None)


def _worker_of_threads():
    """The worker of a request that is being answered, for code that does not know its own; set once there is one."""
    return None


class Failed(Exception):
    """Why there is no answer."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


class Call:
    """A request to another model. Its answers are put by the thread that reads what the server says."""

    def __init__(self):
        #: SimpleQueue, since its `put` may interrupt its `get` in the same thread (a garbage collection can).
        self._answers = queue.SimpleQueue()
        self._waiter = None
        #: Through which it is asked.
        self.worker = None

    def put(self, answer):
        self._answers.put(answer)
        self._wake()

    def _wake(self):
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            loop, future = waiter
            try:
                loop.call_soon_threadsafe(_set, future)
            except RuntimeError:
                # The loop is closed, so nobody waits.
                pass

    def take(self):
        return _checked(self._answers.get())

    async def take_later(self):
        loop = asyncio.get_running_loop()
        while True:
            try:
                return _checked(self._answers.get_nowait())
            except queue.Empty:
                future = loop.create_future()
                self._waiter = (loop, future)
                # It may have come meanwhile.
                if self._answers.empty():
                    await future


def _set(future):
    if not future.done():
        future.set_result(None)


def _checked(answer):
    if isinstance(answer, Exception):
        raise answer
    return answer


class Answers:
    """Any number of answers, for `for` and `async for`: each as `of_outputs` gives it, which gets (name, datatype, array)s."""

    def __init__(self, call, number, of_outputs, of_failure):
        self._call, self._number = call, number
        self._of_outputs, self._of_failure = of_outputs, of_failure
        self._is_over = self._is_behind = False

    def __iter__(self):
        return self

    def __aiter__(self):
        return self

    def __next__(self):
        found = self._step(self._ask_for_next() and self._call.take) if not self._is_over else None
        if found is None:
            raise StopIteration
        return found[0]

    async def __anext__(self):
        if self._is_over:
            raise StopAsyncIteration
        self._ask_for_next()
        try:
            answer = await self._call.take_later()
        except Failed as failure:
            answer = failure
        found = self._step(lambda: _checked(answer))
        if found is None:
            raise StopAsyncIteration
        return found[0]

    def _ask_for_next(self):
        if self._is_behind:
            self._is_behind = False
            self._call.worker.want_next(self._number)
        return True

    def _step(self, take):
        try:
            outputs, is_end = take()
        except Failed as failure:
            self._is_over = True
            return (self._of_failure(failure),)
        self._is_over = is_end
        self._is_behind = not is_end
        return None if outputs is None else (self._of_outputs(outputs),)

    def close(self):
        """No more answers are wanted; the other model is told."""
        if not self._is_over:
            self._is_over = True
            self._call.worker.leave(self._number)

    cancel = close

    def __del__(self):
        # In the middle of anything: no locks.
        if not self._is_over:
            self._call.worker.leave_later(self._number)


def tensors_of(inputs):
    """Names and arrays as (name, datatype, array)."""
    tensors = []
    for name, value in inputs:
        if not isinstance(value, np.ndarray):
            if hasattr(value, "detach"):
                value = value.detach().cpu().numpy()
            else:
                array = np.asarray(value)
                # NumPy's own strings would lose zero bytes at the end.
                value = np.asarray(value, dtype=object) if array.dtype.kind in "SU" else array
        datatype = datatype_of(value.dtype)
        tensors.append((name, datatype, as_array(value, datatype, name)))
    return tensors


def ask(model, inputs, *, version=None, outputs=(), parameters=None, id=None, timeout=None, several=False):
    """Asks a model: the call and its number. `timeout` is in microseconds."""
    for name, value in (parameters or {}).items():
        if not isinstance(value, (bool, int, str)) and not (isinstance(value, float) and math.isfinite(value)):
            raise Failed(f"the parameter {name!r} is {value!r}, expected text, a finite number or a bool", 400)
    message = {"model": str(model), "outputs": [str(name) for name in outputs or ()], "takes_several": several}
    message.update({"parameters": dict(parameters)} if parameters else {})
    message.update({"version": str(version)} if version is not None else {})
    message.update({"id": str(id)} if id else {})
    message.update({"timeout": int(timeout)} if timeout is not None else {})
    tensors = tensors_of(inputs)
    # What is no text would not be JSON for the server either.
    json.dumps([message, [name for name, _, _ in tensors]], ensure_ascii=False).encode()
    call = Call()
    known = _current.get()
    call.worker = known or _worker_of_threads()
    if call.worker is None:
        raise Failed("other models can be asked only while a request is answered", 503)
    return call, call.worker.ask(message, tensors, call, is_borrowed=known is None)
