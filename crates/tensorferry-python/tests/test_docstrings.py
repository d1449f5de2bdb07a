"""What the docstrings say of losses and copies, one test for each claim, and that each public thing has one."""

import importlib
import inspect
import os
from pathlib import Path

import numpy as np
import pytest

import tensorferry
from tensorferry import Server, TensorFileError, Writer, convert, diff, load, load_file, manifest, safe_open, save, save_file, verify

MODULES = ["tensorferry", "tensorferry.numpy", "tensorferry.torch", "tensorferry.flax", "tensorferry_model"]
SPARSE = Path(os.environ["TENSORFERRY_CORPORA"]) / "fmt-btf" / "tests" / "corpus" / "accept" / "b1-dense-and-sparse.btf"


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_has_a_docstring(module):
    module = importlib.import_module(module)
    assert inspect.getdoc(module)
    for name in module.__all__:
        found = getattr(module, name)
        if not (inspect.isclass(found) or inspect.isroutine(found)):
            continue
        assert inspect.getdoc(found), name
        for part, value in vars(found).items() if inspect.isclass(found) else ():
            if not part.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{part}"


def test_saving_keeps_dtype_and_numbers_and_drops_what_is_no_number():
    given = {
        "big": np.array([1, 2], ">i4"),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "list": [1, 2.5],
        "masked": np.ma.array([1.0, 2.0], mask=[False, True]),
        "twice": (shared := np.ones(2, np.float16)),
        "again": shared,
    }
    found = load(save(given))
    assert found["big"].dtype == np.int32 and found["big"].tolist() == [1, 2]
    assert found["columns"].tolist() == [[0, 1, 2], [3, 4, 5]] and found["list"].dtype == np.float64
    assert type(found["masked"]) is np.ndarray and found["masked"].tolist() == [1, 2]
    assert not np.shares_memory(found["twice"], found["again"])


@pytest.mark.parametrize("given", [np.array(["a"]), np.array([None]), np.ones(2, np.longdouble), np.array(["2020-01-01"], "M8[D]")])
def test_saving_refuses_what_is_no_tensor_of_numbers(given, tmp_path):
    with pytest.raises((TypeError, ValueError), match="tensor 'w'"):
        save({"w": given})
    with Writer(tmp_path / "a.zt") as writer, pytest.raises((TypeError, ValueError), match="tensor 'w'"):
        writer.add("w", given)


def test_saving_drops_nothing_else_and_converting_says_what(tmp_path):
    a, b = tmp_path / "a.safetensors", tmp_path / "b.npz"
    save_file({"w": np.ones(2, np.float32), "n": np.ones(1, np.int64)}, a, {"license": "mit"})
    with pytest.raises(TensorFileError, match="cannot store the metadata 'license'"):
        save_file({"w": np.ones(2)}, b, {"license": "mit"})
    with pytest.raises(TensorFileError, match="GGML has"):
        save({"w": np.ones(32, bool)}, format="gguf")
    assert not b.exists()
    assert convert(a, b) == ["the metadata 'license'"]
    with pytest.raises(TensorFileError):
        convert(a, b, strict=True)
    # Rounding and what the patterns leave out are wanted.
    assert convert(a, tmp_path / "c.safetensors", dtype="bf16", include=["w", "n"]) == []
    assert [tensor.dtype for tensor in safe_open(tmp_path / "c.safetensors").values()] == ["bfloat16", "int64"]
    assert convert(a, tmp_path / "d.safetensors", exclude="n") == [] and list(safe_open(tmp_path / "d.safetensors")) == ["w"]
    save_file({"w": np.float32([70000])}, a)
    with pytest.raises(TensorFileError, match="beyond the range"):
        convert(a, b, dtype="f16")
    (lost,) = convert(a, b, dtype="f16", allow_loss=True)
    assert "beyond the range" in lost and np.isinf(load_file(b)["w"]).all()


def test_a_sparse_tensor_is_refused_and_converting_makes_it_dense(tmp_path):
    sparse, dense = safe_open(SPARSE)["0"], tmp_path / "dense.safetensors"
    assert sparse.layout == "coo"
    for read in (sparse.numpy, sparse.view, sparse.raw, lambda: np.asarray(sparse), lambda: load_file(SPARSE), lambda: save({"w": sparse})):
        with pytest.raises(TensorFileError, match="is sparse"):
            read()
    with pytest.raises(TensorFileError, match="is sparse"):
        convert(SPARSE, dense)
    assert "that tensor '0' is sparse" in convert(SPARSE, dense, allow_loss=True)
    assert load_file(dense)["0"].tolist() == [0, 9, 0]


def test_what_is_a_view_and_what_a_copy(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, path)
    mapped, read = safe_open(path, mmap=True), safe_open(path)
    assert np.shares_memory(mapped["w"].view(), mapped["w"].view()) and not mapped["w"].view().flags.writeable
    assert not np.shares_memory(read["w"].view(), read["w"].view()) and not read["w"].view().flags.writeable
    for found in (mapped["w"].numpy(), mapped.get_tensor("w"), mapped.get_slice("w")[0:2], read["w"].numpy(), np.asarray(read["w"])):
        assert found.flags.writeable and not np.shares_memory(found, mapped["w"].view())
    assert np.shares_memory(np.asarray(mapped["w"]), mapped["w"].view())
    assert not load_file(path, mmap=True)["w"].flags.writeable
    data = bytearray(path.read_bytes())
    found = load(data)["w"]
    data[-1] ^= 0xFF
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    # As astype does.
    assert np.asarray(mapped["w"], dtype=np.int8).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_metadata_is_compared_by_diff_and_not_by_manifest(tmp_path):
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for path, metadata in ((a, {"x": "1"}), (b, {"x": "2"})):
        save_file({"w": np.float32([1.0, 100.0])}, path, metadata)
    assert [row["text"] for row in diff(a, b)] == ["the metadata 'x' differs"] and manifest(a) == manifest(b)
    assert tensorferry.check_manifest(b, manifest(a)) == {}
    save_file({"w": np.float32([1.1, 110.0])}, b, {"x": "1"})
    assert diff(a, b, rtol=0.1) == [] and [row["name"] for row in diff(a, b, atol=0.2)] == ["w"]
    assert set(verify(a).values()) == {"unchecked"}


def test_metadata_are_texts(tmp_path):
    save_file({"w": np.ones(32, np.float32)}, tmp_path / "a.gguf", {"general.name": "a"})
    metadata = safe_open(tmp_path / "a.gguf").metadata()
    assert metadata["general.name"] == "a" and {type(value) for value in metadata.values()} == {str}


@tensorferry.model(inputs={"x": ("FP64", [-1])}, outputs={"f": ("FP32", [-1]), "n": ("INT8", [-1])})
def outputs(x):
    return {"f": x, "n": (x if x[0] == 2 else np.minimum(x, 300).astype(np.int64))}


def test_outputs_of_functions_are_rounded_and_never_other_numbers():
    with Server(models={"outputs": outputs}) as server:
        client = server.client()
        assert client.infer("outputs", {"x": [0.1]})["f"].tolist() == [np.float32(0.1)]
        for wrong in ([300.0], [1e39], [2.0]):
            with pytest.raises(tensorferry.InferenceError, match="does not fit|expected int8"):
                client.infer("outputs", {"x": wrong})


def test_outputs_are_views_of_the_response_and_cannot_be_written():
    with Server(models={"outputs": outputs}) as server:
        found = server.client().infer("outputs", {"x": [1.0]})["f"]
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 1
        assert found.base is not None
