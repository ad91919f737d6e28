"""`rekindle stop`: ask a live run to checkpoint and stop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

import msgspec

from rekindle.run.finding import find_run, find_runs
from rekindle.run.overview import glimpse, summarise
from rekindle.run.reader import RunReader
from rekindle.text import path_text, printable, time_text, whole
from rekindle.ui.output import complain, write_json

__all__ = ["StopAnswer", "stop_run", "stop_study"]

_POLL = 0.1


class _Live(Protocol):
    @property
    def is_live(self) -> bool: ...


class StopAnswer(msgspec.Struct, frozen=True):
    """The result of a request to stop."""

    path: str
    asked: bool
    live: bool
    """Whether a process is still writing the run."""
    status: str
    steps: int | None


def stop_run(path: Path, *, wait: float, as_json: bool) -> int:
    """Ask the run at a path to stop, and wait up to `wait` seconds."""
    reader = RunReader(find_run(path, unfinished_first=True))
    asked = reader.is_live
    if asked:
        reader.request_stop("rekindle stop")
        _wait_for_end(reader, wait)
    summary = summarise(glimpse(reader.path))
    answer = StopAnswer(summary.path, asked, reader.is_live, summary.status, summary.steps)
    outcome = "was asked to checkpoint and stop" if answer.live else f"{answer.status} at step {whole(answer.steps)}"
    return _report(answer, outcome, wait=wait, as_json=as_json, others="" if asked else _others(path))


def stop_study(path: Path, *, wait: float, as_json: bool) -> int:
    """Ask the study at a path to stop, and wait up to `wait` seconds."""
    from rekindle.sweep import Study  # it loads much that stopping a run does not need

    study = Study(path)
    asked = study.is_live
    if asked:
        study.request_stop()
        _wait_for_end(study, wait)
    answer = StopAnswer(path_text(path), asked, study.is_live, study.status, None)
    outcome = "was asked to stop" if answer.live else answer.status
    return _report(answer, outcome, wait=wait, as_json=as_json)


def _report(answer: StopAnswer, outcome: str, *, wait: float, as_json: bool, others: str = "") -> int:
    """Print the result of a request to stop; returns the exit code."""
    if as_json:
        write_json(answer)
    failure = None
    if not answer.asked:
        failure = f"is not live ({answer.status}): there is nothing to stop{others}"
    elif answer.live and wait > 0:
        failure = f"was asked to stop, but is still live after {time_text(wait)}; wait longer"
    elif not answer.live and answer.status not in ("stopped", "finished"):
        failure = f"was asked to stop, but {answer.status}; see rekindle show {answer.path}"
    if failure is not None:
        complain(f"{answer.path} {failure}")
        return 1
    if not as_json:
        print(printable(f"{answer.path} {outcome}", most=1000))
    return 0


def _wait_for_end(source: _Live, seconds: float) -> None:
    """Wait until no process writes a run or a study, for at most this many seconds."""
    deadline = time.monotonic() + seconds
    while source.is_live and time.monotonic() < deadline:
        time.sleep(_POLL)


def _others(path: Path) -> str:
    """The live runs below the path: the user may mean one of them."""
    live = [path_text(run) for run in find_runs(path) if RunReader(run).is_live]
    return f"; live runs: {', '.join(live[:5])}" if live else ""
