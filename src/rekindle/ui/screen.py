"""The main screen of the terminal UI, and its keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Literal, cast

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static, Tab, Tabs

from rekindle.errors import RekindleError
from rekindle.text import NOTHING, compact, decimal, printable, time_text, whole
from rekindle.ui.actors import ActorsScreen
from rekindle.ui.details import CheckpointFile
from rekindle.ui.dialogs import HelpScreen, LeaveChoice, LeaveScreen, SummaryScreen
from rekindle.ui.feed import Happening, RunFeed, is_lower_better
from rekindle.ui.lines import Lines, checkpoint_rows, event_rows
from rekindle.ui.metric_tabs import MetricTabs
from rekindle.ui.plot import Plot
from rekindle.ui.tables import cell
from rekindle.ui.themes import LINES

__all__ = ["Leaving", "WatchScreen"]

Leaving = Literal["ended", "detached", "kill", "signal"]
"""Why the view closed; `kill` asks its caller to kill the training process."""

_POLL = 1.0
"""Seconds between two reads of the run."""
_DRAW = 2.0
"""Seconds between two drawings of a live run, except for its clock."""
_READING = 0.1
"""Seconds of reading between two frames, while there is much to read."""
_WIDE, _TALL = 112, 20
_MOST_EVENTS = 200
_STATUS_COLOURS = {"running": "success", "finished": "success", "stopped": "warning"}


class WatchScreen(Screen[None]):
    """Shows a run; calls `leave` at the end of the run, or when the user leaves."""

    CSS = """
    WatchScreen { background: $background; }
    #head, #progress, #counters, #legend { height: 1; padding: 0 1; }
    #head { background: $panel; }
    #plot { padding: 0 1; }
    #panels { height: 8; layout: grid; grid-size: 1; }
    #panels > * {
        border: round $border; border-title-color: $text-muted; background: $background;
        scrollbar-size: 0 1; scrollbar-color: $border; scrollbar-background: $background;
        scrollbar-color-hover: $primary; scrollbar-background-hover: $background;
        scrollbar-color-active: $primary; scrollbar-background-active: $background;
    }
    #panels > *:focus { border: round $primary; border-title-color: $primary; }
    #panels > * { display: none; }
    #panels > .selected { display: block; }
    WatchScreen.wide #panels { height: 40%; grid-size: 2 2; grid-rows: 3fr 2fr; grid-columns: 64 1fr; }
    WatchScreen.wide #panels > * { display: block; }
    WatchScreen.wide #metrics { row-span: 2; }
    WatchScreen.low #panels, WatchScreen.low #counters { display: none; }
    #metrics:focus { background-tint: $foreground 0%; }
    #metrics > .datatable--header { background: $background; color: $text-muted; text-style: none; }
    #metrics > .datatable--cursor { background: $background; color: $foreground; text-style: none; }
    #metrics:focus > .datatable--cursor { background: $panel; color: $foreground; text-style: bold; }
    #metrics > .datatable--hover { background: $panel; }
    #tabs Tab { color: $text-muted; text-opacity: 100%; }
    #tabs Tab.-active { color: $primary; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", "leave"),
        Binding("ctrl+c", "interrupt", show=False),
        Binding("question_mark", "help", "keys", key_display="?"),
        Binding("right,n,right_square_bracket", "metric(1)", "metric", key_display="←/→", priority=True),
        Binding("left,p,left_square_bracket", "metric(-1)", "previous", show=False, priority=True),
        Binding("f", "view('full')", "full"),
        Binding("r", "view('recent')", "recent"),
        Binding("plus,equals_sign", "zoom(0.5)", "zoom", key_display="+/-"),
        Binding("minus", "zoom(2.0)", "zoom out", show=False),
        Binding("shift+left,less_than_sign", "pan(-0.25)", "back", show=False, priority=True),
        Binding("shift+right,greater_than_sign", "pan(0.25)", "forward", show=False, priority=True),
        Binding("s", "smooth", "smooth"),
        Binding("m", "panel('metrics')", "panels", key_display="m/e/c"),
        Binding("e", "panel('events')", "events", show=False),
        Binding("c", "panel('checkpoints')", "checkpoints", show=False),
        Binding("o", "summary", "summary", show=False),
        Binding("a", "actors", "actors", show=False),
        Binding("t", "app.toggle_theme", "theme", show=False),
        *(Binding(str(number), f"metric_number({number})", show=False) for number in range(1, 10)),
    ]
    KEYS: ClassVar[list[tuple[str, str]]] = [
        ("q", "leave: stop, kill, detach or cancel"),
        ("ctrl+c", "the same; stops a training that was started here"),
        ("ctrl+q", "detach at once; training continues"),
        ("right left", "next, previous metric; also n, p"),
        ("1 to 9", "a metric by its position"),
        ("f", "full: the whole run"),
        ("r", "recent: the last fifth"),
        ("+ -", "zoom in, out"),
        ("< >", "pan; also shift+left, shift+right"),
        ("s", "next level of smoothing"),
        ("m e c", "metrics, events, checkpoints"),
        ("o", "summary of the run so far"),
        ("a", "every actor, and the learner"),
        ("t", "dark or light theme"),
        ("?", "these keys"),
    ]

    def __init__(
        self,
        feed: RunFeed,
        *,
        stay: bool,
        leave: Callable[[Leaving], object],
        is_companion: bool,
    ) -> None:
        super().__init__()
        self.feed = feed
        self._stays = stay
        self._leave = leave
        self._is_companion = is_companion
        self._metric = "return"
        self._tab_names: dict[str, str] = {}
        self._row_names: list[str] = []
        self._was_live = is_companion  # a short training may have ended already
        self._share_read = 0.0
        self._shown = -1
        self._drawn_at = -_DRAW
        self._shown_events: list[Happening] = []
        self._shown_checkpoints: list[CheckpointFile] | None = None
        self._shown_texts: dict[str, Text] = {}

    def compose(self) -> ComposeResult:
        """From the top: headline, progress, plot, details."""
        yield Static(id="head")
        yield Static(id="progress")
        yield Static(id="counters")
        yield MetricTabs()
        yield Static(id="legend")
        yield Plot(id="plot")
        with Container(id="panels"):
            yield DataTable[Text](id="metrics", cursor_type="row", cell_padding=0, classes="selected")
            yield Lines(id="events")
            yield Lines(id="checkpoints")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Read the run for the first time, and schedule the next reads."""
        for panel in self.query("#panels > *"):
            panel.border_title = panel.id
        table = self.query_one(DataTable[Text])
        # Few columns: each cell is drawn by itself, which takes longer than anything else on this screen.
        table.add_columns(f"{'metric':<21}", f"{'last':>10}{'mean 100':>10}{'best':>10}{'at step':>8}")
        self.poll()
        table.focus()

    # Content

    def poll(self) -> None:
        """Read new data and show it; again at once while there is more to read."""
        if not self.is_attached:
            return
        self._share_read = self.feed.poll(seconds=_READING)
        self.show(anew=False)
        has_ended = self._was_live and not self.feed.is_live
        self._was_live = self.feed.is_live
        # If the training process has died, its shell has the terminal back.
        if has_ended and (not self._stays or (self._is_companion and self.feed.status == "crashed")):
            self.feed.poll()
            self._leave("ended")
        else:
            if has_ended:
                self._app.push_screen(SummaryScreen(self.feed))
            self.set_timer(_POLL if self._share_read == 1.0 else 0.01, self.poll)

    def show(self, *, anew: bool = True) -> None:
        """Update the screen; with `anew=False`, only if something has changed."""
        if anew:  # a theme has other colours for the same words
            self._shown_texts.clear()
        self._show_clock()
        is_early = self.feed.is_live and time.monotonic() - self._drawn_at < _DRAW
        if not anew and (is_early or self.feed.changes == self._shown):
            return
        self._shown = self.feed.changes
        self._drawn_at = time.monotonic()
        self._update("counters", self._counters())
        self._show_tabs()
        self._show_plot()
        self._show_metrics(anew=anew)
        events = self.feed.happenings[-_MOST_EVENTS:]
        if anew or events != self._shown_events:
            self._shown_events = events
            self.query_one("#events", Lines).show(event_rows(events, self._style))
        if anew or self.feed.checkpoints != self._shown_checkpoints:
            self._shown_checkpoints = list(self.feed.checkpoints)
            self.query_one("#checkpoints", Lines).show(checkpoint_rows(self._shown_checkpoints, self._style))

    def _show_clock(self) -> None:
        self._show_head()
        self._update("progress", self._progress())

    def _update(self, name: str, text: Text) -> None:
        """Show another text in a line, if it is another one."""
        if self._shown_texts.get(name) != text:
            self._shown_texts[name] = text
            self.query_one(f"#{name}", Static).update(text, layout=False)

    @property
    def _app(self) -> App[Leaving]:
        return cast("App[Leaving]", self.app)  # pyright: ignore[reportUnknownMemberType] - Textual leaves it open

    def _style(self, name: str) -> str:
        """A colour of the theme, as a style."""
        return self._app.theme_variables[name]

    def _show_head(self) -> None:
        feed = self.feed
        status = feed.shown_status
        colour = self._style(_STATUS_COLOURS.get(status, "warning" if feed.is_stop_requested else "error"))
        left = Text.assemble(
            ("● " if feed.is_live else "○ ", colour), (status, f"bold {colour}"), "  ", cell(feed.name, "bold")
        )
        for fact in (feed.algorithm, feed.environment):
            if fact:
                left.append_text(cell(f"  {fact}", self._style("secondary")))
        right = f"{'up' if feed.is_live else 'took'} {time_text(feed.uptime)}"
        left.truncate(max(10, self.size.width - 4 - len(right)), overflow="ellipsis", pad=True)
        left.append(f"  {right}", self._style("text-muted"))
        self._update("head", left)

    @property
    def _steps(self) -> str:
        return "updates" if self.feed.is_offline else "steps"

    def _progress(self) -> Text:
        feed, muted = self.feed, self._style("text-muted")
        if self._share_read < 1:
            return Text(f"reading the logs: {self._share_read:.0%}", self._style("warning"))
        facts: list[str] = []
        if feed.rate is not None:
            facts.append(f"{compact(round(feed.rate))} {self._steps}/s")
        if feed.seconds_left is not None:
            facts.append(f"ETA {time_text(feed.seconds_left)}")
        if feed.share_done is None:
            return Text("  ".join([f"{compact(feed.steps)} {self._steps}, no end set", *facts]), muted)
        share = f" {feed.share_done:>4.0%} "
        text = "  ".join([f"{compact(feed.steps)}/{compact(feed.max_steps)}", *facts])
        width = max(4, self.size.width - len(share) - len(text) - 3)
        done = int(feed.share_done * width)
        return Text.assemble(
            ("━" * done, self._style("primary")),
            ("━" * (width - done), self._style("panel")),
            (share, "bold"),
            (text, muted),
        )

    def _counters(self) -> Text:
        feed, muted = self.feed, self._style("text-muted")
        made = Text()
        counts = (("env steps", feed.steps), ("updates", feed.updates), ("episodes", feed.episodes))
        for name, value in counts[1:2] if feed.is_offline else counts:
            made.append_text(Text.assemble((f"{name} ", muted), (whole(value), "bold"), "   "))
        if feed.actors is not None:
            made.append(f"{feed.actors}   ", muted)
        if feed.problems:
            made.append_text(cell(feed.problems[0], self._style("error")))
        return made

    def _show_tabs(self) -> None:
        """Add a tab for each new metric; if a resume removed all rows of a metric, its tab stays and is empty."""
        known, names = list(self._tab_names.values()), self.feed.names
        for name in (name for name in names if name not in known):
            following = next((self._tab(later) for later in names[names.index(name) + 1 :] if later in known), None)
            tab = f"metric-{len(self._tab_names)}"
            self._tab_names[tab] = name
            self.query_one(Tabs).add_tab(Tab(Content(printable(name, most=24)), id=tab), before=following)
        if not known and names:
            self.call_after_refresh(self._activate, self._metric if self._metric in names else names[0])

    def _tab(self, name: str) -> str:
        return next(tab for tab, known in self._tab_names.items() if known == name)

    def _activate(self, name: str) -> None:
        self.query_one(Tabs).active = self._tab(name)

    def _show_plot(self) -> None:
        if self._metric not in self.feed.names and self.feed.names:
            self._metric = self.feed.names[0]
        self.query_one(Plot).show(self.feed.splits(self._metric), self.feed.steps)

    @on(Plot.Changed)
    def _show_legend(self) -> None:
        plot, muted = self.query_one(Plot), self._style("text-muted")
        made = Text(no_wrap=True, overflow="ellipsis")
        values = (
            plot.values_at(plot.cursor)
            if plot.cursor is not None
            else [(split, curve.last) for split, curve in self.feed.splits(self._metric)]
        )
        for index, (split, value) in enumerate(values):
            made.append("● ", self._style(LINES[index % len(LINES)]))
            made.append_text(Text.assemble(cell(split), (f" {decimal(value)}   ", "bold")))
        if plot.cursor is not None:
            made.append(f"at step {whole(round(plot.cursor))}   ", muted)
        elif not values:
            made.append("nothing logged yet   ", muted)
        smoothing = f"smoothing {plot.smoothing:.0%}" if plot.smoothing else "not smoothed"
        made.append(f"by {'update' if self.feed.is_offline else 'env step'}, {plot.view}, {smoothing}", muted)
        self._update("legend", made)

    def _show_metrics(self, *, anew: bool) -> None:
        table, muted = self.query_one(DataTable[Text]), self._style("text-muted")
        rows: list[tuple[str, list[Text]]] = []
        for name in self.feed.names:
            for split, curve in self.feed.splits(name):
                best = curve.least if is_lower_better(name) else curve.greatest
                value, step = (NOTHING, NOTHING) if best is None else (decimal(best.value), compact(best.step))
                numbers = (decimal(curve.last), decimal(curve.recent_mean), value)
                values = "".join(f"{number:>10}" for number in numbers)
                label = Text.assemble(_cut(name, 14), " ", Text.assemble(_cut(split, 6), style=muted))
                rows.append((name, [label, Text.assemble(values, (f"{step:>8}", muted))]))
        if [key.value for key in table.rows] != [str(index) for index in range(len(rows))]:
            table.clear()
            for index, (_, row) in enumerate(rows):
                table.add_row(*row, key=str(index))
        else:
            for index, (_, row) in enumerate(rows):
                for column, value in enumerate(row):
                    at = Coordinate(index, column)
                    if anew or table.get_cell_at(at) != value:
                        table.update_cell_at(at, value)
        self._row_names = [name for name, _ in rows]

    def on_resize(self, event: Resize) -> None:
        """Choose the layout for the size of the terminal."""
        self.set_class(event.size.width >= _WIDE and event.size.height >= 32, "wide")
        self.set_class(event.size.height < _TALL, "low")
        self._show_clock()

    # Actions

    @on(Tabs.TabActivated)
    def _plot_of_tab(self, event: Tabs.TabActivated) -> None:
        self._metric = self._tab_names.get(event.tab.id or "", self._metric)
        self._show_plot()

    @on(DataTable.RowSelected)
    def _plot_of_row(self, event: DataTable.RowSelected) -> None:
        self._activate(self._row_names[event.cursor_row])

    def action_metric(self, places: int) -> None:
        """Plot the metric this many positions further."""
        names = self.feed.names
        if names:
            at = names.index(self._metric) if self._metric in names else 0
            self._activate(names[(at + places) % len(names)])

    def action_metric_number(self, number: int) -> None:
        """Plot a metric by its position."""
        if number <= len(self.feed.names):
            self._activate(self.feed.names[number - 1])

    def action_view(self, view: Literal["full", "recent"]) -> None:
        """Plot the whole run, or the newest part."""
        self.query_one(Plot).set_view(view)

    def action_zoom(self, factor: float) -> None:
        """Zoom in or out."""
        self.query_one(Plot).zoom(factor)

    def action_pan(self, share: float) -> None:
        """Pan."""
        self.query_one(Plot).pan(share)

    def action_smooth(self) -> None:
        """Use the next level of smoothing."""
        self.query_one(Plot).next_smoothing()

    def action_panel(self, name: str) -> None:
        """Show one of the panels, and focus it."""
        for panel in self.query("#panels > *"):
            panel.set_class(panel.id == name, "selected")
        self.query_one(f"#{name}").focus()

    def action_help(self) -> None:
        """Show the keys."""
        self._app.push_screen(HelpScreen(self.KEYS))

    def action_summary(self) -> None:
        """Show the summary."""
        self._app.push_screen(SummaryScreen(self.feed))

    def action_actors(self) -> None:
        """Show what each actor does."""
        if self.feed.actors is None:
            self.notify("The run has no actors, or has not logged any yet.", markup=False)
        else:
            self._app.push_screen(ActorsScreen(self.feed))

    def action_leave(self) -> None:
        """Ask what to do with the run, unless it has ended."""
        if self.feed.is_live:
            self._app.push_screen(LeaveScreen(is_companion=self._is_companion), self._answer)
        else:
            self._leave("ended")

    def action_interrupt(self) -> None:
        """Stop a training that was started here, as Ctrl-C usually does; for other runs, or the second time, ask."""
        if self._is_companion and self.feed.is_live and not self.feed.is_stop_requested:
            self._stop()
        else:
            self.action_leave()

    def _answer(self, choice: LeaveChoice | None) -> None:
        if choice == "stop":
            self._stop()
        elif choice == "kill":
            self._leave("kill")
        elif choice == "detach":
            self._leave("detached")

    def _stop(self) -> None:
        try:
            reason = "asked to stop in the terminal UI" if self._is_companion else "rekindle watch"
            self.feed.reader.request_stop(reason)
        except (RekindleError, OSError) as error:
            self.notify(printable(error), severity="error", markup=False)
        else:
            self.notify("The run will take a checkpoint and stop.", markup=False)


def _cut(text: str, width: int) -> Text:
    made = cell(text)
    made.truncate(width, overflow="ellipsis", pad=True)
    return made
