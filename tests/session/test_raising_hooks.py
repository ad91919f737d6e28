"""What an exception leaves due is done before the next call, in the same session as after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.session.journal_hosts import Learning, World, copied, digest, rows_of, tree_of
from tests.toys import Corridor, ToyAgent

from rekindle import TrainingSession, verify
from rekindle.errors import Interrupted
from rekindle.session.session import SessionOptions
from rekindle.training.replaying import replay_run

STEPS = 20


class PlotError(Exception):
    """What the function or the callback of a host raises."""


class Failing:
    """Functions of `every`, the first of which raises when it is called for the second time."""

    def __init__(self, session: TrainingSession, called: list[tuple[str, int]], *, fails_at: int = 5) -> None:
        self._session, self._called, self._fails_at = session, called, fails_at
        self.is_failing = True
        session.every(5, self.plot)
        session.every(5, lambda: self._note("after"))

    def plot(self) -> None:
        if self.is_failing and self._session.total_steps >= self._fails_at:
            self.is_failing = False
            raise PlotError
        self._note("plot")

    def _note(self, name: str) -> None:
        self._called.append((name, self._session.total_steps))
        self._session.log(name, self._session.total_steps)


def each_at(*steps: int) -> list[tuple[str, int]]:
    return [(name, step) for step in steps for name in ("plot", "after")]


@pytest.mark.parametrize("is_closed", [False, True], ids=["the same session", "a resume"])
def test_a_function_that_raises_is_called_again_before_the_next_call(is_closed: bool, tmp_path: Path) -> None:
    called: list[tuple[str, int]] = []
    env = Corridor(limit=8)

    def opened() -> TrainingSession:
        return TrainingSession.open("walk", ToyAgent(), root=tmp_path, max_steps=STEPS, metrics_every=5)

    session = opened()
    failing = Failing(session, called)
    stream = session.stream()
    action = stream.begin(stream.reset(env))
    while not session.is_done:
        observation, reward, terminated, truncated, _ = env.step(action)
        try:
            action = stream.step(observation, reward, terminated, truncated)
        except PlotError:
            session.checkpoint(wait=True)
            assert called == []
            if is_closed:
                session.close()
                session = opened()
                Failing(session, called).is_failing = False
                stream = session.stream()
                assert stream.begin(stream.reset(env)) == stream.action
            action = stream.action
        if action is None and not session.is_done:
            action = stream.begin(stream.reset(env))
    session.close()
    assert not failing.is_failing
    assert called == each_at(5, 10, 15, 20)


def test_a_session_that_goes_on_after_an_exception_equals_one_that_is_resumed(tmp_path: Path) -> None:
    def train(root: Path, *, resumes: bool) -> list[tuple[str, int]]:
        called: list[tuple[str, int]] = []
        options: SessionOptions = {"max_steps": STEPS, "metrics_every": 3, "checkpoint_every": None}
        session = TrainingSession.open("walk", ToyAgent(), root=root, **options)
        Failing(session, called)
        world, observation = World(), np.zeros(3, np.float32)
        session.stream().begin(observation)
        while not session.is_done:
            try:
                session.stream().step(world.look(), 1.0)
            except PlotError:
                session.checkpoint(wait=True)
                if resumes:
                    session.close()
                    session = TrainingSession.open("walk", ToyAgent(), root=root, **options)
                    Failing(session, called).is_failing = False
                    session.stream().resume()
        session.close()
        return called

    resumed, going_on = train(tmp_path / "resumed", resumes=True), train(tmp_path / "going on", resumes=False)
    assert resumed == going_on == each_at(5, 10, 15, 20)
    digests = [verify(tmp_path / name / "walk").digests for name in ("resumed", "going on")]
    assert digests[0] == digests[1]


def test_a_function_that_raises_again_lets_no_call_through(tmp_path: Path) -> None:
    called: list[tuple[str, int]] = []
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, max_steps=STEPS) as session:
        failing = Failing(session, called)
        stream, world = session.stream(), World()
        stream.begin(world.look())
        for _ in range(4):
            stream.step(world.look(), 1.0)
        outcome = world.look()
        for _ in range(3):
            failing.is_failing = True
            with pytest.raises(PlotError):
                stream.step(outcome, 1.0)
            assert session.total_steps == 5
        failing.is_failing = False
        stream.step(outcome, 1.0)
    assert called == each_at(5)
    assert session.total_steps == 6


def test_what_an_exception_inside_a_group_of_calls_leaves_due_is_done_before_the_next_call(tmp_path: Path) -> None:
    called: list[tuple[str, int]] = []
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, max_steps=STEPS) as session:
        Failing(session, called).is_failing = False
        streams, world = [session.stream(0), session.stream(1)], World()
        for stream in streams:
            stream.begin(world.look())

        def play() -> None:
            for _ in range(3):
                for stream in streams:
                    stream.step(world.look(), 1.0)
            raise PlotError

        with pytest.raises(PlotError), session.together:
            play()
        assert called == []
        streams[0].step(world.look(), 1.0)
    assert called == each_at(6)


def test_steps_after_a_stop_that_interrupted_a_function_are_not_exact(tmp_path: Path) -> None:
    """The function is due at step 5, and is called at step 6 after a resume."""

    def interrupted() -> None:
        raise Interrupted("a stop")

    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, max_steps=STEPS) as session:
        session.every(5, interrupted)
        stream, world = session.stream(), World()
        stream.begin(world.look())
        for _ in range(5):
            stream.step(world.look(), 1.0)
        session.stop("now")
        assert session.run is not None
        stream.step(world.look(), 1.0)
    assert not session.run.metadata.exact
    assert any("step 5" in str(warning) for warning in session.run.reader.warnings())


class TestWithAJournal:
    def opened(self, root: Path, called: list[tuple[str, int]], learner: Any, **options: Any) -> TrainingSession:
        self.failing: Failing
        session = TrainingSession.open(
            "walk", Learning(), root=root, journal=True, metrics_every=3, signals=False, learner=learner, **options
        )
        self.failing = Failing(session, called, fails_at=10)
        return session

    def by_streams(self, session: TrainingSession, world: World, calls: int) -> Iterator[bool]:
        """Two streams; whether the call raised."""
        streams = [session.stream("a"), session.stream("b")]
        for stream in streams:
            stream.begin(world.look())
        for call in range(calls):
            try:
                streams[call % 2].step(world.look(), float(call))
            except PlotError:
                yield True
            else:
                yield False

    def killed(self, session: TrainingSession) -> None:
        session._parts.learner.fail(RuntimeError("killed"))  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(RuntimeError), session:
            raise RuntimeError("killed")

    @pytest.mark.parametrize("learner", ["inline", "background"])
    @pytest.mark.parametrize("checkpoint_every", [None, 5])
    def test_a_resume_after_any_call_stands_where_the_session_stood(
        self, learner: str, checkpoint_every: int | None, tmp_path: Path
    ) -> None:
        stood: list[tuple[Path, str, dict[str, Any]]] = []
        called: list[tuple[str, int]] = []
        raised: list[int] = []
        session = self.opened(tmp_path / "whole", called, learner, checkpoint_every=checkpoint_every)
        assert session.run is not None
        for call, has_raised in enumerate(self.by_streams(session, World(), 14)):
            if has_raised:
                raised.append(session.total_steps)
            if call >= 8:
                session.flush()
                copy = copied(tmp_path / "whole", tmp_path / f"after {call}")
                stood.append((copy, digest(tree_of(session)), rows_of(session.run)))
        self.killed(session)
        assert raised == [10]
        assert called == each_at(5, 10)
        for root, expected, rows in stood:
            called.clear()
            again = self.opened(root, called, learner, checkpoint_every=checkpoint_every)
            self.failing.is_failing = False
            assert again.resumed is not None
            assert again.resumed.grade == "exact"
            again.flush()
            assert digest(tree_of(again)) == expected
            assert again.run is not None
            assert rows_of(again.run) == rows
            steps = again.total_steps
            again.stream("a").step(World().look(), 0.0)
            assert called == (each_at(10) if steps in (9, 10) else each_at(15) if steps == 14 else [])
            self.killed(again)

    def test_a_kill_while_the_function_is_called_again_calls_it_once_more(self, tmp_path: Path) -> None:
        called: list[tuple[str, int]] = []
        session = self.opened(tmp_path / "whole", called, "inline", checkpoint_every=None)
        session.every(5, lambda: None if session.total_steps < 10 else copied(tmp_path / "whole", tmp_path / "killed"))
        for _ in self.by_streams(session, World(), 12):
            pass
        self.killed(session)
        called.clear()
        again = self.opened(tmp_path / "killed", called, "inline", checkpoint_every=None)
        again.every(5, lambda: called.append(("last", again.total_steps)))
        self.failing.is_failing = False
        assert again.total_steps == 10
        assert called == [("last", 10)]
        self.killed(again)

    def test_the_whole_run_is_replayed(self, tmp_path: Path) -> None:
        session = self.opened(tmp_path, [], "inline", checkpoint_every=4, journal_keep="all", max_steps=STEPS)
        with session:
            assert sum(self.by_streams(session, World(), STEPS)) == 1
        assert session.run is not None
        replayed = replay_run(session.run.path, agent=Learning())
        assert replayed.ok

    def test_a_journal_in_which_the_function_was_called_after_the_next_call_is_replayed_so(
        self, tmp_path: Path
    ) -> None:
        """As the versions wrote it that called it again at the end of the next call."""
        called: list[tuple[str, int]] = []
        session = self.opened(tmp_path, called, "inline", checkpoint_every=None)
        assert session.run is not None
        for has_raised in self.by_streams(session, World(), 13):
            if has_raised:
                session._flow.owed.is_behind = False  # pyright: ignore[reportPrivateUsage]
        assert called == each_at(5, 11)
        session.flush()
        expected, rows = digest(tree_of(session)), rows_of(session.run)
        self.killed(session)
        again = self.opened(tmp_path, called, "inline", checkpoint_every=None)
        assert again.resumed is not None
        assert again.resumed.grade == "exact"
        again.flush()
        assert again.run is not None
        assert digest(tree_of(again)) == expected
        assert rows_of(again.run) == rows
        self.killed(again)
        assert called == each_at(5, 11)
