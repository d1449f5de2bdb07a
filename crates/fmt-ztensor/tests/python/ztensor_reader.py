"""A second reader of zTensor 0.1.0 files, made from docs/formats/ztensor.md without a look at the crate.

It exists to disagree: where it and the crate judge a file differently, one of the two is wrong. Nothing runs it by itself.

    python3 ztensor_reader.py ../corpus            # every file: accepted, rejected or damaged as its folder says
    python3 ztensor_reader.py FILE...              # what is in these files
    python3 ztensor_reader.py --verdicts FOLDER    # one line per file: accept, reject, or damaged

A hundred thousand mutants, judged by both:

    ZTENSOR_PYTHON=python3 ZTENSOR_MUTANTS=20000 cargo test -p fmt-ztensor --test it reader_in_python

Needs Python 3.9 and nothing else; with the package `zstandard` compressed tensors are decoded, otherwise only their frames'
heads are looked at and files in `damaged/` whose damage is deeper are skipped.
"""

import hashlib
import os
import re
import struct
import sys

try:
    import zstandard
except ImportError:
    zstandard = None

WIDTHS = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
}
REQUIRED = ("name", "offset", "size", "dtype", "shape", "encoding")
MAX_INDEX, MAX_TENSORS, MAX_RANK, MAX_NAME, MAX_DEPTH, MAX_DECODED = 256 << 20, 2_000_000, 64, 65536, 32, 4 << 30
U64 = 1 << 64


class Rejected(Exception):
    """The file is not one."""


class Damaged(Exception):
    """A tensor cannot be read."""


class Unsupported(Exception):
    """A tensor is stored in a way that is not supported."""


class Text(str):
    """CBOR text, so that it is not taken for anything else."""


