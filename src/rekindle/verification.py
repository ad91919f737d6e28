"""Check that every file of a run is as written, and compute digests that are equal only for equal runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.agent import State
from rekindle.checkpoint.input_survey import InputSurvey, check_inputs
from rekindle.checkpoint.replay_journal import Manifest, ReplayJournal
from rekindle.checkpoint.store import Checkpoint, list_steps
from rekindle.errors import LogCorrupt, RekindleError
from rekindle.run.metadata import LOGS, Grade, Log, RunMetadata
from rekindle.run.reader import RunReader
from rekindle.storage import codec, logs
from rekindle.storage.logs import LogPosition

__all__ = ["Verification", "checkpoint_digests", "verify"]


class Verification(msgspec.Struct, frozen=True):
    """The result of `verify`."""

    path: str
    ok: bool
    grade: Grade
    """exact if the run is equal to the bit to one that was never interrupted."""
    digests: dict[str, str | None]
    """`weights` (of the policy), `state` (the newest checkpoint) and `logs`; None if unreadable."""
    problems: list[str]
    journal: InputSurvey | None = None
    """The input journal; None if there is none, or it is damaged."""


def verify(path: str | Path) -> Verification:
    """Check every file of a run, and compute digests of its contents.

    The digests ignore time-dependent values (fields named `wall_time`, and metrics under `time/`), positions, segments,
    versions and host: two runs have equal digests if and only if they are the same.
    """
    reader = RunReader(path)
    before, found = _names(reader), _verified(reader)
    for _ in range(_ATTEMPTS):
        # A run that is training removes old checkpoints and segments, perhaps while they are read here.
        if found.ok or not reader.is_live or _names(reader) == before:
            break
        before, found = _names(reader), _verified(reader)
    return found


_ATTEMPTS = 5
"""How often a run is read again if it has changed meanwhile."""


def _names(reader: RunReader) -> list[str]:
    """The names of its checkpoints."""
    return sorted(path.name for path in (reader.path / "checkpoints").glob("step_*.mpk"))


def _verified(reader: RunReader) -> Verification:
    problems: list[str] = []

    def attempt(check: Callable[[], Any]) -> Any:
        try:
            return check()
        except RekindleError as error:
            problems.append(str(error))
            return None

    metadata: RunMetadata | None = attempt(lambda: reader.metadata)
    attempt(reader.read_config)
    paths: dict[Log, Path] = {log: reader.path / f"{log}.jsonl" for log in LOGS}
    attempt(reader.warnings)
    digest = hashlib.sha256()
    rows: dict[Log, Any] = {log: attempt(lambda log=log: _add_log(digest.update, log, paths[log])) for log in LOGS}
    newest: tuple[Checkpoint, str, str] | None = None
    steps: list[int] = attempt(lambda: list_steps(reader.path / "checkpoints")) or []
    for step in steps:
        newest = attempt(lambda step=step: _check_checkpoint(reader.path, step))
    for name in ("latest.mpk", "best.mpk"):
        link = reader.path / "checkpoints" / name
        if link.exists() or link.is_symlink():
            attempt(lambda link=link: codec.read_file(link))
    weights = state = None
    if newest is not None:
        checkpoint, weights, state = newest
        for log in LOGS:
            if rows[log] is not None:  # the rows are valid, but a resume also needs them to be those that were written
                attempt(lambda log=log: logs.surplus(paths[log], checkpoint.logs.get(log, LogPosition())))
    # Without a checkpoint, or if it is older than the journal, a resume begins with the first record.
    number = None if steps and newest is None else (None if newest is None else newest[0].inputs_number) or 0
    journal = attempt(lambda: _check_journal(reader, number))
    return Verification(
        path=str(reader.path),
        ok=not problems,
        grade="exact" if metadata is not None and metadata.exact else "approximate",
        digests={"weights": weights, "state": state, "logs": None if None in rows.values() else digest.hexdigest()},
        problems=problems,
        journal=journal,
    )


def _check_journal(reader: RunReader, checkpoint: int | None) -> InputSurvey | None:
    """Read the input journal of a run."""
    found = check_inputs(reader.path / "inputs", checkpoint)
    if os.path.lexists(first := reader.path / "inputs" / "first_agent.mpk"):
        codec.read_file(first)
    if found is not None and found.torn and reader.is_live:  # a record that is being written just now
        return msgspec.structs.replace(found, torn=0)
    return found


def checkpoint_digests(run_path: Path, step: int) -> dict[str, str]:
    """Digests of `weights`, `state` and `logs` at a checkpoint, without what belongs to the host of the session.

    That is what a replay of the input journal cannot know: states of callbacks, statistics of the host's own, and
    functions of `every` that are due.
    """
    checkpoint, weights, state = _check_checkpoint(run_path, step, with_host=False)
    digest = hashlib.sha256()
    for log in LOGS:
        _add_log(digest.update, log, run_path / f"{log}.jsonl", end=checkpoint.logs[log].size)
    return {"weights": weights, "state": state, "logs": digest.hexdigest()}


def _check_checkpoint(run_path: Path, step: int, *, with_host: bool = True) -> tuple[Checkpoint, str, str]:
    """A checkpoint and the digests of its weights and state, after reading all files that it refers to."""
    checkpoint = Checkpoint.read(run_path / "checkpoints" / f"step_{step}.mpk")
    if checkpoint.best is not None:
        codec.read_file(run_path / "checkpoints" / checkpoint.best.file)
    agent = checkpoint.agent
    weights = cast("State", agent["weights"]) if "weights" in agent else agent
    best = None if checkpoint.best is None else [checkpoint.best.score, checkpoint.best.step]
    state: State = {
        "step": checkpoint.step,
        "counters": checkpoint.counters,
        "agent": agent,
        # Where the input journal stands depends on how often the run was resumed.
        "session": {name: value for name, value in checkpoint.session.items() if name != "inputs"},
        "attached": checkpoint.attached if with_host else {},
        "metrics": checkpoint.metrics,
        "best": best,
        "replay": None,
    }
    if not with_host:
        schedule: State = checkpoint.session["schedule"] or {}
        known = {name: value for name, value in schedule.items() if name != "hooks"}
        state["session"] = {**state["session"], "stats": None, "schedule": known}
    if checkpoint.replay is not None:
        rows = ReplayJournal(run_path / "replay", resume_count=0).read(checkpoint.replay)
        state["replay"] = {"first": checkpoint.replay.first, "rows": rows}
    if checkpoint.data is not None:
        state["data"] = _data_digests(run_path, checkpoint.data)
    return checkpoint, codec.tree_digest({"weights": weights}), codec.tree_digest(state)


def _data_digests(run_path: Path, manifest: Manifest) -> State:
    """The digest of each column of the kept data, read segment by segment, as they may be larger than memory."""
    digests = {name: hashlib.sha256() for name in manifest.columns}
    for rows in ReplayJournal(run_path / "data", resume_count=0).read_each(manifest):
        for name, column in rows.items():
            digests[name].update(np.ascontiguousarray(column).data)
    return {"end": manifest.end, "columns": {name: digest.hexdigest() for name, digest in digests.items()}}


def _add_log(update: Callable[[bytes], None], log: Log, path: Path, *, end: int | None = None) -> int:
    """Check the rows of a log and add them to a digest, in parts, as they may be larger than memory."""
    whole = logs.whole_rows(path, end=end)
    if end is not None and whole.size < end:
        raise LogCorrupt(f"{path}: {end} bytes belong to the checkpoint, and it has {whole.size} bytes of whole rows")
    update(f"{log} {whole.rows}\n".encode())
    for rows in logs.each_rows(path, end=whole.size):
        for row in rows:
            update(msgspec.json.encode(_timeless(row), order="deterministic") + b"\n")
    return whole.rows


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: _timeless(item) for key, item in items if not codec.time_dependent(key)}
    return value
