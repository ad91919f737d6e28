"""Details of one run, except for the contents of its files."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from rekindle.checkpoint.input_segments import has_segments
from rekindle.checkpoint.input_survey import InputSurvey, survey_inputs
from rekindle.checkpoint.store import Checkpoint, list_steps
from rekindle.run.metadata import RunMetadata
from rekindle.run.overview import RunSummary, glimpse, real, summarise, tolerant
from rekindle.run.reader import RunReader
from rekindle.storage import codec
from rekindle.storage.lock import Lock
from rekindle.text import bytes_text, whole

__all__ = [
    "CheckpointFile",
    "LogFile",
    "RunDetails",
    "journal_text",
    "list_checkpoints",
    "read_details",
    "replay_size",
    "sign",
    "writer",
]

_CHECKPOINT = re.compile(r"(step|best)_(\d{1,30})\.mpk")
_EPISODES = _WARNINGS = 10


class CheckpointFile(msgspec.Struct, frozen=True):
    """One file in `checkpoints/`."""

    file: str
    step: int
    size: int
    modified: float
    """Seconds since 1970."""
    latest: bool
    best: bool
    score: float | None


class LogFile(msgspec.Struct, frozen=True):
    """One log: its rows, its bytes, and the env steps at its last row."""

    rows: int | None
    size: int
    env_steps: int | None


class RunDetails(msgspec.Struct, frozen=True):
    """Details of a run, except for the contents of its files."""

    summary: RunSummary
    writer: str | None
    """The process that is writing the run."""
    metadata: RunMetadata | None
    config: dict[str, Any]
    checkpoints: list[CheckpointFile]
    replay_size: int
    """Bytes of the replay journal, which the checkpoints share."""
    journal: InputSurvey | None
    """The input journal; None if there is none."""
    logs: dict[str, LogFile]
    metrics: dict[str, Any] | None
    """The newest row of `metrics.jsonl`."""
    episodes: list[dict[str, Any]]
    """The newest rows of `train_episodes.jsonl`."""
    warnings: list[dict[str, Any]]
    """The newest rows of `warnings.jsonl`."""
    problems: list[str]


def read_details(reader: RunReader) -> RunDetails:
    """Read the details of a run, whatever state its files are in."""
    seen = glimpse(reader.path)
    summary = summarise(seen)
    problems = list(summary.problems)
    tails = seen.tails
    return RunDetails(
        summary=summary,
        writer=tolerant(problems, lambda: writer(reader), None),
        metadata=seen.metadata,
        config=tolerant(problems, reader.read_config, {}),
        checkpoints=list_checkpoints(reader.path / "checkpoints", problems),
        replay_size=replay_size(reader.path),
        journal=tolerant(problems, lambda: _journal(reader.path), None),
        logs={log: _log_file(reader.path / f"{log}.jsonl", rows) for log, rows in tails.items()},
        metrics=tails["metrics"][-1] if tails["metrics"] else None,
        episodes=tails["train_episodes"][-_EPISODES:],
        warnings=tolerant(problems, lambda: reader.last_rows("warnings", _WARNINGS), []),
        problems=problems,
    )


def writer(reader: RunReader) -> str | None:
    """The process that is writing a run, and its host."""
    if not reader.is_live:
        return None
    return Lock.holder(reader.path / "lock")


def replay_size(run_path: Path) -> int:
    """Bytes of the replay journal, which the checkpoints of a run share."""
    return sum(status.st_size for _, status in _files(run_path / "replay"))


def _journal(run_path: Path) -> InputSurvey | None:
    """The input journal of a run."""
    directory = run_path / "inputs"
    if not has_segments(directory):
        return None
    steps = list_steps(run_path / "checkpoints")
    newest = Checkpoint.read(run_path / "checkpoints" / f"step_{steps[-1]}.mpk") if steps else None
    return survey_inputs(directory, None if newest is None else newest.inputs_number)


def journal_text(journal: InputSurvey) -> str:
    """An input journal in one line."""
    torn = f"; {bytes_text(journal.torn)} at its end lost in a power cut" if journal.torn else ""
    kept = f" from record {whole(journal.first)} on" if journal.first else ""
    after = f"{whole(journal.after_checkpoint)} after the newest checkpoint"
    return f"{whole(journal.records)} records{kept}, {after}, {bytes_text(journal.size)}{torn}"


def _files(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The files of a directory by name; a live run may remove any of them in the meantime."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            status = os.stat(directory / name, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and not name.startswith("."):
                yield name, status


def list_checkpoints(directory: Path, problems: list[str]) -> list[CheckpointFile]:
    """The checkpoints in a directory by step, including best agents; unreadable files are added to `problems`."""
    found = [(match, status) for name, status in _files(directory) if (match := _CHECKPOINT.fullmatch(name))]
    latest = max((int(match[2]) for match, _ in found if match[1] == "step"), default=None)
    best = directory / "best.mpk"
    step, score = tolerant(problems, lambda: _best(best, sign(best)), (None, None)) if best.exists() else (None, None)
    checkpoints = [
        CheckpointFile(
            file=match[0],
            step=int(match[2]),
            size=status.st_size,
            modified=status.st_mtime,
            latest=match[0] == f"step_{latest}.mpk",
            best=match[0] == f"best_{step}.mpk",
            score=score if match[0] == f"best_{step}.mpk" else None,
        )
        for match, status in found
    ]
    return sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, checkpoint.file))


def sign(path: str | Path) -> tuple[int, int, int] | None:
    """A signature that changes when a file, or the names in a directory, change; None if it does not exist."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=256)
def _best(path: Path, identity: tuple[int, int, int] | None) -> tuple[int | None, float | None]:  # noqa: ARG001
    """The step and the score of the best agent; in a copied run, the link to it is a separate file.

    The file may be large, so it is read again only if it has changed.
    """
    tree = codec.read_file(path)
    step = tree.get("step")
    return step if type(step) is int else None, real(tree.get("score"))


def _log_file(path: Path, rows: list[dict[str, Any]]) -> LogFile:
    try:
        size = os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return LogFile(rows=0, size=0, env_steps=None)
    if not rows:
        return LogFile(rows=0 if size == 0 else None, size=size, env_steps=None)
    steps = rows[-1].get("env_steps")
    return LogFile(rows=rows[-1]["row"] + 1, size=size, env_steps=steps if type(steps) is int else None)
