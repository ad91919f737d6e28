"""The terminal UI: shows a run of any process, whether it is live, finished or crashed."""

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
    """Shows a run; as a companion, it was started by the training process itself."""

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
        """The signal that closed the view, if any."""
        self.watched = WatchScreen(feed, stay=stay, leave=self.exit, is_companion=is_companion)

    def on_mount(self) -> None:
        """Show the run, and restore the terminal after a signal; only the main thread can handle signals."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        self.push_screen(self.watched)
        self.theme_changed_signal.subscribe(self, lambda _: self.watched.show())

    def _on_signal(self, number: signal.Signals) -> None:
        self.signal = number
        self.exit("signal")

    async def action_quit(self) -> None:
        """Close the view; the run is not affected."""
        self.exit("detached")

    def action_toggle_theme(self) -> None:
        """Switch between dark and light."""
        self.theme = THEMES["light" if self.current_theme.dark else "dark"].name
