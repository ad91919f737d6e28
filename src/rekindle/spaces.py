"""The dtype and shape of arrays, and the layout of the values of a Gymnasium space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import Array, Observations
from rekindle.nesting import Nesting

__all__ = [
    "ActionStructure",
    "ArraySpec",
    "Layout",
    "REWARDS",
    "STATUSES",
    "SpacePart",
    "SpaceParts",
    "discrete_values",
    "rows_at",
]
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
        if not array.size:  # an empty list has no dtype of its own
            return array.astype(self.dtype)
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
    """A space that is neither a Dict nor a Tuple, alone or inside of one."""

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

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value of any element; infinite where the space has no limit."""
        if type(self.space).__name__ == "MultiBinary":
            return 0.0, 1.0
        low = np.asarray(getattr(self.space, "low", -math.inf), np.float64)
        high = np.asarray(getattr(self.space, "high", math.inf), np.float64)
        return float(low.min(initial=math.inf)), float(high.max(initial=-math.inf))

    @property
    def has_choices(self) -> bool:
        """Whether `discrete_values` counts its values: Discrete, MultiDiscrete and MultiBinary."""
        return type(self.space).__name__ in ("Discrete", "MultiDiscrete", "MultiBinary")


class SpaceParts(NamedTuple):
    """The parts of a Gymnasium space; the only code that inspects spaces."""

    parts: dict[str, SpacePart]
    """By the keys and positions that lead to them, such as `arm/0`; under an empty name if there is only the space."""
    nesting: Nesting | None
    """How the parts lie in Dict and Tuple spaces; None if there is only the space."""

    @property
    def is_dict(self) -> bool:
        """Whether an agent sees a dict of arrays."""
        return self.nesting is not None

    @classmethod
    def of(cls, space: Any) -> SpaceParts:
        """The parts of any space, supported or not; raises `ConfigError` if two have the same name."""
        parts: list[SpacePart] = []
        tree = _tree(space, parts)
        if tree is None:
            return cls({"": parts[0]}, None)
        try:
            nesting = Nesting(tree)
        except ValueError as error:
            raise ConfigError(f"{space!r:.120}: {error}") from None
        return cls(dict(zip(nesting.names, parts, strict=True)), nesting)


def _tree(space: Any, parts: list[SpacePart]) -> Any:
    """The tree of a nesting; its leaves are added to `parts`."""
    inside = getattr(space, "spaces", None)
    if isinstance(inside, Mapping):
        return {key: _tree(part, parts) for key, part in cast("Mapping[str, Any]", inside).items()}
    if type(space).__name__ == "Tuple" and isinstance(inside, tuple):
        return tuple(_tree(part, parts) for part in cast("tuple[Any, ...]", inside))
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    spec = None if shape is None or dtype is None else ArraySpec(np.dtype(dtype), tuple(shape))
    parts.append(SpacePart(space, spec))
    return None


def discrete_values(space: Any) -> tuple[list[int], list[int]]:
    """The number of values of each element of a Discrete, MultiDiscrete or MultiBinary space, and the first of them."""
    match type(space).__name__:
        case "Discrete":
            return [int(space.n)], [int(space.start)]
        case "MultiBinary":
            size = math.prod(space.shape)
            return [2] * size, [0] * size
        case _:
            pass
    starts = np.broadcast_to(getattr(space, "start", 0), np.shape(space.nvec))
    return np.asarray(space.nvec).ravel().tolist(), starts.ravel().tolist()


