"""What a server says about a model, and what a model says in a response."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ._hints import SHOWN, nearest, shown
from ._tensors import Array, array

#: A parameter of a request or an output.
Parameter = bool | int | float | str


@dataclass(frozen=True, repr=False)
class TensorInfo:
    """A model's input or output: its name, the protocol's datatype, and its shape, with -1 for free dimensions."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return f"TensorInfo({self.name!r}, {self.datatype}{list(self.shape)})"


@dataclass(frozen=True, repr=False)
class ModelInfo:
    """What a server says about a model."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    def __repr__(self) -> str:
        versions = f", version {', '.join(self.versions)}" if self.versions else ""
        inputs, outputs = (
            shown(f"{tensor.name} {tensor.datatype}{list(tensor.shape)}" for tensor in tensors)
            for tensors in (self.inputs, self.outputs)
        )
        return f"ModelInfo({self.name!r}{versions}: {inputs} -> {outputs})"


class Outputs(dict[str, Array]):
    """A model's outputs by name. The ``KeyError`` for another name says which is the nearest."""

    def __missing__(self, name: object) -> Array:
        raise KeyError(f"there is no output {name!r}{nearest(name, self)}")


@dataclass(frozen=True, repr=False)
class Response:
    """All that a server says in answer to a request: the outputs by name, which model and version ran, and parameters."""

    outputs: dict[str, Array]
    model: str
    version: str | None = None
    id: str | None = None
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def __repr__(self) -> str:
        version = f", version {self.version}" if self.version else ""
        outputs = shown(f"{name} {_shown_array(array)}" for name, array in self.outputs.items())
        parameters = f", parameters={self.parameters}" if self.parameters else ""
        return f"Response({self.model!r}{version}: {outputs}{parameters})"


def _shown_array(found: Array) -> str:
    """What an array is, and its elements where they are few and short."""
    kind = "bytes" if found.dtype.kind == "O" else found.dtype.name
    text = str(found.tolist()) if found.size <= SHOWN else ""
    return f"{kind}{list(found.shape)}" + (f" {text}" if 0 < len(text) <= 60 else "")


def model_info(name: str, text: str) -> ModelInfo:
    """The answer of a server, which is JSON."""
    found: dict[str, Any] = json.loads(text)

    def tensors(role: str) -> tuple[TensorInfo, ...]:
        rows = found.get(role) or ()
        return tuple(
            TensorInfo(row["name"], row["datatype"], tuple(int(dim) for dim in row["shape"])) for row in rows
        )

    versions = tuple(found.get("versions") or ())
    return ModelInfo(name, versions, found.get("platform") or "", tensors("inputs"), tensors("outputs"))


def read_outputs(answer: tuple[Any, ...]) -> Outputs:
    """The outputs of an answer of the native half."""
    return Outputs((name, array(datatype, shape, data)) for name, datatype, shape, data, _ in answer[4])


def read_response(answer: tuple[Any, ...]) -> Response:
    """An answer of the native half."""
    model, version, id, parameters, _ = answer
    return Response(read_outputs(answer), model, version, id, parameters)
