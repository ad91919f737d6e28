"""Encode and decode the arrays of messages, which have one row for each stream."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.checks import all_finite
from rekindle.errors import RekindleError
from rekindle.experience import Array
from rekindle.spaces import ArraySpec, SpaceParts, discrete_values

__all__ = ["PartFormat", "RowFormat", "WireError"]


class WireError(RekindleError, ValueError):
    """A message, or an array in it, does not follow the protocol."""


class PartFormat(msgspec.Struct, frozen=True):
    """The dtype and shape of a row of one part."""

    dtype: str
    shape: tuple[int, ...] = ()


_MOST = float(np.finfo(np.float32).max)
_DTYPES = tuple(
    f"{kind}{bits}"
    for kind, widths in (("float", (16, 32, 64)), ("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)))
    for bits in widths
)


class _Part:
    """One array of a message: its form in the message, and its dtype in this process."""

    def __init__(self, name: str, form: PartFormat, here: np.dtype[Any], bounds: tuple[Array, Array] | None) -> None:
        self.name, self.form, self.here = name, form, here
        is_flag = form.dtype == "bool"
        if not is_flag and form.dtype not in _DTYPES:
            raise WireError(f"{form.dtype!r:.40} is not a dtype of the protocol")
        self.sent = np.dtype(np.uint8) if is_flag else np.dtype(form.dtype).newbyteorder("<")
        self.spec = ArraySpec(np.dtype(form.dtype), form.shape)
        """The layout of a row in this process, without the byte order of messages."""
        self.nbytes = self.sent.itemsize * math.prod(form.shape)
        self.is_wide = self.sent == np.float64
        """Whether it has numbers that agents, which compute in float32, would take for infinite."""
        self.bounds = bounds
        """The smallest and the largest value of each element of a discrete part."""

    def read(self, data: bytes, rows: int) -> Array:
        array = np.frombuffer(data, self.sent).reshape(rows, *self.form.shape)
        return array if self.sent == self.here else array.astype(self.here)

    def unlisted(self, value: Any, rows: int) -> bytes:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise WireError(f"{self._label}: {str(error)[:100]}") from None
        expected = (rows, *self.form.shape)
        if array.shape != expected and (rows or array.shape != (0,)):  # a list of no rows has no other axes
            raise WireError(f"{self._label} has the shape {list(array.shape)}, expected {list(expected)}")
        if array.dtype.kind not in "iufb" and array.size:
            raise WireError(f"{self._label} must be numbers")
        with np.errstate(over="ignore", invalid="ignore"):
            sent = array.astype(self.sent)
        if self.sent.kind in "iu" and not np.array_equal(sent, array):
            raise WireError(f"{self._label}: a value is not {self.form.dtype}")
        return sent.tobytes()

    @property
    def _label(self) -> str:
        return f"the part {self.name!r}" if self.name else "the array"


class RowFormat:
    """The format of rows of observations, actions, rewards or statuses in messages."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = tuple(parts)
        self._plain = self._parts[0] if len(self._parts) == 1 and not self._parts[0].name else None
        self._names = {part.name for part in self._parts}
        self._has_bounds = any(part.bounds is not None or part.is_wide for part in self._parts)

    @classmethod
    def of_space(cls, space: Any) -> RowFormat:
        """The format for a Gymnasium space; raises `WireError` for a space whose values are not arrays."""
        parts: list[_Part] = []
        for name, part in SpaceParts.of(space).parts.items():
            if part.spec is None:
                raise WireError(f"the space {part.space!r:.80} cannot be sent: use Box, Discrete, MultiDiscrete")
            bounds = None
            dtype = part.spec.dtype
            sent = dtype.name
            if part.kind == "discrete":
                counts, starts = discrete_values(part.space)
                least = np.array(starts, np.int64).reshape(part.spec.shape)
                most = least + np.array(counts, np.int64).reshape(part.spec.shape) - 1
                bounds = least, most
                if max(abs(int(least.min())), abs(int(most.max()))) < 2**31:
                    sent = "int32"
            parts.append(_Part(name, PartFormat(sent, part.spec.shape), dtype, bounds))
        return cls(parts)

    @classmethod
    def read(cls, description: Mapping[str, PartFormat]) -> RowFormat:
        """The format that a server describes in `Welcome`."""
        return cls([_Part(name, form, np.dtype(form.dtype), None) for name, form in description.items()])

    @classmethod
    def of_dtype(cls, dtype: str) -> RowFormat:
        """The format of one number per row."""
        return cls.read({"": PartFormat(dtype)})

    @property
    def description(self) -> dict[str, PartFormat]:
        """The dtype and shape of each part, for a message."""
        return {part.name: part.form for part in self._parts}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts; one empty name for a space without parts."""
        return tuple(part.name for part in self._parts)

    def count(self, value: Any, *, is_json: bool) -> int:
        """The number of rows of an array in a message; raises `WireError` if it is not a whole number."""
        first = self._parts[0]
        data: Any = value
        if self._plain is None:
            data = cast("dict[str, Any]", value).get(first.name) if isinstance(value, dict) else None
        if is_json and isinstance(data, list):
            return len(cast("list[Any]", data))
        if not is_json and isinstance(data, bytes) and first.nbytes and not len(data) % first.nbytes:
            return len(data) // first.nbytes
        raise WireError(f"an array does not consist of whole rows of {first.form.dtype} {list(first.form.shape)}")

    def raw(self, value: Any, rows: int, *, is_json: bool) -> tuple[bytes, ...]:
        """The bytes of each part of an array with `rows` rows in a message; raises `WireError`."""
        plain = self._plain
        if plain is not None:
            if is_json:
                return (plain.unlisted(value, rows),)
            if type(value) is not bytes or len(value) != rows * plain.nbytes:
                raise self._misfit(value, rows, plain)
            return (value,)
        if not isinstance(value, dict) or self._names != set(cast("dict[str, Any]", value)):
            raise WireError(f"the array must be a map with the parts {sorted(self._names)}")
        found: list[bytes] = []
        for part in self._parts:
            data = cast("dict[str, Any]", value)[part.name]
            if is_json:
                data = part.unlisted(data, rows)
            elif type(data) is not bytes or len(data) != rows * part.nbytes:
                raise self._misfit(data, rows, part)
            found.append(data)
        return tuple(found)

    @staticmethod
    def _misfit(value: Any, rows: int, part: _Part) -> WireError:
        size = f"{len(value)} bytes" if isinstance(value, bytes) else "no bytes"
        what = f"{rows} rows of {part.form.dtype} {list(part.form.shape)}"
        return WireError(f"an array has {size}; {what} are {rows * part.nbytes}")

    def joined(self, raws: Sequence[tuple[bytes, ...]], rows: int) -> list[Array]:
        """The concatenated arrays of several messages."""
        if self._plain is not None:
            return [self._plain.read(b"".join([raw[0] for raw in raws]), rows)]
        columns = zip(self._parts, zip(*raws, strict=True), strict=True)
        return [part.read(b"".join(column), rows) for part, column in columns]

    def bad_rows(self, arrays: Sequence[Array]) -> Array | None:
        """Which rows contain NaN, infinity (in float32), or a value outside a discrete space; None if no row does."""
        if not self._has_bounds and all_finite(arrays):
            return None
        bad: Array | None = None
        for part, array in zip(self._parts, arrays, strict=True):
            if part.bounds is not None:
                wrong = (array < part.bounds[0]) | (array > part.bounds[1])
                if not wrong.any():
                    continue
            elif array.dtype.kind == "f":
                finite = np.abs(array) <= _MOST if part.is_wide else np.isfinite(array)
                if finite.all():
                    continue
                wrong = ~finite
            else:
                continue
            if len(array):
                rows = np.asarray(wrong).reshape(len(array), -1).max(axis=1)
                bad = rows if bad is None else np.maximum(bad, rows)
        return bad

    def conformed(self, values: Sequence[Any], what: str, *, rows: int) -> list[Array]:
        """Convert the value of each part to an array of its dtype; raises `InputError` if that would change it."""
        pairs = zip(self._parts, values, strict=True)
        return [
            part.spec.conform(value, f"{what} {part.name!r}" if part.name else what, rows=rows) for part, value in pairs
        ]

    def sent(self, arrays: Sequence[Array], *, is_json: bool) -> Any:
        """Encode arrays for a message."""
        pairs = zip(self._parts, arrays, strict=True)
        if is_json:
            values = {part.name: array.astype(part.sent).tolist() for part, array in pairs}
        else:
            values = {part.name: array.astype(part.sent).tobytes() for part, array in pairs}
        return values[""] if self._plain is not None else values

    def received(self, value: Any, rows: int, *, is_json: bool = False) -> list[Array]:
        """Decode the arrays of a message."""
        return self.joined([self.raw(value, rows, is_json=is_json)], rows)
