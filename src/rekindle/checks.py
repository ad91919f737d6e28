"""Checks of user input."""

from __future__ import annotations

import cmath
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, SupportsIndex, TypeVar, cast

import msgspec
import numpy as np

from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import ActMode, Array, EpisodeStatus

__all__ = [
    "all_finite",
    "check_text",
    "checked_choice",
    "checked_count",
    "checked_extras",
    "checked_flag",
    "checked_mode",
    "checked_number",
    "checked_reward",
    "checked_status",
    "checked_whole",
    "every_row",
    "finite_rows",
    "is_mapping",
    "is_rising",
    "plain_number",
    "refuses_misfits",
    "required_count",
]

_Self = TypeVar("_Self")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_SMALL = 32
"""Up to this many numbers, Python is faster than numpy."""


def all_finite(arrays: Sequence[Array]) -> bool:
    """Whether the arrays contain neither NaN nor infinity; fast for small arrays."""
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
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{stream}: the reward {reward!r:.80} is not a number") from None


def checked_status(status: Any) -> EpisodeStatus:
    """A status, or its number, as an `EpisodeStatus`."""
    try:
        return EpisodeStatus(status)
    except (TypeError, ValueError):
        raise InputError(f"the status {status!r} is not one of {[item.name for item in EpisodeStatus]}") from None


def checked_mode(mode: Any) -> ActMode:
    """A mode, or its string value, as an `ActMode`."""
    try:
        return ActMode(mode)
    except (TypeError, ValueError):
        raise InputError(f"the mode {mode!r} is not one of {[item.value for item in ActMode]}") from None


def checked_number(name: str, value: Any) -> float:
    """A number as a float, finite or not."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} is not a number: {value!r:.80}") from None


def checked_whole(name: str, value: Any) -> int:
    """A whole number as an int; a float may hold it."""
    number = checked_number(name, value)
    if not number.is_integer():
        raise InputError(f"{name} is not a whole number: {value!r:.80}")
    return int(number)


def check_text(text: str, what: str) -> None:
    """Refuse text that UTF-8 cannot hold, and a log or checkpoint neither."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{what} is {text!r:.80}, which UTF-8 cannot hold: remove its lone surrogates") from None


def is_mapping(value: object) -> bool:
    """Whether a value of the host is a mapping; fast for a dict."""
    return type(value) is dict or isinstance(value, Mapping)


def checked_extras(extras: Mapping[str, Any] | None) -> dict[str, float]:
    """Extras as floats by name."""
    if extras is None:
        return {}
    if not is_mapping(extras):
        raise InputError(f"extras must be a dict of numbers, got {extras!r:.80}")
    checked: dict[str, float] = {}
    for name, value in extras.items():
        if type(name) is not str:
            raise InputError(f"the extra {name!r:.80} has no name: use a str as key")
        check_text(name, "the name of an extra")
        try:
            checked[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"the extra {name!r} is not a number: {value!r:.80}") from None
    return checked


def checked_count(name: str, value: object, least: int, most: int | None = None) -> int | None:
    """A setting that is None or a whole number from `least` to `most`, as a plain int; see `required_count`."""
    return None if value is None else _count(name, value, least, most, advice=", or None")


def required_count(name: str, value: object, least: int, most: int | None = None) -> int:
    """A whole number from `least` to `most` as a plain int; raises `ConfigError` for anything else.

    Integers of numpy and other libraries are accepted. Booleans and floats are not, even if they are whole.
    """
    return _count(name, value, least, most, advice="")


def _count(name: str, value: object, least: int, most: int | None, *, advice: str) -> int:
    try:
        count = None if isinstance(value, bool) else operator.index(cast("SupportsIndex", value))
    except TypeError:
        count = None
    if count is None or count < least or (most is not None and count > most):
        high = "" if most is None else f" and at most {most}"
        raise ConfigError(f"{name} is {value!r}: use a whole number of at least {least}{high}{advice}")
    return count


def plain_number(value: Any) -> Any:
    """A number of numpy as one of Python, which configs and checkpoints hold; also inside a list, tuple or array."""
    if isinstance(value, np.generic):
        return cast("Any", value).item()
    if isinstance(value, np.ndarray):
        return tuple(cast("Array", value).tolist())
    if isinstance(value, list | tuple):
        items = [plain_number(item) for item in cast("Sequence[Any]", value)]
        return items if isinstance(value, list) else tuple(items)
    return value


def checked_flag(name: str, value: object) -> bool:
    """A setting that is True or False, as a plain bool; raises `ConfigError` for anything else."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name} is {value!r:.80}: use True or False")
    return bool(cast("object", value))


def checked_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a setting that is not one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: use one of {', '.join(map(repr, choices))}")


def finite_rows(arrays: Sequence[Array]) -> Array | None:
    """Which rows contain only finite numbers; None if all do."""
    floats = [array for array in arrays if array.dtype.kind in "fc"]
    if sum([array.size for array in floats]) <= _SMALL and all_finite(floats):
        return None
    for array in floats:
        # The dot product is the fastest way to check all numbers; if it overflows, the slower check below decides.
        if not cmath.isfinite(np.vdot(array, array)):
            break
    else:
        return None
    good = np.ones(len(arrays[0]), np.bool_)
    for array in floats:
        good &= every_row(np.isfinite(array))
    return None if good.all() else good


def are_distinct(numbers: Array) -> bool:
    """Whether no number of an array of whole numbers occurs twice; fast if they are in order."""
    return is_rising(numbers) or len(set(numbers.tolist())) == len(numbers)


def is_rising(numbers: Array) -> bool:
    """Whether each number of an array with at least one is greater than the one before."""
    return np.count_nonzero(numbers[1:] > numbers[:-1]) == len(numbers) - 1


def every_row(flags: Array) -> Array:
    """Whether all flags of a row are set, for each row."""
    return flags if flags.ndim == 1 else np.all(flags.reshape(len(flags), -1), axis=1)


def refuses_misfits(
    load: Callable[Concatenate[_Self, _Arguments], _Result],
) -> Callable[Concatenate[_Self, _Arguments], _Result]:
    """Make a method that loads a state raise `StateError` for a state of the wrong form, which may come from any file.

    Otherwise an array instead of a dict, for example, would raise `AttributeError` or `ValueError` inside the method.
    """

    @functools.wraps(load)
    def checked(self: _Self, *args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        try:
            return load(self, *args, **options)
        except StateError:
            raise
        except (msgspec.ValidationError, AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise StateError(f"not the state of a {type(self).__name__}: {error}") from error

    return checked
