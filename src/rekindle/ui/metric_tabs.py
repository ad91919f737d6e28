"""A row of tabs, one for each metric, with arrows where it continues beyond the edge of the terminal."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static, Tabs

__all__ = ["MetricTabs"]


class MetricTabs(Horizontal):
    """The tabs, between two arrows."""

    DEFAULT_CSS = """
    MetricTabs { height: 2; }
    MetricTabs > Static { width: 1; height: 2; color: $primary; }
    MetricTabs > Tabs { height: 2; width: 1fr; }
    """

    def compose(self) -> ComposeResult:
        """Arrow, tabs, arrow."""
        yield Static(id="earlier")
        yield Tabs(id="tabs")
        yield Static(id="later")

    def on_mount(self) -> None:
        """Keep the arrows up to date; the keys of the screen choose a tab."""
        tabs = self.query_one(Tabs)
        tabs.can_focus = False
        scrolled = tabs.query_one("#tabs-scroll")
        for name in ("scroll_x", "virtual_size"):
            self.watch(scrolled, name, self._show_soon)

    def on_resize(self) -> None:
        """With another width, other tabs are visible."""
        self._show_soon()

    def _show_soon(self) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        scrolled = self.query_one("#tabs-scroll")
        self.query_one("#earlier", Static).update("←" if scrolled.scroll_x > 0 else "", layout=False)
        self.query_one("#later", Static).update("→" if scrolled.scroll_x < scrolled.max_scroll_x else "", layout=False)
