"""An agent that failed stays failed: nothing that it holds is ever saved, and what is sound always is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import PolicyAgent, ToyAgent, line, move

from rekindle import TrainingSession, verify
from rekindle.agent import Metrics
from rekindle.checkpoint.store import list_steps
from rekindle.errors import AgentError, InputError
from rekindle.events import EpisodeEnded, Event, MetricsFlushed, Updated
from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.run import find_run


class Failing(PolicyAgent):
    """Is half-way through something when it raises, once."""

    def __init__(self, method: str, *, after: int = 5) -> None:
        super().__init__()
        self._method, self._after, self._has_failed = method, after, False

    def _fail(self, method: str) -> None:
        if method == self._method and self.env_steps >= self._after and not self._has_failed:
            self._has_failed = True
            self._weights[:] = 1e9
            raise RuntimeError("out of memory")

    def act(self, observations: Observations, mode: ActMode, streams: Array) -> Array:
        self._fail("act")
        return super().act(observations, mode, streams)

    def observe(self, transitions: Transitions, streams: Array) -> None:
        self._fail("observe")
        super().observe(transitions, streams)

    def update(self, n: int) -> Metrics:
        self._fail("update")
        return super().update(n)

    def cut(self, streams: Array) -> None:
        self._fail("cut")
        super().cut(streams)

    def on_episode_start(self) -> None:
        self._fail("on_episode_start")
        super().on_episode_start()


def episodes_of_two_steps(session: TrainingSession) -> None:
    stream = session.stream()
    while not session.is_done:
        stream.begin(line(0))
        stream.step(line(1), 1.0)
        stream.step(line(2), 1.0, terminated=True)


def go_on_whatever_happens(session: TrainingSession) -> list[Exception]:
    """A host that catches everything, and never gives up."""
    raised: list[Exception] = []
    stream = session.stream()
    for number in range(30):
        for call in (
            lambda: stream.begin(line(0)) if not stream.is_open else None,
            lambda number=number: stream.step(line(number), 1.0, terminated=number % 4 == 3),
            lambda number=number: stream.abandon() if number % 7 == 6 else None,
        ):
            try:
                call()
            except Exception as error:
                raised.append(error)
    return raised


@pytest.mark.parametrize("method", ["act", "observe", "update", "cut", "on_episode_start"])
def test_an_agent_that_failed_once_is_never_saved_again(method: str, tmp_path: Path) -> None:
    agent = Failing(method)
    with TrainingSession.open("walk", agent, root=tmp_path, checkpoint_every=2, max_steps=50) as session:
        raised = go_on_whatever_happens(session)
        assert isinstance(raised[0], RuntimeError)
        assert all(isinstance(error, AgentError | InputError) for error in raised[1:])
        assert any("the agent failed in an earlier call (RuntimeError: out of memory)" in str(e) for e in raised[1:])
        with pytest.raises(AgentError, match="failed in an earlier call"):
            session.checkpoint()
    assert session.run is not None
    assert session.run.reader.status == "failed"
    assert max(list_steps(session.run.path / "checkpoints")) <= 6
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path) as session:
        assert abs(session.agent.state()["weights"]["all"]).max() < 1e6


def test_a_loss_that_was_not_finite_is_not_forgotten(tmp_path: Path) -> None:
    class Diverging(ToyAgent):
        def update(self, n: int) -> Metrics:
            super().update(n)
            if self.updates == 5:
                self._weights[:] = np.nan
                return {"loss": float("nan")}
            return {"loss": 1.0}

    raised: list[AgentError] = []
    with TrainingSession.open("walk", Diverging(), root=tmp_path, checkpoint_every=2, max_steps=20) as session:
        for number in range(12):
            try:
                session.observe(move(number))
            except AgentError as error:
                raised.append(error)
    assert "loss is not finite" in str(raised[0])
    assert len(raised) == 8
    assert session.run is not None
    assert list_steps(session.run.path / "checkpoints") == [2, 4]
    assert session.run.reader.status == "failed"


def test_a_loss_of_the_host_may_be_what_it_likes(tmp_path: Path) -> None:
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, metrics_every=2, max_steps=6) as session:
        stream = session.stream()
        while not session.is_done:
            stream.begin(line(0))
            session.log("lost_loss", float("inf"))
            stream.step(line(1), 1.0, terminated=True, extras={"stop_loss": float("-inf")})
    assert session.run is not None
    assert session.run.reader.status == "finished"


@pytest.mark.parametrize("kind", [Updated, EpisodeEnded, MetricsFlushed])
def test_what_a_callback_raises_costs_no_work_that_was_sound(kind: type[Event], tmp_path: Path) -> None:
    def plot(event: Event) -> None:
        if isinstance(event, kind) and event.stamp.env_steps >= 6:
            raise ValueError("a bug in the host's plot")

    session = TrainingSession.open(
        "walk", ToyAgent(), root=tmp_path, checkpoint_every=None, metrics_every=3, callbacks=[plot]
    )
    with pytest.raises(ValueError, match="a bug"), session:
        episodes_of_two_steps(session)
    assert session.run is not None
    assert session.run.reader.status == "failed"
    assert list_steps(session.run.path / "checkpoints") == [6]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TimeoutError])
@pytest.mark.parametrize("place", ["apply", "hand_out", "end", "add_update", "flush_window"])
def test_a_call_that_a_signal_tears_apart_is_not_saved(
    place: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler of the host's may raise between any two of our steps."""

    def train(root: Path, *, torn: bool) -> TrainingSession:
        options: dict[str, Any] = {"checkpoint_every": 4, "metrics_every": 5, "max_steps": 20, "signals": False}
        session = TrainingSession.open("walk", ToyAgent(), root=root, **options)
        owner: Any = session._parts.logbook if place in ("add_update", "flush_window") else session._parts.streams
        if torn:
            tear(owner, place, lambda: session.total_steps >= 10, error)
        with session:
            episodes_of_two_steps(session)
        return session

    def tear(owner: Any, name: str, is_time: Callable[[], bool], raised: type[BaseException]) -> None:
        whole = getattr(owner, name)

        def half(*args: Any, **kwargs: Any) -> Any:
            if is_time():
                raise raised
            return whole(*args, **kwargs)

        monkeypatch.setattr(owner, name, half)

    with pytest.raises(error):
        train(tmp_path / "torn", torn=True)
    assert max(list_steps(find_run(tmp_path / "torn" / "walk") / "checkpoints")) == 8
    session = train(tmp_path / "torn", torn=False)
    assert session.resumed is not None
    assert (session.resumed.step, session.resumed.grade) == (8, "exact")
    train(tmp_path / "whole", torn=False)
    assert verify(tmp_path / "torn" / "walk").digests == verify(tmp_path / "whole" / "walk").digests


