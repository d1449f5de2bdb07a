"""A server in the program's own process, for tests and notebooks."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tensorferry_model import Context, InferenceError, Request

from . import _native
from ._client import Client
from ._dtypes import OIP, from_oip
from ._hints import shown
from ._launch import program, server_arguments
from ._tensors import array, tensor

#: A tensor of a model: its datatype, the protocol's or NumPy's, and its shape with -1 for any size; or a dict with ``datatype``,
#: ``shape`` and ``optional``.
TensorSpec = tuple[Any, "list[int] | tuple[int, ...]"] | Mapping[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])

log = logging.getLogger("tensorferry")


#: A model's way to refuse a request, under the name that ``tensorferry.InferenceError``, what clients raise, leaves for it.
ModelError = InferenceError


def model(
    *, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], max_batch_size: int | None = None
) -> Callable[[Function], Function]:
    """Says what a function takes and gives, so that a :class:`Server` can serve it.

    ::

        @tensorferry.model(inputs={"x": ("FP32", [-1, 4])}, outputs={"sum": ("FP32", [-1])})
        def sums(x):
            return {"sum": x.sum(axis=1)}

    ``max_batch_size`` says that each row of the outputs is made from the same row of the inputs: where all shapes begin with -1,
    requests that come together are then one call, of at most so many rows. Without it each request is a call.

    Outputs become arrays of the datatype that is said here: floats are rounded to it in silence, and a number that it does not have is
    an error, as are floats for integers.
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
    ``model.py``, with ``context`` and ``request`` where they are asked for), or the path of a model's file or folder. A generator
    returns any number of responses. Callables run in this process, one call at a time for each model; inputs are read-only arrays. Files are run by the program ``oip-server`` of this package, as a child process that ends with
    the server; ``options`` are for it, such as ``["--allow-pickle"]``.

    ``http`` and ``grpc`` are addresses; port 0 is any that is free, None means no such port. ``http_url``, ``grpc_url`` and ``url`` say
    where it serves. Raises ``ValueError`` for what cannot be served, ``OSError`` for an address that is taken, ``RuntimeError``
    for a file that cannot be loaded, with the reason.

    A server that still runs when the program ends is stopped then, as by :meth:`stop`. A forked process has no part in the server of its
    parent: there :meth:`stop` does nothing.
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
        for name in files:
            _check_folder_name(name)
        self._names = list(models)
        self._process = os.getpid()
        self._callables: list[_Callable] = []
        self._child: _Child | None = None
        _RUNNING.add(self)
        try:
            for name, given in models.items():
                if name not in files:
                    self._callables.append(_Callable(name, given))
            others = []
            if files:
                self._child = _Child(files, options or [])
                # A request's time and its end come from this server's clients.
                calls, streams = (Client(url, timeout=None, attempts=1) for url in (self._child.url, self._child.grpc_url))
                others = [(name, calls._native, streams._native) for name in files]
            callables = [made.native() for made in self._callables]
            self._native = _native.Server(callables, others, http, grpc, drain_timeout)
        except BaseException:
            self._end(True)
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
        if not self._is_of_this_process():
            return True
        is_clean = self._native.stop()
        self._end(is_clean)
        return is_clean

    def _end(self, is_idle: bool) -> None:
        """What follows when no more requests come; ``is_idle`` if no model runs any more."""
        _RUNNING.discard(self)
        for made in self._callables:
            made.close(is_idle)
        if self._child is not None:
            self._child.stop()

    def _is_of_this_process(self) -> bool:
        return os.getpid() == self._process

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        child = getattr(self, "_child", None)
        if child is not None and self._is_of_this_process():
            child.stop()

    def __repr__(self) -> str:
        state = "" if self in _RUNNING else ", stopped"
        return f"Server({self.url!r}: {shown(self._names)}{state})"


#: Servers that have not been stopped.
_RUNNING: weakref.WeakSet[Server] = weakref.WeakSet()


def _stop_all() -> None:
    for server in list(_RUNNING):
        # Unless it is still being made, by another thread.
        if hasattr(server, "_native"):
            server.stop()
        elif server._is_of_this_process():
            server._end(False)


# Before the interpreter ends, after which models cannot run.
atexit.register(_stop_all)


def _check_folder_name(name: str) -> None:
    """The program that runs files finds models by the names of their folders."""
    if not name or name.startswith(".") or any(part in name for part in ("/", "\0")):
        raise ValueError(
            f"model {name!r}: expected a name that a directory can have and that does not begin with a dot, for a model from a file"
        )


