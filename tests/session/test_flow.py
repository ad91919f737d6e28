"""One host call runs forward: take, learn, end the episode, act, do what is due; checkpoints hold what is still due."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import Corridor, ToyAgent, drive, line, move

from rekindle import TrainingSession, verify
from rekindle.agent import Metrics
from rekindle.checkpoint.store import list_steps
from rekindle.errors import ConfigError, InputError, Interrupted
from rekindle.events import CheckpointSaved, EpisodeEnded, Event, MetricsFlushed, Updated
from rekindle.experience import ActMode, Array, Observations, Transitions

# Python and JAX warn of forks, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")


class Telling(ToyAgent):
    """Says in which order it was called."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self.told = told

    def act(self, observations: Observations, mode: ActMode, streams: Array) -> Array:
        self.told.append("act")
        return super().act(observations, mode, streams)

    def observe(self, transitions: Transitions, streams: Array) -> None:
        self.told.append("observe")
        super().observe(transitions, streams)

    def update(self, n: int) -> Metrics:
        self.told.append("update")
        return super().update(n)

    def state(self) -> dict[str, Any]:
        self.told.append("state")
        return super().state()


def telling_session(root: Path, told: list[str], **options: Any) -> TrainingSession:
    def tell(event: Event) -> None:
        if isinstance(event, EpisodeEnded | MetricsFlushed):
            told.append(type(event).__name__)

    session = TrainingSession.open("order", Telling(told), root=root, callbacks=[tell], **options)
    session.every(1, lambda: told.append("hook"))
    return session


def test_a_step_learns_then_acts_then_does_what_is_due(tmp_path: Path) -> None:
    told: list[str] = []
    with telling_session(tmp_path, told, metrics_every=1, checkpoint_every=1) as session:
        stream = session.stream()
        stream.begin(line(0))
        told.clear()
        stream.step(line(1), 1.0)
        assert told == ["observe", "update", "act", "MetricsFlushed", "hook", "state"]


def test_a_step_that_ends_an_episode_logs_it_before_what_is_due(tmp_path: Path) -> None:
    told: list[str] = []
    with telling_session(tmp_path, told, metrics_every=1, checkpoint_every=1) as session:
        stream = session.stream()
        stream.begin(line(0))
        told.clear()
        stream.step(line(1), 1.0, terminated=True)
        assert told == ["observe", "update", "EpisodeEnded", "MetricsFlushed", "hook", "state"]


def test_the_action_of_a_step_is_part_of_the_checkpoint_that_is_due_there(tmp_path: Path) -> None:
    env = Corridor(limit=100)
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, checkpoint_every=3) as session:
        stream = session.stream()
        action = stream.begin(stream.reset(env))
        for _ in range(3):
            observation, reward, *_ = env.step(action)
            action = stream.step(observation, reward)
        state = session._parts.state()["streams"]["table"]
        assert state["has_pending"].tolist() == [True]
        assert state["pending"].tolist() == [action]


def test_a_hook_that_stops_the_session_ends_the_loop_and_a_resume_goes_on_with_the_same_action(tmp_path: Path) -> None:
    def train(root: Path, *, stops_at: int | None) -> Any:
        agent = ToyAgent()
        with TrainingSession.open("walk", agent, root=root, checkpoint_every=None, max_steps=30) as session:
            if stops_at is not None:
                session.every(stops_at, lambda: session.stop("enough for now"))
            drive(session)
        return session

    assert train(tmp_path / "stopped", stops_at=10).total_steps == 10
    train(tmp_path / "stopped", stops_at=None)
    train(tmp_path / "whole", stops_at=None)
    assert verify(tmp_path / "stopped" / "walk").digests == verify(tmp_path / "whole" / "walk").digests
    assert verify(tmp_path / "stopped" / "walk").grade == "exact"


