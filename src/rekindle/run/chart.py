"""Curves as SVG images; all text is escaped, and the images load nothing and need no script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.markup import escaped
from rekindle.run.curve import Points
from rekindle.run.scale import step_label, ticks, value_label, value_range

__all__ = ["Drawn", "chart", "smoothing_of"]

_COLOURS = ("#d9690f", "#2f7fc1", "#9254c8", "#2e9e58", "#b08900", "#d64550", "#0f9d9f", "#8a6d5a")
_MOST_POINTS = 500
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 8, 26


class Drawn(NamedTuple):
    """A curve with its label; behind a smoothed curve, its raw values are drawn."""

    label: str
    points: Points
    smoothing: float = 0.0


def smoothing_of(split: str) -> float:
    """How much to smooth a curve; an evaluation is already a mean, so it is not smoothed."""
    return 0.0 if split == "eval" else 0.02


def chart(title: str, lines: Sequence[Drawn], *, width: int = 560, height: int = 240) -> str:
    """Draw curves over env steps; the colours are CSS variables that a page may set."""
    lines = [line._replace(points=line.points.thinned(_MOST_POINTS)) for line in lines if len(line.points.steps)]
    first, last = 0.0, max((float(line.points.steps[-1]) for line in lines), default=1.0) or 1.0
    low, high = value_range([line.points for line in lines])
    axes = _Axes(first, last, low, high, width, height)
    drawn = "".join(_curve(axes, line, _colour(index)) for index, line in enumerate(lines))
    legend = "".join(
        f'<span><i style="background:{_colour(index)}"></i>{escaped(line.label, most=60)}</span>'
        for index, line in enumerate(lines)
    )
    return (
        f"<figure><figcaption><b>{escaped(title, most=60)}</b>{legend}</figcaption>"
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escaped(title, most=60)} by step">'
        f"{axes.svg()}{drawn}</svg></figure>"
    )


def _colour(index: int) -> str:
    place = index % len(_COLOURS)
    return f"var(--line-{place},{_COLOURS[place]})"


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

    def svg(self) -> str:
        right, bottom = self.width - _RIGHT, self.height - _BOTTOM
        parts = [f'<path d="M{_LEFT} {bottom}H{right}" stroke="currentColor" opacity=".4"/>']
        for value in ticks(self.low, self.high, 6):
            y = self.y(np.array([value]))[0]
            parts.append(f'<path d="M{_LEFT} {y}H{right}" stroke="currentColor" opacity=".12"/>')
            parts.append(_label(_LEFT - 6, y + 4, "end", value_label(value)))
        for value in ticks(self.first, self.last, 7):
            x = self.x(np.array([value]))[0]
            parts.append(f'<path d="M{x} {bottom}v4" stroke="currentColor" opacity=".4"/>')
            anchor = "end" if x > right - 12 else "middle"
            parts.append(_label(x, bottom + 17, anchor, step_label(value)))
        return "".join(parts)


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="11" fill="currentColor" opacity=".75">'
        f"{html.escape(text)}</text>"
    )


def _curve(axes: _Axes, line: Drawn, colour: str) -> str:
    points = line.points
    parts: list[str] = []
    if np.any(points.least < points.greatest):
        steps = np.concatenate([points.steps, points.steps[::-1]])
        edge = np.concatenate([points.greatest, points.least[::-1]])
        parts.append(f'<path d="{_path(axes, steps, edge)}Z" style="fill:{colour}" opacity=".16"/>')
    if line.smoothing:
        parts.append(_stroke(_path(axes, points.steps, points.means), colour, 'stroke-width="1" opacity=".35"'))
    smooth = _path(axes, points.steps, points.smoothed(line.smoothing))
    parts.append(_stroke(smooth, colour, 'stroke-width="1.8" stroke-linejoin="round"'))
    return "".join(parts)


def _stroke(path: str, colour: str, looks: str) -> str:
    return f'<path d="{path}" fill="none" style="stroke:{colour}" stroke-linecap="round" {looks}/>'


def _path(axes: _Axes, steps: NDArray[np.float64], values: NDArray[np.float64]) -> str:
    corners = " ".join(f"{x:g},{y:g}" for x, y in zip(axes.x(steps), axes.y(values), strict=True))
    # A single point becomes a dot: a line of length 0 with round ends.
    return f"M{corners}" if len(steps) > 1 else f"M{corners}h0"
