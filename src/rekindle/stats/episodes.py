"""Episodes: records, aggregators over many records, and the report of an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import isfinite, isnan, nan, sqrt
from typing import Any, ClassVar, Literal, Protocol, Self, cast, runtime_checkable

import msgspec
import numpy as np

from rekindle.agent import State, Stateful
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import EpisodeStatus
from rekindle.markup import notebook_page, table

__all__ = [
    "Aggregator",
    "EpisodeRecord",
    "EvalReport",
    "Extra",
    "Last",
    "Length",
    "Max",
    "Mean",
    "Min",
    "RollingMean",
    "Source",
    "StatsTracker",
    "Std",
    "TotalReward",
]


class EpisodeRecord(msgspec.Struct, frozen=True):
    """One finished episode: its undiscounted return, its length, how it ended, and extra numbers by name."""

    total_reward: float
    length: int
    status: EpisodeStatus
    extras: dict[str, float] = {}

    def row(self) -> dict[str, Any]:
        """The record as plain JSON values; a number that is not finite becomes None."""
        return {
            "total_reward": _finite(self.total_reward),
            "length": int(self.length),
            "status": self.status.label,
            "extras": {name: _finite(value) for name, value in self.extras.items()},
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> EpisodeRecord:
        """The record from the result of `row()`; None becomes NaN, and other keys are ignored."""
        try:
            fields = msgspec.convert(row, _Row)
        except msgspec.ValidationError as error:
            raise InputError(f"not the row of an episode: {error}") from None
        return cls(
            total_reward=_number(fields.total_reward),
            length=fields.length,
            status=EpisodeStatus[fields.status.upper()],
            extras={name: _number(value) for name, value in fields.extras.items()},
        )


class _Row(msgspec.Struct):
    total_reward: float | None
    length: int
    status: Literal["continuing", "terminated", "truncated"]
    extras: dict[str, float | None] = {}


def _finite(value: float) -> float | None:
    return float(value) if isfinite(value) else None


def _number(value: float | None) -> float:
    return nan if value is None else value


@runtime_checkable
class Aggregator(Stateful, Protocol):
    """Combines many numbers into one."""

    def update(self, value: float) -> None:
        """Add a number."""
        ...

    @property
    def value(self) -> float:
        """The aggregate so far; NaN without numbers."""
        ...

    def reset(self) -> None:
        """Remove all numbers."""
        ...


class Mean:
    """The mean of all values."""

    def __init__(self) -> None:
        self.reset()

    def update(self, value: float) -> None:
        """Add a number."""
        self._count += 1
        self._total += float(value)

    @property
    def value(self) -> float:
        """The mean so far; NaN without numbers."""
        return self._total / self._count if self._count else nan

    def reset(self) -> None:
        """Remove all numbers."""
        self._count, self._total = 0, 0.0

    def state(self) -> State:
        """The count and the sum."""
        return {"kind": "mean", "count": self._count, "total": self._total}

    def load_state(self, state: State) -> None:
        """Restore a saved state."""
        self._count, self._total = _fields(state, "mean", count=int, total=float)


class _Kept(ABC):
    """Keeps one of the values."""

    _kind: ClassVar[str]

    @staticmethod
    @abstractmethod
    def _replaces(value: float, kept: float) -> bool:
        """Whether a new value replaces the one kept."""

    def __init__(self) -> None:
        self.reset()

    def update(self, value: float) -> None:
        """Add a number."""
        if self._replaces(value, self._value) or isnan(self._value):
            self._value = float(value)

    @property
    def value(self) -> float:
        """The value kept; NaN without numbers."""
        return self._value

    def reset(self) -> None:
        """Remove all numbers."""
        self._value = nan

    def state(self) -> State:
        """The value kept."""
        return {"kind": self._kind, "value": self._value}

    def load_state(self, state: State) -> None:
        """Restore a saved state."""
        (self._value,) = _fields(state, self._kind, value=float)


class Max(_Kept):
    """The maximum."""

    _kind = "max"

    @staticmethod
    def _replaces(value: float, kept: float) -> bool:
        return value > kept


class Min(_Kept):
    """The minimum."""

    _kind = "min"

    @staticmethod
    def _replaces(value: float, kept: float) -> bool:
        return value < kept


class Last(_Kept):
    """The newest value."""

    _kind = "last"

    @staticmethod
    def _replaces(value: float, kept: float) -> bool:  # noqa: ARG004 - the newest always does
        return True


class RollingMean:
    """The mean of the newest `window` values."""

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ConfigError(f"RollingMean: window must be at least 1, got {window}")
        self._window = window
        self._values = deque[float](maxlen=window)

    def update(self, value: float) -> None:
        """Add a number."""
        self._values.append(float(value))

    @property
    def value(self) -> float:
        """The mean of the window; NaN without numbers."""
        # Summed each time: a running sum would include rounding errors of values that a restored window never had.
        return sum(self._values) / len(self._values) if self._values else nan

    def reset(self) -> None:
        """Remove all numbers."""
        self._values.clear()

    def state(self) -> State:
        """The window, oldest value first."""
        return {"kind": "rolling_mean", "window": self._window, "values": np.array(self._values, np.float64)}

    def load_state(self, state: State) -> None:
        """Restore a saved state; the window must have the same size."""
        window, values = _fields(state, "rolling_mean", window=int, values=np.ndarray)
        if window != self._window:
            raise StateError(f"the saved window is {window}, this RollingMean has {self._window}")
        if values.dtype != np.float64 or values.ndim != 1 or len(values) > window:
            raise StateError(f"'values' must be up to {window} float64, got {values.dtype} {values.shape}")
        self._values = deque[float](values.tolist(), maxlen=window)


class Std:
    """The population standard deviation (divided by n, not n - 1) of all values, by Welford's method."""

    def __init__(self) -> None:
        self.reset()

    def update(self, value: float) -> None:
        """Add a number."""
        number = float(value)
        self._count += 1
        difference = number - self._mean
        self._mean += difference / self._count
        # Both factors have the same sign, unless they overflow.
        self._squares += abs(difference * (number - self._mean))

    @property
    def value(self) -> float:
        """The deviation so far: 0 for one value, NaN without numbers."""
        return sqrt(self._squares / self._count) if self._count else nan

    def reset(self) -> None:
        """Remove all numbers."""
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def state(self) -> State:
        """The count, the mean and the sum of squared differences from it."""
        return {"kind": "std", "count": self._count, "mean": self._mean, "squares": self._squares}

    def load_state(self, state: State) -> None:
        """Restore a saved state."""
        count, mean, squares = _fields(state, "std", count=int, mean=float, squares=float)
        if squares < 0:
            raise StateError(f"'squares' of a 'std' state must not be negative, got {squares}")
        self._count, self._mean, self._squares = count, mean, squares


