"""Checks of what a user passes in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rekindle.errors import ConfigError, InputError
from rekindle.experience import Array, EpisodeStatus

__all__ = ["all_finite", "checked_choice", "checked_count", "checked_extras", "checked_reward", "checked_status"]

_SMALL = 32
"""Up to this many numbers Python is quicker than numpy."""


def all_finite(arrays: Sequence[Array]) -> bool:
    """Whether the arrays hold no NaN and no infinity; cheap for small ones."""
    for array in arrays:
        kind = array.dtype.kind
        if kind == "f" and array.size <= _SMALL:
            if not all(map(math.isfinite, array.ravel().tolist())):
                return False
        elif kind in "fc" and not np.isfinite(array).all():
            return False
    return True


def checked_reward(reward: Any, stream: str) -> float:
    """A reward as a float, finite or not."""
    try:
        return float(reward)
    except (TypeError, ValueError):
        raise InputError(f"{stream}: the reward {reward!r:.80} is not a number") from None


def checked_status(status: Any) -> EpisodeStatus:
    """A status, also from its number."""
    try:
        return EpisodeStatus(status)
    except ValueError:
        raise InputError(f"the status {status!r} is not one of {[item.name for item in EpisodeStatus]}") from None


def checked_extras(extras: Mapping[str, Any] | None) -> dict[str, float]:
    """Numbers by name, as floats."""
    checked: dict[str, float] = {}
    for name, value in (extras or {}).items():
        try:
            checked[name] = float(value)
        except (TypeError, ValueError):
            raise InputError(f"the extra {name!r} is not a number: {value!r:.80}") from None
    return checked


def checked_count(name: str, value: object, least: int) -> None:
    """Refuse a setting that is neither None nor a whole number of at least so much."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise ConfigError(f"{name} is {value!r}: use a whole number of at least {least}, or None")


def checked_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a setting that is not one of a few words."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: use one of {', '.join(map(repr, choices))}")
