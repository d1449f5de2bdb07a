"""Converts tensors between the protocol and NumPy."""

import struct

import numpy as np

_LENGTH = struct.Struct("<I")

#: NumPy's dtypes by the protocol's datatypes.
DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}

try:
    import ml_dtypes

    DTYPES["BF16"] = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    pass

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_of(datatype):
    """Returns NumPy's dtype for a datatype of the protocol."""
    dtype = DTYPES.get(datatype)
    if dtype is None and datatype == "BF16":
        raise ValueError("BF16 needs the package ml_dtypes in the model's Python: pip install ml_dtypes")
    if dtype is None:
        raise ValueError(f"{datatype!r} is not a datatype; expected one of {', '.join(DTYPES)}")
    return dtype


def datatype_of(written):
    """Returns the protocol's datatype for a model's notation: "FP32", "float32", numpy.float32, "TYPE_FP32", str, bytes."""
    if isinstance(written, str):
        name = written.removeprefix("TYPE_").upper() if written.isupper() else written
        name = "BYTES" if name == "STRING" else name
        if name in DTYPES or name == "BF16":
            dtype_of(name)
            return name
    if written in (str, bytes, object, "str", "bytes", "object"):
        return "BYTES"
    try:
        dtype = np.dtype(written)
    except TypeError:
        raise ValueError(f"{written!r} is not a datatype; expected one of {', '.join(DTYPES)}") from None
    if dtype.kind in "SUO":
        return "BYTES"
    name = _NAMES.get(dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype)
    if name is None:
        raise ValueError(f"the protocol has no datatype for {dtype}; it has {', '.join(DTYPES)}")
    return name


def decode_strings(raw, shape):
    """Decodes length-prefixed strings into an object array of bytes."""
    elements, at, end = [], 0, len(raw)
    unpack = _LENGTH.unpack_from
    while at < end:
        (length,) = unpack(raw, at)
        at += 4
        elements.append(bytes(raw[at : at + length]))
        at += length
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def encode_strings(array):
    """Encodes an array of bytes or str objects, or of NumPy's own strings, as length-prefixed strings."""
    parts = []
    for element in array.ravel(order="C").tolist():
        if isinstance(element, str):
            element = element.encode("utf-8")
        elif not isinstance(element, (bytes, bytearray, memoryview)):
            raise TypeError(f"an element of a BYTES tensor is {type(element).__name__}, expected bytes or str")
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def as_array(value, datatype, name):
    """Converts a model's value for an output to an array of the declared datatype."""
    if type(value) is np.ndarray and value.dtype is DTYPES.get(datatype) and datatype != "BYTES":
        return value
    if hasattr(value, "detach") and not isinstance(value, np.ndarray):
        # A tensor of PyTorch, which may be part of a graph or on a device.
        value = value.detach().cpu().numpy()
    if datatype == "BYTES":
        if isinstance(value, (bytes, str)):
            scalar = np.empty((), dtype=object)
            scalar[()] = value
            return scalar
        if isinstance(value, np.ndarray) and value.dtype.kind in "SUO":
            return value
        array = np.asarray(value)
        if array.dtype.kind in "SU" and not isinstance(value, np.ndarray):
            # NumPy's own strings would lose trailing zero bytes.
            array = np.asarray(value, dtype=object)
        if array.dtype.kind not in "SUO":
            raise TypeError(f"the output {name!r} has dtype {array.dtype}, expected strings for BYTES")
        return array
    array = np.asarray(value)
    dtype = dtype_of(datatype)
    if array.dtype != dtype:
        if array.dtype.kind in "SUO" or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise TypeError(f"the output {name!r} has dtype {array.dtype}, expected {dtype} for {datatype}")
        array = _cast(array, dtype, datatype, name)
    return array


def _cast(array, dtype, datatype, name):
    """Converts an array to another dtype. Refuses numbers that would change other than by losing precision."""
    if np.can_cast(array.dtype, dtype, "safe") or array.size == 0:
        return array.astype(dtype)
    if dtype.kind in "iu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        if least <= int(array.min()) and int(array.max()) <= most:
            return array.astype(dtype)
        # Compares as Python integers, because NumPy would convert 64-bit integers to floats.
        wrong = np.vectorize(lambda value: not least <= int(value) <= most, otypes=[bool])(array)
        expected = f"{least} to {most}"
    else:
        with np.errstate(over="ignore"):
            cast = array.astype(dtype)
        infinite = np.isinf(cast)
        if not infinite.any():
            return cast
        wrong = infinite & np.isfinite(array)
        if not wrong.any():
            return cast
        expected = "finite numbers that do not become infinite"
    place = [int(at) for at in np.argwhere(wrong)[0]]
    raise ValueError(f"the output {name!r} has {array[tuple(place)]} at {place}, which {datatype} cannot hold: expected {expected}")
