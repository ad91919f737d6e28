"""Curves as SVG images; all text is escaped, and the images load nothing and need no script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.markup import escaped
from rekindle.run.curve import Points
from rekindle.run.scale import labelled, step_label, ticks, value_label, value_range

__all__ = ["Drawn", "chart", "legend", "smoothing_of"]

_COLOURS = ("#d9690f", "#2f7fc1", "#9254c8", "#2e9e58", "#b08900", "#d64550", "#0f9d9f", "#8a6d5a")
_DASHES = ("", "7 4", "2 4", "9 3 2 3")
"""After the last colour, the colours come again with the next of these."""
_BORDERS = ("solid", "dashed", "dotted", "double")
"""The same in a legend."""
_MOST_POINTS = 500
_ROOM = 0.05
"""The share of the height that stays empty above and below the curves."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 18, 8, 40


class Drawn(NamedTuple):
    """A curve with its label; behind a smoothed curve, its raw values are drawn."""

    label: str
    points: Points
    smoothing: float = 0.0
    place: int | None = None
    """Its place among the colours; None for that in its chart."""


def smoothing_of(split: str) -> float:
    """How much to smooth a curve; an evaluation is already a mean, so it is not smoothed."""
    return 0.0 if split == "eval" else 0.02


def chart(
    title: str,
    lines: Sequence[Drawn],
    *,
    unit: str = "env steps",
    has_legend: bool = True,
    width: int = 560,
    height: int = 254,
) -> str:
    """Draw curves over steps; the colours are CSS variables that a page may set."""
    lines = [
        line._replace(points=line.points.thinned(_MOST_POINTS), place=index if line.place is None else line.place)
        for index, line in enumerate(lines)
        if len(line.points.steps)
    ]
    first, last = 0.0, max((float(line.points.steps[-1]) for line in lines), default=1.0) or 1.0
    low, high = _with_room(*value_range([line.points for line in lines]))
    axes = _Axes(first, last, low, high, width, height)
    drawn = "".join(_curve(axes, line) for line in lines)
    labels = [(line.label, line.place or 0) for line in lines] if has_legend else []
    return (
        f"<figure><figcaption><b>{escaped(title, most=60)}</b>{legend(labels)}</figcaption>"
        f'<svg viewBox="0 0 {width} {height}" overflow="visible" '
        f'role="img" aria-label="{escaped(title, most=60)} by step">'
        f"{axes.svg(unit)}{drawn}</svg></figure>"
    )


def _with_room(low: float, high: float) -> tuple[float, float]:
    """Room above and below the curves, so that none lies on the edge; an axis that nearly reaches 0 begins there."""
    room = _ROOM * (high - low)
    return (0.0 if 0 <= low < 2 * room else low - room), (0.0 if -2 * room < high <= 0 else high + room)


def legend(labels: Sequence[tuple[str, int]]) -> str:
    """Labels with their places among the colours, each after a piece of its line."""
    return "".join(
        f'<span><i style="display:inline-block;width:16px;vertical-align:middle;margin-right:6px;'
        f'border-top:3px {_BORDERS[_round(place)]} {_colour(place)}"></i>{escaped(label, most=60)}</span>'
        for label, place in labels
    )


def _colour(place: int) -> str:
    at = place % len(_COLOURS)
    return f"var(--line-{at},{_COLOURS[at]})"


def _round(place: int) -> int:
    """How many times the colours were used up before."""
    return place // len(_COLOURS) % len(_DASHES)


class _Axes(NamedTuple):
    first: float
    last: float
    low: float
    high: float
    width: int
    height: int

    def x(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        share = (steps - self.first) / (self.last - self.first)
        return np.round(_LEFT + share * (self.width - _LEFT - _RIGHT), 1)

    def y(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        share = np.clip((self.high - values) / (self.high - self.low), 0, 1)
        return np.round(_TOP + share * (self.height - _TOP - _BOTTOM), 1)

    def svg(self, unit: str) -> str:
        right, bottom = self.width - _RIGHT, self.height - _BOTTOM
        parts = [f'<path d="M{_LEFT} {bottom}H{right}" stroke="currentColor" opacity=".4"/>']
        for value, label in labelled(ticks(self.low, self.high, 6), value_label):
            y = self.y(np.array([value]))[0]
            parts.append(f'<path d="M{_LEFT} {y}H{right}" stroke="currentColor" opacity=".12"/>')
            parts.append(_label(_LEFT - 6, y + 4, "end", label))
        for value, label in labelled(ticks(self.first, self.last, 7), step_label):
            x = self.x(np.array([value]))[0]
            parts.append(f'<path d="M{x} {bottom}v4" stroke="currentColor" opacity=".4"/>')
            parts.append(_label(x, bottom + 16, "middle", label))
        parts.append(_label((_LEFT + right) / 2, self.height - 6, "middle", unit))
        return "".join(parts)


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="11" fill="currentColor" opacity=".75">'
        f"{html.escape(text)}</text>"
    )


def _curve(axes: _Axes, line: Drawn) -> str:
    points, place = line.points, line.place or 0
    parts: list[str] = []
    if np.any(points.least < points.greatest):
        steps = np.concatenate([points.steps, points.steps[::-1]])
        edge = np.concatenate([points.greatest, points.least[::-1]])
        parts.append(f'<path d="{_path(axes, steps, edge)}Z" style="fill:{_colour(place)}" opacity=".16"/>')
    if line.smoothing:
        parts.append(_stroke(_path(axes, points.steps, points.means), place, 'stroke-width="1" opacity=".35"'))
    smooth = _path(axes, points.steps, points.smoothed(line.smoothing))
    parts.append(_stroke(smooth, place, 'stroke-width="1.8" stroke-linejoin="round"'))
    return "".join(parts)


def _stroke(path: str, place: int, looks: str) -> str:
    dashes = _DASHES[_round(place)]
    ends = f'stroke-dasharray="{dashes}"' if dashes else 'stroke-linecap="round"'
    return f'<path d="{path}" fill="none" style="stroke:{_colour(place)}" {ends} {looks}/>'


def _path(axes: _Axes, steps: NDArray[np.float64], values: NDArray[np.float64]) -> str:
    corners = " ".join(f"{x:g},{y:g}" for x, y in zip(axes.x(steps), axes.y(values), strict=True))
    # A single point becomes a dot: a line of length 0 with round ends.
    return f"M{corners}" if len(steps) > 1 else f"M{corners}h0"
