"""Find runs below a directory."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from rekindle.errors import RunError

__all__ = ["find_run", "find_runs"]


def natural_order(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts v10 after v9."""
    parts = re.findall(r"\d+|\D+", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def is_run(path: Path) -> bool:
    return os.path.isfile(path / "metadata.json")  # False, not an error, in a directory that may not be entered


def find_runs(root: str | Path) -> list[Path]:
    """Every run below a directory (a run, a version, a name or a root), oldest first in each version."""
    top = Path(root)
    if is_run(top):
        return [top]
    found: list[Path] = []
    pattern = [top]
    for _ in range(3):
        pattern = [
            entry
            for directory in pattern
            for entry in sorted(_subdirectories(directory), key=lambda path: natural_order(path.name))
        ]
        found += [path for path in pattern if is_run(path)]
        pattern = [path for path in pattern if not is_run(path)]
    return found


def _subdirectories(path: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [
            entry
            for entry in path.iterdir()
            if not entry.name.startswith(".") and entry.is_dir() and not entry.is_symlink()
        ]
    return []


def find_run(path: str | Path) -> Path:
    """The run at a path: the path itself, or the newest run of a version or name directory.

    Newest is the natural order of names (v10 after v9; run ids never go back, even when the clock does).
    """
    top = Path(path)
    if not top.is_dir():
        raise RunError(f"{top} is not a directory; a run is runs/<name>/<version>/<date_time>")
    runs = find_runs(top)
    if not runs or len(runs[-1].relative_to(top).parts) > 2:
        raise RunError(f"{top} is neither a run, a version nor a name directory: no metadata.json was found")
    return runs[-1]
