"""Convert rows of a log to columns of numbers, whatever the rows contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.run.metadata import Log
from rekindle.run.overview import mapping, real

__all__ = ["Columns", "Floats", "Series", "decode", "decode_returns"]

Floats = NDArray[np.float64]
Number = float | None

LONGEST_NAME = 200
MOST_SERIES = 500
"""The most metrics in a log; a log with more was not written by rekindle."""
_TOO_LARGE = 1e300


class Series(msgspec.Struct, frozen=True):
    """One metric with a value per row; NaN for missing values."""

    mean: Floats
    least: Floats
    most: Floats


class Columns(msgspec.Struct, frozen=True):
    """Consecutive rows."""

    steps: Floats
    times: Floats
    """Seconds since 1970."""
    series: dict[str, Series]
    broken: tuple[int, ...] = ()
    """The indices of lines that are not rows."""

    def __len__(self) -> int:
        return len(self.steps)


class _Episode(msgspec.Struct, gc=False):
    row: int
    env_steps: float
    wall_time: float
    total_reward: Number = None
    length: Number = None
    extras: dict[str, Number] = {}


class _Return(msgspec.Struct, gc=False):
    row: int
    env_steps: float
    total_reward: Number = None


class _Aggregate(msgspec.Struct, gc=False):
    mean: Number = None
    min: Number = None
    max: Number = None


class _Window(msgspec.Struct, gc=False):
    row: int
    env_steps: float
    wall_time: float
    metrics: dict[str, _Aggregate] = {}


_EPISODES = msgspec.json.Decoder(_Episode)
_RETURNS = msgspec.json.Decoder(_Return)
_WINDOWS = msgspec.json.Decoder(_Window)
_NO_EPISODE = _Episode(row=-1, env_steps=np.nan, wall_time=np.nan)
_NO_WINDOW = _Window(row=-1, env_steps=np.nan, wall_time=np.nan)
_NO_AGGREGATE = _Aggregate()


def decode(log: Log, lines: bytes, *, first: int | None = None) -> Columns:
    """The complete lines of a log as columns; a line that is not a row gives NaN and is listed as broken.

    With `first`, the number that the first row must have, rows with wrong numbers are broken too.
    """
    decoder = _WINDOWS if log == "metrics" else _EPISODES
    count = lines.count(b"\n")
    try:
        rows = decoder.decode_lines(lines)
        if len(rows) != count:  # msgspec skips blank lines
            raise msgspec.DecodeError
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        rows = [_tolerant(log, line) for line in lines.split(b"\n")[:-1]]
    numbers = [row.row for row in rows]
    if first is None or numbers == list(range(first, first + count)):
        broken = tuple(index for index, number in enumerate(numbers) if number < 0)
    else:
        broken = tuple(index for index, number in enumerate(numbers) if number != first + index)
    series = _windows(cast("list[_Window]", rows)) if log == "metrics" else _episodes(cast("list[_Episode]", rows))
    return Columns(
        steps=_column([row.env_steps for row in rows]),
        times=_column([row.wall_time for row in rows]),
        series=series,
        broken=broken,
    )


def decode_returns(lines: bytes) -> tuple[Floats, Floats, bool]:
    """The env steps and returns of episodes, and whether some lines are broken; faster than decoding everything."""
    try:
        rows = _RETURNS.decode_lines(lines)
        is_broken = len(rows) != lines.count(b"\n")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        columns = decode("train_episodes", lines)
        return columns.steps, columns.series["return"].mean, bool(columns.broken)
    return _column([row.env_steps for row in rows]), _column([row.total_reward for row in rows]), is_broken


def _tolerant(log: Log, line: bytes) -> _Episode | _Window:
    """The valid fields of a row that is partly invalid."""
    nothing = _NO_WINDOW if log == "metrics" else _NO_EPISODE
    try:
        value: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return nothing
    if not isinstance(value, dict):
        return nothing
    fields = cast("dict[str, Any]", value)
    number, steps, time = fields.get("row"), _number(fields, "env_steps"), _number(fields, "wall_time")
    row, steps, time = number if type(number) is int else -1, _or_nan(steps), _or_nan(time)
    if log == "metrics":
        metrics = {
            name: _Aggregate(*(_number(mapping(parts), part) for part in ("mean", "min", "max")))
            for name, parts in mapping(fields.get("metrics")).items()
        }
        return _Window(row, steps, time, metrics)
    extras = {name: real(extra) for name, extra in mapping(fields.get("extras")).items()}
    return _Episode(row, steps, time, _number(fields, "total_reward"), _number(fields, "length"), extras)


def _number(fields: Mapping[str, Any], name: str) -> Number:
    return real(fields.get(name))


def _or_nan(value: Number) -> float:
    return np.nan if value is None else value


def _column(values: Sequence[Number]) -> Floats:
    column = np.array(values, np.float64)  # None becomes NaN
    column[~(np.abs(column) < _TOO_LARGE)] = np.nan
    return column


def _plain(values: Sequence[Number]) -> Series:
    column = _column(values)
    return Series(column, column, column)


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names: dict[str, None] = {}
    for row in rows:
        if not row.keys() <= names.keys():
            names |= dict.fromkeys(row)
    return [name for name in names if len(name) <= LONGEST_NAME][:MOST_SERIES]


def _episodes(rows: list[_Episode]) -> dict[str, Series]:
    extras = [row.extras for row in rows]
    return {
        "return": _plain([row.total_reward for row in rows]),
        "length": _plain([row.length for row in rows]),
        **{name: _plain([row.get(name) for row in extras]) for name in _names(extras)},
    }


def _windows(rows: list[_Window]) -> dict[str, Series]:
    series: dict[str, Series] = {}
    for name in _names([row.metrics for row in rows]):
        parts = [row.metrics.get(name, _NO_AGGREGATE) for row in rows]
        mean = _column([part.mean for part in parts])
        least, most = _column([part.min for part in parts]), _column([part.max for part in parts])
        series[name] = Series(mean, np.fmin(least, mean), np.fmax(most, mean))
    return series
