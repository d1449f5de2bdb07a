"""Files for NumPy, torch and jax, and the functions of safetensors under this package's name."""

import gc
import os
import subprocess
import sys
import textwrap

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import tensorferry.flax
import tensorferry.numpy
import tensorferry.torch
from tensorferry import TensorFileError, convert, load, load_file, safe_open, save, save_file

#: Eight-bit floats and the names that files have for them.
FLOATS = {
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}


def address(array):
    return array.__array_interface__["data"][0]


def raw_file(path, **tensors):
    """A safetensors file with these dtypes, shapes and bytes."""
    entries, at = [], 0
    for name, (dtype, shape, data) in tensors.items():
        entries.append(f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{at},{at + len(data)}]}}')
        at += len(data)
    header = ("{" + ",".join(entries) + "}").encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"".join(data for _, _, data in tensors.values()))


@pytest.mark.parametrize("format", ["safetensors", "ztensor2"])
@pytest.mark.parametrize("dtype", [*FLOATS, "bfloat16", "complex64"])
def test_dtypes_beyond_numpys_own_come_back(tmp_path, dtype, format):
    kind = getattr(ml_dtypes, dtype, None) or (np.dtype(dtype) if dtype == "complex64" else None)
    if kind is None:
        pytest.skip("this version of ml_dtypes does not have it")
    expected = np.array([[0.5, 1.0], [2.0, 4.0], [1.0, 0.25]]).astype(kind)
    path = tmp_path / "a.tensors"
    save_file({"w": expected, "other": np.arange(3)}, path, format=format)
    for mmap in (False, True):
        found = load_file(path, mmap=mmap)["w"]
        assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes() and found.shape == (3, 2)
    with safe_open(path) as f:
        stored = {**FLOATS, "bfloat16": "BF16", "complex64": "C64"}[dtype]
        assert f["w"].dtype == dtype and f["w"].unsupported is None and f.get_slice("w").get_dtype() == stored
        assert f.get_slice("w")[1:].tobytes() == expected[1:].tobytes()
        assert f.get_slice("w")[1, 1] == expected[1, 1]
        assert bytes(f["w"].raw()) == expected.tobytes()
    convert(path, tmp_path / "b.safetensors")
    assert load_file(tmp_path / "b.safetensors")["w"].tobytes() == expected.tobytes()
    assert load(save({"w": expected}))["w"].dtype == expected.dtype


def test_safetensors_own_files_of_eight_bit_floats(tmp_path):
    raw_file(tmp_path / "a.safetensors", w=("F8_E4M3", [2], b"\x38\x40"))
    assert load_file(tmp_path / "a.safetensors")["w"].astype(np.float32).tolist() == [1.0, 2.0]


