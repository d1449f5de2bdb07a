"""Files, from the installed package."""

import ctypes
import os
import sys
import threading
import time

import numpy as np
import pytest
import safetensors.numpy

import tensorferry
from tensorferry import (
    TensorFileError,
    Writer,
    check_manifest,
    convert,
    diff,
    load,
    load_file,
    manifest,
    safe_open,
    save,
    save_file,
    verify,
)

NUMBERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"]
#: Formats that hold names, and every dtype of NUMBERS.
NAMED = ["safetensors", "zt", "npz", "tbuf"]


def tensors(dtypes=NUMBERS):
    rng = np.random.default_rng(7)
    return {f"{dtype}.w": rng.integers(0, 100, (3, 4)).astype(dtype) for dtype in dtypes}


def assert_same(found, expected):
    assert list(sorted(found)) == list(sorted(expected))
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("extension", NAMED)
@pytest.mark.parametrize("mmap", [False, True])
def test_every_format_gives_back_what_it_took(tmp_path, extension, mmap):
    path = tmp_path / f"a.{extension}"
    expected = tensors() | {"scalar": np.float32(3.5), "empty": np.zeros((0, 2), np.int64)}
    length = save_file(expected, path)
    assert length == path.stat().st_size
    found = load_file(path, mmap=mmap)
    assert_same(found, {name: np.asarray(array) for name, array in expected.items()})
    assert all(array.flags.writeable is not mmap for array in found.values() if array.size)


def test_safetensors_reads_what_is_written_and_the_other_way_round(tmp_path):
    expected = tensors(["float16", "bool", *NUMBERS])
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    save_file(expected, ours, metadata={"license": "mit"})
    assert_same(safetensors.numpy.load_file(ours), expected)
    safetensors.numpy.save_file(expected, theirs, metadata={"license": "mit"})
    assert_same(load_file(theirs), expected)
    with safe_open(theirs, framework="np") as f, safetensors.safe_open(theirs, framework="np") as g:
        assert f.metadata() == g.metadata() == {"license": "mit"}
        assert sorted(f.keys()) == sorted(g.keys())
        assert f.format == "safetensors"


def test_memory_instead_of_files():
    expected = tensors()
    assert_same(load(save(expected)), expected)
    assert_same(load(bytearray(save(expected, format="ztensor"))), expected)
    assert_same(safetensors.numpy.load(save(expected)), expected)


def test_orders_and_strides_do_not_matter(tmp_path):
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    given = {"t": array.transpose(2, 0, 1), "s": array[:, ::2], "big": array.astype(">f4"), "f": np.asfortranarray(array)}
    path = tmp_path / "a.zt"
    save_file(given, path)
    for name, found in load_file(path).items():
        np.testing.assert_array_equal(found, given[name])


def test_bfloat16(tmp_path):
    import ml_dtypes

    array = np.array([1.5, -2.0, np.inf], dtype=ml_dtypes.bfloat16)
    save_file({"x": array}, tmp_path / "a.safetensors")
    found = load_file(tmp_path / "a.safetensors")["x"]
    assert found.dtype == ml_dtypes.bfloat16 and found.tolist() == array.tolist()


@pytest.mark.parametrize("extension", NAMED)
def test_slices_read_what_they_say(tmp_path, extension):
    array = np.arange(60, dtype=np.int32).reshape(5, 4, 3)
    save_file({"w": array}, tmp_path / f"a.{extension}")
    with safe_open(tmp_path / f"a.{extension}") as f:
        part = f.get_slice("w")
        assert part.get_shape() == [5, 4, 3] and part.get_dtype() == "I32"
        for index in [
            np.s_[:], np.s_[1:3], np.s_[-2:], np.s_[4], np.s_[-1], np.s_[1:3, 2], np.s_[::2], np.s_[3:1],
            np.s_[2, 1:, ::-1], np.s_[...], np.s_[[0, 4]], np.s_[9:],
        ]:
            np.testing.assert_array_equal(part[index], array[index])
        with pytest.raises(IndexError, match="5 rows"):
            part[5]


