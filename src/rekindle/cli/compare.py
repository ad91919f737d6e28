"""`rekindle compare`: runs side by side, and whether groups of them differ by more than noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from rekindle.cli.verify import DIGESTS, verification
from rekindle.run.comparison import (
    GroupComparison,
    GroupedRun,
    RunGroup,
    by_environment,
    compare_trainings,
    difference_text,
    read_grouped_run,
)
from rekindle.run.groups import differing_settings, training_settings
from rekindle.run.overview import BestReturn, RunSummary, best_evaluation, best_text, glimpse, summarise, tolerant
from rekindle.run.reader import RunReader
from rekindle.run.scores import Measure
from rekindle.run.settings import flat_settings, setting_text
from rekindle.run.tags import runs_below
from rekindle.stats import Interval
from rekindle.stats.verdict import count_comparisons
from rekindle.text import NOTHING, decimal, path_text, time_text, whole
from rekindle.ui.output import write_json
from rekindle.ui.tables import (
    Cell,
    cell,
    console,
    headline,
    number,
    print_problems,
    split_path,
    status_cell,
    table,
    words,
)

__all__ = ["ComparedRun", "Comparison", "compare_runs"]

_LEAST_WIDTH = 22
"""Minimum width of a run's column; runs that do not fit go into further tables."""
_LABELS = 20
_MOST_SETTINGS = 60
"""The most settings in the table; JSON has all."""
_MOST_CONFIGS = 6
"""The most trainings whose settings are shown side by side."""


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
    trainings: GroupComparison
    """The runs grouped by training, and the differences between the groups."""


def compare_runs(
    paths: Sequence[Path], *, measure: Measure, tags: Sequence[str], each: bool, digests: bool, as_json: bool
) -> int:
    """Print runs side by side, or groups of runs; with `each`, each run in any case."""
    found = runs_below(paths, tags)  # report a path that is not a run before printing anything
    runs = [_compared(RunReader(path), digests=digests) for path in found]
    settings = sorted({name for run in runs for name in run.settings})
    grouped = [run for path in found if (run := read_grouped_run(path)) is not None]
    comparison = Comparison(
        runs=runs,
        differing_settings=[name for name in settings if len({_setting(run, name) for run in runs}) > 1],
        equal={kind: _equal([(run.digests or {}).get(kind) for run in runs]) for kind in DIGESTS} if digests else None,
        trainings=compare_trainings(grouped, measure=measure, part_of=_parts(found)),
    )
    if as_json:
        write_json(comparison)
    else:
        _print(comparison, grouped, each=each)
    return 0


def _parts(found: Mapping[Path, Path]) -> Callable[[GroupedRun], str] | None:
    """Divide runs by the path that they were found by, if there are several paths with several runs."""
    sources = list(found.values())
    if len({source for source in sources if sources.count(source) > 1}) < 2:
        return None
    return lambda run: path_text(found[run.path])


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
    return _text(run.settings, name)


def _text(settings: Mapping[str, Any], name: str) -> str:
    return setting_text(settings[name]) if name in settings else NOTHING


def _print(comparison: Comparison, grouped: Sequence[GroupedRun], *, each: bool) -> None:
    out = console(whole_lines=True)
    trainings = comparison.trainings
    has_repeats = any(len(group.runs) > 1 for group in trainings.groups)
    if each or comparison.equal is not None or not has_repeats or len(trainings.groups) == 1:
        _print_runs(out, comparison)
        if has_repeats:
            out.print()
    if has_repeats:
        _print_groups(out, trainings, grouped)
    problems = [problem for run in comparison.runs for problem in run.problems]
    if problems:
        out.print(headline("Problems"))
        print_problems(out, problems)


def _print_runs(out: Console, comparison: Comparison) -> None:
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


_MEASURES = {"final": "last evaluation", "best": "best evaluation", "mean": "mean of all evaluations"}
_EPISODES = {"final": "last 100 episodes", "best": "best 100 episodes", "mean": "mean of all episodes"}


def _print_groups(out: Console, trainings: GroupComparison, grouped: Sequence[GroupedRun]) -> None:
    what = (_MEASURES if trainings.of == "evaluations" else _EPISODES)[trainings.measure]
    out.print(Text.assemble(("Score", "bold"), (f"  {what}, with 95 % intervals", "dim")))
    columns = (words("training"), *map(number, ("runs", "mean", "interval", "IQM", "interval")))
    out.print(table(columns, [_group_row(group) for group in trainings.groups]))
    configs = {path_text(run.path): run.config for run in grouped}
    settings = [configs[next(iter([*group.runs, *group.left_out]))] for group in trainings.groups]
    differing = differing_settings(settings)[:_MOST_SETTINGS]
    if differing and len(settings) <= _MOST_CONFIGS:
        out.print(headline("Settings that differ"))
        columns = [training_settings(config) for config in settings]
        rows = ([cell(name, "dim"), *(_text(column, name) for column in columns)] for name in differing)
        out.print(table((words("setting"), *(words(group.label) for group in trainings.groups)), rows))
    comparable = by_environment(trainings.groups).values()
    if trainings.differences or len(comparable) > 1:
        tests = max(count_comparisons({group.label: group.scores for group in groups}) for groups in comparable)
        within = "" if len(comparable) == 1 else " between trainings of the same environment"
        adjusted = "" if tests < 2 else ", adjusted" if within else f", adjusted for {tests} comparisons"
        out.print(headline("Differences", f"permutation tests{within}{adjusted}"))
        if not trainings.differences:
            out.print(cell("none: the scores of different environments cannot be compared"))
        for difference in trainings.differences:
            out.print(cell(difference_text(difference), "green" if difference.differs else ""), soft_wrap=True)
    left_out = [f"{path}: {why}" for group in trainings.groups for path, why in group.left_out.items()]
    if left_out:
        out.print(headline("Left out"))
        for line in left_out:
            out.print(cell(line, "dim"), soft_wrap=True)


def _group_row(group: RunGroup) -> list[Cell]:
    count = len(group.runs)
    return [group.label, str(count), *_estimate(group.mean, count), *_estimate(group.iqm, count)]


def _estimate(interval: Interval | None, count: int) -> list[Cell]:
    if interval is None:
        return [NOTHING, NOTHING]
    between = f"{decimal(interval.low)} to {decimal(interval.high)}" if count > 1 else NOTHING
    return [decimal(interval.value), cell(between, "dim")]


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
    if any(run.summary.tags for run in comparison.runs):
        yield [cell("tags", "dim"), *(", ".join(run.summary.tags) or NOTHING for run in runs)]
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
