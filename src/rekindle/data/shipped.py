"""Data sets that come with the package, as `rekindle:NAME`."""

from __future__ import annotations

from pathlib import Path

from rekindle.errors import DataError

__all__ = ["is_shipped", "shipped_hint", "shipped_path"]

_PREFIX = "rekindle:"
_DIRECTORY = Path(__file__).parent / "sets"


def is_shipped(source: str | Path) -> bool:
    """Whether a path is the name of a data set that comes with the package."""
    return str(source).startswith(_PREFIX)


def shipped_path(source: str | Path) -> Path:
    """The file of a data set that comes with the package; raises `DataError` if there is none of that name."""
    name = str(source).removeprefix(_PREFIX)
    there = _shipped()
    if name not in there:
        raise DataError(f"there is no data set {source}; these come with rekindle: {', '.join(there)}")
    return there[name]


def shipped_hint(path: Path) -> str:
    """For the message about a path that does not exist: how to name a data set of the package, if that was meant."""
    return f"; did you mean {_PREFIX}{path.name}?" if path.name in _shipped() else ""


def _shipped() -> dict[str, Path]:
    return {file.stem: file for file in sorted(_DIRECTORY.glob("*.npz"))}
