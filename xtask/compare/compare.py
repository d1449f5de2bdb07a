"""Compares servers of the Open Inference Protocol, each with the same scikit-learn network.

    python compare.py --server PROGRAM --models FOLDER --mlserver PYTHON --kserve PYTHON --triton PYTHON --folder FOLDER [--requests N]

For each server, it measures the installed size, the time from starting the process until it is ready, the memory when
idle and after the requests, the server's CPU time per request (over all its processes), and the median time of a
request on one connection, including the client. CPU time is least affected by other work on the machine.
"""

import argparse
import http.client
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import time

TICK = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

TRAIN = """
import joblib, numpy, pathlib, sys
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
digits = load_digits()
model = MLPClassifier((64,), max_iter=400, random_state=0).fit(digits.data.astype(numpy.float32), digits.target)
joblib.dump(model, pathlib.Path(sys.argv[1]) / "model.joblib")
"""

KSERVE = """
import joblib, sys
from kserve import InferOutput, InferResponse, Model, ModelServer

class Digits(Model):
    def load(self):
        self.model = joblib.load(sys.argv[1])
        self.ready = True

    def predict(self, payload, headers=None):
        label = self.model.predict(payload.inputs[0].as_numpy())
        output = InferOutput("label", list(label.shape), "INT64", label.tolist())
        return InferResponse(payload.id or "", "digits", [output])

model = Digits("digits")
model.load()
sys.argv = [sys.argv[0]]
ModelServer(http_port=int(__import__("os").environ["PORT"]), enable_grpc=False, workers=1).start([model])
"""


TRITON = """
import joblib, pathlib
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        folder = pathlib.Path(args["model_repository"]) / args["model_version"]
        self.model = joblib.load(folder / "model.joblib")

    def execute(self, requests):
        answers = []
        for request in requests:
            label = self.model.predict(pb_utils.get_input_tensor_by_name(request, "X").as_numpy())
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("label", label.astype("int64"))]))
        return answers
"""

