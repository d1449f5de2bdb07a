"""``tritonclient.utils.shared_memory``: regions of system shared memory that a client and a server of one machine share.

::

    handle = shared_memory.create_shared_memory_region("input", "/input", array.nbytes)
    shared_memory.set_shared_memory_region(handle, [array])
    client.register_system_shared_memory("input", "/input", array.nbytes)
    tensor.set_shared_memory("input", array.nbytes)
    ...
    shared_memory.destroy_shared_memory_region(handle)
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Where Linux has the objects of ``shm_open`` as files.
_FOLDER = "/dev/shm"


class SharedMemoryException(Exception):
    """A region cannot be made, written or removed."""


class SharedMemoryRegion:
    """A region that is mapped."""

    def __init__(self, triton_shm_name: str, shm_key: str, memory: mmap.mmap) -> None:
        self._triton_shm_name = triton_shm_name
        self._shm_key = shm_key
        self._memory: mmap.mmap | None = memory

    def _mapped(self) -> mmap.mmap:
        if self._memory is None:
            raise SharedMemoryException(f"shared memory region {self._triton_shm_name!r}: it was destroyed")
        return self._memory


class _Key:
    """How often a key is mapped, and whether its object goes with the last mapping: it does if it was made here."""

    def __init__(self) -> None:
        self.count = 0
        self.is_ours = False


_keys: dict[str, _Key] = {}
_lock = threading.Lock()


def create_shared_memory_region(
    triton_shm_name: str, shm_key: str, byte_size: int, create_only: bool = False
) -> SharedMemoryRegion:
    """Maps the region of this key; makes it if it does not exist, or, with ``create_only``, insists on making it.

    A region that exists keeps its size, with a warning if it is less than ``byte_size``. Raises
    :class:`SharedMemoryException`.
    """
    path = _path(shm_key)
    with _lock:
        is_new = False
        try:
            file = None if create_only else _open(path, os.O_RDWR)
            if file is None:
                file, is_new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), True
            try:
                if is_new:
                    # Where there is no room for it, that is said here and not by a signal later.
                    os.posix_fallocate(file, 0, byte_size)
                memory = mmap.mmap(file, os.fstat(file).st_size)
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            if is_new:
                os.unlink(path)
            text = f"unable to create the shared memory region {triton_shm_name!r} with key {shm_key!r}: {error}"
            raise SharedMemoryException(text) from error
        key = _keys.setdefault(shm_key, _Key())
        key.count += 1
        key.is_ours |= is_new
    if byte_size > len(memory):
        warnings.warn(
            f"reusing shared memory region with key '{shm_key}': its size is {len(memory)} instead of {byte_size}",
            stacklevel=2,
        )
    return SharedMemoryRegion(triton_shm_name, shm_key, memory)


def set_shared_memory_region(
    shm_handle: SharedMemoryRegion, input_values: Sequence[NDArray[Any]], offset: int = 0
) -> None:
    """Copies arrays into a region, one after the other. BYTES go through :func:`..serialize_byte_tensor` first. Raises
    :class:`SharedMemoryException`."""
    if not isinstance(input_values, (list, tuple)):
        raise SharedMemoryException("input_values must be specified as a list/tuple of numpy arrays")
    memory = shm_handle._mapped()
    for value in input_values:
        if not isinstance(value, np.ndarray):
            raise SharedMemoryException("each element of input_values must be a numpy array")
        if value.dtype.hasobject and value.size != 1:
            raise SharedMemoryException("arrays of objects must be serialized: use serialize_byte_tensor")
        data = value.item() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
        if offset < 0 or offset + len(data) > len(memory):
            raise SharedMemoryException(
                f"unable to set the shared memory region {shm_handle._triton_shm_name!r}: expected at most "
                f"{max(len(memory) - offset, 0)} bytes at offset {offset}, found {len(data)}"
            )
        memory[offset : offset + len(data)] = data
        offset += len(data)


def get_contents_as_numpy(
    shm_handle: SharedMemoryRegion, datatype: Any, shape: Sequence[int], offset: int = 0
) -> NDArray[Any]:
    """An array over a region's own memory, which changes with it; of BYTES, a copy of the elements. Raises
    :class:`SharedMemoryException`."""
    memory = shm_handle._mapped()
    if datatype not in (np.object_, np.bytes_):
        try:
            return np.ndarray(tuple(shape), np.dtype(datatype), buffer=memory, offset=offset)
        except TypeError as error:
            raise SharedMemoryException(f"shared memory region {shm_handle._triton_shm_name!r}: {error}") from error
    elements = np.empty(int(np.prod(shape)), dtype=np.object_)
    for index in range(len(elements)):
        try:
            (length,) = struct.unpack_from("<I", memory, offset)
            (elements[index],) = struct.unpack_from(f"<{length}s", memory, offset + 4)
        except struct.error as error:
            text = f"shared memory region {shm_handle._triton_shm_name!r}: element {index} at byte {offset}: {error}"
            raise SharedMemoryException(text) from error
        offset += 4 + length
    return elements.reshape(tuple(shape))


def mapped_shared_memory_regions() -> list[str]:
    """The keys of the regions that are mapped."""
    with _lock:
        return list(_keys)


def destroy_shared_memory_region(shm_handle: SharedMemoryRegion) -> None:
    """Unmaps a region. With the last mapping of its key, the object goes too if it was made here. Memory that an array still lies in
    stays until the array goes. Raises :class:`SharedMemoryException`."""
    shm_handle._mapped()
    # Not closed: NumPy does not tell the mapping of arrays that lie in it. It goes with the last that refers to it.
    shm_handle._memory = None
    with _lock:
        key = _keys[shm_handle._shm_key]
        key.count -= 1
        if key.count > 0:
            return
        del _keys[shm_handle._shm_key]
        if key.is_ours:
            try:
                os.unlink(_path(shm_handle._shm_key))
            except OSError as error:
                raise SharedMemoryException(
                    f"unable to remove the shared memory object {shm_handle._shm_key!r}: {error}"
                ) from error


def _path(key: str) -> str:
    name = key.removeprefix("/")
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise SharedMemoryException(f"shm_key: expected a name such as '/input', found {key!r}")
    return os.path.join(_FOLDER, name)


def _open(path: str, flags: int) -> int | None:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


__all__ = [
    "SharedMemoryException",
    "SharedMemoryRegion",
    "create_shared_memory_region",
    "destroy_shared_memory_region",
    "get_contents_as_numpy",
    "mapped_shared_memory_regions",
    "set_shared_memory_region",
]