class Layout:
    """The layout of an observation: one array, or named arrays.

    The host may nest them in dicts and tuples; an agent gets a flat dict of them.
    """

    def __init__(self, leaves: Mapping[str, ArraySpec], *, is_dict: bool, nesting: Nesting | None = None) -> None:
        self.leaves = dict(leaves)
        self.is_dict = is_dict
        self.nesting = None if nesting is None or nesting.is_flat else nesting
        """How the host nests named arrays; None for one array, or a flat dict."""
        self.plain = None if is_dict else self.leaves[""]
        """The layout of an observation that is one array."""

    @classmethod
    def of_space(cls, space: Any) -> Layout | None:
        """From a Gymnasium space; None if its values are not arrays."""
        read = SpaceParts.of(space)
        known = {name: part.spec for name, part in read.parts.items() if part.spec is not None}
        if len(known) < len(read.parts):
            return None
        return cls(known, is_dict=read.is_dict, nesting=read.nesting)

    @classmethod
    def of_value(cls, value: Any) -> Layout:
        """From the first observation; a tuple in it becomes an array, as there is no space that says otherwise."""
        if not isinstance(value, Mapping):
            return cls({"": _spec_of(value, "observation")}, is_dict=False)
        leaves: list[Any] = []
        try:
            nesting = Nesting(_value_tree(cast("Mapping[str, Any]", value), leaves))
        except ValueError as error:
            raise InputError(f"observation: {error}") from None
        named = zip(nesting.names, leaves, strict=True)
        specs = {name: _spec_of(part, f"observation {name!r}") for name, part in named}
        return cls(specs, is_dict=True, nesting=nesting)

    def conform(self, value: Any, what: str, *, rows: int | None = None) -> list[Array]:
        """Convert an observation to arrays in the order of this layout; raises `InputError`.

        Named arrays may be nested as the host nests them, or be a flat dict.
        """
        if self.plain is not None:
            return [self.plain.conform(value, what, rows=rows)]
        if self.nesting is not None:
            named = zip(self.leaves.items(), self.nesting.leaves(value, what), strict=True)
            return [leaf.conform(part, f"{what} {name!r}", rows=rows) for (name, leaf), part in named]
        if not isinstance(value, Mapping) or set(cast("Mapping[str, Any]", value)) != set(self.leaves):
            raise InputError(f"{what} must be a dict with the keys {sorted(self.leaves)}, got {value!r:.120}")
        return [leaf.conform(value[name], f"{what} {name!r}", rows=rows) for name, leaf in self.leaves.items()]

    def observations(self, arrays: Sequence[Array]) -> Observations:
        """These arrays in the form that an agent takes: one array, or a flat dict."""
        return dict(zip(self.leaves, arrays, strict=True)) if self.is_dict else arrays[0]

    def nested(self, arrays: Sequence[Array]) -> Any:
        """These arrays in the form of the host."""
        return self.observations(arrays) if self.nesting is None else self.nesting.build(arrays)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        leaves = {name: [leaf.dtype.str, list(leaf.shape)] for name, leaf in self.leaves.items()}
        nesting = {} if self.nesting is None else {"nesting": self.nesting.state()}
        return {"is_dict": self.is_dict, "leaves": leaves, **nesting}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Layout:
        """Restore a saved state; raises `StateError`."""
        leaves = {name: ArraySpec.of_state(leaf) for name, leaf in state["leaves"].items()}
        nesting = None if state.get("nesting") is None else Nesting.of_state(state["nesting"])
        if nesting is not None and (not state["is_dict"] or nesting.names != tuple(leaves)):
            raise StateError(f"the nesting has the parts {list(nesting.names)}, but the arrays are {list(leaves)}")
        return cls(leaves, is_dict=state["is_dict"], nesting=nesting)


def _value_tree(value: Mapping[str, Any], leaves: list[Any]) -> Any:
    """The tree of a nesting; its leaves are added to `leaves`."""
    tree: dict[str, Any] = {}
    for key, part in value.items():
        if isinstance(part, Mapping):
            tree[key] = _value_tree(cast("Mapping[str, Any]", part), leaves)
        else:
            leaves.append(part)
            tree[key] = None
    return tree


def _spec_of(value: Any, what: str) -> ArraySpec:
    array = _array(value, what)
    return ArraySpec(array.dtype, array.shape)


