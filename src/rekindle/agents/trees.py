"""Pytrees as saved state: arrays by their path, and back into a tree of the same form."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import numpy as np

from rekindle.agent import State
from rekindle.errors import StateError
from rekindle.experience import Array

__all__ = ["tree_from_state", "tree_state"]

Tree = TypeVar("Tree")


def tree_state(tree: Any) -> State:
    """Every array of a pytree under its path, copied; typed random keys as their data."""
    return {path: np.array(_plain(leaf)) for path, leaf in _leaves(tree)}


def tree_from_state(template: Tree, state: State, what: str) -> Tree:
    """The template with its arrays replaced; raises `StateError` unless paths, shapes and dtypes are the same."""
    leaves = _leaves(template)
    expected, found = {path for path, _ in leaves}, set(state)
    if expected != found:
        missing, surplus = sorted(expected - found), sorted(found - expected)
        raise StateError(f"{what} does not fit: missing {missing[:3]}, not expected {surplus[:3]}")
    arrays: list[Any] = []
    for path, leaf in leaves:
        saved, plain = state[path], _plain(leaf)
        if not isinstance(saved, np.ndarray):
            raise StateError(f"{what}{path} is not an array")
        array = cast("Array", saved)
        if array.shape != plain.shape or array.dtype != plain.dtype:
            raise StateError(f"{what}{path} is {array.shape} of {array.dtype}, not {plain.shape} of {plain.dtype}")
        arrays.append(_like(leaf, array))
    dynamic, static = eqx.partition(template, eqx.is_array)
    structure = jax.tree_util.tree_structure(dynamic)
    return eqx.combine(jax.tree_util.tree_unflatten(structure, arrays), static)


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    dynamic = eqx.filter(tree, eqx.is_array)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(dynamic)]


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(leaf: Any, array: Array) -> Any:
    # A copy: JAX may otherwise use the memory of the file that was read, which is not its to give away.
    fresh = jax.numpy.array(array, copy=True)
    return jax.random.wrap_key_data(fresh, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else fresh
