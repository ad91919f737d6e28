"""The terminal UI: a run of any process, live, finished or crashed."""

from __future__ import annotations

import asyncio
import signal
import threading

from textual.app import App

from rekindle.ui.feed import RunFeed
from rekindle.ui.screen import Leaving, WatchScreen
from rekindle.ui.themes import THEMES, terminal_theme

__all__ = ["WatchApp"]

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class WatchApp(App[Leaving]):
    """Shows a run; as a companion, to the process that trains it and has started this one."""

    TITLE = "rekindle"
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        feed: RunFeed,
        *,
        theme: str | None = None,
        stay: bool = False,
        is_companion: bool = False,
    ) -> None:
        super().__init__()
        for known in THEMES.values():
            self.register_theme(known)
        self.theme = THEMES[theme or terminal_theme()].name
        self.signal: signal.Signals | None = None
        """What made it close, if a signal did."""
        self.watched = WatchScreen(feed, stay=stay, leave=self.exit, is_companion=is_companion)

    def on_mount(self) -> None:
        """Show the run, and leave the terminal as it was when asked to end; only the main thread has a say in that."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        self.push_screen(self.watched)

    def _on_signal(self, number: signal.Signals) -> None:
        self.signal = number
        self.exit("signal")

    async def action_quit(self) -> None:
        """Close the view, and leave the run alone."""
        self.exit("detached")

    def action_toggle_theme(self) -> None:
        """From dark to light, or back."""
        self.theme = THEMES["light" if self.current_theme.dark else "dark"].name
        self.watched.show()
