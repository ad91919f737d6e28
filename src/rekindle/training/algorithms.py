"""Algorithms by name: one line each."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping
from typing import Any, SupportsIndex, cast

import msgspec
import numpy as np

from rekindle import agents
from rekindle.agent import LearningAgent
from rekindle.errors import ConfigError

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "agent_settings",
    "algorithm_of",
    "config_type",
    "converted",
    "make_agent",
    "plain",
]


class Algorithm(msgspec.Struct, frozen=True):
    """Which class of `rekindle.agents` it is (its settings are those of `<class>Config`), and what it is for."""

    agent: str
    actions: tuple[str, ...]
    """The kinds of action space that it takes."""
    summary: str


ALGORITHMS = {
    "dqn": Algorithm("DQN", ("Discrete",), "deep Q-learning, with every part of Rainbow as a setting"),
    "ppo": Algorithm(
        "PPO", ("Discrete", "MultiDiscrete", "MultiBinary", "Box"), "proximal policy optimisation, on rollouts"
    ),
    "sac": Algorithm("SAC", ("Box",), "soft actor-critic, with automatic temperature"),
    "td3": Algorithm("TD3", ("Box",), "twin delayed deterministic policy gradients"),
    "tabular": Algorithm("Tabular", ("Discrete",), "Q-learning, SARSA and expected SARSA on a table"),
}


def config_type(name: str) -> type[msgspec.Struct]:
    """The settings of an algorithm; raises `ConfigError` for a name that there is not, and `MissingExtra`."""
    return getattr(agents, f"{_known(name).agent}Config")


def make_agent(
    name: str, observation_space: Any, action_space: Any, *, seed: int, settings: Mapping[str, Any] | None = None
) -> LearningAgent:
    """A new agent; settings may be as they stand in a config, such as lists for tuples."""
    algorithm = _known(name)
    kind = type(action_space).__name__
    if kind not in algorithm.actions:
        fitting = [other for other, known in ALGORITHMS.items() if kind in known.actions]
        raise ConfigError(
            f"{name} takes {' or '.join(algorithm.actions)} actions, and those of this environment are {kind}; "
            + (f"use {' or '.join(fitting)}" if fitting else "no algorithm here takes them")
        )
    config = converted(config_type(name), settings or {})
    fields = {field: getattr(config, field) for field in config.__struct_fields__}
    try:
        return getattr(agents, algorithm.agent)(observation_space, action_space, seed=seed, **fields)
    except MemoryError as error:
        sizes = {field: fields[field] for field in _SIZES if fields.get(field) is not None}
        told = ", ".join(f"{field}={value!r:.40}" for field, value in sizes.items())
        raise ConfigError(f"{name} needs more memory than this machine has: lower {told}") from error


_SIZES = ("capacity", "hidden_sizes", "batch_size", "rollout_steps", "minibatch_size", "atoms", "critics")
"""The settings that an agent's memory grows with."""


def algorithm_of(agent: LearningAgent) -> str | None:
    """The name of an agent's algorithm; None for an agent of one's own."""
    kind = type(agent)
    names = (name for name, known in ALGORITHMS.items() if known.agent == kind.__name__)
    return next((name for name in names if kind.__module__.startswith("rekindle.agents.")), None)


def agent_settings(agent: LearningAgent) -> dict[str, Any]:
    """The settings of an agent, as they stand in a config."""
    config = getattr(agent, "config", None)
    return msgspec.json.decode(msgspec.json.encode(config)) if isinstance(config, msgspec.Struct) else {}


def _known(name: str) -> Algorithm:
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    near = difflib.get_close_matches(name.lower(), ALGORITHMS, n=2, cutoff=0.5)
    advice = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(ALGORITHMS)}"
    raise ConfigError(f"there is no algorithm {name!r}; {advice}")


def converted(kind: type[msgspec.Struct], settings: Mapping[str, Any]) -> msgspec.Struct:
    """Settings as they stand in a config, checked; raises `ConfigError` that names an unknown or wrong one."""
    unknown = sorted(settings.keys() - set(kind.__struct_fields__))
    if unknown:
        near = difflib.get_close_matches(unknown[0], kind.__struct_fields__, n=2, cutoff=0.6)
        advice = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(kind.__struct_fields__)}"
        raise ConfigError(f"{kind.__name__} has no setting {unknown[0]!r}; {advice}")
    try:
        return msgspec.convert(plain(settings), kind)
    except (msgspec.ValidationError, TypeError, UnicodeEncodeError) as error:
        raise ConfigError(f"{kind.__name__}: {error}") from None


def plain(settings: Any) -> Any:
    """Settings as JSON has them, integers of numpy included; raises `TypeError` for what JSON cannot hold."""

    def encoded(value: Any) -> int:
        if isinstance(value, np.integer):
            return operator.index(cast("SupportsIndex", value))
        raise TypeError(f"a {type(value).__name__} cannot stand in a config")

    return msgspec.json.decode(msgspec.json.encode(settings, enc_hook=encoded))
