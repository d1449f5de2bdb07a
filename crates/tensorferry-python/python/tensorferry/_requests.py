"""Requests to models before they are sent, and the calls that a request takes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from . import _native
from ._hints import nearest, other_datatype, unknown
from ._models import ModelInfo, Parameter, model_info
from ._tensors import Numbers, read

Value = TypeVar("Value")
#: Calls of the native half, one after the other: each is a method and its arguments. A client waits for each and sends its value, or
#: throws its error; one that is awaited does it without blocking.
Steps = Generator[tuple[Callable[..., Any], tuple[Any, ...]], Any, Value]

#: A server's codes for requests that may have a wrong name or datatype.
_EXPLAINED = ("InvalidArgument", "NotFound")
#: Its codes where it does not tell this client about a model.
_UNTOLD = (*_EXPLAINED, "Unimplemented", "PermissionDenied", "Unauthenticated")
#: Seconds for finding out what was wrong with a request.
_TO_EXPLAIN = 2.0


class Request:
    """A request to a model. Its lists of numbers have no datatype until the model's is known."""

    def __init__(
        self,
        model: str,
        inputs: Mapping[str, Any],
        version: str | None,
        outputs: Iterable[str],
        id: str | None,
        parameters: Mapping[str, Parameter] | None,
    ) -> None:
        if isinstance(outputs, str):
            # Its letters would be names.
            raise TypeError(f"outputs: expected names, found the string {outputs!r}")
        self.outputs = list(outputs)
        for name in self.outputs:
            if not isinstance(name, str):
                raise TypeError(f"outputs: expected names that are str, found {name!r}")
        self.model, self.version, self.inputs = model, version, inputs
        self._given = {name: read(name, value) for name, value in inputs.items()}
        self._rest = checked(model, version, [], [(name, {}) for name in self.outputs], id, dict(parameters or {}))
        #: The inputs that are lists of numbers.
        self.numbers = [name for name, value in self._given.items() if isinstance(value, Numbers)]
        #: The model's datatypes of these, when the request was last made.
        self.sent: dict[str, str | None] = {}

    def native(self, info: ModelInfo | None) -> tuple[Any, ...]:
        """The request as the native half takes it. Lists of numbers that the model says nothing of are INT64, FP64 or BOOL, as NumPy
        has them. Raises as :meth:`Numbers.in_datatype`."""
        wanted = self.sent = self.datatypes(info)
        inputs: list[Any] = []
        for name, value in self._given.items():
            tensor = value.in_datatype(wanted[name], self.model) if isinstance(value, Numbers) else value
            inputs.append((name, *tensor, {}))
        model, version, _, *rest = self._rest
        return model, version, inputs, *rest

    def datatypes(self, info: ModelInfo | None) -> dict[str, str | None]:
        """The model's datatype of each list of numbers."""
        known = {} if info is None else {tensor.name: tensor.datatype for tensor in info.inputs}
        return {name: known.get(name) for name in self.numbers}

    def wrong(self, info: ModelInfo) -> str | None:
        """Which name or datatype is not the model's; None if all are."""
        inputs = {tensor.name: tensor.datatype for tensor in info.inputs}
        for name, value in self._given.items():
            if inputs and name not in inputs:
                return unknown("input", name, inputs, self.model)
            if isinstance(value, tuple) and inputs and value[0] != inputs[name]:
                return other_datatype(name, self.inputs[name], value[0], inputs[name], self.model)
        outputs = [tensor.name for tensor in info.outputs]
        strange = next((name for name in self.outputs if outputs and name not in outputs), None)
        return None if strange is None else unknown("output", strange, outputs, self.model)


