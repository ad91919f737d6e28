"""A chart in Braille characters: each has two by four dots."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.run.curve import Points
from rekindle.run.scale import labelled, step_label, ticks, value_label, value_range

__all__ = ["Chart", "Line", "Run", "draw"]

_ROWS, _COLUMNS = 4, 2
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint32)
_BLANK = 0x2800


class Line(NamedTuple):
    """One curve of a chart; its index in the list of lines is its colour."""

    points: Points
    smoothing: float = 0.0


class Run(NamedTuple):
    """Characters of one style: `axis`, `grid`, `cursor`, `line 0`, `band 0`, ... or an empty string."""

    text: str
    style: str


class Chart(NamedTuple):
    """The rows of a chart, and the position of the plot in them."""

    rows: list[list[Run]]
    left: int
    """Columns to the left of the plot."""
    width: int
    """Columns of the plot."""


def draw(
    lines: list[Line], width: int, height: int, *, first: float, last: float, cursor: float | None = None
) -> Chart:
    """Draw curves between two env steps; `cursor` marks an env step."""
    last = last if last > first else first + 1
    visible = [line.points.between(first, last) for line in lines]
    low, high = value_range(visible)
    rows = max(1, height - 2)
    found = labelled(ticks(low, high, max(2, rows * 2 // 5)), value_label)
    marks = {_row(value, low, high, rows): label for value, label in found}
    left = max(map(len, marks.values()), default=0) + 1
    columns = max(1, width - left - 1)
    canvas = _Canvas(columns, rows, first, last, low, high)
    for index, (line, points) in enumerate(zip(lines, visible, strict=True)):
        canvas.band(points, f"band {index}")
        if line.smoothing:
            canvas.line(points.steps, points.means, f"band {index}")
    for index, (line, points) in enumerate(zip(lines, visible, strict=True)):
        # Smooth the whole curve, so that it does not change with the range that is shown.
        smoothed = line.points._replace(means=line.points.smoothed(line.smoothing)).between(first, last)
        canvas.line(points.steps, smoothed.means, f"line {index}")
    at = None if cursor is None else round((cursor - first) / (last - first) * (columns - 1))
    body = [
        [
            Run(f"{marks.get(row, ''):>{left}}{'┤' if row in marks else '│'}", "axis"),
            *canvas.row(row, has_mark=row in marks, cursor=at),
        ]
        for row in range(rows)
    ]
    return Chart([*body, *_steps_axis(left, columns, first, last)], left + 1, columns)


def _row(value: float, low: float, high: float, rows: int) -> int:
    return min(rows - 1, max(0, round((high - value) / (high - low) * (rows * _ROWS - 1)) // _ROWS))


def _steps_axis(left: int, columns: int, first: float, last: float) -> list[list[Run]]:
    line, labels = ["─"] * columns, [" "] * (left + 1 + columns)
    end = 0
    for value, text in labelled(ticks(first, last, max(2, columns // 12)), step_label):
        column = round((value - first) / (last - first) * (columns - 1))
        start = min(left + 1 + columns - len(text), max(0, left + 1 + column - len(text) // 2))
        if start >= end:
            line[column] = "┬"
            labels[start : start + len(text)] = text
            end = start + len(text) + 1
    return [[Run(" " * left + "└" + "".join(line), "axis")], [Run("".join(labels), "axis")]]


class _Canvas:
    """The dots of the plot, and the style of each cell."""

    def __init__(self, columns: int, rows: int, first: float, last: float, low: float, high: float) -> None:
        self._dots = np.zeros((rows * _ROWS, columns * _COLUMNS), np.bool_)
        self._styles: dict[tuple[int, int], str] = {}
        self._first, self._last, self._low, self._high = first, last, low, high

    def _columns(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        share = (steps - self._first) / (self._last - self._first)
        return np.rint(share * (self._dots.shape[1] - 1))

    def _rows(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        share = (self._high - values) / (self._high - self._low)
        return np.rint(np.clip(share, -1, 2) * (self._dots.shape[0] - 1)).astype(np.int64)

    def line(self, steps: NDArray[np.float64], values: NDArray[np.float64], style: str) -> None:
        """Draw a line through points; several points in one column of dots are averaged."""
        if not len(steps):
            return
        columns, groups = np.unique(self._columns(steps), return_inverse=True)
        means = np.bincount(groups, values) / np.bincount(groups)
        inside = np.arange(max(0, columns[0]), min(self._dots.shape[1] - 1, columns[-1]) + 1)
        before = None
        for column, row in zip(inside.astype(int), self._rows(np.interp(inside, columns, means)), strict=True):
            self._fill(column, row, row, style)
            if before is not None:
                middle = (before + row) // 2
                self._fill(column - 1, before, middle, style)
                self._fill(column, middle, row, style)
            before = row

    def band(self, points: Points, style: str) -> None:
        """Draw the range from minimum to maximum of each point that has several values."""
        several = points.least < points.greatest
        columns = self._columns(points.steps[several]).astype(int)
        tops, bottoms = self._rows(points.greatest[several]), self._rows(points.least[several])
        for column, top, bottom in zip(columns, tops, bottoms, strict=True):
            if 0 <= column < self._dots.shape[1]:
                self._fill(column, top, bottom, style)

    def _fill(self, column: int, start: int, end: int, style: str) -> None:
        top, bottom = max(0, min(start, end)), min(self._dots.shape[0] - 1, max(start, end))
        self._dots[top : bottom + 1, column] = True
        for row in range(top // _ROWS, bottom // _ROWS + 1):
            self._styles[row, column // _COLUMNS] = style

    def row(self, row: int, *, has_mark: bool, cursor: int | None) -> list[Run]:
        """One row of characters, grouped by style."""
        dots = self._dots[row * _ROWS : (row + 1) * _ROWS].reshape(_ROWS, -1, _COLUMNS)
        codes = (dots * _BITS[:, None, :]).sum((0, 2))
        runs: list[Run] = []
        for column, code in enumerate(codes):
            if code:
                text, style = chr(_BLANK + int(code)), self._styles[row, column]
            elif column == cursor:
                text, style = "│", "cursor"
            else:
                text, style = ("┈", "grid") if has_mark else (" ", "")
            if runs and runs[-1].style == style:
                runs[-1] = Run(runs[-1].text + text, style)
            else:
                runs.append(Run(text, style))
        return runs
