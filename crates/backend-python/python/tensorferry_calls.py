"""Calls from a model to other models of the server. Both forms of models use them."""

import asyncio
import concurrent.futures
import contextvars
import functools
import json
import math
import queue
import threading
import time

import numpy as np

from tensorferry_tensors import as_array, datatype_of

#: The worker and the number of the request that the current code answers, in a process that answers several requests at
#: once. Coroutines, and the tasks and threads that they start, inherit it.
_current = contextvars.ContextVar("request", default=None)

#: Seconds by which the server's response to a call may arrive before the message that the calling request is cancelled.
_BEHIND = 0.02


def _lender():
    """Returns the worker and the number of a request in progress, for code that does not know its own request. The number
    is None if only one request is answered at a time. Replaced once there is a worker."""
    return None


def hand_on():
    """From now on, threads of models and functions submitted to thread pools inherit the request of the code that starts
    them."""
    start, submit = threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit

    @functools.wraps(start)
    def start_with(self):
        request = _current.get()
        if request is None:
            return start(self)
        run, own = self.run, self.__dict__.get("run")

        def restore():
            if own is None:
                self.__dict__.pop("run", None)
            else:
                self.run = own

        def run_with():
            restore()
            _current.set(request)
            run()

        self.run = run_with
        try:
            start(self)
        except BaseException:
            restore()
            raise

    @functools.wraps(submit)
    def submit_with(self, function, /, *args, **kwargs):
        request = _current.get()
        if request is None:
            return submit(self, function, *args, **kwargs)
        # A thread that the pool starts now also serves other requests, so it must not inherit this one.
        before = _current.set(None)
        try:
            return submit(self, _run_for, request, function, args, kwargs)
        finally:
            _current.reset(before)

    threading.Thread.start = start_with
    concurrent.futures.ThreadPoolExecutor.submit = submit_with


def _run_for(request, function, args, kwargs):
    before = _current.set(request)
    try:
        return function(*args, **kwargs)
    finally:
        _current.reset(before)


class Failed(Exception):
    """The error of a call without a response. `is_over` tells whether the calling request has ended."""

    def __init__(self, message, status, is_over=False):
        super().__init__(message)
        self.status, self.is_over = status, is_over


class Call:
    """A call to another model. The thread that reads from the server adds its responses."""

    def __init__(self, message, tensors):
        #: A SimpleQueue, because a garbage collection can run `put` in the middle of `get` in the same thread.
        self._answers = queue.SimpleQueue()
        self._waiter = None
        self._message, self._tensors = message, tensors
        #: The worker that sends the call, the request that the call belongs to, and the number of the call.
        self.worker = self._request = self.number = None
        #: Whether the request is unrelated to the calling code. If it ends first, the call is repeated for another
        #: request.
        self._is_lent = False

    def ask(self):
        """Sends the call for the request that the current code answers or, if that is unknown or over, for another
        request."""
        known = _current.get()
        if known is not None and known[0].answers() == known[1]:
            self._ask(*known)
        else:
            self._ask_for_another()
        if self._is_lent:
            # The model may change the arrays once this has returned.
            self._tensors = [(name, datatype, array.copy()) for name, datatype, array in self._tensors]
        else:
            self._message = self._tensors = None

    def _ask(self, worker, request):
        self.worker, self._request = worker, request
        self.number = worker.ask(self._message, self._tensors, self, request)

    def _ask_for_another(self):
        while True:
            lender = _lender()
            if lender is None:
                raise Failed("other models can be called only while a request is answered", 503)
            self._is_lent = lender[1] is not None
            try:
                return self._ask(*lender)
            except Failed as failure:
                if not failure.is_over:
                    raise

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
                # The loop is closed, so no coroutine waits.
                pass

    def take(self):
        while True:
            answer = self._answers.get()
            if self._may_be_made_again(answer):
                if not answer.is_over:
                    time.sleep(_BEHIND)
                if self._is_made_again():
                    continue
            return _checked(answer)

    async def take_later(self):
        loop = asyncio.get_running_loop()
        while True:
            try:
                answer = self._answers.get_nowait()
            except queue.Empty:
                future = loop.create_future()
                self._waiter = (loop, future)
                # The response may have arrived meanwhile.
                if self._answers.empty():
                    await future
                continue
            if self._may_be_made_again(answer):
                if not answer.is_over:
                    await asyncio.sleep(_BEHIND)
                if self._is_made_again():
                    continue
            return _checked(answer)

    def _may_be_made_again(self, answer):
        """Returns whether the call may have failed only because an unrelated request ended."""
        if self._is_lent and not isinstance(answer, Failed):
            # After the first response the call cannot be repeated, since another call could give different responses.
            self._is_lent, self._message, self._tensors = False, None, None
        return self._is_lent and (answer.is_over or answer.status in (499, 504))

    def _is_made_again(self):
        if self.worker.answers() == self._request:
            return False
        try:
            self._ask_for_another()
        except Failed:
            return False
        return True


def _set(future):
    if not future.done():
        future.set_result(None)


def _checked(answer):
    if isinstance(answer, Exception):
        raise answer
    return answer


class Answers:
    """Any number of responses, for `for` and `async for`. `of_outputs` converts the outputs of each response, a list of
    (name, datatype, array)."""

    def __init__(self, call, of_outputs, of_failure):
        self._call = call
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
            self._call.worker.want_next(self._call.number)
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
        """Tells the other model that no more responses are wanted."""
        if not self._is_over:
            self._is_over = True
            self._call.worker.leave(self._call.number)

    cancel = close

    def __del__(self):
        # A garbage collection may run this at any point, so it must not take locks.
        if not self._is_over:
            self._call.worker.leave_later(self._call.number)


def tensors_of(inputs):
    """Returns names and arrays as a list of (name, datatype, array)."""
    tensors = []
    for name, value in inputs:
        if not isinstance(value, np.ndarray):
            if hasattr(value, "detach"):
                value = value.detach().cpu().numpy()
            else:
                array = np.asarray(value)
                # NumPy's own strings would lose trailing zero bytes.
                value = np.asarray(value, dtype=object) if array.dtype.kind in "SU" else array
        datatype = datatype_of(value.dtype)
        tensors.append((name, datatype, as_array(value, datatype, name)))
    return tensors


def ask(model, inputs, *, version=None, outputs=(), parameters=None, id=None, timeout=None, several=False):
    """Calls a model. `timeout` is in microseconds."""
    for name, value in (parameters or {}).items():
        if not isinstance(value, (bool, int, str)) and not (isinstance(value, float) and math.isfinite(value)):
            raise Failed(f"the parameter {name!r} is {value!r}, expected text, a finite number or a bool", 400)
    message = {"model": str(model), "outputs": [str(name) for name in outputs or ()], "takes_several": several}
    message.update({"parameters": dict(parameters)} if parameters else {})
    message.update({"version": str(version)} if version is not None else {})
    message.update({"id": str(id)} if id else {})
    message.update({"timeout": int(timeout)} if timeout is not None else {})
    tensors = tensors_of(inputs)
    # Raises an error for strings that are not valid Unicode, which the server would not accept as JSON.
    json.dumps([message, [name for name, _, _ in tensors]], ensure_ascii=False).encode()
    call = Call(message, tensors)
    call.ask()
    return call
