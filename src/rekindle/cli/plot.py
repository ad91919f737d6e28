"""`rekindle plot`: learning curves as an image, with a band over runs of one training."""

# matplotlib's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ConfigError, MissingExtra
from rekindle.run.comparison import compare_trainings, read_grouped_run
from rekindle.run.curve import Points
from rekindle.run.frames import log_columns
from rekindle.run.groups import group_labels
from rekindle.run.reader import RunReader
from rekindle.run.tags import runs_below
from rekindle.stats import profile_band
from rekindle.storage.files import write_output
from rekindle.text import bytes_text, install_command, path_text, printable

__all__ = ["PROFILE", "RETURNS", "plot_runs"]

RETURNS = ("episode/return", "eval/return")
"""The default metrics."""
PROFILE = "profile"
"""The metric that is no curve over steps: the share of runs above each score."""
_COLOURS = {
    "light": ("#c8540a", "#2563c9", "#0b7a6b", "#7c3fd0", "#b8286f", "#6b6a00", "#0c7fa8", "#8a4b2d", "#4d5560"),
    "dark": ("#ff9a57", "#6ea8ff", "#3fcdb4", "#b99aff", "#ff86bd", "#d2cf5c", "#6fd2f5", "#d9a688", "#aab2bd"),
}
"""Distinguishable for colour-blind people; after the last one, the colours come again with other dashes."""
_DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
_GROUND = {"light": ("#ffffff", "#1f2328"), "dark": ("#14161a", "#e8e6e3")}
"""The colours of the ground and of text."""
_MOST_LABELS = 40
"""The most lines that the legend names."""
_LETTER = 0.078
"""Inches of the width of a letter in the legend."""
_GRID = 400
"""Number of points of a mean over runs."""
_LARGEST = 1e100
_FORMATS = (".png", ".svg")

Numbers = NDArray[np.float64]
Theme = Literal["light", "dark"]


class _Curve(NamedTuple):
    steps: Numbers
    values: Numbers

    def smoothed(self, share: float) -> Numbers:
        return Points(self.steps, self.values, self.values, self.values).smoothed(share)


def plot_runs(
    paths: Sequence[Path],
    output: Path,
    *,
    metrics: Sequence[str],
    tags: Sequence[str],
    smoothing: float,
    theme: Theme = "light",
) -> int:
    """Plot each metric of all runs that have these tags, and print the path of the image."""
    if output.suffix.lower() not in _FORMATS:
        raise ConfigError(f"{output}: a plot is a {' or '.join(_FORMATS)} file")
    if not 0 <= smoothing <= 1:
        raise ConfigError(f"smoothing is {smoothing}: use a share of the curve from 0 to 1")
    readers = [RunReader(run) for run in runs_below(paths, tags)]
    trainings = _trainings(readers)
    wanted = metrics or RETURNS
    panels = {
        metric: curves
        for metric in wanted
        if (curves := _profiles(trainings) if metric == PROFILE else _curves(trainings, metric))
    }
    if not panels or (metrics and len(panels) < len(metrics)):
        missing = next(metric for metric in wanted if metric not in panels)
        there = {name for reader in readers for name in _names(reader)}
        what = f"{missing} has no finite values" if missing in there else f"there is no {missing}"
        others = ", ".join(sorted(there - {missing})) or "no other metrics"
        raise ConfigError(f"{what} in these runs; there are {others}")
    picture = _drawn(panels, output.suffix.lower().removeprefix("."), smoothing, _unit(readers), theme)
    write_output(output, picture)
    count = "1 run" if len(readers) == 1 else f"{len(readers)} runs"
    print(printable(f"{output} ({bytes_text(len(picture))}): {count}", most=1000))
    return 0


def _trainings(readers: Sequence[RunReader]) -> dict[str, list[RunReader]]:
    """The runs of each training, by its label."""
    groups: dict[tuple[str, str], list[RunReader]] = {}
    configs: dict[tuple[str, str], dict[str, Any]] = {}
    for reader in readers:
        run = read_grouped_run(reader.path)
        key = (reader.metadata.name, "") if run is None else run.key
        groups.setdefault(key, []).append(reader)
        configs.setdefault(key, {} if run is None else run.config)
    return dict(zip(group_labels((key[0], configs[key]) for key in groups), groups.values(), strict=True))