class Models:
    """Metadata of the models that a client has asked about. Each call gets the native client, which a client drops when it is closed."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], ModelInfo] = {}

    def forget(self, model: str) -> None:
        """Has the next list of numbers ask about the model again."""
        for key in list(self._known):
            if key[0] == model:
                self._known.pop(key, None)

    def about(self, native: _native.Client, model: str | None, method: Callable[..., Any], *arguments: Any) -> Steps[Any]:
        """A call about a model. The error for an unknown one says which model is meant."""
        try:
            return (yield method, arguments)
        except _native.InferenceError as error:
            if model is not None and error.code == "NotFound":
                yield from self._add_model(native, error, model)
            raise

    def info(self, native: _native.Client, model: str, version: str | None) -> Steps[ModelInfo]:
        """What the server says about a model now."""
        text = yield from self.about(native, model, native.model_metadata, model, version)
        found = self._known[model, version] = model_info(model, text)
        return found

    def encoded(self, native: _native.Client, request: Request, timeout: float | None = None) -> Steps[tuple[Any, ...]]:
        """The request in the model's datatypes, of which it asks once for each model, or if the numbers do not fit those it knows."""
        known = self._known.get((request.model, request.version)) if request.numbers else None
        try:
            if known is not None or not request.numbers:
                return request.native(known)
        except (TypeError, ValueError):
            # Of a model that may have been loaded again since.
            pass
        return request.native((yield from self._told(native, request, timeout)))

    def infer(self, native: _native.Client, request: Request, timeout: float | None) -> Steps[tuple[Any, ...]]:
        """Runs a model. Lists of numbers are sent once more where the model turns out to have other datatypes since it was asked
        about; a wrong name or datatype is explained in the error."""
        started = time.monotonic()
        encoded = yield from self.encoded(native, request, timeout)
        answer: tuple[Any, ...]
        try:
            answer = yield native.infer, (encoded, _left(timeout, started))
            return answer
        except _native.InferenceError as error:
            if not (yield from self.explain(native, request, error)):
                raise
        encoded = yield from self.encoded(native, request, _left(timeout, started))
        answer = yield native.infer, (encoded, _left(timeout, started))
        return answer

    def explain(self, native: _native.Client, request: Request, error: _native.InferenceError) -> Steps[bool]:
        """Finds out what is wrong with a request that was refused, by a call or two. Adds it to the error if it is a name or a datatype;
        gives True if numbers were sent in datatypes that the model had before, so that the request should be sent again."""
        # An error of a stream is a message without a code.
        if error.kind != "Refused" or error.code not in (*_EXPLAINED, None):
            return False
        try:
            text = yield native.model_metadata, (request.model, request.version, _TO_EXPLAIN)
        except _native.InferenceError:
            yield from self._add_model(native, error, request.model)
            return False
        info = self._known[request.model, request.version] = model_info(request.model, text)
        if request.datatypes(info) != request.sent:
            return True
        wrong = request.wrong(info)
        if wrong is not None:
            _add(error, wrong)
        return False

    def _told(self, native: _native.Client, request: Request, timeout: float | None) -> Steps[ModelInfo | None]:
        """What the server says about a model now; None if it does not tell, and the request will be answered with the reason."""
        try:
            text = yield native.model_metadata, (request.model, request.version, timeout)
        except _native.InferenceError as error:
            if error.kind == "Refused" and error.code in _UNTOLD:
                return None
            raise
        found = self._known[request.model, request.version] = model_info(request.model, text)
        return found

    def _add_model(self, native: _native.Client, error: _native.InferenceError, model: str) -> Steps[None]:
        """Adds the model that is meant to the error, if the server lists one that is named alike."""
        try:
            listed = json.loads((yield native.repository_index, (_TO_EXPLAIN,)))
        except _native.InferenceError:
            return
        names = {entry["name"] for entry in listed}
        if model not in names and (meant := nearest(model, names)):
            _add(error, meant.removeprefix("; "))


def _left(timeout: float | None, started: float) -> float | None:
    """What is left of a time limit, which stays as it was given for a first call."""
    spent = time.monotonic() - started
    return timeout if timeout is None or timeout <= 0 or spent < 0.001 else max(timeout - spent, 0.0)


def _add(error: _native.InferenceError, text: str) -> None:
    """Adds to what an error says; its ``message`` remains the server's own."""
    error.args = (f"{error}; {text}",)


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
        raise ValueError(f"parameter {name!r}: expected a 64-bit integer, found {value}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"parameter {name!r}: expected a finite number, found {value}")
    return value
