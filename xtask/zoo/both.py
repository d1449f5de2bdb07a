"""Models that are served with the built-in runtime and with ONNX Runtime, and both against ONNX Runtime by itself: answers, first and
later requests, a request of another shape, memory. zoo.py, exports.py and operators.py have the models."""

import collections
import json
import time

import numpy as np

import ort
from served import Refused, ServedModel

# What a model's configuration says in `runtime`.
RUNTIMES = ("built-in", "onnxruntime")
# Verdicts that are no faults. Answers that are random cannot be compared.
RIGHT = ("equal", "random", "noise")
# Verdicts from the best to the worst.
ORDER = {"equal": 0, "random": 1, "noise": 1, "differs": 2, "refused": 3, "fails": 4, "server ended": 5}
# Models that take ONNX Runtime more milliseconds than this are compared in speed.
LONG = 5
# Seconds, and requests at most, by which the time of later requests is measured.
MEASURED, REQUESTS = 1.0, 50
# What is measured, and what the table calls it.
TIMES = {"first": "first request", "later": "from the third on", "other": "first of another shape"}


class Case:
    """A model, what is asked, and what ONNX Runtime answers."""

    def __init__(self, name, path, expected, judge, timed=None):
        """`expected` has pairs of inputs and answers, one for each shape, and the answers are arrays by name. `judge` says of inputs,
        answers and what was found instead the verdict and why. Times are of requests for the outputs `timed`, or for all."""
        self.name, self.path, self.expected, self.judge, self.timed = name, path, expected, judge, timed


def later(model, inputs, outputs):
    """Milliseconds of a request, from the third on."""
    start = time.perf_counter()
    model.ask(inputs, outputs)
    count = max(1, min(REQUESTS, int(MEASURED / max(time.perf_counter() - start, 1e-3))))
    return model.ask(inputs, outputs, count)[1]


def alone(case):
    """What ONNX Runtime takes."""
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
    """What a server takes, and its verdict."""
    try:
        model = ServedModel(program, case.path, runtime)
    except Refused as refusal:
        return {"verdict": "refused", "why": str(refusal)}
    except Exception as error:  # the client's have no common type
        return {"verdict": "fails", "why": f"while it loads: {error}"}
    row, verdicts = {}, []
    try:
        for name, (inputs, answers) in zip(("first", "other"), case.expected):
            where = "" if name == "first" else "another shape: "
            found, row[name] = model.ask(inputs, case.timed)
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
    """A line of a model's table."""
    numbers = [f"{row[name]:10.2f}" if name in row else " " * 10 for name in TIMES]
    memory = f"{row['memory'] >> 20:6} MiB" if "memory" in row else " " * 10
    return f"  {label:<12} {row.get('verdict', ''):<12} {' '.join(numbers)} ms {memory} {row.get('why', '')[:150]}".rstrip()


def measured(program, case):
    """The row of a model, which is printed."""
    row = {"name": case.name, "ort": alone(case)}
    for runtime in RUNTIMES:
        row[runtime] = served(program, case, runtime)
    print(case.name)
    print(line("ONNX Runtime", row["ort"]))
    for runtime in RUNTIMES:
        print(line(runtime, row[runtime]), flush=True)
    return row


def quartiles(ratios):
    """The median and what three quarters are below."""
    ratios = list(ratios)
    return " and ".join(f"{ratio:.2f}" for ratio in np.quantile(ratios, (0.5, 0.75))) if ratios else ""


def summary(rows):
    """A table of both: how many models were answered how, and what they took beside ONNX Runtime."""
    table = [["", *RUNTIMES]]
    counts = [collections.Counter(row[runtime]["verdict"] for row in rows) for runtime in RUNTIMES]
    for verdict in ORDER:
        if any(count[verdict] for count in counts):
            table.append([verdict, *(str(count[verdict]) for count in counts)])
    for name, title in TIMES.items():
        # Both have the same models, so that one is not better for what it refuses.
        asked = [row for row in rows if all(name in row[one] for one in ("ort", *RUNTIMES))]
        # The first run takes longer than those that decide whether the model is long.
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
    """Compares both runtimes; returns the exit code, 1 when a verdict is not one of `RIGHT`. `results` is a file that has a line for
    each model and is continued."""
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
