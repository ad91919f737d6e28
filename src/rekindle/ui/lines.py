"""Panels of lines that scroll, for events and checkpoints: only the lines that are seen are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text
from textual.events import Resize
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rekindle.text import bytes_text, compact, decimal
from rekindle.ui.details import CheckpointFile
from rekindle.ui.feed import Happening, Level
from rekindle.ui.tables import cell

__all__ = ["Lines", "Row", "checkpoint_rows", "event_rows"]

Row = tuple[Text, Text]
"""A label, and the text beside it, which is wrapped."""

Style = Callable[[str], str]
"""Returns a colour of the theme."""

_MARKS: dict[Level, tuple[str, str]] = {
    "note": ("·", "text-muted"),
    "good": ("✓", "success"),
    "warning": ("!", "warning"),
    "error": ("✗", "error"),
}
_WRAPPING = Console(width=80, color_system=None)
"""Wrapping a text needs a console, though it prints nothing."""


class Lines(ScrollView, can_focus=True):
    """Shows rows, each on as many lines as it needs; a new row costs no layout of the screen."""

    DEFAULT_CSS = "Lines { padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as Textual has it
        super().__init__(id=id)
        self._rows: Sequence[Row] = ()
        self._lines: list[Text] = []

    def show(self, rows: Sequence[Row]) -> None:
        """Replace all rows."""
        self._rows = rows
        self._wrap()

    def on_resize(self, _event: Resize) -> None:
        """Wrap the rows again."""
        self._wrap()

    def _wrap(self) -> None:
        width = self.scrollable_content_region.width
        self._lines = [line for before, text in self._rows for line in _wrapped(before, text, width)]
        self.virtual_size = Size(width, len(self._lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One of the lines that are seen."""
        width = self.scrollable_content_region.width
        number = y + round(self.scroll_offset.y)
        usual = self.rich_style
        if number >= len(self._lines):
            return Strip.blank(width, usual)
        return Strip(self._lines[number].render(_WRAPPING)).apply_style(usual).adjust_cell_length(width, usual)


def _wrapped(before: Text, text: Text, width: int) -> list[Text]:
    indent = before.cell_len
    lines = text.wrap(_WRAPPING, max(1, width - indent)) if text.cell_len > width - indent else [text]
    return [Text.assemble(before if not index else " " * indent, line, end="") for index, line in enumerate(lines)]


def event_rows(happenings: Sequence[Happening], style: Style) -> list[Row]:
    """Events, the newest first."""
    made: list[Row] = []
    for happening in reversed(happenings):
        mark, name = _MARKS[happening.level]
        when = datetime.fromtimestamp(happening.time, UTC).astimezone().strftime("%H:%M:%S")
        step = "" if happening.step is None else compact(happening.step)
        text = cell(happening.text, "" if happening.level == "note" else style(name))
        made.append((Text.assemble((f"{when} {step:>6} ", style("text-muted")), (f"{mark} ", style(name))), text))
    return made


def checkpoint_rows(checkpoints: Sequence[CheckpointFile], style: Style) -> list[Row]:
    """Checkpoints, the newest first."""
    made: list[Row] = []
    for checkpoint in reversed(checkpoints):
        marks = ["latest"] * checkpoint.latest + [f"best {decimal(checkpoint.score)}"] * checkpoint.best
        size = (f"{bytes_text(checkpoint.size):>8}", style("text-muted"))
        name = Text.assemble(cell(f"{checkpoint.file:<20}"), size, "  ")
        made.append((name, Text(", ".join(marks), style("success"))))
    return made or [(Text(), Text("none yet", style("text-muted")))]