def _fields(state: Any, kind: str, **types: type) -> list[Any]:
    if not isinstance(state, dict):
        raise StateError(f"the state of a {kind!r} must be a dict, got {type(state).__name__}")
    fields = cast("State", state)
    saved = fields.get("kind")
    if not isinstance(saved, str) or saved != kind:
        raise StateError(f"expected the state of a {kind!r}, got that of a {saved!r:.80}")
    if set(fields) != {"kind", *types}:
        raise StateError(f"a {kind!r} state has {_listed(types)} beside its kind, got {_listed(fields)}")
    for name, expected in types.items():
        value = fields[name]
        if type(value) is not expected:
            raise StateError(f"{name!r} of a {kind!r} state must be {expected.__name__}, got {value!r:.80}")
        if expected is int and value < 0:
            raise StateError(f"{name!r} of a {kind!r} state must not be negative, got {value}")
    return [fields[name] for name in types]


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(sorted(repr(name) for name in names)) or "nothing"


Source = Callable[[EpisodeRecord], float | None]
"""Reads a number from a record; returns None if the episode does not have it."""


class TotalReward(msgspec.Struct, frozen=True):
    """Reads the return of an episode."""

    def __call__(self, record: EpisodeRecord) -> float:
        """The return of this episode."""
        return record.total_reward


class Length(msgspec.Struct, frozen=True):
    """Reads the number of steps of an episode."""

    def __call__(self, record: EpisodeRecord) -> float:
        """The steps of this episode."""
        return record.length


class Extra(msgspec.Struct, frozen=True):
    """Reads an extra by its name; an episode without it is skipped."""

    key: str

    def __call__(self, record: EpisodeRecord) -> float | None:
        """The number, or None if there is none."""
        return record.extras.get(self.key)


