"""Sample minibatches of transitions from a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import State
from rekindle.checks import refuses_misfits, required_count
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import Array, EpisodeStatus
from rekindle.replay.batches import Batch
from rekindle.replay.columns import ObservationColumns
from rekindle.replay.links import NO_STEP, RowNumbers
from rekindle.rng import generator_from_state, generator_state

__all__ = ["Batches", "TransitionReader"]

_CONTINUING = int(EpisodeStatus.CONTINUING)
_BOOTSTRAP = np.array([status != EpisodeStatus.TERMINATED for status in EpisodeStatus], np.float32)


class TransitionReader:
    """Samples the transitions of a data set, with the methods of a replay buffer (`rekindle.replay.Memory`)."""

    def __init__(self, columns: Mapping[str, Array], observed: ObservationColumns) -> None:
        self._observed = observed
        self._observations = [columns[name] for name in observed.columns]
        self._actions, self._rewards, self._statuses = columns["action"], columns["reward"], columns["status"]
        self._rows = len(self._statuses)
        self._count = self._rows - int(np.count_nonzero(self._statuses >= NO_STEP))

    def __len__(self) -> int:
        """How many transitions can be sampled."""
        return self._count

    def sample(self, rng: np.random.Generator, count: int, *, n_step: int = 1, gamma: float = 0.99) -> Batch:
        """Sample transitions uniformly with replacement; a transition becomes a window of up to `n_step` steps."""
        rows: RowNumbers = (rng.random(count) * self._rows).astype(np.int64)
        missed = np.flatnonzero(self._statuses.take(rows) >= NO_STEP)
        while len(missed):
            rows[missed] = again = (rng.random(len(missed)) * self._rows).astype(np.int64)
            missed = missed[self._statuses.take(again) >= NO_STEP]
        return self._gather(rows, n_step, gamma)

    def gather(self, rows: Sequence[int] | RowNumbers, *, n_step: int = 1, gamma: float = 0.99) -> Batch:
        """The transitions in these rows, in the form of `sample`."""
        wanted: RowNumbers = np.asarray(rows, np.int64)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < self._rows):
            raise InputError(f"rows {wanted.min()} to {wanted.max()} were requested, 0 to {self._rows - 1} are there")
        if (self._statuses.take(wanted) >= NO_STEP).any():
            raise InputError("some of these rows are the first observations of episodes, to which no step led")
        return self._gather(wanted, n_step, gamma)

    def _gather(self, rows: RowNumbers, n_step: int, gamma: float) -> Batch:
        if n_step < 1:
            raise InputError(f"n_step is {n_step!r}: a window has at least 1 step")
        last, discounts = rows, np.float32(gamma)
        rewards: NDArray[Any] = self._rewards.take(rows)
        if n_step > 1:
            last, rewards, discounts = self._windows(rows, n_step, gamma)
        return Batch(
            observations=self._observed.observations([column.take(rows - 1, axis=0) for column in self._observations]),
            actions=self._actions.take(rows, axis=0),
            rewards=rewards.astype(np.float32),
            next_observations=self._observed.observations([column.take(last, axis=0) for column in self._observations]),
            discounts=_BOOTSTRAP.take(self._statuses.take(last)) * discounts,
            rows=rows,
        )

    def _windows(self, rows: RowNumbers, n_step: int, gamma: float) -> tuple[RowNumbers, Array, NDArray[np.float32]]:
        """The last rows of windows of up to `n_step` steps, their discounted rewards, and their final discounts."""
        powers = gamma ** np.arange(n_step + 1)
        earned = self._rewards.take(rows).astype(np.float64)
        steps = np.ones(len(rows), np.int64)
        for power in powers[1:-1]:
            following = np.minimum(rows + 1, self._rows - 1)
            goes_on = (self._statuses.take(rows) == _CONTINUING) & (self._statuses.take(following) < NO_STEP)
            goes_on &= following != rows
            rows = np.where(goes_on, following, rows)
            earned += goes_on * power * self._rewards.take(rows)
            steps += goes_on
        return rows, earned, powers.astype(np.float32).take(steps)


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `state`."""

    digest: str
    generator: State


class Batches:
    """Minibatches of a data set, drawn with a generator of its own; `next` returns one.

    With `state` and `load_state` it continues exactly where it was, and refuses other data. It can be attached to a
    session.
    """

    def __init__(
        self, reader: TransitionReader, digest: str, *, batch_size: int, seed: int, n_step: int, gamma: float
    ) -> None:
        self._reader, self._digest = reader, digest
        self._batch_size = required_count("batch_size", batch_size, 1)
        self._n_step, self._gamma = required_count("n_step", n_step, 1), gamma
        if not 0 <= gamma <= 1:
            raise ConfigError(f"gamma is {gamma!r}: use a number from 0 to 1")
        self._rng = np.random.default_rng(seed)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        return self.take(1)

    def take(self, batches: int) -> Batch:
        """This many minibatches joined in one, for updates that are made in one dispatch."""
        return self._reader.sample(self._rng, batches * self._batch_size, n_step=self._n_step, gamma=self._gamma)

    def state(self) -> State:
        """The digest of the data, and the generator."""
        return {"digest": self._digest, "generator": generator_state(self._rng)}

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Continue from a state; raises `StateError` if it belongs to other data."""
        saved = msgspec.convert(state, _Saved)
        if saved.digest != self._digest:
            raise StateError(f"the data have changed: their digest was {saved.digest}, and is {self._digest}")
        self._rng = generator_from_state(saved.generator)
