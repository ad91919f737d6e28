"""The plot of one metric over env steps: the whole run, the newest part, or any range."""

from __future__ import annotations

from typing import Literal, cast

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from rekindle.run.curve import Curve
from rekindle.ui.braille import Chart, Line, draw
from rekindle.ui.themes import LINES, chart_colours

__all__ = ["Plot", "View"]

View = Literal["full", "recent", "zoom"]

SMOOTHING = (0.0, 0.01, 0.02, 0.05)
"""Shares of a curve; see `Points.smoothed`."""
_RECENT_SHARE = 0.2
"""The share of the run that counts as its newest part."""
_ZOOM = 0.7


class Plot(Widget):
    """Curves of one metric; the mouse wheel zooms, dragging pans, a double click shows the whole run."""

    DEFAULT_CSS = "Plot { height: 1fr; min-height: 6; }"

    class Changed(Message):
        """The content of the plot or the pointer has changed."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as Textual has it
        super().__init__(id=id)
        self.view: View = "full"
        self.smoothing = SMOOTHING[2]
        self.cursor: float | None = None
        """The env step under the pointer."""
        self._curves: list[tuple[str, Curve]] = []
        self._end = 1.0
        self._zoomed = (0.0, 1.0)
        self._dragged_from: tuple[int, tuple[float, float]] | None = None
        self._chart: Chart | None = None
        self._strips: list[Strip] = []
        self._drawn: tuple[object, ...] | None = None

    def show(self, curves: list[tuple[str, Curve]], end: int) -> None:
        """Show curves by split; `end` is the number of env steps of the run."""
        self._curves = curves
        self._end = float(max(1, end))
        self._redraw()

    @property
    def range(self) -> tuple[float, float]:
        """The first and the last env step shown."""
        if self.view == "full":
            return 0.0, self._end
        if self.view == "recent":
            return self._end * (1 - _RECENT_SHARE), self._end
        return self._zoomed

    def set_view(self, view: View) -> None:
        """Show the whole run, or its newest part."""
        self._zoomed, self.view = self.range, view
        self._redraw()

    def zoom(self, factor: float, around: float | None = None) -> None:
        """Zoom in or out, around an env step or the middle."""
        first, last = self.range
        centre = (first + last) / 2 if around is None else around
        least = max(2.0, self._end * 1e-4)
        width = min(self._end, max(least, (last - first) * factor))
        share = (centre - first) / (last - first)
        self._move_to(centre - share * width, width)

    def pan(self, share: float) -> None:
        """Move by a share of the range shown."""
        first, last = self.range
        self._move_to(first + share * (last - first), last - first)

    def _move_to(self, first: float, width: float) -> None:
        first = min(max(0.0, first), self._end - width)
        self._zoomed = (first, first + width)
        self.view = "full" if width >= self._end else "zoom"
        self._redraw()

    def next_smoothing(self) -> None:
        """Use the next level of smoothing; after the last, none."""
        self.smoothing = SMOOTHING[(SMOOTHING.index(self.smoothing) + 1) % len(SMOOTHING)]
        self._redraw()

    def values_at(self, step: float) -> list[tuple[str, float]]:
        """The value of each curve at the point of a step."""
        found: list[tuple[str, float]] = []
        for split, curve in self._curves:
            points = curve.points()
            index = int(points.steps.searchsorted(step))
            if len(points.steps):
                found.append((split, float(points.means[min(index, len(points.steps) - 1)])))
        return found

    def _redraw(self) -> None:
        self._drawn = None
        self.refresh()
        self.post_message(self.Changed())

    def render_line(self, y: int) -> Strip:
        """One line of the chart; the chart is drawn when its first line is requested after a change."""
        app = cast("App[object]", self.app)  # pyright: ignore[reportUnknownMemberType] - Textual leaves it open
        first, last = self.range
        key = (self.size, first, last, self.cursor, app.current_theme.name)
        if self._drawn != key:
            lines = [
                Line(curve.points(), 0.0 if split == "eval" else self.smoothing)
                for split, curve in self._curves[: len(LINES)]
            ]
            self._chart = draw(lines, self.size.width, self.size.height, first=first, last=last, cursor=self.cursor)
            usual = self.rich_style
            styles = {name: usual + Style(color=colour) for name, colour in chart_colours(app.current_theme).items()}
            self._strips = [
                Strip([Segment(run.text, styles[run.style]) for run in row]).adjust_cell_length(self.size.width, usual)
                for row in self._chart.rows
            ]
            self._drawn = key
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width, self.rich_style)

    def _step_at(self, x: int) -> float | None:
        if self._chart is None or not 0 <= x - self._chart.left < self._chart.width:
            return None
        first, last = self.range
        return first + (x - self._chart.left) / max(1, self._chart.width - 1) * (last - first)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show the values under the pointer, or pan."""
        if self._dragged_from is not None and self._chart is not None:
            x, (first, last) = self._dragged_from
            if event.x != x:
                self._move_to(first - (event.x - x) / self._chart.width * (last - first), last - first)
            return
        self.cursor = self._step_at(event.x)
        self._redraw()

    def on_leave(self, _event: events.Leave) -> None:
        """Remove the cursor."""
        self.cursor = None
        self._redraw()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Start to pan."""
        self._dragged_from = (event.x, self.range)
        self.capture_mouse()

    def on_mouse_up(self, _event: events.MouseUp) -> None:
        """Stop panning."""
        self._dragged_from = None
        self.release_mouse()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in."""
        event.stop()
        self.zoom(_ZOOM, self._step_at(event.x))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out."""
        event.stop()
        self.zoom(1 / _ZOOM, self._step_at(event.x))

    def on_click(self, event: events.Click) -> None:
        """After a double click, show the whole run."""
        if event.chain == 2:
            self.set_view("full")
