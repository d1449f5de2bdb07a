"""Tensor files of every format, with the functions that ``safetensors`` has."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._dtypes import dtype_name, is_native, numpy_dtype
from ._hints import nearest, shown

PathLike = str | os.PathLike[str]
Array = NDArray[Any]

#: Whether NumPy gives read-only memory away with DLPack, which says so since its version 1.0.
_KNOWS_DLPACK_1 = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)


_FRAMEWORKS = {
    "np": "numpy",
    "numpy": "numpy",
    "pt": "torch",
    "torch": "torch",
    "pytorch": "torch",
    "flax": "jax",
    "jax": "jax",
}


def _framework(framework: str) -> str:
    try:
        return _FRAMEWORKS[framework]
    except KeyError:
        raise ValueError(f"framework: expected 'numpy', 'torch' or 'jax', found {framework!r}") from None


def _device(framework: str, device: Any) -> Any:
    """The device of tensors of torch; None where they stay where they are read."""
    if str(device) == "cpu":
        return None
    if framework != "torch":
        raise ValueError(f"device: expected 'cpu' with framework {framework!r}, found {device!r}")
    return device


def _as_torch(data: Any, dtype: str, shape: tuple[int, ...], place: str) -> Any:
    torch: Any = import_module("torch")
    wanted = getattr(torch, dtype, None)
    if not isinstance(wanted, torch.dtype):
        raise TypeError(f"{place}: torch has no dtype {dtype}; raw() gives the bytes")
    if 0 in shape:
        return torch.empty(shape, dtype=wanted)
    with warnings.catch_warnings():
        # Of memory that is read-only, which torch cannot express.
        warnings.filterwarnings("ignore", message=".*buffer is not writable", category=UserWarning)
        return torch.frombuffer(data, dtype=wanted).reshape(shape)


#: Where jax uses memory on the processor without a copy.
_ALIGNMENT = 64


def _as_jax(array: Array) -> Any:
    """Lends an array that nothing writes to any more. Unlike ``jax.numpy.asarray``, ``device_put`` copies only what it must."""
    jax: Any = import_module("jax")
    return jax.device_put(array)


class Tensor:
    """A tensor of an open file, not read yet. Reading it keeps the file open for as long as a view lives.

    Attributes: ``name``, ``dtype`` (NumPy's name), ``shape``, ``nbytes`` (of the elements), ``layout`` (``dense`` or
    ``coo``), ``unsupported`` (why it cannot be read, or ``None``).

    Reading a sparse tensor (``coo``) is a :class:`TensorFileError`: it is not made dense in silence. :func:`convert` with
    ``allow_loss=True`` writes a file in which it is dense.
    """

    __slots__ = (
        "_file", "_index", "_is_mapped", "_stored", "name", "dtype", "shape", "nbytes", "layout", "unsupported",
    )  # fmt: skip

    def __init__(self, file: _native.File, index: int, entry: tuple[Any, ...], is_mapped: bool) -> None:
        self._file = file
        self._index = index
        self._is_mapped = is_mapped
        self._stored: str = entry[6]
        self.name: str = entry[0]
        self.dtype: str = entry[1]
        self.shape: tuple[int, ...] = tuple(entry[2])
        self.nbytes: int | None = entry[3]
        self.layout: str = entry[4]
        self.unsupported: str | None = entry[5]

    def __repr__(self) -> str:
        layout = ", coo" if self.layout == "coo" else ""
        unsupported = "" if self.unsupported is None else ", unsupported"
        return f"Tensor({self.name!r}, {_shape(self)}{layout}{unsupported})"

    def raw(self) -> memoryview:
        """The elements' bytes, row-major and little-endian, read-only. A view where the file is mapped and the tensor is
        stored as it is, else a copy."""
        return memoryview(self._file.tensor(self._index))

    def view(self) -> Array:
        """A read-only array over :meth:`raw`: without a copy of a mapped file, else over a copy. bfloat16 and 8-bit floats are those of
        ``ml_dtypes``; where it is not installed they are typed bits, with the same bytes."""
        dtype = self._numpy_dtype()
        flat = np.frombuffer(self.raw(), dtype=dtype)
        with self._sized():
            return flat.reshape(self.shape)

    def numpy(self) -> Array:
        """A new, writable array, read straight from the file, with the dtypes of :meth:`view`."""
        dtype = self._numpy_dtype()
        with self._sized():
            out = np.empty(self.shape, dtype=dtype)
        return self._read_into(out)

    def _aligned(self) -> Array:
        """The same at an address that others than NumPy take without a copy."""
        dtype = self._numpy_dtype()
        with self._sized():
            room = np.empty(math.prod(self.shape) * dtype.itemsize + _ALIGNMENT, dtype=np.uint8)
            start = -room.ctypes.data % _ALIGNMENT
            out = room[start : start + room.size - _ALIGNMENT].view(dtype).reshape(self.shape)
        return self._read_into(out)

    def _read_into(self, out: Array) -> Array:
        self._file.read_into(self._index, out.reshape(-1).view(np.uint8))
        return out

    def torch(self, *, copy: bool = True) -> Any:
        """A new ``torch.Tensor``, read straight from the file.

        With ``copy=False`` it lies in the mapped file where that is possible, and is copied in silence where it is not (a file that is not
        mapped, or bytes that are compressed). torch has no read-only tensors: a program that writes to one of a mapped file is ended by
        the system (SIGSEGV). Raises ``TypeError`` for dtypes that torch has not.
        """
        self._check_readable()
        if not copy:
            return _as_torch(self.raw(), self.dtype, self.shape, self._place())
        with self._sized():
            data = np.empty(self.nbytes or 0, dtype=np.uint8)
        self._file.read_into(self._index, data)
        return _as_torch(data, self.dtype, self.shape, self._place())

    def jax(self) -> Any:
        """A ``jax.Array`` on jax's default device. Where 64 bits are off, which is jax's default, it has 32: floats are rounded, and
        integers beyond 32 bits become others in silence, as jax does it.

        On the processor, jax uses what was read without a copy. Of a mapped file it uses the mapping itself, which it keeps alive and
        never writes to, if the tensor begins at a multiple of 64 bytes; else it copies."""
        self._check_readable()
        return _as_jax(self.view() if self._is_mapped else self._aligned())

    def _get(self, framework: str, device: Any) -> Any:
        """As a new array of the framework."""
        if framework == "torch":
            tensor = self.torch()
            return tensor if device is None else tensor.to(device)
        return self.numpy() if framework == "numpy" else self.jax()

    def _place(self) -> str:
        """The file and the tensor, for errors."""
        path = self._file.path
        return f"tensor {self.name!r}" if path is None else f"{path}: tensor {self.name!r}"

    def _check_readable(self) -> None:
        if self.unsupported is not None:
            text = f"{self._place()}: {self.unsupported}"
            raise _failure(self, "Unsupported", text if self.nbytes is None else f"{text}; raw() gives the bytes")

    def _numpy_dtype(self) -> np.dtype[Any]:
        self._check_readable()
        try:
            return numpy_dtype(self.dtype)
        except TypeError as error:
            raise TypeError(f"{self._place()}: {error}; raw() gives the bytes") from None

    def _sized(self) -> _Sized:
        return _Sized(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """For ``numpy.asarray``: of a mapped file a read-only view, else a new array. With ``dtype`` it is cast as ``astype`` does: floats
        are rounded, and numbers that do not fit an integer become others in silence."""
        is_lent = copy is False or copy is None and self._is_mapped
        array = self.view() if is_lent else self.numpy()
        if dtype is None or np.dtype(dtype) == array.dtype:
            return array
        if copy is False:
            raise ValueError(f"{self._place()}: {array.dtype} becomes {np.dtype(dtype)} only by a copy")
        return array.astype(dtype)

    def __buffer__(self, flags: int, /) -> memoryview:
        """Read-only bytes, for ``memoryview(tensor)`` (Python 3.12 or newer; :meth:`raw` is the same)."""
        return self.raw()

    def __dlpack__(self, *, copy: bool | None = None, max_version: tuple[int, int] | None = None, **options: Any) -> Any:
        """For ``numpy.from_dlpack``, ``torch.from_dlpack``, ``jax.dlpack.from_dlpack``: a new array. With ``copy=False``, of a
        mapped file read-only memory without a copy, for callers that know DLPack 1.0. Not all that say so look whether memory is
        read-only: writing to a tensor that torch made of it ends the program (SIGSEGV).

        Raises ``BufferError`` where ``copy=False`` cannot be, and for bfloat16 and 8-bit floats, which NumPy does not lend:
        :meth:`torch` and :meth:`jax` have them."""
        if not is_native(self.dtype):
            raise BufferError(f"{self._place()}: NumPy cannot export {self.dtype}; use torch() or jax()")
        version: dict[str, Any] = {"max_version": max_version} if _KNOWS_DLPACK_1 else {}
        if copy is not False:
            return self._aligned().__dlpack__(**version, **options)
        if not _KNOWS_DLPACK_1 or max_version is None or max_version[0] < 1:
            raise BufferError(
                f"{self._place()}: read-only memory needs a consumer with DLPack 1.0, and NumPy 2.1 or newer"
            )
        return self.view().__dlpack__(copy=copy, **version, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class _Sized:
    """Where an array is made: a size that NumPy or the machine has no room for is the file's error, and names the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, (MemoryError, ValueError)):
            tensor = self._tensor
            text = f"{tensor._place()}: no array of {tensor.dtype}{list(tensor.shape)}: {error}"
            raise _failure(tensor, "TooLarge", text) from error


