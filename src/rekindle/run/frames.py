"""Logs as columns: a pandas frame if pandas is installed, a dict of numpy arrays otherwise."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import LogCorrupt
from rekindle.storage.tail import LogTail

__all__ = ["Aggregate", "Frame", "log_columns", "log_frame"]

Frame = Any
"""A `pandas.DataFrame`, or a dict of numpy arrays of equal length if pandas is not installed."""
Aggregate = Literal["mean", "min", "max", "last", "count"]

_PART = 2**22
"""Bytes of a log that are in memory as rows at a time."""
_WORDS = ("stream", "status", "message")
_MOST_GAPS = 100
"""Empty cells of a table per value; a log with a new name in every row would fill the memory with empty cells."""
_COUNTS = ("row", "env_steps", "updates", "episodes", "length", "total_steps_at_eval")


def log_frame(path: Path, *, aggregate: Aggregate = "mean") -> Frame:
    """Every complete row of a log as a frame; raises `LogCorrupt` as `read_rows` does."""
    columns = log_columns(path, aggregate=aggregate)
    try:
        pandas: Any = import_module("pandas")
    except ModuleNotFoundError:
        return columns
    return pandas.DataFrame(columns)


def log_columns(path: Path, *, aggregate: Aggregate = "mean") -> dict[str, NDArray[Any]]:
    """Every complete row of a log, by column.

    Extras become `extras.<name>`, and a metric becomes one of its aggregates. Missing values are NaN.
    """
    numbers: dict[str, array[float]] = {}
    words: dict[str, list[Any]] = {}
    tail, count, present = LogTail(path), 0, 0
    while rows := tail.poll(_PART)[0]:
        for row in rows:
            for name, value in _flat(row, aggregate).items():
                if name in _WORDS:
                    column = words.setdefault(name, [])
                    column += [None] * (count - len(column)) + [value]
                else:
                    values = numbers.setdefault(name, array("d"))
                    values.extend([np.nan] * (count - len(values)))
                    values.append(_number(value))
                    present += 1
            count += 1
            if len(numbers) * count > _MOST_GAPS * present + 2**20:
                raise LogCorrupt(f"{path}: row {count - 1} makes {len(numbers)} columns, and nearly all are empty")
    columns: dict[str, NDArray[Any]] = {}
    for name, values in numbers.items():
        values.extend([np.nan] * (count - len(values)))
        column = np.frombuffer(values)
        is_count = name in _COUNTS and bool(np.all(np.abs(column) < 2**53))
        columns[name] = column.astype(np.int64 if is_count else np.float64)
    for name, texts in words.items():
        known = texts + [None] * (count - len(texts))
        columns[name] = np.array(known, None if all(type(value) is int for value in known) else object)
    return columns


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else np.nan
    except OverflowError:  # an integer of hundreds of digits
        return np.nan


def _flat(row: Mapping[str, Any], aggregate: Aggregate) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, dict):
            flat[name] = value
            continue
        for key, inner in cast("dict[str, Any]", value).items():
            if name == "metrics":
                flat[key] = cast("dict[str, Any]", inner).get(aggregate) if isinstance(inner, dict) else None
            else:
                flat[f"{name}.{key}"] = inner
    return flat
