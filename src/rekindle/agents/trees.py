"""Save pytrees as arrays by path, and load them again."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast

import jax
import numpy as np

from rekindle.agent import State
from rekindle.errors import StateError
from rekindle.experience import Array

__all__ = ["arrays_from_state", "placed", "placed_number", "tree_from_state", "tree_state"]

Tree = TypeVar("Tree")


def tree_state(tree: Any) -> State:
    """A copy of every array of a pytree, by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.array(leaf) for path, leaf in leaves}


def tree_from_state(template: Tree, state: Any, what: str) -> Tree:
    """A tree like the template with the saved arrays; raises `StateError` unless paths, shapes and dtypes agree."""
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(template)}
    arrays = arrays_from_state(leaves, state, f"the {what}", misfit="does not fit")
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(template), arrays)


def arrays_from_state(expected: Mapping[str, Any], state: Any, what: str, *, misfit: str) -> list[Array]:
    """The saved arrays, in the order of `expected`: by path, anything with the right `shape` and `dtype`.

    Raises a `StateError` that begins with `what`; after that comes `misfit`, if the paths differ.
    """
    saved = cast("State", state) if isinstance(state, dict) else {}
    missing, surplus = sorted(expected.keys() - saved.keys()), sorted(saved.keys() - expected.keys())
    if missing or surplus:
        raise StateError(f"{what} {misfit}: missing {missing[:3]}, unexpected {surplus[:3]}")
    arrays: list[Array] = []
    for path, leaf in expected.items():
        value = saved[path]
        if not isinstance(value, np.ndarray) or value.shape != leaf.shape or value.dtype != leaf.dtype:
            shown = f"{value.shape} of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise StateError(f"{what}: {path} is {shown}, not {leaf.shape} of {leaf.dtype}")
        arrays.append(cast("Array", value))
    return arrays


def placed(tree: Tree, device: Any) -> Tree:
    """Copy the arrays of a tree to a device; without the copy, JAX may share the memory of a numpy array."""
    return jax.device_put(jax.tree_util.tree_map(np.array, tree), device)


@lru_cache(maxsize=64)
def placed_number(number: float, device: Any) -> jax.Array:
    """A number on a device, cached: a setting that may change without compiling again, but seldom does."""
    return jax.device_put(np.float32(number), device)
