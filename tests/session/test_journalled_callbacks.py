"""The calls that callbacks make are replayed from the input journal like those of the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.session.journal_hosts import OPTIONS, Learning, copied, digest, rows_of, tree_of
from tests.session.test_input_journal import abandoned

from rekindle import EpisodeStatus, Experience, TrainingSession
from rekindle.agent import State
from rekindle.events import EpisodeEnded, Evaluated, Event, MetricsFlushed, Updated
from rekindle.experience import Array

Act = Callable[[TrainingSession, Any], object]


class Calling:
    """A callback without a state, which calls the session when it hears of one kind of event."""

    def __init__(self, kind: type[Event], act: Act) -> None:
        self.session: TrainingSession | None = None
        self._kind, self._act = kind, act

    def __call__(self, event: Event) -> None:
        if self.session is not None and isinstance(event, self._kind):
            self._act(self.session, event)


class CountingCalls(Calling):
    """The same with a state: a replay calls it again."""

    heard = 0

    def __call__(self, event: Event) -> None:
        self.heard += isinstance(event, self._kind)
        super().__call__(event)

    def state(self) -> State:
        return {"heard": self.heard}

    def load_state(self, state: State) -> None:
        self.heard = state["heard"]


def opened(root: Path, callbacks: list[Calling]) -> TrainingSession:
    session = TrainingSession.open("world/v1", Learning(), root=root, callbacks=callbacks, **OPTIONS)
    for callback in callbacks:
        callback.session = session
    return session


def at(number: int) -> Array:
    return np.full(3, number, np.float32)


def by_streams(session: TrainingSession) -> None:
    stream = session.stream("host")
    stream.begin(at(0))
    for step in range(17):
        if stream.step(at(step + 1), 1.0, truncated=step % 3 == 2) is None:
            stream.begin(at(0))


def without_actions(session: TrainingSession) -> None:
    """Actions that the session did not choose, on a new stream every second step."""
    for step in range(6):
        session.observe(Experience(at(step), 1, 0.5, at(step + 1), EpisodeStatus.CONTINUING), stream=step // 2)


def in_batches(session: TrainingSession) -> None:
    by_streams(session)
    session.act_many(np.ones((2, 3), np.float32), streams=["c", "d"])


def logs(session: TrainingSession, event: Any) -> None:
    session.log("heard", float(event.stamp.env_steps))


def scores(session: TrainingSession, event: Any) -> None:
    session.maybe_save_best(float(event.stamp.env_steps))


def adds_a_stream(session: TrainingSession, event: Any) -> None:
    session.stream(f"new {event.stamp.episodes}")


def acts_for_a_new_stream(session: TrainingSession, event: Any) -> None:
    session.act(at(event.stamp.episodes), stream=f"new {event.stamp.episodes}")


def swaps_streams(session: TrainingSession, event: Any) -> None:
    """The row of the stream that is removed is that of the next new one."""
    if f"new {event.stamp.episodes - 1}" in session._parts.streams.table.slots:  # pyright: ignore[reportPrivateUsage]
        session.stream(f"new {event.stamp.episodes - 1}").close()
    session.act(at(event.stamp.episodes), stream=f"new {event.stamp.episodes}")


def abandons_another(session: TrainingSession, event: Any) -> None:
    """An event inside the event: the end of an episode of the stream `other`."""
    if event.stream == "host":
        session.stream("other").abandon()


def plays_for_another(session: TrainingSession) -> None:
    host, other = session.stream("host"), session.stream("other")
    for episode in range(8):
        other.begin(at(episode))
        other.step(at(episode + 1), 0.5)
        host.begin(at(episode))
        host.step(at(episode + 1), 1.0, truncated=True)


HOSTS = (by_streams, without_actions, in_batches, plays_for_another)
CALLBACKS: dict[str, Callable[[], list[Calling]]] = {
    "log at updates": lambda: [Calling(Updated, logs)],
    "a new stream": lambda: [Calling(EpisodeEnded, adds_a_stream)],
    "a new stream, with a state": lambda: [CountingCalls(EpisodeEnded, adds_a_stream)],
    "a new episode": lambda: [Calling(EpisodeEnded, acts_for_a_new_stream), Calling(Updated, logs)],
    "a stream for another": lambda: [Calling(EpisodeEnded, swaps_streams)],
    "an event in an event": lambda: [Calling(EpisodeEnded, abandons_another), Calling(EpisodeEnded, logs)],
    "an event in an event, with a state": lambda: [
        CountingCalls(EpisodeEnded, logs),
        Calling(EpisodeEnded, abandons_another),
    ],
    "events of calls": lambda: [CountingCalls(Evaluated, logs), Calling(MetricsFlushed, scores)],
    "events of calls, early": lambda: [CountingCalls(Evaluated, logs), Calling(EpisodeEnded, scores)],
    "events of calls, of each": lambda: [
        Calling(EpisodeEnded, scores),
        CountingCalls(Evaluated, logs),
        Calling(EpisodeEnded, logs),
    ],
}


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
@pytest.mark.parametrize("name", CALLBACKS)
def test_calls_of_callbacks_are_replayed(name: str, host: Callable[[TrainingSession], None], tmp_path: Path) -> None:
    session = opened(tmp_path / "first", CALLBACKS[name]())
    host(session)
    session.flush()
    root, expected = copied(tmp_path / "first", tmp_path / "again"), tree_of(session)
    assert session.run is not None
    rows = rows_of(session.run)
    abandoned(session)

    again = opened(root, CALLBACKS[name]())
    assert again.resumed is not None
    assert again.resumed.grade == "exact"
    again.flush()
    assert digest(tree_of(again)) == digest(expected)
    assert again.run is not None
    assert rows_of(again.run) == rows
    abandoned(again)


class Moving(Calling):
    """Steps a stream of its own at the end of each episode of the host, and counts the ends that it heard of."""

    def __init__(self) -> None:
        super().__init__(EpisodeEnded, moves)
        self.heard = 0

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        self.heard += isinstance(event, EpisodeEnded)

    def state(self) -> State:
        return {"heard": self.heard}

    def load_state(self, state: State) -> None:
        self.heard = state["heard"]


def moves(session: TrainingSession, event: Any) -> None:
    stream = session.stream("of the callback")
    if stream.is_open:
        stream.step(at(event.stamp.episodes), 0.0)
    else:
        stream.begin(at(event.stamp.episodes))


def test_a_checkpoint_that_a_call_of_a_callback_makes_due_waits_for_the_end_of_the_outer_call(tmp_path: Path) -> None:
    moving = Moving()
    session = TrainingSession.open(
        "world/v1", Learning(), root=tmp_path, callbacks=[moving], checkpoint_every=4, signals=False
    )
    moving.session, stream = session, session.stream("host")
    for number in range(2):
        stream.begin(at(0))
        stream.step(at(1), 1.0, truncated=number == 0)
    stream.step(at(2), 1.0, truncated=True)  # the step of the callback is the fourth
    assert session.total_steps == 4
    session.flush()
    expected = tree_of(session)
    abandoned(session)

    again = Moving()
    resumed = TrainingSession.open(
        "world/v1", Learning(), root=tmp_path, callbacks=[again], checkpoint_every=4, signals=False
    )
    assert resumed.resumed is not None
    assert (resumed.resumed.step, again.heard) == (4, moving.heard)
    assert digest(tree_of(resumed)) == digest(expected)
    abandoned(resumed)


def test_a_call_of_a_callback_notices_no_updates_that_were_made_during_the_outer_call(tmp_path: Path) -> None:
    """The record of the outer call would say that they were made before it."""
    agent = Learning()
    is_live = True

    def adds_and_closes(session: TrainingSession, event: Any) -> None:
        deadline = time.monotonic() + 60
        while is_live and agent.updates < event.stamp.env_steps and time.monotonic() < deadline:
            time.sleep(0.001)  # until the learner has made the update of the outer call
        session.stream("of the callback").close()

    def begun(root: Path, learner: Learning) -> TrainingSession:
        callback = Calling(EpisodeEnded, adds_and_closes)
        session = TrainingSession.open(
            "world/v1", learner, root=root, callbacks=[callback], journal=True, learner="background", signals=False
        )
        callback.session = session
        return session

    session = begun(tmp_path / "first", agent)
    stream = session.stream("host")
    for number in range(5):
        stream.begin(at(number))
        stream.step(at(number + 1), 1.0, truncated=True)
    session.flush()
    root, expected = copied(tmp_path / "first", tmp_path / "again"), digest(tree_of(session))
    abandoned(session)
    is_live = False
    again = begun(root, Learning())
    assert again.total_steps == 5
    again.flush()
    assert digest(tree_of(again)) == expected
    abandoned(again)


@pytest.mark.parametrize("event", [EpisodeEnded, MetricsFlushed])
@pytest.mark.parametrize("kind", [Calling, CountingCalls])
@pytest.mark.parametrize("late", [False, True])
def test_actions_of_a_background_learner_that_callbacks_ask_for_are_replayed(
    kind: type[Calling], event: type[Event], late: bool, tmp_path: Path
) -> None:
    def explores(session: TrainingSession, _: Any) -> None:
        name = f"new {session.total_steps}"
        session.act(at(session.total_steps), stream=name)

    def begun(root: Path) -> TrainingSession:
        callback = kind(event, explores)
        options = {**OPTIONS, "checkpoint_every": 1_000, "metrics_every": 3, "learner": "background"}
        session = TrainingSession.open("world/v1", Learning(), root=root, callbacks=[callback], **options)
        callback.session = session
        return session

    session = begun(tmp_path / "first")
    stream = session.stream("host")
    for step in range(9):  # the last call is a step in which a callback acts, or a later one
        action = stream.begin(at(step)) if not stream.is_open else None
        assert action is not None or stream.is_open
        stream.step(at(step + 1), 1.0, truncated=step % 3 == 2)
    if late:
        stream.begin(at(0))
    session.flush()
    root, expected = copied(tmp_path / "first", tmp_path / "again"), digest(tree_of(session))
    abandoned(session)

    again = begun(root)
    assert again.resumed is not None
    assert again.resumed.grade == "exact"
    again.flush()
    assert digest(tree_of(again)) == expected
    abandoned(again)
