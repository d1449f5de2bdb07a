"""The figures of docs/measured/serving.md and files.md: files beside safetensors, the client beside tritonclient, and what a model in Python costs.

    python figures.py files|import|client
    python figures.py models [URL PID]

Run it with the Python that has the wheel; `files` wants the package safetensors there, `client` the package tritonclient[grpc,http].
`models` measures another server beside ours, such as Triton, in turns: one whose model `identity` gives its input x back as y.
Alternatives run in turns in one process, or one process each for processor time; what is printed is the median.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

IDENTITY = """
class Model:
    inputs = {"x": ("FP32", [-1, -1])}
    outputs = {"y": ("FP32", [-1, -1])}

    def infer(self, x):
        return {"y": x}
"""


def median_ms(run, times):
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return statistics.median(found) * 1e3


def files():
    import safetensors.numpy

    import tensorferry

    folder = Path(tempfile.mkdtemp(dir=os.environ.get("BENCH_FOLDER")))
    rng = np.random.default_rng(0)
    tensors = {f"layer.{i}": rng.standard_normal(4 << 20, dtype=np.float32) for i in range(64)}
    path = folder / "a.safetensors"
    safetensors.numpy.save_file(tensors, path)
    tensorferry.load_file(path)

    def mapped_ours():
        with tensorferry.safe_open(path, mmap=True) as f:
            return sum(float(f[name].view()[0]) for name in f)

    def mapped_theirs():
        with safetensors.safe_open(path, framework="np") as f:
            return sum(float(f.get_tensor(name)[0]) for name in f.keys())

    def views_ours():
        return tensorferry.load_file(path, mmap=True)

    rows = [
        ("open, first number of each tensor", mapped_ours, mapped_theirs, 7),
        ("load_file into new arrays", lambda: tensorferry.load_file(path), lambda: safetensors.numpy.load_file(path), 7),
        ("load_file(mmap=True), views", views_ours, None, 7),
        (
            "save_file",
            lambda: tensorferry.save_file(tensors, folder / "ours.safetensors"),
            lambda: safetensors.numpy.save_file(tensors, folder / "theirs.safetensors"),
            5,
        ),
    ]
    print("1 GiB in 64 tensors, in the page cache; milliseconds")
    for name, ours, theirs, times in rows:
        found = [[], []]
        for _ in range(times):
            for index, run in enumerate((ours, theirs)):
                if run is not None:
                    found[index].append(median_ms(run, 1))
        mine = statistics.median(found[0])
        if theirs is None:
            print(f"{name:36} tensorferry {mine:8.1f}")
        else:
            other = statistics.median(found[1])
            print(f"{name:36} tensorferry {mine:8.1f}   safetensors {other:8.1f}   ratio {mine / other:.2f}")
    for name in os.listdir(folder):
        os.unlink(folder / name)
    folder.rmdir()


def imports():
    def cost(code):
        found = []
        for _ in range(21):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return statistics.median(found) * 1e3

    base, ours = cost("import numpy"), cost("import numpy, tensorferry")
    print(f"processor time: import numpy {base:.1f} ms, with tensorferry {ours:.1f} ms: {ours - base:.1f} ms beyond it")


def processor_time(process):
    """Seconds of a server and its processes, as the scheduler counts them for each thread."""
    spent = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            if process in (int(entry.name), int(parent)):
                spent += sum(int(file.read_text().split()[0]) for file in entry.glob("task/*/schedstat"))
        except OSError:
            continue
    return spent / 1e9


class Server:
    def __init__(self):
        self.folder = tempfile.mkdtemp()
        version = Path(self.folder) / "identity" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(IDENTITY)
        command = [sys.executable, "-m", "tensorferry", "serve", self.folder, "--allow-python"]
        command += ["--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.at = {}
        for line in self.process.stdout:
            address = line.rsplit(" ", 1)[-1].strip().removeprefix("http://")
            for name, said in (("http", "HTTP"), ("grpc", "gRPC")):
                if said in line and name not in self.at:
                    self.at[name] = address
            if " after " in line:
                break
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def processor_time(self):
        return processor_time(self.process.pid)

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Other:
    """A server that runs already, such as Triton with the same model."""

    def __init__(self, url, process):
        self.at, self.process_id = {"http": url.removeprefix("http://")}, int(process)

    def processor_time(self):
        return processor_time(self.process_id)


def models(*beside):
    from tensorferry import Client

    own = Server()
    servers = {"tensorferry": own}
    if beside:
        servers["the other"] = Other(*beside)
    clients = {name: Client("http://" + server.at["http"]) for name, server in servers.items()}
    for label, shape, callers, count in (("1x16", (1, 16), 1, 3000), ("1x16", (1, 16), 8, 8000), ("16 MiB", (1, 4 << 20), 1, 30)):
        x = np.zeros(shape, np.float32)
        spent, took = {name: [] for name in servers}, {name: [] for name in servers}
        # The first round is for warming up.
        for turn in range(4):
            for name, server in servers.items():
                times = []

                def call(infer=clients[name].infer, times=times):
                    for _ in range(count // callers // 3):
                        start = time.perf_counter()
                        infer("identity", {"x": x})
                        times.append(time.perf_counter() - start)

                threads = [threading.Thread(target=call) for _ in range(callers)]
                before = server.processor_time()
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                if turn > 0:
                    spent[name].append((server.processor_time() - before) / len(times))
                    took[name].extend(times)
        for name in servers:
            print(
                f"{label:7} {callers} at a time, {name:12}: {statistics.median(spent[name]) * 1e6:6.0f} us of processor time each for the "
                f"server and the model's process, median {statistics.median(took[name]) * 1e6:6.0f} us from end to end"
            )
    own.stop()


CLIENTS = {
    "tensorferry http": ("http", "from tensorferry import Client; c = Client('http://' + at); call = lambda: c.infer('identity', {'x': x})['y']"),
    "tritonclient http": ("http", "import tritonclient.http as t; c = t.InferenceServerClient(at)"),
    "compat http": ("http", "import tensorferry.compat.tritonclient.http as t; c = t.InferenceServerClient(at)"),
    "tensorferry grpc": ("grpc", "from tensorferry import Client; c = Client('grpc://' + at); call = lambda: c.infer('identity', {'x': x})['y']"),
    "tritonclient grpc": ("grpc", "import tritonclient.grpc as t; c = t.InferenceServerClient(at)"),
    "compat grpc": ("grpc", "import tensorferry.compat.tritonclient.grpc as t; c = t.InferenceServerClient(at)"),
}
TRITON = """
def call():
    tensor = t.InferInput('x', list(x.shape), 'FP32')
    tensor.set_data_from_numpy(x)
    return c.infer('identity', [tensor], outputs=[t.InferRequestedOutput('y')]).as_numpy('y')