@pytest.mark.parametrize("mmap", [False, True])
def test_indices_give_what_numpy_gives(tmp_path, mmap):
    arrays = {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "s": np.array(3.5, np.float32),
        "e": np.zeros((0, 4), np.float32),
    }
    save_file(arrays, tmp_path / "a.safetensors")
    of_safetensors = safetensors.safe_open(tmp_path / "a.safetensors", "np")
    whole = slice(None)
    indices = {
        "w": [
            (), ..., (..., 0), None, (None, 1), (0, 1), -1, 5, whole, slice(2, 1), slice(None, None, 2), slice(None, None, -1),
            (slice(1, 2), slice(0, 2)), [0, 2], [], np.array([True, False, True]), (slice(0, 1), 5), (0,), (0, 0, 0), (0, ...),
            np.int64(1), 1.0, slice(-2, None), ([0, 2], [1, 1]), (whole, None, 2), "x",
        ],
        "s": [(), ..., whole, 0, None],
        "e": [(), ..., whole, 0, slice(0, 5), None],
    }  # fmt: skip

    def outcome(read):
        try:
            found = np.asarray(read())
        except IndexError:
            return IndexError
        except Exception as error:
            return type(error)
        return found.dtype, found.shape, found.tolist()

    with safe_open(tmp_path / "a.safetensors", mmap=mmap) as f:
        for name, array in arrays.items():
            for index in indices[name]:
                found = outcome(lambda: f.get_slice(name)[index])
                assert found == outcome(lambda: array[index]), (name, index)
                theirs = outcome(lambda: of_safetensors.get_slice(name)[index])
                assert isinstance(theirs, type) or theirs == found, (name, index)


def test_views_of_a_mapped_file_cost_no_copy_and_keep_it_alive(tmp_path):
    array = np.arange(1000, dtype=np.float64)
    save_file({"w": array}, tmp_path / "a.zt")
    file = safe_open(tmp_path / "a.zt", mmap=True)
    first, second = file["w"].view(), file["w"].view()
    assert first.__array_interface__["data"] == second.__array_interface__["data"]
    assert not first.flags.writeable
    del file, second
    os.unlink(tmp_path / "a.zt")
    np.testing.assert_array_equal(first, array)


