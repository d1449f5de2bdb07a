"""Inputs, outputs and results, for both transports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._client import array as to_array
from ..._client import tensor as to_tensor
from .utils import np_to_triton_dtype, raise_error


class Message:
    """A read-only message: fields are attributes, absent ones are empty; ``str`` shows it."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return message(self._fields.get(name, ""))

    def __repr__(self) -> str:
        return repr(self._fields)


def message(value: Any) -> Any:
    """A value of JSON with attributes in place of keys."""
    if isinstance(value, dict):
        return Message(value)
    if isinstance(value, list):
        return [message(item) for item in value]
    return value


class ParameterMessage:
    """A parameter as the protocol's message has it: one of its fields is set."""

    def __init__(self, value: bool | int | float | str) -> None:
        self.bool_param = value if isinstance(value, bool) else False
        self.int64_param = value if isinstance(value, int) and not isinstance(value, bool) else 0
        self.double_param = value if isinstance(value, float) else 0.0
        self.string_param = value if isinstance(value, str) else ""

    def __repr__(self) -> str:
        return repr(vars(self))


def parameter_json(value: bool | int | float | str) -> dict[str, Any]:
    """A parameter as protobuf's JSON has it."""
    if isinstance(value, bool):
        return {"bool_param": value}
    if isinstance(value, int):
        return {"int64_param": str(value)}
    return {"double_param": value} if isinstance(value, float) else {"string_param": value}


class InferInput:
    """An input: its name, shape and datatype, and then its data by :meth:`set_data_from_numpy`."""

    def __init__(self, name: str, shape: Sequence[int], datatype: str) -> None:
        self._name = name
        self._shape = [int(dim) for dim in shape]
        self._datatype = datatype
        self._data: Any = None
        self._binary = True

    def name(self) -> str:
        """The name."""
        return self._name

    def datatype(self) -> str:
        """The protocol's datatype."""
        return self._datatype

    def shape(self) -> list[int]:
        """The shape."""
        return self._shape

    def set_shape(self, shape: Sequence[int]) -> InferInput:
        """Sets the shape."""
        self._shape = [int(dim) for dim in shape]
        return self

    def set_data_from_numpy(self, input_tensor: NDArray[Any], binary_data: bool = True) -> InferInput:
        """Sets the data; it is copied when the request is sent. Without ``binary_data`` tensors travel as JSON's numbers."""
        if not isinstance(input_tensor, np.ndarray):
            raise_error("input_tensor must be a numpy array")
        found = np_to_triton_dtype(input_tensor.dtype)
        is_float_for_bf16 = self._datatype == "BF16" and found == "FP32"
        if found != self._datatype and not is_float_for_bf16:
            raise_error(f"got unexpected datatype {found} from numpy array, expected {self._datatype}")
        if list(input_tensor.shape) != self._shape:
            raise_error(f"got unexpected numpy array shape [{list(input_tensor.shape)}], expected [{self._shape}]")
        if self._datatype == "BF16" and not binary_data:
            raise_error("BF16 inputs must be sent as binary data over HTTP. Please set binary_data=True")
        if is_float_for_bf16:
            # The upper half of a float32, as Triton's client has it.
            words = np.ascontiguousarray(input_tensor.astype("<f4")).reshape(-1).view("<u2")
            self._data = np.ascontiguousarray(words[1::2]).view(np.uint8)
        elif self._datatype == "BYTES":
            elements = (_text(element) for element in input_tensor.reshape(-1))
            self._data = list(elements)
        else:
            self._data = to_tensor(self._name, input_tensor)[2]
        self._binary = binary_data
        return self

    def set_shared_memory(self, region_name: str, byte_size: int, offset: int = 0) -> InferInput:
        """Raises: this client sends tensors, not places of them."""
        raise_error(f"input '{self._name}': tensors in shared memory are not supported by this client")

    def _native(self) -> tuple[str, str, list[int], Any]:
        if self._data is None:
            raise_error(f"input '{self._name}' has no data: call set_data_from_numpy")
        return self._name, self._datatype, self._shape, self._data


def _text(element: Any) -> bytes:
    return element if isinstance(element, bytes) else str(element).encode()


class InferRequestedOutput:
    """An output that is wanted; with ``class_count``, its highest classes instead of its values."""

    def __init__(self, name: str, binary_data: bool = True, class_count: int = 0) -> None:
        self._name = name
        self._binary = binary_data
        self._class_count = class_count

    def name(self) -> str:
        """The name."""
        return self._name

    def set_shared_memory(self, region_name: str, byte_size: int, offset: int = 0) -> None:
        """Raises: this client receives tensors, not places of them."""
        raise_error(f"output '{self._name}': tensors in shared memory are not supported by this client")

    def unset_shared_memory(self) -> None:
        """Does nothing: there is none."""

    def _native(self) -> tuple[str, dict[str, Any]]:
        return self._name, {"classification": self._class_count} if self._class_count else {}


class InferResult:
    """What a model answered."""

    def __init__(self, answer: tuple[Any, ...], is_grpc: bool) -> None:
        self._answer = answer
        self._is_grpc = is_grpc

    def as_numpy(self, name: str) -> NDArray[Any] | None:
        """An output's array: read-only, over the response's own memory. None if the model did not give it."""
        for found, datatype, shape, data, _ in self._answer[4]:
            if found == name:
                if datatype == "BF16":
                    # As Triton's client: float32, which holds each of them.
                    words = np.frombuffer(data, dtype="<u2").astype("<u4") << 16
                    return words.view("<f4").reshape(shape)
                return to_array(datatype, shape, data)
        return None

    def get_output(self, name: str, as_json: bool = False) -> Any:
        """An output's name, datatype, shape and parameters, or None: a dict, or over gRPC an object unless ``as_json``."""
        for output in self._fields()["outputs"]:
            if output["name"] == name:
                return Message(output) if self._is_grpc and not as_json else output
        return None

    def get_response(self, as_json: bool = False) -> Any:
        """All of the response but the tensors' elements: a dict, or over gRPC an object unless ``as_json``."""
        fields = self._fields()
        if not self._is_grpc:
            return fields
        values = self._answer[3]
        if as_json:
            return {**fields, "parameters": {name: parameter_json(value) for name, value in values.items()}}
        response = Message({name: value for name, value in fields.items() if name != "parameters"})
        vars(response)["parameters"] = {name: ParameterMessage(value) for name, value in values.items()}
        return response

    def _fields(self) -> dict[str, Any]:
        model, version, id, parameters, outputs = self._answer
        fields: dict[str, Any] = {"model_name": model, "model_version": version or ""}
        if id is not None or self._is_grpc:
            fields["id"] = id or ""
        if parameters:
            fields["parameters"] = parameters
        fields["outputs"] = [
            {"name": name, "datatype": datatype, "shape": shape, **({"parameters": own} if own else {})}
            for name, datatype, shape, _, own in outputs
        ]
        return fields
