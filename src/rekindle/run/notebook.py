"""The HTML view of a run in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rekindle.errors import RekindleError
from rekindle.markup import escaped, facts, notebook_page
from rekindle.run.chart import Drawn, chart, smoothing_of
from rekindle.run.curve import Curve
from rekindle.run.metadata import Log
from rekindle.run.overview import glimpse, mapping, real, run_facts
from rekindle.storage.tail import LogTail
from rekindle.text import path_text

__all__ = ["run_html"]

_PART = 2**18
"""Bytes of a log that are read at a time."""
_MOST_STEPS = 2**53
"""No real run makes more steps; a hostile file may contain any number."""


def run_html(path: Path) -> str:
    """A run at a glance: its name, progress and return.

    Without logged episodes, the first metric is shown instead of the return.
    """
    seen = glimpse(path)
    problems = list(seen.problems)
    name, lines = "return", _returns(path, problems)
    if not lines:
        name, lines = _first_metric(path, problems)
    drawn = [Drawn(split, curve.points(), smoothing_of(split)) for split, curve in lines.items()]
    shown_problems = "".join(f"<br>{escaped(problem)}" for problem in dict.fromkeys(problems))
    where = f'<br><span style="opacity:.7">{escaped(path_text(path))}</span>'
    title = f"<b>{escaped('/'.join(path.parts[-3:]))}</b>{where}{shown_problems}"
    return notebook_page(title, facts(run_facts(seen)) + (chart(name, drawn) if drawn else ""))


def _returns(path: Path, problems: list[str]) -> dict[str, Curve]:
    logs: dict[str, Log] = {"train": "train_episodes", "eval": "eval_episodes"}
    curves: dict[str, Curve] = {}
    for split, log in logs.items():
        for step, row in _rows(path, log, problems):
            _add(curves, split, step, row.get("total_reward"))
    return curves


def _first_metric(path: Path, problems: list[str]) -> tuple[str, dict[str, Curve]]:
    """The first metric by name that does not depend on the clock."""
    curves: dict[str, Curve] = {}
    name = ""
    for step, row in _rows(path, "metrics", problems):
        metrics = mapping(row.get("metrics"))
        name = name or min((metric for metric in metrics if not metric.startswith("time/")), default="")
        _add(curves, name.rpartition("/")[0] or "logged", step, mapping(metrics.get(name)).get("mean"))
    return name.rpartition("/")[2], curves


def _add(curves: dict[str, Curve], split: str, step: int, value: object) -> None:
    if (number := real(value)) is not None:
        curves.setdefault(split, Curve()).add(step, number)


def _rows(path: Path, log: Log, problems: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The env step and the fields of each row; a log that cannot be read ends with a problem."""
    tail = LogTail(path / f"{log}.jsonl")
    try:
        while rows := tail.poll(_PART)[0]:
            for row in rows:
                if type(step := row.get("env_steps")) is int and 0 <= step < _MOST_STEPS:
                    yield step, row
    except (RekindleError, OSError) as error:
        problems.append(str(error))