def test_an_agent_that_fails_in_an_evaluation_is_not_saved(tmp_path: Path) -> None:
    class Nan(ToyAgent):
        def act(self, observations: Observations, mode: ActMode, streams: Array) -> Array:
            if mode is ActMode.EXPLOIT:
                raise AgentError("its weights are not finite")
            return super().act(observations, mode, streams)

    with TrainingSession.open("walk", Nan(), root=tmp_path, checkpoint_every=None) as session:
        session.observe(move(0))
        with pytest.raises(AgentError, match="not finite"):
            session.act(line(0), "exploit")
    assert session.run is not None
    assert list_steps(session.run.path / "checkpoints") == []


def test_counters_of_numpy_are_saved_as_plain_numbers(tmp_path: Path) -> None:
    class Counting(ToyAgent):
        def update(self, n: int) -> Metrics:
            metrics = super().update(n)
            self.updates = np.int64(self.updates)  # type: ignore[assignment]
            return metrics

        def state(self) -> dict[str, Any]:
            return {**super().state(), "updates": int(self.updates)}

    counting: Any = Counting()
    with TrainingSession.open(
        "walk", counting, root=tmp_path, checkpoint_every=5, metrics_every=5, max_steps=10
    ) as session:
        for number in range(10):
            session.observe(move(number))
    assert session.checkpoint_failures == 0
    assert session.run is not None
    assert [row["updates"] for row in session.run.reader.metric_windows()] == [5, 10]
