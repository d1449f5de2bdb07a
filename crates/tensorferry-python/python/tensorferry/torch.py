"""The functions of ``safetensors.torch``, for files of every format: a changed import is the migration.

::

    from tensorferry.torch import load_file, load_model, save_file, save_model      # was: safetensors.torch

Files are written in the format that their name says (``model.zt``), and as safetensors where it says none. torch is imported
when tensors are made, not with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import _files
from ._files import PathLike
from ._safetensors import write


def load_file(filename: PathLike, device: Any = "cpu", *, backend: str | None = None) -> dict[str, Any]:
    """All tensors of a file, by name, as new ones, on a device of torch's. ``backend`` is taken and ignored.

    Raises :class:`tensorferry.TensorFileError`."""
    return _files.load_file(filename, "torch", device)


def load(data: bytes) -> dict[str, Any]:
    """All tensors of a file that is in memory, as new arrays: the data is copied first."""
    return _files.load(data, "torch")


def save_file(tensors: Mapping[str, Any], filename: PathLike, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file, which appears at its path when it is complete. Drops and raises as :func:`tensorferry.save_file`.

    Raises ``RuntimeError`` for tensors that share memory, which :func:`save_model` writes once; ``ValueError`` for what is no
    dense tensor of torch's."""
    _check(tensors)
    write(tensors, filename, metadata)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file. Raises as :func:`save_file`."""
    _check(tensors)
    return _files.save(tensors, metadata)


def save_model(
    model: Any, filename: PathLike, metadata: Mapping[str, str] | None = None, force_contiguous: bool = True
) -> None:
    """Writes a module's state. Of tensors that are the same memory one is written; the metadata say for each other's name which.

    ``force_contiguous`` is taken and ignored: tensors are always written row-major. Raises ``RuntimeError`` where tensors share a
    memory that none of them covers."""
    state = model.state_dict()
    said = dict(metadata or {})
    for kept, others in _duplicates(state).items():
        for other in others:
            said.setdefault(other, kept)
            del state[other]
    write(state, filename, said)


def load_model(
    model: Any, filename: PathLike, strict: bool = True, device: Any = "cpu", *, backend: str | None = None
) -> tuple[list[str], list[str]]:
    """Loads a file into a module: the names that the file lacks, and those that the module does not have.

    Names of tensors that are the same memory as one that was loaded are not missing. Raises ``RuntimeError`` for any such name
    with ``strict``."""
    state = load_file(filename, device)
    duplicates = _duplicates(model.state_dict(), preferred=state)
    found = model.load_state_dict(state, strict=False)
    missing, unexpected = set(found.missing_keys), list(found.unexpected_keys)
    for others in duplicates.values():
        for other in others:
            if other in missing:
                missing.remove(other)
            elif other not in unexpected:
                # It is another name for what was loaded, and which of both counts is anybody's guess.
                unexpected.append(other)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                quoted = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"    {what} key(s) in state_dict: {quoted}")
        raise RuntimeError("\n".join(lines))
    return sorted(missing), unexpected


def _check(tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        if not hasattr(tensor, "storage"):
            raise ValueError(f"tensor {name!r}: expected a torch.Tensor, found {type(tensor).__name__}")
        if str(tensor.layout) != "torch.strided":
            raise ValueError(f"tensor {name!r}: sparse tensors are not supported; use to_dense()")
    shared = [names for names in _sharing(tensors) if len(names) > 1]
    if shared:
        listed = "; ".join(", ".join(sorted(names)) for names in shared)
        raise RuntimeError(f"tensors share memory ({listed}) and would be written several times: use save_model")


def _sharing(tensors: Mapping[str, Any]) -> list[list[str]]:
    """The names of tensors by groups whose bytes overlap."""
    storages: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    groups: list[list[str]] = []
    for name, tensor in tensors.items():
        if tensor.device.type == "meta" or tensor.numel() == 0:
            groups.append([name])
            continue
        start = tensor.data_ptr()
        strides = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in strides)
        stop = start + (last + 1) * tensor.element_size()
        storage = (str(tensor.device), _storage(tensor).data_ptr())
        storages.setdefault(storage, []).append((start, stop, name))
    for areas in storages.values():
        areas.sort()
        end = -1
        for start, stop, name in areas:
            if start >= end:
                groups.append([])
            groups[-1].append(name)
            end = max(end, stop)
    return groups


def _duplicates(state: Mapping[str, Any], preferred: Iterable[str] = ()) -> dict[str, list[str]]:
    """For each tensor that is kept, the other names for the same memory."""
    found: dict[str, list[str]] = {}
    wanted = set(preferred)
    for names in _sharing(state):
        if len(names) < 2:
            continue
        whole = [name for name in sorted(names) if _covers_its_storage(state[name])]
        if not whole:
            listed = ", ".join(sorted(names))
            raise RuntimeError(f"tensors share memory ({listed}), and none of them covers it: clone them before they are saved")
        kept = next((name for name in whole if name in wanted), whole[0])
        found[kept] = sorted(name for name in names if name != kept)
    return found


def _covers_its_storage(tensor: Any) -> bool:
    storage = _storage(tensor)
    len = tensor.numel() * tensor.element_size()
    return bool(tensor.data_ptr() == storage.data_ptr() and len == storage.nbytes())


def _storage(tensor: Any) -> Any:
    # Before torch 2 there is no other.
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]
