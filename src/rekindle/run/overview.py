"""A summary of a run from its metadata and the ends of its logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from rekindle.errors import RekindleError
from rekindle.run.metadata import LOGS, Log, RunMetadata
from rekindle.run.reader import RunReader
from rekindle.run.settings import algorithm_name, environment_name, flat_settings
from rekindle.run.tags import read_tags
from rekindle.storage import logs
from rekindle.text import NOTHING, decimal, moment, path_text, seconds_since, time_text, whole

__all__ = [
    "BestReturn",
    "Glimpse",
    "RunSummary",
    "best_evaluation",
    "best_text",
    "glimpse",
    "greatest",
    "mapping",
    "real",
    "run_facts",
    "summarise",
    "tolerant",
]

T = TypeVar("T")
Tails = dict[Log, list[dict[str, Any]]]

_RECENT = 100
"""Episodes in the mean return."""
_SEARCHED = 2**22
"""Bytes at the end of a log that are searched for the best return."""
_MOST_STEPS = 2**53
"""No real run makes more steps; a hostile file may contain any number."""


class BestReturn(msgspec.Struct, frozen=True):
    """The best return of a run."""

    value: float
    of: Literal["evaluation", "episode"]
    """Whether it is the mean of an evaluation, or without evaluations the return of one training episode."""
    step: int | None
    at_least: bool
    """Whether the log is so long that only its end was searched."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of one run; unknown values are None."""

    path: str
    name: str | None = None
    version: str | None = None
    run_id: str | None = None
    status: str
    """running, finished, stopped, failed, crashed, or unreadable."""
    stop_reason: str | None = None
    exact: bool | None = None
    resumes: int = 0
    steps: int | None = None
    episodes: int | None = None
    updates: int | None = None
    last_return: float | None = None
    mean_return: float | None = None
    """Over the last hundred training episodes, or over fewer if there are fewer."""
    best_return: BestReturn | None = None
    started_at: str | None = None
    last_updated: str | None = None
    wall_time: float | None = None
    """Seconds from the start to the last update, including pauses."""
    tags: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def tolerant(problems: list[str], read: Callable[[], T], otherwise: T) -> T:
    """Return `read()`; if a file is damaged or refused, record the problem and return `otherwise`."""
    try:
        return read()
    except (RekindleError, OSError, UnicodeDecodeError) as error:
        problems.append(str(error))
        return otherwise
    except MemoryError:
        problems.append("one of its files is too large for the memory of this machine")
        return otherwise


class Glimpse(msgspec.Struct, frozen=True):
    """What was read of a run without reading all of it, and the problems that occurred."""

    path: Path
    metadata: RunMetadata | None
    status: str
    tails: Tails
    """The last hundred rows of each log."""
    problems: list[str]


def glimpse(path: Path) -> Glimpse:
    """Read the run at a path, whatever state its files are in."""
    problems: list[str] = []
    reader = tolerant(problems, lambda: RunReader(path), None)
    if reader is None:  # deleted since it was found
        return Glimpse(path, None, "unreadable", {log: [] for log in LOGS}, problems)
    metadata = tolerant(problems, lambda: reader.metadata, None)
    status = tolerant(problems, lambda: reader.status, metadata.status) if metadata else "unreadable"
    last_rows = reader.last_rows
    tails: Tails = {log: tolerant(problems, lambda log=log: last_rows(log, _RECENT), []) for log in LOGS}
    return Glimpse(reader.path, metadata, status, tails, problems)


def summarise(seen: Glimpse) -> RunSummary:
    """Summarise a run."""
    problems = list(seen.problems)
    best = None if problems else tolerant(problems, lambda: _best_return(seen.path), None)
    metadata = seen.metadata
    if metadata is None:
        return RunSummary(path=path_text(seen.path), status=seen.status, problems=tuple(problems))
    tags = tolerant(problems, lambda: read_tags(seen.path), ())
    returns = [value for row in seen.tails["train_episodes"] if (value := real(row.get("total_reward"))) is not None]
    newest = [rows[-1] for rows in seen.tails.values() if rows]
    return RunSummary(
        path=path_text(seen.path),
        name=metadata.name,
        version=metadata.version,
        run_id=metadata.run_id,
        status=seen.status,
        stop_reason=metadata.stop_reason,
        exact=metadata.exact,
        resumes=len(metadata.resumes),
        steps=greatest(metadata.total_steps, newest, "env_steps"),
        episodes=greatest(metadata.total_episodes, newest, "episodes"),
        updates=greatest(metadata.updates, newest, "updates"),
        last_return=returns[-1] if returns else None,
        mean_return=math.fsum(returns) / len(returns) if returns else None,
        best_return=best,
        started_at=metadata.started_at,
        last_updated=metadata.last_updated,
        wall_time=_wall_time(metadata, newest),
        tags=tags,
        problems=tuple(problems),
    )


