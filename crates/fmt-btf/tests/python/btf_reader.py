#!/usr/bin/env python3
"""A second reader of BTF files, written from docs/formats/btf.md alone; needs Python 3.9 and nothing else.

As a module: `read(path)` gives a list of Tensor. As a script it is checked against the Rust reader's corpus, which says of
each file by its folder whether it is accepted, damaged (it opens, but a tensor cannot be read) or rejected:

    python3 crates/fmt-btf/tests/python/btf_reader.py crates/fmt-btf/tests/corpus crates/fmt-btf/tests/golden

It is not run by `cargo test`, which needs no Python.
"""

import pathlib
import struct
import sys
from dataclasses import dataclass, field

DTYPES = [
    ("int8", "b", 1), ("int16", "h", 2), ("int32", "i", 4), ("int64", "q", 8), ("float32", "f", 4), ("float64", "d", 8),
    ("uint8", "B", 1), ("uint16", "H", 2), ("uint32", "I", 4), ("uint64", "Q", 8),
]
LONGEST = 2**63 - 1
MOST_TENSORS = 2_000_000
MOST_DIMENSIONS = 64
LONGEST_INDEX = 256 << 20


class Rejected(Exception):
    """The file breaks a rule of the description."""


class Damaged(Exception):
    """A tensor's coordinates break a rule."""


@dataclass
class Tensor:
    dtype: str
    dims: tuple
    values: tuple = ()
    coordinates: list = None
    is_supported: bool = True


@dataclass
class Record:
    start: int
    end: int
    dims: tuple
    dtype: int
    layout: int
    data: int = 0
    entries: int = None


def require(condition, rule):
    if not condition:
        raise Rejected(rule)


def words(data, at, count):
    return struct.unpack_from(f"<{count}Q", data, at)


def parse(data):
    """The records of all tensors, in the table's order."""
    require(len(data) >= 8, "B17")
    (count,) = words(data, 0, 1)
    table_end = 8 + 8 * count
    require(table_end <= len(data), "B17")
    require(count <= MOST_TENSORS and table_end <= LONGEST_INDEX, "B17")
    offsets = words(data, 8, count)
    for offset in offsets:
        require(offset % 8 == 0, "B4")
        require(offset >= table_end and offset + 16 <= len(data), "B4")
    records = {}
    end = table_end
    headers = table_end
    for offset in sorted(set(offsets)):
        require(offset >= end, "B4")
        record = parse_record(data, offset)
        headers += 16 + 8 * len(record.dims)
        require(headers <= LONGEST_INDEX, "B17")
        records[offset] = record
        end = record.end
    return [records[offset] for offset in offsets]


def parse_record(data, offset):
    (rank,) = words(data, offset, 1)
    dtype, layout = data[offset + 8], data[offset + 9]
    require(data[offset + 10 : offset + 16] == bytes(6), "B6")
    body = offset + 16 + 8 * rank
    require(body <= len(data), "B17")
    require(rank <= MOST_DIMENSIONS, "B17")
    dims = words(data, offset + 16, rank)
    is_known = dtype < len(DTYPES) and layout <= 2
    width = DTYPES[dtype][2] if is_known else 1
    elements = 1
    for dim in dims:
        elements *= dim
    require(elements * width <= LONGEST, "B19")
    record = Record(offset, body, dims, dtype, layout, body)
    if not is_known:
        return record
    if layout == 0:
        record.end = body + elements * width
        require(record.end <= len(data), "B18")
        return record
    require(body + 16 <= len(data), "B18")
    entries, columns = words(data, body, 2)
    require(columns == rank, "B13")
    require(entries <= elements, "B13")
    values = body + 16 + 8 * entries * rank
    require(values + 8 <= len(data), "B18")
    require(words(data, values, 1) == (entries,), "B13")
    record.end = values + 8 + entries * width
    require(record.end <= len(data), "B18")
    record.entries = entries
    record.data = body + 16
    return record


def load(data, record):
    """The tensor of a record."""
    if record.dtype >= len(DTYPES) or record.layout > 2:
        return Tensor("?", record.dims, is_supported=False)
    name, code, _ = DTYPES[record.dtype]
    if record.entries is None:
        count = 1
        for dim in record.dims:
            count *= dim
        return Tensor(name, record.dims, struct.unpack_from(f"<{count}{code}", data, record.data))
    rank = len(record.dims)
    flat = words(data, record.data, record.entries * rank)
    coordinates = [flat[entry * rank : (entry + 1) * rank] for entry in range(record.entries)]
    for entry in coordinates:
        if any(index >= dim for index, dim in zip(entry, record.dims)):
            raise Damaged("B10")
    if len(set(coordinates)) != len(coordinates):
        raise Damaged("B11")
    values = struct.unpack_from(f"<{record.entries}{code}", data, record.data + 8 * len(flat) + 8)
    return Tensor(name, record.dims, values, coordinates)


def read(path):
    data = pathlib.Path(path).read_bytes()
    return [load(data, record) for record in parse(data)]


def verdict(path):
    data = path.read_bytes()
    try:
        records = parse(data)
    except Rejected as error:
        return "reject", str(error)
    try:
        for record in records:
            load(data, record)
    except Damaged as error:
        return "damaged", str(error)
    return "accept", ""


def main(folders):
    files = [path for folder in folders for path in sorted(pathlib.Path(folder).rglob("*.btf"))]
    disagreements = 0
    for path in files:
        wanted = path.parent.name if path.parent.name in ("accept", "damaged", "reject") else "accept"
        found, rule = verdict(path)
        if found != wanted:
            disagreements += 1
            print(f"{path}: {found} {rule}, not {wanted}")
    print(f"{len(files)} files, {disagreements} disagreements")
    return 1 if disagreements or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
