"""Spaces as JSON, in the form of Minari's metadata; reading runs no code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from rekindle.errors import DataError
from rekindle.experience import Array

__all__ = ["inferred_space", "leaf_keys", "read_space", "space_text", "space_tree"]

_MOST_DEPTH = 32
_MOST_NUMBERS = 2**27
"""The most numbers in one value of a space that a file may declare."""


def space_text(space: Any) -> str:
    """A space as Minari writes it; raises `DataError` for a space that Minari has no form for."""
    return json.dumps(space_tree(space))


def space_tree(space: Any, *, most_bounds: int | None = None) -> dict[str, Any]:
    """The same as a tree of dicts and lists, with infinite bounds; raises `DataError`.

    Minari needs a bound for each number. With `most_bounds`, a bound of more numbers than that is written once if it is
    the same for all.
    """
    match type(space).__name__:
        case "Box":
            bounds = {"low": _written(space.low, most_bounds), "high": _written(space.high, most_bounds)}
            return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
        case "Discrete":
            return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
        case "MultiDiscrete":
            numbers = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"type": "MultiDiscrete", "dtype": str(space.dtype), **numbers}
        case "MultiBinary":
            size = space.n if isinstance(space.n, int) else np.asarray(space.n).tolist()
            return {"type": "MultiBinary", "n": size}
        case "Dict":
            parts = {key: space_tree(part, most_bounds=most_bounds) for key, part in space.spaces.items()}
            return {"type": "Dict", "subspaces": parts}
        case "Tuple":
            return {"type": "Tuple", "subspaces": [space_tree(part, most_bounds=most_bounds) for part in space.spaces]}
        case _:
            raise DataError(f"the space {space!r:.120} cannot be stored: use Box, Discrete, MultiDiscrete, MultiBinary")


def _written(bound: Array, most: int | None) -> Any:
    is_once = most is not None and bound.size > most and (bound == bound.flat[0]).all()
    return bound.flat[0].item() if is_once else bound.tolist()


def read_space(text: Any, *, name: str) -> Any:
    """The space in a text of `space_text` or Minari; raises `DataError` that begins with `name`."""
    try:
        tree: Any = json.loads(text) if isinstance(text, str) else text
        return _space(tree, 0)
    except (ValueError, TypeError, KeyError, AssertionError, OverflowError, RecursionError, MemoryError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{name} is not a space that can be read: {reason[:200] or type(error).__name__}") from None


def _space(tree: Any, depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise ValueError(f"it has more than {_MOST_DEPTH} levels")
    if not isinstance(tree, dict):
        raise ValueError(f"{tree!r:.40} is not an object")
    fields = cast("dict[str, Any]", tree)
    from gymnasium import spaces

    match fields["type"]:
        case "Box":
            shape, dtype = _shape(fields["shape"]), _dtype(fields["dtype"])
            low, high = (_bound(fields[side], dtype, shape) for side in ("low", "high"))
            return spaces.Box(low, high, shape, cast("Any", dtype))
        case "Discrete":
            return spaces.Discrete(int(fields["n"]), start=int(fields.get("start", 0)))
        case "MultiDiscrete":
            nvec = np.asarray(fields["nvec"], np.int64)
            dtype = _dtype(fields.get("dtype", "int64"))
            return spaces.MultiDiscrete(nvec, cast("Any", dtype), start=np.asarray(fields.get("start", nvec * 0)))
        case "MultiBinary":
            size = fields["n"]
            return spaces.MultiBinary(size if isinstance(size, int) else _shape(size))
        case "Dict":
            parts = cast("dict[str, Any]", fields["subspaces"])
            # As a list: of a dict, Gymnasium would sort the keys, and an agent depends on their order.
            return spaces.Dict([(str(key), _space(part, depth + 1)) for key, part in parts.items()])
        case "Tuple":
            return spaces.Tuple([_space(part, depth + 1) for part in cast("list[Any]", fields["subspaces"])])
        case kind:
            raise ValueError(f"{kind!r:.40} is none of Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple")


def _shape(value: Any) -> tuple[int, ...]:
    shape = tuple(int(length) for length in value)
    if min(shape, default=0) < 0 or math.prod(shape) > _MOST_NUMBERS:
        raise ValueError(f"its shape is {shape}")
    return shape


def _dtype(value: Any) -> np.dtype[Any]:
    dtype = np.dtype(str(value))
    if dtype.kind not in "biuf":
        raise ValueError(f"its dtype is {dtype}")
    return dtype


def _bound(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    bound: Array = np.asarray(value, dtype)
    return np.full(shape, bound) if not bound.shape else bound


def inferred_space(shape: tuple[int, ...], dtype: np.dtype[Any], least: Any, most: Any, *, is_action: bool) -> Any:
    """A space for values of one dtype and shape, between `least` and `most`: scalars, or arrays of the shape."""
    from gymnasium import spaces

    dtype = dtype.newbyteorder("=")
    if dtype.kind == "f":
        dtype = np.dtype(np.float64) if dtype.itemsize > 8 else dtype
        inside = is_action and float(np.min(least)) >= -1 and float(np.max(most)) <= 1
        return spaces.Box(-1.0 if inside else -np.inf, 1.0 if inside else np.inf, shape, cast("Any", dtype))
    if dtype.kind == "b":
        return spaces.MultiBinary(shape or 1) if shape else spaces.Discrete(2)
    if not shape:
        start = min(0, int(least))
        return spaces.Discrete(int(most) - start + 1, start=start)
    if is_action and int(np.min(least)) >= 0:
        return spaces.MultiDiscrete(np.asarray(most, np.int64) + 1)
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, shape, cast("Any", dtype))


def leaf_keys(tree: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """For each array of a nesting, in order, the keys and positions that lead to it."""
    if tree is None:
        return [path]
    items = cast("Mapping[str, Any]", tree).items() if isinstance(tree, Mapping) else enumerate(tree)
    return [leaf for key, child in items for leaf in leaf_keys(child, (*path, key))]
