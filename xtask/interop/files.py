"""Reads files of other programs with `tensor`, and files of `tensor` with other programs.

Usage: files.py TENSOR, where TENSOR is the program. Needs the packages in requirements.txt; checkpoints are compared
too if torch can be imported. The exit code is 1 if a check fails. Called by `cargo xtask interop --files`.
"""

import argparse
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import ml_dtypes
import numpy as np
import safetensors.numpy
from report import Report


def ensure(holds, message):
    """Fails with the message unless `holds` is true."""
    if not holds:
        raise AssertionError(str(message))


class Tensor:
    """The program `tensor`, run in its own directory."""

    def __init__(self, program, folder):
        self._program = program
        self._folder = folder

    def __call__(self, *arguments):
        """Runs the program and returns its output. Raises an exception with its error message."""
        command = [self._program, *map(str, arguments)]
        run = subprocess.run(command, cwd=self._folder, capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(run.stderr or run.stdout)
        return run.stdout

    def refuses(self, *arguments, wanted):
        """Checks that the program fails with a message that contains all of `wanted`."""
        try:
            self(*arguments)
        except RuntimeError as error:
            for text in wanted:
                ensure(text in str(error), f"{text!r} is not in {error}")
        else:
            raise AssertionError("it was not refused")


# GGUF


def gguf_contents(path):
    """Returns a file's values with their types, and its tensors as bytes."""
    reader = gguf.GGUFReader(path)
    values = {
        key: ([kind.name for kind in field.types], field.contents())
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    tensors = {
        tensor.name: (tensor.tensor_type.name, tensor.shape.tolist(), tensor.data.tobytes()) for tensor in reader.tensors
    }
    return values, tensors


def gguf_file(path, byte_order=gguf.GGUFEndian.LITTLE):
    """Writes a file with every type of value, and every type of tensor that the package supports."""
    writer = gguf.GGUFWriter(path, "tiny", endianess=byte_order)
    writer.add_name("ä name")
    for kind in "uint8 int8 uint16 int16 uint32 int32 uint64 int64".split():
        limits = np.iinfo(kind)
        getattr(writer, f"add_{kind}")(f"tiny.{kind}.least", int(limits.min))
        getattr(writer, f"add_{kind}")(f"tiny.{kind}.most", int(limits.max))
    writer.add_float32("tiny.float32", 0.1)
    writer.add_float64("tiny.float64", 1e300)
    writer.add_bool("tiny.bool", True)
    writer.add_token_list(["a", 'b"\\', "\n\u0001", ""])
    writer.add_array("tiny.whole", [1, -2, 3])
    writer.add_array("tiny.floats", [1.5, -0.25])
    random = np.random.default_rng(0)
    floats = random.standard_normal((3, 512)).astype(np.float32)
    writer.add_tensor("f32", floats)
    writer.add_tensor("f16", floats.astype(np.float16))
    for kind in (np.int8, np.int16, np.int32, np.int64, np.float64):
        writer.add_tensor(np.dtype(kind).name, np.arange(7, dtype=kind))
    if byte_order == gguf.GGUFEndian.LITTLE:
        for kind, (_, size) in gguf.GGML_QUANT_SIZES.items():
            # For this type, the package's layout differs from that of GGML, which writes no files with it.
            if size > 8 and kind.name != "Q8_1":
                blocks = 512 // gguf.GGML_QUANT_SIZES[kind][0]
                data = random.integers(0, 256, (3, blocks * size), dtype=np.uint8)
                writer.add_tensor(kind.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_checks(report, tensor, folder):
    source, copy = folder / "a.gguf", folder / "b.gguf"
    gguf_file(source)

    def same():
        tensor("convert", source, copy)
        ensure(gguf_contents(copy) == gguf_contents(source), "the copy is another")
        tensor("diff", source, copy)
        tensor("verify", copy)

    def edited():
        tensor("convert", source, copy)
        tensor("set", copy, "tiny.uint16.least=77")
        tensor("set", copy, "general.name=" + "another " * 20)
        tensor("rename", copy, "f32", "renamed")
        values, tensors = gguf_contents(source)
        values["tiny.uint16.least"] = (["UINT16"], 77)
        values["general.name"] = (["STRING"], "another " * 20)
        tensors["renamed"] = tensors.pop("f32")
        ensure(gguf_contents(copy) == (values, tensors), "more has changed, or less")

    def from_safetensors():
        arrays = {
            "scalar": np.array(3, np.float32),
            "vector": np.arange(3, dtype=np.int64),
            "none": np.zeros((0, 4), np.float32),
        }
        safetensors.numpy.save_file(arrays, folder / "s.safetensors", metadata={"format": "pt"})
        tensor("convert", folder / "s.safetensors", copy)
        values, tensors = gguf_contents(copy)
        ensure(values == {"format": (["STRING"], "pt")}, values)
        for name, array in arrays.items():
            ensure(tensors[name][1:] == (list(array.shape[::-1]), array.tobytes()), name)

    def big_endian():
        gguf_file(folder / "big.gguf", gguf.GGUFEndian.BIG)
        tensor.refuses("inspect", folder / "big.gguf", wanted=["big-endian", "gguf-convert-endian"])

    def tokens_of_bytes():
        tokens = [b"<s>", b"\xe4\xbd", "ä".encode(), b"\xff", b""]
        writer = gguf.GGUFWriter(folder / "tokens.gguf", "tiny")
        writer.add_token_list(tokens)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        tensor("convert", folder / "tokens.gguf", folder / "tokens.safetensors")
        for path in (folder / "tokens.gguf", folder / "tokens.safetensors"):
            tensor("convert", path, copy)
            field = gguf.GGUFReader(copy).fields[gguf.Keys.Tokenizer.LIST]
            ensure([field.parts[index].tobytes() for index in field.data] == tokens, f"{path}: other tokens")

    def in_many_files():
        tensor("merge", source, "-o", copy)
        whole = gguf_contents(copy)
        theirs, ours = folder / "theirs", folder / "ours"
        theirs.mkdir(exist_ok=True)
        writer = gguf.GGUFWriter(theirs / "model.gguf", "tiny", split_max_tensors=2)
        writer.add_uint32("tiny.layers", 3)
        for name in "abcde":
            writer.add_tensor(name, np.full((2, 3), ord(name), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        ensure(len(list(theirs.iterdir())) == 3, "the package has written other files")
        tensor("merge", theirs, "-o", folder / "merged.gguf")
        values, tensors = gguf_contents(folder / "merged.gguf")
        ensure(not [key for key in values if key.startswith("split.")], "the numbers of files are left")
        ensure(values["tiny.layers"] == (["UINT32"], 3), values)
        ensure(sorted(tensors) == list("abcde"), tensors)
        # Convert back: the same keys with the same types, and one file per tensor.
        tensor("split", source, f"{ours}/", "--max-shard-size", "6000")
        parts = sorted(ours.iterdir())
        ensure(len(parts) > 2, parts)
        found = {}
        for number, part in enumerate(parts):
            ensure(part.name == f"model-{number + 1:05}-of-{len(parts):05}.gguf", part)
            values, tensors = gguf_contents(part)
            split = {
                gguf.Keys.Split.LLM_KV_SPLIT_NO: (["UINT16"], number),
                gguf.Keys.Split.LLM_KV_SPLIT_COUNT: (["UINT16"], len(parts)),
                gguf.Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT: (["INT32"], len(whole[1])),
            }
            wanted = {**whole[0], **split} if number == 0 else split
            ensure(values == wanted, f"{part}: {values}")
            found.update(tensors)
        ensure(found == whole[1], "other tensors")
        tensor("merge", *parts, "-o", folder / "merged.gguf", "--strict")
        ensure(gguf_contents(folder / "merged.gguf") == whole, "the whole is another")

    for check in (same, edited, from_safetensors, big_endian, tokens_of_bytes, in_many_files):
        report.check("GGUF", "gguf", check.__name__, check)


# NumPy


def numpy_arrays():
    """Returns arrays of all types that NumPy saves, in all memory orders."""
    kinds = "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16 S3 U3 M8[ns] m8[s] V5".split()
    for kind, order, shape in itertools.product(kinds, "<>", [(), (3,), (2, 3), (2, 0, 3), (2, 3, 4)]):
        count = int(np.prod(shape))
        base = np.arange(count) % 100
        array = base.astype(kind if kind != "V5" else "S5").astype(np.dtype(kind).newbyteorder(order))
        array = array.reshape(shape)
        yield f"{kind.strip('[]').replace('[', '-')}{'le' if order == '<' else 'be'}{len(shape)}{count}", array
        if len(shape) > 1:
            yield f"{kind[:2]}{order == '<'}{shape}fortran".replace(" ", ""), np.asfortranarray(array)


def same_arrays(one, other):
    ensure(set(one) == set(other), set(one) ^ set(other))
    for name, array in one.items():
        found = other[name]
        ensure(found.dtype == array.dtype.newbyteorder("<") and found.shape == array.shape, f"{name}: {found.dtype}")
        ensure(np.ascontiguousarray(found).tobytes() == array.astype(found.dtype).tobytes(), name)


def numpy_checks(report, tensor, folder):
    arrays = dict(numpy_arrays())

    def archives():
        for save in (np.savez, np.savez_compressed):
            save(folder / "a.npz", **arrays)
            tensor("convert", folder / "a.npz", folder / "b.npz")
            with np.load(folder / "b.npz") as found:
                same_arrays(arrays, dict(found))
            tensor("diff", folder / "a.npz", folder / "b.npz")
            tensor("verify", folder / "a.npz")

    def versions():
        array = np.arange(6, dtype=">i2").reshape(2, 3)
        for version in [(1, 0), (2, 0), (3, 0)]:
            with open(folder / "v.npy", "wb") as file:
                np.lib.format.write_array(file, array, version=version)
            tensor("convert", folder / "v.npy", folder / "w.npy")
            same_arrays({"": array}, {"": np.load(folder / "w.npy")})

    def small_floats():
        brain = np.array([0.5, -1, 3e38], ml_dtypes.bfloat16)
        eight = np.array([0.5, -1, 2], ml_dtypes.float8_e5m2)
        np.savez(folder / "m.npz", brain=brain, eight=eight)
        tensor("convert", folder / "m.npz", folder / "m.safetensors")
        header = (folder / "m.safetensors").read_bytes()[8:300]
        ensure(b'"BF16"' in header and b'"F8_E5M2"' in header, header)
        # NumPy does not read its own files of the other byte order.
        tensor("convert", folder / "m.safetensors", folder / "n.npz", "--allow-loss=tensors")
        with np.load(folder / "n.npz") as found:
            ensure(list(found) == ["brain"], list(found))
            ensure(found["brain"].view(ml_dtypes.bfloat16).tolist() == brain.tolist(), found["brain"])

    def refused():
        np.savez(folder / "o.npz", objects=np.array([None, 1]), good=np.ones(2))
        tensor.refuses("convert", folder / "o.npz", folder / "p.npz", wanted=["'objects'", "'|O'", "pickled"])
        np.save(folder / "f.npy", np.zeros(2, dtype=[("x", "i4"), ("y", "f8")]))
        tensor.refuses("convert", folder / "f.npy", folder / "g.npy", wanted=["has fields"])

    for check in (archives, versions, small_floats, refused):
        report.check("NumPy", "numpy", check.__name__, check)


# safetensors


def safetensors_checks(report, tensor, folder):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.int8), "c": np.zeros((0, 2), np.uint8)}
    path = folder / "x.safetensors"

    def edited():
        safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
        expected = dict(arrays)
        for number in range(20):
            tensor("set", path, f"key{number}=value {number}")
        tensor("rename", path, "a", "first")
        expected["first"] = expected.pop("a")
        same_arrays(expected, safetensors.numpy.load_file(path))
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata()
        ensure(metadata == {"format": "pt"} | {f"key{number}": f"value {number}" for number in range(20)}, metadata)

    def written():
        safetensors.numpy.save_file(arrays, path)
        for name in ("y.zt", "y.npz"):
            tensor("convert", path, folder / name)
            tensor("convert", folder / name, folder / "z.safetensors")
            same_arrays(arrays, safetensors.numpy.load_file(folder / "z.safetensors"))

    for check in (edited, written):
        report.check("safetensors", "safetensors", check.__name__, check)


# PyTorch


def named(torch, value, name=""):
    """Flattens nested values into tensors, named by the keys that lead to them."""
    if isinstance(value, torch.Tensor):
        yield name or "0", value.detach()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from named(torch, item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from named(torch, item, f"{name}.{number}" if name else str(number))


def torch_checks(report, tensor, folder):
    try:
        import safetensors.torch
        import torch
    except ImportError:
        print("torch cannot be imported: checkpoints are not compared")
        return
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.LSTM(8, 8))
    state = model.state_dict()
    views = {"base": torch.arange(24.0).reshape(4, 6)}
    views |= {"turned": views["base"].t(), "part": views["base"][1:, ::2], "wide": views["base"][:1, :1].expand(3, 5)}
    kinds = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64".split()
    kinds = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in kinds}
    many = {f"layer.{number}.weight": torch.full((2, 2), float(number)) for number in range(5000)}
    for name, value in [("state", state), ("views", views), ("kinds", kinds), ("many", many), ("list", [state, {"n": 1}])]:
        for layout, options in [
            ("zip", {}),
            ("protocol 4", {"pickle_protocol": 4}),
            ("legacy", {"_use_new_zipfile_serialization": False}),
        ]:

            def check(value=value, options=options):
                torch.save(value, folder / "t.pt", **options)
                tensor("verify", folder / "t.pt")
                tensor("convert", folder / "t.pt", folder / "t.safetensors")
                found = safetensors.torch.load_file(folder / "t.safetensors")
                wanted = dict(named(torch, value))
                ensure(set(found) == set(wanted), set(found) ^ set(wanted))
                for key, item in wanted.items():
                    ensure(found[key].dtype == item.dtype and torch.equal(found[key], item), key)
                tensor("diff", folder / "t.pt", folder / "t.safetensors")

            report.check("PyTorch", "torch", f"{name}, {layout}", check)

    def script():
        scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 4)))
        scripted.save(folder / "s.pt")
        tensor("convert", folder / "s.pt", folder / "s.safetensors", "--allow-loss=parts")
        found = safetensors.torch.load_file(folder / "s.safetensors")
        for key, item in scripted.state_dict().items():
            ensure(torch.equal(found[key], item), key)

    report.check("PyTorch", "torch", "script", script)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tensor")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--only")
    options = parser.parse_args()
    report = Report(options.only, options.verbose)
    program = os.path.abspath(options.tensor)
    for checks in (gguf_checks, numpy_checks, safetensors_checks, torch_checks):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            checks(report, Tensor(program, folder), folder)
    return 0 if report.print_table() else 1


if __name__ == "__main__":
    sys.exit(main())
