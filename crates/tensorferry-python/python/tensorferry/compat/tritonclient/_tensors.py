"""Inputs, outputs and results, for both transports."""

from __future__ import annotations

import json
from collections.abc import Iterator, KeysView, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._hints import shown
from ..._tensors import array as to_array
from ..._tensors import little_endian
from .utils import bf16_of, from_bf16, np_to_triton_dtype, raise_error, triton_to_np_dtype


class Message:
    """A read-only message, or a map of one: fields are attributes, absent ones are empty; entries are items; ``str`` shows it."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __getitem__(self, key: str) -> Any:
        return message(self._fields[key])

    def __contains__(self, key: object) -> bool:
        return key in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._fields == other._fields

    __hash__ = None  # type: ignore[assignment]

    def get(self, key: str, default: Any = None) -> Any:
        """The entry of a map, or what is to stand for it."""
        return self[key] if key in self else default

    def keys(self) -> KeysView[str]:
        """The keys of a map."""
        return self._fields.keys()

    def values(self) -> list[Any]:
        """The values of a map."""
        return [message(value) for value in self._fields.values()]

    def items(self) -> list[tuple[str, Any]]:
        """The entries of a map."""
        return [(key, message(value)) for key, value in self._fields.items()]

    def HasField(self, name: str) -> bool:
        """Whether a field is set."""
        return name in self._fields

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


def _with_parameters(fields: dict[str, Any]) -> Message:
    """A message with parameters."""
    found = Message({name: value for name, value in fields.items() if name != "parameters"})
    values = fields.get("parameters", {})
    vars(found)["parameters"] = {name: ParameterMessage(value) for name, value in values.items()}
    return found


def _with_json_parameters(fields: dict[str, Any]) -> dict[str, Any]:
    """The same as protobuf's JSON has it."""
    values = fields.get("parameters", {})
    return {**fields, "parameters": {name: parameter_json(value) for name, value in values.items()}}


class InferInput:
    """An input: its name, shape and datatype, and then its data by :meth:`set_data_from_numpy`."""

    def __init__(self, name: str, shape: Sequence[int], datatype: str) -> None:
        self._name = name
        self._shape = [int(dim) for dim in shape]
        self._datatype = datatype
        self._data: Any = None
        self._binary = True
        self._place: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"InferInput({self._name!r}, {self._shape}, {self._datatype!r})"

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
        """Sets the data to a copy of the array. Without ``binary_data`` it travels as JSON."""
        if not isinstance(input_tensor, np.ndarray):
            raise_error("input_tensor must be a numpy array")
        found = np_to_triton_dtype(input_tensor.dtype)
        is_float_for_bf16 = self._datatype == "BF16" and found == "FP32"
        if found != self._datatype and not is_float_for_bf16:
            raise_error(f"got unexpected datatype {found} from numpy array, expected {self._datatype}")
        if list(input_tensor.shape) != self._shape:
            raise_error(f"got unexpected numpy array shape {list(input_tensor.shape)}, expected {self._shape}")
        if self._datatype == "BF16" and not binary_data:
            raise_error("BF16 inputs must be sent as binary data over HTTP. Please set binary_data=True")
        if is_float_for_bf16:
            # The upper half of a float32, as Triton's client had it once.
            self._data = bf16_of(input_tensor).tobytes()
        elif self._datatype == "BYTES":
            elements = (_text(element) for element in input_tensor.reshape(-1))
            self._data = list(elements)
        else:
            # Sent without another copy.
            self._data = little_endian(input_tensor).tobytes()
        self._binary = binary_data
        self._place = {}
        return self

    def set_shared_memory(self, region_name: str, byte_size: int, offset: int = 0) -> InferInput:
        """Says that the data is in a region that is registered, ``byte_size`` bytes of it from ``offset`` on."""
        self._place = _place(region_name, byte_size, offset)
        self._data, self._binary = None, True
        return self

    def _native(self) -> tuple[str, str, list[int], Any, dict[str, Any]]:
        if self._data is None and not self._place:
            raise_error(f"input '{self._name}' has no data: call set_data_from_numpy or set_shared_memory")
        parameters = self._place or ({} if self._binary else {"binary_data": False})
        return self._name, self._datatype, self._shape, self._data, parameters

    def _json(self) -> tuple[dict[str, Any], bytes]:
        """The tensor of a body that is made by hand, and its bytes behind the JSON."""
        name, datatype, shape, data, _ = self._native()
        tensor: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype}
        if self._place:
            return {**tensor, "parameters": self._place}, b""
        if datatype == "BYTES":
            data = b"".join(len(element).to_bytes(4, "little") + element for element in data)
        raw = bytes(memoryview(data))
        if self._binary:
            return {**tensor, "parameters": {"binary_data_size": len(raw)}}, raw
        return {**tensor, "data": _values(datatype, raw)}, b""


