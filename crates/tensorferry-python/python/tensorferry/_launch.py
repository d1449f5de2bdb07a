"""The command ``tensorferry``: starts the program ``oip-server`` or ``tensor`` that the wheel carries."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

USAGE = """\
tensorferry serve MODELS [OPTION]...   run the server on a model repository; options: oip-server --help
tensorferry COMMAND [ARGUMENT]...      the tool for tensor files and servers; commands: tensor --help
"""


def program(name: str) -> str:
    """The path of a program of this wheel."""
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        sys.exit(f"error: the program {name} is not installed: expected it at {beside}; reinstall tensorferry")
    return found


def onnx_runtime() -> str | None:
    """The library of ONNX Runtime of this environment, if it is installed. The packages ``onnxruntime`` and ``onnxruntime-gpu`` share a
    directory: where both are installed, it is the library of the last one, since the files next to it are that one's."""
    spec = importlib.util.find_spec("onnxruntime")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        capi = Path(folder) / "capi"
        libraries = sorted(capi.glob("libonnxruntime.so.*"), key=_version, reverse=True)
        info = capi / "build_and_package_info.py"
        said = re.search(r"__version__ = '([^']*)'", info.read_text()) if info.is_file() else None
        of_last = [library for library in libraries if said and library.name.endswith(f".so.{said[1]}")]
        for library in [*of_last, *libraries]:
            return str(library)
    return None


def _version(library: Path) -> list[int]:
    return [int(part) for part in library.name.split(".") if part.isdigit()]


def server_arguments(arguments: list[str]) -> list[str]:
    """The server's arguments: a first one that is no option is the model repository. Where nothing was said about them,
    ONNX Runtime is named if it is installed, and this Python as the one that runs models in Python."""
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--model-repository", *arguments]
    says_runtime = any(argument.partition("=")[0] == "--onnxruntime" for argument in arguments)
    if not says_runtime and "OIP_ONNXRUNTIME" not in os.environ:
        library = onnx_runtime()
        if library is not None:
            arguments = ["--onnxruntime", library, *arguments]
    says_python = any(argument.partition("=")[0] == "--python" for argument in arguments)
    if not says_python and "OIP_PYTHON" not in os.environ:
        arguments = ["--python", sys.executable, *arguments]
    return arguments


def main() -> None:
    """Runs the program that the first argument asks for."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return
    if arguments[0] == "serve":
        path, arguments = program("oip-server"), server_arguments(arguments[1:])
    else:
        path = program("tensor")
    os.execv(path, [path, *arguments])
