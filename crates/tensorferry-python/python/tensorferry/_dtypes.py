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


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name such as ``float32`` or ``bfloat16``; the latter and 8-bit floats need ``ml_dtypes``."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            f"dtype {name} is not one of NumPy's own: install ml_dtypes (pip install tensorferry[dtypes]), "
            'or read the tensor with framework="torch"'
        ) from None
    try:
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
    except AttributeError:
        raise TypeError(f"neither NumPy nor ml_dtypes has a dtype {name}") from None


def from_oip(datatype: str) -> np.dtype[Any]:
    """The NumPy dtype of one of the protocol's datatypes, except BYTES."""
    try:
        return numpy_dtype(_BY_OIP[datatype])
    except KeyError:
        raise TypeError(f"unknown datatype {datatype}") from None