def _place(region_name: str, byte_size: int, offset: int) -> dict[str, Any]:
    place = {"shared_memory_region": region_name, "shared_memory_byte_size": byte_size}
    return {**place, "shared_memory_offset": offset} if offset else place


def _values(datatype: str, raw: Any) -> list[Any]:
    """Elements as JSON has them, flat: BYTES as texts, floats that are not finite as null."""
    elements = len(raw) if datatype != "BYTES" else 0
    if datatype == "BF16":
        found = from_bf16(raw)
    elif datatype == "BYTES":
        at = 0
        while at < len(raw):
            elements, at = elements + 1, at + 4 + int.from_bytes(raw[at : at + 4], "little")
        return [_decoded(element) for element in to_array(datatype, [elements], raw)]
    else:
        found = np.frombuffer(raw, dtype=triton_to_np_dtype(datatype))
    if found.dtype.kind == "f":
        return [value if np.isfinite(value) else None for value in found.tolist()]
    return list(found.tolist())


def _decoded(element: bytes) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise_error(f"Failed to encode using UTF-8. Please use binary_data=True, if you want to pass a byte array. {error}")


def _text(element: Any) -> bytes:
    return element if isinstance(element, bytes) else str(element).encode()


class InferRequestedOutput:
    """An output that is wanted; with ``class_count``, its highest classes instead of its values."""

    def __init__(self, name: str, binary_data: bool = True, class_count: int = 0) -> None:
        self._name = name
        self._binary = binary_data
        self._class_count = class_count
        self._place: dict[str, Any] = {}

    def __repr__(self) -> str:
        classes = f", class_count={self._class_count}" if self._class_count else ""
        return f"InferRequestedOutput({self._name!r}{classes})"

    def name(self) -> str:
        """The name."""
        return self._name

    def set_shared_memory(self, region_name: str, byte_size: int, offset: int = 0) -> None:
        """Asks for the data in a region that is registered, at most ``byte_size`` bytes from ``offset`` on."""
        if self._class_count:
            raise_error("shared memory can't be set on classification output")
        self._place = _place(region_name, byte_size, offset)

    def unset_shared_memory(self) -> None:
        """Asks for the data with the response again."""
        self._place = {}

    def _native(self) -> tuple[str, dict[str, Any]]:
        parameters = {"classification": self._class_count} if self._class_count else dict(self._place)
        return self._name, {**parameters, "binary_data": False} if self._is_typed() else parameters

    def _is_typed(self) -> bool:
        """Whether it is to come as JSON."""
        return not self._binary and not self._place

    def _json(self) -> dict[str, Any]:
        """The output of a body that is made by hand."""
        name, parameters = self._native()
        return {"name": name, "parameters": {**parameters, "binary_data": self._binary and not self._place}}


