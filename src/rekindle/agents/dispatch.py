"""Make all updates that are due in one call into compiled code, bit-equal to one update after the other.

A compiled loop makes any number of updates, on batches padded to one of two sizes. So two compilations are enough for
every number of updates, and a warm-up runs the loop with none.

Updates on images are dispatched one by one, without a loop: a dispatch costs little beside such an update, and on a CPU
XLA is 25 times slower with a convolution inside a loop, which a user's network may contain.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.compiled import keep_compiled_code
from rekindle.agents.xla import entry, with_entry
from rekindle.experience import Array
from rekindle.signal_stack import use_signal_stack

__all__ = ["Deferred", "Dispatch", "Outcome", "Watched", "each_array", "padded"]

# On a CPU, compute on the calling thread: it needs the result at once, so another thread would only add the cost of
# switching. This applies to the whole process, and only if JAX was not used before.
jax.config.update("jax_cpu_enable_async_dispatch", False)
keep_compiled_code()
use_signal_stack()

LearnerState = TypeVar("LearnerState")

Step = Callable[[LearnerState, Any, Any], tuple[LearnerState, dict[str, jax.Array], jax.Array | None]]
"""One update: from a state, a batch and other inputs to the new state, metrics, and a number for each row of the batch
(or None)."""

_FEW, _MANY = 8, 64
_SMALL_BATCH = 1 << 17
"""Bytes of a batch up to which padding to `_MANY` batches costs nothing."""


class Deferred:
    """One number per update, left on the device until it is read."""

    __slots__ = ("_column", "_outcomes")

    def __init__(self, outcomes: Sequence[Outcome], column: int) -> None:
        self._outcomes, self._column = outcomes, column

    def numbers(self) -> list[float]:
        """The numbers; waits for the device."""
        return [row[self._column] for outcome in self._outcomes for row in outcome.table]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numbers(), dtype or np.float64)


class Outcome:
    """The results of a dispatch."""

    def __init__(self, table: jax.Array, rows: jax.Array | None, count: int) -> None:
        self._table, self._rows = table, rows
        self.count = count
        """Updates made; the caller may lower it, if the last steps changed nothing."""

    @functools.cached_property
    def table(self) -> list[list[float]]:
        """The metrics of each update; waits for the device."""
        return np.asarray(self._table).tolist()[: self.count]

    def rows(self) -> Array:
        """The numbers of each row of each batch (none if the steps return none); waits for the device."""
        return np.empty((self.count, 0)) if self._rows is None else np.asarray(self._rows)[: self.count]


class Watched:
    """A dispatch, with everything that is needed to repeat its updates."""

    def __init__(
        self,
        dispatch: Dispatch[Any],
        run: Callable[..., Any],
        before: Any,
        packed: list[Array],
        count: int,
        inputs: Any,
        after: Any,
        table: Array,
    ) -> None:
        self._dispatch, self._run, self._before, self._packed = dispatch, run, before, packed
        self.count, self.inputs, self.after = count, inputs, after
        self.metrics = [dict(zip(dispatch.metric_names, row, strict=True)) for row in table[:count].tolist()]
        """The metrics of each update."""

    def update(self, index: int) -> tuple[Callable[..., Any], dict[str, Any]]:
        """One of its updates as a pure function, and its arguments."""
        copy = jax.tree_util.tree_map(np.array, self._before)
        state = self._dispatch.replayed(self._run, copy, self._packed, index, self.inputs)
        step, batch = self._dispatch.step_of(self._packed, index)
        return step, {"state": state, "batch": batch, "inputs": self.inputs}


class Dispatch(Generic[LearnerState]):
    """Makes updates, many in one call, and reuses the memory of the state for the next state."""

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

        `rows` is how many numbers a step returns beside its metrics; `most` limits the updates in a dispatch: with 1,
        there is no loop.
        """
        self._step, self._metrics, self._rows = step, list(metrics), rows
        self._example, self._packing = example, _Packing(example)
        batch_bytes = sum(array.nbytes for array in jax.tree_util.tree_leaves(example))
        many = _MANY if batch_bytes <= _SMALL_BATCH else _FEW
        self.most = min(many, most or many)
        """The most updates in one dispatch."""
        # No size of 1: a loop over a single batch compiles to other code, whose results differ in the last bits.
        self._sizes = [2, self.most] if self.most > 1 else [1]
        # On the device once and for all: every array that a call has to move there costs microseconds.
        self._counts = [jax.device_put(np.int32(count)) for count in range(self.most + 1)]
        self._run = jax.jit(self._loop if self.most > 1 else self._once, donate_argnums=0)

    def split(self, n: int) -> list[int]:
        """How many updates each dispatch makes when `n` are due."""
        whole, rest = divmod(n, self.most)
        return [self.most] * whole + ([rest] if rest else [])

    def __call__(
        self, state: LearnerState, batches: Mapping[str, Any], count: int, inputs: Any
    ) -> tuple[LearnerState, Outcome]:
        """Make `count` updates, one on each of `count` batches, which are concatenated in every array.

        The state that is passed in cannot be used afterwards.
        """
        size = self._sizes[0] if count <= self._sizes[0] else self.most
        packed = self._packing.pack(batches, count, size)
        state, table, rows = self._run(state, packed, self._counts[count], inputs)
        return state, Outcome(table, rows, count)

    def warm_up(self, state: LearnerState, inputs: Any) -> LearnerState:
        """Compile for every size, and make no update."""
        if self.most == 1:
            copy = jax.tree_util.tree_map(jnp.copy, state)
            self._run(copy, self._packing.pack(self._example, 1, 1), self._counts[1], inputs)
            return state
        for size in self._sizes:
            packed = self._packing.pack(self._example, 1, size)
            state, _, _ = self._run(state, packed, self._counts[0], inputs)
        return state

    def watch(self, observer: Callable[[Watched], None]) -> None:
        """Call a function after every dispatch from now on; it costs a copy of the state each time."""
        run = self._run

        def watched(state: Any, packed: list[Array], count: Any, inputs: Any) -> tuple[Any, ...]:
            before = jax.tree_util.tree_map(np.array, state)
            done = run(state, packed, count, inputs)
            observer(Watched(self, run, before, packed, int(count), inputs, done[0], np.asarray(done[1])))
            return done

        self._run = watched

    def metrics(self, outcomes: Sequence[Outcome]) -> dict[str, Deferred]:
        """The metrics of every update, in order."""
        return {name: Deferred(outcomes, column) for column, name in enumerate(self._metrics)}

    @property
    def metric_names(self) -> list[str]:
        """The names of the metrics."""
        return self._metrics

    def replayed(self, run: Callable[..., Any], state: Any, packed: list[Array], count: int, inputs: Any) -> Any:
        """The state after the first `count` updates of a dispatch; the arguments are those of a `Watched`."""
        return run(state, packed, self._counts[count], inputs)[0] if count else state

    def step_of(self, packed: list[Array], index: int) -> tuple[Callable[..., Any], Any]:
        """One update of a dispatch as a function of `state`, `batch` and `inputs`, and its batch."""
        batch = self._packing.unpack([jnp.asarray(array[index]) for array in packed])

        def step(state: Any, batch: Any, inputs: Any) -> Any:
            return self._step(state, batch, inputs)

        return step, jax.tree_util.tree_map(np.asarray, batch)

    def _loop(self, state: Any, packed: list[jax.Array], count: jax.Array, inputs: Any) -> tuple[Any, ...]:
        size = len(packed[0])

        def body(index: jax.Array, carry: Any) -> Any:
            state, table, rows = carry
            state, numbers, row = self._update(state, [entry(array, index) for array in packed], inputs)
            table = with_entry(table, index, numbers)
            return state, table, None if row is None or rows is None else with_entry(rows, index, row)

        table, rows = jnp.zeros((size, len(self._metrics))), jnp.zeros((size, self._rows)) if self._rows else None
        return jax.lax.fori_loop(0, count, body, (state, table, rows))

    def _once(self, state: Any, packed: list[jax.Array], _: jax.Array, inputs: Any) -> tuple[Any, ...]:
        state, numbers, row = self._update(state, [array[0] for array in packed], inputs)
        return state, numbers[None], None if row is None else row[None]

    def _update(self, state: Any, batch: list[jax.Array], inputs: Any) -> tuple[Any, jax.Array, jax.Array | None]:
        state, metrics, row = self._step(state, self._packing.unpack(batch), inputs)
        return state, jnp.stack([metrics[name].astype(jnp.float32) for name in self._metrics]), row


