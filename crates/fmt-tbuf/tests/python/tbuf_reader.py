#!/usr/bin/env python3
"""A second reader of TensorBuffers files, written from docs/formats/tensorbuffers.md and from nothing else.

It shares no code with the crate: FlatBuffers are taken apart by hand, with the standard library only. Where the two
disagree, one of them, or the page, is wrong.

    python3 crates/fmt-tbuf/tests/python/tbuf_reader.py crates/fmt-tbuf/tests/corpus

walks the corpus, and fails when a file is judged otherwise than verdicts.txt there says: accepted, or rejected for another
kind of error or another rule.

    python3 crates/fmt-tbuf/tests/python/tbuf_reader.py FILE...

prints for each file `accept` or `reject KIND RULE`, and for each tensor that can be read the SHA-256 of its bytes.

    TBUF_PYTHON=python3 cargo test -p fmt-tbuf --test it second_reader

makes this reader (by way of `--stdin`) and the crate's judge 60,000 mutants of files, and fails where they differ.
"""

import hashlib
import pathlib
import struct
import sys

MAGIC = b"TBS1"
WIDTHS = {1: 4, 2: 8, 3: 1, 4: 2, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8}
MAX_INDEX, MAX_TENSORS, MAX_RANK, MAX_NAME = 256 << 20, 2_000_000, 64, 65536


class Rejected(Exception):
    def __init__(self, kind, rule, what):
        super().__init__(f"{kind} {rule}: {what}")
        self.kind, self.rule = kind, rule


def require(condition, kind, rule, what):
    if not condition:
        raise Rejected(kind, rule, what)


