"""Tests the program `tensor` with checkpoints that Hugging Face's library writes and reads. NumPy computes the expected
values.

Usage: checkpoints.py PROGRAM [--verbose] [--only TEXT]. The exit code is 1 if a check fails. Called by `cargo xtask
interop --files`.
"""

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
from report import Report
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
NAMES = [f"model.layers.{layer}.{part}.weight" for layer in range(4) for part in ["attn.q", "mlp.up"]]


def expect(found, expected, what):
    """Fails unless both values are equal."""
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r:.80}, found {found!r:.80}")


class Place:
    """A directory with a checkpoint, and the program."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        generator = np.random.default_rng(1)
        self.tensors = {name: generator.standard_normal((64, 48), dtype=np.float32) for name in NAMES}
        self.tensors["model.norm.weight"] = np.ones(48, dtype=np.float32)
        self.tensors["model.position_ids"] = np.arange(77, dtype=np.int64).reshape(1, 77)
        save_file(self.tensors, folder / "model.safetensors", metadata={"format": "pt"})
        self.hub()

    def hub(self):
        """Writes the checkpoint as three files with an index, as on the Hub."""
        hub = self.folder / "hub"
        hub.mkdir()
        names, weight_map = sorted(self.tensors), {}
        for number in range(3):
            file = f"model-{number + 1:05}-of-00003.safetensors"
            part = {name: self.tensors[name] for name in names[number::3]}
            save_file(part, hub / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(part, file)
        total = sum(tensor.nbytes for tensor in self.tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (hub / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
        for name in ["config.json", "tokenizer.json", "generation_config.json"]:
            (hub / name).write_text("{}")

    def run(self, *arguments, code=0):
        done = subprocess.run([self.program, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True)
        expect(done.returncode, code, f"{arguments}: {done.stdout} {done.stderr}")
        return done.stdout

    def load(self, name):
        return load_file(self.folder / name)

    def loaded_by_index(self, folder):
        """Loads a checkpoint as Hugging Face's libraries do: first the index, then its files."""
        folder = self.folder / folder
        (path,) = folder.glob("*.index.json")
        index, tensors = json.loads(path.read_text()), {}
        for file in set(index["weight_map"].values()):
            with safe_open(folder / file, framework="np") as opened:
                for name in opened.keys():
                    expect(index["weight_map"][name], file, name)
                    tensors[name] = opened.get_tensor(name)
        expect(sum(tensor.nbytes for tensor in tensors.values()), index["metadata"]["total_size"], "total_size")
        return tensors


def same(found, expected):
    expect(sorted(found), sorted(expected), "names")
    for name, tensor in expected.items():
        expect(found[name].dtype, tensor.dtype, name)
        expect(found[name].tobytes(), tensor.tobytes(), name)


