"""Common operations, written so that XLA compiles them to faster code on a CPU."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["after", "entry", "pick", "with_entry", "wrapped"]


def pick(outputs: jax.Array, actions: jax.Array) -> jax.Array:
    """The outputs of the chosen actions: (rows, actions, atoms) to (rows, atoms).

    It is a masked sum, because a gather is slow on a CPU and its gradient, a scatter, is slower.
    """
    is_picked = actions[:, None] == jnp.arange(outputs.shape[1])
    return jnp.where(is_picked[:, :, None], outputs, 0).sum(axis=1)


def after(number: jax.Array, tree: Any) -> jax.Array:
    """The same number, with a data dependency on every array of a tree.

    Scaling an optimiser step by it makes the step wait for the whole gradient. No layer needs the old parameters by
    then, so XLA updates them in place instead of copying them first.
    """
    return number + 0 * sum(part.ravel()[0] for part in jax.tree_util.tree_leaves(tree))


# These skip JAX's handling of negative and out-of-range indices, which costs a few operations in each update.


def entry(array: jax.Array, index: jax.Array) -> jax.Array:
    """`array[index]`."""
    return jax.lax.dynamic_index_in_dim(array, index, keepdims=False, allow_negative_indices=False)


def with_entry(array: jax.Array, index: jax.Array, value: jax.Array) -> jax.Array:
    """A copy of the array in which the entry at `index` is `value`."""
    return jax.lax.dynamic_update_index_in_dim(array, value, index, 0, allow_negative_indices=False)


def wrapped(number: int) -> int:
    """A whole number as JAX stores it in 32 bits; differences of such numbers are right if they are small."""
    return (number + 2**31) % 2**32 - 2**31
