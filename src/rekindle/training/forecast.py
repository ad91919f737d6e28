"""Warnings about the settings of a training, before it starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rekindle.actors.rounds import rounds_fitting
from rekindle.agent import LearningAgent
from rekindle.agents.settings import Linear
from rekindle.data import Dataset
from rekindle.envs import Envs
from rekindle.errors import ConfigError
from rekindle.training.algorithms import algorithm_of
from rekindle.training.config import TrainerConfig
from rekindle.training.learning_data import is_growing

__all__ = ["check_rollout", "check_rounds", "foreseen", "with_round_steps"]

_ROUND = 64
"""Steps of each environment in a round, if nothing else is asked for."""
_UNLEARNED = 3
"""Chunks of free actors that one may have to wait for until it is learned from, as a multiple of all actors."""


def check_rollout(agent: LearningAgent, num_envs: int) -> None:
    """Raise `ConfigError` if one step of all environments is more than a rollout holds: PPO would drop transitions."""
    rollout_steps = getattr(_settings(agent), "rollout_steps", None)
    if rollout_steps is not None and num_envs > rollout_steps:
        raise ConfigError(
            f"num_envs is {num_envs}, and rollout_steps {rollout_steps} transitions of all environments together: use "
            f"at least {num_envs} for rollout_steps (--agent.rollout-steps), or fewer environments"
        )


def with_round_steps(settings: dict[str, Any], agent: LearningAgent) -> dict[str, Any]:
    """The settings of a trainer, with a length of rounds that suits the agent if actors are asked for without one."""
    actors, each = settings.get("actors"), settings.get("envs_each", 1)
    if not isinstance(actors, int) or not isinstance(each, int) or settings.get("round_steps") is not None:
        return settings
    rollout_steps, rows = getattr(_settings(agent), "rollout_steps", None), max(1, actors * each)
    fitting = [] if rollout_steps is None else rounds_fitting(rollout_steps, rows)
    most = _ROUND
    if rollout_steps is not None and settings.get("free"):
        most = max(1, min(_ROUND, rollout_steps // (_UNLEARNED * rows)))
    return {**settings, "round_steps": max((steps for steps in fitting if steps <= most), default=most)}


def check_rounds(agent: LearningAgent, config: TrainerConfig) -> None:
    """Raise `ConfigError` if rounds of actors do not fill a rollout exactly."""
    rollout_steps = getattr(_settings(agent), "rollout_steps", None)
    if config.actors is None or rollout_steps is None or rollout_steps % config.steps_at_once == 0:
        return
    fitting = rounds_fitting(rollout_steps, config.num_envs)
    if fitting:
        near = config.round_steps or _ROUND
        fitting = sorted(sorted(fitting, key=lambda steps: abs(math.log(steps / near)))[:3])
        advice = f"use --round-steps {' or '.join(map(str, fitting))}"
    else:
        advice = f"use a multiple of {config.num_envs} for rollout_steps (--agent.rollout-steps)"
    raise ConfigError(
        f"rollout_steps is {rollout_steps}, which is no multiple of the {config.steps_at_once} transitions of a round "
        f"({config.actors} actors x {config.envs_each} environments x {config.round_steps} steps): {advice}"
    )


def foreseen(
    agent: LearningAgent, config: TrainerConfig, envs: Envs | None = None, dataset: Dataset | None = None
) -> Iterator[str]:
    """Warn if a resume cannot be exact, if a training will make no update or end before a schedule, or of its data."""
    if dataset is not None and dataset.doubt is not None:
        yield dataset.doubt
    if envs is not None and envs.inexact is not None:
        yield f"{envs.inexact}: if this training is interrupted, a resume will be approximate"
    if config.data is not None and is_growing(config.data):
        yield (
            f"{config.data} is a run that is not finished: when it has more transitions, a resume of this training is "
            "refused, because its data are others; make a copy first (rekindle data export) and learn from that"
        )
    settings = _settings(agent)
    if settings is None:
        return
    if config.free:
        yield from _too_old(settings, config)
    if config.steps is None:
        return
    if config.is_offline:
        yield from _unfinished_schedules(settings, config.steps, "updates")
        return
    # The environments step together, so the last step may exceed the limit.
    at_once = config.steps_at_once
    end = agent.env_steps + math.ceil(max(0, config.steps - agent.env_steps) / at_once) * at_once
    if end > agent.env_steps and (name := _too_long(settings, agent, end)) is not None:
        value, flag = getattr(settings, name), _flag(name)
        steps = end - agent.env_steps
        yield f"{name} is {value}, and the training makes {steps} env steps: too few for an update; lower {flag}"
        return
    yield from _unfinished(settings, end)
    if getattr(settings, "noisy", False) and settings.exploration == "epsilon":
        given, defaults = ((each.epsilon_start, each.epsilon_end) for each in (settings, type(settings)()))
        if given not in (defaults, (0, 0)):
            yield "epsilon_start and epsilon_end have no effect: noisy explores by noise on the weights"


def _settings(agent: LearningAgent) -> Any:
    """The config of a built-in agent; settings of other agents may mean something else."""
    return None if algorithm_of(agent) is None else getattr(agent, "config", None)


def _too_old(settings: Any, config: TrainerConfig) -> Iterator[str]:
    """A warning if free actors play on with a policy for longer than PPO can learn from it."""
    rollout_steps: int | None = getattr(settings, "rollout_steps", None)
    if rollout_steps is None or _UNLEARNED * config.steps_at_once <= rollout_steps:
        return
    most = rollout_steps // (_UNLEARNED * config.num_envs)
    yield (
        f"rollout_steps is {rollout_steps}, and free actors play chunks of {config.steps_at_once} transitions in all: "
        "those that become too old to learn from are left out, and counted in stale_steps; use "
        + (f"--round-steps {most} or less" if most else "a longer rollout (--agent.rollout-steps), or fewer actors")
    )


def _too_long(settings: Any, agent: LearningAgent, end: int) -> str | None:
    """The setting that delays the first update beyond the end; None if there is an update."""
    if hasattr(settings, "rollout_steps"):
        return "rollout_steps" if settings.rollout_steps > end - agent.env_steps else None
    if not hasattr(settings, "warmup_steps"):
        return None
    if end - agent.env_steps >= settings.warmup_steps + settings.update_every:
        return None
    return "warmup_steps" if settings.warmup_steps > settings.update_every else "update_every"


def _unfinished_schedules(settings: Any, end: int, unit: str) -> Iterator[str]:
    unused = {
        *(("priority_beta",) if not getattr(settings, "prioritised", True) else ()),
        *(("temperature",) if getattr(settings, "exploration", None) == "epsilon" else ()),
    }
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, Linear) and name not in unused and value.steps > end and value.start != value.end:
            yield (
                f"{name} goes from {value.start:g} to {value.end:g} in {value.steps} {unit}, and the training ends "
                f"after {end}, at {value.at(end):.3g}: use a shorter schedule, such as "
                f"{_flag(name)} {value.start:g}:{value.end:g}:100% "
                f"(in Python Linear({value.start:g}, {value.end:g}, 1.0))"
            )


def _unfinished(settings: Any, end: int) -> Iterator[str]:
    yield from _unfinished_schedules(settings, end, "env steps")
    epsilon_steps = getattr(settings, "epsilon_steps", 0)
    is_epsilon = getattr(settings, "exploration", "epsilon") == "epsilon" and not getattr(settings, "noisy", False)
    if is_epsilon and epsilon_steps > end and settings.epsilon_start != settings.epsilon_end:
        epsilon = Linear(settings.epsilon_start, settings.epsilon_end, epsilon_steps)
        yield (
            f"epsilon goes from {epsilon.start:g} to {epsilon.end:g} in {epsilon_steps} env steps, and the training "
            f"ends after {end}, at {epsilon.at(end):.3g}: use fewer steps, such as {_flag('epsilon_steps')} 50% "
            "(in Python epsilon_steps=0.5)"
        )


def _flag(name: str) -> str:
    return f"--agent.{name.replace('_', '-')}"
