"""The part of a report about trainings of several seeds: scores, differences, and mean curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rekindle.markup import escaped, table
from rekindle.run.chart import Drawn, chart, legend, smoothing_of
from rekindle.run.comparison import GroupComparison, RunGroup, compare_trainings, difference_text, read_grouped_run
from rekindle.run.curve import Points
from rekindle.stats import Interval
from rekindle.text import NOTHING, decimal, path_text
from rekindle.ui.feed import RunFeed

__all__ = ["compare_feeds", "group_parts", "mean_points", "step_unit"]

_GRID = 200
"""Number of points of a mean over runs."""


def compare_feeds(feeds: Sequence[RunFeed]) -> GroupComparison | None:
    """The runs grouped by training; None if no training has several of them."""
    runs = [run for feed in feeds if (run := read_grouped_run(feed.reader.path)) is not None]
    trainings = compare_trainings(runs)
    return trainings if any(len(group.runs) > 1 for group in trainings.groups) else None


def group_parts(feeds: Sequence[RunFeed], trainings: GroupComparison) -> Iterator[str]:
    """The section about trainings as HTML."""
    measured = "last evaluation" if trainings.of == "evaluations" else "last 100 episodes"
    yield f'<section><h2>Trainings</h2><p class="note">score of a run: its {measured}; intervals are of 95 %</p>'
    rows = [
        [group.label, len(group.runs), *_estimate(group, group.mean), *_estimate(group, group.iqm)]
        for group in trainings.groups
    ]
    yield f'<div class="wide">{table(("training", "runs", "mean", "interval", "IQM", "interval"), rows)}</div>'
    yield from (f"<p>{escaped(difference_text(difference))}</p>" for difference in trainings.differences)
    labels = [(group.label, place) for place, group in enumerate(trainings.groups)]
    yield f'<h3>Mean curves</h3><p class="legend">{legend(labels)}</p><div class="charts">'
    metrics = {metric: None for feed in feeds for name in feed.names for metric in feed.curves if metric.name == name}
    by_path = {path_text(feed.reader.path): feed for feed in feeds}
    for metric in metrics:
        lines: list[Drawn] = []
        for place, group in enumerate(trainings.groups):
            members = [by_path[path] for path in (*group.runs, *group.left_out) if path in by_path]
            curves = [feed.curves[metric].points() for feed in members if metric in feed.curves]
            if curves:
                lines.append(Drawn(group.label, mean_points(curves, smoothing_of(metric.split)), place=place))
        yield chart(f"{metric.name}, {metric.split}", lines, unit=step_unit(feeds), has_legend=False)
    yield "</div></section>"


def step_unit(feeds: Sequence[RunFeed]) -> str:
    """What the steps of these runs are."""
    units = {"updates" if feed.is_offline else "env steps" for feed in feeds}
    return units.pop() if len(units) == 1 else "env steps or updates"


def _estimate(group: RunGroup, interval: Interval | None) -> list[str]:
    if interval is None:
        return [NOTHING, NOTHING]
    has_interval = len(group.runs) > 1
    return [
        decimal(interval.value),
        f"{decimal(interval.low)} to {decimal(interval.high)}" if has_interval else NOTHING,
    ]


def mean_points(curves: Sequence[Points], smoothing: float) -> Points:
    """The mean of curves, with the range over them, where at least half of them have values."""
    if len(curves) == 1:
        (only,) = curves
        smooth = only.smoothed(smoothing)
        return Points(only.steps, smooth, smooth, smooth)
    start, end = min(float(curve.steps[0]) for curve in curves), max(float(curve.steps[-1]) for curve in curves)
    known: NDArray[np.float64] = np.unique(np.concatenate([curve.steps for curve in curves]))
    steps = known if len(known) <= _GRID else np.linspace(start, end, _GRID)
    values = np.array(
        [np.interp(steps, curve.steps, curve.smoothed(smoothing), left=np.nan, right=np.nan) for curve in curves]
    )
    is_there = np.isfinite(values).sum(axis=0) * 2 >= len(curves)
    steps, values = steps[is_there], values[:, is_there]
    return Points(steps, np.nanmean(values, axis=0), np.nanmin(values, axis=0), np.nanmax(values, axis=0))
