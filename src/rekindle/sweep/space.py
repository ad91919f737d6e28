"""The space of a sweep: which settings it varies, and over which values."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from rekindle.errors import ConfigError
from rekindle.run.settings import setting_text
from rekindle.storage import files

__all__ = ["Choice", "Parameter", "Range", "Space", "built_in_space", "parse_space", "read_space", "space_text"]

_MOST_BYTES = 2**20
_MOST_CHOICES = 1000
_DIGITS = 4
"""Significant digits of a drawn number: more say nothing, and are hard to read."""


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers between two ends, both included; integers if both ends are."""

    low: int | float
    high: int | float
    log: bool = False
    """Draw on a logarithmic scale."""

    def __post_init__(self) -> None:
        """Refuse ends that are no range."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"low is {self.low} and high is {self.high}: use two numbers, the lower one first")
        if self.log and self.low <= 0:
            raise ConfigError(f"low is {self.low}: a logarithmic scale needs a number above 0")

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def value(self, unit: float) -> int | float:
        """The value at a place from 0 (low) to 1 (high) on its scale."""
        margin = 0.5 if self.is_integer else 0.0  # so that the ends are as likely as other integers
        start, end = self._scaled(self.low - margin), self._scaled(self.high + margin)
        place = start + unit * (end - start)
        number = math.exp(place) if self.log else place
        if self.is_integer:
            return int(min(max(round(number), self.low), self.high))
        return min(max(float(f"{number:.{_DIGITS}g}"), float(self.low)), float(self.high))

    def unit(self, value: float) -> float:
        """The place of a value, from 0 to 1."""
        margin = 0.5 if self.is_integer else 0.0
        start, end = self._scaled(self.low - margin), self._scaled(self.high + margin)
        return min(max((self._scaled(value) - start) / (end - start), 0.0), 1.0)

    def _scaled(self, number: float) -> float:
        return math.log(number) if self.log else float(number)


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several values."""

    choice: tuple[Any, ...]

    def __post_init__(self) -> None:
        """Refuse a choice without an alternative."""
        if not 2 <= len(self.choice) <= _MOST_CHOICES or len(set(map(setting_text, self.choice))) < len(self.choice):
            raise ConfigError(f"choice has {len(self.choice)} values: use 2 to {_MOST_CHOICES} different ones")

    def index(self, value: Any) -> int:
        """Which of the values it is."""
        return [setting_text(one) for one in self.choice].index(setting_text(value))


Parameter: TypeAlias = Range | Choice
Space: TypeAlias = dict[str, Parameter]
"""What is varied, by the dotted name of the setting: `agent.learning_rate`, `num_envs`, `env.frame_stack`."""


def read_space(path: Path) -> Space:
    """The space in a TOML file; raises `ConfigError`."""
    try:
        return parse_space(files.read_bytes(path, most=_MOST_BYTES).decode(), source=str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None


def parse_space(text: str, *, source: str = "the space") -> Space:
    """A space from TOML.

    >>> parse_space("agent.gamma = { choice = [0.9, 0.99] }")
    {'agent.gamma': Choice(choice=(0.9, 0.99))}
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from None
    space = _flat(tables, source)
    if not space:
        raise ConfigError(f"{source} varies nothing: add a setting such as agent.gamma = {{ choice = [0.9, 0.99] }}")
    return space


@functools.cache
def _built_in() -> dict[str, Any]:
    return tomllib.loads(resources.files("rekindle.sweep").joinpath("spaces.toml").read_text("utf-8"))


def built_in_space(algorithm: str) -> Space:
    """The space that comes with an algorithm; raises `ConfigError` for an agent of your own."""
    if algorithm not in _built_in():
        raise ConfigError(f"there is no built-in space for {algorithm}: write one, and pass it with --space FILE")
    return _flat(_built_in()[algorithm], f"the space of {algorithm}")


def space_text(space: Mapping[str, Parameter]) -> str:
    """A space as TOML, to begin one of your own with."""
    lines: list[str] = []
    for name, parameter in space.items():
        fields = msgspec.to_builtins(parameter)
        kept = {key: value for key, value in fields.items() if value is not False}
        lines.append(f"{name} = {{ {', '.join(f'{key} = {_toml(value)}' for key, value in kept.items())} }}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    # TOML and JSON write numbers, strings, booleans and lists alike.
    return msgspec.json.encode(value).decode().replace(",", ", ")


def _flat(tables: Mapping[str, Any], source: str, prefix: str = "") -> Space:
    space: Space = {}
    for key, value in tables.items():
        name = f"{prefix}{key}"
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: {name} is {value!r:.60}; use {{ low, high }} or {{ choice = [...] }}")
        table = cast("dict[str, Any]", value)
        if not table.keys() & {"low", "high", "choice"}:
            space |= _flat(table, source, f"{name}.")
            continue
        kind = Choice if "choice" in table else Range
        try:
            space[name] = msgspec.convert(table, kind)
        except (msgspec.ValidationError, ConfigError) as error:
            raise ConfigError(f"{source}: {name}: {error}") from None
    return space
