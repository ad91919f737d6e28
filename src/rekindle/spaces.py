"""Shapes and dtypes of observations and actions, from spaces or from values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from rekindle.agent import State
from rekindle.errors import InputError, StateError
from rekindle.experience import Array, Observations

__all__ = ["ArrayLayout", "Layout", "REWARDS", "STATUSES"]
_MAX_SIZE = 2**31
"""Numbers in an observation or action that a saved layout may speak of."""


class ArrayLayout(NamedTuple):
    """The shape and dtype that every value must have, or be safely turned into."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of_state(cls, state: Any) -> ArrayLayout:
        """As loaded; raises `StateError`."""
        try:
            layout = cls(tuple(int(length) for length in state[1]), np.dtype(state[0]))
        except (TypeError, ValueError, LookupError, SyntaxError):
            layout = None
        if (
            layout is None
            or layout.dtype.kind not in "fiubc"
            or min(layout.shape, default=0) < 0
            or math.prod(layout.shape) > _MAX_SIZE
        ):
            raise StateError(f"{state!r:.80} is not the layout of an array")
        return layout

    def conform(self, value: Any, what: str, *, rows: int | None = None) -> Array:
        """The value as an array of this layout (with `rows`, that many of them); raises `InputError`."""
        shape = self.shape if rows is None else (rows, *self.shape)
        if type(value) is np.ndarray:
            if value.dtype == self.dtype and value.shape == shape:
                return value
        elif type(value) is np.int64 and self.dtype == np.int64 and not shape:
            return np.asarray(value)
        array = _array(value, what)
        if array.shape != shape:
            raise InputError(f"{what} has the shape {array.shape}, expected {shape}")
        if array.dtype == self.dtype:
            return array
        whole_numbers = self.dtype.kind in "iub" and array.dtype.kind in "iub"
        if whole_numbers or np.can_cast(array.dtype, self.dtype, "same_kind"):
            with np.errstate(over="ignore"):  # it becomes infinite, which is told or dropped like any other
                converted = array.astype(self.dtype)
            if not whole_numbers or np.array_equal(converted, array):
                return converted
        raise InputError(f"{what} is {array.dtype}, which cannot become {self.dtype} without loss: {value!r:.80}")


def _array(value: Any, what: str) -> Array:
    if value is None:
        raise InputError(f"{what} is missing (None)")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} is not an array: {error}") from None
    if array.dtype.kind not in "fiubc":
        raise InputError(f"{what} is {array.dtype}, not numbers: {value!r:.80}")
    return array


class Layout:
    """The layout of an observation: one array, or named ones."""

    def __init__(self, leaves: Mapping[str, ArrayLayout], *, is_dict: bool) -> None:
        self.leaves = dict(leaves)
        self.is_dict = is_dict
        self.plain = None if is_dict else self.leaves[""]
        """That of an observation which is one array."""

    @classmethod
    def of_space(cls, space: Any) -> Layout | None:
        """From a Gymnasium space, if it is one whose values are arrays."""
        named = getattr(space, "spaces", None)
        if isinstance(named, Mapping):
            parts = {name: _space_layout(part) for name, part in cast("Mapping[str, Any]", named).items()}
            known = {name: part for name, part in parts.items() if part is not None}
            return cls(known, is_dict=True) if len(known) == len(parts) else None
        only = _space_layout(space)
        return None if only is None else cls({"": only}, is_dict=False)

    @classmethod
    def of_value(cls, value: Any) -> Layout:
        """From the first observation ever seen."""
        if isinstance(value, Mapping):
            named = cast("Mapping[str, Any]", value)
            return cls(
                {name: _value_layout(part, f"observation {name!r}") for name, part in named.items()},
                is_dict=True,
            )
        return cls({"": _value_layout(value, "observation")}, is_dict=False)

    def conform(self, value: Any, what: str, *, rows: int | None = None) -> list[Array]:
        """The arrays of an observation, in the order of this layout; raises `InputError`."""
        if self.plain is not None:
            return [self.plain.conform(value, what, rows=rows)]
        if not isinstance(value, Mapping) or set(cast("Mapping[str, Any]", value)) != set(self.leaves):
            raise InputError(f"{what} must be a dict with the keys {sorted(self.leaves)}, got {value!r:.120}")
        return [leaf.conform(value[name], f"{what} {name!r}", rows=rows) for name, leaf in self.leaves.items()]

    def observations(self, arrays: Sequence[Array]) -> Observations:
        """What an agent sees of these arrays."""
        return dict(zip(self.leaves, arrays, strict=True)) if self.is_dict else arrays[0]

    def state(self) -> State:
        """As saved."""
        leaves = {name: [leaf.dtype.str, list(leaf.shape)] for name, leaf in self.leaves.items()}
        return {"is_dict": self.is_dict, "leaves": leaves}

    @classmethod
    def of_state(cls, state: State) -> Layout:
        """As loaded."""
        leaves = {name: ArrayLayout.of_state(leaf) for name, leaf in state["leaves"].items()}
        return cls(leaves, is_dict=state["is_dict"])


def _space_layout(space: Any) -> ArrayLayout | None:
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    return None if shape is None or dtype is None else ArrayLayout(tuple(shape), np.dtype(dtype))


def _value_layout(value: Any, what: str) -> ArrayLayout:
    array = _array(value, what)
    return ArrayLayout(array.shape, array.dtype)


REWARDS = ArrayLayout((), np.dtype(np.float64))
STATUSES = ArrayLayout((), np.dtype(np.uint8))
