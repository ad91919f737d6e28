"""Tables: plain in a pipe, in colour on a terminal, and never wider than the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from rekindle.text import printable

__all__ = [
    "Cell",
    "cell",
    "console",
    "facts",
    "fits",
    "headline",
    "number",
    "print_problems",
    "print_whole",
    "split_path",
    "status_cell",
    "table",
    "words",
]

Cell = str | Text

_LEAST_WIDTH = 60
"""Minimum width of a line; a narrower terminal breaks lines itself."""
_WHOLE_LINE = 1000
"""Maximum width of a line that is not to be wrapped in a pipe."""

_STATUS_STYLES = {
    "running": "bold cyan",
    "stopping": "yellow",
    "finished": "green",
    "stopped": "yellow",
    "failed": "bold red",
    "crashed": "bold red",
    "unreadable": "bold red",
}


def console(*, stderr: bool = False, whole_lines: bool = False) -> Console:
    """A console that prints text as it is, without interpreting markup.

    With `whole_lines`, a pipe gets one line for each row of a table, for programs such as grep, unless COLUMNS is set.
    """
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    is_whole = whole_lines and not made.is_terminal and "COLUMNS" not in os.environ
    made.width = _WHOLE_LINE if is_whole else max(made.width, _LEAST_WIDTH)
    return made


def cell(value: object, style: str = "") -> Text:
    """Any value as the safe text of one cell."""
    return Text(printable(value), style=style)


def split_path(path: Path) -> Text:
    """The path of a run in two lines, if one would be too long: the run id is on the second."""
    return Text.assemble(cell(f"{path.parent}/"), "\n", cell(path.name, "dim")) if len(path.parts) > 1 else cell(path)


def status_cell(status: str) -> Text:
    """A status in its colour."""
    return cell(status, _STATUS_STYLES.get(status, ""))


def number(header: str) -> Column:
    """A column of numbers."""
    return Column(header, justify="right", no_wrap=True)


def words(header: str | Text, *, least: int = 8) -> Column:
    """A column that is wrapped, not truncated, if it is too wide."""
    return Column(header, overflow="fold", min_width=least)


def table(columns: Iterable[str | Column], rows: Iterable[Sequence[Cell] | None]) -> Table:
    """A table with a line under its header; a row of None is a blank line."""
    made = Table(
        *(column.copy() if isinstance(column, Column) else Column(column, no_wrap=True) for column in columns),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
        show_edge=False,
    )
    for row in rows:
        if row is None:
            made.add_section()
        else:
            made.add_row(*(value if isinstance(value, Text) else cell(value) for value in row))
    return made


def fits(made: Table, out: Console) -> bool:
    """Whether a table needs neither wrapping nor truncation."""
    return out.measure(made, options=out.options.update(max_width=10_000)).maximum <= out.width


def facts(items: Iterable[tuple[Cell, Cell]]) -> Table:
    """A table with names on the left and values on the right."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True, overflow="ellipsis", max_width=32)
    made.add_column(overflow="fold")
    for name, value in items:
        made.add_row(*(part if isinstance(part, Text) else cell(part) for part in (name, value)))
    return made


def headline(title: str, note: str = "") -> Text:
    """The title of a section, with a blank line above it."""
    return Text.assemble("\n", (title, "bold"), (f"  {printable(note.strip())}" if note else "", "dim"))


def print_whole(out: Console, line: Text) -> None:
    """Print a line without wrapping it, so that a path in it can be copied."""
    out.print(line, soft_wrap=True)


def print_problems(out: Console, problems: Iterable[str]) -> None:
    """Print problems, one per line."""
    for problem in problems:
        print_whole(out, cell(f"! {problem}", "red"))
