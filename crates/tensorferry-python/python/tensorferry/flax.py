"""The functions of ``safetensors.flax``, for files of every format: a changed import is the migration.

::

    from tensorferry.flax import load_file, save_file       # was: safetensors.flax

Tensors are arrays of jax. Where jax's 64 bits are off, which is its default, numbers of 64 bits arrive with 32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _files
from ._files import PathLike
from ._safetensors import write


def load_file(filename: PathLike, *, backend: str | None = None) -> dict[str, Any]:
    """All tensors of a file, by name, as new arrays. ``backend`` is taken and ignored. Raises :class:`tensorferry.TensorFileError`."""
    return _files.load_file(filename, "jax")


def load(data: bytes) -> dict[str, Any]:
    """All tensors of a file that is in memory, as new arrays: the data is copied first."""
    return _files.load(data, "jax")


def save_file(tensors: Mapping[str, Any], filename: PathLike, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file, which appears at its path when it is complete. Drops and raises as :func:`tensorferry.save_file`."""
    write(tensors, filename, metadata)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file. Drops and raises as :func:`tensorferry.save`."""
    return _files.save(tensors, metadata)


__all__ = ["load", "load_file", "save", "save_file"]
