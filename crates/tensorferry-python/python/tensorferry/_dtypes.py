"""NumPy's dtypes and the names that files and servers have for them."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Datatypes of the Open Inference Protocol by NumPy's names.
OIP = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}
_BY_OIP = {oip: name for name, oip in OIP.items()}


#: Floats that NumPy has only with ``ml_dtypes``, and the bits of one.
_SMALL_FLOATS = {
    "bfloat16": "<u2",
    "float8_e4m3fn": "u1",
    "float8_e5m2": "u1",
    "float8_e4m3fnuz": "u1",
    "float8_e5m2fnuz": "u1",
    "float8_e8m0fnu": "u1",
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name such as ``float32`` or ``bfloat16``.

    bfloat16 and 8-bit floats are those of ``ml_dtypes``. Where it is not installed they are typed bits: a structured dtype
    whose one field has the name, so that ``array["bfloat16"]`` are the bits as ``uint16``, and NumPy does not take them for
    numbers. Raises ``TypeError`` for other names.
    """
    if name not in _SMALL_FLOATS:
        try:
            return np.dtype(name)
        except TypeError:
            raise TypeError(f"NumPy has no dtype {name}") from None
    try:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
    except (ImportError, AttributeError):
        return np.dtype([(name, _SMALL_FLOATS[name])])


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of a NumPy dtype, as :func:`numpy_dtype` takes it."""
    if dtype.names is not None and len(dtype.names) == 1 and dtype.names[0] in _SMALL_FLOATS:
        return dtype.names[0]
    return dtype.name


def is_native(name: str) -> bool:
    """Whether NumPy has the dtype without ``ml_dtypes``."""
    return name not in _SMALL_FLOATS


def from_oip(datatype: str) -> np.dtype[Any]:
    """The NumPy dtype of one of the protocol's datatypes, except BYTES."""
    try:
        return numpy_dtype(_BY_OIP[datatype])
    except KeyError:
        raise TypeError(f"unknown datatype {datatype}") from None


def numpy_name(datatype: str) -> str | None:
    """How a program names the NumPy dtype of one of the protocol's datatypes; None for one that is not known here."""
    name = _BY_OIP.get(datatype)
    if name is None or is_native(name):
        return "bool" if name == "bool" else name and f"np.{name}"
    return f"ml_dtypes.{name}"
