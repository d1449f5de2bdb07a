"""What ``tritonclient.utils`` has: exceptions, datatypes, and BYTES as they travel."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...._dtypes import OIP, numpy_dtype

#: Parameters of a request that have arguments of their own.
TRITON_RESERVED_REQUEST_PARAMS = [
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "headers",
    "binary_data_output",
]
#: How names of parameters begin that are the server's own.
TRITON_RESERVED_REQUEST_PARAMS_PREFIX = "triton_"

_NUMPY = {datatype: name for name, datatype in OIP.items()}


class InferenceServerException(Exception):
    """A call failed. ``status()`` is the HTTP status or ``StatusCode.NAME``, ``message()`` the server's own words."""

    def __init__(self, msg: str, status: str | None = None, debug_details: object = None) -> None:
        super().__init__(msg)
        self._msg = msg
        self._status = status
        self._debug_details = debug_details

    def __str__(self) -> str:
        return self._msg if self._status is None else f"[{self._status}] {self._msg}"

    def message(self) -> str:
        """What went wrong."""
        return self._msg

    def status(self) -> str | None:
        """The status, or None if the server said nothing."""
        return self._status

    def debug_details(self) -> object:
        """More, for developers."""
        return self._debug_details


def raise_error(msg: str) -> NoReturn:
    """Raises :class:`InferenceServerException`."""
    raise InferenceServerException(msg)


def np_to_triton_dtype(np_dtype: Any) -> str | None:
    """The protocol's datatype of a NumPy dtype, or None."""
    dtype = np.dtype(np_dtype)
    if dtype.kind in "OSU":
        return "BYTES"
    return OIP.get(dtype.name)


def triton_to_np_dtype(dtype: str) -> Any:
    """The NumPy type of one of the protocol's datatypes, or None. BF16 is that of ``ml_dtypes`` where it is installed, else float32."""
    if dtype == "BYTES":
        return np.object_
    if dtype == "BOOL":
        return bool
    name = _NUMPY.get(dtype)
    if name is None:
        return None
    found = numpy_dtype(name)
    return np.float32 if found.names else found.type


def serialize_byte_tensor(input_tensor: NDArray[Any]) -> NDArray[Any] | None:
    """The elements in row-major order, a length of four bytes before each, as a NumPy object that has these bytes."""
    if input_tensor.size == 0:
        return np.empty([0], dtype=np.object_)
    if input_tensor.dtype.kind not in "OSU":
        raise_error("cannot serialize bytes tensor: invalid datatype")
    parts = []
    for element in input_tensor.reshape(-1):
        data = element if isinstance(element, bytes) else str(element).encode()
        parts.append(struct.pack("<I", len(data)) + data)
    return np.asarray(b"".join(parts), dtype=np.object_)


def serialize_bf16_tensor(input_tensor: NDArray[Any]) -> NDArray[Any] | None:
    """The upper halves of a tensor's float32, as a NumPy object that has these bytes."""
    if input_tensor.size == 0:
        return np.empty([0], dtype=np.object_)
    if input_tensor.dtype != np.float32:
        raise_error("cannot serialize bf16 tensor: invalid datatype")
    return np.asarray(bf16_of(input_tensor).tobytes(), dtype=np.object_)


def deserialize_bf16_tensor(encoded_tensor: bytes) -> NDArray[Any]:
    """The float32 of which :func:`serialize_bf16_tensor` kept the upper halves."""
    return from_bf16(encoded_tensor)


def bf16_of(array: NDArray[Any]) -> NDArray[Any]:
    """The upper halves of float32, flat."""
    words = np.ascontiguousarray(array.astype("<f4")).reshape(-1).view("<u2")
    return np.ascontiguousarray(words[1::2])


def from_bf16(data: Any) -> NDArray[Any]:
    """The float32 with these upper halves, flat."""
    return (np.frombuffer(data, dtype="<u2").astype("<u4") << 16).view("<f4")


def deserialize_bytes_tensor(encoded_tensor: bytes) -> NDArray[Any]:
    """The elements of :func:`serialize_byte_tensor`."""
    elements, at = [], 0
    while at < len(encoded_tensor):
        (length,) = struct.unpack_from("<I", encoded_tensor, at)
        if length > len(encoded_tensor) - at - 4:
            raise_error(f"cannot deserialize bytes tensor: an element at byte {at} has {length} bytes, which are not there")
        elements.append(bytes(encoded_tensor[at + 4 : at + 4 + length]))
        at += 4 + length
    found = np.empty(len(elements), dtype=np.object_)
    found[:] = elements
    return found


def serialized_byte_size(tensor_value: NDArray[Any]) -> int:
    """Bytes of the elements of a tensor, without lengths."""
    if tensor_value.dtype != np.object_:
        raise_error("The tensor_value dtype must be np.object_")
    return sum(len(element) for element in tensor_value.reshape(-1))


__all__ = [
    "TRITON_RESERVED_REQUEST_PARAMS",
    "TRITON_RESERVED_REQUEST_PARAMS_PREFIX",
    "InferenceServerException",
    "deserialize_bf16_tensor",
    "deserialize_bytes_tensor",
    "np_to_triton_dtype",
    "raise_error",
    "serialize_bf16_tensor",
    "serialize_byte_tensor",
    "serialized_byte_size",
    "triton_to_np_dtype",
]
