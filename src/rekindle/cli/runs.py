"""`rekindle runs`: list every run below a directory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.text import Text

from rekindle.errors import RunError
from rekindle.run.finding import find_runs
from rekindle.run.overview import RunSummary, best_text, glimpse, summarise
from rekindle.run.tags import checked_tags, tagged_runs, tags_text
from rekindle.text import compact, decimal, moment, seconds_since, time_text
from rekindle.ui.output import complain, write_json
from rekindle.ui.tables import Cell, cell, console, fits, number, print_problems, split_path, status_cell, table, words

__all__ = ["list_runs"]


_WIDTH_FOR_ALL = 72
"""The least width of a table with all columns."""
_EPISODES = 3
"""The column of episodes."""


def list_runs(directory: Path, *, tags: Sequence[str], as_json: bool) -> int:
    """Print every run below a directory that has all of these tags."""
    wanted = set(checked_tags(tags))
    if not directory.is_dir():
        raise RunError(f"{directory} is not a directory; pass the directory of the runs: rekindle runs DIR")
    found = find_runs(directory)
    summaries = [summarise(glimpse(path)) for path in (tagged_runs(found, wanted) if wanted else found)]
    if as_json:
        write_json(summaries)
    elif found and not summaries:
        complain(f"none of the {len(found)} runs in {directory} has {tags_text(wanted)}")
    elif not summaries:
        complain(f"there are no runs in {directory}; a run is NAME/VERSION/DATE_TIME with a metadata.json in it")
    else:
        _print(summaries, directory)
    return 0


def _print(summaries: list[RunSummary], directory: Path) -> None:
    out = console(whole_lines=True)
    columns = (words("run", least=17), words("status"), *map(number, ("steps", "episodes", "last 100", "best", "age")))
    paths = [_shown_path(summary, directory) for summary in summaries]
    rows = [_row(summary) for summary in summaries]
    tags = [", ".join(summary.tags) for summary in summaries]
    wide = ([cell(path), *row, *([own] if any(tags) else [])] for path, row, own in zip(paths, rows, tags, strict=True))
    listing = table([*columns, *([words("tags")] if any(tags) else [])], wide)
    if not fits(listing, out):
        narrow = ([_split(path, own), *row] for path, row, own in zip(paths, rows, tags, strict=True))
        if out.width < _WIDTH_FOR_ALL:
            columns = (*columns[:_EPISODES], *columns[_EPISODES + 1 :])
            narrow = ([*row[:_EPISODES], *row[_EPISODES + 1 :]] for row in narrow)
        listing = table(columns, narrow)
    out.print(listing)
    if any(summary.best_return and summary.best_return.of == "episode" for summary in summaries):
        out.print(Text("\n* the best training episode: the run has no evaluations", style="dim"))
    problems = [problem for summary in summaries for problem in summary.problems]
    if problems:
        out.print()
        print_problems(out, problems)


def _split(path: Path, tags: str) -> Text:
    """A path in several lines, and the tags of the run below it."""
    lines = split_path(path)
    return lines.append("\n").append_text(cell(tags, "dim")) if tags else lines


def _shown_path(summary: RunSummary, directory: Path) -> Path:
    path = Path(summary.path)
    return path.relative_to(directory) if path != directory and path.is_relative_to(directory) else path


def _row(summary: RunSummary) -> list[Cell]:
    return [
        _status(summary),
        compact(summary.steps),
        compact(summary.episodes),
        decimal(summary.mean_return),
        best_text(summary.best_return),
        _age(moment(summary.started_at)),
    ]


def _status(summary: RunSummary) -> Text:
    """The status, and whether the run is damaged."""
    status = status_cell(summary.status)
    if summary.problems and summary.status != "unreadable":
        status.append(", damaged", style="red")
    return status


def _age(started: datetime | None) -> str:
    words = time_text(seconds_since(started)).split()
    return " ".join(words[:2])
