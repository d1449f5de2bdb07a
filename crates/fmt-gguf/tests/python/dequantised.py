"""Prints, for each of GGML's types that `fmt-gguf` dequantises, a digest of what the package `gguf` makes of some blocks.

The blocks are made by the generator below, which tests/it/dequantising.rs has too; that file holds what this one printed.
Needs `pip install gguf`. Q8_K, which the package has no code for, is computed here.
"""

import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

TYPES = (
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS "
    "IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4".split()
)
BLOCKS = 64


def generated(count):
    """Bytes of a linear congruential generator."""
    state, out = 42, bytearray()
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(state >> 56)
    return bytes(out)


def q8_k(data):
    for at in range(0, len(data), 292):
        (scale,) = struct.unpack_from("<f", data, at)
        yield np.float32(scale) * np.frombuffer(data, np.int8, 256, at + 4).astype(np.float32)


def main():
    for name in TYPES:
        kind = GGMLQuantizationType[name]
        elements, size = GGML_QUANT_SIZES[kind]
        data = generated(BLOCKS * size)
        with np.errstate(all="ignore"):
            if name == "Q8_K":
                floats = np.concatenate(list(q8_k(data)))
            else:
                floats = dequantize(np.frombuffer(data, np.uint8).reshape(1, -1), kind).reshape(-1)
        assert floats.dtype == np.float32 and floats.size == BLOCKS * elements
        bits = floats.view(np.uint32).copy()
        bits[np.isnan(floats)] = 0x7FC00000
        digest = 0xCBF29CE484222325
        for byte in bits.astype("<u4").tobytes():
            digest = (digest ^ byte) * 0x100000001B3 % 2**64
        print(f'    ("{name}", {digest:#018x}),')


main()
