"""`rekindle train --like`: the settings of a trial of a study as the defaults of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rekindle.envs import EnvSettings, EnvWrapping
from rekindle.envs.factory import required_files
from rekindle.errors import ConfigError
from rekindle.sweep.directory import find_trial
from rekindle.text import path_text
from rekindle.training import TrainerSettings
from rekindle.training.algorithms import config_type, converted, is_algorithm
from rekindle.training.config import check_modules

__all__ = ["like_defaults", "trial_name", "with_likeness"]

_FLAG = "--like"


def with_likeness(arguments: Sequence[str]) -> list[str]:
    """The arguments of `train` with the algorithm and the environment of the trial that `--like` names."""
    like = _named(arguments)
    if like is None:
        return list(arguments)
    study, _ = find_trial(like)
    settings = study.settings
    first = arguments[0] if not arguments[0].startswith("-") else None
    if first is not None:
        if first != settings.algorithm:
            raise ConfigError(f"{like} is a study of {settings.algorithm}, not of {first}: leave ALGO and ENV out")
        return list(arguments)
    _check_trust(arguments, settings.algorithm, settings.env, like)
    env = [] if settings.env is None else [settings.env.id]
    return [settings.algorithm, *env, *arguments]


def like_defaults(arguments: Sequence[str]) -> dict[str, Any]:
    """The defaults of `train` that are the settings of the trial that `--like` names; empty without it."""
    like = _named(arguments)
    if like is None:
        return {}
    study, trial = find_trial(like)
    settings = study.settings
    options = settings.options(trial.settings, seed=settings.training.seed)
    factory = options["env"]
    known = None if factory is None else factory.settings
    fields: dict[str, Any] = {
        name: options[name] for name in TrainerSettings.__struct_fields__ if name not in ("seed", "record")
    }
    fields["keep_checkpoints"] = TrainerSettings().keep_checkpoints
    return {
        "agent": converted(config_type(settings.algorithm), options["agent_settings"]),
        "training": TrainerSettings(**fields),
        "wrapping": EnvWrapping()
        if known is None
        else EnvWrapping(**{name: getattr(known, name) for name in EnvWrapping.__struct_fields__}),
        "arguments": {} if known is None else {name: _text(value) for name, value in known.arguments.items()},
    }


def trial_name(like: str) -> str:
    """`STUDY@NUMBER` of the trial that `--like` names."""
    study, trial = find_trial(like)
    return f"{path_text(study.path)}@{trial.number}"


def _named(arguments: Sequence[str]) -> str | None:
    for place, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag == _FLAG:
            return value if equals else next(iter(arguments[place + 1 : place + 2]), None)
    return None


def _check_trust(arguments: Sequence[str], algorithm: str, env: EnvSettings | None, like: str) -> None:
    """Import nothing, and open nothing, that only the study names: it may come from someone else."""
    allowed: list[str] = []
    is_module = False
    for word in arguments:
        if word.startswith("--"):
            is_module = word == "--env-module"
        elif is_module:
            allowed.append(word)
    own = [algorithm.partition(":")[0]] if ":" in algorithm and is_algorithm(algorithm) else []
    modules = [] if env is None else [*env.modules, *([env.id.partition(":")[0]] if ":" in env.id else [])]
    check_modules(allowed, env=[*modules, *own])
    if env is not None and (files := required_files(env)):
        raise ConfigError(f"{like} gives {files[0]!r:.200} to the environment: name ALGO and ENV to allow that")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