def _specs(name: str, role: str, specs: Any) -> list[tuple[str, str, list[int], bool]]:
    if not isinstance(specs, Mapping):
        raise ValueError(
            f"model {name!r} does not declare its {role}: expected a dict such as {{'x': ('FP32', [-1, 4])}}, by @tensorferry.model "
            f"or an attribute, found {specs!r}"
        )
    found = []
    for tensor_name, spec in specs.items():
        try:
            if isinstance(spec, Mapping):
                unknown = set(spec) - {"datatype", "shape", "optional"}
                if unknown:
                    raise ValueError(f"unknown {', '.join(sorted(map(str, unknown)))}")
                datatype, shape, optional = spec["datatype"], spec["shape"], bool(spec.get("optional", False))
            else:
                (datatype, shape), optional = spec, False
            dims = [int(dim) for dim in shape]
            found.append((tensor_name, _datatype(datatype), dims, optional and role == "inputs"))
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(
                f"model {name!r}, tensor {tensor_name!r}: expected a datatype and a shape such as ('FP32', [-1, 4]), found "
                f"{spec!r} ({error})"
            ) from None
    return found


def _datatype(datatype: Any) -> str:
    if isinstance(datatype, str):
        named = datatype.removeprefix("TYPE_")
        named = "BYTES" if named == "STRING" else named
        if named == "BYTES" or named in OIP.values():
            return named
    if datatype in (str, bytes, object):
        return "BYTES"
    dtype = np.dtype(datatype)
    return "BYTES" if dtype.kind in "OSU" else OIP[dtype.name]


