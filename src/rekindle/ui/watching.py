"""Watch a run: with the terminal UI on a terminal, otherwise with progress lines."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rekindle.errors import MissingExtra
from rekindle.terminal import can_rewrite
from rekindle.text import install_command, path_text
from rekindle.ui.feed import RunFeed
from rekindle.ui.summary import progress_line, summary_table
from rekindle.ui.tables import cell, console, print_problems, print_whole
from rekindle.ui.writer import kill_writer

if TYPE_CHECKING:
    from rekindle.ui.app import WatchApp

__all__ = ["Watched", "is_terminal", "print_end", "terminal_ui", "watch"]

Watched = Literal["ended", "detached", "killed", "failed"]
"""Why it ended: the run ended, the user detached or killed it, or the view failed."""

_POLL = 0.5


def is_terminal() -> bool:
    """Whether all three standard streams are a terminal that can do more than print lines."""
    return sys.stdin.isatty() and all(map(can_rewrite, (sys.stdout, sys.stderr))) and "TERM" in os.environ


def terminal_ui() -> type[WatchApp]:
    """The terminal UI; raises `MissingExtra` if it is not installed."""
    try:
        from rekindle.ui.app import WatchApp
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"the terminal UI needs {error.name}: {install_command('ui')}, or use --plain (watch) or --ui plain",
            name=error.name,
        ) from None
    return WatchApp


def watch(
    path: str | Path,
    *,
    plain: bool | None = None,
    interval: float = 10.0,
    stay: bool = False,
    theme: Literal["dark", "light"] | None = None,
) -> Watched:
    """Show a run until it ends or the user leaves; only reads the run directory.

    Args:
        path: a run, or a version or name directory (its newest run).
        plain: progress lines instead of the terminal UI; None for lines if there is no terminal.
        interval: seconds between two progress lines.
        stay: keep the terminal UI open, with the summary, when the run ends.
        theme: colours for a dark or a light terminal; None to ask the terminal.
    """
    feed = RunFeed(path)
    if plain or (plain is None and not is_terminal()):
        _watch_plainly(feed, interval)
        return "ended"
    app = terminal_ui()(feed, theme=theme, stay=stay)
    leaving = app.run()
    if app.signal is not None:
        signal.raise_signal(app.signal)  # now that the terminal is restored
    if leaving is None or leaving == "signal":
        return "failed"
    if leaving == "kill":
        kill_writer(feed.reader)
        while feed.reader.is_live:
            time.sleep(_POLL / 10)
        feed.poll()
    print_end(feed)
    return "killed" if leaving == "kill" else leaving


def _watch_plainly(feed: RunFeed, interval: float) -> None:
    printed, status = -math.inf, ""
    while True:
        feed.poll()
        if not feed.is_live:
            break
        if time.monotonic() - printed >= interval or feed.shown_status != status:
            print_whole(console(), cell(progress_line(feed)))
            printed, status = time.monotonic(), feed.shown_status
        time.sleep(min(_POLL, interval))
    print_end(feed)


def print_end(feed: RunFeed) -> None:
    """Print the summary of a run that has ended; for a live run, its progress and how to watch it again."""
    out = console()
    if feed.is_live:
        print_whole(out, cell(progress_line(feed)))
        print_whole(out, cell(f"It is still running: rekindle watch {path_text(feed.reader.path)}"))
    else:
        out.print(summary_table(feed))
    print_problems(out, feed.problems)
