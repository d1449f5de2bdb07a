"""Writes files of zTensor 1.x or 2.x with the package `ztensor` that is installed, and what is in them.

    python make_objects.py FOLDER

`FOLDER/NAME.zt` has a line in `FOLDER/VERSION.txt` for each tensor: file, tensor, dtype and shape as `tensor inspect` has
them, and the SHA-256 of its bytes; of a sparse one, of its coordinates (u64, entry by entry) and then its values. `cargo
xtask interop` runs this with packages of both versions and compares; `tests/real` has the files of 1.0.2, 1.1.1,
1.2.3 and 2.1.2.
"""

import hashlib
import importlib.metadata
import os
import sys

import numpy as np
import ztensor

DTYPES = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32, "i16": np.int16,
    "i8": np.int8, "u64": np.uint64, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8,
}


def digest(*arrays):
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def counting(dtype, shape, seed=0):
    count = int(np.prod(shape, dtype=np.int64))
    return ((np.arange(count) * 7 + seed) % 120).astype(dtype).reshape(shape)


class Expected:
    def __init__(self, folder, version):
        self.path, self.lines = os.path.join(folder, version + ".txt"), []

    def add(self, file, name, dtype, shape, *arrays):
        shape = "[" + ", ".join(map(str, shape)) + "]"
        self.lines.append(f"{file}\t{name}\t{dtype}{shape}\t{digest(*arrays)}\n")

    def write(self):
        with open(self.path, "w", encoding="utf-8") as file:
            file.writelines(sorted(self.lines))


def sparse_matrix():
    """Rows and columns of the entries of a 4 by 5 matrix, row by row, and the same as compressed rows."""
    rows, columns = np.array([0, 0, 1, 3], np.uint64), np.array([1, 4, 0, 2], np.uint64)
    return rows, columns, np.array([0, 2, 3, 3, 4], np.uint64), np.array([1.5, -2.0, 0.25, 8.0], np.float32)


def write_v1(folder, version, expected):
    old = not hasattr(ztensor.Writer, "write_numpy") and hasattr(ztensor.Writer, "add_tensor")

    def dense(file, tensors, **options):
        writer = ztensor.Writer(os.path.join(folder, file))
        for name, array in tensors.items():
            if old:
                writer.add_tensor(name, array, **{key: value for key, value in options.items() if key == "compress"})
            else:
                (getattr(writer, "write_numpy", None) or writer.add)(name, array, **options)
            dtype = next((zt for zt, np_dtype in DTYPES.items() if array.dtype == np_dtype), str(array.dtype))
            expected.add(file, name, dtype, array.shape, array)
        (writer.finalize if hasattr(writer, "finalize") else writer.finish)()

    all_dtypes = {name: counting(dtype, (2, 3), 1) for name, dtype in DTYPES.items()}
    all_dtypes["bool"] = np.array([True, False, True])
    all_dtypes["a name with \u00fcml\u00e4uts"] = counting(np.float32, (1,))
    all_dtypes["nothing"] = np.zeros((0, 4), np.float32)
    dense(f"{version}-dense.zt", all_dtypes)
    dense(f"{version}-zstd.zt", {"w": counting(np.float32, (50, 40)), "b": counting(np.int64, (7,))}, compress=True)
    if not old:
        for checksum in ("crc32c", "sha256"):
            tensors = {"w": counting(np.float32, (5, 4)), "b": counting(np.int64, (7,))}
            dense(f"{version}-{checksum}.zt", tensors, checksum=checksum)
        dense(f"{version}-zstd-sha256.zt", {"w": counting(np.float32, (50, 40))}, compress=True, checksum="sha256")

    rows, columns, indptr, values = sparse_matrix()
    coordinates = np.stack([rows, columns], axis=1)
    file = f"{version}-sparse.zt"
    writer = ztensor.Writer(os.path.join(folder, file))
    if hasattr(writer, "add_sparse_coo"):
        writer.add_sparse_csr("csr", values, columns, indptr, (4, 5))
        writer.add_sparse_coo("coo", values, np.stack([rows, columns]), (4, 5))
        writer.finalize()
    elif hasattr(ztensor, "Tensor"):
        csr = {"values": values, "indices": columns, "indptr": indptr}
        writer.write("csr", ztensor.Tensor(csr, shape=[4, 5], dtype="float32", format="sparse_csr"))
        coo = {"values": values, "coords": np.concatenate([rows, columns])}
        writer.write("coo", ztensor.Tensor(coo, shape=[4, 5], dtype="float32", format="sparse_coo"))
        quantised = {"packed_weight": counting(np.int32, (4,)), "scales": counting(np.float16, (2,))}
        attributes = {"bits": 4, "group_size": 16}
        writer.write("q", ztensor.Tensor(quantised, shape=[4, 8], dtype="int32", format="quantized_group",
                                         attributes=attributes))
        writer.finish()
    else:
        writer.finish()
        os.remove(os.path.join(folder, file))
        return
    for name in ("csr", "coo"):
        expected.add(file, name, "f32", (4, 5), coordinates, values)