class Index:
    """The FlatBuffers message, with what F1 to F6 demand."""

    def __init__(self, data):
        self.data = data
        self.tables = 0
        self.looked_at = 0

    def take(self, position, size, alignment=1):
        require(position % alignment == 0, "Malformed", "F2", f"{position} is not a multiple of {alignment}")
        require(position + size <= len(self.data), "Malformed", "F1", f"{position}+{size} is outside")
        self.looked_at += size
        require(self.looked_at <= 16 * len(self.data), "TooLarge", "F6", "the same bytes repeatedly")
        return self.data[position : position + size]

    def number(self, position, code):
        size = struct.calcsize("<" + code)
        return struct.unpack("<" + code, self.take(position, size, size))[0]

    def follow(self, position):
        return position + self.number(position, "I")

    def table(self, position, known):
        """The positions of the known fields; None for one that is absent."""
        back = self.number(position, "i")
        start = position - back
        require(0 <= start < len(self.data), "Malformed", "F1", "list of fields is outside")
        length = self.number(start, "H")
        require(length % 2 == 0, "Malformed", "F2", "odd list of fields")
        self.take(start, length)
        self.tables += 1
        require(self.tables <= 1 + min(len(self.data) // 16, MAX_TENSORS), "TooLarge", "F6", "too many tables")
        for field in range(known):
            place = 4 + 2 * field
            offset = self.number(start + place, "H") if place < length else 0
            # A generator, so that each field is proven before the next is looked at.
            yield position + offset if offset else None

    def text(self, position):
        at = self.follow(position)
        length = self.number(at, "I")
        raw = bytes(self.take(at + 4, length))
        try:
            decoded = raw.decode("utf-8", "strict")
        except UnicodeDecodeError as error:
            raise Rejected("Malformed", "F3", str(error)) from error
        end = at + 4 + length
        require(end < len(self.data) and self.data[end] == 0, "Malformed", "F4", "no zero byte")
        return decoded

    def vector(self, position):
        at = self.follow(position)
        count = self.number(at, "I")
        self.take(at + 4, 4 * count, 4)
        return at + 4, count


class Tensor:
    def __init__(self):
        self.id, self.name, self.shape, self.dtype, self.offset, self.size = 0, None, (), 0, 0, 0


def read_tensor(index, position):
    tensor = Tensor()
    for number, at in enumerate(index.table(position, 6)):
        if at is None:
            require(number != 1, "Malformed", "F5", "no name")
        elif number == 0:
            tensor.id = index.number(at, "Q")
        elif number == 1:
            tensor.name = index.text(at)
        elif number == 2:
            start, count = index.vector(at)
            # A shape beyond the limit is rejected later, when the index is known to be whole.
            tensor.shape = struct.unpack(f"<{count}I", index.data[start : start + 4 * count])
        elif number == 3:
            tensor.dtype = index.number(at, "b")
        elif number == 4:
            tensor.offset = index.number(at, "I")
        elif number == 5:
            tensor.size = index.number(at, "I")
    return tensor


def read_index(data):
    index = Index(data)
    root = {"version": None, "model": None, "tensors": []}
    for number, at in enumerate(index.table(index.follow(0), 3)):
        if at is None:
            require(number != 0, "Malformed", "F5", "no version")
        elif number == 0:
            root["version"] = index.text(at)
        elif number == 1:
            root["model"] = index.text(at)
        elif number == 2:
            start, count = index.vector(at)
            root["tensors"] = [read_tensor(index, index.follow(start + 4 * n)) for n in range(count)]
    return root


def fnv(name):
    value = 0xCBF29CE484222325
    for byte in name.encode() + b"\xff":
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def check_unique(values, rule):
    require(len(set(values)) == len(values), "Duplicate", rule, "twice")


def check_tensor(tensor, data_end):
    name = tensor.name.encode()
    require(len(name) <= MAX_NAME, "BadName", "T19", "name too long")
    require(b"\0" not in name, "BadName", "T19", "name with a zero byte")
    require(len(tensor.shape) <= MAX_RANK, "TooLarge", "T20", "rank")
    elements = 1
    for dim in tensor.shape:
        elements *= dim
    require(elements < 1 << 64, "Overflow", "T21", "elements")
    width = WIDTHS.get(tensor.dtype)
    if width is not None:
        require(elements * width < 1 << 64, "Overflow", "T21", "bytes")
        require(elements * width == tensor.size, "SizeMismatch", "T18", f"{elements * width} against {tensor.size}")
    end = tensor.offset + tensor.size
    if tensor.size:
        require(tensor.offset >= 4 and end <= data_end, "OutOfBounds", "T13", f"{tensor.offset} to {end}")
    else:
        require(end <= data_end, "OutOfBounds", "T11", f"nothing at {end}")


def check_overlaps(tensors):
    ranges = sorted({(tensor.offset, tensor.offset + tensor.size) for tensor in tensors if tensor.size})
    for (_, end), (start, _) in zip(ranges, ranges[1:]):
        require(end <= start, "Overlap", "T12", f"{start} is before {end}")


def read(data):
    """The root, with the bytes of each tensor that can be read."""
    head = bytes(data[:4])
    check_magic(head, len(head))
    require(len(data) >= 12, "Truncated", "T2", f"{len(data)} bytes")
    check_magic(bytes(data[-4:]), 4)
    (size,) = struct.unpack("<I", data[-8:-4])
    require(size >= 8, "Malformed", "T2", "index too short")
    require(size <= len(data) - 12, "OutOfBounds", "T2", "index too long")
    require(size <= MAX_INDEX, "TooLarge", "T20", "index beyond the limit")
    data_end = len(data) - 8 - size
    root = read_index(data[data_end:-8])
    check_unique([tensor.name for tensor in root["tensors"]], "T7")
    for tensor in root["tensors"]:
        check_tensor(tensor, data_end)
        tensor.bytes = data[tensor.offset : tensor.offset + tensor.size] if tensor.dtype in WIDTHS else None
    check_overlaps(root["tensors"])
    return root


def check_magic(found, length):
    if MAGIC[:length] == found:
        return
    is_version = length == 4 and found[:3] == MAGIC[:3] and found[3:].isdigit()
    raise Rejected("BadVersion" if is_version else "BadMagic", "T1", repr(found))


def judge(data):
    try:
        root = read(memoryview(data))
    except Rejected as rejected:
        return f"reject {rejected.kind} {rejected.rule}", []
    tensors = [
        f"{tensor.name!r} {list(tensor.shape)} "
        + (hashlib.sha256(tensor.bytes).hexdigest() if tensor.bytes is not None else "unsupported")
        for tensor in root["tensors"]
    ]
    return "accept", tensors


def walk(corpus):
    lines = (corpus / "verdicts.txt").read_text().splitlines()
    disagreements = 0
    for path, expected in (line.split(": ") for line in lines):
        verdict, _ = judge((corpus / path).read_bytes())
        if verdict != expected:
            disagreements += 1
            print(f"{path}: expected {expected}, found {verdict}")
    print(f"{len(lines)} files, {disagreements} disagreements")
    return disagreements


def answer(source):
    """A verdict for each file that comes, each behind its length in four bytes."""
    while length := source.read(4):
        print(judge(source.read(int.from_bytes(length, "little")))[0])


def main(arguments):
    if arguments == ["--stdin"]:
        answer(sys.stdin.buffer)
        return 0
    if len(arguments) == 1 and pathlib.Path(arguments[0]).is_dir():
        return 1 if walk(pathlib.Path(arguments[0])) else 0
    for path in map(pathlib.Path, arguments):
        verdict, tensors = judge(path.read_bytes())
        print(f"{path}: {verdict}")
        for line in tensors:
            print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
