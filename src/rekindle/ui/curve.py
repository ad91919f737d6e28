"""A curve of any length in bounded memory: neighbours are merged, and their least and greatest values kept."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Curve", "Extreme", "Points"]

_RECENT = 100


class Points(NamedTuple):
    """What can be drawn: for each stretch of env steps the last of them, and the values there."""

    steps: NDArray[np.float64]
    means: NDArray[np.float64]
    least: NDArray[np.float64]
    greatest: NDArray[np.float64]

    def between(self, first: float, last: float) -> Points:
        """The points in a range, with the neighbour on each side that a line comes from or goes to."""
        start = max(0, int(np.searchsorted(self.steps, first)) - 1)
        end = int(np.searchsorted(self.steps, last, side="right")) + 1
        return Points(*(array[start:end] for array in self))

    def thinned(self, most: int) -> Points:
        """At most so many points; neighbours are merged, and their least and greatest values kept."""
        count = len(self.steps)
        if count <= most:
            return self
        starts = np.linspace(0, count, most, endpoint=False).astype(int)
        sizes = np.diff(starts, append=count)
        return Points(
            self.steps[starts + sizes - 1],
            np.add.reduceat(self.means, starts) / sizes,
            np.minimum.reduceat(self.least, starts),
            np.maximum.reduceat(self.greatest, starts),
        )

    def smoothed(self, share: float) -> NDArray[np.float64]:
        """The means, each blended with its neighbours on both sides: so large a share of all points counts most."""
        width = share * len(self.steps)
        if width < 0.5:
            return self.means
        reach = min(int(3 * width), (len(self.steps) - 1) // 2)
        kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
        # At the ends there are fewer neighbours.
        weights = np.convolve(np.ones(len(self.steps)), kernel, "same")
        return np.convolve(self.means, kernel, "same") / weights


class Extreme(NamedTuple):
    """A value and where it was."""

    value: float
    step: int


class Curve:
    """Values by env step, of which at most `capacity` points (an even number) are kept.

    Values at one step (the episodes of an evaluation) are one point. When there are too many points, each two
    neighbours become one.

    >>> curve = Curve(capacity=4)
    >>> for step in range(8):
    ...     curve.add(step, float(step % 4))
    >>> curve.points().steps.tolist(), curve.points().greatest.tolist()
    ([1.0, 3.0, 5.0, 7.0], [1.0, 3.0, 1.0, 3.0])
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._table = np.empty((capacity, 5))
        """A row a point: last step, count, total, least, greatest."""
        self._count = 0
        self._stride = 1
        """How many steps with values a full point holds."""
        self._filled = 0
        self._recent = deque[float](maxlen=_RECENT)
        self._step = -1
        self._values, self._total = 0, 0.0
        """How many values the last step has, and their sum."""
        self._least: Extreme | None = None
        self._greatest: Extreme | None = None

    def __len__(self) -> int:
        return self._count

    def add(self, step: int, value: float) -> None:
        """Add a value; steps must not go back."""
        self._recent.append(value)
        is_new = step != self._step or not self._count
        if is_new:
            self._least, self._greatest = self.least, self.greatest
            self._step, self._values, self._total = step, 0, 0.0
        self._values += 1
        self._total += value
        if is_new and (self._filled == self._stride or not self._count):
            if self._count == self._capacity:
                self._merge()
            self._table[self._count] = (step, 0.0, 0.0, math.inf, -math.inf)
            self._count += 1
            self._filled = 0
        self._filled += is_new
        row = self._table[self._count - 1]
        row[0] = step
        row[1] += 1
        row[2] += value
        row[3] = min(row[3], value)
        row[4] = max(row[4], value)

    def _merge(self) -> None:
        pairs = self._table.reshape(-1, 2, 5)
        self._table[: len(pairs)] = np.column_stack(
            (pairs[:, 1, 0], pairs[:, :, 1].sum(1), pairs[:, :, 2].sum(1), pairs[:, :, 3].min(1), pairs[:, :, 4].max(1))
        )
        self._count = len(pairs)
        self._stride *= 2

    def points(self) -> Points:
        """Everything that is kept."""
        steps, counts, totals, least, greatest = self._table[: self._count].T.copy()
        return Points(steps, totals / counts, least, greatest)

    @property
    def last(self) -> float:
        """The value at the last step, the mean if there were several; NaN when there is none."""
        return self._total / self._values if self._values else math.nan

    @property
    def step(self) -> int | None:
        """The last step."""
        return self._step if self._count else None

    @property
    def recent_mean(self) -> float:
        """The mean of the last hundred values; NaN when there is none."""
        return math.fsum(self._recent) / len(self._recent) if self._recent else math.nan

    @property
    def least(self) -> Extreme | None:
        """The least value at a step, and the first step that had it."""
        if not self._values or (self._least is not None and self._least.value <= self.last):
            return self._least
        return Extreme(self.last, self._step)

    @property
    def greatest(self) -> Extreme | None:
        """The greatest value at a step, and the first step that had it."""
        if not self._values or (self._greatest is not None and self._greatest.value >= self.last):
            return self._greatest
        return Extreme(self.last, self._step)
