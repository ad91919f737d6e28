"""Forms of common operations that XLA compiles to quicker code on a CPU; what they compute is what their names say."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["after", "entry", "pick", "with_entry"]


def pick(outputs: jax.Array, actions: jax.Array) -> jax.Array:
    """(rows, actions, atoms) to (rows, atoms); a sum with zeros, as XLA is slow to gather and slower to scatter."""
    is_picked = actions[:, None] == jnp.arange(outputs.shape[1])
    return jnp.where(is_picked[:, :, None], outputs, 0).sum(axis=1)


def after(number: jax.Array, tree: Any) -> jax.Array:
    """The number itself, once every array of a tree has been computed.

    A step that is scaled by it waits for the whole gradient. Then no layer still needs the parameters as they were, and
    XLA writes over them instead of copying them first.
    """
    return number + 0 * sum(part.ravel()[0] for part in jax.tree_util.tree_leaves(tree))


# Without JAX's care for indices that are negative or beyond the end, which costs a few steps of each update.


def entry(array: jax.Array, index: jax.Array) -> jax.Array:
    """`array[index]`."""
    return jax.lax.dynamic_index_in_dim(array, index, keepdims=False, allow_negative_indices=False)


def with_entry(array: jax.Array, index: jax.Array, value: jax.Array) -> jax.Array:
    """The array with another entry at this index."""
    return jax.lax.dynamic_update_index_in_dim(array, value, index, 0, allow_negative_indices=False)
