"""Evaluate an agent with episodes that do not affect the training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec
import numpy as np

from rekindle.agent import LearningAgent
from rekindle.checks import checked_reward
from rekindle.envs import EnvFactory
from rekindle.envs.factory import ENV_ERRORS, has_time_limit
from rekindle.envs.vector import EnvSlot, failed, numbers_in
from rekindle.errors import Interrupted
from rekindle.experience import ActMode, EpisodeStatus, Observations
from rekindle.interrupt import ShouldStop, never
from rekindle.rng import episode_seed
from rekindle.spaces import ActionStructure, Layout
from rekindle.stats import EpisodeRecord

__all__ = ["Act", "EVAL_MAX_STEPS", "EpisodeEvaluator", "Evaluation", "Evaluator", "greedy"]

EVAL_MAX_STEPS = 10_000
"""Steps after which an evaluation episode is truncated, if the environment has no time limit of its own."""

Act = Callable[[Any], Any]
"""Returns the greedy action for each row of a batch of observations.

Observations and composite actions have the structure of their space, with arrays of rows in it; a flat dict of
observations is accepted too.
"""


def greedy(agent: LearningAgent, should_stop: ShouldStop = never) -> Act:
    """The greedy policy of an agent; raises `Interrupted` once `should_stop()` is true."""
    layout = Layout.of_space(getattr(agent, "observation_space", None))
    nesting = None if layout is None else layout.nesting
    structure = ActionStructure.of(getattr(agent, "action_space", None))

    def act(observations: Any) -> Any:
        if should_stop():
            raise Interrupted("stopped in an evaluation")
        if nesting is not None:
            observations = dict(zip(nesting.names, nesting.leaves(observations, "observations"), strict=True))
        seen = cast("Observations", observations)
        rows = len(next(iter(seen.values()))) if isinstance(seen, Mapping) else len(seen)
        actions = agent.act(seen, ActMode.EXPLOIT, np.arange(rows))
        return actions if structure is None else structure.nested(actions)

    return act


class Evaluation(msgspec.Struct, frozen=True):
    """The result of an evaluation."""

    score: float
    """The score for choosing the best agent; higher is better."""
    records: Sequence[EpisodeRecord]


class Evaluator(Protocol):
    """Evaluates a policy; for an exact resume, the same policy must get the same result."""

    def evaluate(self, act: Act, episodes: int) -> Evaluation:
        """Play this many episodes. After a stop, `act` raises `Interrupted`: do not catch it."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


class EpisodeEvaluator:
    """Plays episodes in its own environments, several at a time; the score is the mean return.

    Episode i always has the same seed, and its environment is fixed in advance, so that short episodes are not
    preferred. If the environment has no time limit of its own, episodes are truncated after `max_steps`.
    """

    def __init__(
        self,
        factory: EnvFactory,
        *,
        seed: int,
        num_envs: int = 4,
        rebuilds: bool = False,
        extras: Sequence[str] | None = None,
        max_steps: int = EVAL_MAX_STEPS,
    ) -> None:
        self._factory, self._seed, self._num_envs, self._rebuilds = factory, seed, num_envs, rebuilds
        self._extras, self._max_steps = extras, max_steps
        self._slots: list[EnvSlot] = []

    def evaluate(self, act: Act, episodes: int) -> Evaluation:
        """Play episodes 0 to `episodes - 1`; the score is their mean return."""
        count = min(self._num_envs, episodes)
        while len(self._slots) < count:
            self._slots.append(EnvSlot(self._factory, rebuilds=self._rebuilds, training=False))
        slots = self._slots[:count]
        most = math.inf if has_time_limit(slots[0].env) else self._max_steps
        layout = cast("Layout", Layout.of_space(slots[0].observation_space))
        structure = ActionStructure.of(slots[0].action_space)
        columns = [np.zeros((count, *leaf.shape), leaf.dtype) for leaf in layout.leaves.values()]
        records: dict[int, EpisodeRecord] = {}
        playing = {row: _Episode(row) for row in range(count)}

        def show(row: int, observation: Any) -> None:
            for column, array in zip(columns, layout.conform(observation, "the observation"), strict=True):
                column[row] = array

        for row, episode in playing.items():
            show(row, self._reset(slots[row], episode.number, row))
        while playing:
            # Act on finished rows too: batches of one size are compiled once, and rounded in the same way.
            actions = act(layout.observations([column.copy() for column in columns]))
            if structure is not None:
                actions = [structure.nested(row) for row in structure.flat(actions, "actions", rows=count)]
            for row, episode in list(playing.items()):
                try:
                    observation, reward, terminated, truncated, info = slots[row].step(actions[row])
                    show(row, observation)
                    episode.add(checked_reward(reward, "the reward"))
                    truncated = truncated or episode.length >= most
                    is_over = bool(terminated or truncated)
                    extras = numbers_in(info, self._extras) if is_over else {}
                except ENV_ERRORS as error:
                    raise failed(f"{self._factory.name} (evaluation)", row, "step", error) from error
                if is_over:
                    records[episode.number] = episode.record(EpisodeStatus.of(terminated, truncated), extras)
                    del playing[row]
                    following = episode.number + count
                    if following < episodes:
                        playing[row] = _Episode(following)
                        show(row, self._reset(slots[row], following, row))
        ordered = [records[number] for number in range(episodes)]
        return Evaluation(sum(record.total_reward for record in ordered) / episodes, ordered)

    def _reset(self, slot: EnvSlot, episode: int, row: int) -> Any:
        try:
            return slot.reset(seed=episode_seed(self._seed, "evaluation", episode))[0]
        except ENV_ERRORS as error:
            raise failed(f"{self._factory.name} (evaluation)", row, "reset", error) from error

    def close(self) -> None:
        """Close the environments."""
        while self._slots:
            self._slots.pop().close()


class _Episode:
    """A running episode."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._total, self.length = 0.0, 0

    def add(self, reward: float) -> None:
        self._total += reward
        self.length += 1

    def record(self, status: EpisodeStatus, extras: dict[str, float]) -> EpisodeRecord:
        return EpisodeRecord(self._total, self.length, status, extras)
