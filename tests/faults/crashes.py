"""A training that died with two checkpoints, to be damaged in all the ways there are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import Training

import rekindle
from rekindle.checkpoint.retention import KeepLast
from rekindle.checkpoint.store import CheckpointStore, Found
from rekindle.storage import codec

OLDER, NEWER = 80, 100
"""The steps of its checkpoints; the newer one has a segment and a best agent of its own."""


def crash(training: Training) -> Training:
    """Train up to the newer checkpoint, and leave the run as a process that died there would."""
    ended = training.fork(steps=NEWER)
    assert ended.code == 0, ended.errors
    run = rekindle.TrainingRun.resume(training.run)
    run.update_metadata(status="running", stop_reason=None)
    run.close()
    training.acknowledged_path.write_text("".join(f"{line}\n" for line in training.acknowledged if line != "finished"))
    assert training.steps_on_disk == [OLDER, NEWER]
    return training


def newest(run: Path, kind: str) -> Path:
    """The newest file of a kind: `checkpoint`, `segment` or `best`."""
    if kind == "checkpoint":
        return run / "checkpoints" / f"step_{NEWER}.mpk"
    if kind == "best":
        return run / "checkpoints" / f"best_{NEWER}.mpk"
    (segment,) = (run / "replay").glob(f"rows_*_{NEWER}_*.mpk")
    return segment


def find(run: Path) -> Found:
    """What a resume would go back to."""
    return CheckpointStore(run, policy=KeepLast(2), resume_count=0).find()


def overwrite(path: Path, data: bytes) -> None:
    """Put other bytes under a name, and leave other names of the same file alone."""
    path.unlink()
    path.write_bytes(data)


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]


def reencode(path: Path, tree: Mapping[str, Any]) -> None:
    """Put another tree into a file, with a checksum that is right."""
    overwrite(path, b"".join(codec.encode(dict(tree))))


def contents(directory: Path) -> dict[str, bytes | str | None]:
    """Everything below a directory: bytes of files, targets of links; the holder of a lock does not count."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.name not in ("lock", ".lock"):
            found[name] = path.read_bytes() if path.is_file() else None
    return found