TRITON_CONFIG = """
backend: "python"
max_batch_size: 64
input { name: "X" data_type: TYPE_FP32 dims: [64] }
output { name: "label" data_type: TYPE_INT64 dims: [1] reshape { shape: [] } }
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def family(pid):
    """Returns a process and all of its descendants."""
    pids, children = [], {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(") ", 1)[1].split()
            except (OSError, IndexError):
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    left = [pid]
    while left:
        pids.append(left.pop())
        left += children.get(pids[-1], [])
    return pids


def processor_time(pid):
    total = 0
    for member in family(pid):
        fields = pathlib.Path(f"/proc/{member}/stat").read_text().rsplit(") ", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total * TICK


def memory(pid):
    return sum(int(pathlib.Path(f"/proc/{member}/statm").read_text().split()[1]) for member in family(pid)) * PAGE


def installed(path):
    path = pathlib.Path(path)
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def call(connection, method, path, body=None):
    headers = {"Content-Type": "application/json"} if body else {}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def measure(name, command, size, port, path, body, requests, environment, folder):
    start = time.monotonic()
    log = open(folder / f"{name}.log", "wb")
    server = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log, cwd=folder)
    try:
        while True:
            if server.poll() is not None:
                sys.exit(f"{name} ended: {(folder / f'{name}.log').read_text()[-2000:]}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                if call(connection, "GET", "/v2/models/digits/ready")[0] == 200:
                    break
            except OSError:
                pass
            if time.monotonic() - start > 120:
                sys.exit(f"{name} is not ready after two minutes")
            time.sleep(0.005)
        ready = time.monotonic() - start
        time.sleep(1)
        idle = memory(server.pid)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(100):
            status, answer = call(connection, "POST", path, body)
            if status != 200:
                sys.exit(f"{name} answers {status}: {answer[:500]!r}")
        label = json.loads(answer)["outputs"][0]["data"][0]
        times, before = [], processor_time(server.pid)
        for _ in range(requests):
            begin = time.perf_counter()
            call(connection, "POST", path, body)
            times.append(time.perf_counter() - begin)
        cost = (processor_time(server.pid) - before) / requests
        return {
            "name": name, "installed": size, "ready": ready, "idle": idle, "after": memory(server.pid), "cost": cost,
            "p50": statistics.median(times), "label": label,
        }
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()


def triton(python, home, port):
    """Returns the command that serves the model in `home` with the server in Triton's Python package and its Python
    backend."""
    version = home / "digits/1"
    version.mkdir(parents=True)
    shutil.move(home / "model.joblib", version)
    (version / "model.py").write_text(TRITON)
    (home / "digits/config.pbtxt").write_text(TRITON_CONFIG)
    package = next((python.parent.parent / "lib").glob("python*/site-packages")) / "pytriton/tritonserver"
    # The package has an executable for model processes per version of Python, and the backend looks for it in its own
    # directory.
    backends = home.parent / "backends"
    shutil.copytree(package / "backends", backends)
    shutil.copy(package / "python_backend_stubs" / package.parts[-4].removeprefix("python") / "triton_python_backend_stub", backends / "python")
    program = package / "bin/tritonserver"
    program.chmod(0o755)
    listen = ["--http-port", str(port), "--grpc-port", str(free_port()), "--allow-metrics", "false"]
    return [program, "--model-repository", home, "--backend-directory", backends, *listen]


def main():
    parser = argparse.ArgumentParser()
    for name in ["server", "models", "mlserver", "kserve", "triton", "folder"]:
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    parser.add_argument("--requests", type=int, default=2000)
    options = parser.parse_args()
    folder = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    request = (options.models.parent / "requests/one_digit.json").read_bytes()
    infer = "/v2/models/digits/infer"
    rows = []

    repository = folder / "repository/digits/1"
    repository.mkdir(parents=True)
    shutil.copy(options.models / "digits/1/model.onnx", repository)
    port = free_port()
    command = [options.server, folder / "repository", "--http-address", f"127.0.0.1:{port}", "--grpc-address", "127.0.0.1:0"]
    rows.append(measure("oip-server", command, installed(options.server), port, infer, request, options.requests, {}, folder))

    for name, python in [("mlserver", options.mlserver), ("kserve", options.kserve), ("triton", options.triton)]:
        # The path is not resolved, since a virtual environment's Python is a link to another Python.
        python = python.absolute()
        home = folder / name
        home.mkdir()
        subprocess.run([python, "-W", "ignore", "-c", TRAIN, home], check=True)
        port = free_port()
        environment = {"PORT": str(port), "PATH": f"{python.parent}:{os.environ['PATH']}"}
        if name == "mlserver":
            settings = {"host": "127.0.0.1", "http_port": port, "grpc_port": free_port(), "metrics_port": free_port(), "parallel_workers": 0}
            (home / "settings.json").write_text(json.dumps(settings))
            model = {"name": "digits", "implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "./model.joblib"}}
            (home / "model-settings.json").write_text(json.dumps(model))
            command = [python.parent / "mlserver", "start", home]
        elif name == "triton":
            libraries = python.parent.parent / "lib"
            environment["LD_LIBRARY_PATH"] = str(next(libraries.glob("python*/site-packages/nvidia_pytriton.libs")))
            environment["PYTHONPATH"] = str(next(libraries.glob("python*/site-packages")))
            command = triton(python, home, port)
        else:
            (home / "serve.py").write_text(KSERVE)
            command = [python, home / "serve.py", home / "model.joblib"]
        size = installed(python.parent.parent / "lib")
        rows.append(measure(name, command, size, port, infer, request, options.requests, environment, folder))

    print("| | " + " | ".join(row["name"] for row in rows) + " |")
    print("|---|" + "---|" * len(rows))
    for title, text in [
        ("installed", lambda row: f"{row['installed'] / 1e6:.0f} MB"),
        ("from start to ready", lambda row: f"{row['ready'] * 1e3:.0f} ms"),
        ("memory when idle", lambda row: f"{row['idle'] / 2**20:.0f} MiB"),
        ("memory after the requests", lambda row: f"{row['after'] / 2**20:.0f} MiB"),
        ("processor time of a request", lambda row: f"{row['cost'] * 1e6:.0f} us"),
        ("p50, one connection", lambda row: f"{row['p50'] * 1e6:.0f} us"),
        ("the digit, which is a 7", lambda row: str(row["label"])),
    ]:
        print(f"| {title} | " + " | ".join(text(row) for row in rows) + " |")


main()
