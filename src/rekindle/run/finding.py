"""Find runs below a directory."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from rekindle.errors import RunError, StorageError
from rekindle.run.metadata import MOST_JSON
from rekindle.storage import files

__all__ = ["find_run", "find_runs", "find_unfinished", "is_study", "no_run_at"]


def natural_order(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts v10 after v9."""
    parts = re.findall(r"\d+|\D+", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def is_run(path: Path) -> bool:
    return os.path.isfile(path / "metadata.json")  # False, not an error, for a directory without permission


def is_study(path: str | Path) -> bool:
    """Whether a directory is a study, whose runs are in it."""
    return os.path.isfile(Path(path) / "study.json")


def find_runs(root: str | Path) -> list[Path]:
    """Every run below a directory (a run, version, name or root directory), oldest first within each version."""
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


def find_run(path: str | Path, *, unfinished_first: bool = False) -> Path:
    """The run at a path: the path itself, or the last started run of a version or name directory.

    With `unfinished_first` it is the last started unfinished run if there is one, for callers that resume or stop runs.
    """
    top = Path(path)
    if not os.path.isdir(top):
        raise no_run_at(top)
    runs = find_runs(top)
    if not runs:
        raise no_run_at(top)
    if len(below := runs[-1].relative_to(top).parts) > 2:
        raise RunError(f"{top} is a directory of runs, and not one of them: name one, such as {top / below[0]}")
    if len(runs) == 1:
        return runs[0]
    started = _in_order_of_start(runs)
    unfinished = [run for run in started if not run.is_finished] if unfinished_first else []
    return (unfinished or started)[-1].path


def no_run_at(path: Path) -> RunError:
    """The error for a path without any run, with the nearest name."""
    if os.path.isdir(path):
        return RunError(
            f"there is no run at {path}: it is neither a run, a version nor a name directory (no metadata.json was "
            "found); a training that was killed before it created its run must be started again"
        )
    near = difflib.get_close_matches(path.name, [entry.name for entry in _subdirectories(path.parent)], n=1)
    advice = f"did you mean {path.parent / near[0]}?" if near else "a run is runs/<name>/<version>/<date_time>"
    return RunError(f"there is no run at {path}: it is not a directory; {advice}")


def find_unfinished(path: str | Path) -> Path | None:
    """The last started unfinished run below a directory; None if all have finished."""
    unfinished = [run for run in _in_order_of_start(find_runs(path)) if not run.is_finished]
    return unfinished[-1].path if unfinished else None


class _Started(NamedTuple):
    at: str
    path: Path
    is_finished: bool


class _Metadata(msgspec.Struct, frozen=True):
    """The metadata that are needed to choose a run; a run with unreadable metadata counts as unfinished."""

    status: str = ""
    started_at: str = ""


def _in_order_of_start(runs: list[Path]) -> list[_Started]:
    """Sort runs by start, the last started at the end; `runs` must be in the order of `find_runs`.

    A clock may go back, but the run ids of a version never do: a run counts as started no earlier than the run
    before it in its version.
    """
    latest: dict[Path, str] = {}
    started: list[_Started] = []
    for path in runs:
        metadata = _metadata(path)
        at = max(latest.get(path.parent, ""), metadata.started_at)
        latest[path.parent] = at
        started.append(_Started(at, path, metadata.status == "finished"))
    return sorted(started, key=lambda run: run.at)


def _metadata(path: Path) -> _Metadata:
    try:
        return msgspec.json.decode(files.read_bytes(path / "metadata.json", most=MOST_JSON), type=_Metadata)
    except (StorageError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Metadata()  # the error is reported when the run is opened
