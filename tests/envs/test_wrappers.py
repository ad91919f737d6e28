"""Wrappers that carry statistics from episode to episode are refused, with the setting to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import env_worlds
import gymnasium
import pytest
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import vector

from rekindle.envs import Determinism, EnvFactory, check_env, probe
from rekindle.errors import ConfigError
from rekindle.training import Trainer

OBSERVATIONS = "NormalizeObservation keeps statistics .* set normalise_observations=True of the agent"
REWARDS = "NormalizeReward keeps statistics .* set normalise_rewards=True of PPO .* or reward_scale of another agent"


def pole() -> Any:
    return gymnasium.make("CartPole-v1")


class Own(wrappers.NormalizeObservation[Any, Any, Any]):
    """Somebody's own kind of it."""


def rows_of(make: Callable[[], Any], kind: Any = SyncVectorEnv) -> Callable[[int], Any]:
    def rows(num_envs: int) -> Any:
        return kind([make] * num_envs)

    return rows


def spawned(makers: Any) -> AsyncVectorEnv:
    """Worker processes that are no forks, which JAX warns of."""
    return AsyncVectorEnv(makers, context="spawn")


def around(wrapper: Any) -> Callable[[int], Any]:
    def wrapped(num_envs: int) -> Any:
        return vector.RecordEpisodeStatistics(wrapper(SyncVectorEnv([pole] * num_envs)))

    return wrapped


REFUSED = {
    "alone": (lambda: wrappers.NormalizeObservation(pole()), OBSERVATIONS),
    "of rewards": (lambda: wrappers.NormalizeReward(pole()), REWARDS),
    "a subclass": (lambda: Own(pole()), OBSERVATIONS),
    "under others": (
        lambda: wrappers.TimeLimit(wrappers.ClipReward(wrappers.NormalizeReward(pole()), -1, 1), 9),
        REWARDS,
    ),
    "in the rows of a vector": (rows_of(lambda: wrappers.NormalizeObservation(pole())), OBSERVATIONS),
    "in other processes": (rows_of(env_worlds.normalised_rewards, spawned), REWARDS),
    "around a vector": (around(vector.NormalizeObservation), OBSERVATIONS),
    "of rewards around a vector": (around(vector.NormalizeReward), REWARDS),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_they_are_refused_wherever_they_are(kind: str) -> None:
    make, message = REFUSED[kind]
    with pytest.raises(ConfigError, match=message):
        Trainer(make, "dqn", steps=10, determinism=Determinism.REPEATS)
    with pytest.raises(ConfigError, match=message):
        probe(EnvFactory(make))
    (finding,) = [finding for finding in check_env(make) if finding.what == "wrappers"]
    assert finding.level == "error"
    assert finding.message.startswith("the wrapper Normalize")


def fixed() -> Any:
    env = wrappers.NormalizeObservation(pole())
    env.update_running_mean = False
    return env


@pytest.mark.parametrize(
    "make",
    [
        fixed,
        lambda: wrappers.FrameStackObservation(pole(), 4),
        lambda: wrappers.RecordEpisodeStatistics(wrappers.TimeAwareObservation(pole())),
        lambda: wrappers.StickyAction(pole(), 0.25),
        lambda: wrappers.DelayObservation(pole(), 2),
        lambda: wrappers.Autoreset(pole()),
        rows_of(pole),
    ],
)
def test_others_are_not(make: Any) -> None:
    assert probe(EnvFactory(make)) is Determinism.REPEATS
    assert not [finding for finding in check_env(make) if finding.what == "wrappers"]
