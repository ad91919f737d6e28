"""The dtype and shape of arrays, and the layout of the values of a Gymnasium space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec
import numpy as np

from rekindle.errors import InputError, StateError
from rekindle.experience import Array, Observations

__all__ = ["ArraySpec", "Layout", "REWARDS", "STATUSES", "SpacePart", "SpaceParts", "discrete_values"]
_MAX_SIZE = 2**31
"""The largest size of one value that a file may declare."""


class ArraySpec(msgspec.Struct, frozen=True):
    """The dtype of the numbers in an array, and the shape of one value.

    >>> print(ArraySpec(np.dtype(np.float32), (2, 3)))
    float32 (2, 3)
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"

    @classmethod
    def parse(cls, dtype: Any, shape: Any) -> ArraySpec:
        """From a file, for example with `"<f4"` and `[2, 3]`; raises `StateError`."""
        try:
            spec = cls(np.dtype(dtype), tuple(int(length) for length in shape))
        except (TypeError, ValueError, SyntaxError):
            spec = None
        if (
            spec is None
            or spec.dtype.kind not in "fiubc"
            or min(spec.shape, default=0) < 0
            or math.prod(spec.shape) > _MAX_SIZE
        ):
            raise StateError(f"an array cannot have the dtype {dtype!r:.40} and the shape {shape!r:.40}")
        return spec

    @classmethod
    def of_state(cls, state: Any) -> ArraySpec:
        """From a list of dtype and shape; raises `StateError`."""
        if not isinstance(state, (list, tuple)) or len(cast("list[Any]", state)) != 2:
            raise StateError(f"{state!r:.80} is not the dtype and shape of an array")
        return cls.parse(*cast("list[Any]", state))

    @property
    def nbytes(self) -> int:
        """Bytes of one value."""
        return self.dtype.itemsize * math.prod(self.shape)

    def conform(self, value: Any, what: str, *, rows: int | None = None) -> Array:
        """Convert a value to an array of this layout (with `rows`, to that many of them); raises `InputError`."""
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
            with np.errstate(over="ignore"):  # it becomes infinite, which is refused or dropped like any other
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


class SpacePart(NamedTuple):
    """A space that is not a Dict, or one entry of a Dict."""

    space: Any
    spec: ArraySpec | None
    """None if its values are not arrays of one dtype and shape."""

    @property
    def kind(self) -> Literal["box", "discrete", "other"]:
        """`discrete` for a limited number of whole numbers, `box` for other arrays of numbers or flags."""
        match type(self.space).__name__:
            case "Box" | "MultiBinary":
                return "box"
            case "Discrete" | "MultiDiscrete":
                return "discrete"
            case _:
                return "other"


class SpaceParts(NamedTuple):
    """The parts of a Gymnasium space; the only code that inspects spaces."""

    parts: dict[str, SpacePart]
    """By the key in a Dict; under an empty name for a space that is not a Dict."""
    is_dict: bool

    @classmethod
    def of(cls, space: Any) -> SpaceParts:
        """The parts of any space, supported or not."""
        named = getattr(space, "spaces", None)
        if isinstance(named, Mapping):
            return cls({name: _part(part) for name, part in cast("Mapping[str, Any]", named).items()}, is_dict=True)
        return cls({"": _part(space)}, is_dict=False)


def _part(space: Any) -> SpacePart:
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    return SpacePart(space, None if shape is None or dtype is None else ArraySpec(np.dtype(dtype), tuple(shape)))


def discrete_values(space: Any) -> tuple[list[int], list[int]]:
    """The number of values of each element of a Discrete or MultiDiscrete space, and the first of them."""
    if type(space).__name__ == "Discrete":
        return [int(space.n)], [int(space.start)]
    starts = np.broadcast_to(getattr(space, "start", 0), np.shape(space.nvec))
    return np.asarray(space.nvec).ravel().tolist(), starts.ravel().tolist()


class Layout:
    """The layout of an observation: one array, or named arrays."""

    def __init__(self, leaves: Mapping[str, ArraySpec], *, is_dict: bool) -> None:
        self.leaves = dict(leaves)
        self.is_dict = is_dict
        self.plain = None if is_dict else self.leaves[""]
        """The layout of an observation that is one array."""

    @classmethod
    def of_space(cls, space: Any) -> Layout | None:
        """From a Gymnasium space; None if its values are not arrays."""
        read = SpaceParts.of(space)
        known = {name: part.spec for name, part in read.parts.items() if part.spec is not None}
        return cls(known, is_dict=read.is_dict) if len(known) == len(read.parts) else None

    @classmethod
    def of_value(cls, value: Any) -> Layout:
        """From the first observation."""
        if isinstance(value, Mapping):
            named = cast("Mapping[str, Any]", value)
            return cls(
                {name: _spec_of(part, f"observation {name!r}") for name, part in named.items()},
                is_dict=True,
            )
        return cls({"": _spec_of(value, "observation")}, is_dict=False)

    def conform(self, value: Any, what: str, *, rows: int | None = None) -> list[Array]:
        """Convert an observation to arrays in the order of this layout; raises `InputError`."""
        if self.plain is not None:
            return [self.plain.conform(value, what, rows=rows)]
        if not isinstance(value, Mapping) or set(cast("Mapping[str, Any]", value)) != set(self.leaves):
            raise InputError(f"{what} must be a dict with the keys {sorted(self.leaves)}, got {value!r:.120}")
        return [leaf.conform(value[name], f"{what} {name!r}", rows=rows) for name, leaf in self.leaves.items()]

    def observations(self, arrays: Sequence[Array]) -> Observations:
        """These arrays in the form that an agent takes."""
        return dict(zip(self.leaves, arrays, strict=True)) if self.is_dict else arrays[0]

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        leaves = {name: [leaf.dtype.str, list(leaf.shape)] for name, leaf in self.leaves.items()}
        return {"is_dict": self.is_dict, "leaves": leaves}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Layout:
        """Restore a saved state."""
        leaves = {name: ArraySpec.of_state(leaf) for name, leaf in state["leaves"].items()}
        return cls(leaves, is_dict=state["is_dict"])


def _spec_of(value: Any, what: str) -> ArraySpec:
    array = _array(value, what)
    return ArraySpec(array.dtype, array.shape)


REWARDS = ArraySpec(np.dtype(np.float64))
STATUSES = ArraySpec(np.dtype(np.uint8))