def write_v2(folder, version, expected):
    def part(array, **options):
        dtype = next(zt for zt, np_dtype in DTYPES.items() if array.dtype == np_dtype)
        return {"data": array.tobytes(), "dtype": dtype, **options}

    from ztensor.numpy import save_file

    tensors = {name: counting(dtype, (2, 3), 1) for name, dtype in DTYPES.items()}
    tensors["a name with \u00fcml\u00e4uts"] = counting(np.float32, (1,))
    tensors["nothing"] = np.zeros((0, 4), np.float32)
    tensors["tied"] = tensors["f32"]
    # 64 KiB for each blob of the canonical form: these take 4 KiB.
    for file, options in ((f"{version}-dense.zt", {"align": 4096}),
                          (f"{version}-zstd.zt", {"align": 4096, "compression": True})):
        chosen = tensors if "compression" not in options else {"w": counting(np.float32, (50, 40)), "tiny": tensors["u8"]}
        save_file(chosen, os.path.join(folder, file), **options)
        for name, array in chosen.items():
            dtype = next(zt for zt, np_dtype in DTYPES.items() if array.dtype == np_dtype)
            expected.add(file, name, dtype, array.shape, array)

    file = f"{version}-types.zt"
    with ztensor.Writer(os.path.join(folder, file), canonical=False, align=4096) as writer:
        writer.set_attributes({"made": "by a script", "count": 3})
        for name, array, shape, dtype, logical, shown in (
            ("mask", np.array([1, 0, 1], np.uint8), [3], "u8", "bool", "bool"),
            ("eight", counting(np.uint8, (4,)), [4], "u8", "f8_e4m3fn", "F8_E4M3"),
            ("four", counting(np.uint8, (4,)), [8], "u8", "f4_e2m1", "F4"),
            ("complex", counting(np.float32, (4,)), [2], "f32", "complex64", "C64"),
        ):
            writer.add(name, array.tobytes(), shape=shape, dtype=dtype, logical=logical)
            expected.add(file, name, shown, shape, array)
        writer.add("scalar", counting(np.float64, ()).tobytes(), shape=[], dtype="f64")
        expected.add(file, "scalar", "f64", [], counting(np.float64, ()))
        writer.add("half", counting(np.uint16, (3,)).tobytes(), shape=[3], dtype="bf16")
        expected.add(file, "half", "bf16", [3], counting(np.uint16, (3,)))

    rows, columns, indptr, values = sparse_matrix()
    coordinates = np.stack([rows, columns], axis=1)
    file = f"{version}-sparse.zt"
    with ztensor.Writer(os.path.join(folder, file), canonical=False, align=4096) as writer:
        csr = {"values": part(values), "indices": part(columns.astype(np.uint32)), "indptr": part(indptr.astype(np.uint32))}
        writer.add_object("csr", [4, 5], csr, layout="zt.sparse_csr/1")
        coo = {"values": part(values), "coords": part(np.concatenate([rows, columns]))}
        writer.add_object("coo", [4, 5], coo, layout="zt.sparse_coo/1", attributes={"unit": "m"})
    for name in ("csr", "coo"):
        expected.add(file, name, "f32", (4, 5), coordinates, values)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    version = importlib.metadata.version("ztensor")
    expected = Expected(folder, version)
    (write_v1 if version.startswith("1.") else write_v2)(folder, version, expected)
    expected.write()


if __name__ == "__main__":
    main()
