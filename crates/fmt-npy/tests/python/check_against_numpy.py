#!/usr/bin/env python3
"""NumPy writes what `fmt-npy` reads, and reads what it writes. Needs numpy; not run by `cargo test`.

    python3 crates/fmt-npy/tests/python/check_against_numpy.py write FOLDER
    NPY_FOLDER=FOLDER cargo test -p fmt-npy --test it numpy
    python3 crates/fmt-npy/tests/python/check_against_numpy.py read FOLDER

`write` leaves arrays and their values as row-major little-endian bytes; the test compares them and writes each array
again, as .npy and all as .npz; `read` compares those.
"""

import pathlib
import sys

import numpy

DTYPES = ["?", "i1", "u1", "<i2", ">i2", "<u4", ">u8", "<i8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8"]
SHAPES = [(), (0,), (3,), (2, 3), (4, 1, 2), (2, 0, 3), (3, 2, 2, 2)]


def arrays():
    for dtype in DTYPES:
        for shape in SHAPES:
            for order in "CF":
                count = int(numpy.prod(shape))
                values = (numpy.arange(count) * 37 % 101).reshape(shape).astype(dtype)
                name = f"{numpy.dtype(dtype).str.replace('<', 'le').replace('>', 'be').replace('|', '')}"
                yield f"{name}-{'x'.join(map(str, shape))}-{order}", numpy.array(values, order=order)


def expected(array):
    return array.astype(array.dtype.newbyteorder("<")).tobytes(order="C")


def main(task, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    named = dict(arrays())
    if task == "write":
        for name, array in named.items():
            numpy.save(folder / f"{name}.npy", array)
            (folder / f"{name}.bytes").write_bytes(expected(array))
        numpy.savez(folder / "all.npz", **named)
        numpy.savez_compressed(folder / "all-compressed.npz", **named)
        return 0
    wrong = 0
    archive = numpy.load(folder / "again" / "all.npz")
    for name, array in named.items():
        for again in (numpy.load(folder / "again" / f"{name}.npy"), archive[name]):
            same = again.shape == array.shape and again.dtype == array.dtype.newbyteorder("<")
            if not same or again.tobytes() != expected(array):
                wrong += 1
                print(f"{name}: {again.dtype} {again.shape}")
    print(f"{len(named)} arrays, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
