"""Rollouts: collecting one while another is learned from, and cutting it into minibatches."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import State, StreamSlots
from rekindle.agents.configs import OnPolicyConfig
from rekindle.agents.counting import saved_count
from rekindle.errors import InputError, StateError
from rekindle.experience import Array, Observations, Transitions
from rekindle.replay import Rollout
from rekindle.replay.rollout import Steps

__all__ = ["Collector", "Minibatches"]

_NONE = -1
"""Instead of the version of a policy: the stream has no open action."""
_Slot = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]
_Version = Annotated[int, msgspec.Meta(ge=0)]


class Collector:
    """Collects a rollout, while the one before it waits for its updates or is being learned from.

    When the agent learns from a rollout, its actions must have been chosen by the newest policy or the one before it.
    Older transitions, and those for which there is no room, are dropped and counted.
    """

    def __init__(self, observation_space: Any, action_space: Any, rollout_steps: int) -> None:
        self._spaces, self._rollout_steps = (observation_space, action_space), rollout_steps
        self.version = 0
        """The version of the newest policy."""
        self.stale_steps = 0
        """Transitions that were dropped."""
        self.is_waiting = False
        """Whether a rollout is full, and nothing was learned from it yet."""
        self.is_learning = False
        """Whether a rollout is being learned from."""
        self._current, self._waiting = Rollout(*self._spaces), Rollout(*self._spaces)
        self._chosen_by: NDArray[np.int64] = np.zeros(0, np.int64)
        """The version of the policy that chose the open action of each stream, or `_NONE`."""

    @property
    def is_ahead(self) -> bool:
        """Whether an earlier rollout is not learned from yet."""
        return self.is_waiting or self.is_learning

    @property
    def is_full(self) -> bool:
        """Whether the rollout that is being collected is full."""
        return len(self._current) == self._rollout_steps

    @property
    def collected(self) -> int:
        """Transitions in the rollout that is being collected."""
        return len(self._current)

    def observations(self) -> Observations:
        """The observations in the rollout that is being collected."""
        return self._current.steps().observations

    # Collecting

    def chose(self, streams: StreamSlots, versions: NDArray[np.int64] | None = None) -> None:
        """Record that policies of these versions, by default the newest, chose the open actions of these streams."""
        chosen = self.version if versions is None else versions
        try:
            self._chosen_by[streams] = chosen
        except IndexError:  # for a new stream: to look first would take longer than the rest
            self._make_room(streams)
            self._chosen_by[streams] = chosen

    def add(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Collect transitions; raises `InputError` if there are more at once than two rollouts hold."""
        count, most = len(transitions), self._rollout_steps
        if count > 2 * most:
            raise InputError(f"{count} transitions at once do not fit: rollout_steps is {most}")
        try:
            versions = self._chosen_by[streams]
        except IndexError:
            self._make_room(streams)
            versions = self._chosen_by[streams]
        if (oldest := _least(versions, self.version)) == _NONE:
            versions[versions == _NONE] = self.version
            oldest = _least(versions, self.version)
        if self._can_take(count, oldest):
            self._append(transitions, streams, versions)
        else:
            start = 0
            while start < count:  # as many as there is room for; if one of them is too old, one by one
                room = slice(start, start + max(1, most - len(self._current)))
                fits = self._can_take(len(versions[room]), _least(versions[room], self.version))
                rows = room if fits else slice(start, start + 1)
                if fits or self._can_take(1, int(versions[start])):
                    self._append(transitions.part(rows), streams[rows], versions[rows])
                else:
                    self._current.cut(streams[rows])
                    self.stale_steps += 1
                start = rows.stop
        self._chosen_by[streams] = _NONE

    def cut(self, streams: StreamSlots) -> None:
        """End the episodes of these streams: nothing is linked to their last transitions."""
        self._current.cut(streams)
        self._make_room(streams)
        self._chosen_by[streams] = _NONE

    def _make_room(self, streams: StreamSlots) -> None:
        more = int(np.maximum.reduce(streams, initial=_NONE)) + 1 - len(self._chosen_by)
        if more > 0:
            self._chosen_by = np.append(self._chosen_by, np.full(max(more, len(self._chosen_by)), _NONE))

    def _can_take(self, count: int, oldest: int) -> bool:
        """Whether there is room, and the oldest policy will be one of the last two when the agent learns from it."""
        return len(self._current) + count <= self._rollout_steps and oldest >= self.version + self.is_ahead - 1

    def _append(self, transitions: Transitions, streams: StreamSlots, versions: NDArray[np.int64]) -> None:
        self._current.append(transitions, streams, versions)
        self._turn_over()

    def _turn_over(self) -> None:
        """If the rollout is full and no earlier one is left, let it wait for its updates, and collect another."""
        if self.is_full and not self.is_ahead:
            self._current, self._waiting = self._waiting, self._current
            self.is_waiting = True

    # Learning

    def steps(self) -> Steps:
        """The steps of the rollout that waits for its updates."""
        return self._waiting.steps()

    def begin_learning(self) -> None:
        """Record that learning from the waiting rollout begins; its steps are removed here."""
        self._waiting.clear()
        self.is_waiting, self.is_learning = False, True

    def change_policy(self) -> None:
        """Record a new policy without updates, with which the current rollout continues."""
        self.version += 1

    def end_learning(self) -> None:
        """Record the new policy after the updates on a rollout."""
        self.version += 1
        self.is_learning = False
        self._turn_over()

    def clear(self) -> None:
        """Remove all rollouts, and record a new policy."""
        for rollout in (self._current, self._waiting):
            rollout.clear()
        self.version += 1
        self.is_waiting = self.is_learning = False

    # Saving

    def state(self) -> State:
        """The state for a checkpoint."""
        chosen = np.flatnonzero(self._chosen_by != _NONE)
        return {
            "rollout": self._current.state(),
            "waiting": self._waiting.state() if self.is_waiting else None,
            "chosen_by": [[stream, int(self._chosen_by[stream])] for stream in chosen.tolist()],
            "policy_version": self.version,
            "stale_steps": self.stale_steps,
        }

    def loaded(self, state: State, *, is_learning: bool) -> Collector:
        """A collector with a saved state; raises `StateError`."""
        collector = Collector(*self._spaces, self._rollout_steps)
        collector.version, collector.stale_steps = (
            saved_count(state, name) for name in ("policy_version", "stale_steps")
        )
        current, waiting = (self._rollout(state.get(name), name) for name in ("rollout", "waiting"))
        if current is None or (waiting is not None and (is_learning or len(waiting) != self._rollout_steps)):
            raise StateError("not the rollouts of an agent that waits for one to be full, or learns from it")
        collector._current, collector._waiting = current, waiting or collector._waiting
        collector.is_waiting, collector.is_learning = waiting is not None, is_learning
        try:
            chosen = msgspec.convert(state.get("chosen_by"), list[tuple[_Slot, _Version]])
        except msgspec.ValidationError as error:
            raise StateError(f"not the versions of open actions: {error}") from None
        collector.chose(*np.array(chosen, np.int64).reshape(-1, 2).T)
        return collector

    def _rollout(self, state: Any, what: str) -> Rollout | None:
        if state is None:
            return None
        rollout = Rollout(*self._spaces)
        rollout.load_state(state)
        if len(rollout) > self._rollout_steps:
            raise StateError(f"the {what} has {len(rollout)} steps, more than rollout_steps, {self._rollout_steps}")
        return rollout


def _least(versions: NDArray[np.int64], version: int) -> int:
    """The minimum of some versions and another one."""
    return int(np.minimum.reduce(versions, initial=version))  # the method `min` takes twice as long


class Minibatches:
    """Divides rollouts into minibatches whose sizes differ by at most one."""

    def __init__(self, config: OnPolicyConfig) -> None:
        self._rows, self._epochs = config.rollout_steps, config.epochs
        parts = np.array_split(np.arange(self._rows), math.ceil(self._rows / config.minibatch_size))
        self.size = len(parts[0])
        """The rows of the largest minibatch."""
        self.table = np.full((len(parts), self.size), self._rows)
        """The positions in a shuffled rollout of each minibatch, padded with the position after the last."""
        for line, part in zip(self.table, parts, strict=True):
            line[: len(part)] = part

    def order(self, seed: int) -> Array:
        """The rows of every minibatch of every epoch: in each epoch all rows once, shuffled."""
        rng = np.random.default_rng(seed)
        epochs = [np.append(rng.permutation(self._rows), self._rows)[self.table] for _ in range(self._epochs)]
        return np.concatenate(epochs).astype(np.int32).ravel()
