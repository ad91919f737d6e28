"""Spaces in messages: as in Minari's metadata, with null instead of an infinite bound."""

from __future__ import annotations

import math
from typing import Any, cast

from rekindle.errors import DataError
from rekindle.space_json import read_space, space_tree

__all__ = ["read_space_tree", "space_as_tree"]


def space_as_tree(space: Any) -> dict[str, Any]:
    """A Gymnasium space for a message: infinite bounds are null; raises `DataError`."""
    return _without_infinities(space_tree(space))


def _without_infinities(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_infinities(value) for key, value in cast("dict[str, Any]", tree).items()}
    if isinstance(tree, list):
        return [_without_infinities(value) for value in cast("list[Any]", tree)]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def read_space_tree(tree: Any, *, name: str) -> Any:
    """The space in a message; raises `DataError` that begins with `name`."""
    try:
        return read_space(_with_infinities(tree, math.nan), name=name)
    except RecursionError:
        raise DataError(f"{name} is nested too deeply") from None


def _with_infinities(tree: Any, infinity: float) -> Any:
    if isinstance(tree, dict):
        ends = {"low": -math.inf, "high": math.inf}
        items = cast("dict[str, Any]", tree).items()
        return {key: _with_infinities(value, ends.get(key, infinity)) for key, value in items}
    if isinstance(tree, list):
        return [_with_infinities(value, infinity) for value in cast("list[Any]", tree)]
    return infinity if tree is None and not math.isnan(infinity) else tree
