"""Texts for people: what a ``repr`` lists, the name that was meant, and the line that makes the right datatype."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from keyword import iskeyword
from typing import Any

import numpy as np

from ._dtypes import dtype_name, from_oip, numpy_name


#: Parts that a ``repr`` shows at most.
SHOWN = 6


def shown(parts: Iterable[str]) -> str:
    """Parts for a ``repr``, the first few of them."""
    listed = list(parts)
    more = [f"... {len(listed) - SHOWN} more"] if len(listed) > SHOWN else []
    return ", ".join(listed[:SHOWN] + more) or "nothing"


def nearest(name: object, names: Iterable[str]) -> str:
    """``; did you mean 'digits'?``, or nothing if none of the names is like it."""
    if not isinstance(name, str):
        return ""
    by_lower = {known.lower(): known for known in names}
    found = get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""


def unknown(role: str, name: str, names: Iterable[str], model: str) -> str:
    """Says that a model has no such input or output, and which is meant, or which there are."""
    names = list(names)
    meant = nearest(name, names)
    if not meant and names:
        listed = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        meant = f"; it has {listed}"
    return f"model {model!r} has no {role} {name!r}{meant}"


def other_datatype(name: str, value: Any, sent: str, wanted: str, model: str) -> str:
    """Says which datatype an input has and should have, and the line to write."""
    start = f"input {name!r} of model {model!r} is {wanted}"
    is_array = isinstance(value, (np.ndarray, np.generic))
    what = "array" if is_array else type(value).__name__
    if sent == "BYTES":
        start += f" and this {what} has strings (BYTES)"
    else:
        start += f" and this {what} is {dtype_name(np.asarray(value).dtype)} ({sent})"
    dtype = "str" if wanted == "BYTES" else numpy_name(wanted)
    if isinstance(value, (list, tuple, str, bytes)) or dtype is None:
        return start
    # The input's name is often the variable's.
    variable = name if name.isidentifier() and not iskeyword(name) else "array"
    line = f"{variable}.astype({dtype})" if is_array else f"np.asarray({variable}).astype({dtype})"
    return f"{start}: pass {line}{_loss(sent, wanted)}"


def _loss(sent: str, wanted: str) -> str:
    """What that line drops beyond precision."""
    if not wanted.startswith(("INT", "UINT")):
        return ""
    if sent.startswith(("FP", "BF")):
        return ", which cuts fractions off"
    return "" if sent == "BYTES" or np.can_cast(from_oip(sent), from_oip(wanted)) else ", if its numbers fit"