def test_without_ml_dtypes_they_are_typed_bits(tmp_path):
    """In a Python of its own, where ml_dtypes cannot be imported."""
    raw_file(
        tmp_path / "a.safetensors",
        b=("BF16", [2, 1], b"\x80\x3f\x00\x40"),
        f=("F8_E5M2", [3], b"\x3c\x40\x44"),
        x=("F32", [1], np.float32(7).tobytes()),
    )
    code = """
        import sys
        sys.modules["ml_dtypes"] = None
        import numpy as np
        import tensorferry
        for mmap in (False, True):
            found = tensorferry.load_file("a.safetensors", mmap=mmap)
            assert found["x"].tolist() == [7.0]
            b, f = found["b"], found["f"]
            assert b.dtype.names == ("bfloat16",) and b.shape == (2, 1) and b["bfloat16"].tolist() == [[0x3F80], [0x4000]]
            assert f.dtype.names == ("float8_e5m2",) and f["float8_e5m2"].tolist() == [0x3C, 0x40, 0x44]
            try:
                b + b
            except TypeError:
                pass
            else:
                raise AssertionError("bits are no numbers")
        part = tensorferry.safe_open("a.safetensors").get_slice("b")[1:]
        assert part["bfloat16"].tolist() == [[0x4000]]
        tensorferry.save_file(found, "b.zt", format="ztensor2")
        with tensorferry.safe_open("b.zt") as file:
            assert {name: file[name].dtype for name in file} == {"b": "bfloat16", "f": "float8_e5m2", "x": "float32"}
        assert tensorferry.diff("a.safetensors", "b.zt") == []
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, check=True, timeout=60)


def test_dtypes_that_nothing_computes_with_name_file_and_tensor(tmp_path):
    path = tmp_path / "a.safetensors"
    raw_file(path, q=("F4", [4], b"\x12\x34"), w=("I8", [1], b"\x01"))
    with safe_open(path) as f:
        assert (f["q"].dtype, f["q"].nbytes) == ("F4", 2) and "copied" in f["q"].unsupported
        assert bytes(f["q"].raw()) == b"\x12\x34" and f["w"].numpy().tolist() == [1]
        for read in (f["q"].numpy, f["q"].view, f["q"].torch, f["q"].jax, lambda: f.get_slice("q")[:], lambda: load_file(path)):
            with pytest.raises(TensorFileError) as error:
                read()
            text = str(error.value)
            assert text.startswith(f"{path}: tensor 'q': ") and "raw()" in text and "ml_dtypes" not in text
            assert (error.value.kind, error.value.tensor, error.value.file) == ("Unsupported", "q", str(path))


def test_arrays_and_dlpack_say_when_a_copy_is_needed(tmp_path):
    array = np.arange(1 << 12, dtype=np.float32)
    save_file({"w": array, "b": array.astype(ml_dtypes.bfloat16)}, tmp_path / "a.zt")
    mapped, read = safe_open(tmp_path / "a.zt", mmap=True), safe_open(tmp_path / "a.zt")
    at = address(mapped["w"].view())
    # NumPy 1 does not say what it wants: it gets what costs nothing.
    assert address(mapped["w"].__array__()) == at and not mapped["w"].__array__().flags.writeable
    assert address(mapped["w"].__array__(copy=True)) != at and mapped["w"].__array__(copy=True).flags.writeable
    assert read["w"].__array__().flags.writeable
    assert mapped["w"].__array__(np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="'w'.*float64 only by a copy"):
        mapped["w"].__array__(np.float64, copy=False)
    with pytest.raises(BufferError, match="'w'"):
        mapped["w"].__dlpack__(copy=False)
    assert mapped["w"].__dlpack__() is not None
    with pytest.raises(BufferError, match=r"a.zt: tensor 'b'.*torch\(\)"):
        mapped["b"].__dlpack__(max_version=(1, 0))


def test_numpys_functions_are_safetensors(tmp_path):
    expected = {"b": np.zeros((2, 3), np.float32), "a": np.arange(2, dtype=np.int8)}
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    assert tensorferry.numpy.save_file(expected, ours, {"k": "v"}) is None
    safetensors.numpy.save_file(expected, theirs, {"k": "v"})
    for path in (ours, theirs):
        for found in (tensorferry.numpy.load_file(path), safetensors.numpy.load_file(path)):
            assert {name: (array.dtype, array.tolist()) for name, array in found.items()} == {
                name: (array.dtype, array.tolist()) for name, array in expected.items()
            }
    data = tensorferry.numpy.save(expected, {"k": "v"})
    assert safetensors.numpy.load(data).keys() == tensorferry.numpy.load(safetensors.numpy.save(expected)).keys()
    # A name that says nothing is safetensors', one that says a format is that.
    tensorferry.numpy.save_file(expected, tmp_path / "weights.bin")
    assert safe_open(tmp_path / "weights.bin").format == "safetensors"
    tensorferry.numpy.save_file(expected, tmp_path / "weights.zt")
    assert safe_open(tmp_path / "weights.zt").format == "ztensor"
    with safetensors.safe_open(theirs, "np") as f, safe_open(theirs, "np", backend="mmap") as g:
        assert f.metadata() == g.metadata() == {"k": "v"}
        assert f.offset_keys() == g.offset_keys() and set(f.keys()) == set(g.keys())
        for name in expected:
            assert f.get_slice(name).get_dtype() == g.get_slice(name).get_dtype()
            assert f.get_slice(name).get_shape() == g.get_slice(name).get_shape()
        assert {name: array.tolist() for name, array in f.get_tensors().items()} == {
            name: array.tolist() for name, array in g.get_tensors().items()
        }
    safetensors.numpy.save_file(expected, theirs)
    with safetensors.safe_open(theirs, "np") as f, safe_open(theirs, "np") as g:
        assert f.metadata() is None and g.metadata() is None


def test_torch(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.zt"
    expected = {"w": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.tensor([1.5, -2.0]).bfloat16()}
    expected["empty"] = torch.zeros(0, 2)
    tensorferry.torch.save_file(expected, path)
    for found in (
        tensorferry.torch.load_file(path),
        tensorferry.torch.load(path.read_bytes()),
        load_file(path, "pt", mmap=True),
        load_file(path, "torch", torch.device("cpu")),
    ):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert all(found[name].dtype == expected[name].dtype for name in expected)
    with safe_open(path, "pt", mmap=True) as f:
        at = address(f["w"].view())
        assert f["w"].torch(copy=False).data_ptr() == at and f["w"].torch().data_ptr() != at
        lent = f["b"].torch(copy=False)
        assert torch.equal(f.get_slice("w")[1:], expected["w"][1:]) and torch.equal(torch.from_dlpack(f["w"]), expected["w"])
        own = f["w"].torch()
    own += 1
    os.unlink(path)
    assert lent.tolist() == [1.5, -2.0]
    for dtype, stored in FLOATS.items():
        kind = getattr(torch, dtype, None)
        if kind is None:
            continue
        tensorferry.torch.save_file({"x": torch.tensor([0.5, 1.0]).to(kind)}, tmp_path / "f.safetensors")
        found = tensorferry.torch.load_file(tmp_path / "f.safetensors")["x"]
        assert found.dtype == kind and found.float().tolist() == [0.5, 1.0]
        assert safe_open(tmp_path / "f.safetensors").get_slice("x").get_dtype() == stored


def test_torchs_modules(tmp_path):
    torch = pytest.importorskip("torch")

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 3)
            self.head = torch.nn.Linear(3, 5)
            self.head.weight = self.embedding.weight

    first, second = Tied(), Tied()
    with pytest.raises(RuntimeError, match="embedding.weight, head.weight.*save_model"):
        tensorferry.torch.save_file(first.state_dict(), tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="expected a torch.Tensor"):
        tensorferry.torch.save({"x": np.zeros(1)})
    for path in (tmp_path / "a.safetensors", tmp_path / "a.zt"):
        # zTensor has no place for metadata that say which name was left out.
        if path.suffix == ".zt":
            with pytest.raises(TensorFileError):
                tensorferry.torch.save_model(first, path)
            continue
        tensorferry.torch.save_model(first, path, {"k": "v"})
        with safe_open(path) as f:
            assert f.keys() == ["embedding.weight", "head.bias"] or set(f.keys()) == {"embedding.weight", "head.bias"}
            assert f.metadata() == {"k": "v", "head.weight": "embedding.weight"}
        assert tensorferry.torch.load_model(second, path) == ([], [])
        assert torch.equal(second.head.weight, first.head.weight) and torch.equal(second.head.bias, first.head.bias)
    tensorferry.torch.save_file({"head.bias": first.head.bias.detach(), "more": torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(RuntimeError, match=r'(?s)Missing.*"embedding.weight".*Unexpected.*"more"'):
        tensorferry.torch.load_model(second, tmp_path / "b.safetensors")
    missing, unexpected = tensorferry.torch.load_model(second, tmp_path / "b.safetensors", strict=False)
    assert (missing, unexpected) == (["embedding.weight"], ["more"])
    whole = torch.zeros(4)
    with pytest.raises(RuntimeError, match="none of them covers it"):
        tensorferry.torch.save_model(Shares(whole[:2], whole[1:3]), tmp_path / "c.safetensors")
    # Parts of one memory that do not overlap are no duplicates.
    tensorferry.torch.save_file({"a": whole[:2], "b": whole[2:]}, tmp_path / "d.safetensors")
    theirs = pytest.importorskip("safetensors.torch")
    for path in ("a.safetensors", "d.safetensors"):
        ours = tensorferry.torch.load_file(tmp_path / path)
        assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.load_file(tmp_path / path).items())


class Shares:
    """Looks like a module whose tensors share memory."""

    def __init__(self, a, b):
        self._state = {"a": a, "b": b}

    def state_dict(self):
        return dict(self._state)


def test_jax_uses_what_was_read(tmp_path):
    jax = pytest.importorskip("jax")
    path = tmp_path / "a.zt"
    arrays = {"w": np.arange(6000, dtype=np.float32).reshape(60, 100), "one": np.float32(3), "none": np.zeros((0, 3), np.int32)}
    tensorferry.save_file(arrays, path)
    # A mapped file whose tensors are aligned is the array's memory, which lives as long as the array.
    with safe_open(path, "jax", mmap=True) as f:
        view = f["w"].view()
        found = f["w"].jax()
        assert found.unsafe_buffer_pointer() == view.ctypes.data
        again = jax.jit(lambda array: array.at[0, 0].set(7.0), donate_argnums=0)(f["w"].jax())
        del view
    gc.collect()
    assert (np.asarray(found) == arrays["w"]).all() and float(again[0, 0]) == 7.0
    # What is read goes where jax need not copy it.
    with safe_open(path, "jax") as f:
        for name in arrays:
            read = f[name]._aligned()
            assert (read == arrays[name]).all() and read.dtype == arrays[name].dtype and read.flags.c_contiguous
            assert read.size == 0 or jax.device_put(read).unsafe_buffer_pointer() == read.ctypes.data
            assert (np.asarray(f[name].jax()) == arrays[name]).all() and f[name].jax().shape == arrays[name].shape
    # Elsewhere it is copied.
    data = np.frombuffer(bytes(64), np.uint8)[4:]
    tensorferry.save_file({"b": data, "w": arrays["w"]}, tmp_path / "b.safetensors")
    with safe_open(tmp_path / "b.safetensors", "jax", mmap=True) as f:
        assert all((np.asarray(f[name].jax()) == f[name].view()).all() for name in f.keys())


def test_jax(tmp_path):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    path = tmp_path / "a.safetensors"
    expected = {"w": jnp.arange(6, dtype=jnp.float32).reshape(2, 3), "b": jnp.array([1.5, -2.0], dtype=jnp.bfloat16)}
    expected["f"] = jnp.array([0.5, 1.0], dtype=jnp.float8_e4m3fn)
    tensorferry.flax.save_file(expected, path)
    for found in (
        tensorferry.flax.load_file(path),
        tensorferry.flax.load(path.read_bytes()),
        load_file(path, "jax", mmap=True),
        load_file(path, "flax"),
    ):
        assert all(isinstance(found[name], jax.Array) and found[name].dtype == expected[name].dtype for name in expected)
        assert all((found[name] == expected[name]).all() for name in expected)
    with safe_open(path, "jax", mmap=True) as f:
        assert f.get_slice("w")[1:].tolist() == expected["w"][1:].tolist()
    data = tensorferry.flax.save(expected)
    assert safetensors.safe_open is not None and load(data)["w"].tolist() == expected["w"].tolist()
    with pytest.raises(ValueError, match="device"):
        safe_open(path, "jax", device="gpu")
    # In a process of its own: jax 0.10 may not come to an end after it was lent memory, NumPy's too.
    code = """
        import os, sys
        import jax
        import tensorferry
        tensor = tensorferry.safe_open("a.safetensors", mmap=True)["w"]
        assert jax.dlpack.from_dlpack(tensor).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        print("lent", flush=True)
        os._exit(0)
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, timeout=120, capture_output=True, text=True
    )
    assert found.stdout == "lent\n", found.stderr