class ActionStructure:
    """Converts composite actions between the structure of their space (dicts and tuples) and one row of numbers each.

    Agents, replay buffers and checkpoints hold the rows; hosts, environments and users of a policy see the structure.
    A row is int64 if all parts are whole numbers, otherwise float32, or float64 if a part needs it.
    """

    def __init__(
        self,
        nesting: Nesting,
        specs: Sequence[ArraySpec],
        dtype: np.dtype[Any],
        *,
        masks: Nesting | None = None,
        bounds: tuple[Array, Array] | None = None,
    ) -> None:
        self.nesting = nesting
        self.masks = masks
        """The structure of masks: that of the actions with only the discrete parts."""
        self._specs = tuple(specs)
        ends = np.cumsum([0, *(math.prod(spec.shape) for spec in specs)]).tolist()
        self.places = tuple(map(slice, ends[:-1], ends[1:]))
        """Where each part is in a row."""
        self.spec = ArraySpec(dtype, (ends[-1],))
        """The dtype and shape of a row."""
        self._bounds = bounds
        """The least and the greatest number of discrete parts; infinite where there is no limit."""

    @classmethod
    def of(cls, space: Any) -> ActionStructure | None:
        """From a Gymnasium space; None if it is neither a Dict nor a Tuple, or if its values are not arrays."""
        read = SpaceParts.of(space)
        specs = [part.spec for part in read.parts.values() if part.spec is not None]
        if read.nesting is None or not specs or len(specs) < len(read.parts):
            return None
        low: list[float] = []
        high: list[float] = []
        is_discrete = [part.has_choices for part in read.parts.values()]
        for part, spec, has_counts in zip(read.parts.values(), specs, is_discrete, strict=True):
            if has_counts:
                counts, starts = discrete_values(part.space)
                low += starts
                high += [start + count - 1 for start, count in zip(starts, counts, strict=True)]
            else:
                low += [-math.inf] * math.prod(spec.shape)
                high += [math.inf] * math.prod(spec.shape)
        return cls(
            read.nesting,
            specs,
            _row_dtype(specs, [*low, *high]),
            masks=read.nesting.only(is_discrete),
            bounds=(np.array(low), np.array(high)),
        )

    @property
    def idle(self) -> Array:
        """A row of zeros, or of what is nearest to zero in a discrete part."""
        zeros = np.zeros(self.spec.shape)
        return (zeros if self._bounds is None else np.clip(zeros, *self._bounds)).astype(self.spec.dtype)

    def flat(self, action: Any, what: str, *, rows: int | None = None) -> Array:
        """Convert an action to a row, or with `rows` a batch of them; raises `InputError`.

        It may be nested, a flat dict by name, or a row already.
        """
        lead = () if rows is None else (rows,)
        if type(action) is np.ndarray:
            flat = self.spec.conform(action, what, rows=rows)
        else:
            flat = np.empty((*lead, *self.spec.shape), self.spec.dtype)
            leaves = zip(self.nesting.names, self._specs, self.places, self.nesting.leaves(action, what), strict=True)
            for name, spec, place, part in leaves:
                flat[..., place] = spec.conform(part, f"{what} {name!r}", rows=rows).reshape(*lead, -1)
        if self._bounds is not None:
            is_inside: Array = (flat >= self._bounds[0]) & (flat <= self._bounds[1])
            if not is_inside.all():
                raise self._outside(flat, is_inside, what)
        return flat

    def _outside(self, flat: Array, is_inside: Array, what: str) -> InputError:
        for name, place in zip(self.nesting.names, self.places, strict=True):
            if not is_inside[..., place].all():
                return InputError(f"{what} {name!r} is outside the space: {flat[..., place].tolist()!r:.80}")
        raise AssertionError("every part is inside the space")

    def nested(self, rows: Array) -> Any:
        """The action of a row, or of a batch of rows, in the structure of its space; the arrays are copies."""
        lead = rows.shape[:-1]
        return self.nesting.build(
            [
                rows[..., place].reshape((*lead, *spec.shape)).astype(spec.dtype)[()]  # a number, not an array of one
                for spec, place in zip(self._specs, self.places, strict=True)
            ]
        )


def _row_dtype(specs: Sequence[ArraySpec], bounds: Sequence[float]) -> np.dtype[Any]:
    if all(spec.dtype.kind in "iub" for spec in specs):
        return np.dtype(np.int64)
    # A float32 holds whole numbers up to 2^24 exactly.
    largest = max((abs(bound) for bound in bounds if math.isfinite(bound)), default=0)
    is_single = largest <= 2**24 and all(spec.dtype.kind != "f" or spec.dtype.itemsize <= 4 for spec in specs)
    return np.dtype(np.float32 if is_single else np.float64)


REWARDS = ArraySpec(np.dtype(np.float64))
STATUSES = ArraySpec(np.dtype(np.uint8))


def rows_at(array: Array, places: slice | NDArray[np.int64]) -> Array:
    """These rows of an array: a view for a slice, else a copy, which `take` makes several times as fast as an index."""
    return array[places] if isinstance(places, slice) else array.take(places, axis=0)
