"""Algorithms by name: those of `rekindle.agents`, and classes of other modules as `module:Class`.

A class of another module follows the conventions of `rekindle.agents`: it is created as
`Class(observation_space, action_space, seed=seed, **settings)`. Its settings are the fields of `Class.Config`, or of
`<Class>Config` in the module of the class: a `msgspec.Struct` or a dataclass with a default for every field.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from rekindle import agents
from rekindle.agent import LearningAgent
from rekindle.agents.names import advice_on
from rekindle.agents.settings import network_setting, refuse_functions
from rekindle.errors import ConfigError, RekindleError
from rekindle.stages import stage

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "NoSettings",
    "agent_module",
    "agent_settings",
    "algorithm_of",
    "config_type",
    "converted",
    "fields_of",
    "is_algorithm",
    "make_agent",
    "named_algorithm",
    "plain",
    "with_named_network",
]


class Algorithm(msgspec.Struct, frozen=True):
    """The class in `rekindle.agents` (its settings are those of `<class>Config`), and a summary of it."""

    agent: str
    actions: tuple[str, ...]
    """The kinds of action space that it supports."""
    summary: str


_DISCRETE = ("Discrete", "MultiDiscrete", "MultiBinary")
ALGORITHMS = {
    "dqn": Algorithm("DQN", ("Discrete",), "deep Q-learning, with Rainbow, QR-DQN and CQL as settings"),
    "iqn": Algorithm("IQN", ("Discrete",), "implicit quantile networks: the distribution of returns"),
    "ppo": Algorithm(
        "PPO",
        (*_DISCRETE, "Box", "Dict", "Tuple"),
        "proximal policy optimisation, on rollouts",
    ),
    "sac": Algorithm("SAC", ("Box",), "soft actor-critic, with automatic temperature"),
    "td3": Algorithm("TD3", ("Box",), "twin delayed deterministic policy gradients, with TD3+BC as a setting"),
    "bc": Algorithm("BC", (*_DISCRETE, "Box"), "behaviour cloning, from data"),
    "awac": Algorithm("AWAC", ("Box",), "advantage-weighted actor-critic, from data"),
    "iql": Algorithm("IQL", (*_DISCRETE, "Box"), "implicit Q-learning, from data"),
    "tabular": Algorithm("Tabular", ("Discrete",), "Q-learning, SARSA and expected SARSA on a table"),
}

_SETTINGS = {
    "a2c": "ppo, which is its successor",
    "c51": "dqn with --agent.atoms 51",
    "cql": "dqn with --agent.cql-alpha 1",
    "ddpg": "td3, which is its successor",
    "ddqn": "dqn with --agent.double",
    "qr-dqn": "dqn with --agent.quantiles 50",
    "qrdqn": "dqn with --agent.quantiles 50",
    "td3+bc": "td3 with --agent.bc-alpha 2.5",
    "td3bc": "td3 with --agent.bc-alpha 2.5",
    "trpo": "ppo, which is its successor",
}
"""Algorithms elsewhere, and what to use here."""

_OUTSIDE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


class NoSettings(msgspec.Struct, frozen=True):
    """The settings of an agent that has none."""


def is_algorithm(name: str) -> bool:
    """Whether a word may be the name of an algorithm: one of ours, or `module:Class`."""
    return name in ALGORITHMS or _OUTSIDE.fullmatch(name) is not None


def agent_module(name: str) -> str | None:
    """The module that is imported to create an agent of this name; None for one of ours."""
    outside = None if name in ALGORITHMS else _OUTSIDE.fullmatch(name)
    return None if outside is None else outside[1]


def config_type(name: str) -> type[Any]:
    """The settings class of an algorithm; raises `ConfigError` for an unknown name, and `MissingExtra`.

    Imports the module of `module:Class`.
    """
    if name in ALGORITHMS:
        return getattr(agents, f"{ALGORITHMS[name].agent}Config")
    kind = _agent_class(name)
    module = sys.modules.get(kind.__module__)
    config: Any = getattr(kind, "Config", None) or getattr(module, f"{kind.__name__}Config", NoSettings)
    if not _holds_settings(config):
        raise ConfigError(f"the settings of {name}, {config!r:.80}, are neither a msgspec.Struct nor a dataclass")
    try:
        config()
    except TypeError as error:
        raise ConfigError(f"{config.__name__}, the settings of {name}: every field needs a default ({error})") from None
    return config


def _holds_settings(config: Any) -> bool:
    kind: Any = config if isinstance(config, type) else None
    return kind is not None and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind))


def make_agent(
    name: str,
    observation_space: Any,
    action_space: Any,
    *,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    others: Mapping[str, Sequence[str]] | None = None,
    is_offline: bool = False,
) -> LearningAgent:
    """Create an agent; `settings` may be in their JSON form, such as lists for tuples; `others`: see `converted`.

    If it is to learn from data alone (`is_offline`), its replay buffer, which stays empty, takes little memory.
    """
    stage(f"creating the agent {name}")
    make = _agent_class(name)
    if name in ALGORITHMS:
        _check_actions(name, type(action_space).__name__)
    config = converted(config_type(name), settings or {}, others=others)
    fields = fields_of(config)
    given = dict(fields)
    if is_offline and name in ALGORITHMS and {"capacity", "batch_size"} <= given.keys():
        given["capacity"] = min(given["capacity"], max(_UNUSED_CAPACITY, given["batch_size"]))
    try:
        agent: Any = make(observation_space, action_space, seed=seed, **given)
    except RekindleError:
        raise
    except (MemoryError, ValueError) as error:
        if isinstance(error, ValueError) and "too big" not in str(error):
            raise
        sizes = {field: fields[field] for field in _SIZES if fields.get(field) is not None}
        shown = ", ".join(f"{field}={value!r:.40}" for field, value in sizes.items())
        spaces = f"{observation_space!r:.60} and {action_space!r:.60}"
        raise ConfigError(
            f"{name} needs more memory than this machine has: lower {shown}; its spaces are {spaces}"
        ) from error
    except Exception as error:
        if name in ALGORITHMS:
            raise
        raise ConfigError(
            f"{name} could not be created as {make.__name__}(observation_space, action_space, seed=seed, **settings): "
            f"{type(error).__name__}: {error}"
        ) from error
    if given != fields:
        agent.config = config
    return agent


def _check_actions(name: str, kind: str) -> None:
    takes = ALGORITHMS[name].actions
    if kind not in takes:
        fitting = [other for other, known in ALGORITHMS.items() if kind in known.actions]
        raise ConfigError(
            f"{name} takes {' or '.join(takes)} actions, and those of this environment are {kind}; "
            + (f"use {' or '.join(fitting)}" if fitting else "no algorithm here takes them")
        )


_UNUSED_CAPACITY = 1_000
"""Rows of a replay buffer that stays empty."""
_SIZES = ("capacity", "hidden_sizes", "batch_size", "rollout_steps", "minibatch_size", "atoms", "quantiles", "critics")
"""The settings that determine how much memory an agent needs."""


def algorithm_of(agent: LearningAgent) -> str | None:
    """The name of an agent's algorithm; None for a custom agent."""
    return named_algorithm(type(agent))


