"""Compares models served with the built-in runtime and with ONNX Runtime to ONNX Runtime alone: responses, first and later
requests, a request of another shape, and memory. zoo.py, exports.py and operators.py provide the models."""

import collections
import json
import time

import numpy as np

import ort
from served import Refused, ServedModel

# Values of `runtime` in a model's configuration.
RUNTIMES = ("built-in", "onnxruntime")
# Verdicts that are not failures. Random responses cannot be compared.
RIGHT = ("equal", "random", "noise")
# Verdicts from best to worst.
ORDER = {"equal": 0, "random": 1, "noise": 1, "differs": 2, "refused": 3, "fails": 4, "server ended": 5}
# Models for which ONNX Runtime needs more milliseconds than this are compared in speed.
LONG = 5
# Seconds, and maximum number of requests, for measuring later requests.
MEASURED, REQUESTS = 1.0, 50
# The measured times, each with its title in the table.
TIMES = {"first": "first request", "later": "from the third on", "other": "first of another shape"}


class Case:
    """A model, its requests, and ONNX Runtime's responses."""

    def __init__(self, name, path, expected, judge, timed=None):
        """`expected` has pairs of inputs and responses, one per shape; responses are arrays by name. `judge` returns the
        verdict and the reason for given inputs, expected responses and actual responses. Times are measured for
        requests of the outputs `timed`, or of all outputs."""
        self.name, self.path, self.expected, self.judge, self.timed = name, path, expected, judge, timed


def later(model, inputs, outputs):
    """Returns the milliseconds per request, from the third request on."""
    start = time.perf_counter()
    model.ask(inputs, outputs)
    count = max(1, min(REQUESTS, int(MEASURED / max(time.perf_counter() - start, 1e-3))))
    return model.ask(inputs, outputs, count)[1]


def alone(case):
    """Measures ONNX Runtime alone."""
    model = ort.Model(case.path)
    try:
        (inputs, _), *others = case.expected
        row = {"first": model.ask(inputs, case.timed)[1], "later": later(model, inputs, case.timed)}
        for inputs, _ in others:
            row["other"] = model.ask(inputs, case.timed)[1]
        return row | {"memory": model.peak()}
    finally:
        model.stop()


def worst(verdicts):
    return max(verdicts, key=lambda verdict: ORDER[verdict[0]])


def served(program, case, runtime):
    """Measures a server, and returns its verdict."""
    try:
        model = ServedModel(program, case.path, runtime)
    except Refused as refusal:
        return {"verdict": "refused", "why": str(refusal)}
    except Exception as error:  # the client's exceptions have no common type
        return {"verdict": "fails", "why": f"while it loads: {error}"}
    row, verdicts = {}, []
    try:
        for name, (inputs, answers) in zip(("first", "other"), case.expected):
            where = "" if name == "first" else "another shape: "
            try:
                found, row[name] = model.ask(inputs, case.timed)
            except Exception as error:
                if name == "first" or "of memory, the server has" not in str(error):
                    raise
                # The other shape is drawn at random, and this one is beyond --memory-budget.
                verdicts.append(("equal", f"{where}left out, since the server refused it: {error}"))
                continue
            if name == "first":
                row["later"] = later(model, inputs, case.timed)
            if case.timed:
                found, _ = model.ask(inputs)
            verdict, why = case.judge(inputs, answers, found)
            verdicts.append((verdict, why and where + why))
        row["memory"] = model.peak()
    except Exception as error:
        code = model.exit_code()
        verdicts.append(("fails", f"{where}{error}") if code is None else ("server ended", f"{where}exit code {code}"))
    finally:
        model.stop()
    verdict, why = worst(verdicts)
    return row | {"verdict": verdict, "why": why}


def line(label, row):
    """Formats a line of a model's table."""
    numbers = [f"{row[name]:10.2f}" if name in row else " " * 10 for name in TIMES]
    memory = f"{row['memory'] >> 20:6} MiB" if "memory" in row else " " * 10
    return f"  {label:<12} {row.get('verdict', ''):<12} {' '.join(numbers)} ms {memory} {row.get('why', '')[:150]}".rstrip()


def measured(program, case):
    """Measures a model, prints its row and returns it."""
    row = {"name": case.name, "ort": alone(case)}
    for runtime in RUNTIMES:
        row[runtime] = served(program, case, runtime)
    print(case.name)
    print(line("ONNX Runtime", row["ort"]))
    for runtime in RUNTIMES:
        print(line(runtime, row[runtime]), flush=True)
    return row


def quartiles(ratios):
    """Returns the median and the upper quartile."""
    ratios = list(ratios)
    return " and ".join(f"{ratio:.2f}" for ratio in np.quantile(ratios, (0.5, 0.75))) if ratios else ""


def summary(rows):
    """Returns a table of both runtimes: how many models had which verdict, and their costs relative to ONNX Runtime."""
    table = [["", *RUNTIMES]]
    counts = [collections.Counter(row[runtime]["verdict"] for row in rows) for runtime in RUNTIMES]
    for verdict in ORDER:
        if any(count[verdict] for count in counts):
            table.append([verdict, *(str(count[verdict]) for count in counts)])
    for name, title in TIMES.items():
        # Only models that both runtimes serve are counted, so that neither gains by refusing models.
        asked = [row for row in rows if all(name in row[one] for one in ("ort", *RUNTIMES))]
        # The first run takes longer than the runs that decide whether the model counts as slow.
        asked = [row for row in asked if row["ort"]["other" if name == "other" else "later"] > LONG]
        if not asked:
            continue
        found = [quartiles(row[runtime][name] / row["ort"][name] for row in asked) for runtime in RUNTIMES]
        table.append([f"{title}, times ONNX Runtime's, {len(asked)} models: half and three quarters below", *found])
    asked = [row for row in rows if all("memory" in row[one] for one in ("ort", *RUNTIMES)) and row["ort"]["memory"] > 0]
    if asked:
        found = [quartiles(row[runtime]["memory"] / row["ort"]["memory"] for row in asked) for runtime in RUNTIMES]
        table.append([f"memory, times ONNX Runtime's, {len(asked)} models: half and three quarters below", *found])
    lines = [f"| {' | '.join(cells)} |" for cells in table]
    return "\n".join([lines[0], "|---|---|---|", *lines[1:]])


def run(program, cases, processor, results=None):
    """Compares both runtimes. Returns the exit code, which is 1 if a verdict is not in `RIGHT`. `results` is a file with a
    line per model, which is continued."""
    rows = []
    if results and results.exists():
        rows = [row for row in map(json.loads, results.read_text().splitlines()) if RUNTIMES[0] in row]
    known = {row["name"] for row in rows}
    for case in cases(known):
        row = measured(program, case)
        rows.append(row)
        if results:
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(f"\nModels that take ONNX Runtime more than {LONG} ms, processor time; {processor}.\n\n{summary(rows)}\n")
    wrong = [(row, runtime) for row in rows for runtime in RUNTIMES if row[runtime]["verdict"] not in RIGHT]
    for row, runtime in wrong:
        print(f"WRONG {row['name']}: {row[runtime]['verdict']} with {runtime}: {row[runtime]['why'][:300]}")
    return int(bool(wrong) or not rows)