def _failure(tensor: Tensor, kind: str, text: str) -> _native.TensorFileError:
    failure = _native.TensorFileError(text)
    failure.kind, failure.file, failure.tensor = kind, tensor._file.path, tensor.name
    failure.byte, failure.rule = None, None
    return failure


class Slice:
    """Rows of a tensor, as ``safetensors`` gives them: ``f.get_slice("w")[0:10]`` reads only these rows.

    Any other index is applied to the rows that it needs at most: an index of columns reads all of the rows, and a step, a list or
    an ellipsis in the first place reads the whole tensor. What is given is a new array, never a view of the file.
    """

    def __init__(self, tensor: Tensor, framework: str, device: Any = None) -> None:
        self._tensor = tensor
        self._framework = framework
        self._device = device

    def __repr__(self) -> str:
        return f"Slice({self._tensor.name!r}, {_shape(self._tensor)})"

    def get_shape(self) -> list[int]:
        """The dimensions of the whole tensor."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """The dtype as safetensors calls it, such as ``F32``, in files of every format."""
        return self._tensor._stored

    def __getitem__(self, index: Any) -> Any:
        tensor = self._tensor
        tensor._check_readable()
        if not tensor.shape:
            return tensor._get(self._framework, self._device)[index]
        # Of the index, the first part says which rows are read; the whole is applied to them.
        first, *rest = index if isinstance(index, tuple) and index else (index,)
        wanted: Any = index
        start, stop = 0, tensor.shape[0]
        if isinstance(first, slice) and first.step in (None, 1):
            start, stop, _ = first.indices(tensor.shape[0])
            stop, wanted = max(start, stop), (slice(None), *rest)
        elif isinstance(first, (int, np.integer)):
            start = int(first) + (tensor.shape[0] if first < 0 else 0)
            if not 0 <= start < tensor.shape[0]:
                raise IndexError(f"tensor {tensor.name!r} has {tensor.shape[0]} rows, found index {int(first)}")
            stop, wanted = start + 1, (0, *rest)
        data, shape = tensor._file.rows(tensor._index, start, stop)
        if self._framework == "torch":
            part = _as_torch(bytearray(data), tensor.dtype, tuple(shape), tensor._place())
            part = part if self._device is None else part.to(self._device)
            return part[wanted]
        part = np.frombuffer(memoryview(data), dtype=tensor._numpy_dtype()).reshape(shape).copy()[wanted]
        return part if self._framework == "numpy" else _as_jax(part)


class safe_open(Mapping[str, Tensor]):
    """Opens a tensor file of any format, by its content; ``safetensors.safe_open`` with more formats.

    ``framework`` is ``"numpy"`` (``"np"``), ``"torch"`` (``"pt"``) or ``"jax"`` (``"flax"``); ``device`` is one of torch's, if that
    is the framework. With ``mmap=True`` the file is mapped and :meth:`Tensor.view` of a tensor that is stored as it is costs no
    copy. That is a promise of the caller's: a process that shortens a mapped file ends this one with SIGBUS, and one that
    writes to it changes the arrays. ``backend`` is taken as safetensors has it, and ignored.

    Raises :class:`TensorFileError` for what is wrong with the file, ``OSError`` for what the system refuses.
    """

    def __init__(
        self,
        filename: PathLike,
        framework: str = "numpy",
        device: Any = "cpu",
        *,
        mmap: bool = False,
        backend: str | None = None,
    ) -> None:
        self._framework = _framework(framework)
        self._device = _device(self._framework, device)
        self._open(_native.File.open(os.fspath(filename), mmap), mmap)

    def _open(self, file: _native.File, is_mapped: bool) -> None:
        self._file = file
        self._tensors = {
            entry[0]: Tensor(file, index, entry, is_mapped) for index, entry in enumerate(file.entries())
        }

    def __repr__(self) -> str:
        tensors = shown(f"{name} {_shape(tensor)}" for name, tensor in self._tensors.items())
        count = f"{len(self)} tensor{'' if len(self) == 1 else 's'}"
        return f"safe_open({self._file.path!r}, {self.format}, {count}: {tensors})"

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def format(self) -> str:
        """The format's short name, such as ``safetensors`` or ``ztensor``."""
        return self._file.format

    def metadata(self) -> dict[str, str] | None:
        """What the file says about itself, or None if it says nothing. Values are texts: numbers, lists and the like of GGUF are spelled
        out, and their types are dropped."""
        return self._file.metadata or None

    def keys(self) -> list[str]:  # type: ignore[override]
        """The names of the tensors, in the order of the file."""
        return list(self._tensors)

    def offset_keys(self) -> list[str]:
        """As :meth:`keys`."""
        return list(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            path = self._file.path
            place = "the file" if path is None else path
            raise KeyError(f"{place} has no tensor {name!r}{nearest(name, self._tensors)}") from None

    def get_tensor(self, name: str) -> Any:
        """A tensor as a new array of the framework, a copy also with ``mmap=True``: see :meth:`Tensor.numpy`, :meth:`Tensor.torch` and
        :meth:`Tensor.jax`. On another device than the processor it is copied once more."""
        return self[name]._get(self._framework, self._device)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors as new arrays of the framework, by name. A tensor that cannot be read is an error for all: see :meth:`get_tensor`
        for one by one."""
        return {name: self.get_tensor(name) for name in self}

    def get_slice(self, name: str) -> Slice:
        """A tensor of which parts are to be read."""
        return Slice(self[name], self._framework, self._device)

    def verify(self) -> dict[str, str]:
        """Reads everything and checks it against its checksums: ``"ok"``, ``"unchecked"`` where a tensor has none, or ``"unknown checksum
        ..."`` where it has one of a kind that cannot be computed here.

        Raises :class:`TensorFileError` for the first tensor that is corrupt.
        """
        return dict(self._file.verify())


def load_file(
    filename: PathLike, framework: str = "numpy", device: Any = "cpu", *, mmap: bool = False
) -> dict[str, Any]:
    """All tensors of a file of any format, or of a directory with a checkpoint in several files, by name.

    They are new arrays in the dtypes of the file; its metadata is left out (:meth:`safe_open.metadata`). With ``mmap`` they are read-only
    views where that is possible, and copies where it is not; see :class:`safe_open` for what that promises. Raises
    :class:`TensorFileError` if any tensor cannot be read, such as a sparse one or blocks of GGUF."""
    file = safe_open(filename, framework, device, mmap=mmap)
    if mmap and file._framework == "numpy":
        return {name: tensor.view() for name, tensor in file.items()}
    if mmap and file._framework == "torch" and file._device is None:
        return {name: tensor.torch(copy=False) for name, tensor in file.items()}
    return file.get_tensors()


def load(data: bytes | bytearray | memoryview, framework: str = "numpy") -> dict[str, Any]:
    """All tensors of a file that is in memory, as new arrays: the data is copied first. Raises as :func:`load_file`."""
    file = safe_open.__new__(safe_open)
    file._framework, file._device = _framework(framework), None
    file._open(_native.File.from_bytes(memoryview(data).cast("B")), False)
    return file.get_tensors()


def save_file(
    tensors: Mapping[str, Any],
    filename: PathLike,
    metadata: Mapping[str, str] | None = None,
    *,
    format: str | None = None,
) -> int:
    """Writes a file of the format that its name says, or ``format``; returns its length in bytes.

    The file appears under its name when it is complete; what was there before is untouched until then.

    ``tensors`` are arrays, or what NumPy takes for one, torch tensors, or a :class:`Tensor` of another file. The dtype and the numbers
    remain; what is not a number is dropped: the mask of a masked array, the labels of a data frame, ``requires_grad``, the device,
    and that tensors share memory. An array that is row-major and little-endian is written as it lies in memory, any other from a copy.

    Nothing else is dropped in silence: raises :class:`TensorFileError` when the format cannot hold a tensor, its name or the metadata,
    ``TypeError`` and ``ValueError`` for what is no tensor of numbers or booleans.
    """
    return _native.save_file(os.fspath(filename), _given(tensors), _texts(metadata), format)


def save(
    tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None, *, format: str = "safetensors"
) -> bytes:
    """The bytes of a file, made in memory and copied once. Drops and raises as :func:`save_file`."""
    return bytes(memoryview(_native.save_bytes(_given(tensors), _texts(metadata), format)))


class Writer:
    """Writes a file tensor by tensor, where not all of them fit in memory or their names are not known beforehand.

    ::

        with Writer("model.zt") as w:
            for name, array in layers():
                w.add(name, array)

    The format is the one that the name says, or ``format``. Tensors are kept in a file without a name beside the target
    until the ``with`` block ends, so the disk must have room for both; memory stays at a piece. The file appears under its
    name when it is complete. An exception in the block leaves what was there before.
    """

    def __init__(
        self, filename: PathLike, metadata: Mapping[str, str] | None = None, *, format: str | None = None
    ) -> None:
        self._path = os.fspath(filename)
        self._native = _native.Writer(self._path, _texts(metadata), format)
        self._added, self._is_closed = 0, False

    def __repr__(self) -> str:
        count = f"{self._added} tensor{'' if self._added == 1 else 's'}"
        return f"Writer({self._path!r}, {count}{', closed' if self._is_closed else ''})"

    def add(self, name: str, tensor: Any) -> None:
        """Adds a tensor, which is copied to the disk: an array, a torch tensor, or a :class:`Tensor` of another file. Drops and raises as
        :func:`save_file`, and ``ValueError`` for a name that was added before. Whether the format can hold it is known in :meth:`close`."""
        self._native.add((name, *_contiguous(name, tensor)))
        self._added += 1

    def close(self) -> int:
        """Writes the file; returns its length in bytes. Raises :class:`TensorFileError` when the format cannot hold it."""
        self._is_closed = True
        return self._native.finish()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._is_closed = True
            self._native.abort()


def convert(
    source: PathLike,
    target: PathLike,
    *,
    format: str | None = None,
    dtype: str | None = None,
    keep_dtype: str | Iterable[str] = (),
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    rename: str | Iterable[str] = (),
    max_shard_size: int | str | None = None,
    allow_loss: bool = False,
    strict: bool = False,
    progress: bool | Callable[[int, int], Any] = False,
) -> list[str]:
    """Converts a file piece by piece, with bounded memory, as ``tensor convert`` does.

    ``dtype`` rounds floats to ``"f16"``, ``"bf16"``, ``"f32"`` or ``"f64"``, which is not in what is returned; tensors that fit
    ``keep_dtype``, integers and booleans stay as they are. ``include``
    and ``exclude`` are globs such as ``"model.layers.*"`` or regular expressions behind ``re:``; ``rename`` is ``"model.*=>*"``.
    With ``max_shard_size``, a number of bytes or a text such as ``"5GB"``, several files and their index are written.
    ``progress=True`` shows a bar on standard error; a function is called with the bytes that are written and all of them.

    Returns what the target does not hold, as sentences; tensors that ``include`` and ``exclude`` leave out are not among them. Metadata
    that it has no place for is dropped, unless ``strict`` is given. Tensors, sparsity (they become dense), names and numbers out of range
    (they become infinite) are lost only with ``allow_loss``; without it, that is a :class:`TensorFileError` and the target is untouched."""
    options = {
        "format": format,
        "allow_loss": allow_loss,
        "strict": strict,
        "dtype": dtype,
        "keep_dtype": _listed(keep_dtype),
        "include": _listed(include),
        "exclude": _listed(exclude),
        "rename": _listed(rename),
        "max_shard_size": _bytes(max_shard_size),
    }
    with _progress(progress, os.fspath(target)) as report:
        return _native.convert(os.fspath(source), os.fspath(target), options | {"progress": report})


def diff(first: PathLike, second: PathLike, *, rtol: float = 0.0, atol: float = 0.0) -> list[dict[str, str]]:
    """Where two files differ in tensors or metadata, whatever their formats: ``name`` and ``text`` of each difference; empty when they
    agree. Numbers agree within ``atol + rtol * |second|``."""
    return _native.diff(os.fspath(first), os.fspath(second), rtol, atol)


def verify(filename: PathLike) -> dict[str, str]:
    """As :meth:`safe_open.verify`."""
    return safe_open(filename).verify()


def manifest(filename: PathLike, *, format: str = "text") -> str:
    """What a file's tensors are: dtype, shape and SHA-256 of each, and one digest of all. It is the same for the same tensors in
    every format, to the last byte, so it can be signed; ``format`` is ``"text"`` or ``"json"``. Metadata is not part of it."""
    if format not in ("text", "json"):
        raise ValueError(f"format: expected 'text' or 'json', found {format!r}")
    return _native.manifest(os.fspath(filename), format == "json")


def check_manifest(filename: PathLike, manifest: str) -> dict[str, str]:
    """Checks a file against the text of a manifest in either form: what differs, by tensor; empty when nothing does. Metadata is not
    compared."""
    return dict(_native.check_manifest(os.fspath(filename), manifest))


def formats() -> dict[str, list[str]]:
    """Every format: its short name, and how its files' names end. ``onnx`` and ``torch`` are read only."""
    return dict(_native.formats())


def _shape(tensor: Tensor) -> str:
    """What a tensor is, for a ``repr``."""
    return f"{tensor.dtype}{list(tensor.shape)}"


def _given(tensors: Mapping[str, Any]) -> list[tuple[str, str, list[int], Any]]:
    return [(name, *_contiguous(name, tensor)) for name, tensor in tensors.items()]


def _listed(patterns: str | Iterable[str]) -> list[str]:
    """One pattern, or several."""
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _bytes(size: int | str | None) -> int | None:
    """A number of bytes, which may have a unit: ``"5GB"`` or ``"512 MiB"``."""
    if size is None or isinstance(size, int):
        return size
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", size, re.IGNORECASE)
    if not found:
        raise ValueError(f"max_shard_size: expected a number of bytes such as 5000000000, '5GB' or '4GiB', found {size!r}")
    number, unit, binary = found.groups()
    power = "KMGT".index(unit.upper()) + 1 if unit else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


@contextlib.contextmanager
def _progress(wanted: bool | Callable[[int, int], Any], name: str) -> Iterator[Callable[[int, int], Any] | None]:
    """What is called as bytes are written: a bar on standard error, the caller's function, or nothing."""
    if callable(wanted):
        yield wanted
        return
    if not wanted:
        yield None
        return
    shown = False

    def bar(done: int, total: int) -> None:
        nonlocal shown
        shown = True
        part = done / total if total else 1.0
        filled = int(part * 30)
        sys.stderr.write(f"\r{os.path.basename(name)}  {'#' * filled}{'.' * (30 - filled)}  {done / 1e9:.2f} of {total / 1e9:.2f} GB")
        sys.stderr.flush()

    try:
        yield bar
    finally:
        if shown:
            sys.stderr.write("\n")


def _texts(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Metadata as the native half takes it. Raises ``TypeError`` that says what is no text."""
    for name, value in (metadata or {}).items():
        if not isinstance(name, str):
            raise TypeError(f"metadata: expected names that are str, found {name!r}")
        if not isinstance(value, str):
            raise TypeError(f"metadata {name!r}: expected str, found {value!r}")
    return dict(metadata or {})


def _contiguous(name: str, tensor: Any) -> tuple[str, list[int], Any]:
    """Dtype, shape, and the bytes of an array or a torch tensor, row-major and little-endian."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a tensor: expected str, found {name!r}")
    if isinstance(tensor, Tensor):
        tensor._check_readable()
        return tensor.dtype, list(tensor.shape), tensor.raw()
    if type(tensor).__module__.partition(".")[0] == "torch":
        torch: Any = import_module("torch")
        tensor = tensor.detach().cpu().contiguous()
        dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        return dtype, shape, tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
    array = np.asarray(tensor, order="C")
    if array.dtype.hasobject or array.dtype.kind in "US":
        raise TypeError(f"tensor {name!r}: dtype {array.dtype} cannot be stored; expected numbers or booleans")
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and np.little_endian is False):
        array = array.astype(array.dtype.newbyteorder("<"))
    return dtype_name(array.dtype), list(array.shape), np.ascontiguousarray(array).reshape(-1).view(np.uint8)