def run_facts(seen: Glimpse) -> list[tuple[str, str]]:
    """The most important names and values of a run, for a short table."""
    summary, metadata = summarise(seen), seen.metadata
    reason = f", {summary.stop_reason}" if summary.stop_reason else ""
    config: dict[str, Any] = tolerant([], lambda: RunReader(seen.path).read_config(), {})
    settings = flat_settings(config)
    best = tolerant([], lambda: best_evaluation(seen.path), None)
    max_steps = metadata.max_steps if metadata else None
    end = f" of {whole(min(max_steps, _MOST_STEPS))}" if max_steps is not None and max_steps > 0 else ""
    counts = [
        ("steps", whole(min(summary.steps or 0, _MOST_STEPS)) + end),
        ("updates", whole(min(summary.updates or 0, _MOST_STEPS))),
        ("episodes", whole(min(summary.episodes or 0, _MOST_STEPS))),
    ]
    if metadata is not None and metadata.step_unit == "updates":
        counts = [("updates", counts[0][1])]
    items = [
        ("status", f"{summary.status}{reason}"),
        ("algorithm", algorithm_name(settings) or (metadata and metadata.agent) or NOTHING),
        ("environment", environment_name(settings) or NOTHING),
        *counts,
        ("wall time", time_text(summary.wall_time)),
        ("best evaluation", best_text(best)),
    ]
    if metadata is not None:
        grade = "exact" if metadata.exact else "approximate"
        items += [
            ("resumes", f"{len(metadata.resumes) or 'none'}, {grade}"),
            ("seed", str(metadata.seed)),
            ("started", _when(metadata.started_at)),
            *([("began with", metadata.parent)] if metadata.parent else []),
            *([("tags", ", ".join(summary.tags))] if summary.tags else []),
        ]
    return items


def _when(stamp: str) -> str:
    then = moment(stamp)
    try:
        return NOTHING if then is None else then.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):  # a year that cannot be shown
        return NOTHING


def real(value: object) -> float | None:
    """A finite number from a row, or None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return None


def mapping(value: object) -> Mapping[str, Any]:
    """A JSON object from a row, or an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def greatest(known: int, newest: Iterable[Mapping[str, Any]], field: str) -> int:
    """A counter: the maximum of metadata and logs, as either may be behind the other."""
    return max([known, *(value for row in newest if type(value := row.get(field)) is int)])


def _wall_time(metadata: RunMetadata, newest: Iterable[Mapping[str, Any]]) -> float | None:
    signs = [sign for row in newest if (sign := _clock(row.get("wall_time"))) is not None]
    if (updated := moment(metadata.last_updated)) is not None:
        signs.append(updated)
    return seconds_since(moment(metadata.started_at), max(signs)) if signs else None


def _clock(value: object) -> datetime | None:
    seconds = real(value)
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None and 0 <= seconds < 1e11 else None


def _best_return(run_path: Path) -> BestReturn | None:
    evaluation = best_evaluation(run_path)
    if evaluation is not None:
        return evaluation
    rows = _searched(run_path, "train_episodes")
    returns = [(value, row.get("env_steps")) for row in rows if (value := real(row.get("total_reward"))) is not None]
    return _best(returns, rows, "episode")


def best_evaluation(run_path: Path) -> BestReturn | None:
    """The evaluation with the highest mean return; None if there was none."""
    rows = _searched(run_path, "eval_episodes")
    rounds: dict[Any, list[float]] = {}
    for row in rows:
        step = row.get("total_steps_at_eval")
        if type(step) is int and (value := real(row.get("total_reward"))) is not None:
            rounds.setdefault(step, []).append(value)
    means = [(math.fsum(values) / len(values), step) for step, values in rounds.items()]
    if len(means) > 1 and rows[0]["row"] > 0:
        means = means[1:]  # the oldest evaluation may have started before the part that was read
    return _best(means, rows, "evaluation")


def _searched(run_path: Path, log: Log) -> list[dict[str, Any]]:
    return logs.read_last_rows(run_path / f"{log}.jsonl", _SEARCHED, most_bytes=_SEARCHED)


def _best(
    candidates: Sequence[tuple[float, Any]], rows: Sequence[Mapping[str, Any]], of: Literal["evaluation", "episode"]
) -> BestReturn | None:
    if not candidates:
        return None
    value, step = max(candidates, key=lambda candidate: candidate[0])
    return BestReturn(value, of, step if type(step) is int else None, at_least=rows[0]["row"] > 0)


def best_text(best: BestReturn | None) -> str:
    """The best return, with a star if it is that of a training episode, and with ≥ if only a part was searched."""
    if best is None:
        return NOTHING
    return f"{'≥ ' if best.at_least else ''}{decimal(best.value)}{'*' if best.of == 'episode' else ''}"
