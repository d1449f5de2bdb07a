"""Writes tests/corpus: checkpoints by a real PyTorch, and `expected.txt`, which says what is in them.

Run with `pip install torch numpy` (torch 2.15 wrote those that are there). Everything in the files is made here.
"""

import collections
import pathlib
import sys
import warnings
import zlib

import numpy as np
import torch

FOLDER = pathlib.Path(__file__).parent.parent / "corpus"
OPAQUE = {
    torch.complex32: "C32",
    torch.complex64: "C64",
    torch.complex128: "C128",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float4_e2m1fn_x2: "F4",
}
PLAIN = {
    "bool": "bool",
    **{f"{kind}int{bits}": f"{kind[:1] or 'i'}{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}


def named(value, name=""):
    """Tensors by the keys that lead to them."""
    if isinstance(value, torch.Tensor):
        yield name or "0", value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from named(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from named(item, f"{name}.{number}" if name else str(number))


def described(tensor):
    """Dtype, shape and CRC-32 of the elements row by row."""
    tensor = tensor.detach().contiguous()
    shape = list(tensor.shape)
    if tensor.dtype == torch.float4_e2m1fn_x2:
        shape[-1] *= 2
    dtype = OPAQUE.get(tensor.dtype) or PLAIN[str(tensor.dtype).removeprefix("torch.")]
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return f"{dtype}{shape} {zlib.crc32(data):08x}"


def module():
    made = torch.nn.Sequential(collections.OrderedDict(a=torch.nn.Linear(3, 4), b=torch.nn.BatchNorm1d(4)))
    for number, value in enumerate(made.state_dict().values()):
        value.copy_(torch.arange(value.numel()).reshape(value.shape) + number)
    return made


def dtypes():
    names = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
    plain = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in names}
    opaque = {
        str(dtype).removeprefix("torch."): torch.arange(48, dtype=torch.uint8).view(dtype).reshape(1, -1)
        for dtype in OPAQUE
    }
    return plain | opaque


def views():
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "whole": base,
        "transposed": base.t(),
        "rows": base[1:3],
        "columns": base[:, 2:4],
        "steps": base[::2, ::3],
        "expanded": base[0, :1].expand(5),
        "scalar": base[1, 1],
        "empty": base[:0],
        "permuted": torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        "channels_last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "complex": torch.arange(12.0).to(torch.complex64).reshape(3, 4).t(),
    }


def training():
    trained = module()
    optimizer = torch.optim.Adam(trained.parameters())
    trained(torch.arange(6.0).reshape(2, 3)).sum().backward()
    optimizer.step()
    return {
        "state_dict": trained.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "best": np.float64(0.25),
        "large": 2**70,
        "nothing": None,
        "seen": {1, 2},
        "raw": b"abc",
        "default": collections.defaultdict(list, a=[torch.ones(2)]),
        "counts": collections.Counter("aab"),
        "size": torch.Size([1, 2]),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "random": torch.arange(16, dtype=torch.uint8),
    }


def parameters():
    tagged = torch.ones(2)
    tagged.note = 5
    return {
        "parameter": torch.nn.Parameter(torch.arange(4.0).reshape(2, 2)),
        "buffer": torch.nn.Buffer(torch.ones(2)),
        "tagged": tagged,
    }


def main():
    warnings.simplefilter("ignore")
    lines = []

    def save(name, value, **options):
        torch.save(value, FOLDER / name, **options)
        listed = torch.load(FOLDER / name, weights_only=False)
        lines.extend(f"{name} {key} {described(tensor)}" for key, tensor in named(listed))

    save("state.pt", module().state_dict())
    for protocol in (3, 4, 5):
        save(f"state_protocol{protocol}.pt", module().state_dict(), pickle_protocol=protocol)
    save("one.pt", torch.arange(6).reshape(2, 3))
    save("list.pt", [torch.ones(2), (torch.zeros(3),)])
    for name, value in [("dtypes", dtypes()), ("views", views()), ("training", training()), ("parameters", parameters())]:
        save(f"{name}.pt", value)
        if name == "dtypes":
            # PyTorch cannot load others from this layout itself.
            value = {key: value[key] for key in value if not key.startswith(("float8", "float4", "uint", "complex32"))}
        save(f"{name}_legacy.pt", value, _use_new_zipfile_serialization=False)
    # Read by another rule, or refused: tests/it/real.rs has what they come to.
    torch.jit.script(module()).save(FOLDER / "script.pt")
    lines.extend(f"script.pt {key} {described(tensor)}" for key, tensor in module().state_dict().items())
    torch.save(module(), FOLDER / "module.pt")
    lazy, other = (torch.tensor([1 + 2j, 3 - 1j]).conj() for _ in range(2))
    torch.save({"conjugated": lazy, "negated": other.imag, "plain": torch.ones(1)}, FOLDER / "lazy.pt")
    torch.save({"q": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)}, FOLDER / "quantised.pt")
    torch.save({"s": torch.eye(3).to_sparse()}, FOLDER / "sparse.pt")
    torch.save({"a": np.arange(3.0)}, FOLDER / "numpy.pt")
    torch.save({"bytes": torch.ones(2).untyped_storage()}, FOLDER / "storage.pt")
    (FOLDER / "expected.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
