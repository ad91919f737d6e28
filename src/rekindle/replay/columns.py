"""The columns of a replay buffer for the values of a space, and arrays that fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from rekindle.errors import ConfigError, InputError
from rekindle.experience import Array, Observations
from rekindle.spaces import ActionStructure, ArraySpec, SpacePart, SpaceParts

__all__ = ["ObservationColumns", "fitted", "problem_with", "space_column"]


def space_column(space: Any, name: str) -> ArraySpec:
    """The column for values of a Box, Discrete, MultiDiscrete or MultiBinary space; raises `ConfigError`.

    A value of a Dict or Tuple of those is one row of numbers (see `ActionStructure`).
    """
    read, structure = SpaceParts.of(space), ActionStructure.of(space)
    if structure is not None:
        for key, part in read.parts.items():
            _column(part, f"{name} {key!r}")
        return structure.spec
    return _column(SpacePart(space, None) if read.is_dict else read.parts[""], name)


def _column(part: SpacePart, name: str) -> ArraySpec:
    if part.spec is not None and part.spec.dtype.kind in "biuf":
        return part.spec
    raise ConfigError(f"the space of {name} is {part.space!r:.120}: use Box, Discrete, MultiDiscrete or MultiBinary")


def problem_with(values: Array, column: ArraySpec, name: str, count: int) -> str | None:
    """Why these are not `count` rows of a column; None if they are."""
    dtype, shape = column.dtype, column.shape
    if values.shape != (count, *shape):
        return f"{name} has the shape {values.shape}, not {(count, *shape)}"
    if values.dtype != dtype and not _can_become(values.dtype, dtype):
        return f"{name} is {values.dtype}, not {dtype}"
    return None


@lru_cache(maxsize=256)
def _can_become(dtype: np.dtype[Any], column: np.dtype[Any]) -> bool:
    return np.can_cast(dtype, column, "same_kind" if column.kind == "f" else "safe")


def fitted(values: Observations, column: ArraySpec, name: str, count: int) -> Array:
    """Convert `count` values to the dtype of their column; raises `InputError`."""
    dtype, shape = column.dtype, column.shape
    if type(values) is np.ndarray and values.dtype is dtype and values.shape == (count, *shape):
        return values
    if not isinstance(values, np.ndarray):
        raise InputError(f"{name} must be an array, not a {type(values).__name__}")
    problem = problem_with(values, column, name, count)
    if problem is not None:
        raise InputError(f"these transitions do not fit the replay buffer: {problem}")
    return values.astype(dtype, copy=False)


class ObservationColumns(msgspec.Struct, frozen=True):
    """The columns of an observation: one, or one for each part of a Dict space, such as `observation.camera`."""

    columns: dict[str, ArraySpec]
    keys: tuple[str, ...] | None
    """The keys of a Dict space."""

    @classmethod
    def of(cls, space: Any) -> ObservationColumns:
        """For values of a space; raises `ConfigError`."""
        read = SpaceParts.of(space)
        if not read.is_dict:
            return cls({"observation": _column(read.parts[""], "observation")}, None)
        named = {f"observation.{key}": part for key, part in read.parts.items()}
        return cls({name: _column(part, name) for name, part in named.items()}, tuple(read.parts))

    def fitted(self, observations: Observations, name: str, count: int) -> list[Array]:
        """The arrays of `count` observations in the order of the columns; raises `InputError`."""
        if self.keys is None:
            return [fitted(observations, self.columns["observation"], name, count)]
        if not isinstance(observations, Mapping) or set(observations) != set(self.keys):
            raise InputError(f"{name} must be a dict with the keys {sorted(self.keys)}")
        columns = self.columns.values()
        return [fitted(observations[key], column, name, count) for key, column in zip(self.keys, columns, strict=True)]

    def observations(self, arrays: Sequence[Array]) -> Observations:
        """Arrays in the order of the columns, in the form that an agent takes."""
        return arrays[0] if self.keys is None else dict(zip(self.keys, arrays, strict=True))
