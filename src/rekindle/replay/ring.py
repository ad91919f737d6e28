"""A ring of transitions: the newest rows, column by column, under numbers that never repeat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.agent import Column
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import Array, Observations, Transitions

__all__ = ["Ring"]


class Ring:
    """Holds the newest `capacity` transitions; row `n` lives in slot `n % capacity` until it is overwritten.

    The columns are `observation`, `action`, `reward`, `next_observation` and `status`, and whatever else the agent
    names. A Dict observation has a column for each of its parts, such as `observation.camera`.
    """

    def __init__(
        self, capacity: int, *, observation: Column | Mapping[str, Column], action: Column, **more: Column
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity!r}: a ring holds at least 1 row")
        self.capacity = capacity
        self._columns: dict[str, Column] = {
            **_named("observation", observation),
            "action": action,
            "reward": Column(np.dtype(np.float64), ()),
            **_named("next_observation", observation),
            "status": Column(np.dtype(np.uint8), ()),
            **more,
        }
        # Zeros, not empty: the system hands out such pages only when they are written to.
        self._rows = {name: np.zeros((capacity, *column.shape), column.dtype) for name, column in self._columns.items()}
        self._first = self._end = 0

    @property
    def columns(self) -> Mapping[str, Column]:
        """The layout, by name."""
        return self._columns

    @property
    def first(self) -> int:
        """The number of the oldest row still held."""
        return self._first

    @property
    def end(self) -> int:
        """One past the number of the newest row."""
        return self._end

    def __len__(self) -> int:
        """How many rows are held."""
        return self._end - self._first

    def append(self, transitions: Transitions, **more: Array) -> None:
        """Remember a batch of transitions, by copy, in order; the oldest rows make room."""
        rows = {
            **_named("observation", transitions.observations),
            "action": transitions.actions,
            "reward": transitions.rewards,
            **_named("next_observation", transitions.next_observations),
            "status": transitions.statuses,
            **more,
        }
        problem = self._problem(rows, len(transitions))
        if problem is not None:
            raise InputError(f"these transitions do not fit the ring: {problem}")
        self._write(self._end, rows, len(transitions))
        self._end += len(transitions)
        self._first = max(self._first, self._end - self.capacity)

    def take(self, numbers: ArrayLike) -> dict[str, Array]:
        """A copy of the rows with these numbers, in this order; a number may occur more than once."""
        wanted: NDArray[np.int64] = np.asarray(numbers, np.int64)
        if wanted.size and not (self._first <= wanted.min() and wanted.max() < self._end):
            raise InputError(f"rows {wanted.min()} to {wanted.max()} were asked for, {self._held()} are held")
        slots = wanted % self.capacity
        return {name: rows.take(slots, axis=0) for name, rows in self._rows.items()}

    def read(self, first: int, end: int) -> dict[str, Array]:
        """A copy of the rows `first <= number < end`."""
        if not self._first <= first <= end <= self._end:
            raise InputError(f"rows {first} to {end - 1} were asked for, {self._held()} are held")
        start, count = first % self.capacity, end - first
        before_wrap = min(count, self.capacity - start)
        return {
            name: np.concatenate([rows[start : start + before_wrap], rows[: count - before_wrap]])
            for name, rows in self._rows.items()
        }

    def restore(self, first: int, columns: Mapping[str, ArrayLike]) -> None:
        """Hold exactly these rows, the first of them numbered `first`."""
        rows = {name: np.asarray(values) for name, values in columns.items()}
        count = min((len(values) if values.ndim else 0 for values in rows.values()), default=0)
        problem = self._problem(rows, count)
        if first < 0:
            problem = f"the first row is numbered {first}"
        elif count > self.capacity:
            problem = f"{count} rows do not fit a capacity of {self.capacity}"
        if problem is not None:
            raise StateError(f"these rows cannot be restored to the ring: {problem}")
        self._write(first, rows, count)
        self._first, self._end = first, first + count

    def clear(self, first: int) -> None:
        """Hold nothing; the next row is numbered `first`."""
        self.restore(
            first, {name: np.empty((0, *column.shape), column.dtype) for name, column in self._columns.items()}
        )

    def _write(self, first: int, rows: Mapping[str, Array], count: int) -> None:
        skipped = max(0, count - self.capacity)  # of a batch larger than the ring only the last rows remain
        start = (first + skipped) % self.capacity
        before_wrap = min(count - skipped, self.capacity - start)
        for name, held in self._rows.items():
            held[start : start + before_wrap] = rows[name][skipped : skipped + before_wrap]
            held[: count - skipped - before_wrap] = rows[name][skipped + before_wrap :]

    def _problem(self, rows: Mapping[str, Array], count: int) -> str | None:
        """Why rows cannot be written, if they cannot."""
        if rows.keys() != self._columns.keys():
            return f"they have the columns {sorted(rows)}, not {sorted(self._columns)}"
        for name, (dtype, shape) in self._columns.items():
            values = rows[name]
            if values.shape != (count, *shape):
                return f"{name} has the shape {values.shape}, not {(count, *shape)}"
            if values.dtype != dtype and not np.can_cast(
                values.dtype, dtype, "same_kind" if dtype.kind == "f" else "safe"
            ):
                return f"{name} is {values.dtype}, not {dtype}"
        return None

    def _held(self) -> str:
        return f"{self._first} to {self._end - 1}" if len(self) else "none"


def _named(name: str, value: Column | Observations | Mapping[str, Column]) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {f"{name}.{key}": part for key, part in cast("Mapping[str, Any]", value).items()}
    return {name: value}
