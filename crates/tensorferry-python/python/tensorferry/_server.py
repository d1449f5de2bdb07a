"""A server in the program's own process, for tests and notebooks."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from . import _native
from ._client import Client, array, tensor
from ._dtypes import OIP, from_oip
from ._launch import program, server_arguments

#: A tensor of a model: its datatype, the protocol's or NumPy's, and its shape with -1 for any size.
TensorSpec = tuple[Any, "list[int] | tuple[int, ...]"]
Function = TypeVar("Function", bound=Callable[..., Any])

log = logging.getLogger("tensorferry")


class ModelError(Exception):
    """A model's way to refuse a request: the client gets the message and the status (an HTTP status: 400, 404, 408, 413,
    429, 499, 501, 503, 504; any other is 500)."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def model(
    *, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], max_batch_size: int | None = None
) -> Callable[[Function], Function]:
    """Says what a function takes and gives, so that a :class:`Server` can serve it.

    ::

        @tensorferry.model(inputs={"x": ("FP32", [-1, 4])}, outputs={"sum": ("FP32", [-1])})
        def sums(x):
            return {"sum": x.sum(axis=1)}

    Where all shapes begin with -1, requests that come together are one call. ``max_batch_size`` is the most rows of one call;
    0 for a function whose rows depend on each other.
    """

    def mark(function: Function) -> Function:
        for name, value in {"inputs": inputs, "outputs": outputs, "max_batch_size": max_batch_size}.items():
            setattr(function, name, value)
        return function

    return mark


class Server:
    """Serves Python callables and model files until it is stopped.

    ::

        with tensorferry.Server(models={"sums": sums, "digits": "digits.onnx"}) as server:
            outputs = tensorferry.Client(server.url).infer("sums", {"x": rows})

    A model is a function with :func:`model`, an object or a class with ``inputs``, ``outputs`` and ``infer`` (as in a
    ``model.py``), or the path of a model's file or folder. Callables run in this process, one call at a time for each model;
    inputs are read-only arrays. Files are run by the program ``oip-server`` of this package, as a child process that ends with
    the server; ``options`` are for it, such as ``["--allow-pickle"]``.

    ``http`` and ``grpc`` are addresses; port 0 is any that is free, None means no such port. ``http_url``, ``grpc_url`` and ``url`` say
    where it serves. Raises ``ValueError`` for what cannot be served, ``OSError`` for an address that is taken, ``RuntimeError``
    for a file that cannot be loaded, with the reason.
    """

    def __init__(
        self,
        models: Mapping[str, Any],
        *,
        http: str | None = "127.0.0.1:0",
        grpc: str | None = "127.0.0.1:0",
        drain_timeout: float = 10.0,
        options: list[str] | None = None,
    ) -> None:
        files = {name: Path(given) for name, given in models.items() if isinstance(given, (str, os.PathLike))}
        callables = [_callable(name, given) for name, given in models.items() if name not in files]
        self._child = _Child(files, options or []) if files else None
        try:
            others = []
            if self._child is not None:
                client = Client(self._child.url, timeout=None, attempts=1)
                others = [(name, client._native) for name in files]
            self._native = _native.Server(callables, others, http, grpc, drain_timeout)
        except BaseException:
            if self._child is not None:
                self._child.stop()
            raise
        self.http_url = None if self._native.http is None else f"http://{self._native.http}"
        self.grpc_url = None if self._native.grpc is None else f"grpc://{self._native.grpc}"

    @property
    def url(self) -> str:
        """Where it serves: HTTP if it does, else gRPC."""
        return self.http_url or self.grpc_url or ""

    def client(self, **options: Any) -> Client:
        """A client of this server."""
        return Client(self.url, **options)

    def stop(self) -> bool:
        """Answers the requests that it has, and ends; whether all of them ended in time."""
        is_clean = self._native.stop()
        if self._child is not None:
            self._child.stop()
        return is_clean

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        child = getattr(self, "_child", None)
        if child is not None:
            child.stop()

    def __repr__(self) -> str:
        return f"Server({self.url!r})"


def _specs(name: str, role: str, specs: Any) -> list[tuple[str, str, list[int]]]:
    if not isinstance(specs, Mapping):
        raise ValueError(
            f"model {name!r} does not say its {role}: expected a dict such as {{'x': ('FP32', [-1, 4])}}, by @tensorferry.model "
            f"or an attribute, found {specs!r}"
        )
    found = []
    for tensor_name, spec in specs.items():
        try:
            datatype, shape = spec
            found.append((tensor_name, _datatype(datatype), [int(dim) for dim in shape]))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"model {name!r}, tensor {tensor_name!r}: expected a datatype and a shape such as ('FP32', [-1, 4]), found "
                f"{spec!r} ({error})"
            ) from None
    return found


def _datatype(datatype: Any) -> str:
    if datatype == "BYTES" or datatype in OIP.values():
        return str(datatype)
    dtype = np.dtype(datatype)
    return "BYTES" if dtype.kind in "OSU" else OIP[dtype.name]