class _Packing:
    """Packs the numbers of a batch into one array: every array that a call has to move costs microseconds."""

    def __init__(self, example: Mapping[str, Any]) -> None:
        leaves, self._structure = jax.tree_util.tree_flatten(example)
        is_flat = all(value is None or isinstance(value, np.ndarray) for value in example.values())
        self._names = sorted(name for name in example if example[name] is not None) if is_flat else None
        """For a batch that is a dict of arrays: its leaves in JAX's order, which JAX is slow to find."""
        self._shapes = [leaf.shape for leaf in leaves]
        self._places: list[tuple[bool, slice] | None] = []
        """For each array, whether it has floats, and its place in the packed array; None for others, such as bytes."""
        self._width = 0
        for leaf in leaves:
            # JAX converts both kinds to 32 bits.
            is_float = leaf.dtype.kind == "f"
            fits = leaf.size and (is_float or str(leaf.dtype) in {"int32", "int64"})
            end = self._width + (leaf.size if fits else 0)
            self._places.append((is_float, slice(self._width, end)) if fits else None)
            self._width = end

    def pack(self, batches: Mapping[str, Any], count: int, size: int) -> list[Array]:
        """Pack the concatenated arrays of `count` batches into arrays with a leading axis of `size` batches."""
        whole = np.empty((size, self._width), np.int32)
        floats = whole.view(np.float32)
        packed = [whole] if self._width else []
        names = self._names
        leaves = jax.tree_util.tree_leaves(batches) if names is None else [batches[name] for name in names]
        for leaf, place in zip(leaves, self._places, strict=True):
            if place is None:
                packed.append(_arranged(leaf, count, size))
                continue
            is_float, span = place
            numbers = floats if is_float else whole
            if count == 1:  # the same result, faster
                numbers[0][span] = leaf.ravel()
            else:
                numbers[:count, span] = leaf.reshape(count, -1)
        return packed

    def unpack(self, batch: list[jax.Array]) -> Any:
        """One batch in its original form."""
        others = iter(batch[1:] if self._width else batch)
        leaves: list[jax.Array] = []
        for place, shape in zip(self._places, self._shapes, strict=True):
            if place is None:
                leaves.append(next(others))
                continue
            is_float, span = place
            part = batch[0][span].reshape(shape)
            leaves.append(jax.lax.bitcast_convert_type(part, jnp.float32) if is_float else part)
        return jax.tree_util.tree_unflatten(self._structure, leaves)


def each_array(arrays: Any, function: Callable[[Array], Array]) -> Any:
    """Apply a function to each array of a tree of dicts and tuples: `jax.tree.map`, several times as fast."""
    if isinstance(arrays, Mapping):
        return {name: each_array(value, function) for name, value in cast("Mapping[str, Any]", arrays).items()}
    if isinstance(arrays, tuple):
        return tuple(each_array(value, function) for value in cast("tuple[Any, ...]", arrays))
    return None if arrays is None else function(arrays)


def padded(array: Array, size: int) -> Array:
    """The array with a leading axis of this size; the added values are undefined."""
    if len(array) == size:
        return array
    # In JAX's dtype: casting uninitialised 64-bit values later could overflow, with a warning.
    larger = np.empty((size, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype))
    larger[: len(array)] = array
    return larger


def _arranged(array: Array, count: int, size: int) -> Array:
    """The concatenated arrays of `count` batches, as an array with a leading axis of `size` batches."""
    rows = len(array) // count
    return padded(array, size * rows).reshape(size, rows, *array.shape[1:])
