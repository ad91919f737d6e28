"""What a callback raises beside another error, an interrupt among them, and at the end of a session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.session.journal_hosts import Learning, World, copied, digest, rows_of, tree_of
from tests.toys import ToyAgent

from rekindle import EpisodeStatus, Experience, TrainingSession
from rekindle.agent import State
from rekindle.errors import AgentError, InputError
from rekindle.events import EpisodeEnded, Evaluated, Event, MetricsFlushed, TrainingEnded, Updated


class PlotError(Exception):
    """What a callback raises."""


def raising(kind: type[Event], error: type[BaseException] = PlotError) -> Callable[[Event], None]:
    """A callback that raises at every event of a class."""

    def raise_at(event: Event) -> None:
        if isinstance(event, kind):
            raise error

    return raise_at


def opened(root: Path, *callbacks: Callable[[Event], None], agent: Any = None, **options: Any) -> TrainingSession:
    options = {"metrics_every": 3, "checkpoint_every": None, "signals": False, **options}
    return TrainingSession.open("walk", agent or Learning(), root=root, callbacks=callbacks, **options)


def killed(session: TrainingSession) -> None:
    session._parts.learner.fail(RuntimeError("killed"))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(RuntimeError), session:
        raise RuntimeError("killed")


class TestAnInterrupt:
    def test_it_comes_before_an_error_of_another_callback(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        callbacks = [raising(MetricsFlushed), raising(MetricsFlushed, KeyboardInterrupt), raising(MetricsFlushed)]
        session, world = opened(tmp_path, *callbacks), World()
        session.stream().begin(world.look())
        session.stream().step(world.look(), 1.0)
        session.stream().step(world.look(), 1.0)
        with pytest.raises(KeyboardInterrupt), session:
            session.stream().step(world.look(), 1.0)
        assert caplog.text.count("another callback raised PlotError") == 2
        assert session.run is not None
        assert (session.total_steps, session.run.metadata.status) == (3, "stopped")

    @pytest.mark.parametrize("has_journal", [False, True], ids=["no journal", "journal"])
    def test_no_function_begins_after_it_and_the_next_call_calls_it(self, has_journal: bool, tmp_path: Path) -> None:
        called: list[int] = []
        interrupts = [KeyboardInterrupt()]

        def interrupted(event: Event) -> None:
            if isinstance(event, MetricsFlushed) and interrupts:
                raise interrupts.pop()

        session, world = opened(tmp_path / "whole", interrupted, journal=has_journal), World()
        session.every(3, lambda: called.append(session.total_steps))
        session.stream().begin(world.look())
        session.stream().step(world.look(), 1.0)
        session.stream().step(world.look(), 1.0)
        with pytest.raises(KeyboardInterrupt):
            session.stream().step(world.look(), 1.0)
        assert (called, session.stream().length, session.stream().action is None) == ([], 3, False)
        for _ in range(4):
            session.stream().step(world.look(), 1.0)
        assert called == [3, 6]
        session.flush()
        expected = digest(tree_of(session))
        if has_journal:
            copied(tmp_path / "whole", tmp_path / "copy")
        killed(session)
        if has_journal:
            again = opened(tmp_path / "copy", interrupted, journal=True)
            again.every(3, lambda: called.append(session.total_steps))
            again.flush()
            assert digest(tree_of(again)) == expected
            assert again.resumed is not None
            assert (again.resumed.grade, called) == ("exact", [3, 6])
            killed(again)

    def test_it_comes_before_an_error_of_the_agent(self, tmp_path: Path) -> None:
        class Broken(ToyAgent):
            def act(self, observations: Any, mode: Any, streams: Any) -> Any:
                if self.env_steps == 1:
                    raise ZeroDivisionError("the agent broke")
                return super().act(observations, mode, streams)

        session, world = opened(tmp_path, raising(Updated, KeyboardInterrupt), agent=Broken()), World()
        session.stream().begin(world.look())
        with pytest.raises(KeyboardInterrupt) as told, session:
            session.stream().step(world.look(), 1.0)
        assert isinstance(told.value.__context__, ZeroDivisionError)
        assert isinstance(session._parts.direct.failure, ZeroDivisionError)  # pyright: ignore[reportPrivateUsage]

    def test_it_interrupts_a_replay_which_the_next_process_makes(self, tmp_path: Path) -> None:
        class Ends:
            """A callback with a state, which is called in a replay too."""

            def __init__(self, *, interrupted_at: int = 0) -> None:
                self.count, self._interrupted_at = 0, interrupted_at

            def __call__(self, event: Event) -> None:
                if isinstance(event, EpisodeEnded):
                    if self.count + 1 == self._interrupted_at:
                        raise KeyboardInterrupt
                    self.count += 1

            def state(self) -> State:
                return {"count": self.count}

            def load_state(self, state: State) -> None:
                self.count = state["count"]

        session, world = opened(tmp_path / "whole", Ends(), journal=True), World()
        for _ in range(5):
            session.stream().begin(world.look())
            session.stream().step(world.look(), 1.0, terminated=True)
        session.flush()
        expected = digest(tree_of(session))
        copied(tmp_path / "whole", tmp_path / "copy")
        killed(session)
        with pytest.raises(KeyboardInterrupt), opened(tmp_path / "copy", Ends(interrupted_at=3), journal=True) as again:
            again.stream().begin(world.look())
        ends = Ends()
        again = opened(tmp_path / "copy", ends, journal=True)
        again.flush()
        assert again.resumed is not None
        assert (again.resumed.grade, ends.count) == ("exact", 5)
        assert digest(tree_of(again)) == expected
        killed(again)


def test_the_end_of_an_episode_can_be_announced_before_the_error_is_raised(tmp_path: Path) -> None:
    session = opened(tmp_path, raising(Updated), agent=ToyAgent())
    observation, ended = np.zeros(3, np.float32), EpisodeStatus.TERMINATED
    action = session.act(observation)
    session.observe(Experience(observation, action, 1.0, observation, ended))
    with pytest.raises(PlotError):
        session.on_episode(extras={"mine": 1.0})
    session.close()
    assert session.run is not None
    assert session.run.metadata.exact
    assert [row["extras"] for row in session.run.reader.train_episodes()] == [{"mine": 1.0}]


def test_a_refused_call_of_a_callback_does_not_count_as_the_record_of_the_call_around_it(tmp_path: Path) -> None:
    def calls(event: Event) -> None:
        if isinstance(event, Updated) and event.stamp.env_steps % 2:
            with contextlib.suppress(InputError):
                session.on_episode()  # none has ended
            session.log("mine", float(event.stamp.env_steps))

    session, world = opened(tmp_path / "whole", calls, journal=True), World()
    session.stream().begin(world.look())
    for _ in range(8):
        session.stream().step(world.look(), 1.0)
    session.flush()
    assert session.run is not None
    expected = digest(tree_of(session)), rows_of(session.run)
    copied(tmp_path / "whole", tmp_path / "copy")
    killed(session)
    session = opened(tmp_path / "copy", calls, journal=True)
    session.flush()
    assert session.resumed is not None
    assert session.resumed.grade == "exact"
    assert session.run is not None
    assert (digest(tree_of(session)), rows_of(session.run)) == expected
    killed(session)


class TestAtTheEnd:
    def test_the_other_functions_are_called_and_the_run_is_finished(self, tmp_path: Path) -> None:
        called: list[str] = []
        session, world = opened(tmp_path, raising(Evaluated), max_steps=1), World()
        session.at_end(lambda: called.append(f"best: {session.maybe_save_best(1.0)}"))
        session.at_end(lambda: called.append("last"))
        session.stream().begin(world.look())
        session.stream().step(world.look(), 1.0)
        with pytest.raises(PlotError):
            session.close()
        assert called == ["best: True", "last"]
        assert session.run is not None
        assert session.run.metadata.status == "finished"

    def test_it_is_logged_beside_an_error_of_the_session(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail() -> None:
            raise ValueError("of the host")

        session = opened(tmp_path, raising(TrainingEnded), max_steps=0)
        session.at_end(fail)
        with pytest.raises(ValueError, match="of the host"):
            session.close()
        assert "a callback raised PlotError" in caplog.text

    def test_it_is_logged_beside_an_error_of_the_agent(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        class Broken(ToyAgent):
            def update(self, n: int) -> Any:
                raise ZeroDivisionError("the agent broke")

        session, world = opened(tmp_path, raising(TrainingEnded), agent=Broken()), World()
        session.stream().begin(world.look())
        with pytest.raises((ZeroDivisionError, AgentError)), session:
            session.stream().step(world.look(), 1.0)
        assert "while closing after ZeroDivisionError: the agent broke: PlotError" in caplog.text
