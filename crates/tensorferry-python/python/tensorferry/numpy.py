"""The functions of ``safetensors.numpy``, for files of every format: a changed import is the migration.

::

    from tensorferry.numpy import load_file, save_file      # was: safetensors.numpy

Files are written in the format that their name says (``model.zt``), and as safetensors where it says none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _files
from ._files import Array, PathLike
from ._safetensors import write


def load_file(filename: PathLike, *, backend: str | None = None) -> dict[str, Array]:
    """All tensors of a file, by name, as new arrays. ``backend`` is taken and ignored. Raises :class:`tensorferry.TensorFileError`."""
    return _files.load_file(filename)


def load(data: bytes) -> dict[str, Array]:
    """All tensors of a file that is in memory, as new arrays: the data is copied first."""
    return _files.load(data)


def save_file(tensor_dict: Mapping[str, Any], filename: PathLike, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file, which appears at its path when it is complete. Drops and raises as :func:`tensorferry.save_file`."""
    write(tensor_dict, filename, metadata)


def save(tensor_dict: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file. Drops and raises as :func:`tensorferry.save`."""
    return _files.save(tensor_dict, metadata)


__all__ = ["load", "load_file", "save", "save_file"]
