"""Test whether an environment repeats episodes exactly, which an exact resume relies on."""

from __future__ import annotations

import contextlib
from enum import StrEnum
from typing import cast

from rekindle.checks import checked_reward, required_count
from rekindle.envs.actions import RandomActions
from rekindle.envs.factory import ENV_ERRORS, EnvFactory
from rekindle.envs.vector import EnvSlot, failed
from rekindle.envs.wrappers import refuse_stateful_wrappers
from rekindle.errors import Interrupted
from rekindle.experience import Array
from rekindle.interrupt import ShouldStop, never
from rekindle.rng import episode_seed
from rekindle.spaces import Layout
from rekindle.stages import stage
from rekindle.traces import EpisodeTrace

__all__ = ["Determinism", "LEAST_PROBE_STEPS", "PROBE_STEPS", "judge", "play", "probe", "probe_lengths"]

PROBE_STEPS = 600
"""The default limit of env steps for probing or checking an environment."""
LEAST_PROBE_STEPS = 30

_SHORT_EPISODES = 7
"""Enough to detect a leak that occurs in every second episode."""
_LONG = 4
"""The length of the long episode, as a multiple of the length of a short one."""


class Determinism(StrEnum):
    """Whether the same seed and actions give the same episode."""

    REPEATS = "repeats"
    """They always do."""
    LEAKS = "leaks"
    """They do only in a new instance: earlier episodes affect later ones."""
    RANDOM = "random"
    """They do not, so a resume cannot be exact."""


def probe_lengths(steps: int, *, short_plays: int = 0) -> list[int]:
    """The maximum length of each episode of the first instance: a long one, then short ones.

    All of them are played twice, the long one three times, and a short one another `short_plays` times. Together these
    are at most `steps` env steps.
    """
    plays = 3 * _LONG + 2 * _SHORT_EPISODES + short_plays
    short = required_count("probe_steps", steps, LEAST_PROBE_STEPS) // plays
    return [_LONG * short] + [short] * _SHORT_EPISODES


def probe(factory: EnvFactory, *, steps: int = PROBE_STEPS, should_stop: ShouldStop = never) -> Determinism:
    """Play random episodes in one instance, and replay them in at most two new instances.

    It makes at most `steps` env steps. Raises `ConfigError` if a wrapper keeps statistics, `EnvError` if the
    environment raises, and `Interrupted` between two steps once `should_stop()` is true.
    """
    lengths = probe_lengths(steps)
    stage(f"probing {factory.name}: can an episode be repeated?")
    with contextlib.closing(EnvSlot(factory)) as slot:
        refuse_stateful_wrappers(slot.env, factory.name)
        actions = RandomActions(slot.action_space)
        played = [
            play(slot, episode_seed(0, "probe", episode), actions, most=most, should_stop=should_stop)
            for episode, most in enumerate(lengths)
        ]
    return judge(factory, played, should_stop=should_stop)


def judge(factory: EnvFactory, played: list[EpisodeTrace], *, should_stop: ShouldStop = never) -> Determinism:
    """Compare episodes that one instance played, in this order, with replays in new instances."""
    with contextlib.closing(EnvSlot(factory)) as slot:
        # In reverse order, so that different episodes precede each one.
        if all(_is_same(slot, trace, should_stop) for trace in reversed(played)):
            return Determinism.REPEATS
    with contextlib.closing(EnvSlot(factory)) as slot:
        return Determinism.LEAKS if _is_same(slot, played[0], should_stop) else Determinism.RANDOM


def _is_same(slot: EnvSlot, trace: EpisodeTrace, should_stop: ShouldStop) -> bool:
    again = play(slot, trace.seed, RandomActions(slot.action_space), known=trace.actions, should_stop=should_stop)
    return again.chain == trace.chain


def play(
    slot: EnvSlot,
    seed: int,
    actions: RandomActions,
    *,
    known: list[Array] | None = None,
    most: int = 0,
    should_stop: ShouldStop = never,
) -> EpisodeTrace:
    """Play at most the first `most` steps of an episode with random actions, or play `known` actions.

    Known actions stop before the first one that an `action_mask` forbids. Raises `EnvError` if the environment raises
    or returns invalid values, and `Interrupted` between two steps once `should_stop()` is true.
    """
    layout = cast("Layout", Layout.of_space(slot.observation_space))
    trace = EpisodeTrace(seed, None)
    actions.seed(seed)
    what = "reset"
    try:
        observation, _ = slot.reset(seed=seed)
        trace.start(layout.conform(observation, "the observation"))
        what = "step"
        for step in range(most if known is None else len(known)):
            if should_stop():
                raise Interrupted(f"stopped while {slot.name} was probed")
            if known is not None and not actions.allows(observation, known[step]):
                break
            action = actions.draw(observation) if known is None else known[step]
            observation, reward, terminated, truncated, _ = slot.step(actions.executed(action))
            arrays = layout.conform(observation, "the observation")
            trace.add(action, checked_reward(reward, "the step"), arrays)
            if terminated or truncated:
                break
    except Interrupted:
        raise
    except ENV_ERRORS as error:
        raise failed(slot.name, 0, what, error) from error
    return trace