"""


def one_client(setup, at, rows, count):
    """In a process of its own: the processor time of this process for each call."""
    x = np.zeros((1, int(rows)), np.float32)
    names = {"at": at, "x": x}
    exec(setup if "call" in setup else setup + "\n" + TRITON, names)
    call = names["call"]
    for _ in range(max(3, int(count) // 20)):
        assert call().shape == x.shape
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(int(count)):
        call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(spent / int(count) * 1e6)


def client():
    server = Server()
    for label, rows, count in (("1x16", 16, 2000), ("16 MiB", 4 << 20, 30)):
        found = {name: [] for name in CLIENTS}
        for _ in range(3):
            for name, (transport, setup) in CLIENTS.items():
                command = [sys.executable, __file__, "one", setup, server.at[transport], str(rows), str(count)]
                shown = subprocess.run(command, capture_output=True, text=True)
                if shown.returncode:
                    sys.exit(f"{label} {name}: {shown.stderr.strip().splitlines()[-1]}")
                found[name].append(float(shown.stdout))
        for name, (transport, _) in CLIENTS.items():
            spent = statistics.median(found[name])
            ratio = spent / statistics.median(found[f"tritonclient {transport}"])
            print(f"{label:7} {name:18} {spent:9.0f} us of processor time per call, {ratio:.2f} of tritonclient's")
    server.stop()


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    {"files": files, "import": imports, "client": client, "models": models, "one": one_client}[what](*arguments)
