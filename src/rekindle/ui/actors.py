"""What each actor of a run and its learner did in the last metric window, and a dialog that shows it."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.widgets import Static

from rekindle.run.curve import Curve
from rekindle.text import NOTHING, compact
from rekindle.ui.dialogs import DIALOG_CSS, Reading
from rekindle.ui.feed import Metric, RunFeed

__all__ = ["ActorState", "ActorsScreen", "LearnerState", "actor_states", "learner_state"]

_ACTOR = re.compile(r"actor_(\d{1,6})_samples_per_sec")
_SLOW = 2 / 3
"""Less than this share of the median rate is clearly slower than the others."""
_BAR = 6
_CELL = 36
"""Characters of an actor."""
_REFRESH = 1.0


class ActorState(NamedTuple):
    """What an actor did."""

    number: int
    rate: float
    """Samples per second while it played."""
    playing: float | None
    """The share of the time that it played; None in a run that did not log it."""
    restarts: int
    is_slow: bool
    """Whether it is clearly slower than the others."""


class LearnerState(NamedTuple):
    """What the learner did."""

    busy: float
    """The share of the time that it did not wait for actors."""
    updates: float | None
    """Per second."""
    samples: float | None
    """Samples per second of all actors together, with all waiting."""
    staleness: float | None
    queued: float | None
    """Chunks of free actors that waited for it."""


def actor_states(curves: Mapping[Metric, Curve]) -> list[ActorState]:
    """The actors of a run by number; none for a run without actors."""
    found = [match for metric in curves if metric.split == "time" and (match := _ACTOR.fullmatch(metric.name))]
    rates = {int(match[1]): curves[Metric(match[0], "time")].last for match in found}
    median = statistics.median(rates.values()) if rates else 0.0
    return [
        ActorState(
            number,
            rate,
            _last(curves, f"actor_{number}_playing"),
            math.ceil(_last(curves, f"actor_{number}_restarts") or 0),
            rate < _SLOW * median,
        )
        for number, rate in sorted(rates.items())
    ]


def learner_state(curves: Mapping[Metric, Curve]) -> LearnerState | None:
    """The learner of a run with actors."""
    waiting = _last(curves, "learner_waiting")
    names = ("updates_per_sec", "samples_per_sec", "staleness", "actor_queue")
    return None if waiting is None else LearnerState(1 - waiting, *(_last(curves, name) for name in names))


def _last(curves: Mapping[Metric, Curve], name: str) -> float | None:
    curve = curves.get(Metric(name, "time"))
    return None if curve is None else curve.last


class ActorsScreen(Reading):
    """The learner, then every actor in as many columns as there is room for."""

    DEFAULT_CSS = DIALOG_CSS.format(name="ActorsScreen") + (
        "ActorsScreen > Vertical { width: 82; max-width: 100%; padding: 0 1; }"
    )

    def __init__(self, feed: RunFeed) -> None:
        super().__init__()
        self._feed = feed
        self._shown: Text | None = None

    def compose(self) -> ComposeResult:
        """One text that scrolls."""
        with Vertical() as box:
            box.border_title = "Actors"
            box.border_subtitle = "esc closes"
            with VerticalScroll():
                yield Static(id="actors")

    def on_mount(self) -> None:
        """Show what the run has logged, again and again."""
        self.set_interval(_REFRESH, self._show)
        self._app.theme_changed_signal.subscribe(self, lambda _: self._show())
        self.query_one(VerticalScroll).focus()

    def on_resize(self, _event: Resize) -> None:
        """Choose the number of columns."""
        self.call_after_refresh(self._show)

    @property
    def _app(self) -> App[object]:
        return cast("App[object]", self.app)  # pyright: ignore[reportUnknownMemberType] - Textual leaves it open

    def _show(self) -> None:
        text = self._text(self.query_one(VerticalScroll).scrollable_content_region.width)
        if text != self._shown:
            self._shown = text
            self.query_one("#actors", Static).update(text)

    def _text(self, width: int) -> Text:
        colours = self._app.theme_variables
        curves = self._feed.curves
        states, learner = actor_states(curves), learner_state(curves)
        made = Text()
        if learner is not None:
            made.append_text(_learner_text(learner, colours))
        made.append(f"{_summary(states)}\n", colours["text-muted"])
        if not self._feed.is_live:
            made.append("The run is not live: this is its last metric window.\n", colours["warning"])
        made.append("\n")
        columns = max(1, (width + 2) // (_CELL + 2))
        height = math.ceil(len(states) / columns)
        digits = len(str(states[-1].number)) if states else 1
        for row in range(height):
            cells = [_actor_text(state, digits, colours) for state in states[row::height]]
            made.append_text(Text("  ").join(cells)).append("\n")
        made.rstrip()
        return made


def _learner_text(learner: LearnerState, colours: Mapping[str, str]) -> Text:
    muted = colours["text-muted"]
    made = Text.assemble(("Learner  ", "bold"), *_bar(learner.busy, colours), f" {learner.busy:>4.0%} busy")
    facts = (
        ("updates/s", learner.updates),
        ("samples/s", learner.samples),
        ("staleness", learner.staleness),
        ("queued", learner.queued),
    )
    for name, value in facts:
        if value is not None:
            made.append("  ").append(f"{name} ", muted).append(_count(value))
    return made.append("\n")


def _summary(states: Sequence[ActorState]) -> str:
    parts = [f"{len(states)} actor{'s' * (len(states) != 1)}"]
    playing = [state.playing for state in states if state.playing is not None]
    if playing:
        parts.append(f"playing {statistics.fmean(playing):.0%} of the time on average")
    if slow := sum(state.is_slow for state in states):
        parts.append(f"{slow} slow")
    if restarted := sum(state.restarts > 0 for state in states):
        parts.append(f"{restarted} started again")
    return ", ".join(parts)


def _actor_text(state: ActorState, digits: int, colours: Mapping[str, str]) -> Text:
    made = Text.assemble((f"Actor {state.number:>{digits}} ", "bold"))
    playing = f" {NOTHING:>4}"
    if state.playing is not None:
        playing = f" {state.playing:>4.0%}"
    made.append_text(Text.assemble(*_bar(state.playing or 0.0, colours)))
    made.append(playing).append(f" {_count(state.rate):>5}/s", colours["text-muted"])
    if state.is_slow:
        made.append(" slow", colours["warning"])
    if state.restarts:
        made.append(f" ↻{state.restarts}", colours["error"])
    made.truncate(_CELL, overflow="ellipsis", pad=True)
    return made


def _bar(share: float, colours: Mapping[str, str]) -> list[tuple[str, str]]:
    done = round(min(max(share, 0.0), 1.0) * _BAR)
    return [("━" * done, colours["success"]), ("━" * (_BAR - done), colours["border"])]


def _count(value: float) -> str:
    return compact(round(value)) if abs(value) >= 100 else f"{value:.3g}"