def named_algorithm(kind: type[Any]) -> str | None:
    """The name of the algorithm whose agent is this class; None for a class of another package."""
    names = (name for name, known in ALGORITHMS.items() if known.agent == kind.__name__)
    return next((name for name in names if kind.__module__.startswith("rekindle.agents.")), None)


def agent_settings(
    agent: LearningAgent, name: str | None = None, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The settings of an agent, in the form of a config.

    They are its `config`; without one, they are the settings that it was created with by name.
    """
    config = getattr(agent, "config", None)
    if name is not None and not isinstance(config, config_type(name)):
        config = converted(config_type(name), given or {})
    if name is None and not isinstance(config, msgspec.Struct):
        return {}
    return msgspec.json.decode(msgspec.json.encode(fields_of(config)))


def _agent_class(name: str) -> Callable[..., LearningAgent]:
    if name in ALGORITHMS:
        return getattr(agents, ALGORITHMS[name].agent)
    outside = _OUTSIDE.fullmatch(name)
    if outside is None:
        if (setting := _SETTINGS.get(name.lower())) is not None:
            raise ConfigError(f"there is no algorithm {name!r}; use {setting}")
        near = difflib.get_close_matches(name.lower(), ALGORITHMS, n=2, cutoff=0.5)
        advice = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(ALGORITHMS)}"
        own = "" if near else ", or module:Class for one of your own"
        raise ConfigError(f"there is no algorithm {name!r}; {advice}{own}")
    module_name, class_name = outside.groups()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"{name}: {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise ConfigError(f"{name}: the module {module_name} has no class {class_name}")
    return cast("Callable[..., LearningAgent]", found)


def fields_of(config: Any) -> dict[str, Any]:
    """The settings in a struct or dataclass, as a dict."""
    return {name: getattr(config, name) for name in _names(cast("type[Any]", type(config)))}


def _names(kind: type[Any]) -> tuple[str, ...]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(kind))


def converted(
    kind: type[Any], settings: Mapping[str, Any], *, others: Mapping[str, Sequence[str]] | None = None
) -> Any:
    """Check settings from a config and convert them; raises `ConfigError` that names an unknown or invalid one.

    `others` are the settings of the trainer and the like, by owner: if an unknown one is among them, the error says so.
    """
    known = _names(kind)
    unknown = sorted(settings.keys() - set(known))
    if unknown:
        advice = advice_on(unknown[0], known, others=others)
        raise ConfigError(f"{kind.__name__} has no setting {unknown[0]!r}; {advice}")
    refuse_functions(settings)
    try:
        return msgspec.convert(plain(settings), kind)
    except (msgspec.ValidationError, TypeError, UnicodeEncodeError) as error:
        raise ConfigError(f"{kind.__name__}: {error}") from None


def with_named_network(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose `network` is text: a class or function is replaced by `module:Name`, as a config stores it.

    Raises `ConfigError` for one that cannot be imported by a name, such as a module of equinox or a lambda.
    """
    network = settings.get("network")
    if network is None or isinstance(network, str):
        return dict(settings)
    name = network_setting(network)
    module, _, attribute = (name or "").partition(":")
    if name is None or getattr(sys.modules.get(module), attribute, None) is not network:
        raise ConfigError(
            f"agent_settings: the network {network!r:.80} cannot be part of a config, as no name imports it: use "
            "'module:Name' of a class or function, or give the trainer a function that creates the agent, such as "
            "lambda observations, actions: DQN(observations, actions, seed=0, network=network)"
        )
    return {**settings, "network": name}


def plain(settings: Any) -> Any:
    """Settings as JSON values, including numbers of numpy; raises `TypeError` for values that JSON does not support."""

    def encoded(value: Any) -> Any:
        if isinstance(value, np.generic):
            return cast("Any", value).item()
        raise TypeError(f"a {type(value).__name__} cannot be part of a config")

    return msgspec.json.decode(msgspec.json.encode(settings, enc_hook=encoded))
