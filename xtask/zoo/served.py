"""Runs a server that models are added to, and a server with a single model that is measured."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import numpy as np
import onnx
import tritonclient.http as client
from tritonclient.utils import np_to_triton_dtype

import ort
from processes import memory, processor_time


def place(repository, name, model, runtime=None):
    """Adds a model, given as a file or a graph, to a repository, with the runtime in its configuration, if any."""
    version = pathlib.Path(repository) / name / "1"
    version.mkdir(parents=True)
    if isinstance(model, onnx.ModelProto):
        onnx.save(model, version / "model.onnx")
    else:
        # Copies the file, because the server follows no links that lead out of the repository.
        shutil.copy(model, version / "model.onnx")
    if runtime is not None:
        (version.parent / "config.pbtxt").write_text(f'runtime: "{runtime}"\n')


# Options of a server whose times are compared with those of ONNX Runtime on one thread.
ONE_THREAD = ("--request-timeout", "4m", "--threads", "1")


class Server:
    def __init__(self, program, repository, library=None, limits=("--request-timeout", "4m")):
        arguments = [
            program, "--model-repository", repository, "--model-control-mode", "explicit", "--http-address", "127.0.0.1:0",
            "--grpc-address", "127.0.0.1:0", "--max-request-size", "256MiB", "--max-answer-size", "512MiB", "--instances", "1", *limits,
        ]
        if library is not None:
            arguments += ["--onnxruntime", str(library)]
        # Without an option, the server would use the library that this variable names.
        environment = {key: value for key, value in os.environ.items() if key != "ORT_DYLIB_PATH"}
        self.process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )
        for line in self.process.stdout:
            if "HTTP" in line:
                self.address = line.split()[-1].removeprefix("http://")
                self.wait_until_ready()
                return
        raise SystemExit("the server does not start")

    def wait_until_ready(self):
        """Waits until the server has read its repository; until then it only answers health checks."""
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://{self.address}/v2/health/ready", timeout=60):
                    return
            except urllib.error.HTTPError:
                time.sleep(0.05)
        raise SystemExit("the server does not become ready")

    def is_running(self):
        return self.process.poll() is None

    def stop(self):
        if self.is_running():
            self.process.terminate()
            self.process.wait(60)

    def processor_time(self):
        """Returns the CPU time of all threads in seconds."""
        return processor_time(self.process)

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

    def infer(self, name, inputs, outputs=None):
        """Returns the response. `outputs` are the names of the requested outputs; None requests all."""
        wanted = outputs and [client.InferRequestedOutput(output) for output in outputs]
        tensors = []
        for key, value in inputs.items():
            tensor = client.InferInput(key, list(value.shape), np_to_triton_dtype(value.dtype))
            if value.dtype == object:
                value = np.array([x.encode() for x in value.ravel()], dtype=object).reshape(value.shape)
            tensor.set_data_from_numpy(value)
            tensors.append(tensor)
        with client.InferenceServerClient(self.address, network_timeout=240, connection_timeout=240) as connection:
            return connection.infer(name, tensors, outputs=wanted)


class Refused(Exception):
    """Raised with the reason if the server does not load a model."""


class ServedModel:
    """A model on its own server, so that time and memory are the model's alone. `ort.Model` has the same methods."""

    def __init__(self, program, path, runtime):
        self.repository = tempfile.TemporaryDirectory()
        place(self.repository.name, "model", path, runtime)
        self.server = Server(program, self.repository.name, ort.LIBRARY if runtime == "onnxruntime" else None, ONE_THREAD)
        self.idle = memory(self.server.process, "VmRSS")
        try:
            refusal = self.server.call("/v2/repository/models/model/load")
            if refusal is not None:
                raise Refused(refusal)
        except Exception:
            self.stop()
            raise

    def ask(self, inputs, outputs=None, count=1):
        """Sends `count` equal requests. Returns the outputs by name, and the mean CPU time of a request in milliseconds."""
        start = self.server.processor_time()
        for _ in range(count):
            response = self.server.infer("model", inputs, outputs)
        taken = self.server.processor_time() - start
        named = [output["name"] for output in response.get_response()["outputs"]]
        return {name: response.as_numpy(name) for name in named}, 1000 * taken / count

    def peak(self):
        """Returns the peak memory in bytes, without the memory that the server uses before it loads a model."""
        return memory(self.server.process, "VmHWM") - self.idle

    def exit_code(self):
        """Returns the exit code, or `None` while the server runs. A server that has just closed its connections may take a
        moment to end."""
        try:
            return self.server.process.wait(0.5)
        except subprocess.TimeoutExpired:
            return None

    def stop(self):
        self.server.stop()
        self.repository.cleanup()
