"""`rekindle compare`: runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rekindle.cli.verify import DIGESTS, verification
from rekindle.run.overview import BestReturn, RunSummary, best_evaluation, best_text, glimpse, summarise, tolerant
from rekindle.run.reader import RunReader
from rekindle.run.settings import flat_settings, setting_text
from rekindle.text import NOTHING, decimal, time_text, whole
from rekindle.ui.output import write_json
from rekindle.ui.tables import Cell, cell, console, headline, print_problems, split_path, status_cell, table, words

__all__ = ["ComparedRun", "Comparison", "compare_runs"]

_LEAST_WIDTH = 22
"""Minimum width of a run's column; runs that do not fit go into further tables."""
_LABELS = 20
_MOST_SETTINGS = 60
"""The most settings in the table; JSON has all."""


class ComparedRun(msgspec.Struct, frozen=True):
    """One run of a comparison."""

    summary: RunSummary
    best_evaluation: BestReturn | None
    settings: dict[str, Any]
    """The config, with dotted names."""
    digests: dict[str, str | None] | None
    problems: list[str]


class Comparison(msgspec.Struct, frozen=True):
    """Runs side by side."""

    runs: list[ComparedRun]
    differing_settings: list[str]
    """Settings that are not the same in all runs."""
    equal: dict[str, bool] | None
    """Which digests are equal in all runs; None if they were not requested."""


def compare_runs(paths: Sequence[Path], *, digests: bool, as_json: bool) -> int:
    """Print runs side by side."""
    readers = [RunReader(path) for path in paths]  # report a path that is not a run before printing anything
    runs = [_compared(reader, digests=digests) for reader in readers]
    settings = sorted({name for run in runs for name in run.settings})
    comparison = Comparison(
        runs=runs,
        differing_settings=[name for name in settings if len({_setting(run, name) for run in runs}) > 1],
        equal={kind: _equal([(run.digests or {}).get(kind) for run in runs]) for kind in DIGESTS} if digests else None,
    )
    if as_json:
        write_json(comparison)
    else:
        _print(comparison)
    return 0


def _compared(reader: RunReader, *, digests: bool) -> ComparedRun:
    summary = summarise(glimpse(reader.path))
    problems = list(summary.problems)
    verified = verification(reader) if digests else None
    if verified is not None:
        problems += [problem for problem in verified.problems if problem not in problems]
    return ComparedRun(
        summary=summary,
        best_evaluation=None if summary.problems else tolerant(problems, lambda: best_evaluation(reader.path), None),
        settings=flat_settings(tolerant([] if verified else problems, reader.read_config, {})),
        digests=verified.digests if verified else None,
        problems=problems,
    )


def _equal(values: list[str | None]) -> bool:
    return None not in values and len(set(values)) == 1


def _setting(run: ComparedRun, name: str) -> str:
    return setting_text(run.settings[name]) if name in run.settings else NOTHING


def _print(comparison: Comparison) -> None:
    out = console()
    across = max(1, (out.width - _LABELS) // _LEAST_WIDTH)
    for start in range(0, len(comparison.runs), across):
        shown = comparison.runs[start : start + across]
        if start:
            out.print()
        heads = [words(split_path(_name(run.summary))) for run in shown]
        out.print(table(("", *heads), _rows(shown, comparison)))
    if comparison.equal is not None:
        words_of = (f"{kind} {'yes' if is_equal else 'no'}" for kind, is_equal in comparison.equal.items())
        out.print(headline("Equal to the bit:", ", ".join(words_of)))
    problems = [problem for run in comparison.runs for problem in run.problems]
    if problems:
        out.print(headline("Problems"))
        print_problems(out, problems)


def _name(summary: RunSummary) -> Path:
    return Path(*Path(summary.path).parts[-3:])


def _rows(runs: Sequence[ComparedRun], comparison: Comparison) -> Iterator[list[Cell] | None]:
    measures: list[tuple[str, Callable[[RunSummary], Cell]]] = [
        ("status", lambda summary: status_cell(summary.status)),
        ("steps", lambda summary: whole(summary.steps)),
        ("episodes", lambda summary: whole(summary.episodes)),
        ("updates", lambda summary: whole(summary.updates)),
        ("wall time", lambda summary: time_text(summary.wall_time)),
        ("return, last 100", lambda summary: decimal(summary.mean_return)),
    ]
    for label, measure in measures:
        yield [cell(label, "dim"), *(measure(run.summary) for run in runs)]
    yield [cell("best evaluation", "dim"), *(best_text(run.best_evaluation) for run in runs)]
    yield [cell("resumes", "dim"), *(_resumes(run.summary) for run in runs)]
    if comparison.differing_settings:
        yield None
        yield [cell("settings that differ", "bold")]
    for name in comparison.differing_settings[:_MOST_SETTINGS]:
        yield [cell(name, "dim"), *(_setting(run, name) for run in runs)]
    if comparison.equal is not None:
        yield None
        for kind in comparison.equal:
            yield [cell(f"{kind} digest", "dim"), *(((run.digests or {}).get(kind) or NOTHING)[:12] for run in runs)]


def _resumes(summary: RunSummary) -> str:
    if summary.exact is None:
        return NOTHING
    return f"{summary.resumes or 'none'}, {'exact' if summary.exact else 'approximate'}"
