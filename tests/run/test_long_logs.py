"""A log of any length is read in parts: no reader needs memory for all of its rows at once."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from toys import ReplayAgent, drive

from rekindle import RunReader, TrainingSession, verify
from rekindle.checkpoint.store import Checkpoint
from rekindle.errors import ConfigError, LogCorrupt
from rekindle.storage import codec, logs
from rekindle.storage.logs import LogPosition
from rekindle.training.diagnosing import _wrong_window  # pyright: ignore[reportPrivateUsage]
from rekindle.verification import checkpoint_digests

SIZE = 3 * 2**20
"""Bytes of the long log; as rows in memory, it would take ten times as much."""


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run with a long log of metrics, which its newest checkpoint knows."""
    root = tmp_path_factory.mktemp("long")
    with TrainingSession.open("walk", ReplayAgent(0), root=root, max_steps=60, seed=0, metrics_every=15) as session:
        session.every(40, lambda: session.stop("for now"))
        drive(session)
    assert session.run is not None
    path = session.run.path
    checkpoint = Checkpoint.read(path / "checkpoints" / "latest.mpk")
    written = (path / "metrics.jsonl").read_bytes()[: checkpoint.logs["metrics"].size]
    position = checkpoint.logs["metrics"]
    row = json.loads(written.splitlines()[-1])
    summary = {"mean": 0.5, "min": 0.0, "max": 1.0, "last": 0.25, "count": 15}
    row["metrics"] = {f"agent/metric{number}": summary for number in range(60)} | {"agent/loss": summary}
    lines = [written]
    while position.size < SIZE:
        line = json.dumps({**row, "row": position.rows}).encode() + b"\n"
        position = position.after(line)
        lines.append(line)
    (path / "metrics.jsonl").write_bytes(b"".join(lines))
    positions = {**checkpoint.tree()["logs"], "metrics": list(position)}
    for file in ("latest.mpk", f"step_{checkpoint.step}.mpk"):
        (path / "checkpoints" / file).unlink()
        data = b"".join(bytes(part) for part in codec.encode({**checkpoint.tree(), "logs": positions}))
        (path / "checkpoints" / file).write_bytes(data)
    return path


@contextmanager
def little_memory() -> Iterator[None]:
    """Fail if what is done inside needs as much memory as the rows of the log."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 3 * SIZE
    finally:
        tracemalloc.stop()


def resume(path: Path) -> None:
    root = path.parents[2]
    with TrainingSession.open("walk", ReplayAgent(0), root=root, max_steps=60, seed=0, metrics_every=15) as session:
        assert session.resumed is not None
        assert session.resumed.grade == "exact"
        assert session.store.latest("agent/metric7") == 0.5


def diagnose(path: Path) -> None:
    config: Any = None
    with suppress(ConfigError):
        _wrong_window(RunReader(path), config)


def digests(path: Path) -> None:
    step = Checkpoint.read(path / "checkpoints" / "latest.mpk").step
    assert checkpoint_digests(path, step)["logs"] == verify(path).digests["logs"]


@pytest.mark.parametrize("read", [verify, digests, diagnose, resume])
def test_a_long_log_does_not_have_to_fit_into_memory(
    long_run: Path, read: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PART", 2**18)
    with little_memory():
        read(long_run)


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_log_that_is_shorter_than_a_checkpoint_says_has_no_digest(is_missing: bool, tmp_path: Path) -> None:
    with TrainingSession.open("walk", ReplayAgent(0), root=tmp_path, max_steps=20, metrics_every=5) as session:
        drive(session)
    assert session.run is not None
    log = session.run.path / "metrics.jsonl"
    data = log.read_bytes()
    log.unlink()
    if not is_missing:
        log.write_bytes(data[: len(data) // 2])
    with pytest.raises(LogCorrupt, match="belong to the checkpoint"):
        checkpoint_digests(session.run.path, 20)


def test_parts_have_the_rows_of_the_whole_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    rows = [{"row": number, "text": "x" * (number % 50)} for number in range(200)]
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    path.write_bytes(b"".join(lines) + b'{"row": 200, "te')
    position = LogPosition()
    for line in lines[:150]:
        position = position.after(line)
    for part in (1, 7, 64, 2**22):
        monkeypatch.setattr(logs, "_PART", part)
        assert logs.read_rows(path) == rows
        assert [row for some in logs.each_rows(path, end=position.size) for row in some] == rows[:150]
        assert logs.whole_rows(path, end=position.size) == position
        assert logs.surplus(path, position) == b"".join(lines[150:]) + b'{"row": 200, "te'
        with pytest.raises(LogCorrupt, match="the first 150 rows are not the ones"):
            logs.surplus(path, position._replace(crc=1))
        with pytest.raises(LogCorrupt, match="rows are missing from line 201 on"):
            logs.surplus(path, position._replace(size=10**6))
