"""Save pytrees as arrays by path, and load them again."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar, cast

import jax
import numpy as np

from rekindle.agent import State
from rekindle.errors import StateError
from rekindle.experience import Array

__all__ = ["placed", "placed_number", "tree_from_state", "tree_state"]

Tree = TypeVar("Tree")


def tree_state(tree: Any) -> State:
    """A copy of every array of a pytree, by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.array(leaf) for path, leaf in leaves}


def tree_from_state(template: Tree, state: Any, what: str) -> Tree:
    """A tree like the template with the saved arrays; raises `StateError` unless paths, shapes and dtypes agree."""
    saved = cast("State", state) if isinstance(state, dict) else {}
    leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(template)]
    expected, found = {path for path, _ in leaves}, set(saved)
    if expected != found:
        missing, surplus = sorted(expected - found), sorted(found - expected)
        raise StateError(f"the {what} does not fit: missing {missing[:3]}, not expected {surplus[:3]}")
    arrays: list[Array] = []
    for path, leaf in leaves:
        value = saved[path]
        if not isinstance(value, np.ndarray) or value.shape != leaf.shape or value.dtype != leaf.dtype:
            shown = f"{value.shape} of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise StateError(f"the {what}: {path} is {shown}, not {leaf.shape} of {leaf.dtype}")
        arrays.append(cast("Array", value))
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(template), arrays)


def placed(tree: Tree, device: Any) -> Tree:
    """Copy the arrays of a tree to a device; without the copy, JAX may share the memory of a numpy array."""
    return jax.device_put(jax.tree_util.tree_map(np.array, tree), device)


@lru_cache(maxsize=64)
def placed_number(number: float, device: Any) -> jax.Array:
    """A number on a device, cached: a setting that may change without compiling again, but seldom does."""
    return jax.device_put(np.float32(number), device)
