"""What a callback raises is raised at the end of the call, which it does not change."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.session.journal_hosts import Learning, World, copied, digest, rows_of, tree_of
from tests.toys import ToyAgent

from rekindle import EpisodeStatus, Experience, TrainingSession, Transitions
from rekindle.checkpoint.store import list_steps
from rekindle.errors import AgentError, Interrupted
from rekindle.events import EpisodeEnded, Evaluated, Event, MetricsFlushed, TrainingEnded, TrainingStarted, Updated
from rekindle.interrupt import Interrupter, ShouldStop

Host = Callable[[TrainingSession], None]


class PlotError(Exception):
    """What a callback raises."""


class Raising:
    """A callback that raises at every event of some classes."""

    def __init__(self, *kinds: type[Event]) -> None:
        self.kinds = kinds
        self.raised = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, self.kinds):
            self.raised += 1
            raise PlotError


def by_streams(session: TrainingSession) -> None:
    """Two streams, with every call that a stream has."""
    world = World()
    for call in range(40):
        stream, seen = session.stream(call % 2), world.look()
        with contextlib.suppress(PlotError):
            if call == 11:
                stream.close()
            elif call == 17:
                stream.abandon()
            elif not stream.is_open or call == 30:
                stream.begin(seen)
            else:
                stream.step(seen, 0.5 * call, terminated=world.ends(), extras={"call": float(call)})
        if call % 8 == 3:
            session.log("host", float(call))
        if call % 8 == 7:
            with contextlib.suppress(PlotError):
                session.maybe_save_best(float(call))


def by_calls(session: TrainingSession) -> None:
    world = World()
    observation = world.look()
    for call in range(24):
        action, after, is_over = session.act(observation), world.look(), world.ends()
        status = EpisodeStatus.TRUNCATED if is_over else EpisodeStatus.CONTINUING
        with contextlib.suppress(PlotError):
            session.observe(Experience(observation, action, float(call), after, status))
        if is_over:
            with contextlib.suppress(PlotError):
                session.on_episode(extras={"call": float(call)})
        elif call % 7 == 6:
            with contextlib.suppress(PlotError):
                session.on_episode_start()
            after = world.look()
        observation = after


def by_batches(session: TrainingSession) -> None:
    world = World()
    observations = world.look(3)
    for call in range(12):
        actions, after, is_over = session.act_many(observations), world.look(3), world.ends()
        statuses = np.array([is_over, is_over, 0], np.uint8)
        with contextlib.suppress(PlotError):
            session.observe_many(Transitions(observations, actions, np.arange(3.0), after, statuses))
        if is_over:
            with contextlib.suppress(PlotError):
                session.on_episodes({0: {"call": float(call)}, 1: {}})
        observations = after


def by_hand(session: TrainingSession) -> None:
    """A manual learner."""
    world, stream = World(), session.stream()
    stream.begin(world.look())
    for _ in range(20):
        with contextlib.suppress(PlotError):
            stream.step(world.look(), 1.0)
        with contextlib.suppress(PlotError):
            session.learn()


HOSTS: dict[str, tuple[str, Host]] = {
    "streams": ("inline", by_streams),
    "calls": ("inline", by_calls),
    "batches": ("inline", by_batches),
    "manual": ("manual", by_hand),
    "background": ("background", by_streams),
}
ALL = (EpisodeEnded, Updated, MetricsFlushed, Evaluated)


def killed(session: TrainingSession) -> None:
    session._parts.learner.fail(RuntimeError("killed"))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(RuntimeError), session:
        raise RuntimeError("killed")


@pytest.mark.parametrize("checkpoint_every", [None, 7])
@pytest.mark.parametrize("has_journal", [False, True], ids=["no journal", "journal"])
@pytest.mark.parametrize("name", HOSTS)
def test_a_callback_that_raises_changes_nothing(
    name: str, has_journal: bool, checkpoint_every: int | None, tmp_path: Path
) -> None:
    learner, play = HOSTS[name]

    def opened(root: Path, callback: Any) -> TrainingSession:
        options: dict[str, Any] = {"metrics_every": 5, "checkpoint_every": checkpoint_every, "signals": False}
        options |= {"learner": learner, "journal": has_journal, "callbacks": [callback]}
        session = TrainingSession.open("walk", Learning(), root=root, **options)
        session.every(9, lambda: session.log("hook", float(session.total_steps)))
        return session

    found: list[Any] = []
    raising = Raising(*ALL)
    for root, callback in ((tmp_path / "silent", lambda _: None), (tmp_path / "raising", raising)):
        session = opened(root, callback)
        play(session)
        with contextlib.suppress(PlotError):
            session.flush()
        assert session.run is not None
        found.append((digest(tree_of(session)), rows_of(session.run)))
        if has_journal:
            copied(root, tmp_path / "copy of" / root.name)
        killed(session)
    assert raising.raised > 10
    if learner == "inline":  # a background learner makes its updates when it can
        assert found[0] == found[1]
    if has_journal:
        again = opened(tmp_path / "copy of" / "raising", Raising(*ALL))
        assert again.resumed is not None
        assert again.resumed.grade == "exact"
        with contextlib.suppress(PlotError):
            again.flush()
        assert again.run is not None
        assert (digest(tree_of(again)), rows_of(again.run)) == found[1]
        killed(again)


def test_the_call_is_complete_when_it_raises(tmp_path: Path) -> None:
    called: list[int] = []
    raising = Raising(EpisodeEnded, MetricsFlushed)
    heard: list[Event] = []
    with TrainingSession.open(
        "walk", ToyAgent(), root=tmp_path, metrics_every=5, checkpoint_every=5, callbacks=[raising, heard.append]
    ) as session:
        session.every(5, lambda: called.append(session.total_steps))
        stream, world = session.stream(), World()
        stream.begin(world.look())
        for _ in range(4):
            stream.step(world.look(), 1.0)
        with pytest.raises(PlotError):
            stream.step(world.look(), 1.0)
        assert (stream.action is None, stream.length, called) == (False, 5, [5])
        stream.step(world.look(), 1.0)
        with pytest.raises(PlotError):
            stream.step(world.look(), 1.0, terminated=True)
        assert (stream.is_open, session.episodes) == (False, 1)
        raising.kinds = ()
    assert session.run is not None
    assert list_steps(session.run.path / "checkpoints") == [5, 7]
    assert [type(event) for event in heard if isinstance(event, EpisodeEnded | TrainingEnded)] == [
        EpisodeEnded,
        TrainingEnded,
    ]


def test_a_call_inside_a_callback_does_not_raise_what_another_callback_raised(tmp_path: Path) -> None:
    def nested(event: Event) -> None:
        if isinstance(event, EpisodeEnded):
            session.maybe_save_best(1.0)
            session.log("after", 1.0)

    session = TrainingSession.open("walk", ToyAgent(), root=tmp_path, callbacks=[Raising(EpisodeEnded), nested])
    with session:
        stream, world = session.stream(), World()
        stream.begin(world.look())
        with pytest.raises(PlotError):
            stream.step(world.look(), 1.0, terminated=True)
        assert "train/after" in session._parts.logbook.means()  # pyright: ignore[reportPrivateUsage]


def test_of_several_errors_of_callbacks_the_others_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def second(event: Event) -> None:
        if isinstance(event, EpisodeEnded):
            raise ValueError("the second")

    session = TrainingSession.open("walk", ToyAgent(), root=tmp_path, callbacks=[Raising(EpisodeEnded), second])
    with session:
        stream, world = session.stream(), World()
        stream.begin(world.look())
        with pytest.raises(PlotError):
            stream.step(world.look(), 1.0, terminated=True)
    assert "another callback raised ValueError: the second" in caplog.text


def test_an_error_of_the_agent_comes_before_that_of_a_callback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ToyAgent):
        def act(self, observations: Any, mode: Any, streams: Any) -> Any:
            if self.env_steps == 2:
                raise ZeroDivisionError("the agent broke")
            return super().act(observations, mode, streams)

    session = TrainingSession.open("walk", Broken(), root=tmp_path, callbacks=[Raising(Updated)])
    stream, world = session.stream(), World()
    stream.begin(world.look())
    with pytest.raises(PlotError):
        stream.step(world.look(), 1.0)
    with pytest.raises(ZeroDivisionError), session:
        stream.step(world.look(), 1.0)
    assert "a callback raised PlotError" in caplog.text


def test_a_callback_that_always_raises_does_not_cost_the_last_checkpoint(tmp_path: Path) -> None:
    session = TrainingSession.open("walk", ToyAgent(), root=tmp_path, callbacks=[Raising(EpisodeEnded)])
    observations, world = np.zeros((2, 3), np.float32), World()
    for call in range(3):
        actions, after = session.act_many(observations), world.look(2)
        ended = np.array([call == 2] * 2, np.uint8)
        session.observe_many(Transitions(observations, actions, np.ones(2), after, ended))
        observations = after
    with pytest.raises(PlotError):
        session.close()  # which announces the ends
    assert session.run is not None
    assert list_steps(session.run.path / "checkpoints") == [6]
    assert session.episodes == 2


def test_updates_from_data_are_counted_although_a_callback_raises(tmp_path: Path) -> None:
    class FromData(ToyAgent):
        is_offline = True

        def learn_from(self, *_: Any, **__: Any) -> None:
            """It has no data."""

        def updates_due(self) -> int:
            return 0

    session = TrainingSession.open(
        "data", FromData(), root=tmp_path, metrics_every=10, checkpoint_every=None, callbacks=[Raising(Updated)]
    )
    with pytest.raises(PlotError), session:
        session.learn(updates=100)
    assert session.run is not None
    assert session.total_steps == session.agent.updates == 10
    assert list_steps(session.run.path / "checkpoints") == [10]


@pytest.mark.parametrize("has_journal", [False, True], ids=["no journal", "journal"])
def test_episodes_that_a_stop_left_owed_are_counted_although_a_callback_raises(
    has_journal: bool, tmp_path: Path
) -> None:
    class Stoppable(Learning):
        def update_until(self, n: int, should_stop: ShouldStop) -> Any:
            if should_stop():
                raise Interrupted("a stop")
            return self.update(n)

    def opened(interrupter: Interrupter, *callbacks: Any) -> TrainingSession:
        return TrainingSession.open(
            "walk",
            Stoppable(),
            root=tmp_path,
            interrupter=interrupter,
            journal=has_journal,
            callbacks=callbacks,
        )

    interrupter, observations, world = Interrupter(), np.zeros((3, 3), np.float32), World()
    with opened(interrupter) as session:
        for call in range(2):
            actions, after = session.act_many(observations), world.look(3)
            if call:
                interrupter.stop("now")
            session.observe_many(Transitions(observations, actions, np.ones(3), after, np.array([call] * 3, np.uint8)))
            if call:
                session.on_episodes({0: {}, 1: {}, 2: {}})
            observations = after
        assert session.episodes == 0
    with opened(Interrupter(), Raising(EpisodeEnded)) as again:
        with pytest.raises(PlotError):
            again.act_many(observations)
        assert again.episodes == 3
    assert again.run is not None
    assert len(again.run.reader.train_episodes()) == 3


def test_a_resume_is_graded_although_a_callback_raises(tmp_path: Path) -> None:
    def opened(*callbacks: Any) -> TrainingSession:
        return TrainingSession.open("walk", ToyAgent(), root=tmp_path, callbacks=callbacks)

    world = World()
    with opened() as session:
        session.stream().begin(world.look())
        session.stream().step(world.look(), 1.0)
    with opened(Raising(EpisodeEnded)) as again, pytest.raises(PlotError):
        again.stream().begin(world.look())
    assert again.run is not None
    assert not again.run.metadata.exact


def test_a_function_that_raises_at_the_end_of_a_replay_is_called_again(tmp_path: Path) -> None:
    """A kill came while it was called at step 5."""

    def opened(root: Path, function: Callable[[], object]) -> TrainingSession:
        session = TrainingSession.open(
            "walk", Learning(), root=root, journal=True, checkpoint_every=None, signals=False
        )
        session.every(5, function)
        return session

    called: list[int] = []

    def fail_once() -> None:
        called.append(again.total_steps)
        if len(called) == 1:
            raise PlotError

    session, world = opened(tmp_path / "whole", lambda: copied(tmp_path / "whole", tmp_path / "killed")), World()
    session.stream().begin(world.look())
    for _ in range(5):
        session.stream().step(world.look(), 1.0)
    killed(session)
    again = opened(tmp_path / "killed", fail_once)
    with pytest.raises(PlotError):
        again.act(world.look())
    assert (called, again.total_steps) == ([5], 5)
    again.stream().resume()
    again.stream().step(world.look(), 1.0)
    assert (called, again.total_steps) == ([5, 5], 6)
    again.close()
    assert again.run is not None
    assert again.run.reader.status == "stopped"


def test_a_background_agent_that_fails_while_the_host_does_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Learning):
        def update(self, n: int) -> Any:
            raise ZeroDivisionError("the agent broke")

    session = TrainingSession.open("walk", Broken(), root=tmp_path, learner="background", signals=False)
    stream, world = session.stream(), World()
    stream.begin(world.look())
    with contextlib.suppress(AgentError):
        stream.step(world.look(), 1.0)
    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="the host"), session:
        raise ValueError("the host")
    assert "the agent broke" in caplog.text


def test_a_callback_that_raises_when_the_training_starts_or_ends(tmp_path: Path) -> None:
    with pytest.raises(PlotError):
        TrainingSession.open("walk", ToyAgent(), root=tmp_path, callbacks=[Raising(TrainingStarted)])
    session = TrainingSession.open("walk", ToyAgent(), root=tmp_path, callbacks=[Raising(TrainingEnded)])
    session.act(np.zeros(3, np.float32))
    with pytest.raises(PlotError):
        session.close()
    assert session.run is not None
    assert session.run.reader.status == "stopped"
