"""Trees with one value in the place of another, as a file from anywhere may hold them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

HUGE = 2**40
OTHERS: tuple[Any, ...] = (
    *(None, "x", -1, HUGE, float("nan"), [], {}, [[1]]),
    *(np.array(1.0), np.zeros((HUGE, 0), np.float32), np.zeros(3, np.int64)),
)


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every way down into a tree."""
    if at:
        yield at
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*at, key))


def misfits(tree: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The tree with each part of it missing, or something else in its place; and where that is."""
    for at in list(places(tree)):
        for other in (*OTHERS, KeyError):
            copied = copy.deepcopy(tree)
            target = copied
            for key in at[:-1]:
                target = target[key]
            if other is KeyError:
                del target[at[-1]]
            else:
                target[at[-1]] = other
            yield at, copied
