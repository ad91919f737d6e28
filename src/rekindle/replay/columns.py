"""Spaces as columns of a memory, and arrays that fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.agent import Column
from rekindle.errors import ConfigError, InputError
from rekindle.experience import Array, Observations

__all__ = ["ObservationColumns", "fitted", "problem_with", "space_column"]


def space_column(space: Any, name: str) -> Column:
    """The column for values of a Box, Discrete, MultiDiscrete or MultiBinary space; raises `ConfigError`."""
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None and np.dtype(dtype).kind in "biuf":
        return Column(np.dtype(dtype), cast("tuple[int, ...]", shape))
    raise ConfigError(f"the space of {name} is {space!r:.120}: use Box, Discrete, MultiDiscrete or MultiBinary")


def problem_with(values: Array, column: Column, name: str, count: int) -> str | None:
    """Why these cannot be `count` rows of a column, if they cannot."""
    dtype, shape = column
    if values.shape != (count, *shape):
        return f"{name} has the shape {values.shape}, not {(count, *shape)}"
    if values.dtype != dtype and not _can_become(values.dtype, dtype):
        return f"{name} is {values.dtype}, not {dtype}"
    return None


@lru_cache(maxsize=256)
def _can_become(dtype: np.dtype[Any], column: np.dtype[Any]) -> bool:
    return np.can_cast(dtype, column, "same_kind" if column.kind == "f" else "safe")


def fitted(values: Observations, column: Column, name: str, count: int) -> Array:
    """These `count` values in the dtype of their column; raises `InputError`."""
    dtype, shape = column
    if type(values) is np.ndarray and values.dtype is dtype and values.shape == (count, *shape):
        return values
    if not isinstance(values, np.ndarray):
        raise InputError(f"{name} must be an array, not a {type(values).__name__}")
    problem = problem_with(values, column, name, count)
    if problem is not None:
        raise InputError(f"these transitions do not fit the memory: {problem}")
    return values.astype(dtype, copy=False)


class ObservationColumns(msgspec.Struct, frozen=True):
    """The columns of an observation: one, or for a Dict space one for each part, such as `observation.camera`."""

    columns: dict[str, Column]
    keys: tuple[str, ...] | None
    """The keys of a Dict space."""

    @classmethod
    def of(cls, space: Any) -> ObservationColumns:
        """For values of a space; raises `ConfigError`."""
        parts = getattr(space, "spaces", None)
        if not isinstance(parts, Mapping):
            return cls({"observation": space_column(space, "observation")}, None)
        named = {f"observation.{key}": part for key, part in cast("Mapping[str, Any]", parts).items()}
        return cls({name: space_column(part, name) for name, part in named.items()}, tuple(cast("Any", parts)))

    def fitted(self, observations: Observations, name: str, count: int) -> list[Array]:
        """The arrays of `count` observations in the order of the columns; raises `InputError`."""
        if self.keys is None:
            return [fitted(observations, self.columns["observation"], name, count)]
        if not isinstance(observations, Mapping) or set(observations) != set(self.keys):
            raise InputError(f"{name} must be a dict with the keys {sorted(self.keys)}")
        columns = self.columns.values()
        return [fitted(observations[key], column, name, count) for key, column in zip(self.keys, columns, strict=True)]

    def observations(self, arrays: Sequence[Array]) -> Observations:
        """What an agent sees of arrays in the order of the columns."""
        return arrays[0] if self.keys is None else dict(zip(self.keys, arrays, strict=True))
