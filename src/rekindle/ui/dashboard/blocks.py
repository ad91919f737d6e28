"""A log of any length in bounded memory: rows are grouped in blocks with their minimum and maximum."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.ui.dashboard.rows import MOST_SERIES, Columns, Floats

__all__ = ["Axis", "Blocks", "Points", "grouping"]

Axis = Literal["step", "time"]

MOST_BLOCKS = 2**16
_FIRST_CAPACITY = 2**8
_LEAST, _MOST, _TOTAL, _COUNT = range(4)


class Points(msgspec.Struct, frozen=True):
    """The points of a chart: each with the mean, minimum and maximum of its rows."""

    rows: NDArray[np.int64]
    """The number of the first row of each point."""
    steps: Floats
    times: Floats
    mean: dict[str, Floats]
    least: dict[str, Floats]
    most: dict[str, Floats]


class Blocks:
    """Blocks of 2^level rows each; when there are too many, blocks are merged in pairs and the level increases."""

    def __init__(self, *, most: int = MOST_BLOCKS) -> None:
        self._most = most
        self.level = 0
        self.rows = 0
        self._capacity = min(_FIRST_CAPACITY, most)
        self._steps = np.empty(self._capacity)
        self._times = np.empty(self._capacity)
        self._series: dict[str, Floats] = {}

    def __len__(self) -> int:
        return (self.rows + (1 << self.level) - 1) >> self.level

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return 16 * self._capacity + sum(values.nbytes for values in self._series.values())

    @property
    def steps(self) -> Floats:
        """The env steps at the end of each block."""
        return self._steps[: len(self)]

    @property
    def times(self) -> Floats:
        """The wall time at the end of each block."""
        return self._times[: len(self)]

    def append(self, columns: Columns) -> None:
        """Add rows."""
        count = len(columns)
        if not count:
            return
        while (self.rows + count - 1) >> self.level >= self._most:
            self._halve()
        index = np.arange(self.rows, self.rows + count) >> self.level
        starts = np.flatnonzero(np.diff(index, prepend=-1))
        known = len(self)
        self.rows += count
        self._reserve(len(self))
        blocks = index[starts]
        ends = np.append(starts[1:], count) - 1
        # In hostile files steps may decrease or be missing, and clocks may go back; a chart needs increasing values.
        for axis, values in ((self._steps, columns.steps), (self._times, columns.times)):
            before = axis[known - 1] if known else -np.inf
            ascending = np.maximum(np.fmax.accumulate(values), before)
            axis[blocks] = np.nan_to_num(ascending[ends], nan=0.0, neginf=0.0)
        for values in self._series.values():
            _clear(values[:, known : len(self)])
        for name, series in columns.series.items():
            values = self._values(name)
            if values is None:
                continue
            seen = np.isfinite(series.mean)
            gathered = values[:, blocks]
            with np.errstate(all="ignore"):
                np.fmin(gathered[_LEAST], np.fmin.reduceat(series.least, starts), out=gathered[_LEAST])
                np.fmax(gathered[_MOST], np.fmax.reduceat(series.most, starts), out=gathered[_MOST])
                gathered[_TOTAL] += np.add.reduceat(np.where(seen, series.mean, 0.0), starts)
                gathered[_COUNT] += np.add.reduceat(seen, starts, dtype=np.float64)
            values[:, blocks] = gathered

    def _values(self, name: str) -> Floats | None:
        if name not in self._series:
            if len(self._series) == MOST_SERIES:
                return None
            self._series[name] = np.empty((4, self._capacity))
            _clear(self._series[name])
        return self._series[name]

    def _reserve(self, count: int) -> None:
        if count <= self._capacity:
            return
        while self._capacity < count:
            self._capacity = min(2 * self._capacity, self._most)
        self._steps = _widened(self._steps, self._capacity)
        self._times = _widened(self._times, self._capacity)
        for name, values in self._series.items():
            self._series[name] = _widened(values, self._capacity)

    def _halve(self) -> None:
        count = len(self)
        starts = np.arange(0, count, 2)
        ends = np.minimum(starts + 1, count - 1)
        half = len(starts)
        for axis in (self._steps, self._times):
            axis[:half] = axis[ends]
        for values in self._series.values():
            values[:, :half] = _reduced(values[:, :count], starts)
        self.level += 1

    def cut(self, blocks: int) -> None:
        """Keep only this many blocks from the first."""
        self.rows = min(self.rows, blocks << self.level)

    def points(self, most: int, *, first: int = 0, end: int | None = None, group: int | None = None) -> Points:
        """The blocks from `first` to `end` in about `most` points.

        Blocks that end at the same env step form one point: the episodes of an evaluation, or of parallel streams.
        """
        end = len(self) if end is None else end
        steps = self._steps[first:end]
        distinct = np.flatnonzero(np.diff(steps, prepend=-1.0))
        if group is None:
            group = grouping(len(distinct), len(steps), most)
        if group > 1:
            keys = (distinct + first) // group
            distinct = distinct[np.diff(keys, prepend=-1) != 0]
        starts = distinct + first
        ends = np.append(distinct[1:], len(steps)) - 1 + first if len(starts) else distinct
        reduced = {
            name: _reduced(values[:, first:end], distinct)
            for name, values in self._series.items()
            if len(starts) and values[_COUNT, first:end].any()
        }
        with np.errstate(all="ignore"):
            means = {name: values[_TOTAL] / values[_COUNT] for name, values in reduced.items()}
        return Points(
            rows=starts << self.level,
            steps=self._steps[ends],
            times=self._times[ends],
            mean=means,
            least={name: values[_LEAST] for name, values in reduced.items()},
            most={name: values[_MOST] for name, values in reduced.items()},
        )

    def group_for(self, most: int) -> int:
        """How many blocks form a point if there may be at most `most` points."""
        return grouping(int(np.count_nonzero(np.diff(self.steps, prepend=-1.0))), len(self), most)

    def between(self, axis: Axis, low: float, high: float) -> tuple[int, int]:
        """The blocks in a range, and one more on either side, so that lines reach the edges of a chart."""
        values = self.steps if axis == "step" else self.times
        first, last = np.searchsorted(values, [low, high])
        return max(0, int(first) - 1), min(len(self), int(last) + 2)


def grouping(distinct: int, blocks: int, most: int) -> int:
    """How many blocks form a point."""
    return 1 if distinct <= most else -(-blocks // most)


def _clear(values: Floats) -> None:
    values[:_TOTAL] = np.nan
    values[_TOTAL:] = 0.0


def _widened(values: Floats, capacity: int) -> Floats:
    wide = np.empty((*values.shape[:-1], capacity))
    wide[..., : values.shape[-1]] = values
    return wide


def _reduced(values: Floats, starts: NDArray[np.int64]) -> Floats:
    with np.errstate(all="ignore"):
        return np.stack(
            [
                np.fmin.reduceat(values[_LEAST], starts),
                np.fmax.reduceat(values[_MOST], starts),
                np.add.reduceat(values[_TOTAL], starts),
                np.add.reduceat(values[_COUNT], starts),
            ]
        )
