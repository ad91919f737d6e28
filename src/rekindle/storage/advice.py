"""What to say about a value that a file cannot hold."""

from __future__ import annotations

from typing import Final

import numpy as np

__all__ = ["advice_on", "type_name"]

_ADVICE: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (np.bool_, "make it bool()"),
    ((int, np.integer), "make it int()"),
    ((float, np.floating), "make it float()"),
    ((complex, np.complexfloating), "make it an array with np.asarray()"),
    (str, "make it str()"),
    ((bytes, bytearray, memoryview), "make it an array with np.frombuffer(value, np.uint8)"),
    ((set, frozenset), "make it a list with sorted()"),
    (dict, "make it dict()"),
    ((list, tuple), "make it list()"),
    (np.ndarray, "make it a plain array with np.asarray()"),
)


def advice_on(value: object) -> str:
    """What to do with a value of a type that cannot be saved."""
    plain = "save what it holds as dict, list, str, int, float, bool, None and arrays"
    return next((advice for types, advice in _ADVICE if isinstance(value, types)), plain)


def type_name(value: object) -> str:
    """The name of its type, with the module unless it is built in."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
