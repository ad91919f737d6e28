"""Metrics: windows that end at env step counts, and a store for lookups."""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import State, numbers_of
from rekindle.errors import InputError, StateError
from rekindle.events import MetricsFlushed, Summary

__all__ = ["EventStore", "MetricWindow"]


_MOST_UNREAD = 10_000
"""The number of values that a window keeps before it converts them."""
_FEW = 16
"""As many are converted at once, if they are plain numbers: the call that ends the window need not convert them all."""
_PLAIN = (float, int)


class MetricWindow:
    """Collects values by name until the window ends at an env step count.

    Values (numbers, arrays, values still on a device) are kept as they are until a result is needed.
    """

    def __init__(self) -> None:
        self._totals: dict[str, list[float]] = {}
        self._unread: list[tuple[str, dict[str, Any]]] = []
        """Prefixes, and the values whose names they belong to."""
        self._has_only_plain = True
        """Whether all of them are plain numbers, as far as that was looked at."""

    def add(self, name: str, value: Any) -> None:
        """Add a number or an array of numbers under a name."""
        self.add_all("", {name: value})

    def add_all(self, prefix: str, values: Mapping[str, Any]) -> None:
        """Add several values, with a prefix for their names."""
        unread = self._unread
        unread.append((prefix, dict(values)))
        if len(unread) >= _FEW and self._has_only_plain:
            if all(type(value) in _PLAIN for _, numbers in unread for value in numbers.values()):
                self.read()
            else:  # reading the others may have to wait for a device
                self._has_only_plain = False
        elif len(unread) > _MOST_UNREAD:
            self.read()

    def read(self) -> None:
        """Convert all pending values to numbers."""
        unread, self._unread, self._has_only_plain = self._unread, [], True
        found: defaultdict[str, list[float]] = defaultdict(list)
        for prefix, values in unread:
            for name, value in values.items():
                if type(value) is float or type(value) is int:
                    found[prefix + name].append(float(value))
                    continue
                try:
                    found[prefix + name].extend(numbers_of(value))
                except (TypeError, ValueError):
                    del values[name]
                    self._unread = unread  # the others must still be counted
                    raise InputError(f"the metric {prefix + name!r} is not a number: {value!r:.80}") from None
        for name, numbers in found.items():
            if numbers:
                self._count_in(name, numbers)

    def _count_in(self, name: str, numbers: list[float]) -> None:
        total = self._totals.setdefault(name, [0, 0.0, math.inf, -math.inf, 0.0])
        total[0] += len(numbers)
        # Add them in order, so that the result does not depend on when they are read; sum() does not promise that.
        total[1] = functools.reduce(operator.add, numbers, total[1])
        # min() and max() alone are not enough: a NaN must show, wherever it is.
        has_nan = math.isnan(total[1]) and any(map(math.isnan, (*numbers, total[2])))
        total[2] = math.nan if has_nan else min(total[2], *numbers)
        total[3] = math.nan if has_nan else max(total[3], *numbers)
        total[4] = numbers[-1]

    def non_finite_loss(self) -> str | None:
        """The name of a loss of the agent that is not finite in this window, if there is one."""
        for name, total in self._totals.items():
            if name.startswith("agent/") and "loss" in name and not math.isfinite(total[1]):
                return name
        return None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added since the window began."""
        return not self._totals and not self._unread

    def means(self) -> dict[str, float]:
        """The mean of every metric so far."""
        self.read()
        return {name: total[1] / total[0] for name, total in self._totals.items()}

    def flush(self, last: Mapping[str, float] = MappingProxyType({})) -> dict[str, Summary]:
        """Return the result of the window, with single values of its end by name, and start a new one."""
        self.read()
        totals, self._totals = self._totals, {}
        totals.update({name: [1, *[float(value)] * 4] for name, value in last.items()})
        return {
            name: Summary(mean=total / count, min=least, max=most, last=last, count=int(count))
            for name, (count, total, least, most, last) in sorted(totals.items())
        }

    def state(self) -> State:
        """The incomplete window."""
        self.read()
        return {name: np.array(total, np.float64) for name, total in self._totals.items()}

    def load_state(self, state: State) -> None:
        """Restore an incomplete window."""
        if any(np.shape(total) != (5,) for total in state.values()):
            raise StateError("not the state of a metric window: each entry has 5 numbers")
        self._totals = {name: np.asarray(total, np.float64).tolist() for name, total in state.items()}
        self._unread = []


class EventStore:
    """Looks up any metric: its latest value, its best value, its recent history. Safe to use from any thread."""

    def __init__(self, *, remembered: int = 10_000) -> None:
        self._remembered = remembered
        self._points: dict[str, deque[tuple[int, float]]] = {}
        self._least: dict[str, tuple[int, float]] = {}
        self._most: dict[str, tuple[int, float]] = {}
        self._guard = threading.Lock()

    def add(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Add the values of one window."""
        with self._guard:
            for name, value in values.items():
                if math.isnan(value):
                    continue
                point = (env_steps, value)
                self._points.setdefault(name, deque(maxlen=self._remembered)).append(point)
                if name not in self._least or value < self._least[name][1]:
                    self._least[name] = point
                if name not in self._most or value > self._most[name][1]:
                    self._most[name] = point

    @property
    def names(self) -> list[str]:
        """Every metric seen so far."""
        with self._guard:
            return sorted(self._points)

    def latest(self, name: str) -> float | None:
        """The newest value; None if there is none."""
        with self._guard:
            points = self._points.get(name)
            return points[-1][1] if points else None

    def best(self, name: str, *, mode: Literal["max", "min"] = "max") -> tuple[int, float] | None:
        """The step and value of the best window; the first one if several are equal."""
        with self._guard:
            return (self._most if mode == "max" else self._least).get(name)

    def history(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and values, oldest first; by default the last ten thousand."""
        with self._guard:
            points = list(self._points.get(name, ()))
        steps = np.array([step for step, _ in points], np.int64)
        return steps, np.array([value for _, value in points], np.float64)


def metrics_row(event: MetricsFlushed) -> dict[str, Any]:
    """One line of `metrics.jsonl`."""
    return {**msgspec.structs.asdict(event.stamp), "metrics": event.metrics}


def restore_store(store: EventStore, rows: Sequence[Mapping[str, Any]]) -> None:
    """Fill a store from the rows of `metrics.jsonl`."""
    for row in rows:
        metrics = cast("dict[str, dict[str, float | None]]", row["metrics"])
        means = {name: mean for name, summary in metrics.items() if (mean := summary["mean"]) is not None}
        store.add(row["env_steps"], means)
