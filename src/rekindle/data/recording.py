"""Record a data set: play episodes with a policy, and write them in Minari's layout."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from rekindle.agent import HasPolicy, LearningAgent
from rekindle.checks import checked_reward, required_count
from rekindle.data.cache import Progress
from rekindle.data.columns import DataLayout
from rekindle.data.export import minari_writer
from rekindle.envs import EnvFactory
from rekindle.envs.factory import ENV_ERRORS, has_time_limit
from rekindle.envs.vector import EnvSlot, failed
from rekindle.errors import ConfigError, Interrupted
from rekindle.experience import ActMode, Array, EpisodeStatus, Observations
from rekindle.interrupt import ShouldStop, never
from rekindle.rng import episode_seed
from rekindle.spaces import ActionStructure, Layout
from rekindle.stats import EpisodeRecord

__all__ = ["Act", "acting", "record"]

Act = Callable[[Observations], Array]
"""Returns a row of numbers for each observation of a batch: the action, flat if it is composite."""


def acting(agent: LearningAgent, mode: ActMode, *, seed: int) -> Act:
    """How an agent acts. An agent with a policy draws random numbers from `seed`, any other from its own generator."""
    structure = ActionStructure.of(getattr(agent, "action_space", None))
    if not isinstance(agent, HasPolicy):
        return lambda observations: agent.act(observations, mode, np.zeros(1, np.int64))
    policy, rng = agent.policy(), np.random.default_rng([seed, 1])

    def act(observations: Observations) -> Array:
        actions = policy.act(observations, mode, rng)
        return actions if structure is None else structure.flat(actions, "actions", rows=1)

    return act


def record(
    factory: EnvFactory,
    act: Act,
    directory: str | Path,
    *,
    episodes: int,
    seed: int,
    max_steps: int,
    rebuilds: bool = False,
    about: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    should_stop: ShouldStop = never,
) -> list[EpisodeRecord]:
    """Play episodes, and write them to a directory that does not exist yet; returns their records.

    Episode i always has the same seed. If the environment has no time limit of its own, episodes are truncated after
    `max_steps`. If this raises, nothing is left in the directory.
    """
    required_count("episodes", episodes, 1)
    slot = EnvSlot(factory, rebuilds=rebuilds, training=False)
    with contextlib.closing(slot):
        layout = DataLayout(slot.observation_space, slot.action_space, np.dtype(np.float64), name=factory.name)
        most = math.inf if has_time_limit(slot.env) else required_count("max_steps", max_steps, 1)
        records: list[EpisodeRecord] = []
        with minari_writer(directory, layout, about={**_spec(slot.env), **(about or {})}) as writer:
            for number in range(episodes):
                first = episode_seed(seed, "record", number)
                played = _Played(slot, layout)
                played.play(act, first, most, should_stop)
                observations = cast("Layout", layout.layout).observations(
                    [np.stack(column) for column in played.observations]
                )
                statuses = np.array(played.statuses, np.uint8)
                writer.add(observations, np.stack(played.actions), np.array(played.rewards), statuses, seed=first)
                end = EpisodeStatus(played.statuses[-1])
                records.append(EpisodeRecord(sum(played.rewards), len(played.rewards), end, {}))
                if progress is not None:
                    progress(number + 1, episodes)
    return records


def _spec(env: Any) -> dict[str, str]:
    """The environment for Minari's `recover_environment`, if it can be stored."""
    try:
        return {} if env.spec is None else {"env_spec": env.spec.to_json()}
    except (TypeError, ValueError, AttributeError):  # an argument that is not JSON
        return {}


class _Played:
    """One episode."""

    def __init__(self, slot: EnvSlot, layout: DataLayout) -> None:
        self._slot, self._layout = slot, layout
        self._seen = cast("Layout", layout.layout)
        self.observations: list[list[Array]] = [[] for _ in self._seen.leaves]
        self.actions: list[Array] = []
        self.rewards: list[float] = []
        self.statuses: list[int] = []

    def play(self, act: Act, seed: int, most: float, should_stop: ShouldStop) -> None:
        """Play to the end."""
        slot, structure = self._slot, self._layout.structure
        what = "reset"
        try:
            self._see(slot.reset(seed=seed)[0])
            what = "step"
            while not self.statuses or self.statuses[-1] == EpisodeStatus.CONTINUING:
                if should_stop():
                    raise Interrupted("stopped while episodes were recorded: nothing is kept")
                newest = self._seen.observations([column[-1][None] for column in self.observations])
                action = self._layout.action.conform(act(newest), "the actions", rows=1)[0]
                observation, reward, terminated, truncated, _ = slot.step(
                    action if structure is None else structure.nested(action)
                )
                self._see(observation)
                self.actions.append(np.array(action))
                self.rewards.append(checked_reward(reward, "the reward"))
                truncated = truncated or len(self.rewards) >= most
                self.statuses.append(int(EpisodeStatus.of(bool(terminated), bool(truncated))))
        except (Interrupted, ConfigError):
            raise
        except ENV_ERRORS as error:
            raise failed(f"{slot.name} (recording)", 0, what, error) from error

    def _see(self, observation: Any) -> None:
        arrays = self._seen.conform(observation, "the observation")
        for column, array in zip(self.observations, arrays, strict=True):
            column.append(array.copy())
