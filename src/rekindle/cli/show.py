"""`rekindle show`: one run in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rich.console import RenderableType
from rich.text import Text

from rekindle.run.metadata import RunMetadata
from rekindle.run.overview import best_text, real
from rekindle.run.reader import RunReader
from rekindle.run.settings import flat_settings, setting_text
from rekindle.text import NOTHING, bytes_text, decimal, moment, seconds_since, time_text, whole
from rekindle.ui.details import CheckpointFile, LogFile, RunDetails, journal_text, read_details
from rekindle.ui.output import write_json
from rekindle.ui.tables import (
    Cell,
    cell,
    console,
    facts,
    headline,
    number,
    print_problems,
    print_whole,
    status_cell,
    table,
    words,
)

__all__ = ["show_run"]

_MOST_LINES = 60
"""The most settings or metrics in a table; JSON has all."""


def show_run(path: Path, *, as_json: bool) -> int:
    """Print one run in full."""
    details = read_details(RunReader(path))
    if as_json:
        write_json(details)
    else:
        _print(details)
    return 0


def _print(details: RunDetails) -> None:
    out = console()
    print_whole(out, cell(details.summary.path, "bold"))
    out.print(facts(_overview(details)))
    if details.problems:
        out.print(headline("Problems"))
        print_problems(out, details.problems)
    for part in _parts(details):
        out.print(part)


def _parts(details: RunDetails) -> Iterator[RenderableType]:
    metadata = details.metadata
    if metadata is not None and metadata.resumes:
        yield headline("Resumes")
        has_journal = any(resume.replayed for resume in metadata.resumes)
        replayed = [number("replayed")] if has_journal else []
        columns = (number("#"), number("from step"), *replayed, "checkpoint", "grade", "when", words("lost"))
        yield table(columns, _resumes(metadata, has_journal=has_journal))
    if details.config:
        settings = flat_settings(details.config)
        yield headline("Config", _left_out(settings))
        yield facts((name, setting_text(value)) for name, value in _first(settings))
    yield headline("Checkpoints", "" if details.checkpoints else "none yet")
    if details.checkpoints:
        yield table(("file", number("step"), number("size"), "", number("age")), _checkpoint_rows(details.checkpoints))
    if details.replay_size:
        yield Text(f"and {bytes_text(details.replay_size)} of replay buffer, which they share", style="dim")
    if details.journal is not None:
        yield headline("Input journal", journal_text(details.journal))
    yield headline("Logs")
    yield table(("log", number("rows"), number("size"), number("up to step")), _log_rows(details.logs))
    metrics = details.metrics.get("metrics") if details.metrics else None
    if details.metrics and isinstance(metrics, dict) and metrics:
        known = cast("dict[str, Any]", metrics)
        yield headline("Latest metrics", f"step {_count(details.metrics.get('env_steps'))} {_left_out(known)}")
        yield table((words("metric"), *map(number, ("mean", "min", "max", "last", "count"))), _metric_rows(known))
    if details.episodes:
        yield headline("Last episodes")
        columns = (*map(number, ("episode", "step", "return", "length")), "end", words("extras"))
        yield table(columns, _episode_rows(details.episodes))
    if details.warnings:
        yield headline("Last warnings")
        rows = [[_count(row.get("env_steps")), str(row.get("message", NOTHING))] for row in details.warnings]
        yield table((number("step"), words("warning")), rows)


def _overview(details: RunDetails) -> Iterator[tuple[Cell, Cell]]:
    summary, metadata = details.summary, details.metadata
    status = status_cell(summary.status)
    if note := details.writer or summary.stop_reason:
        status.append_text(cell(f"  {note}", "not bold default"))
    yield "status", status
    if metadata is None:
        return
    if metadata.step_unit != "updates":
        yield "steps", whole(summary.steps)
        yield "episodes", whole(summary.episodes)
    yield "updates", whole(summary.updates)
    if summary.mean_return is not None:
        yield "return", f"{decimal(summary.mean_return)} mean of the last 100, {decimal(summary.last_return)} last"
    if (best := summary.best_return) is not None:
        where = "" if best.step is None else f" at step {whole(best.step)}"
        yield "best", f"{best_text(best).rstrip('*')} {best.of}{where}"
    if summary.tags:
        yield "tags", ", ".join(summary.tags)
    yield "started", _when(summary.started_at)
    yield "updated", _when(summary.last_updated)
    yield "wall time", time_text(summary.wall_time) + (", pauses included" if summary.resumes else "")
    yield "resumes", f"{summary.resumes or 'none'}"
    yield "grade", cell("exact", "green") if summary.exact else cell("approximate", "yellow")
    yield "seed", str(metadata.seed)
    if metadata.fork is not None:
        yield "fork of", f"{metadata.fork.run} at step {whole(metadata.fork.step)} ({metadata.fork.path})"
        changed = [f"{name} {setting_text(old)} -> {setting_text(new)}" for name, (old, new) in _changes(metadata)]
        yield "changed", "; ".join(changed) or "nothing"
    elif metadata.parent is not None:
        yield "began with", metadata.parent
    yield "made with", ", ".join(f"{name} {value}" for name, value in metadata.environment.items())


def _changes(metadata: RunMetadata) -> list[tuple[str, tuple[Any, Any]]]:
    return [] if metadata.fork is None else _first(metadata.fork.changes)


def _resumes(metadata: RunMetadata, *, has_journal: bool) -> Iterator[list[Cell]]:
    for resume in metadata.resumes:
        yield [
            whole(resume.number),
            whole(resume.step),
            *([whole(resume.replayed)] if has_journal else []),
            resume.checkpoint or NOTHING,
            cell(resume.grade, "green" if resume.grade == "exact" else "yellow"),
            _date(moment(resume.wall_time)),
            "; ".join(resume.lost) or NOTHING,
        ]


def _checkpoint_rows(checkpoints: list[CheckpointFile]) -> Iterator[list[Cell]]:
    for checkpoint in checkpoints:
        marks = ["latest"] * checkpoint.latest + ["best"] * checkpoint.best
        score = [f"score {decimal(checkpoint.score)}"] * (checkpoint.score is not None)
        yield [
            checkpoint.file,
            whole(checkpoint.step),
            bytes_text(checkpoint.size),
            cell(", ".join(marks + score), "green"),
            time_text(seconds_since(datetime.fromtimestamp(checkpoint.modified, UTC))),
        ]


def _log_rows(logs: Mapping[str, LogFile]) -> Iterator[list[Cell]]:
    for name, log in logs.items():
        rows = cell("damaged", "red") if log.rows is None else cell(whole(log.rows))
        yield [f"{name}.jsonl", rows, bytes_text(log.size), whole(log.env_steps)]


def _metric_rows(metrics: dict[str, Any]) -> Iterator[list[Cell]]:
    for name, summary in _first(metrics):
        values = cast("dict[str, Any]", summary if isinstance(summary, dict) else {})
        yield [
            name,
            *(decimal(real(values.get(part))) for part in ("mean", "min", "max", "last")),
            _count(values.get("count")),
        ]


def _episode_rows(rows: list[dict[str, Any]]) -> Iterator[list[Cell]]:
    for row in rows:
        extras = row.get("extras")
        named = cast("dict[str, Any]", extras if isinstance(extras, dict) else {})
        yield [
            _count(row.get("episodes")),
            _count(row.get("env_steps")),
            decimal(real(row.get("total_reward"))),
            _count(row.get("length")),
            str(row.get("status", NOTHING)),
            " ".join(f"{name}={decimal(real(value))}" for name, value in _first(named)),
        ]


def _count(value: object) -> str:
    return whole(value) if type(value) is int else NOTHING


def _first(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(values.items())[:_MOST_LINES]


def _left_out(values: Mapping[str, Any]) -> str:
    return f"the first {_MOST_LINES} of {len(values)}; --json has all" if len(values) > _MOST_LINES else ""


def _when(stamp: str | None) -> str:
    then = moment(stamp)
    return NOTHING if then is None else f"{_date(then)} ({time_text(seconds_since(then))} ago)"


def _date(then: datetime | None) -> str:
    return NOTHING if then is None else then.astimezone().strftime("%Y-%m-%d %H:%M:%S")
