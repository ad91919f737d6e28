"""Checks of the values in a data set; an error names the file, the field and the row."""

from __future__ import annotations

from typing import Any

import numpy as np

from rekindle.checks import every_row
from rekindle.errors import DataError
from rekindle.experience import Array, EpisodeStatus
from rekindle.spaces import ArraySpec

__all__ = [
    "check_actions",
    "check_fixed_length",
    "check_numbers",
    "check_observations",
    "converted",
    "read_flags",
]

_TOLERANCE = 1e-4
"""How far an action may be outside of the bounds of its space: files are often rounded."""
_FEW_EPISODES = 3
_FEW_STEPS = 20
"""The tasks of shorter episodes often end after the same number of steps."""
_LARGEST = float(np.finfo(np.float32).max)
_TERMINATED, _TRUNCATED = int(EpisodeStatus.TERMINATED), int(EpisodeStatus.TRUNCATED)


def check_numbers(array: Array, *, name: str, first: int = 0) -> None:
    """Raise `DataError` with the first row that agents cannot learn from, as they compute with float32.

    Such a row has NaN, infinity, or a number that is too large for a float32. Rows are counted from `first`.
    """
    if array.dtype.kind != "f":
        return
    good = is_finite = np.isfinite(array)
    if array.dtype.itemsize > np.dtype(np.float32).itemsize:
        good = is_finite & (np.abs(array) <= _LARGEST)
    if not good.all():
        index = int(np.argmin(every_row(good)))
        row, numbers = f"{name}: row {first + index}", f"{array[index].tolist()!r:.80}"
        if is_finite[index].all():
            raise DataError(f"{row} is {numbers}, which is too large for a float32")
        raise DataError(f"{row} is not finite: {numbers}")


def check_actions(actions: Array, space: Any, *, name: str, first: int = 0) -> None:
    """Raise `DataError` with the first action outside of a space that is one array."""
    low, high = _limits(space)
    if low is None:
        return
    inside: Array = every_row((actions >= low) & (actions <= high))
    if not inside.all():
        index = int(np.argmin(inside))
        raise DataError(f"{name}: row {first + index} is {actions[index]!r:.80}, outside of the space {space!r:.80}")


def check_observations(observations: Array, space: Any, *, name: str, first: int = 0) -> None:
    """Raise `DataError` with the first observation outside of a discrete space; the bounds of a Box do not matter."""
    if type(space).__name__ != "Box":
        check_actions(observations, space, name=name, first=first)


def _limits(space: Any) -> tuple[Any, Any]:
    match type(space).__name__:
        case "Box":
            return space.low - _TOLERANCE, space.high + _TOLERANCE
        case "Discrete":
            return int(space.start), int(space.start) + int(space.n) - 1
        case "MultiDiscrete":
            return space.start, space.start + space.nvec - 1
        case "MultiBinary":
            return 0, 1
        case _:
            return None, None


def check_fixed_length(lengths: Array, ends: Array, *, name: str, fields: tuple[str, str]) -> str | None:
    """Raise `DataError` if every episode terminates after the same number of steps: that is a time limit.

    If only the longest episodes do, that may be one as well: returns a warning. `fields` are the names of the flags for
    terminations and truncations in the file.
    """
    if len(lengths) < _FEW_EPISODES or lengths[0] == 1 or (ends == _TRUNCATED).any():
        return None
    if (lengths == lengths[0]).all() and (ends == _TERMINATED).all():
        raise DataError(
            f"{name}: {fields[0]}: all {len(lengths)} episodes terminate after exactly {lengths[0]} "
            f"steps, which looks like a time limit: mark their last rows (the first is row {int(lengths[0]) - 1}) in "
            f"{fields[1]} instead, or pass --fixed-length (in Python, fixed_length=True) if the "
            "task ends there"
        )
    longest = int(lengths.max())
    at_limit = np.flatnonzero((lengths == longest) & (ends == _TERMINATED))
    if longest < _FEW_STEPS or len(at_limit) < _FEW_EPISODES:
        return None
    return (
        f"{name}: {fields[0]}: {len(at_limit)} of {len(lengths)} episodes terminate after exactly {longest} steps, and "
        f"none is longer: if that is a time limit, mark their last rows (the first is that of episode {at_limit[0]}) "
        f"in {fields[1]} instead, as values are wrong otherwise; pass --fixed-length (in Python, fixed_length=True) "
        "if the task ends there"
    )


def converted(values: Array, spec: ArraySpec, *, name: str, first: int = 0) -> Array:
    """Values in the dtype of their space; raises `DataError` if they have another shape, or would change."""
    if values.shape[1:] != spec.shape:
        raise DataError(f"{name}: a value has the shape {values.shape[1:]}, but {spec.shape} in the space")
    check_numbers(values, name=name, first=first)
    if values.dtype == spec.dtype:
        return values
    if not np.can_cast(values.dtype, spec.dtype, "same_kind"):
        result: Array = values.astype(spec.dtype)
        same = every_row(result == values)
        if not same.all() or values.dtype.kind == "f":
            row = int(np.argmin(same)) + first
            raise DataError(f"{name}: it is {values.dtype}, but {spec.dtype} in the space; see row {row}")
        return result
    with np.errstate(over="ignore"):
        result = values.astype(spec.dtype)
    check_numbers(result, name=f"{name} as {spec.dtype}", first=first)
    if spec.dtype.kind != "f" and not np.array_equal(result, values):
        row = first + int(np.argmin(every_row(result == values)))
        raise DataError(f"{name}: row {row} does not fit {spec.dtype}")
    return result


def read_flags(values: Array, rows: int, *, name: str) -> Array:
    """One flag a row; raises `DataError`."""
    if values.shape not in ((rows,), (rows, 1)):
        raise DataError(f"{name} has the shape {values.shape}, and {rows} rows need {(rows,)}")
    values = values.reshape(rows)
    flags: Array = values.astype(np.bool_)
    if values.dtype.kind == "f":
        check_numbers(values, name=name)
    if not np.array_equal(flags, values):
        row = int(np.argmin(flags == values))
        raise DataError(f"{name}: row {row} is {values[row]}, which is neither true nor false")
    return flags
