"""Data sets that come with the package, as `rekindle:NAME`."""

from __future__ import annotations

from pathlib import Path

from rekindle.errors import DataError

__all__ = ["is_shipped", "shipped_path"]

_PREFIX = "rekindle:"
_DIRECTORY = Path(__file__).parent / "sets"


def is_shipped(source: str | Path) -> bool:
    """Whether a path is the name of a data set that comes with the package."""
    return str(source).startswith(_PREFIX)


def shipped_path(source: str | Path) -> Path:
    """The file of a data set that comes with the package; raises `DataError` if there is none of that name."""
    name = str(source).removeprefix(_PREFIX)
    there = {file.stem: file for file in sorted(_DIRECTORY.glob("*.npz"))}
    if name not in there:
        raise DataError(f"there is no data set {source}; these come with rekindle: {', '.join(there)}")
    return there[name]
