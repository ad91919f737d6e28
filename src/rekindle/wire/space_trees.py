"""Spaces in messages: the JSON form of Minari's metadata, with null instead of infinite bounds."""

from __future__ import annotations

import math
from typing import Any, cast

from rekindle.errors import DataError
from rekindle.space_json import read_space, space_tree

__all__ = ["read_space_tree", "space_as_tree"]

_MOST_BOUNDS = 64
"""A bound of more numbers is written once, if it is the same for all."""


def space_as_tree(space: Any) -> dict[str, Any]:
    """Convert a Gymnasium space to a tree for a message or a config; infinite bounds become null. Raises `DataError`.

    The bounds of an image are two numbers, so that a message and a config can hold them.
    """
    return _without_infinities(space_tree(space, most_bounds=_MOST_BOUNDS))


def _without_infinities(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_infinities(value) for key, value in cast("dict[str, Any]", tree).items()}
    if isinstance(tree, list):
        return [_without_infinities(value) for value in cast("list[Any]", tree)]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


_MOST_NUMBERS = 1 << 24
"""The default limit on the numbers in one value of a space."""


def read_space_tree(tree: Any, *, name: str, most_numbers: int = _MOST_NUMBERS) -> Any:
    """Read the space in a message; raises a `DataError` that begins with `name`.

    A space whose values have more than `most_numbers` numbers is refused.
    """
    try:
        if (numbers := _numbers(tree)) > most_numbers:
            raise DataError(f"{name} has {numbers} numbers, which is more than {most_numbers}")
        return read_space(_with_infinities(tree, math.nan), name=name)
    except RecursionError:
        raise DataError(f"{name} is nested too deeply") from None


def _numbers(tree: Any) -> int:
    """The number of numbers in one value of a space, computed before anything is allocated; 0 if it is not a space."""
    if not isinstance(tree, dict):
        return 0
    fields = cast("dict[str, Any]", tree)
    inside: Any = fields.get("subspaces")
    if isinstance(inside, dict):
        return sum(map(_numbers, cast("dict[str, Any]", inside).values()))
    if isinstance(inside, list):
        return sum(map(_numbers, cast("list[Any]", inside)))
    shape: Any = fields.get("shape", fields.get("n") if fields.get("type") == "MultiBinary" else None)
    lengths = cast("list[Any]", shape) if isinstance(shape, list) else [shape]
    return math.prod(abs(length) for length in lengths if isinstance(length, int))


def _with_infinities(tree: Any, infinity: float) -> Any:
    if isinstance(tree, dict):
        ends = {"low": -math.inf, "high": math.inf}
        items = cast("dict[str, Any]", tree).items()
        return {key: _with_infinities(value, ends.get(key, infinity)) for key, value in items}
    if isinstance(tree, list):
        return [_with_infinities(value, infinity) for value in cast("list[Any]", tree)]
    return infinity if tree is None and not math.isnan(infinity) else tree