class StatsTracker:
    """Named aggregates over episodes; starts with the means `episode_reward` and `episode_length`.

    >>> tracker = StatsTracker().add("best", TotalReward(), Max()).add("loss", Extra("loss"), RollingMean(9))
    >>> tracker.update(EpisodeRecord(3.0, 20, EpisodeStatus.TERMINATED, {"loss": 0.5}))
    >>> tracker.update(EpisodeRecord(1.0, 10, EpisodeStatus.TRUNCATED))
    >>> tracker.summary()
    {'episode_reward': 2.0, 'episode_length': 15.0, 'best': 3.0, 'loss': 0.5}
    """

    def __init__(self) -> None:
        self._stats: dict[str, tuple[Source, Aggregator]] = {
            "episode_reward": (TotalReward(), Mean()),
            "episode_length": (Length(), Mean()),
        }

    @classmethod
    def empty(cls) -> Self:
        """A tracker without the two default statistics."""
        tracker = cls()
        tracker._stats.clear()
        return tracker

    def add(self, name: str, source: Source, aggregator: Aggregator) -> Self:
        """Track another number, and return the tracker."""
        if name in self._stats:
            raise ConfigError(f"the stat {name!r} exists; pick another name, or start from empty()")
        self._stats[name] = (source, aggregator)
        return self

    def update(self, record: EpisodeRecord) -> None:
        """Add an episode; a statistic whose source returns None or NaN skips it."""
        # Call all sources first, so that if one raises, every aggregate is unchanged.
        values: list[tuple[Aggregator, float]] = []
        for source, aggregator in self._stats.values():
            value = source(record)
            if value is not None and not isnan(value):
                values.append((aggregator, float(value)))
        for aggregator, value in values:
            aggregator.update(value)

    def summary(self) -> dict[str, float]:
        """The value of each statistic by name, in the order of addition; NaN for one without values."""
        return {name: aggregator.value for name, (_, aggregator) in self._stats.items()}

    def reset(self) -> None:
        """Remove all episodes."""
        for _, aggregator in self._stats.values():
            aggregator.reset()

    def state(self) -> State:
        """The state of each aggregator by the name of its stat."""
        return {name: aggregator.state() for name, (_, aggregator) in self._stats.items()}

    def load_state(self, state: State) -> None:
        """Restore a saved state; the statistics must have the same names and kinds."""
        if not isinstance(cast("Any", state), dict):
            raise StateError(f"the state of a StatsTracker must be a dict, got {type(state).__name__}")
        if state.keys() != self._stats.keys():
            unknown, missing = state.keys() - self._stats.keys(), self._stats.keys() - state.keys()
            raise StateError(f"stats saved but not here: {_listed(unknown)}; here but not saved: {_listed(missing)}")
        before = self.state()
        for name, (_, aggregator) in self._stats.items():
            try:
                aggregator.load_state(state[name])
            except StateError as error:
                for restored, (_, changed) in self._stats.items():
                    changed.load_state(before[restored])
                raise StateError(f"stat {name!r}: {error}") from None


class EvalReport(msgspec.Struct, frozen=True):
    """The result of an evaluation; `str()` formats it as a table."""

    total_steps: int
    n_episodes: int
    stats: dict[str, float]

    @classmethod
    def of(cls, records: Iterable[EpisodeRecord], total_steps: int) -> EvalReport:
        """Mean, std, min and max of return and length, and the number of terminated and truncated episodes."""
        tracker = StatsTracker.empty()
        sources: dict[str, Source] = {"episode_reward": TotalReward(), "episode_length": Length()}
        for name, source in sources.items():
            tracker.add(f"{name}_mean", source, Mean()).add(f"{name}_std", source, Std())
            tracker.add(f"{name}_min", source, Min()).add(f"{name}_max", source, Max())
        statuses: list[EpisodeStatus] = []
        for record in records:
            tracker.update(record)
            statuses.append(record.status)
        counts = {status.label: float(statuses.count(status)) for status in EpisodeStatus}
        return cls(total_steps=total_steps, n_episodes=len(statuses), stats={**tracker.summary(), **counts})

    def _repr_html_(self) -> str:
        title = f"<b>evaluation</b> at step {self.total_steps:,}, episodes: {self.n_episodes:,}"
        rows = [(name, f"{value:.6g}") for name, value in self.stats.items()]
        return notebook_page(title, table(("stat", "value"), rows))

    def __str__(self) -> str:
        """A headline, then one line per statistic with aligned names and numbers."""
        numbers = {name: f"{value:.6g}" for name, value in self.stats.items()}
        left, right = max(map(len, numbers), default=0), max(map(len, numbers.values()), default=0)
        lines = [f"  {name:<{left}}  {number:>{right}}" for name, number in numbers.items()]
        return "\n".join([f"evaluation at step {self.total_steps}, episodes: {self.n_episodes}", *lines])
