"""Evaluation episodes, one after the other; the result of an episode does not depend on its worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.agent import Policy
from rekindle.checks import checked_reward
from rekindle.envs import EnvFactory, EnvSlot
from rekindle.envs.factory import ENV_ERRORS, has_time_limit
from rekindle.envs.vector import failed, numbers_in
from rekindle.errors import Interrupted
from rekindle.experience import EpisodeStatus
from rekindle.rng import episode_seed
from rekindle.spaces import ActionStructure, Layout
from rekindle.stats import EpisodeRecord

__all__ = ["EpisodePlayer", "EvalPlan", "PlayedEpisode"]

PlayedEpisode = tuple[int, float, int, int, dict[str, float]]
"""The number, the return, the length, the status and the extras of an episode, as data."""


class EvalPlan(msgspec.Struct, frozen=True, eq=False):
    """How to evaluate."""

    factory: EnvFactory
    seed: int
    rebuilds: bool
    extras: Sequence[str] | None
    max_steps: int


class EpisodePlayer:
    """Plays evaluation episodes in one environment, each with its own seed."""

    def __init__(self, plan: EvalPlan) -> None:
        self._plan = plan
        self._slot = EnvSlot(plan.factory, rebuilds=plan.rebuilds, training=False)
        self._layout = cast("Layout", Layout.of_space(self._slot.observation_space))
        self._structure = ActionStructure.of(self._slot.action_space)
        self._most = math.inf if has_time_limit(self._slot.env) else plan.max_steps

    def play(self, policy: Policy, numbers: Sequence[int], beat: Callable[[], object]) -> list[PlayedEpisode]:
        """Play the episodes with these numbers; `beat` is called after every step and reset."""
        return [self._episode(policy, number, beat) for number in numbers]

    def _episode(self, policy: Policy, number: int, beat: Callable[[], object]) -> PlayedEpisode:
        plan, slot, name = self._plan, self._slot, f"{self._plan.factory.name} (evaluation)"
        what = "reset"
        total, length = 0.0, 0
        extras: dict[str, float] = {}
        try:
            observation, _ = slot.reset(seed=episode_seed(plan.seed, "evaluation", number))
            beat()
            what = "step"
            while True:
                action = self._action(policy, observation)
                observation, reward, terminated, truncated, info = slot.step(action)
                total += checked_reward(reward, "the reward")
                length += 1
                beat()
                truncated = truncated or length >= self._most
                if terminated or truncated:
                    extras = numbers_in(info, plan.extras)
                    break
        except Interrupted:
            raise
        except ENV_ERRORS as error:
            raise failed(name, 0, what, error) from error
        return number, total, length, int(EpisodeStatus.of(terminated, truncated)), extras

    def _action(self, policy: Policy, observation: Any) -> Any:
        arrays = self._layout.conform(observation, "the observation")
        actions = policy.act(self._layout.observations([array[None] for array in arrays]))
        if self._structure is None:
            return np.asarray(actions)[0]
        return self._structure.nested(self._structure.flat(actions, "actions", rows=1)[0])

    def close(self) -> None:
        """Close the environment."""
        self._slot.close()


def records_of(played: Sequence[PlayedEpisode]) -> list[EpisodeRecord]:
    """The records of episodes, by their numbers."""
    return [
        EpisodeRecord(total, length, EpisodeStatus(status), extras)
        for _, total, length, status, extras in sorted(played, key=lambda one: one[0])
    ]
