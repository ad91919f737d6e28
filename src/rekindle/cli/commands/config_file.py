"""`rekindle train --config FILE`: the options of a training from a TOML file."""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from rekindle.agents.names import advice_on
from rekindle.agents.settings import Linear
from rekindle.envs import EnvWrapping
from rekindle.errors import ConfigError, StorageError
from rekindle.training import TrainerSettings
from rekindle.training.algorithms import converted

__all__ = ["ConfigFile", "read_config_file", "schedule_value", "whole_numbers", "with_positionals"]

_OPTIONS = {
    "name": "name",
    "version": "version",
    "runs": "directory",
    "tag": "tags",
    "preset": "preset",
    "resume": "resumes",
    "from": "parent",
    "with_optimiser": "with_optimiser",
    "seeds": "seeds",
    "jobs": "jobs",
    "ui": "ui",
    "stay": "stay",
}
"""The options that are no settings, and the parameters of the command for them."""
_KINDS = {"jobs": int, "tag": tuple[str, ...], "with_optimiser": bool, "stay": bool}
"""Those that are not text."""
_TABLES = ("algorithm", "env", "agent")
_PERCENT = re.compile(r"[\d.eE+-]+%")
_SCHEDULE = re.compile(r"([\d.eE+-]+):([\d.eE+-]+):([\d.eE+_-]+%?)")


class ConfigFile(msgspec.Struct, frozen=True):
    """The options in a file, checked except for those of the agent."""

    path: str
    algorithm: str | None = None
    env: str | None = None
    training: dict[str, Any] = {}
    wrapping: dict[str, Any] = {}
    agent: dict[str, Any] = {}
    options: dict[str, Any] = {}
    """Other parameters of the command."""

    def defaults(self, agent: type[Any], *, preset: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults of the command; `preset` has those of a preset, by table."""
        try:
            return {
                **self.options,
                "training": msgspec.convert(
                    {**preset.get("training", {}), **whole_numbers(self.training, TrainerSettings)}, TrainerSettings
                ),
                "wrapping": msgspec.convert({**preset.get("wrapping", {}), **self.wrapping}, EnvWrapping),
                "agent": converted(agent, {**preset.get("agent", {}), **whole_numbers(self.agent, agent)}),
            }
        except (msgspec.ValidationError, ConfigError) as error:
            raise ConfigError(f"{self.path}: {error}" if self.path else str(error)) from None


def read_config_file(arguments: Sequence[str]) -> ConfigFile | None:
    """The file that `--config` names in the arguments; None if there is no such option."""
    places = [place for place, word in enumerate(arguments) if word.partition("=")[0] == "--config"]
    if not places:
        return None
    path = arguments[places[-1]].partition("=")[2] or "".join(arguments[places[-1] + 1 : places[-1] + 2])
    if not path:
        return None  # the parser says what is missing
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    env = document.get("env")
    table: dict[str, Any] = {"id": env} if isinstance(env, str) else _table(path, document, "env")
    known = (*_TABLES, *_OPTIONS, *TrainerSettings.__struct_fields__)
    _check_names(path, document, known)
    _check_names(f"{path}, [env]", table, ("id", "arguments", "modules", *EnvWrapping.__struct_fields__))
    agent = _table(path, document, "agent")
    options = {_OPTIONS[name]: _option(path, name, value) for name, value in document.items() if name in _OPTIONS}
    if "arguments" in table:
        options["arguments"] = {name: _text(value) for name, value in _table(path, table, "arguments").items()}
    if "modules" in table:
        options["modules"] = _option(path, "modules", table["modules"], tuple[str, ...])
    return ConfigFile(
        path,
        algorithm=_option(path, "algorithm", document.get("algorithm"), str | None),
        env=_option(path, "env", table.get("id"), str | None),
        training={name: value for name, value in document.items() if name in TrainerSettings.__struct_fields__},
        wrapping={name: value for name, value in table.items() if name in EnvWrapping.__struct_fields__},
        agent={name: schedule_value(f"{path}: agent.{name}", value) for name, value in agent.items()},
        options=options,
    )


def with_positionals(arguments: Sequence[str]) -> list[str]:
    """The arguments of `train`, with the algorithm and the environment of `--config` if they have none."""
    if (arguments and not arguments[0].startswith("-")) or (file := read_config_file(arguments)) is None:
        return list(arguments)
    if file.algorithm is None:
        raise ConfigError(f"{file.path} has no algorithm, and neither has the command: rekindle train ALGO ENV")
    return [file.algorithm, *([] if file.env is None else [file.env]), *arguments]


def _table(path: str, document: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} is {table!r:.80}: use a table [{name}]")
    return cast("dict[str, Any]", table)


def _check_names(where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}: there is no setting {name!r}; {advice_on(name, known)}")


def _option(path: str, name: str, value: Any, kind: Any = None) -> Any:
    try:
        checked: Any = msgspec.convert(value, kind or _KINDS.get(name, str))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {name}: {error}") from None
    return Path(checked) if name == "runs" else checked


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def schedule_value(name: str, value: Any) -> Any:
    """Text for a percentage of the training, or for a schedule, as on the command line."""
    if not isinstance(value, str):
        return value
    try:
        if _PERCENT.fullmatch(value):
            return float(value.removesuffix("%")) / 100
        if (parts := _SCHEDULE.fullmatch(value)) is None:
            return value
        steps = parts[3]
        length = float(steps.removesuffix("%")) / 100 if steps.endswith("%") else int(float(steps))
        return Linear(float(parts[1]), float(parts[2]), length)
    except (ValueError, OverflowError):
        raise ConfigError(f"{name} is {value!r:.60}: use a percentage such as '20%', or START:END:STEPS") from None


def whole_numbers(values: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Floats such as 1e5 as int, for fields that take no float; the text None, as on the command line, as None."""
    hints = typing.get_type_hints(kind)

    def whole(name: str, value: Any) -> Any:
        if isinstance(value, float) and value.is_integer() and not _takes_float(hints.get(name)):
            return int(value)
        return None if value == "None" else value

    return {name: whole(name, value) for name, value in values.items()}


def _takes_float(hint: Any) -> bool:
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return float in typing.get_args(hint) if is_union else hint is float