# Checkpoints inside callbacks and hooks


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("kind", [EpisodeEnded, MetricsFlushed])
def test_a_checkpoint_of_a_callback_holds_what_is_due_and_resumes_exactly(
    kind: type[Event], wait: bool, tmp_path: Path
) -> None:
    def train(root: Path, *, dies: bool) -> None:
        def save(event: Event) -> None:
            if isinstance(event, kind) and event.stamp.env_steps == 30:
                session.checkpoint(wait=wait)
                if dies and wait:
                    os._exit(9)
            if dies and isinstance(event, CheckpointSaved):
                os._exit(9)

        options: dict[str, Any] = {"checkpoint_every": None, "metrics_every": 10, "max_steps": 60}
        session = TrainingSession.open("walk", ToyAgent(), root=root, callbacks=[save], signals=False, **options)
        session.every(15, lambda: session.log("hooked", session.total_steps))
        with session:
            drive(session, Corridor(limit=3))

    train(tmp_path / "whole", dies=False)
    if (child := os.fork()) == 0:
        train(tmp_path / "killed", dies=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    train(tmp_path / "killed", dies=False)
    killed, whole = verify(tmp_path / "killed" / "walk"), verify(tmp_path / "whole" / "walk")
    assert killed.digests == whole.digests
    assert killed.grade == "exact"


def test_a_checkpoint_asked_for_in_a_callback_is_taken_when_the_call_ends(tmp_path: Path) -> None:
    saved: list[list[int]] = []

    def save(event: Event) -> None:
        if isinstance(event, Updated) and event.stamp.env_steps == 2:
            session.checkpoint()
            saved.append(list_steps(session.run.path / "checkpoints"))  # type: ignore[union-attr]

    session = TrainingSession.open("walk", ToyAgent(), root=tmp_path, checkpoint_every=None, callbacks=[save])
    with session:
        session.observe(move(0))
        session.observe(move(1))
        session.flush()
        assert saved == [[]]
        assert list_steps(session.run.path / "checkpoints") == [2]  # type: ignore[union-attr]


def test_a_checkpoint_that_a_hook_waits_for_is_durable_when_it_returns(tmp_path: Path) -> None:
    found: list[list[int]] = []
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, checkpoint_every=None) as session:
        assert session.run is not None
        directory = session.run.path / "checkpoints"

        def save() -> None:
            session.checkpoint(wait=True)
            found.append(list_steps(directory))

        session.every(2, save)
        for number in range(4):
            session.observe(move(number))
    assert found == [[2], [2, 4]]


# What was interrupted stays due


def test_a_hook_that_is_interrupted_is_called_again_after_a_resume(tmp_path: Path) -> None:
    called: list[tuple[str, int]] = []

    def train(*, interrupts: bool, max_steps: int) -> None:
        with TrainingSession.open(
            "walk", ToyAgent(), root=tmp_path, checkpoint_every=5, max_steps=max_steps
        ) as session:

            def evaluate() -> None:
                if interrupts and session.total_steps == 10:
                    session.stop("SIGTERM")
                    raise Interrupted("stopped")
                called.append(("evaluate", session.total_steps))

            session.every(5, evaluate)
            session.every(5, lambda: called.append(("after", session.total_steps)))
            drive(session)

    train(interrupts=True, max_steps=20)
    assert called == [("evaluate", 5), ("after", 5)]
    train(interrupts=False, max_steps=20)
    expected = [(name, step) for step in (5, 10, 15, 20) for name in ("evaluate", "after")]
    assert called == expected


def test_a_hook_that_raises_is_called_again_after_a_resume(tmp_path: Path) -> None:
    called: list[int] = []

    def fail() -> None:
        raise ValueError("the plot is full")

    session = TrainingSession.open("walk", ToyAgent(), root=tmp_path, checkpoint_every=None)
    session.every(5, fail)
    with pytest.raises(ValueError, match="the plot is full"), session:
        drive(session)
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, checkpoint_every=None, max_steps=12) as session:
        assert session.total_steps == 5
        session.every(5, lambda: called.append(session.total_steps))
        drive(session)
    assert called == [5, 10]


# A refusal changes nothing


class Picky(ToyAgent):
    """Refuses a reward above 5, as a memory refuses what does not fit it."""

    def observe(self, transitions: Transitions, streams: Array) -> None:
        if (transitions.rewards > 5).any():
            raise InputError("the reward does not fit")
        super().observe(transitions, streams)


def test_a_transition_that_the_agent_refuses_leaves_no_trace(tmp_path: Path) -> None:
    def train(root: Path, *, tries: bool) -> None:
        env = Corridor(limit=8)
        with TrainingSession.open("walk", Picky(), root=root, checkpoint_every=None, max_steps=20) as session:
            stream = session.stream()
            while not session.is_done:
                action = stream.begin(stream.reset(env))
                while action is not None:
                    observation, reward, terminated, truncated, _ = env.step(action)
                    if tries:
                        with pytest.raises(InputError, match="does not fit"):
                            stream.step(observation, 6.0, terminated, truncated)
                    action = stream.step(observation, reward, terminated, truncated)

    train(tmp_path / "tried", tries=True)
    train(tmp_path / "plain", tries=False)
    assert verify(tmp_path / "tried" / "walk").digests == verify(tmp_path / "plain" / "walk").digests


