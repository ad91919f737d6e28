"""Minibatches: sample transitions of a replay buffer, and assemble them from its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.errors import InputError
from rekindle.experience import Array, EpisodeStatus, Observations
from rekindle.replay.layout import MemoryLayout
from rekindle.replay.links import NONE, Links, RowNumbers
from rekindle.replay.rows import Rows

__all__ = ["Batch", "BatchReader", "TransitionSource", "mixed"]

_FEW = 16
"""Up to this many numbers, Python is faster than numpy."""

_BOOTSTRAP = np.array([status != EpisodeStatus.TERMINATED for status in EpisodeStatus], np.float32)
"""For each status, whether the target bootstraps from the next observation."""


class Batch(msgspec.Struct, frozen=True, eq=False):
    """Transitions to learn from, as arrays with a leading axis.

    The target for row `i` is `rewards[i] + discounts[i] * value(next_observations[i])`.
    """

    observations: Observations
    actions: Array
    rewards: NDArray[np.float32]
    """The discounted sum of the rewards in the window."""
    next_observations: Observations
    """The observations at the ends of the windows."""
    discounts: NDArray[np.float32]
    """`gamma ** k` for a window of `k` steps, or 0 if it ends in a termination."""
    rows: RowNumbers
    """The row numbers of the transitions in the replay buffer."""


class TransitionSource(Protocol):
    """A source of transitions to sample: a `Memory` or a data set."""

    def __len__(self) -> int:
        """How many transitions can be sampled."""
        ...

    def sample(self, rng: np.random.Generator, count: int, *, n_step: int, gamma: float) -> Batch:
        """Sample transitions uniformly with replacement, each a window of up to `n_step` steps."""
        ...


def mixed(first: Batch, second: Batch, *, batches: int) -> Batch:
    """Join minibatches of two sources: in each of `batches` minibatches, the rows of `first` come first."""

    def joined(ours: Any, theirs: Any) -> Any:
        if isinstance(ours, Mapping):
            parts = cast("Mapping[str, Array]", ours)
            return {name: joined(part, theirs[name]) for name, part in parts.items()}
        pair = [array.reshape(batches, -1, *array.shape[1:]) for array in (ours, theirs)]
        whole = np.concatenate(pair, axis=1)
        return whole.reshape(-1, *whole.shape[2:])

    return Batch(*(joined(getattr(first, name), getattr(second, name)) for name in Batch.__struct_fields__))


class BatchReader:
    """Samples and reads the transitions of a replay buffer."""

    def __init__(self, rows: Rows, links: Links, layout: MemoryLayout) -> None:
        slots = rows.slots
        self._rows, self._links = rows, links
        self._seen, self._stack, self._is_plain = layout.seen, layout.stack, layout.is_plain
        self._observations = [slots[name] for name in layout.seen.columns]
        self._actions, self._rewards, self._statuses = slots["action"], slots["reward"], slots["status"]
        self._previous: RowNumbers = slots["previous"]
        """The row that a step starts from."""
        self._older: RowNumbers = slots.get("older", self._previous)
        """The row of the previous frame in the same stack."""

    def draw(self, rng: np.random.Generator, count: int) -> RowNumbers:
        """The rows of transitions sampled uniformly with replacement."""
        first, held, can_sample = self._rows.first, len(self._rows), self._links.can_sample
        if not self._links.count:
            raise InputError("the replay buffer has no transition that can be sampled")
        if 4 * self._links.count < held:  # too few for rejection sampling
            rows = np.arange(first, first + held)
            return rng.choice(rows[can_sample.take(self._slots(rows))], count)
        rows = _below(rng, held, count)
        if first:
            rows += first
        missed = (~can_sample.take(self._slots(rows))).nonzero()[0]
        while len(missed) > _FEW:
            rows[missed] = again = first + _below(rng, held, len(missed))
            missed = missed[~can_sample.take(self._slots(again))]
        few: list[int] = missed.tolist()
        while few:
            left: list[int] = []
            for index in few:
                rows[index] = row = first + int(rng.random() * held)
                if not can_sample[row % self._rows.capacity]:
                    left.append(index)
            few = left
        return rows

    def gather(self, rows: RowNumbers, n_step: int, gamma: float) -> Batch:
        """The windows of up to `n_step` steps that start with the transitions in these rows."""
        if n_step < 1:
            raise InputError(f"n_step is {n_step!r}: a window has at least 1 step")
        slots = self._slots(rows)
        last, rewards, discounts = slots, self._rewards.take(slots), np.float32(gamma)
        if n_step > 1:
            last, rewards, discounts = self._windows(slots, n_step, gamma)
        before = self._slots(self._previous.take(slots))
        return Batch(
            observations=self._observations_in(before),
            actions=self._actions.take(slots, axis=0),
            rewards=rewards,
            next_observations=self._observations_in(last),
            discounts=_BOOTSTRAP.take(self._statuses.take(last)) * discounts,
            rows=rows,
        )

    def stacks(self, slots: RowNumbers) -> list[Array]:
        """The observations of the rows in these slots, each with the older frames of its stack."""
        if self._stack > 1:
            frames = [slots]
            for _ in range(self._stack - 1):
                frames.append(self._older.take(frames[-1]) % self._rows.capacity)
            slots = np.stack(frames[::-1], axis=1)
        return [column.take(slots, axis=0) for column in self._observations]

    def _observations_in(self, slots: RowNumbers) -> Observations:
        """The observations of the rows in these slots, in the form that agents take."""
        if self._is_plain:  # the same, but faster
            return self._observations[0].take(slots, axis=0)
        return self._seen.observations(self.stacks(slots))

    def _windows(
        self, slots: RowNumbers, n_step: int, gamma: float
    ) -> tuple[RowNumbers, NDArray[np.float32], NDArray[np.float32]]:
        """The last slots of windows of up to `n_step` steps, their discounted rewards, and their final discounts."""
        powers = gamma ** np.arange(n_step + 1)
        earned = self._rewards.take(slots).astype(np.float64)
        steps = np.ones(len(slots), np.int64)
        for power in powers[1:-1]:
            following = self._links.next.take(slots)
            continues = following != NONE  # nothing is ever linked to the last step of an episode
            slots = np.where(continues, following % self._rows.capacity, slots)
            earned += continues * power * self._rewards.take(slots)
            steps += continues
        return slots, earned.astype(np.float32), powers.astype(np.float32).take(steps)

    def _slots(self, rows: RowNumbers) -> RowNumbers:
        """The slots of stored rows."""
        return rows if self._rows.end <= self._rows.capacity else rows % self._rows.capacity


def _below(rng: np.random.Generator, end: int, count: int) -> RowNumbers:
    """Random integers from 0 to `end - 1`; several times as fast as `rng.integers`."""
    return (rng.random(count) * end).astype(np.int64)
