"""All weights of a network as one vector: what an optimiser moves, a target follows and an actor copies."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agent import State
from rekindle.errors import ConfigError, StateError
from rekindle.experience import Array
from rekindle.policy import Layer

__all__ = ["Weights"]

Network = TypeVar("Network", bound=eqx.Module)


class Weights(Generic[Network]):
    """Turns a vector into the network it was made from, and back.

    One vector instead of a tree of arrays: a dispatch costs less the fewer arrays it passes, an optimiser runs as one
    loop, and numpy views of its parts are all it takes to act.
    """

    def __init__(self, network: Network) -> None:
        arrays, self._rest = eqx.partition(network, _is_weight)
        leaves = jax.tree_util.tree_leaves_with_path(arrays)
        kinds = {str(leaf.dtype) for _, leaf in leaves}
        if kinds != {"float32"}:
            raise ConfigError(
                f"the weights of {type(network).__name__} are {', '.join(sorted(kinds)) or 'none'}: use float32"
            )
        self._paths = [jax.tree_util.keystr(path) for path, _ in leaves]
        self._shapes = [leaf.shape for _, leaf in leaves]
        self._ends = np.cumsum([math.prod(shape) for shape in self._shapes]).tolist()
        self._structure = jax.tree_util.tree_structure(arrays)
        self.initial: Array = np.concatenate([np.ravel(leaf) for _, leaf in leaves])
        """The vector of the network that was given."""
        self.size: int = self._ends[-1]
        """How many numbers there are."""

    def network(self, vector: jax.Array) -> Network:
        """The network with these weights, for use inside a compiled function."""
        # Split, not sliced: the gradient of a split is one concatenation, that of slices a sum of padded vectors.
        parts = jnp.split(vector, self._ends[:-1])
        return self._with([part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)])

    def layers(self, vector: Array) -> list[Layer]:
        """The network as data, its arrays views of the vector; raises `ConfigError` if it cannot be."""
        network: Any = self.views(vector)
        return network.layers()

    def views(self, vector: Array) -> Network:
        """The network, its arrays views of the vector."""
        return self._with(self._views(vector))

    def state(self, vector: jax.Array | Array) -> State:
        """Every array under its path, copied."""
        return dict(zip(self._paths, map(np.copy, self._views(np.asarray(vector))), strict=True))

    def from_state(self, state: Any, what: str) -> Array:
        """The vector; raises `StateError` unless paths and shapes are the same and all is finite."""
        if not isinstance(state, dict):
            raise StateError(f"{what} are missing")
        saved = cast("State", state)
        if set(saved) != set(self._paths):
            missing, surplus = sorted(set(self._paths) - set(saved)), sorted(set(saved) - set(self._paths))
            raise StateError(f"{what} are of another network: missing {missing[:3]}, not expected {surplus[:3]}")
        vector = np.empty(self.size, np.float32)
        for path, shape, view in zip(self._paths, self._shapes, self._views(vector), strict=True):
            array = saved[path]
            if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != np.float32:
                found = f"{array.shape} of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
                raise StateError(f"{what}: {path} is {found}, not {shape} of float32")
            view[...] = array
        if not np.isfinite(vector).all():
            raise StateError(f"{what} hold NaN or infinity")
        return vector

    def _with(self, arrays: list[Any]) -> Network:
        return eqx.combine(jax.tree_util.tree_unflatten(self._structure, arrays), self._rest)

    def _views(self, vector: Array) -> list[Array]:
        starts = [0, *self._ends[:-1]]
        return [
            vector[start:end].reshape(shape) for start, end, shape in zip(starts, self._ends, self._shapes, strict=True)
        ]


def _is_weight(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array) and np.issubdtype(leaf.dtype, np.floating)
