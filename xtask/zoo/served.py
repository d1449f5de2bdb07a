"""A server that is given models and asked, and what its process takes."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import numpy as np
import onnx
import tritonclient.http as client
from tritonclient.utils import np_to_triton_dtype


def place(repository, name, model, runtime=None):
    """Puts a model, a file or a graph, into a repository, with the runtime that its configuration names, if any."""
    version = pathlib.Path(repository) / name / "1"
    version.mkdir(parents=True)
    if isinstance(model, onnx.ModelProto):
        onnx.save(model, version / "model.onnx")
    else:
        # No link: the server follows none that lead out of the repository.
        shutil.copy(model, version / "model.onnx")
    if runtime is not None:
        (version.parent / "config.pbtxt").write_text(f'runtime: "{runtime}"\n')


def memory(process, field):
    """Bytes of a process that runs: `VmRSS` is resident now, `VmHWM` was at most; `None` once it has ended."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(rf"{field}:\s*(\d+)", status)
    return int(found[1]) << 10 if found else None


class Server:
    def __init__(self, program, repository, library=None, limits=("--request-timeout", "4m")):
        arguments = [
            program, "--model-repository", repository, "--model-control-mode", "explicit", "--http-address", "127.0.0.1:0",
            "--grpc-address", "127.0.0.1:0", "--max-request-size", "256MiB", "--max-answer-size", "512MiB", "--instances", "1", *limits,
        ]
        if library is not None:
            arguments += ["--onnxruntime", str(library)]
        # Without the option the server would take the library that this variable names.
        environment = {key: value for key, value in os.environ.items() if key != "ORT_DYLIB_PATH"}
        self.process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )
        for line in self.process.stdout:
            if "HTTP" in line:
                self.address = line.split()[-1].removeprefix("http://")
                return
        raise SystemExit("the server does not start")

    def is_running(self):
        return self.process.poll() is None

    def stop(self):
        if self.is_running():
            self.process.terminate()
            self.process.wait(60)

    def processor_time(self):
        """Seconds, of all threads."""
        # Linux's number for the clock of a process; /proc counts in steps of 10 ms.
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def call(self, path):
        request = urllib.request.Request(f"http://{self.address}{path}", data=b"{}", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=240):
                return None
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                return json.loads(text).get("error", text)
            except json.JSONDecodeError:
                return text

    def metadata(self, name):
        with urllib.request.urlopen(f"http://{self.address}/v2/models/{name}", timeout=60) as answer:
            return json.load(answer)

    def infer(self, name, inputs):
        tensors = []
        for key, value in inputs.items():
            tensor = client.InferInput(key, list(value.shape), np_to_triton_dtype(value.dtype))
            if value.dtype == object:
                value = np.array([x.encode() for x in value.ravel()], dtype=object).reshape(value.shape)
            tensor.set_data_from_numpy(value)
            tensors.append(tensor)
        with client.InferenceServerClient(self.address, network_timeout=240, connection_timeout=240) as connection:
            return connection.infer(name, tensors)
