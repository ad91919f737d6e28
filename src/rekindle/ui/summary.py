"""A run as text: a progress line while it is live, a table at its end."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rekindle.run.curve import Extreme
from rekindle.text import NOTHING, compact, decimal, printable, time_text, whole
from rekindle.ui.feed import RunFeed
from rekindle.ui.tables import Cell, cell, number, status_cell, table, words

__all__ = ["progress_line", "summary_table"]

_MOST_METRICS = 60


def progress_line(feed: RunFeed) -> str:
    """The current progress of the run in one line, for a log.

    Unknown values are omitted.
    """
    parts = [f"step {whole(feed.steps)}"]
    if feed.share_done is not None:
        parts[0] += f"/{whole(feed.max_steps)} {feed.share_done:.0%}"
    if feed.is_live and feed.rate is not None:
        parts.append(f"{compact(round(feed.rate))} {'updates' if feed.is_offline else 'steps'}/s")
    if feed.seconds_left is not None:
        parts.append(f"{time_text(feed.seconds_left)} left")
    parts.append(f"{whole(feed.updates)} updates")
    parts.append(f"{whole(feed.episodes)} episodes")
    for metric, curve in feed.curves.items():
        if metric.name == "return":
            value = curve.last if metric.split == "eval" else curve.recent_mean
            parts.append(f"{metric.split} return {decimal(value)}")
    losses = [curve.last for metric, curve in feed.curves.items() if metric == ("loss", "agent")]
    parts += [f"loss {decimal(value)}" for value in losses]
    return printable(f"{feed.shown_status}: {', '.join(parts)}", most=1000)


def summary_table(feed: RunFeed) -> Group:
    """The status of the run, then the last value, mean, minimum and maximum of every metric, and their steps."""
    head = Text.assemble(cell(feed.name, "bold"), "  ", status_cell(feed.shown_status))
    if feed.metadata is not None and feed.metadata.stop_reason:
        head.append_text(cell(f", {feed.metadata.stop_reason}"))
    counts = f"{whole(feed.updates)} updates"
    if not feed.is_offline:
        counts = f"{whole(feed.steps)} steps, {counts}, {whole(feed.episodes)} episodes"
    return Group(head, cell(f"{counts}, {time_text(feed.uptime)}", "dim"), Text(), _metrics(feed))


def _metrics(feed: RunFeed) -> Table:
    columns = (words("metric"), "", *map(number, ("last", "mean 100", "least", "at step", "greatest", "at step")))
    rows: list[list[Cell]] = []
    for name in feed.names:
        for split, curve in feed.splits(name):
            values = [decimal(curve.last), decimal(curve.recent_mean), *_extreme(curve.least)]
            rows.append([name, cell(split, "dim"), *values, *_extreme(curve.greatest)])
    return table(columns, rows[:_MOST_METRICS])


def _extreme(extreme: Extreme | None) -> list[Cell]:
    return [NOTHING, NOTHING] if extreme is None else [decimal(extreme.value), cell(compact(extreme.step), "dim")]
