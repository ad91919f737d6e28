"""What settings of all agents share: schedules over env steps, ranges, and errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from rekindle.errors import ConfigError

__all__ = ["Linear", "Setting", "check_fraction", "check_number", "check_whole", "make_config", "value_at"]

Config = TypeVar("Config", bound=msgspec.Struct)


class Linear(msgspec.Struct, frozen=True):
    """A value that moves in a straight line over env steps, and then stays."""

    start: float
    end: float
    steps: int
    """Env steps, counted from the first."""

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        if not (math.isfinite(self.start) and math.isfinite(self.end) and self.steps >= 1):
            raise ConfigError(f"{self} is not a schedule: use finite ends and at least 1 step")

    def at(self, env_steps: int) -> float:
        """The value after so many env steps."""
        return self.start + (self.end - self.start) * min(1.0, env_steps / self.steps)


Setting = float | Linear
"""A number, or a schedule for it."""


def value_at(setting: Setting, env_steps: int) -> float:
    """What a setting is after so many env steps."""
    return setting.at(env_steps) if isinstance(setting, Linear) else setting


def make_config(kind: type[Config], settings: Mapping[str, Any]) -> Config:
    """A config from keyword arguments; raises `ConfigError` that names an unknown or wrong field."""
    known = kind.__struct_fields__
    unknown = sorted(settings.keys() - set(known))
    if unknown:
        raise ConfigError(f"{kind.__name__} has no setting {', '.join(unknown)}; there are {', '.join(known)}")
    return kind(**settings)


def check_number(name: str, value: Any, least: float = 0.0, most: float = math.inf, *, exclusive: bool = False) -> None:
    """Refuse a number (or the ends of a schedule) outside a range; `exclusive` leaves out the least itself."""
    for number in (value.start, value.end) if isinstance(value, Linear) else (value,):
        is_number = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
        above = is_number and (number > least if exclusive else number >= least)
        if not above or number > most:
            low = f"above {least:g}" if exclusive else f"of at least {least:g}"
            high = "" if most == math.inf else f" and at most {most:g}"
            raise ConfigError(f"{name} is {value!r}: use a number {low}{high}")


def check_fraction(name: str, value: Any) -> None:
    """Refuse what is not between 0 and 1."""
    check_number(name, value, 0.0, 1.0)


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least so much."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}: use a whole number of at least {least}")