def _curves(trainings: dict[str, list[RunReader]], metric: str) -> dict[str, list[_Curve]]:
    """The curves of a metric, by the label of the training."""
    curves: dict[str, list[_Curve]] = {}
    for label, readers in trainings.items():
        if found := [curve for reader in readers if len((curve := _curve(reader, metric)).steps)]:
            curves[label] = found
    return curves


def _profiles(trainings: dict[str, list[RunReader]]) -> dict[str, list[_Curve]]:
    """The share of finished runs above each score, with the ends of its interval, by the label of the training."""
    runs = [run for readers in trainings.values() for reader in readers if (run := read_grouped_run(reader.path))]
    scores = {
        path: score
        for group in compare_trainings(runs).groups
        for path, score in zip(group.runs, group.scores, strict=True)
    }
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    margin = 0.05 * (high - low or 1.0)
    thresholds = np.linspace(low - margin, high + margin, _GRID)
    profiles: dict[str, list[_Curve]] = {}
    for label, readers in trainings.items():
        known = [scores[path] for reader in readers if (path := path_text(reader.path)) in scores]
        if known:
            band = profile_band(known, thresholds)
            profiles[label] = [_Curve(thresholds, np.array(part)) for part in (band.share, band.low, band.high)]
    return profiles


def _curve(reader: RunReader, metric: str) -> _Curve:
    if metric == "episode/return":
        log, step, value = "train_episodes", "env_steps", "total_reward"
    elif metric == "eval/return":
        log, step, value = "eval_episodes", "total_steps_at_eval", "total_reward"
    else:
        log, step, value = "metrics", "env_steps", metric
    columns = log_columns(reader.path / f"{log}.jsonl")
    if value not in columns:
        return _Curve(np.empty(0), np.empty(0))
    # Skip values that are not finite, and those that would overflow when they are scaled.
    is_there = np.all([np.abs(columns[name]) < _LARGEST for name in (step, value)], axis=0)
    steps, where = np.unique(columns[step][is_there], return_inverse=True)  # average episodes of one step
    sums = np.bincount(where, weights=columns[value][is_there], minlength=len(steps))
    return _Curve(steps.astype(np.float64), sums / np.bincount(where, minlength=len(steps)))


def _unit(readers: Sequence[RunReader]) -> str:
    """What the steps of these runs are."""
    units = {reader.metadata.step_unit for reader in readers}
    return units.pop() if len(units) == 1 else "env steps or updates"


def _names(reader: RunReader) -> list[str]:
    counters = ("row", "env_steps", "updates", "episodes", "wall_time")
    return [*RETURNS, *(name for name in log_columns(reader.path / "metrics.jsonl") if name not in counters)]


class _Look(NamedTuple):
    """How the line of a training is drawn, in every panel."""

    label: str
    runs: int
    colour: str
    dash: Literal["-", "--", ":", "-."]