def test_dlpack_and_array_protocols(tmp_path):
    save_file({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, tmp_path / "a.zt")
    tensor = safe_open(tmp_path / "a.zt")["w"]
    np.testing.assert_array_equal(np.from_dlpack(tensor), tensor.numpy())
    assert np.asarray(tensor).sum() == 15.0
    assert repr(tensor) == "Tensor('w', float32[2, 3])"


def test_convert_diff_and_verify(tmp_path):
    a, b = tmp_path / "a.safetensors", tmp_path / "b.zt"
    save_file(tensors(), a)
    assert convert(a, b) == []
    assert diff(a, b) == []
    assert set(verify(b).values()) <= {"ok", "unchecked"}
    changed = tensors()
    changed["float32.w"][0, 0] += 1
    save_file(changed, b)
    (difference,) = diff(a, b)
    assert difference["name"] == "float32.w"


def test_errors_say_what_and_where(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(tensors(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(TensorFileError, match=f"expected {len(whole)} bytes, found {len(whole) - 1}") as error:
        load_file(path)
    assert (error.value.kind, error.value.file) == ("Truncated", str(path))
    path.write_bytes(b"\xff" * 8 + whole[8:])
    with pytest.raises(TensorFileError) as error:
        load_file(path)
    assert error.value.kind and error.value.byte is not None
    with pytest.raises(ValueError, match="expected one of"):
        save_file({}, tmp_path / "a.docx")
    with pytest.raises(KeyError, match="no tensor 'zz'"):
        safe_open(save_and_return(tmp_path))["zz"]
    with pytest.raises(TypeError, match="'s'"):
        save_file({"s": np.array(["text"])}, tmp_path / "b.zt")
    with pytest.raises(ValueError, match="device"):
        safe_open(path, device="cuda:0")


def damaged(tmp_path, name="damaged.npz"):
    """A file of which one tensor's bytes do not fit its checksum, found when it is read."""
    path = tmp_path / name
    save_file({"fine": np.zeros(4, np.int8), "w": np.arange(1000, dtype=np.int32)}, path)
    whole = bytearray(path.read_bytes())
    whole[whole.index(np.arange(1000, dtype="<i4").tobytes()) + 500] ^= 1
    path.write_bytes(whole)
    return path


def test_errors_name_the_file(tmp_path):
    path, fine = damaged(tmp_path), save_and_return(tmp_path)
    target = tmp_path / "none" / "target.zt"
    with safe_open(path) as f:
        calls = {
            "load_file": lambda: load_file(path),
            "numpy": lambda: f["w"].numpy(),
            "view": lambda: f["w"].view(),
            "verify": lambda: verify(path),
            "manifest": lambda: manifest(path),
            "check_manifest": lambda: check_manifest(path, manifest(fine)),
            "convert": lambda: convert(path, tmp_path / "b.safetensors"),
        }
        for name, call in calls.items():
            with pytest.raises(TensorFileError) as error:
                call()
            found = error.value
            assert str(found).startswith(f"{path}: tensor 'w': "), (name, found)
            assert (found.file, found.tensor, found.kind) == (str(path), "w", "Corrupt"), name
    missing = tmp_path / "missing.zt"
    for call in (
        lambda: load_file(missing),
        lambda: manifest(missing),
        lambda: convert(missing, tmp_path / "b.zt"),
        lambda: diff(missing, fine),
        lambda: diff(fine, missing),
        lambda: check_manifest(missing, manifest(fine)),
    ):
        with pytest.raises(FileNotFoundError) as error:
            call()
        assert error.value.filename == str(missing) and str(missing) in str(error.value)
    for call in (lambda: save_file(tensors(), target), lambda: convert(fine, target), lambda: Writer(target)):
        with pytest.raises(FileNotFoundError) as error:
            call()
        assert error.value.filename == str(target)
    # What a format cannot hold is the target's error.
    booleans = tmp_path / "booleans.zt"
    save_file({"x": np.zeros(3, np.bool_)}, booleans)
    unfit = tmp_path / "a.btf"

    def write():
        with Writer(unfit) as writer:
            writer.add("x", np.zeros(3, np.bool_))

    for call in (lambda: save_file({"x": np.zeros(3, np.bool_)}, unfit), lambda: convert(booleans, unfit), write):
        with pytest.raises(TensorFileError) as error:
            call()
        assert str(error.value).startswith(f"{unfit}: ") and error.value.file == str(unfit)
    # In memory there is no file.
    with pytest.raises(TensorFileError) as error:
        load(path.read_bytes())
    assert error.value.file is None and str(error.value).startswith("tensor 'w': ")
    with pytest.raises(KeyError, match="c.zt has no tensor"):
        safe_open(fine)["zz"]
    save_file({"layer.weight": np.zeros(3)}, tmp_path / "near.zt")
    with pytest.raises(KeyError, match="has no tensor 'layer.wieght'; did you mean 'layer.weight'?"):
        safe_open(tmp_path / "near.zt")["layer.wieght"]
    with pytest.raises(TensorFileError) as error:
        check_manifest(fine, "tensor-manifest 9")
    assert error.value.file is None


def test_sizes_without_room_name_the_file(tmp_path):
    path = tmp_path / "huge.safetensors"
    header = b'{"w":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(TensorFileError) as error:
        safe_open(path)["w"].numpy()
    assert str(error.value).startswith(f"{path}: tensor 'w': no array of") and error.value.file == str(path)


def save_and_return(tmp_path):
    save_file(tensors(), tmp_path / "c.zt")
    return tmp_path / "c.zt"


def test_a_failed_save_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.btf"
    path.write_bytes(b"precious")
    with pytest.raises(TensorFileError):
        save_file({"x": np.zeros(3, np.bool_)}, path)
    assert path.read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["a.btf"]


@pytest.mark.parametrize("extension", [*NAMED, "npy"])
def test_damaged_files_raise_and_nothing_else(tmp_path, extension):
    path = tmp_path / f"a.{extension}"
    save_file({"0": np.arange(40, dtype=np.float32)} if extension == "npy" else tensors(), path)
    whole = path.read_bytes()
    rng = np.random.default_rng(3)
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(0, len(damaged))] = rng.integers(0, 256)
        if rng.random() < 0.3:
            damaged = damaged[: rng.integers(0, len(damaged))]
        path.write_bytes(damaged)
        try:
            load_file(path)
        except (TensorFileError, TypeError, OSError):
            pass


class Ticks:
    """A thread that counts while it has the interpreter's lock, which a call that keeps it stops."""

    def __init__(self):
        self._count = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._done.is_set():
            self._count += 1
            time.sleep(0.0005)

    def during(self, call):
        """What the call gives, how long it took, and the ticks in that time."""
        before, start = self._count, time.monotonic()
        found = call()
        # Nothing else runs between the call's end and this line unless the lock changes hands.
        return found, time.monotonic() - start, self._count - before

    def stop(self):
        self._done.set()
        self._thread.join()


def test_other_threads_run_during_each_call(tmp_path):
    """Each call alone, since one that keeps the lock would go unnoticed beside one that does not."""
    rng = np.random.default_rng(1)
    big = {"w": rng.integers(0, 4, 48 << 20, dtype=np.uint8)}
    plain, packed = tmp_path / "a.zt", tmp_path / "a.npz"
    other, bytes_of = tmp_path / "b.safetensors", save(big)
    calls = {
        "save_file": lambda: save_file(big, plain),
        "save": lambda: save(big),
        "load": lambda: load(bytes_of),
        "load_file": lambda: load_file(plain),
        "verify": lambda: verify(plain),
        "manifest": lambda: manifest(plain),
        "convert": lambda: convert(plain, other),
        "diff": lambda: diff(plain, other),
        "slice": lambda: safe_open(plain).get_slice("w")[: 40 << 20],
        "compressed": lambda: load_file(packed)["w"].sum(),
    }
    np.savez_compressed(packed, w=big["w"][: 16 << 20])
    ticks = Ticks()
    try:
        # `PyDLL` keeps the lock: such a call is found out.
        _, _, count = ticks.during(lambda: ctypes.PyDLL(None).usleep(200_000))
        assert count <= 3
        for name, call in calls.items():
            # A busy machine may not let the other thread run in a short call: one that keeps the lock never does.
            for _ in range(5):
                found, seconds, count = ticks.during(call)
                if count > max(3, seconds * 20):
                    break
            assert count > max(3, seconds * 20), (name, seconds, count)
    finally:
        ticks.stop()


def test_formats_are_listed():
    assert "safetensors" in tensorferry.formats() and "zt" in tensorferry.formats()["ztensor"]


@pytest.mark.parametrize("extension", [*NAMED, "gguf"])
def test_a_writer_takes_tensors_one_by_one(tmp_path, extension):
    path = tmp_path / f"a.{extension}"
    expected = tensors(["float32", "int32", "int8"])
    with Writer(path, metadata={"license": "mit"} if extension in ("safetensors", "gguf") else {}) as writer:
        for name, array in expected.items():
            writer.add(name, array)
        assert not path.exists()
        with pytest.raises(ValueError, match="added before"):
            writer.add("float32.w", expected["float32.w"])
        with pytest.raises(TypeError):
            writer.add("text", np.array(["text"]))
    assert_same(load_file(path), expected)
    with pytest.raises(ValueError, match="closed"):
        writer.add("x", np.zeros(1))
    whole = path.read_bytes()
    with pytest.raises(ZeroDivisionError), Writer(path) as writer:
        writer.add("x", np.zeros(1, np.float32))
        raise ZeroDivisionError
    assert path.read_bytes() == whole
    assert os.listdir(tmp_path) == [path.name]


def test_a_writer_copies_tensors_of_other_files(tmp_path):
    expected = tensors()
    save_file(expected, tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", mmap=True) as file, Writer(tmp_path / "b.zt") as writer:
        for name, tensor in file.items():
            writer.add(name, tensor)
    assert_same(load_file(tmp_path / "b.zt"), expected)
    with pytest.raises(TensorFileError), Writer(tmp_path / "c.btf") as writer:
        writer.add("x", np.zeros(3, np.bool_))
    assert not (tmp_path / "c.btf").exists()
    with pytest.raises(OSError):
        Writer(tmp_path / "none" / "c.zt")


def test_a_manifest_is_the_same_in_every_format(tmp_path):
    a, b = tmp_path / "a.safetensors", tmp_path / "b.zt"
    save_file(tensors(), a)
    save_file(tensors(), b)
    text = manifest(a)
    assert text == manifest(b) and text.startswith("tensor-manifest 1 sha256")
    assert manifest(a, format="json") == manifest(b, format="json")
    assert check_manifest(b, text) == {} and check_manifest(b, manifest(a, format="json")) == {}
    changed = tensors()
    changed["int8.w"][0, 0] += 1
    del changed["int16.w"]
    save_file(changed, b)
    assert check_manifest(b, text) == {"int8.w": "has different content", "int16.w": "is missing"}
    with pytest.raises(TensorFileError):
        check_manifest(b, "tensor-manifest 9")
    with pytest.raises(ValueError, match="json"):
        manifest(a, format="xml")


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy lends read-only memory since 2.1")
def test_mapped_tensors_are_lent_without_a_copy(tmp_path):
    array = np.arange(1 << 16, dtype=np.float32)
    save_file({"w": array}, tmp_path / "a.zt")
    tensor = safe_open(tmp_path / "a.zt", mmap=True)["w"]
    at = tensor.view().__array_interface__["data"][0]
    assert np.from_dlpack(tensor, copy=False).__array_interface__["data"][0] == at
    assert np.from_dlpack(tensor, copy=True).__array_interface__["data"][0] != at
    assert not np.from_dlpack(tensor, copy=False).flags.writeable
    assert np.asarray(tensor, copy=False).__array_interface__["data"][0] == at
    raw = memoryview(tensor) if sys.version_info >= (3, 12) else tensor.raw()
    assert raw.readonly and np.frombuffer(raw, np.uint8).__array_interface__["data"][0] == at
    lent = np.from_dlpack(tensor, copy=False)
    del tensor, raw
    os.unlink(tmp_path / "a.zt")
    np.testing.assert_array_equal(lent, array)


class DLTensor(ctypes.Structure):
    """The beginning of DLPack's DLManagedTensorVersioned, up to where its data is."""

    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
    ]


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy before 2.1 knows no version of DLPack")
@pytest.mark.parametrize("copy", [{}, {"copy": None}, {"copy": True}])
@pytest.mark.parametrize("mmap", [False, True])
def test_who_does_not_forbid_a_copy_gets_memory_that_may_be_written_to(tmp_path, mmap, copy):
    # torch.from_dlpack says that it knows DLPack 1.0, and does not look whether memory is read-only.
    array = np.arange(1 << 12, dtype=np.float32)
    save_file({"w": array}, tmp_path / "a.zt")
    tensor = safe_open(tmp_path / "a.zt", mmap=mmap)["w"]
    found = tensor.__dlpack__(max_version=(1, 0), **copy)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    lent = DLTensor.from_address(pointer(found, b"dltensor_versioned"))
    assert lent.version[0] == 1 and not lent.flags & 1
    ctypes.memset(lent.data, 0, array.nbytes)
    assert tensor.numpy().tolist() == array.tolist()
    writable = np.from_dlpack(tensor)
    writable += 1
    assert tensor.numpy().tolist() == array.tolist()


@pytest.mark.parametrize(
    ("tensors", "metadata", "said"),
    [
        ({1: np.zeros(2)}, {}, "the name of a tensor: expected str, found 1"),
        ({"x": np.zeros(2)}, {"epoch": 3}, "metadata 'epoch': expected str, found 3"),
        ({"x": np.zeros(2)}, {3: "x"}, "metadata: expected names that are str, found 3"),
    ],
)
def test_names_and_texts_that_are_none_are_named(tmp_path, tensors, metadata, said):
    def write():
        with Writer(tmp_path / "a.safetensors", metadata) as w:
            for name, array in tensors.items():
                w.add(name, array)

    for call in (lambda: save(tensors, metadata), lambda: save_file(tensors, tmp_path / "a.safetensors", metadata), write):
        with pytest.raises(TypeError, match=said):
            call()


def test_convert_takes_what_the_tool_takes(tmp_path):
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    floats = {f"layer.{at}.w": np.full((4, 4), at, np.float32) for at in range(3)}
    save_file(floats | {"ids": np.arange(4)}, source, metadata={"note": "x"})
    calls = []
    losses = convert(source, target, dtype="float16", keep_dtype="*.0.w", exclude="re:layer\\.2.*", rename="layer.*=>h.*",
                     progress=lambda done, total: calls.append((done, total)))
    found = load_file(target)
    assert sorted(found) == ["h.0.w", "h.1.w", "ids"] and not [loss for loss in losses if "h." in loss]
    assert (found["h.0.w"].dtype, found["h.1.w"].dtype, found["ids"].dtype) == (np.float32, np.float16, np.int64)
    assert calls and calls[-1][0] <= calls[-1][1]

    many = tmp_path / "many.safetensors"
    convert(source, many, max_shard_size="100 B")
    assert (tmp_path / "many.safetensors.index.json").exists()
    # Metadata that the target has no place for is dropped, unless that is an error.
    plain = tmp_path / "plain.npz"
    assert any("note" in loss for loss in convert(source, plain))
    with pytest.raises(TensorFileError, match="note"):
        convert(source, plain, strict=True)
    for wrong, error in [({"dtype": "int8"}, "expected f16"), ({"include": "re:("}, "include"), ({"max_shard_size": "5 apples"}, "5 apples")]:
        with pytest.raises(ValueError, match=error):
            convert(source, target, **wrong)

    def stop(done, total):
        raise KeyboardInterrupt

    before = target.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        convert(source, target, progress=stop)
    assert target.read_bytes() == before
