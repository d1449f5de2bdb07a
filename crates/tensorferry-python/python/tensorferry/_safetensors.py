"""What the modules with the functions of ``safetensors`` share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from . import _native
from ._files import PathLike, save_file

#: Formats that are read only, whose names people give to files of tensors all the same.
_READ_ONLY = ("onnx", "torch")


def write(tensors: Mapping[str, Any], filename: PathLike, metadata: Mapping[str, str] | None) -> None:
    """Writes a file of the format that its name says, and of safetensors where the name says none that is written."""
    extension = os.fspath(filename).rpartition(".")[2].lower()
    is_known = any(extension in extensions for id, extensions in _native.formats() if id not in _READ_ONLY)
    save_file(tensors, filename, metadata, format=None if is_known else "safetensors")
