"""Runs of the same training: those of one name whose configs are equal, except for the seed and what records them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from rekindle.run.settings import flat_settings, setting_text
from rekindle.text import NOTHING

__all__ = ["config_identity", "differing_settings", "group_labels", "training_settings"]

T = TypeVar("T")

_NOT_TRAINING = frozenset(
    {
        "seed",
        "agent.seed",
        "env.seed",
        "name",
        "version",
        "preset",  # its settings are part of the config
        "determinism",
        "probe_steps",
        "workers",
        "eval_workers",
        "actors_on",
        "actor_patience",
        "checkpoint_every",
        "keep_checkpoints",
        "metrics_every",
        "keep_data",
        "data",  # a path; the digest of the data is part of the config
        "timeout_after",
        "fixed_length",
        "extras",
        "record",
        "time_limit",
    }
)
"""Settings that do not change what is trained: the seed, where things run and are stored, and how often."""
_DEEPEST = 32
_MOST_IN_LABEL = 3
_LONGEST_NUMBER = 8
"""The most characters of a number in a label that is not rounded."""


def training_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config that determine the training, with dotted names."""
    flat = flat_settings(config, depth=_DEEPEST)
    return {name: value for name, value in flat.items() if name not in _NOT_TRAINING}


def config_identity(config: Mapping[str, Any]) -> str:
    """A short digest that is equal for runs of the same training with other seeds.

    >>> config_identity({"steps": 100, "seed": 1}) == config_identity({"seed": 2, "steps": 100})
    True
    """
    plain = msgspec.json.encode(training_settings(config), order="deterministic")
    return hashlib.blake2b(plain, digest_size=6).hexdigest()


def differing_settings(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the training's settings that are not the same in all configs."""
    flat = [training_settings(config) for config in configs]
    names = sorted({name for settings in flat for name in settings})
    return [name for name in names if len({_text(settings, name) for settings in flat}) > 1]


def group_labels(groups: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A different label for each group of a name and a config: the name, with settings if several have that name.

    >>> group_labels([("a", {"agent": {"rate": 1}}), ("a", {"agent": {"rate": 2}}), ("b", {})])
    ['a, rate 1', 'a, rate 2', 'b']
    """
    known = list(groups)
    configs: dict[str, list[Mapping[str, Any]]] = {}
    for name, config in known:
        configs.setdefault(name, []).append(config)
    differing = {name: differing_settings(same)[:_MOST_IN_LABEL] for name, same in configs.items() if len(same) > 1}

    def label(name: str, config: Mapping[str, Any], *, is_short: bool) -> str:
        names = differing.get(name, [])
        settings = training_settings(config) if names else {}
        parts = [f"{key.rpartition('.')[2]} {_text(settings, key, is_short=is_short)}" for key in names]
        return ", ".join([name, *parts])

    short = [label(name, config, is_short=True) for name, config in known]
    found = Counter(short)
    labels = [
        text if found[text] == 1 else label(name, config, is_short=False)
        for text, (name, config) in zip(short, known, strict=True)
    ]
    found = Counter(labels)
    return [text if found[text] == 1 else f"{text} ({number})" for number, text in enumerate(labels, 1)]


def _text(settings: Mapping[str, Any], name: str, *, is_short: bool = False) -> str:
    if name not in settings:
        return NOTHING
    value, text = settings[name], setting_text(settings[name])
    is_long = isinstance(value, float) and len(text) > _LONGEST_NUMBER
    return f"{value:.6g}" if is_short and is_long else text