class _Callable:
    """A function, or an object with ``infer``, and how it is called."""

    def __init__(self, name: str, given: Any) -> None:
        self.name = name
        target = self._made(given) if inspect.isclass(given) else given
        #: What was made here, and is to be closed here.
        self._own = target if inspect.isclass(given) else None
        self.inputs = _specs(name, "inputs", getattr(target, "inputs", None))
        self.outputs = _specs(name, "outputs", getattr(target, "outputs", None))
        self.max_batch_size: int | None = getattr(target, "max_batch_size", None)
        self._function = getattr(target, "infer", target)
        if not callable(self._function):
            raise ValueError(f"model {name!r}: expected a function, an object with infer, or a path, found {given!r}")
        self._datatypes = {tensor_name: datatype for tensor_name, datatype, _, _ in self.outputs}
        #: Whether it returns any number of responses. It may be decorated.
        self.is_decoupled = any(
            inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
            for function in (self._function, inspect.unwrap(self._function))
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bind()

    def _made(self, kind: Any) -> Any:
        try:
            takes_context = len(inspect.signature(kind).parameters) > 0
        except ValueError:
            takes_context = False
        return kind(Context(self.name, folder=os.getcwd())) if takes_context else kind()

    def _bind(self) -> None:
        """Finds the parameter for each input."""
        self._names = {tensor_name: _python_name(tensor_name) for tensor_name, _, _, _ in self.inputs}
        self._wants_request = False
        try:
            parameters = inspect.signature(self._function).parameters
        except ValueError:
            return
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = {name for name, parameter in parameters.items() if parameter.kind in by_name}
        takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        for tensor_name, _, _, optional in self.inputs:
            known = next((name for name in (tensor_name, _python_name(tensor_name)) if name in named), None)
            if known is None and not takes_all:
                raise ValueError(f"model {self.name!r} has no parameter for the input {tensor_name!r}")
            if known is not None and optional and parameters[known].default is inspect.Parameter.empty:
                raise ValueError(f"model {self.name!r} needs a default for the optional input {tensor_name!r}")
            self._names[tensor_name] = known or tensor_name
        self._wants_request = "request" in named and "request" not in self._names.values()

    def native(self) -> tuple[str, Any, Any, Callable[..., Any], int | None, bool]:
        """The model as the native half takes it."""
        answer = self.answers if self.is_decoupled else self.answer
        return self.name, self.inputs, self.outputs, answer, self.max_batch_size, self.is_decoupled

    def close(self, is_idle: bool) -> None:
        """Ends what the model has for later requests. A model that hangs is left as it is."""
        own, self._own = self._own, None
        close = getattr(own, "close", None)
        if is_idle and callable(close):
            try:
                close()
            except Exception as error:
                log.error("model %r: its close() failed", self.name, exc_info=error)
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()
            self._loop = None

    def answer(self, *asked: Any) -> tuple[Any, list[Any]]:
        """The one answer to a request, for the native half."""
        try:
            found = self._call(*asked)
            if inspect.isawaitable(found):
                found = self._awaited(found)
            return None, self._given(found)
        except BaseException as error:
            return self._failed(error), []

    def answers(self, *asked: Any) -> Iterator[tuple[Any, list[Any]]]:
        """Any number of answers, one by one."""
        try:
            found = self._call(*asked)
            if not inspect.isasyncgen(found) and not inspect.isgenerator(found):
                raise TypeError(
                    f"the function returned {type(found).__name__}, expected a generator, as the decorated function returns"
                )
            steps = self._steps(found) if inspect.isasyncgen(found) else found
            try:
                for step in steps:
                    yield None, self._given(step)
            finally:
                steps.close()
        except GeneratorExit:
            raise
        except BaseException as error:
            yield self._failed(error), []

    def _call(
        self,
        given: list[Any],
        id: str | None,
        parameters: dict[str, Any],
        outputs: list[str],
        is_cancelled: Callable[[], bool],
    ) -> Any:
        arguments: dict[str, Any] = {self._names[key]: array(datatype, shape, data) for key, datatype, shape, data in given}
        if self._wants_request:
            arguments["request"] = Request(id, parameters, outputs, is_cancelled)
        return self._function(**arguments)

    def _given(self, found: Any) -> list[Any]:
        if not isinstance(found, Mapping):
            if inspect.isgenerator(found) or inspect.isasyncgen(found):
                raise TypeError(
                    f"the function returned {type(found).__name__} but is not a generator function: it needs its own `yield`, and a decorator "
                    f"needs functools.wraps"
                )
            if len(self._datatypes) != 1:
                raise TypeError(f"expected a dict with {', '.join(self._datatypes)}, found {type(found).__name__}")
            found = {next(iter(self._datatypes)): found}
        return [(key, *_output(key, value, self._datatypes.get(key))) for key, value in found.items()]

    def _failed(self, error: BaseException) -> tuple[int, str]:
        if isinstance(error, InferenceError):
            is_status = isinstance(error.status, int) and 400 <= error.status < 600
            return error.status if is_status else 500, str(error)
        log.error("model %r failed", self.name, exc_info=error)
        return 500, f"its model failed: {type(error).__name__}: {error}".removesuffix(": ")

    def _awaited(self, found: Any) -> Any:
        """Runs on the model's own event loop, as in a model.py: what it keeps between calls may belong to that."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if self._loop.is_running():
            # A call before this one hangs.
            return asyncio.run(_waited(found))
        return self._loop.run_until_complete(_waited(found))

    def _steps(self, found: Any) -> Generator[Any, None, None]:
        if self._loop is not None and self._loop.is_running():
            # A call before this one hangs.
            loop = asyncio.new_event_loop()
        else:
            loop = self._loop = self._loop or asyncio.new_event_loop()
        steps = _Steps(found, loop)
        try:
            while (step := loop.run_until_complete(steps.next())) is not None:
                yield step[0]
        finally:
            try:
                loop.run_until_complete(steps.close())
            finally:
                if loop is not self._loop:
                    loop.close()


class _Steps:
    """An asynchronous generator that one task runs from its beginning to its end, as an ``async for`` would: time limits, groups of tasks
    and context variables last from one step to the next. The loop only runs while a step is waited for."""

    def __init__(self, found: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._found = found
        #: One entry for each step that is wanted; False to close the generator.
        self._wanted: asyncio.Queue[bool] = asyncio.Queue()
        self._given: asyncio.Queue[tuple[Any]] = asyncio.Queue()
        self._task = loop.create_task(self._run())
        self._has_raised = False

    async def next(self) -> tuple[Any] | None:
        """The next step, in a tuple; None at the end. Raises what the generator raises."""
        if self._given.empty():
            self._wanted.put_nowait(True)
            given = asyncio.ensure_future(self._given.get())
            await asyncio.wait((given, self._task), return_when=asyncio.FIRST_COMPLETED)
            if given.done():
                return given.result()
            given.cancel()
            self._has_raised = True
            await self._task
            return None
        return self._given.get_nowait()

    async def close(self) -> None:
        if not self._task.done():
            self._wanted.put_nowait(False)
        if not self._has_raised:
            await self._task

    async def _run(self) -> None:
        try:
            is_wanted = await self._wanted.get()
            while is_wanted:
                self._given.put_nowait((await self._found.__anext__(),))
                is_wanted = await self._is_wanted()
        except StopAsyncIteration:
            pass
        finally:
            await self._found.aclose()

    async def _is_wanted(self) -> bool:
        while True:
            try:
                return await self._wanted.get()
            except asyncio.CancelledError as error:
                # By what the generator has around its `yield`, such as a time limit: as if that were where it waits.
                self._given.put_nowait((await self._found.athrow(error),))


async def _waited(found: Any) -> Any:
    return await found


def _python_name(name: str) -> str:
    return name if name.isidentifier() else "".join(c if c.isalnum() else "_" for c in name)


def _output(name: str, value: Any, datatype: str | None) -> tuple[str, list[int], Any]:
    if hasattr(value, "detach") and not isinstance(value, np.ndarray):
        # A tensor of torch, which may be part of a graph or on a device.
        value = value.detach().cpu().numpy()
    if datatype == "BYTES" and not isinstance(value, np.ndarray):
        # NumPy's own strings would lose zero bytes at the end.
        value = np.asarray(value, dtype=object)
    found = np.asarray(value)
    if datatype is not None and datatype != "BYTES":
        found = _cast(name, found, datatype)
    return tensor(name, found, "output")


def _cast(name: str, found: np.ndarray[Any, Any], datatype: str) -> np.ndarray[Any, Any]:
    """Numbers as those of a datatype. Raises ``ValueError`` for one that would be another there, but for rounding."""
    dtype = from_oip(datatype)
    if found.dtype == dtype:
        return found
    try:
        with np.errstate(over="ignore"):
            cast = found.astype(dtype, casting="same_kind")
    except TypeError:
        raise TypeError(f"output {name!r}: expected {dtype} for {datatype}, found {found.dtype}") from None
    if found.dtype.kind in "iu" and dtype.kind in "iu":
        wrong, limits = cast != found, np.iinfo(dtype)
        within = f" ({limits.min} to {limits.max})"
    elif found.dtype.kind in "iuf" or found.dtype.name == "bfloat16":
        wrong, within = np.isfinite(found) & ~np.isfinite(cast), ""
    else:
        return cast
    if wrong.any():
        raise ValueError(f"output {name!r}: {found[wrong].flat[0]} does not fit {datatype}{within}")
    return cast


class _Child:
    """The program ``oip-server`` with a repository of the files, on a socket that only this user reaches."""

    def __init__(self, files: Mapping[str, Path], options: list[str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="tensorferry-")
        self._process: subprocess.Popen[bytes] | None = None
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
        self.grpc_url = f"grpc+unix://{folder / 'grpc.sock'}"
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
        silent_since = time.monotonic()
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"oip-server ended: {self._said()}")
            try:
                # Asked first: a server that is ready has found all its models.
                is_ready = client.is_ready()
                models = {entry["name"]: entry for entry in client.models()}
                silent_since = time.monotonic()
            except _native.InferenceError as error:
                if time.monotonic() - silent_since > _SILENCE:
                    raise RuntimeError(f"oip-server does not answer: {error}; it said: {self._said()}") from None
                is_ready, models = False, {}
            states = {name: models.get(name, {}).get("state") for name in files}
            for name, state in states.items():
                if state == "UNAVAILABLE":
                    raise RuntimeError(f"model {name!r} ({files[name]}): {models[name]['reason']}")
                if is_ready and state is None:
                    raise RuntimeError(f"model {name!r} ({files[name]}): oip-server found no such model; it said: {self._said()}")
            if all(state == "READY" for state in states.values()):
                return
            time.sleep(0.02)

    def _said(self) -> str:
        return (Path(self._folder) / "log").read_text(errors="replace").strip()[-2000:]

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)


#: Seconds that the program may take to its first answer, and between two.
_SILENCE = 60.0


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
        config = folder / "config.pbtxt"
        if config.is_file():
            # Where it is a link, it is the caller's file.
            text = config.read_text("utf-8", "surrogateescape")
            config.unlink()
            config.write_text(without_name(text), "utf-8", "surrogateescape")
        return
    (folder / "1").mkdir(parents=True)
    _link(str(path), str(folder / "1" / _NAMES.get(path.suffix, f"model{path.suffix}")))
    # The weights that an ONNX file keeps beside it.
    for beside in path.parent.glob(f"{path.name}*"):
        if path.suffix == ".onnx" and beside != path and beside.is_file():
            _link(str(beside), str(folder / "1" / beside.name))


def without_name(config: str) -> str:
    """A config.pbtxt without the model's name: the folder that the program gets is called as the caller calls the model."""
    depth, at = 0, 0
    while (token := _TOKEN.search(config, at)) is not None:
        at = token.end()
        match token[0]:
            case "{" | "[" | "<":
                depth += 1
            case "}" | "]" | ">":
                depth -= 1
            case "name" if depth == 0 and (value := _NAME.match(config, at)) is not None:
                return config[: token.start()] + config[value.end() :]
    return config


#: The parts of a configuration that matter for where a name stands: texts and comments, which may have brackets, brackets, and words.
_TEXT = r'"(?:\\.|[^"\\])*"|' + r"'(?:\\.|[^'\\])*'"
_TOKEN = re.compile(rf"{_TEXT}|#[^\n]*|[{{}}\[\]<>]|\w+")
_NAME = re.compile(rf"\s*:\s*(?:(?:{_TEXT})\s*)+[,;]?[ \t]*\n?")


def _link(source: str, target: str) -> str:
    """The same file by another name, or a copy where the system has no such links."""
    try:
        # Of a link, what it leads to: the system would give another name to the link itself.
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy(source, target)
    return target