def _callable(name: str, given: Any) -> tuple[str, Any, Any, Callable[..., Any], int | None]:
    """A model as the native half takes it."""
    target = given() if inspect.isclass(given) else given
    inputs = _specs(name, "inputs", getattr(target, "inputs", None))
    outputs = _specs(name, "outputs", getattr(target, "outputs", None))
    function = getattr(target, "infer", target)
    if not callable(function):
        raise ValueError(f"model {name!r}: expected a function, an object with infer, or a path, found {given!r}")
    datatypes = {tensor_name: datatype for tensor_name, datatype, _ in outputs}

    def answer(given: list[Any], id: str | None, parameters: dict[str, Any]) -> tuple[Any, list[Any]]:
        try:
            arrays = {_python_name(key): array(datatype, shape, data) for key, datatype, shape, data in given}
            found = function(**arrays)
            if inspect.isawaitable(found):
                found = asyncio.run(_awaited(found))
            if inspect.isgenerator(found) or inspect.isasyncgen(found):
                raise TypeError("several responses to one request are for models of oip-server, not of tensorferry.Server")
            if not isinstance(found, Mapping):
                if len(datatypes) != 1:
                    raise TypeError(f"expected a dict with {', '.join(datatypes)}, found {type(found).__name__}")
                found = {next(iter(datatypes)): found}
            return None, [(key, *_output(key, value, datatypes.get(key))) for key, value in found.items()]
        except Exception as error:
            status = getattr(error, "status", None)
            if isinstance(status, int):
                return (status, str(error)), []
            log.exception("model %r failed", name)
            return (500, f"its model failed: {type(error).__name__}: {error}"), []

    return name, inputs, outputs, answer, getattr(target, "max_batch_size", None)


async def _awaited(found: Any) -> Any:
    return await found


def _python_name(name: str) -> str:
    return name if name.isidentifier() else "".join(c if c.isalnum() else "_" for c in name)


def _output(name: str, value: Any, datatype: str | None) -> tuple[str, list[int], Any]:
    found = np.asarray(value.detach().cpu() if type(value).__module__.partition(".")[0] == "torch" else value)
    if datatype is not None and datatype != "BYTES":
        found = found.astype(from_oip(datatype), casting="same_kind", copy=False)
    return tensor(name, found)


class _Child:
    """The program ``oip-server`` with a repository of the files, on a socket that only this user reaches."""

    def __init__(self, files: Mapping[str, Path], options: list[str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="tensorferry-")
        self._process: subprocess.Popen[bytes] | None = None
        # Also when nobody stops it: at the end of the program at the latest.
        atexit.register(self.stop)
        try:
            self._start(files, options)
        except BaseException:
            self.stop()
            raise

    def _start(self, files: Mapping[str, Path], options: list[str]) -> None:
        folder = Path(self._folder)
        for name, path in files.items():
            place(path, folder / "models" / name)
        socket = folder / "http.sock"
        self.url = f"http+unix://{socket}"
        with open(folder / "log", "wb") as log_file:
            arguments = server_arguments([str(folder / "models"), "--http-address", f"unix:{socket}"])
            arguments += ["--grpc-address", f"unix:{folder / 'grpc.sock'}", *options]
            self._process = subprocess.Popen(
                [program("oip-server"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                preexec_fn=_end_with_parent(),
            )
        client = Client(self.url, timeout=5.0, attempts=1)
        while True:
            if self._process.poll() is not None:
                text = (folder / "log").read_text(errors="replace").strip()
                raise RuntimeError(f"oip-server ended: {text[-2000:]}")
            try:
                models = {entry["name"]: entry for entry in client.models()}
            except _native.InferenceError:
                models = {}
            states = {name: models.get(name, {}).get("state") for name in files}
            for name, state in states.items():
                if state == "UNAVAILABLE":
                    raise RuntimeError(f"model {name!r} ({files[name]}): {models[name]['reason']}")
            if all(state == "READY" for state in states.values()):
                return
            time.sleep(0.02)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _end_with_parent() -> Callable[[], None] | None:
    """What has the kernel end the child when this process ends, however it does; None where the system has no such call.

    The kernel looks at the thread that starts the child, so any other than the first will not do.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    import ctypes

    # Looked up before the fork, after which little may be done.
    prctl, death_signal, terminate = ctypes.CDLL(None).prctl, 1, int(signal.SIGTERM)
    return lambda: prctl(death_signal, terminate)


#: What a version folder calls a file with such an end.
_NAMES = {
    ".onnx": "model.onnx",
    ".joblib": "model.joblib",
    ".pkl": "model.pkl",
    ".bst": "model.bst",
    ".ubj": "model.ubj",
    ".json": "model.json",
    ".txt": "model.txt",
    ".py": "model.py",
}


def place(path: Path, folder: Path) -> None:
    """Puts a model's file, or a folder with one, where a repository has it."""
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    if path.is_dir():
        has_versions = any(entry.is_dir() and entry.name.isdigit() for entry in path.iterdir())
        shutil.copytree(path, folder if has_versions else folder / "1", copy_function=_link)
        return
    (folder / "1").mkdir(parents=True)
    _link(str(path), str(folder / "1" / _NAMES.get(path.suffix, f"model{path.suffix}")))
    # The weights that an ONNX file keeps beside it.
    for beside in path.parent.glob(f"{path.name}*"):
        if path.suffix == ".onnx" and beside != path and beside.is_file():
            _link(str(beside), str(folder / "1" / beside.name))


def _link(source: str, target: str) -> str:
    """The same file by another name, or a copy where the system has no such links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)
    return target