class Cbor:
    """One item after the other. Values that are only passed over are not kept."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def head(self):
        if self.at >= len(self.data):
            raise Rejected("Z25: cut off")
        first = self.data[self.at]
        self.at += 1
        major, minor = first >> 5, first & 31
        if minor < 24:
            return major, minor, minor
        if minor in (24, 25, 26, 27):
            width = 1 << (minor - 24)
            raw = self.data[self.at:self.at + width]
            if len(raw) < width:
                raise Rejected("Z25: cut off")
            self.at += width
            return major, minor, int.from_bytes(raw, "big")
        if minor == 31 and major in (2, 3, 4, 5, 7):
            return major, minor, None
        raise Rejected("Z25: reserved head")

    def take(self, length):
        raw = self.data[self.at:self.at + length]
        if len(raw) < length:
            raise Rejected("Z25: cut off")
        self.at += length
        return raw

    def string(self, major, length):
        if length is not None:
            raw = self.take(length)
            return utf8(raw) if major == 3 else raw
        parts = []
        while True:
            inner, minor, count = self.head()
            if inner == 7 and minor == 31:
                return "".join(parts) if major == 3 else b"".join(parts)
            if inner != major or count is None:
                raise Rejected("Z25: chunk")
            raw = self.take(count)
            parts.append(utf8(raw) if major == 3 else raw)

    def skip(self):
        """Passes over one item; says what it was if it was a text."""
        levels = []  # [items to come or None, items that came, is a map]
        first = None
        is_first = True
        while True:
            major, minor, count = self.head()
            done = True
            if major == 7:
                if minor == 24 and count < 32:
                    raise Rejected("Z25: simple")
                if minor == 31:
                    if not levels or levels[-1][0] is not None or (levels[-1][2] and levels[-1][1] % 2):
                        raise Rejected("Z25: break")
                    levels.pop()
            elif major in (2, 3):
                value = self.string(major, count)
                if is_first and major == 3:
                    first = value
            elif major in (4, 5, 6):
                if len(levels) >= MAX_DEPTH:
                    raise Rejected("Z12: depth")
                items = 1 if major == 6 else count
                if major == 5 and items is not None:
                    items *= 2
                if major != 6 and items is not None and items > len(self.data) - self.at:
                    raise Rejected("Z25: count")
                if items != 0:
                    levels.append([items, 0, major == 5])
                    done = False
            is_first = False
            while done:
                if not levels:
                    return first
                level = levels[-1]
                level[1] += 1
                if level[0] is None:
                    break
                level[0] -= 1
                if level[0]:
                    break
                levels.pop()

    def text(self):
        major, _, count = self.head()
        if major != 3:
            raise Rejected("Z3: text")
        return Text(self.string(3, count))

    def unsigned(self):
        major, _, count = self.head()
        if major != 0:
            raise Rejected("Z3: unsigned")
        return count

    def items(self, wanted, rule):
        """Goes over an array or a map; a break ends one without length."""
        major, _, count = self.head()
        if major != wanted:
            raise Rejected(rule)
        if count is not None and count * (2 if wanted == 5 else 1) > len(self.data) - self.at:
            raise Rejected("Z25: count")
        while count is None or count:
            if count is None and self.data[self.at:self.at + 1] == b"\xff":
                self.at += 1
                return
            yield
            if count is not None:
                count -= 1


def utf8(raw):
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Rejected("Z25: UTF-8") from None


def entry(cbor):
    found, custom = {}, set()
    for _ in cbor.items(5, "Z23: map"):
        major, _, count = cbor.head()
        if major != 3:
            raise Rejected("Z23: key")
        key = cbor.string(3, count)
        if key in found or key in custom:
            raise Rejected("Z9: key twice")
        if key in ("name", "dtype", "encoding", "data_endianness", "checksum"):
            found[key] = cbor.text()
        elif key in ("offset", "size"):
            found[key] = cbor.unsigned()
        elif key == "shape":
            found[key] = []
            for _ in cbor.items(4, "Z3: array"):
                found[key].append(cbor.unsigned())
                if len(found[key]) > MAX_RANK:
                    raise Rejected("Z12: rank")
        elif key == "layout":
            found[key] = cbor.skip()
        else:
            custom.add(key)
            cbor.skip()
    return found


def elements(shape):
    if 0 in shape:
        return 0
    count = 1
    for dim in shape:
        count *= dim
    return count


def check(tensor, index_start):
    for key in REQUIRED:
        if key not in tensor:
            raise Rejected("Z23: " + key)
    name = tensor["name"].encode()
    if b"\0" in name or len(name) > MAX_NAME:
        raise Rejected("Z24: name")
    offset, size = tensor["offset"], tensor["size"]
    if offset % 64 or (offset < 64 and size) or offset + size >= U64 or offset + size > index_start:
        raise Rejected("Z10: place")
    if tensor.get("data_endianness", "little") not in ("little", "big"):
        raise Rejected("Z8: endianness")
    kind, _, digits = tensor.get("checksum", "").partition(":")
    tensor["digest"] = None
    if kind in ("crc32c", "sha256") and ":" in tensor.get("checksum", ""):
        match = re.fullmatch(r"(?:0[xX])?([0-9a-fA-F]+)", digits, re.ASCII)
        if not match or len(match[1]) not in (range(1, 9) if kind == "crc32c" else (64,)):
            raise Rejected("Z5: checksum")
        tensor["digest"] = (kind, int(match[1], 16))
    count = elements(tensor["shape"])
    if count >= U64:
        raise Rejected("Z18: elements")
    width = WIDTHS.get(tensor["dtype"])
    is_dense = tensor.get("layout", "dense") == "dense"
    tensor["nbytes"] = None
    if width and is_dense:
        nbytes = count * width
        if nbytes >= U64:
            raise Rejected("Z18: bytes")
        if tensor["encoding"] == "raw" and size != nbytes:
            raise Rejected("Z10: size")
        if tensor["encoding"] == "zstd" and size == 0:
            raise Rejected("Z15: size")
        tensor["nbytes"] = nbytes
    is_big = tensor.get("data_endianness") == "big" and bool(width) and width > 1
    tensor["is_big"] = is_big
    tensor["is_supported"] = (
        bool(width) and is_dense and tensor["encoding"] in ("raw", "zstd") and not (is_big and tensor["encoding"] == "zstd")
    )


def open_file(data):
    """The entries of a file; raises Rejected."""
    if data[:8] != b"ZTEN0001":
        raise Rejected("Z21 or Z22: magic")
    if len(data) < 17:
        raise Rejected("Z22: length")
    (length,) = struct.unpack("<Q", data[-8:])
    if length == 0:
        raise Rejected("Z11: no index")
    if length > len(data) - 16:
        raise Rejected("Z22: index")
    if length > MAX_INDEX:
        raise Rejected("Z12: index")
    start = len(data) - 8 - length
    cbor = Cbor(data[start:len(data) - 8])
    tensors, names = [], set()
    for _ in cbor.items(4, "Z23: array"):
        if len(tensors) >= MAX_TENSORS:
            raise Rejected("Z12: tensors")
        tensor = entry(cbor)
        check(tensor, start)
        if tensor["name"] in names:
            raise Rejected("Z9: name twice")
        names.add(tensor["name"])
        tensors.append(tensor)
    if cbor.at != len(cbor.data):
        raise Rejected("Z13: bytes behind")
    ranges = sorted({(t["offset"], t["offset"] + t["size"]) for t in tensors if t["size"]})
    for (_, end), (begin, _) in zip(ranges, ranges[1:]):
        if begin < end:
            raise Rejected("Z10: overlap")
    return tensors


def crc32c(data, table=[]):
    if not table:
        for value in range(256):
            for _ in range(8):
                value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
            table.append(value)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def frames(blob):
    """(begin, end, content size or None) of each frame with data, and the ranges of skippable ones."""
    at, found, skipped = 0, [], []
    while at < len(blob):
        if len(blob) - at < 4:
            raise Damaged("Z15: magic cut off")
        magic = int.from_bytes(blob[at:at + 4], "little")
        if magic & ~15 == 0x184D2A50:
            end = at + 8 + int.from_bytes(blob[at + 4:at + 8], "little")
            if len(blob) - at < 8 or end > len(blob):
                raise Damaged("Z15: skippable frame cut off")
            skipped.append((at, end))
            at = end
            continue
        if magic != 0xFD2FB528:
            raise Damaged("Z15: magic")
        rest = blob[at + 4:at + 18]
        descriptor = rest[0] if rest else 8
        if descriptor & 8:
            raise Damaged("Z15: reserved bit")
        single, here = descriptor >> 5 & 1, 1
        if not single:
            if len(rest) < 2:
                raise Damaged("Z15: head cut off")
            base = 1 << 10 + (rest[1] >> 3)
            if base + base // 8 * (rest[1] & 7) > 1 << 27:
                raise Damaged("Z15: window")
            here = 2
        ids = (0, 1, 2, 4)[descriptor & 3]
        sizes = (single, 2, 4, 8)[descriptor >> 6]
        if len(rest) < here + ids + sizes:
            raise Damaged("Z15: head cut off")
        if any(rest[here:here + ids]):
            raise Unsupported("dictionary")
        content = None
        if sizes:
            content = int.from_bytes(rest[here + ids:here + ids + sizes], "little") + (256 if sizes == 2 else 0)
        end = at + 4 + here + ids + sizes
        while True:
            head = blob[end:end + 3]
            if len(head) < 3:
                raise Damaged("Z15: block cut off")
            block = int.from_bytes(head, "little")
            if block >> 1 & 3 == 3:
                raise Damaged("Z15: block")
            end += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
            if block & 1:
                break
        end += 4 if descriptor & 4 else 0
        if end > len(blob):
            raise Damaged("Z15: frame cut off")
        found.append((at, end, content))
        at = end
    return found, skipped


def check_table(blob, found, skipped):
    if len(skipped) != 1 or skipped[0][1] != len(blob) or any(content is None for _, _, content in found):
        return
    table = blob[skipped[0][0]:]
    if table[:4] != b"\x5e\x2a\x4d\x18" or len(table) < 17 or table[-4:] != b"\xb1\xea\x92\x8f" or table[-5] & 0x7C:
        return
    width = 12 if table[-5] & 0x80 else 8
    count = int.from_bytes(table[-9:-5], "little")
    if 17 + count * width != len(table):
        return
    listed = [struct.unpack("<II", table[8 + i * width:16 + i * width]) for i in range(count)]
    if listed != [(end - begin, content) for begin, end, content in found]:
        raise Damaged("Z16: table")


def decode(blob, nbytes):
    if nbytes > MAX_DECODED:
        raise Damaged("Z12: decoded")
    if nbytes > len(blob) * 32768:
        raise Damaged("Z15: more than can be")
    found, skipped = frames(blob)
    known = sum(content or 0 for _, _, content in found)
    is_sized = all(content is not None for _, _, content in found)
    if not found or known > nbytes or (is_sized and known != nbytes):
        raise Damaged("Z15: sizes")
    check_table(blob, found, skipped)
    if zstandard is None:
        return None
    parts = []
    for begin, end, content in found:
        room = nbytes - sum(map(len, parts))
        try:
            reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
                blob[begin:end], read_across_frames=False
            )
            part = b""
            while len(part) <= room:
                more = reader.read(room + 1 - len(part))
                if not more:
                    break
                part += more
        except zstandard.ZstdError as error:
            raise Damaged(f"Z15: {error}") from None
        if len(part) > room:
            raise Damaged("Z15: too many bytes")
        parts.append(part)
    data = b"".join(parts)
    if len(data) != nbytes:
        raise Damaged("Z15: too few bytes")
    return data


def read(data, tensor):
    """The elements, little-endian; None if they are compressed and cannot be decoded here."""
    if not tensor["is_supported"]:
        raise Unsupported(tensor["name"])
    if tensor["encoding"] == "zstd" and tensor["nbytes"] > MAX_DECODED:
        raise Damaged("Z12: decoded")
    blob = data[tensor["offset"]:tensor["offset"] + tensor["size"]]
    if tensor["digest"]:
        kind, value = tensor["digest"]
        found = crc32c(blob) if kind == "crc32c" else int(hashlib.sha256(blob).hexdigest(), 16)
        if found != value:
            raise Damaged("Z4: checksum")
    if tensor["encoding"] == "zstd":
        return decode(blob, tensor["nbytes"])
    if tensor["is_big"]:
        width = WIDTHS[tensor["dtype"]]
        return b"".join(blob[at:at + width][::-1] for at in range(0, len(blob), width))
    return blob


def verdict(data):
    try:
        tensors = open_file(data)
    except Rejected as reason:
        return "reject", str(reason)
    is_sure = True
    for tensor in tensors:
        try:
            is_sure &= read(data, tensor) is not None
        except Unsupported:
            pass
        except Damaged as reason:
            return "damaged", str(reason)
    return ("accept", "") if is_sure else ("accept?", "zstandard is not installed")


def compare(folder):
    judged, skipped, wrong = 0, 0, []
    for side in ("accept", "damaged", "reject"):
        for name in sorted(os.listdir(os.path.join(folder, side))):
            with open(os.path.join(folder, side, name), "rb") as file:
                found, why = verdict(file.read())
            judged += 1
            if found == "accept?":
                skipped += side == "damaged"
                wrong += [(side, name, found, why)] if side == "reject" else []
            elif found != side:
                wrong.append((side, name, found, why))
    for line in wrong:
        print(*line)
    print(f"{judged} files, {len(wrong)} judged differently, {skipped} not judged")
    return bool(wrong)


def main(arguments):
    if arguments[:1] == ["--verdicts"]:
        for name in sorted(os.listdir(arguments[1])):
            with open(os.path.join(arguments[1], name), "rb") as file:
                print(name, verdict(file.read())[0])
    elif len(arguments) == 1 and os.path.isdir(arguments[0]):
        return compare(arguments[0])
    else:
        for path in arguments:
            with open(path, "rb") as file:
                data = file.read()
            for tensor in open_file(data):
                print(path, {key: value for key, value in tensor.items() if key != "digest"})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