def _drawn(panels: dict[str, dict[str, list[_Curve]]], kind: str, smoothing: float, unit: str, theme: Theme) -> bytes:
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ModuleNotFoundError as error:
        raise MissingExtra(f"plot needs {error.name}: {install_command('plot')}", name=error.name) from None
    matplotlib.rcdefaults()  # ignore a matplotlibrc in the working directory, which may be a downloaded run
    ground, text = _GROUND[theme]
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(6.4 * len(panels), 4), dpi=150, layout=layout, facecolor=ground)
    looks = _looks(panels, theme)
    for axes, (metric, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        # An evaluation is already a mean.
        share = 0.0 if metric.startswith("eval/") else smoothing
        for name, runs in curves.items():
            if metric == PROFILE:
                _draw_profile(axes, runs, looks[name])
            else:
                _draw(axes, runs, share, looks[name])
        vertical, horizontal = ("share of runs above a score", "score") if metric == PROFILE else (metric, unit)
        axes.set_ylabel(vertical, color=text, parse_math=False)
        axes.set_xlabel(horizontal, color=text)
        axes.xaxis.set_major_formatter("{x:,g}" if metric == PROFILE else "{x:,.0f}")
        axes.set_facecolor(ground)
        axes.tick_params(colors=text)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["bottom", "left"]].set_color(text)
    _draw_legend(figure, list(looks.values()), text)
    data = io.BytesIO()
    figure.savefig(data, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return data.getvalue()


def _looks(panels: dict[str, dict[str, list[_Curve]]], theme: Theme) -> dict[str, _Look]:
    """The look of each training, by its name."""
    colours, looks = _COLOURS[theme], dict[str, _Look]()
    for name in dict.fromkeys(name for curves in panels.values() for name in curves):
        index = len(looks)
        counts = [len(curves[name]) for metric, curves in panels.items() if name in curves and metric != PROFILE]
        most = max(counts, default=1)
        label = printable(name, most=60)
        dash = _DASHES[index // len(colours) % len(_DASHES)]
        label = label if most == 1 else f"{label} ({most} runs)"
        looks[name] = _Look(label, most, colours[index % len(colours)], dash)
    return looks


def _draw_legend(figure: Any, looks: Sequence[_Look], text: str) -> None:
    """One legend for all panels, below them, in as many columns as there is room for."""
    from matplotlib.lines import Line2D

    labels = [look.label for look in looks[:_MOST_LABELS]]
    lines = [Line2D([], [], color=look.colour, linestyle=look.dash) for look in looks[:_MOST_LABELS]]
    if len(looks) > _MOST_LABELS:
        labels.append(f"and {len(looks) - _MOST_LABELS} more")
        lines.append(Line2D([], [], color="none"))
    width = float(figure.get_figwidth())
    columns = max(1, min(len(labels), int(width / (_LETTER * (max(map(len, labels)) + 6)))))
    note = "means over runs, with bands of one standard deviation" if any(look.runs > 1 for look in looks) else None
    rows = -(-len(labels) // columns) + (note is not None)
    figure.set_figheight(float(figure.get_figheight()) + 0.22 * rows)
    legend = figure.legend(
        lines,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        labelcolor=text,
        title=note,
        title_fontsize=9,
    )
    legend.get_title().set_color(text)
    for shown in legend.get_texts():
        shown.set_parse_math(False)


def _draw_profile(axes: Any, profile: list[_Curve], look: _Look) -> None:
    share, low, high = profile
    axes.plot(share.steps, share.values, color=look.colour, linestyle=look.dash)
    axes.fill_between(share.steps, low.values, high.values, color=look.colour, alpha=0.2, linewidth=0)


def _draw(axes: Any, runs: list[_Curve], share: float, look: _Look) -> None:
    line = {"color": look.colour, "linestyle": look.dash}
    if len(runs) == 1:
        (curve,) = runs
        if share:
            axes.plot(curve.steps, curve.values, color=look.colour, alpha=0.2, linewidth=0.7)
        is_dotted = len(curve.steps) == 1 or (len(curve.steps) < 60 and not share)
        axes.plot(curve.steps, curve.smoothed(share), **line, marker="o" if is_dotted else None, markersize=3)
        return
    steps, mean, deviation = _mean(runs, share)
    if not len(steps):  # at no step do half of the runs have values
        for curve in runs:
            axes.plot(curve.steps, curve.smoothed(share), **line, marker="o", markersize=3)
        return
    if steps[0] == steps[-1]:  # a line and a band without length are not visible
        axes.errorbar(steps[:1], mean[:1], deviation[:1], color=look.colour, marker="o", markersize=3, capsize=3)
        return
    axes.plot(steps, mean, **line)
    axes.fill_between(steps, mean - deviation, mean + deviation, color=look.colour, alpha=0.2, linewidth=0)


def _mean(runs: list[_Curve], share: float) -> tuple[Numbers, Numbers, Numbers]:
    """Steps, mean and deviation where at least half of the runs have values."""
    steps = np.linspace(min(curve.steps[0] for curve in runs), max(curve.steps[-1] for curve in runs), _GRID)
    values = np.array(
        [np.interp(steps, curve.steps, curve.smoothed(share), left=np.nan, right=np.nan) for curve in runs]
    )
    is_there = np.isfinite(values).sum(axis=0) * 2 >= len(runs)
    return steps[is_there], np.nanmean(values[:, is_there], axis=0), np.nanstd(values[:, is_there], axis=0)
