"""Test whether an environment repeats episodes exactly, which an exact resume relies on."""

from __future__ import annotations

from enum import StrEnum
from typing import cast

from rekindle.checks import checked_reward
from rekindle.envs.factory import EnvFactory
from rekindle.envs.vector import EnvSlot, failed
from rekindle.errors import Interrupted
from rekindle.experience import Array
from rekindle.interrupt import ShouldStop, never
from rekindle.rng import episode_seed
from rekindle.spaces import Layout
from rekindle.traces import EpisodeTrace

__all__ = ["Determinism", "play", "probe"]

_EPISODES = 8
"""Enough to detect a leak that shows in every second episode."""
_STEPS = 128


class Determinism(StrEnum):
    """Whether the same seed and actions give the same episode."""

    REPEATS = "repeats"
    """Always."""
    LEAKS = "leaks"
    """Only in a new instance: earlier episodes affect later ones."""
    RANDOM = "random"
    """Not reliably, so a resume cannot be exact."""


def probe(factory: EnvFactory, *, should_stop: ShouldStop = never) -> Determinism:
    """Play random episodes in one instance, and replay them in new instances.

    Raises `Interrupted` between two steps once `should_stop()` is true.
    """
    slot = EnvSlot(factory)
    try:
        seeds = [episode_seed(0, "probe", episode) for episode in range(_EPISODES)]
        played = [play(slot, seed, should_stop=should_stop) for seed in seeds]
    finally:
        slot.close()
    if _again(factory, played, should_stop):
        return Determinism.REPEATS
    anew = [_anew(factory, trace, should_stop) for trace in played]
    return Determinism.LEAKS if _again(factory, anew, should_stop) else Determinism.RANDOM


def _again(factory: EnvFactory, played: list[EpisodeTrace], should_stop: ShouldStop) -> bool:
    """Whether each episode is the same in its own new instance."""
    return all(_anew(factory, trace, should_stop).chain == trace.chain for trace in played)


def _anew(factory: EnvFactory, trace: EpisodeTrace, should_stop: ShouldStop) -> EpisodeTrace:
    """Replay the same seed and actions in a new instance."""
    slot = EnvSlot(factory)
    try:
        return play(slot, trace.seed, trace.actions, should_stop=should_stop)
    finally:
        slot.close()


def play(
    slot: EnvSlot, seed: int, actions: list[Array] | None = None, *, should_stop: ShouldStop = never
) -> EpisodeTrace:
    """Play an episode, or its first steps, with random actions unless `actions` are given.

    Raises `EnvError` if the environment raises, and `Interrupted` between two steps once `should_stop()` is true.
    """
    layout = cast("Layout", Layout.of_space(slot.observation_space))
    trace = EpisodeTrace(seed, None)
    slot.action_space.seed(seed)
    try:
        observation, _ = slot.reset(seed=seed)
    except Exception as error:
        raise failed(slot.name, 0, "reset", error) from error
    trace.start(layout.conform(observation, f"{slot.name}: the observation"))
    for step in range(_STEPS if actions is None else len(actions)):
        if should_stop():
            raise Interrupted(f"stopped while {slot.name} was probed")
        action = slot.action_space.sample() if actions is None else actions[step][()]  # a number, not an array of one
        try:
            observation, reward, terminated, truncated, _ = slot.step(action)
        except Exception as error:
            raise failed(slot.name, 0, "step", error) from error
        arrays = layout.conform(observation, f"{slot.name}: the observation")
        trace.add(action, checked_reward(reward, slot.name), arrays)
        if terminated or truncated:
            break
    return trace
