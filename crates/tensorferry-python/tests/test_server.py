"""The programs of the wheel, and the client against the server of the wheel."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tensorferry import Client, InferenceError, save_file
from tensorferry._launch import onnx_runtime, program, server_arguments

EXAMPLES = Path(os.environ["TENSORFERRY_EXAMPLES"])


@pytest.fixture(scope="module")
def urls():
    command = [sys.executable, "-m", "tensorferry", "serve", str(EXAMPLES / "models")]
    command += ["--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    found = {}
    for line in server.stdout:
        address = line.rsplit(" ", 1)[-1].strip().removeprefix("http://")
        if "HTTP" in line and "http" not in found:
            found["http"] = f"http://{address}"
        elif "gRPC" in line and "grpc" not in found:
            found["grpc"] = f"grpc://{address}"
        if len(found) == 2 and " after " in line:
            break
    yield found
    server.terminate()
    server.wait(30)
    assert server.returncode == 0


@pytest.fixture
def image():
    request = json.loads((EXAMPLES / "requests" / "one_digit.json").read_text())
    return np.array(request["inputs"][0]["data"], dtype=np.float32).reshape(1, 64)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_a_model_answers(urls, image, transport):
    client = Client(urls[transport])
    assert client.is_live() and client.is_ready() and client.is_model_ready("digits")
    info = client.model("digits")
    assert [tensor.name for tensor in info.inputs] == ["X"] and info.inputs[0].shape == (-1, 64)
    outputs = client.infer("digits", {"X": image})
    assert outputs["label"].tolist() == [7]
    only = client.infer("digits", {"X": image}, outputs=["probabilities"])
    assert list(only) == ["probabilities"] and only["probabilities"].sum() == pytest.approx(1, abs=1e-5)
    assert "digits" in [model["name"] for model in client.models()]


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_threads_share_a_client(urls, image, transport):
    client = Client(urls[transport])
    with ThreadPoolExecutor(8) as pool:
        labels = list(pool.map(lambda _: client.infer("digits", {"X": image})["label"].item(), range(200)))
    assert labels == [7] * 200


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_failures_say_why(urls, image, transport):
    client = Client(urls[transport])
    with pytest.raises(InferenceError, match="'zz' does not exist") as error:
        client.infer("zz", {"X": image})
    assert error.value.code == "NotFound"
    with pytest.raises(InferenceError) as error:
        client.infer("digits", {"X": image[:, :5]})
    assert error.value.code == "InvalidArgument"
    with pytest.raises(TypeError, match="'X'"):
        client.infer("digits", {"X": np.zeros(3, np.complex64)})
    with pytest.raises(InferenceError):
        Client("http://127.0.0.1:9", timeout=2).is_live()
    with pytest.raises(InferenceError):
        Client("ftp://somewhere")


def test_the_tool_is_there(tmp_path):
    save_file({"w": np.zeros((2, 3), np.float32)}, tmp_path / "a.zt")
    shown = subprocess.run(
        [sys.executable, "-m", "tensorferry", "inspect", str(tmp_path / "a.zt")], capture_output=True, text=True
    )
    assert shown.returncode == 0 and "float32  [2, 3]" in shown.stdout, shown
    # One program is both; links to its second name may stand anywhere.
    link = tmp_path / "tensor"
    link.symlink_to(program("tensor"))
    for tool in (program("tensor"), str(link)):
        assert subprocess.run([tool, "--version"], capture_output=True, text=True).stdout.startswith("tensor ")
    wrong = subprocess.run([program("tensor"), "no-such-command"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "Usage: tensor" in wrong.stderr, wrong


def test_the_library_is_that_of_the_package_which_was_installed_last(monkeypatch, tmp_path):
    capi = tmp_path / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    (tmp_path / "onnxruntime" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert onnx_runtime() is None
    for version in ("1.9.0", "1.32.0", "1.31.1"):
        (capi / f"libonnxruntime.so.{version}").touch()
    assert onnx_runtime() == str(capi / "libonnxruntime.so.1.32.0")
    info = "package_name = 'onnxruntime-gpu'\n__version__ = '1.31.1'\ncuda_version = '13.0'\n"
    (capi / "build_and_package_info.py").write_text(info)
    assert onnx_runtime() == str(capi / "libonnxruntime.so.1.31.1")


def test_arguments_of_serve(monkeypatch):
    monkeypatch.setattr("tensorferry._launch.onnx_runtime", lambda: "/x/libonnxruntime.so.1")
    python = ["--python", sys.executable]
    found = [*python, "--onnxruntime", "/x/libonnxruntime.so.1"]
    assert server_arguments(["models", "--quiet"]) == [*found, "--model-repository", "models", "--quiet"]
    assert server_arguments(["--onnxruntime=/y", "--quiet"]) == [*python, "--onnxruntime=/y", "--quiet"]
    monkeypatch.setattr("tensorferry._launch.onnx_runtime", lambda: None)
    assert server_arguments(["models"]) == [*python, "--model-repository", "models"]
    assert server_arguments(["models", "--python=/z"]) == ["--model-repository", "models", "--python=/z"]
    monkeypatch.setenv("OIP_PYTHON", "/z")
    assert server_arguments(["models"]) == ["--model-repository", "models"]
