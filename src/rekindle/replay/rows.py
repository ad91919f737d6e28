"""Numbered rows with any columns in fixed memory; new rows overwrite the oldest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import Array
from rekindle.replay.columns import problem_with
from rekindle.spaces import ArraySpec

__all__ = ["NumberedRows", "Rows"]


class Rows:
    """Stores the newest `capacity` rows; row `n` is in slot `n % capacity` until it is overwritten."""

    def __init__(self, capacity: int, columns: Mapping[str, ArraySpec]) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity!r}: there must be room for at least 1 row")
        self.capacity = capacity
        self.columns = dict(columns)
        self.slots = {
            # np.zeros, not np.empty: the system allocates such pages only when they are written.
            name: np.zeros((capacity, *column.shape), column.dtype)
            for name, column in columns.items()
        }
        """The columns in memory, with one entry per slot."""
        self.first = self.end = 0

    def __len__(self) -> int:
        """The number of stored rows."""
        return self.end - self.first

    @property
    def nbytes(self) -> int:
        """The bytes of all slots, used or not."""
        return sum(column.nbytes for column in self.slots.values())

    def append(self, columns: Sequence[Array], count: int) -> None:
        """Add copies of rows that fit (see `problem`), in order; the columns are in the order of `columns`."""
        self._write(self.end, columns, count)
        self.extend(count)

    def extend(self, count: int) -> None:
        """Count rows that were written after the last one; the oldest are overwritten."""
        self.end += count
        if self.end - self.first > self.capacity:
            self.first = self.end - self.capacity

    def take(self, numbers: ArrayLike) -> dict[str, Array]:
        """A copy of the rows with these numbers, in this order; a number may occur more than once."""
        wanted: NDArray[np.int64] = np.asarray(numbers, np.int64)
        if wanted.size and not (self.first <= wanted.min() and wanted.max() < self.end):
            raise InputError(f"rows {wanted.min()} to {wanted.max()} were requested, {self._held()} are stored")
        slots = wanted % self.capacity
        return {name: held.take(slots, axis=0) for name, held in self.slots.items()}

    def read(self, first: int, end: int) -> dict[str, Array]:
        """A copy of the rows `first <= number < end`."""
        if not self.first <= first <= end <= self.end:
            raise InputError(f"rows {first} to {end - 1} were requested, {self._held()} are stored")
        start, count = first % self.capacity, end - first
        before_wrap = min(count, self.capacity - start)
        return {
            name: np.concatenate([held[start : start + before_wrap], held[: count - before_wrap]])
            for name, held in self.slots.items()
        }

    def checked(self, first: int, columns: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """The columns as arrays that can be stored, if the first row has the number `first`; raises `StateError`."""
        rows = {name: np.asarray(values) for name, values in columns.items()}
        count = min((len(values) if values.ndim else 0 for values in rows.values()), default=0)
        problem = self.problem(rows, count)
        if first < 0:
            problem = f"the first row is numbered {first}"
        elif count > self.capacity:
            problem = f"{count} rows do not fit a capacity of {self.capacity}"
        if problem is not None:
            raise StateError(f"these rows cannot be restored: {problem}")
        return rows

    def restore(self, first: int, columns: Mapping[str, ArrayLike]) -> None:
        """Replace all rows; the first has the number `first`."""
        rows = self.checked(first, columns)
        count = len(next(iter(rows.values())))
        self._write(first, [rows[name] for name in self.slots], count)
        self.first, self.end = first, first + count

    def clear(self, first: int) -> None:
        """Remove all rows; the next row has the number `first`."""
        self.first = self.end = first

    def problem(self, rows: Mapping[str, Array], count: int) -> str | None:
        """Why these are not `count` rows of this layout; None if they are."""
        if rows.keys() != self.columns.keys():
            return f"they have the columns {sorted(rows)}, not {sorted(self.columns)}"
        for name, column in self.columns.items():
            problem = problem_with(rows[name], column, name, count)
            if problem is not None:
                return problem
        return None

    def span(self, first: int, end: int) -> slice | NDArray[np.int64]:
        """The slots of the rows `first <= number < end`, at most `capacity` of them."""
        start = first % self.capacity
        if start + end - first <= self.capacity:
            return slice(start, start + end - first)
        return np.arange(first, end) % self.capacity

    def _write(self, first: int, columns: Sequence[Array], count: int) -> None:
        start = first % self.capacity
        if start + count <= self.capacity:
            span = slice(start, start + count)
            for held, values in zip(self.slots.values(), columns, strict=True):
                held[span] = values
            return
        skipped = max(0, count - self.capacity)  # if there is not enough room, only the last rows remain
        start = (first + skipped) % self.capacity
        before_wrap = min(count - skipped, self.capacity - start)
        for held, values in zip(self.slots.values(), columns, strict=True):
            held[start : start + before_wrap] = values[skipped : skipped + before_wrap]
            held[: count - skipped - before_wrap] = values[skipped + before_wrap :]

    def _held(self) -> str:
        return f"{self.first} to {self.end - 1}" if len(self) else "none"


class NumberedRows:
    """The interface of a replay journal to a buffer that keeps its rows in `_rows`; abstract."""

    _rows: Rows

    @property
    def capacity(self) -> int:
        """The largest number of rows."""
        return self._rows.capacity

    @property
    def columns(self) -> Mapping[str, ArraySpec]:
        """The columns by name."""
        return self._rows.columns

    @property
    def first(self) -> int:
        """The number of the oldest stored row."""
        return self._rows.first

    @property
    def end(self) -> int:
        """The number after that of the newest row."""
        return self._rows.end

    def read(self, first: int, end: int) -> dict[str, Array]:
        """A copy of the rows `first <= number < end`."""
        return self._rows.read(first, end)
