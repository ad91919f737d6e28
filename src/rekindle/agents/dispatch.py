"""All updates that are due in one dispatch: compiled once, bit-equal to one update after the other.

A compiled loop runs as many updates as it is told to, over batches padded to one of two sizes. So two compilations
serve every number of updates, and a warm-up is a run of none.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.experience import Array

__all__ = ["Deferred", "Dispatch", "Outcome", "each_array", "padded"]

LearnerState = TypeVar("LearnerState")

Step = Callable[[LearnerState, Any, Any], tuple[LearnerState, dict[str, jax.Array], jax.Array | None]]
"""One update: the state, a batch and whatever else it takes, to the state after it, its metrics, and (or None) a
number for each row of its batch."""

_FEW, _MANY = 8, 64
_SMALL_BATCH = 1 << 17
"""Bytes of a batch up to which it costs nothing to pad it to many."""


class Deferred:
    """One number per update, left on the device until somebody reads it."""

    def __init__(self, pieces: Sequence[tuple[jax.Array, int]], column: int) -> None:
        self._pieces, self._column = pieces, column

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        numbers = [np.asarray(table)[:count, self._column] for table, count in self._pieces]
        return np.concatenate(numbers).astype(np.float64 if dtype is None else dtype)


class Outcome:
    """What came of a dispatch."""

    def __init__(self, table: jax.Array, rows: jax.Array | None, count: int) -> None:
        self.table, self._rows, self.count = table, rows, count

    def rows(self) -> Array:
        """The numbers of each row of each batch (none if the steps give none); waits for the device."""
        return np.empty((self.count, 0)) if self._rows is None else np.asarray(self._rows)[: self.count]


class Dispatch(Generic[LearnerState]):
    """Runs updates, many in one call, giving the state's memory to the next one."""

    def __init__(
        self,
        step: Step[LearnerState],
        metrics: Sequence[str],
        *,
        example: Mapping[str, Any],
        rows: int = 0,
        most: int | None = None,
    ) -> None:
        """`example` is one batch.

        `rows` is how many numbers a step gives beside its metrics; `most` limits the updates in a dispatch.
        """
        self._step, self._metrics, self._rows = step, list(metrics), rows
        self._example = example
        batch_bytes = sum(array.nbytes for array in jax.tree_util.tree_leaves(example))
        many = _MANY if batch_bytes <= _SMALL_BATCH else _FEW
        self.most = max(2, min(many, most or many))
        """Updates in one dispatch at most."""
        # Not 1: a loop over a single batch compiles to other code, whose results differ in the last bits.
        self._sizes = [2, self.most]
        # On the device once and for all: every array that a call has to move there costs microseconds.
        self._counts = [jax.device_put(np.int32(count)) for count in range(self.most + 1)]
        self._run = jax.jit(self._loop, donate_argnums=0)

    def split(self, n: int) -> list[int]:
        """How many updates each dispatch makes when `n` are due."""
        whole, rest = divmod(n, self.most)
        return [self.most] * whole + ([rest] if rest else [])

    def __call__(
        self, state: LearnerState, batches: Mapping[str, Any], count: int, inputs: Any
    ) -> tuple[LearnerState, Outcome]:
        """Make `count` updates on so many batches, one after the other in every array.

        The state that is passed in can no longer be used.
        """
        size = next(size for size in self._sizes if size >= count)
        arranged = each_array(batches, lambda array: _arranged(array, count, size))
        state, table, rows = self._run(state, arranged, self._counts[count], inputs)
        return state, Outcome(table, rows, count)

    def warm_up(self, state: LearnerState, inputs: Any) -> LearnerState:
        """Compile for every size, and make no update."""
        for size in self._sizes:
            batches = each_array(self._example, lambda array: _arranged(array, 1, size))  # noqa: B023
            state, _, _ = self._run(state, batches, self._counts[0], inputs)
        return state

    def metrics(self, outcomes: Sequence[Outcome]) -> dict[str, Deferred]:
        """The metrics of every update, in order."""
        pieces = [(outcome.table, outcome.count) for outcome in outcomes]
        return {name: Deferred(pieces, column) for column, name in enumerate(self._metrics)}

    def _loop(self, state: Any, batches: Any, count: jax.Array, inputs: Any) -> tuple[Any, jax.Array, jax.Array]:
        size = len(jax.tree_util.tree_leaves(batches)[0])

        def body(index: jax.Array, carry: Any) -> Any:
            state, table, rows = carry
            batch = jax.tree_util.tree_map(
                lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), batches
            )
            state, metrics, row = self._step(state, batch, inputs)
            table = table.at[index].set(jnp.stack([metrics[name].astype(jnp.float32) for name in self._metrics]))
            return state, table, None if row is None or rows is None else rows.at[index].set(row)

        table, rows = jnp.zeros((size, len(self._metrics))), jnp.zeros((size, self._rows)) if self._rows else None
        return jax.lax.fori_loop(0, count, body, (state, table, rows))


def each_array(arrays: Any, function: Callable[[Array], Array]) -> Any:
    """A function of each array of a tree of dicts and tuples: what `jax.tree.map` does, several times as quick."""
    if isinstance(arrays, Mapping):
        return {name: each_array(value, function) for name, value in cast("Mapping[str, Any]", arrays).items()}
    if isinstance(arrays, tuple):
        return tuple(each_array(value, function) for value in cast("tuple[Any, ...]", arrays))
    return None if arrays is None else function(arrays)


def padded(array: Array, size: int) -> Array:
    """The array with a leading axis of this size; what is added means nothing."""
    if len(array) == size:
        return array
    larger = np.empty((size, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def _arranged(array: Array, count: int, size: int) -> Array:
    """An array of `count` batches as one of `size`, with an axis for them."""
    rows = len(array) // count
    return padded(array, size * rows).reshape(size, rows, *array.shape[1:])