@pytest.mark.parametrize("value", ["fast", None, [1, "two"], {"a": 1}])
def test_a_metric_that_is_no_number_is_refused_at_once(value: Any) -> None:
    session = TrainingSession(ToyAgent(), metrics_every=2)
    with pytest.raises(InputError, match=r"'train/lr' is not a number"):
        session.log("lr", value)
    for number in range(4):
        session.observe(move(number))
    assert session.store.latest("train/lr") is None


def test_a_metric_may_be_an_array() -> None:
    session = TrainingSession(ToyAgent(), metrics_every=1)
    session.log("speed", np.array([1.0, 3.0]))
    session.observe(move(0))
    session.flush()
    assert session.store.latest("train/speed") == 2.0


def test_an_extra_whose_name_is_no_text_is_refused_before_anything_changes() -> None:
    session = TrainingSession(ToyAgent())
    stream = session.stream()
    stream.begin(line(0))
    with pytest.raises(InputError, match="the extra 7 has no name"):
        stream.step(line(1), 1.0, terminated=True, extras={7: 1.0})  # type: ignore[dict-item]
    assert session.total_steps == 0
    stream.step(line(1), 1.0, terminated=True, extras={"seven": 1.0})
    assert (session.total_steps, session.episodes) == (1, 1)


def test_an_empty_batch_is_refused() -> None:
    session = TrainingSession(ToyAgent())
    nothing = np.zeros((0, 2), np.float32)
    with pytest.raises(InputError, match="the batch is empty"):
        session.act_many(nothing)
    empty = Transitions(nothing, np.zeros(0, np.int64), np.zeros(0), nothing, np.zeros(0, np.uint8))
    with pytest.raises(InputError, match="the batch is empty"):
        session.observe_many(empty)
    with pytest.raises(InputError, match="the batch is empty"):
        session.act_many({})


def test_the_best_action_may_be_asked_for_by_text() -> None:
    agent = ToyAgent()
    session = TrainingSession(agent)
    before = agent.state()["rng"]
    assert session.act(line(0), "exploit") == session.act(line(0), ActMode.EXPLOIT)
    assert session.act_many(np.zeros((2, 1), np.float32), "exploit").tolist() == [0, 0]
    assert repr(agent.state()["rng"]) == repr(before)
    session.act(line(0), "explore")
    assert repr(agent.state()["rng"]) != repr(before)


@pytest.mark.parametrize("mode", ["Exploit", "greedy", None, True])
def test_a_mode_that_there_is_not_is_refused(mode: Any) -> None:
    session = TrainingSession(ToyAgent())
    with pytest.raises(InputError, match=r"is not one of \['explore', 'exploit'\]"):
        session.act(line(0), mode)
    with pytest.raises(InputError, match=r"is not one of \['explore', 'exploit'\]"):
        session.act_many(np.zeros((1, 1), np.float32), mode)


def test_a_callback_that_logs_with_every_metric_row_does_not_fail_the_last_one(tmp_path: Path) -> None:
    def log(event: Event) -> None:
        if isinstance(event, MetricsFlushed):
            session.log("rows", 1)

    options: dict[str, Any] = {"root": tmp_path, "metrics_every": 10, "max_steps": 15}
    with TrainingSession.open("walk", ToyAgent(), callbacks=[log], **options) as session:
        drive(session, Corridor(limit=3))
    assert session.run is not None
    assert session.run.reader.status == "finished"


def test_a_session_is_opened_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the name of a run is a str such as 'cartpole', not "):
        TrainingSession.open(ToyAgent(), "walk", root=tmp_path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["log", "every", "attach", "mark_inexact", "at_end", "flush", "show"])
def test_a_closed_session_refuses_every_call(call: str, tmp_path: Path) -> None:
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path) as session:
        session.observe(move(0))
    status = session.run.reader.status if session.run else None
    arguments: dict[str, tuple[Any, ...]] = {
        "log": ("a", 1.0),
        "every": (5, lambda: None),
        "attach": ("twin", ToyAgent()),
        "mark_inexact": ("late",),
        "at_end": (lambda: None,),
        "flush": (),
        "show": ("a", None),
    }
    with pytest.raises(InputError, match="the session is closed"):
        getattr(session, call)(*arguments[call])
    assert session.run is not None
    assert session.run.reader.status == status