class InferResult:
    """What a model answered."""

    def __init__(self, answer: tuple[Any, ...], is_grpc: bool, typed: frozenset[str] = frozenset()) -> None:
        self._answer = answer
        self._is_grpc = is_grpc
        #: Outputs that were asked for as JSON.
        self._typed = typed

    def __repr__(self) -> str:
        tensors = shown(f"{name} {datatype}{list(shape)}" for name, datatype, shape, _, _ in self._answer[4])
        return f"InferResult({self._answer[0]!r}: {tensors})"

    def as_numpy(self, name: str) -> NDArray[Any] | None:
        """An output's array: read-only, over the response's own memory. None if the model did not give it.

        BF16 is that of ``ml_dtypes`` where it is installed, else float32; BYTES are bytes, and texts where they came as
        JSON."""
        for found, datatype, shape, data, own in self._answer[4]:
            if found != name:
                continue
            if "shared_memory_region" in own:
                region = own["shared_memory_region"]
                raise_error(f"output '{name}' is in the shared memory region '{region}': read it with get_contents_as_numpy")
            if datatype == "BF16" and triton_to_np_dtype(datatype) is np.float32:
                return from_bf16(data).reshape(shape)
            array = to_array(datatype, shape, data)
            if datatype == "BYTES" and name in self._typed:
                texts = np.empty(array.size, dtype=object)
                texts[:] = [_decoded(element) for element in array.reshape(-1)]
                return texts.reshape(shape)
            return array
        return None

    def get_output(self, name: str, as_json: bool = False) -> Any:
        """An output's name, datatype, shape and parameters, or None: a dict, over HTTP with its data if it came as JSON, or over gRPC an
        object unless ``as_json``."""
        for output in self._fields()["outputs"]:
            if output["name"] == name:
                if not self._is_grpc:
                    return output
                return _with_json_parameters(output) if as_json else _with_parameters(output)
        return None

    def get_response(self, as_json: bool = False) -> Any:
        """All of the response but tensors' bytes: a dict, or over gRPC an object unless ``as_json``."""
        fields = self._fields()
        if not self._is_grpc:
            return fields
        outputs = fields.pop("outputs")
        if as_json:
            return {**_with_json_parameters(fields), "outputs": [_with_json_parameters(output) for output in outputs]}
        response = _with_parameters(fields)
        vars(response)["outputs"] = [_with_parameters(output) for output in outputs]
        return response

    def _fields(self) -> dict[str, Any]:
        model, version, id, parameters, outputs = self._answer
        fields: dict[str, Any] = {"model_name": model}
        if version is not None or self._is_grpc:
            fields["model_version"] = version or ""
        if id is not None or self._is_grpc:
            fields["id"] = id or ""
        if parameters:
            fields["parameters"] = parameters
        fields["outputs"] = [self._output(*output) for output in outputs]
        return fields

    def _output(self, name: str, datatype: str, shape: list[int], data: Any, own: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if not self._is_grpc and "shared_memory_region" not in own:
            if name in self._typed:
                return {**fields, **({"parameters": own} if own else {}), "data": _values(datatype, memoryview(data))}
            own = {**own, "binary_data_size": len(data)}
        return {**fields, "parameters": own} if own else fields


def request_body(inputs: Sequence[InferInput], outputs: Sequence[InferRequestedOutput], given: tuple[Any, ...]) -> Any:
    """The body of a request over HTTP, and how many bytes of it are JSON, or None if all are."""
    _, _, _, _, id, parameters = given
    tensors = [tensor._json() for tensor in inputs]
    body: dict[str, Any] = {"id": id} if id else {}
    body["inputs"] = [tensor for tensor, _ in tensors]
    if outputs:
        body["outputs"] = [output._json() for output in outputs]
    else:
        parameters = {**parameters, "binary_data_output": True}
    if parameters:
        body["parameters"] = parameters
    head = json.dumps(body).encode()
    behind = b"".join(raw for _, raw in tensors)
    is_all = all("binary_data_size" not in tensor.get("parameters", {}) for tensor, _ in tensors)
    return head + behind, None if is_all else len(head)


def read_response(body: bytes, header_length: int | None) -> tuple[tuple[Any, ...], frozenset[str]]:
    """A response over HTTP as the native half gives it, and the outputs that are JSON."""
    head = body if header_length is None else body[:header_length]
    try:
        found = json.loads(head)
        outputs, typed, at = [], set(), len(head)
        for output in found["outputs"]:
            name, datatype, shape = output["name"], output["datatype"], output["shape"]
            own = dict(output.get("parameters") or {})
            size = own.pop("binary_data_size", None)
            if size is not None:
                data = body[at : at + size]
                at += size
                if len(data) != size:
                    raise_error(f"output '{name}': expected {size} bytes behind the JSON, found {len(data)}")
            elif "data" in output:
                typed.add(name)
                data = _raw(datatype, output["data"])
            else:
                data = b""
            outputs.append((name, datatype, shape, data, own))
        values = found.get("parameters") or {}
        return (found["model_name"], found.get("model_version"), found.get("id"), values, outputs), frozenset(typed)
    except (ValueError, KeyError, TypeError) as error:
        raise_error(f"malformed response: {type(error).__name__}: {error}")


def _raw(datatype: str, values: Any) -> bytes:
    if datatype == "BYTES":
        texts = (_text(element) for element in np.asarray(values, dtype=object).reshape(-1))
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    dtype = np.dtype(triton_to_np_dtype(datatype))
    array = np.array(values, dtype=dtype)
    return bf16_of(array).tobytes() if datatype == "BF16" and dtype == np.float32 else array.tobytes()
