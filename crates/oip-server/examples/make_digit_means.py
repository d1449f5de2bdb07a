"""Makes models/digit_means: a tensor file that is served as it is, with the mean image of each digit.

Takes nothing but Python. The images are those of requests/digits.json, whose labels stand in requests/digits.labels.json.
"""

import json
import struct
from pathlib import Path

HERE = Path(__file__).parent
PIXELS = 64


def main():
    images = json.loads((HERE / "requests/digits.json").read_text())["inputs"][0]["data"]
    truth = json.loads((HERE / "requests/digits.labels.json").read_text())["truth"]
    sums, count = [[0.0] * PIXELS for _ in range(10)], [0] * 10
    for index, digit in enumerate(truth):
        count[digit] += 1
        for pixel in range(PIXELS):
            sums[digit][pixel] += images[index * PIXELS + pixel]
    mean = [total / count[digit] for digit in range(10) for total in sums[digit]]

    data = struct.pack(f"<{len(mean)}f", *mean) + struct.pack("<10q", *count)
    end = len(mean) * 4
    header = json.dumps({
        "__metadata__": {"made_by": "examples/make_digit_means.py"},
        "mean": {"dtype": "F32", "shape": [10, PIXELS], "data_offsets": [0, end]},
        "count": {"dtype": "I64", "shape": [10], "data_offsets": [end, len(data)]},
    }, separators=(",", ":")).encode()
    # Data on a multiple of 8 can be viewed in place.
    header += b" " * (-len(header) % 8)
    path = HERE / "models/digit_means/1/model.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


if __name__ == "__main__":
    main()