def checks(place):
    def whole():
        place.run("convert", "hub", "whole.safetensors")
        same(place.load("whole.safetensors"), place.tensors)

    def divided():
        place.run("split", "model.safetensors", "out/", "--max-shard-size", "30KB")
        expect(len(list((place.folder / "out").glob("*.safetensors"))) > 2, True, "files")
        same(place.loaded_by_index("out"), place.tensors)
        place.run("split", "out", "out/model.safetensors", "--max-shard-size", "60KB", code=1)
        place.run("split", "model.safetensors", "out/model.safetensors", "--max-shard-size", "60KB")
        same(place.loaded_by_index("out"), place.tensors)
        place.run("merge", "out", "-o", "merged.safetensors")
        same(place.load("merged.safetensors"), place.tensors)

    def same_in_all():
        place.run("convert", "hub", "a.zt", "--compress")
        place.run("convert", "hub", "a.npz")
        for file in ["a.zt", "a.npz", "model.safetensors"]:
            place.run("diff", "hub", file)
        with np.load(place.folder / "a.npz") as arrays:
            same({name: arrays[name] for name in arrays.files}, place.tensors)

    def dtype(name):
        def check():
            place.run("convert", "hub", f"{name}.safetensors", "--dtype", name, "--keep-dtype", "*position_ids")
            cast = {key: tensor.astype(DTYPES[name]) for key, tensor in place.tensors.items() if tensor.dtype.kind == "f"}
            kept = {"model.position_ids": place.tensors["model.position_ids"]}
            same(place.load(f"{name}.safetensors"), cast | kept)

        return check

    def rounding(source, target):
        def check():
            generator = np.random.default_rng(2)
            wide = {"f32": np.uint32, "f64": np.uint64}[source]
            bits = generator.integers(0, np.iinfo(wide).max, 400_000, dtype=wide, endpoint=True)
            numbers = bits.view(DTYPES[source])
            # Random bits are mostly far out of the range of 16-bit floats, so as many numbers of usual size are added.
            ordinary = (generator.standard_normal(400_000) * 10.0 ** generator.integers(-6, 5, 400_000)).astype(DTYPES[source])
            numbers = np.concatenate([numbers[~np.isnan(numbers)], ordinary])
            save_file({"w": numbers}, place.folder / "random.safetensors")
            place.run("convert", "random.safetensors", "cast.safetensors", "--dtype", target, "--allow-loss=range")
            found = place.load("cast.safetensors")["w"]
            with np.errstate(over="ignore"):
                # ml_dtypes converts double to single first, which rounds twice, so only values that are exact in single
                # are used.
                if source == "f64" and target == "bf16":
                    exact = numbers == numbers.astype(np.float32).astype(np.float64)
                    numbers, found = numbers[exact], found[exact]
                expected = numbers.astype(DTYPES[target])
            expect(found.tobytes(), expected.tobytes(), "rounding")

        return check

    def chosen():
        place.run("extract", "hub", "--include", "model.layers.[01].*", "--rename", "model.*=>*", "-o", "part.safetensors")
        expected = {name.removeprefix("model."): place.tensors[name] for name in NAMES[:4]}
        same(place.load("part.safetensors"), expected)

    def rows():
        place.run("extract", "hub", NAMES[5], "--rows", "10:20", "-o", "rows.npy")
        found = np.load(place.folder / "rows.npy")
        expect(found.tobytes(), place.tensors[NAMES[5]][10:20].tobytes(), "rows")

    def manifest():
        lines = place.run("manifest", "hub").splitlines()
        digests = [hashlib.sha256(place.tensors[name].tobytes()).hexdigest() for name in sorted(place.tensors)]
        expect([line.split("  ")[0] for line in lines[1:-1]], digests, "digests")
        content = "".join(line + "\n" for line in lines[1:-1])
        expect(lines[-1].split("  ")[0], hashlib.sha256(content.encode()).hexdigest(), "content")
        (place.folder / "m").write_text("\n".join(lines) + "\n")
        place.run("verify", "--manifest", "m", "hub", "model.safetensors")
        (place.folder / "sums").write_text(place.run("manifest", "--files", "hub"))
        done = subprocess.run(["sha256sum", "--check", "--quiet", "sums"], cwd=place.folder, capture_output=True, text=True)
        expect(done.returncode, 0, done.stderr)

    def refused():
        index = place.folder / "hub" / "model.safetensors.index.json"
        good = index.read_text()
        try:
            index.write_text(good.replace("model-00002-of", "../model-00002-of"))
            place.run("inspect", "hub", code=1)
            # The libraries ignore this field, so a wrong value is not an error.
            index.write_text(good.replace('"total_size": ', '"total_size": 1'))
            place.run("diff", "hub", "model.safetensors")
            index.write_text(json.dumps({"weight_map": dict(list(json.loads(good)["weight_map"].items())[1:])}))
            place.run("diff", "hub", "model.safetensors")
            index.unlink()
            place.run("diff", "hub", "model.safetensors")
            first = place.folder / "hub" / "model-00001-of-00003.safetensors"
            first.rename(place.folder / "first")
            place.run("inspect", "hub", code=1)
            (place.folder / "first").rename(first)
        finally:
            index.write_text(good)

    yield "many files", "one of many", whole
    yield "many files", "many of one", divided
    yield "many files", "the same in all formats", same_in_all
    yield "many files", "a false index", refused
    for name in DTYPES:
        yield "dtypes", name, dtype(name)
    for source, target in [("f32", "f16"), ("f32", "bf16"), ("f64", "f16"), ("f64", "bf16"), ("f64", "f32")]:
        yield "dtypes", f"{source} to {target}", rounding(source, target)
    yield "tensors", "chosen", chosen
    yield "tensors", "rows", rows
    yield "tensors", "manifest", manifest


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    report = Report(options.only, options.verbose)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(pathlib.Path(options.program).resolve(), pathlib.Path(folder))
        for group, name, function in checks(place):
            report.check(f"files: {group}", "safetensors", name, function)
    # With --only, possibly no check of this file matches, which is not an error.
    return 0 if not report.lines() or report.print_table() else 1


if __name__ == "__main__":
    sys.exit(main())
