"""A curve of any length in bounded memory: neighbours are merged, and their minimum and maximum kept."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Curve", "Extreme", "Points"]

_RECENT = 100
_EMPTY = (0, 0.0, math.inf, -math.inf)


class Points(NamedTuple):
    """Points to draw: for each range of env steps its last step, and the values in it."""

    steps: NDArray[np.float64]
    means: NDArray[np.float64]
    least: NDArray[np.float64]
    greatest: NDArray[np.float64]

    def between(self, first: float, last: float) -> Points:
        """The points in a range, and one neighbour on each side so that lines continue to the edge."""
        start = max(0, int(np.searchsorted(self.steps, first)) - 1)
        end = int(np.searchsorted(self.steps, last, side="right")) + 1
        return Points(*(array[start:end] for array in self))

    def thinned(self, most: int) -> Points:
        """At most `most` points; neighbours are merged, and their minimum and maximum kept."""
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
        """The means, smoothed over neighbours on both sides; `share` is the window as a share of all points."""
        width = share * len(self.steps)
        if width < 0.5:
            return self.means
        reach = min(int(3 * width), (len(self.steps) - 1) // 2)
        kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
        # There are fewer neighbours at the ends.
        weights = np.convolve(np.ones(len(self.steps)), kernel, "same")
        return np.convolve(self.means, kernel, "same") / weights


class Extreme(NamedTuple):
    """A value, and the step at which it occurred."""

    value: float
    step: int


class Curve:
    """Values over env steps, reduced to fewer than `capacity` points (an even number).

    All values at one step (such as the episodes of an evaluation) form one point. When there are too many points,
    neighbours are merged in pairs.

    >>> curve = Curve(capacity=6)
    >>> for step in range(8):
    ...     curve.add(step, float(step % 4))
    >>> curve.points().steps.tolist(), curve.points().greatest.tolist()
    ([1.0, 3.0, 5.0, 7.0], [1.0, 3.0, 1.0, 3.0])
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._closed = np.empty((capacity - 2, 5))
        """Complete points: last step, count, sum, minimum, maximum."""
        self._closed_count = 0
        self._stride = 1
        """How many steps with values a point holds before it is complete."""
        self._filled = 0
        self._open: tuple[int, float, float, float] = _EMPTY
        """The last point: count, sum, minimum, maximum."""
        self._recent = deque[float](maxlen=_RECENT)
        self._step: int = -1
        self._values, self._total = 0, 0.0
        """The number of values at the last step, and their sum."""
        self._least: Extreme | None = None
        self._greatest: Extreme | None = None
        """The maximum over the steps before the last."""

    def __len__(self) -> int:
        return self._closed_count + bool(self._values)

    def add(self, step: int, value: float) -> None:
        """Add a value; steps must not decrease."""
        self._recent.append(value)
        if step == self._step and self._values:
            self._values += 1
            self._total += value
        else:
            self._least, self._greatest = self.least, self.greatest
            if self._filled == self._stride:
                self._close_point()
            self._filled += 1
            self._step, self._values, self._total = step, 1, value
        count, total, least, greatest = self._open
        self._open = (
            count + 1,
            total + value,
            value if value < least else least,
            value if value > greatest else greatest,
        )

    def _close_point(self) -> None:
        if self._closed_count == len(self._closed):
            # The open point holds as many steps as the others did, which is half of what a point holds from now on.
            pairs = self._closed.reshape(-1, 2, 5)
            last_steps, (counts, totals) = pairs[:, 1, 0], pairs[:, :, 1:3].sum(1).T
            merged = np.column_stack((last_steps, counts, totals, pairs[:, :, 3].min(1), pairs[:, :, 4].max(1)))
            self._closed[: len(merged)] = merged
            self._closed_count = len(merged)
            self._stride *= 2
        else:
            self._closed[self._closed_count] = (self._step, *self._open)
            self._closed_count += 1
            self._open = _EMPTY
            self._filled = 0

    def points(self) -> Points:
        """All points."""
        table = self._closed[: self._closed_count]
        if self._values:
            table = np.vstack((table, [(self._step, *self._open)]))
        steps, counts, totals, least, greatest = table.T
        return Points(steps, totals / counts, least, greatest)

    @property
    def last(self) -> float:
        """The value at the last step (the mean if there are several); NaN if there is none."""
        return self._total / self._values if self._values else math.nan

    @property
    def step(self) -> int | None:
        """The last step."""
        return self._step if self._values else None

    @property
    def recent_mean(self) -> float:
        """The mean of the last hundred values; NaN if there is none."""
        return math.fsum(self._recent) / len(self._recent) if self._recent else math.nan

    @property
    def least(self) -> Extreme | None:
        """The minimum, and the first step at which it occurred."""
        if not self._values or (self._least is not None and self._least.value <= self._total / self._values):
            return self._least
        return Extreme(self.last, self._step)

    @property
    def greatest(self) -> Extreme | None:
        """The maximum, and the first step at which it occurred."""
        if not self._values or (self._greatest is not None and self._greatest.value >= self._total / self._values):
            return self._greatest
        return Extreme(self.last, self._step)
