"""Flatten the weights of a network into a few arrays, and build the network from them again.

Optimisers, target networks and actors work on the flat arrays.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agent import State
from rekindle.agents.trees import arrays_from_state
from rekindle.errors import ConfigError, StateError
from rekindle.experience import Array
from rekindle.policy.network import Layer
from rekindle.spaces import ArraySpec

__all__ = ["Parts", "Weights", "norm"]

Network = TypeVar("Network", bound=eqx.Module)

Parts = Any
"""The weights of a network: one vector, or a tuple of a vector with the small arrays followed by each large array."""

_LARGE = 1 << 15
"""Arrays with at least this many elements are kept out of the vector."""


class Weights(Generic[Network]):
    """Converts between a network and its flat weights.

    One vector is faster than a tree of arrays: a dispatch passes fewer arrays, the optimiser is one loop, and numpy
    acts with views of the vector. Large arrays stay separate, because slicing them out of the vector costs more.
    """

    def __init__(self, network: Network) -> None:
        arrays, self._rest = eqx.partition(network, _is_weight)
        leaves = jax.tree_util.tree_leaves_with_path(arrays)
        kinds = {str(leaf.dtype) for _, leaf in leaves}
        if kinds != {"float32"}:
            raise ConfigError(
                f"the weights of {type(network).__name__} have the dtype {', '.join(sorted(kinds)) or 'none'}: "
                "use float32"
            )
        self._paths = [jax.tree_util.keystr(path) for path, _ in leaves]
        self._shapes = [leaf.shape for _, leaf in leaves]
        sizes = [math.prod(shape) for shape in self._shapes]
        self._is_large = [size >= _LARGE for size in sizes]
        self._ends: list[int] = np.cumsum([size for size in sizes if size < _LARGE]).tolist()
        """The end of each small array in the vector."""
        self._structure = jax.tree_util.tree_structure(arrays)
        self.size = sum(sizes)
        """The number of weights."""
        self.initial: Parts = self._parts([np.asarray(leaf, np.float32) for _, leaf in leaves])
        """The weights of the network that was passed."""

    @property
    def vector_paths(self) -> list[str]:
        """The paths of the arrays that are in the vector, in order."""
        pairs = zip(self._paths, self._is_large, strict=True)
        return [path.removeprefix(".") for path, is_large in pairs if not is_large]

    def network(self, parts: Parts) -> Network:
        """The network with these weights, for use inside a compiled function."""
        # The gradient of a split is one concatenation; the gradient of slices would be a sum of padded vectors.
        return self._with(self._arrays(parts, lambda vector: jnp.split(vector, self._ends[:-1])))

    def layers(self, parts: Parts) -> list[Layer]:
        """The network as `Layer` data with views of the parts; raises `ConfigError` if it cannot be converted."""
        network: Any = self.views(parts)
        return network.layers()

    def views(self, parts: Parts) -> Network:
        """The network with numpy views of the parts."""
        return self._with(self._views(parts))

    def diverged(self, parts: Parts) -> str | None:
        """Describe why weights are unusable: NaN, infinity, or values whose squares overflow; None if they are fine."""
        # A dot product is the fastest way to check every number.
        if all(math.isfinite(np.vdot(array, array)) for array in jax.tree_util.tree_leaves(parts)):
            return None
        for path, array in zip(self._paths, self._views(parts), strict=True):
            if not np.isfinite(array).all():
                return f"the weights {path.removeprefix('.')} are not finite"
        return f"the weights are as large as {max(float(np.abs(array).max()) for array in self._views(parts)):.2g}"

    def state(self, parts: Parts) -> State:
        """A copy of every array, by its path."""
        return dict(zip(self._paths, map(np.copy, self._views(parts)), strict=True))

    def from_state(self, state: Any, what: str) -> Parts:
        """The parts from a saved state; raises `StateError` if paths or shapes differ or a value is not finite."""
        if not isinstance(state, dict):
            raise StateError(f"{what} are missing")
        specs = [ArraySpec(np.dtype(np.float32), shape) for shape in self._shapes]
        expected = dict(zip(self._paths, specs, strict=True))
        arrays = arrays_from_state(expected, cast("State", state), what, misfit="belong to another network")
        if not all(np.isfinite(array).all() for array in arrays):
            raise StateError(f"{what} contain NaN or infinity")
        return self._parts(arrays)

    def _with(self, arrays: list[Any]) -> Network:
        return eqx.combine(jax.tree_util.tree_unflatten(self._structure, arrays), self._rest)

    def _parts(self, arrays: list[Array]) -> Parts:
        large = [array for array, is_large in zip(arrays, self._is_large, strict=True) if is_large]
        small = [array.ravel() for array, is_large in zip(arrays, self._is_large, strict=True) if not is_large]
        vector = np.concatenate(small) if small else np.zeros(0, np.float32)
        return (vector, *(np.copy(array) for array in large)) if large else vector

    def _arrays(self, parts: Parts, split: Callable[[Any], list[Any]]) -> list[Any]:
        vector, *large = parts if isinstance(parts, tuple) else (parts,)
        arrays, others = iter(split(vector)), iter(large)
        return [
            next(others) if is_large else next(arrays).reshape(shape)
            for is_large, shape in zip(self._is_large, self._shapes, strict=True)
        ]

    def _views(self, parts: Parts) -> list[Array]:
        here = jax.tree_util.tree_map(np.asarray, parts)
        return self._arrays(here, lambda vector: np.split(vector, self._ends[:-1]))


def _is_weight(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array) and np.issubdtype(leaf.dtype, np.floating)


def norm(parts: Parts) -> jax.Array:
    """The L2 norm over all arrays of a tree, such as weights or a gradient."""
    return jnp.sqrt(sum(jnp.square(array).sum() for array in jax.tree_util.tree_leaves(parts)))
