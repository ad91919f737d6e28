"""A ring buffer of complete transitions, under numbers that never repeat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from rekindle.errors import InputError
from rekindle.experience import Array, Observations, Transitions
from rekindle.replay.rows import NumberedRows, Rows
from rekindle.spaces import ArraySpec

__all__ = ["Ring"]


class Ring(NumberedRows):
    """Stores the newest `capacity` transitions, one per row.

    The columns are `observation`, `action`, `reward`, `next_observation` and `status`, and additional columns of the
    agent. A Dict observation has a column for each of its parts, such as `observation.camera`.
    """

    def __init__(
        self, capacity: int, *, observation: ArraySpec | Mapping[str, ArraySpec], action: ArraySpec, **more: ArraySpec
    ) -> None:
        self._rows = Rows(
            capacity,
            {
                **_named("observation", observation),
                "action": action,
                "reward": ArraySpec(np.dtype(np.float64)),
                **_named("next_observation", observation),
                "status": ArraySpec(np.dtype(np.uint8)),
                **more,
            },
        )

    def __len__(self) -> int:
        """The number of stored rows."""
        return len(self._rows)

    def append(self, transitions: Transitions, **more: Array) -> None:
        """Store copies of a batch of transitions, in order; the oldest rows are overwritten."""
        rows = {
            **_named("observation", transitions.observations),
            "action": transitions.actions,
            "reward": transitions.rewards,
            **_named("next_observation", transitions.next_observations),
            "status": transitions.statuses,
            **more,
        }
        problem = self._rows.problem(rows, len(transitions))
        if problem is not None:
            raise InputError(f"these transitions do not fit the ring buffer: {problem}")
        self._rows.append([rows[name] for name in self._rows.columns], len(transitions))

    def take(self, numbers: ArrayLike) -> dict[str, Array]:
        """A copy of the rows with these numbers, in this order; a number may occur more than once."""
        return self._rows.take(numbers)

    def restore(self, first: int, columns: Mapping[str, ArrayLike]) -> None:
        """Replace all rows; the first has the number `first`."""
        self._rows.restore(first, columns)

    def clear(self, first: int) -> None:
        """Remove all rows; the next row has the number `first`."""
        self._rows.clear(first)


def _named(name: str, value: ArraySpec | Observations | Mapping[str, ArraySpec]) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {f"{name}.{key}": part for key, part in cast("Mapping[str, Any]", value).items()}
    return {name: value}
