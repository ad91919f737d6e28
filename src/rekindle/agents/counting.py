"""Counters of agents: the updates that are due, and the mean loss of an episode."""

from __future__ import annotations

from typing import Any

from rekindle.agent import numbers_of
from rekindle.errors import StateError

__all__ = ["LossMean", "UpdateRatio", "saved_count"]

_MOST_UNREAD = 1_000
"""The number of losses that may stay on the device before they are read."""


class UpdateRatio:
    """Counts the updates that are due: `updates_each` for every `update_every` env steps after the warm-up."""

    def __init__(self, *, warmup_steps: int, update_every: int, updates_each: int) -> None:
        self._warmup_steps, self._every, self._each = warmup_steps, update_every, updates_each
        self.settled = 0
        """Updates made or skipped."""

    def due(self, env_steps: int) -> int:
        """The number of updates that are due."""
        return max(0, (env_steps - self._warmup_steps) // self._every * self._each - self.settled)

    def settle(self, n: int) -> None:
        """Count `n` updates as made or skipped."""
        self.settled += n

    def restart(self, env_steps: int) -> None:
        """Start another warm-up at `env_steps` env steps."""
        self.settled = env_steps // self._every * self._each


class LossMean:
    """The mean of losses; losses on a device are read only when the mean is needed."""

    def __init__(self) -> None:
        self._unread: list[Any] = []
        self._count, self._total = 0, 0.0

    def add(self, losses: Any) -> None:
        """Add a number or an array of numbers."""
        self._unread.append(losses)
        if len(self._unread) >= _MOST_UNREAD:
            self._read()

    def mean(self) -> float | None:
        """The mean of the losses added; None if there are none."""
        self._read()
        return self._total / self._count if self._count else None

    def clear(self) -> None:
        """Remove all losses."""
        self._unread.clear()
        self._count, self._total = 0, 0.0

    def state(self) -> list[float]:
        """The count and the sum, as saved."""
        self._read()
        return [self._count, self._total]

    @staticmethod
    def checked(state: Any) -> tuple[int, float]:
        """A saved state; raises `StateError`."""
        match state:
            case [int(count), int() | float() as total] if count >= 0:
                return count, float(total)
            case _:
                raise StateError(f"{state!r:.80} is not a count and a sum of losses")

    def load(self, checked: tuple[int, float]) -> None:
        """Continue from a checked state."""
        self._unread.clear()
        self._count, self._total = checked

    def _read(self) -> None:
        for losses in self._unread:
            for loss in numbers_of(losses):
                self._count += 1
                self._total += loss
        self._unread.clear()


def saved_count(state: Any, name: str) -> int:
    """A count in a saved state; raises `StateError`."""
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise StateError(f"{name} is {value!r:.80}, not a count")
    return value
