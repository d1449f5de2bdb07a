"""The formats' corpora, and mutants of their files, through Python: what is sound is read, all else is an exception."""

import os
from pathlib import Path

import numpy as np
import pytest

from tensorferry import TensorFileError, load, safe_open

CRATES = Path(os.environ["TENSORFERRY_CORPORA"])
FILES = sorted(
    path
    for corpus in CRATES.glob("*/tests/corpus*")
    for path in corpus.rglob("*")
    if path.is_file() and path.suffix in (".tbuf", ".btf", ".zt", ".pt", ".pth", ".npy", ".npz", ".gguf", ".safetensors")
)


def read(file):
    """Everything of an open file; what it cannot give is an exception of ours."""
    found = {}
    for name, tensor in file.items():
        try:
            found[name] = tensor.numpy()
        except (TensorFileError, TypeError):
            # Sparse, or of a dtype that NumPy does not have.
            found[name] = None
    return found


def verdict(path):
    return next((part for part in path.parts if part in ("accept", "reject", "damaged")), None)


def test_there_are_corpora():
    assert len(FILES) > 900
    assert {verdict(path) for path in FILES} >= {"accept", "reject", "damaged"}


@pytest.mark.parametrize("mmap", [False, True])
def test_the_corpora_are_judged_as_their_folders_say(mmap):
    wrong = []
    for path in FILES:
        try:
            read(safe_open(path, mmap=mmap))
            error = None
        except TensorFileError as failure:
            error = failure
            assert failure.kind and str(failure)
        if (verdict(path) == "accept" and error is not None) or (verdict(path) == "reject" and error is None):
            wrong.append((str(path.relative_to(CRATES)), error))
    assert wrong == []


def test_mutants_raise_and_nothing_else():
    rng = np.random.default_rng(20)
    tried = 0
    for path in FILES:
        whole = path.read_bytes()
        if not 0 < len(whole) <= 1 << 16:
            continue
        for _ in range(8):
            mutant = bytearray(whole)
            for _ in range(rng.integers(1, 5)):
                mutant[rng.integers(0, len(mutant))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(0, 256)])
            if rng.random() < 0.25:
                mutant = mutant[: rng.integers(0, len(mutant) + 1)]
            tried += 1
            try:
                load(mutant)
            except (TensorFileError, TypeError):
                pass
    assert tried > 5000
