"""The dialog with every actor and the learner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from watched_runs import Writer, written

pytest.importorskip("textual")

from textual.containers import VerticalScroll
from textual.pilot import Pilot

from rekindle.ui.actors import ActorsScreen, ActorState, LearnerState, actor_states, learner_state
from rekindle.ui.app import WatchApp
from rekindle.ui.feed import RunFeed

Play = Callable[[Pilot[Any], WatchApp], Awaitable[None]]


def log_actors(writer: Writer, count: int, *, busy: float = 0.75, **more: float) -> None:
    """A metric window with this many actors; actor 1 is slow, and was started again."""
    means = {"time__learner_waiting": 1 - busy, "time__actor_restarts": 0.0, "time__actors_waiting": 0.5}
    means |= {"time__updates_per_sec": 12.5, "time__samples_per_sec": 4000.0, "time__staleness": 1.0}
    for actor in range(count):
        means[f"time__actor_{actor}_samples_per_sec"] = 500.0 if actor == 1 else 1000.0 + actor
        means[f"time__actor_{actor}_playing"] = 1.0 if actor == 1 else 0.5
    writer.metrics_of(**means, time__actor_1_restarts=1.5, **more)


def shown(app: WatchApp) -> str:
    return "\n".join(line.text.rstrip() for line in app.screen._compositor.render_strips())


def piloted(path: Path, play: Play, *, size: tuple[int, int] = (80, 24)) -> None:
    app = WatchApp(RunFeed(path), theme="dark", stay=True)
    app.animation_level = "none"

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await pilot.press("a")
            await play(pilot, app)

    asyncio.run(run())


async def until(pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await pilot.pause(0.01)
    raise AssertionError("it did not come to pass")


@pytest.fixture
def live(tmp_path: Path) -> Writer:
    return written(tmp_path)


def test_states_are_those_of_the_last_window(live: Writer) -> None:
    log_actors(live, 12)
    feed = RunFeed(live.path)
    feed.poll()
    states = actor_states(feed.curves)
    assert [state.number for state in states] == list(range(12))
    assert states[1] == ActorState(1, 500.0, 1.0, restarts=2, is_slow=True)
    assert states[10] == ActorState(10, 1010.0, 0.5, restarts=0, is_slow=False)
    assert learner_state(feed.curves) == LearnerState(0.75, 12.5, 4000.0, 1.0, None)
    assert feed.names[-1] == "actor_9_samples_per_sec", "those of single actors are last"
    assert feed.names.index("updates_per_sec") < feed.names.index("actor_0_playing")


def test_32_actors_fit_in_a_small_terminal(live: Writer) -> None:
    log_actors(live, 32)
    live.end()

    async def play(pilot: Pilot[Any], app: WatchApp) -> None:
        await until(pilot, lambda: "Actor 31" in shown(app))
        text = shown(app)
        assert all(f"Actor {actor:>2} " in text for actor in range(32))
        assert "75% busy  updates/s 12.5  samples/s 4,000  staleness 1" in text
        assert "32 actors, playing 52% of the time on average, 1 slow, 1 started again" in text
        assert "100%   500/s slow ↻2" in text
        assert "The run is not live: this is its last metric window." in text
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, ActorsScreen))

    piloted(live.path, play)


def test_more_actors_are_scrolled_to(live: Writer) -> None:
    log_actors(live, 100)

    async def play(pilot: Pilot[Any], app: WatchApp) -> None:
        await until(pilot, lambda: "Actor  0" in shown(app))
        assert "Actor 99" not in shown(app)
        assert "not live" not in shown(app)
        assert app.screen.query_one(VerticalScroll).has_focus
        await pilot.press("end")
        await until(pilot, lambda: "Actor 99" in shown(app))

    piloted(live.path, play)


def test_the_dialog_follows_the_run_and_the_theme(live: Writer) -> None:
    log_actors(live, 4, time__actor_queue=2.0)

    async def play(pilot: Pilot[Any], app: WatchApp) -> None:
        await until(pilot, lambda: "75% busy" in shown(app))
        assert "queued 2" in shown(app)
        live.episodes_of([1.0])
        log_actors(live, 4, busy=0.25)
        await until(pilot, lambda: "25% busy" in shown(app))
        await pilot.press("t")
        assert not app.current_theme.dark
        await until(pilot, lambda: "25% busy" in shown(app))

    piloted(live.path, play, size=(120, 40))


def test_a_run_without_actors_says_so(live: Writer) -> None:
    async def play(pilot: Pilot[Any], app: WatchApp) -> None:
        await until(pilot, lambda: bool(app._notifications))
        assert [notification.message for notification in app._notifications] == [
            "The run has no actors, or has not logged any yet."
        ]
        assert not isinstance(app.screen, ActorsScreen)

    piloted(live.path, play)
