"""Python values as tensors of the protocol, and tensors as arrays."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._dtypes import OIP, dtype_name, from_oip

Array = NDArray[Any]

#: A tensor as the native half takes it: the protocol's datatype, the shape, and bytes, or the elements of BYTES.
Native = tuple[str, list[int], Any]


class Numbers:
    """An input that is a Python list (tuple, range, number) of numbers: the model says which datatype it gets.

    Raises ``ValueError`` for lists of different lengths, ``TypeError`` for elements that are no numbers.
    """

    def __init__(self, name: str, value: Any, found: Array) -> None:
        self._name = name
        self._value = value
        self._found = found

    def in_datatype(self, datatype: str | None, model: str) -> Native:
        """The numbers in the model's datatype; in NumPy's own (INT64, FP64, BOOL) if it is None, or one that is not known here.

        Floats are rounded. Raises ``ValueError`` for a number that would become another one: a fraction or a large number for
        integers, a finite number that becomes infinite for floats."""
        found = self._found
        if datatype == "BYTES" and found.size:
            first = np.array(self._value, dtype=object).flat[0]
            raise TypeError(f"input {self._name!r} of model {model!r} is BYTES: expected str or bytes, found {first!r}")
        if datatype == "BYTES":
            return "BYTES", list(found.shape), []
        if datatype is None or datatype not in OIP.values():
            return tensor(self._name, found)
        place = f"input {self._name!r} of model {model!r} is {datatype}"
        dtype = from_oip(datatype)
        if dtype.kind in "iu":
            found = self._integers(dtype, place)
        elif dtype.kind == "b":
            found = self._bools(place)
        else:
            found = self._floats(datatype, dtype, place)
        return datatype, list(found.shape), _bytes_of(found)

    def _integers(self, dtype: np.dtype[Any], place: str) -> Array:
        found = self._found
        if found.dtype.kind not in "iub":
            # As Python's own numbers, of which NumPy has made floats.
            numbers = np.array(self._value, dtype=object)
            found = np.empty(numbers.shape, dtype=object)
            found.reshape(-1)[:] = [_whole(number, place) for number in numbers.flat]
        limits = np.iinfo(dtype)
        for number in (found.min(), found.max()) if found.size else ():
            if not limits.min <= int(number) <= limits.max:
                raise ValueError(f"{place}: expected numbers from {limits.min} to {limits.max}, found {int(number)}")
        return found.astype(dtype)

    def _bools(self, place: str) -> Array:
        found = self._found
        is_other = (found != 0) & (found != 1)
        if is_other.any():
            raise ValueError(f"{place}: expected True or False, found {found[is_other].flat[0]}")
        return found.astype(bool)

    def _floats(self, datatype: str, dtype: np.dtype[Any], place: str) -> Array:
        try:
            wide = self._found.astype(np.float64)
            with np.errstate(over="ignore"):
                found = bfloat16(wide, dtype) if datatype == "BF16" else wide.astype(dtype)
                checked = wide.astype(np.float32) if datatype == "BF16" else found
        except OverflowError:
            raise ValueError(f"{place}: an integer is too large for it") from None
        too_large = np.isfinite(wide) & ~np.isfinite(checked)
        if too_large.any():
            raise ValueError(f"{place}: {wide[too_large].flat[0]} is too large for it")
        return found


def read(name: str, value: Any) -> Native | Numbers:
    """An input as the native half takes it, or numbers whose datatype the model says. Raises ``TypeError`` and ``ValueError`` that
    name it."""
    is_list = isinstance(value, (list, tuple, range, bool, int, float)) and not isinstance(value, np.generic)
    if not is_list:
        return tensor(name, value)
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"input {name!r}: expected lists of one length, or numbers: {error}") from None
    is_real = [isinstance(element, Real) for element in found.flat] if found.dtype.kind == "O" else []
    # Objects are integers that no datatype of NumPy has, if they are numbers at all.
    if found.dtype.kind in "iufb" or is_real and all(is_real):
        return Numbers(name, value, found)
    if any(is_real):
        raise TypeError(f"input {name!r}: expected only numbers or only str and bytes, found {found.flat[is_real.index(False)]!r} as well")
    return tensor(name, value)


def tensor(name: str, value: Any, role: str = "input") -> Native:
    """A tensor as the native half takes it, in the datatype that it has. Raises ``TypeError`` that names it."""
    array = np.asarray(value)
    if array.dtype.kind in "SU" and not isinstance(value, (np.ndarray, np.generic)):
        # NumPy's own texts lose zeros at the end, elements that are objects do not.
        array = np.asarray(value, dtype=object)
    if array.dtype.kind in "USO":
        place = f"{role} {name!r}"
        return "BYTES", list(array.shape), [_element(place, element) for element in array.reshape(-1)]
    try:
        datatype = OIP[dtype_name(array.dtype)]
    except KeyError:
        raise TypeError(f"{role} {name!r}: dtype {array.dtype} is not one of the protocol's") from None
    return datatype, list(array.shape), _bytes_of(array)


def little_endian(array: Array) -> Array:
    """The same array, or a copy if its bytes stand the other way round."""
    return array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array


def bfloat16(wide: Array, dtype: np.dtype[Any]) -> Array:
    """Floats as bfloat16, rounded to the nearest: a dtype of ``ml_dtypes``, or typed bits."""
    narrow = np.ascontiguousarray(wide, dtype=np.float32)
    if dtype.names is None:
        return narrow.astype(dtype)
    bits = narrow.view(np.uint32)
    # To the nearest upper half, of two as near to the even one; what is no number stays none.
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    halves = np.where(np.isnan(narrow), bits | np.uint32(0x0040_0000), rounded) >> np.uint32(16)
    return halves.astype("<u2").view(dtype)


def _bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(little_endian(array)).reshape(-1).view(np.uint8)


def _element(place: str, element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode()
    raise TypeError(f"{place}: expected str or bytes, found {type(element).__name__}")


def _whole(number: Any, place: str) -> int:
    try:
        whole = int(number)
    except (OverflowError, ValueError):
        whole = None
    if whole is None or whole != number:
        raise ValueError(f"{place}: expected integers, found {number}")
    return whole


def array(datatype: str, shape: list[int], data: Any) -> Array:
    """A tensor's array over its bytes: read-only, without a copy; elements of BYTES are ``bytes`` objects."""
    if datatype != "BYTES":
        return np.frombuffer(data, dtype=from_oip(datatype)).reshape(shape)
    raw, elements, at = memoryview(data), [], 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 4], "little")
        elements.append(bytes(raw[at + 4 : at + 4 + length]))
        at += 4 + length
    found = np.empty(len(elements), dtype=object)
    found[:] = elements
    return found.reshape(shape)
