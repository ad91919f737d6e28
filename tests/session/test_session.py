"""The session: what happens at which step and in which order, and what a run is left with however it ends."""

from __future__ import annotations

import contextlib
import logging
import math
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from toys import Corridor, PolicyAgent, ReplayAgent, ToyAgent, drive, line, move

from rekindle import RunReader, TrainingRun, TrainingSession, errors, verify
from rekindle.checkpoint.store import Checkpoint, list_steps
from rekindle.errors import AgentError, ConfigError, InputError, RunLocked, StateError, StorageError
from rekindle.events import (
    CheckpointSaved,
    EpisodeEnded,
    Evaluated,
    Event,
    MemoryRecorder,
    MetricsFlushed,
    Stamp,
    TrainingEnded,
    TrainingStarted,
    Updated,
    Warned,
)
from rekindle.experience import ActMode, Array, DictEncoder, EnumMapper, EpisodeStatus, Observations, Transitions
from rekindle.run.finding import find_runs
from rekindle.stats import EpisodeRecord, Max, StatsTracker, TotalReward
from rekindle.storage import codec


@contextlib.contextmanager
def opened(root: Path, agent: Any = None, **options: Any) -> Generator[TrainingSession]:
    """A session on the run of this directory, new or resumed, with nothing due but what is asked for."""
    agent = ToyAgent() if agent is None else agent
    settings = {"checkpoint_every": None, "metrics_every": None, **options}
    with TrainingSession.open("walk", agent, root=root, **settings) as session:
        yield session


def walk(session: TrainingSession, steps: int, *, start: float = 0) -> None:
    """Make this many steps of an episode that does not end."""
    for number in range(steps):
        session.observe(move(start + number))


def reader_of(session: TrainingSession) -> RunReader:
    assert session.run is not None
    return session.run.reader


def steps_saved(session: TrainingSession) -> list[int]:
    return list_steps(reader_of(session).path / "checkpoints")


class Interrupted(ToyAgent):
    """Does half of what it should at a certain call of a method."""

    def __init__(self, method: str, error: type[BaseException], *, calls: int = 4) -> None:
        super().__init__()
        self._left, self._method, self._error = calls, method, error

    def _count(self, method: str) -> None:
        self._left -= method == self._method
        if self._left == 0:
            self._rng.random()
            raise self._error

    def act(self, observations: Observations, mode: ActMode, streams: Array) -> Array:
        self._count("act")
        return super().act(observations, mode, streams)

    def observe(self, transitions: Transitions, streams: Array) -> None:
        self._count("observe")
        super().observe(transitions, streams)

    def update(self, n: int) -> Any:
        self._count("update")
        return super().update(n)


class Probe:
    """Joins the checkpoint, and notes when one is taken."""

    def __init__(self, note: Callable[[], Any] = lambda: None) -> None:
        self.note = note
        self.loaded: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        self.note()
        return {"seen": 1}

    def load_state(self, state: dict[str, Any]) -> None:
        self.loaded = state


def checkpoints_noted(session: TrainingSession) -> list[int]:
    """The steps at which checkpoints will have been taken."""
    steps: list[int] = []
    session.attach("probe", Probe(lambda: steps.append(session.total_steps)))
    return steps


# Counting


def test_a_session_counts_steps_updates_and_episodes() -> None:
    session = TrainingSession(ToyAgent(warm_up=2))
    for number in range(3):
        session.observe(move(number))
    session.observe(move(3, status=1))
    session.on_episode()
    assert (session.total_steps, session.updates, session.episodes) == (4, 2, 1)


def test_a_session_is_done_after_its_steps() -> None:
    session = TrainingSession(ToyAgent(), max_steps=3)
    walk(session, 2)
    assert (session.is_done, session.stop_reason) == (False, None)
    walk(session, 1, start=2)
    assert (session.is_done, session.stop_reason) == (True, "max_steps")


def test_a_session_without_a_limit_is_done_when_told_to_stop() -> None:
    session = TrainingSession(ToyAgent())
    walk(session, 3)
    assert not session.is_done
    session.stop("seen enough")
    assert (session.is_done, session.stop_reason) == (True, "seen enough")


def test_the_speed_counts_the_steps_of_this_process_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        assert session.steps_per_sec == 0.0
        walk(session, 50)
        assert session.steps_per_sec > 0.0
        session.stop()
    with opened(tmp_path) as session:
        assert (session.total_steps, session.steps_per_sec) == (50, 0.0)


def test_stats_are_kept_over_episodes_and_resumes(tmp_path: Path) -> None:
    def stats() -> StatsTracker:
        return StatsTracker().add("best", TotalReward(), Max())

    with opened(tmp_path, stats=stats()) as session:
        for reward in (1.0, 5.0):
            session.observe(move(0, reward=reward, status=1))
            session.on_episode()
        session.stop()
    with opened(tmp_path, stats=stats()) as session:
        session.observe(move(0, reward=3.0, status=1))
        session.on_episode()
        assert session.stats_summary() == {"episode_reward": 3.0, "episode_length": 1.0, "best": 5.0}


def test_a_report_looks_back_on_the_last_evaluation_episodes_over_resumes(tmp_path: Path) -> None:
    def evaluated(session: TrainingSession, *rewards: float) -> None:
        for reward in rewards:
            session.on_eval_episode(EpisodeRecord(reward, 10, EpisodeStatus.TERMINATED))

    with opened(tmp_path) as session:
        evaluated(session, 1.0, 2.0)
    with opened(tmp_path) as session:
        evaluated(session, 6.0)
        report = session.eval_report(2)
        assert (report.n_episodes, report.stats["episode_reward_mean"]) == (2, 4.0)
        assert session.eval_report(100).n_episodes == 3


def test_a_run_whose_session_is_refused_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learner"), opened(tmp_path, learner="sometimes"):
        pass
    assert not find_runs(tmp_path)


def test_the_metrics_of_a_checkpoint_are_those_of_its_own_step(tmp_path: Path) -> None:
    with opened(tmp_path, checkpoint_every=4, metrics_every=4, keep_checkpoints=9, max_steps=8) as session:
        scores = iter((1.0, 2.0))
        record = EpisodeRecord(0.0, 1, EpisodeStatus.TERMINATED)
        session.every(4, lambda: session.on_eval_episode(msgspec.structs.replace(record, total_reward=next(scores))))
        walk(session, 8)
    for step, score in ((4, 1.0), (8, 2.0)):
        assert Checkpoint.read(reader_of(session).path / f"checkpoints/step_{step}.mpk").metrics["eval/return"] == score


# What an episode leaves


def test_an_episode_is_logged_with_counters_stream_and_extras(tmp_path: Path) -> None:
    with opened(tmp_path, PolicyAgent()) as session:
        session.observe(move(0, reward=0.5), stream="npc")
        session.observe(move(1, reward=1.0, status=2), stream="npc")
        record = session.on_episode(extras={"hits": 2}, stream="npc")
    (row,) = reader_of(session).train_episodes()
    assert row.pop("wall_time") > 0
    assert row == {
        "row": 0,
        "env_steps": 2,
        "updates": 2,
        "episodes": 1,
        "stream": "npc",
        "total_reward": 1.5,
        "length": 2,
        "status": "truncated",
        "extras": {"hits": 2.0, "starts": 0.0},
    }
    assert record == EpisodeRecord(1.5, 2, EpisodeStatus.TRUNCATED, {"hits": 2.0, "starts": 0.0})


def ends_of_three(session: TrainingSession) -> list[int | str]:
    """Make a last step of an episode on each of three streams."""
    zeros = np.zeros((3, 1), np.float32)
    statuses = np.array([1, 2, 1], np.uint8)
    return session.observe_many(Transitions(zeros, np.zeros(3, np.int64), np.arange(3.0), zeros + 1, statuses))


def test_the_ends_of_several_episodes_are_announced_together_as_they_are_one_by_one(tmp_path: Path) -> None:
    extras: dict[int | str, dict[str, float]] = {0: {"hits": 1.0}, 1: {}, 2: {"hits": 3.0}}
    found: list[Any] = []
    for name, together in (("together", True), ("apart", False)):
        with opened(tmp_path / name, PolicyAgent(), checkpoint_every=3) as session:
            taken = checkpoints_noted(session)
            assert ends_of_three(session) == [0, 1, 2]
            if together:
                records = session.on_episodes(extras)
            else:
                records = {stream: session.on_episode(extras=extras[stream], stream=stream) for stream in extras}
            rows = reader_of(session).train_episodes()
            found.append((records, taken, [{**row, "wall_time": None} for row in rows]))
    assert found[0] == found[1]
    assert [row["stream"] for row in found[0][2]] == [0, 1, 2]


def test_if_a_callback_raises_everything_that_was_announced_is_written(tmp_path: Path) -> None:
    def refuse(event: Event) -> None:
        if isinstance(event, EpisodeEnded) and event.stream == 1:
            raise RuntimeError("no more")

    with opened(tmp_path, callbacks=[refuse]) as session:
        ends_of_three(session)
        with pytest.raises(RuntimeError, match="no more"):
            session.on_episodes({0: {}, 1: {}, 2: {}})
        assert [row["stream"] for row in reader_of(session).train_episodes()] == [0, 1, 2]


def test_an_agent_that_reports_episodes_is_told_when_one_starts() -> None:
    agent = PolicyAgent()
    session = TrainingSession(agent)
    session.observe(move(0, status=1))
    session.on_episode()
    assert agent.starts == 1


def test_announcing_a_start_closes_an_open_episode_as_truncated(tmp_path: Path) -> None:
    agent = PolicyAgent()
    with opened(tmp_path, agent) as session:
        walk(session, 2)
        session.on_episode_start()
        walk(session, 1, start=50)
    assert [row["status"] for row in reader_of(session).train_episodes()] == ["truncated"]
    assert agent.cuts == [[0]]


def test_announcing_a_start_between_episodes_changes_no_count() -> None:
    agent = PolicyAgent()
    session = TrainingSession(agent)
    session.on_episode_start()
    assert (session.episodes, agent.starts) == (0, 1)


def test_an_evaluation_episode_is_logged_apart(tmp_path: Path) -> None:
    with opened(tmp_path, metrics_every=10) as session:
        walk(session, 5)
        session.on_eval_episode(EpisodeRecord(7.0, 3, EpisodeStatus.TERMINATED))
    (row,) = reader_of(session).eval_episodes()
    assert (row["total_steps_at_eval"], row["total_reward"], row["episodes"]) == (5, 7.0, 0)
    assert reader_of(session).metric_windows()[-1]["metrics"]["eval/return"]["mean"] == 7.0


# Intervals


def test_metrics_are_flushed_at_step_counts(tmp_path: Path) -> None:
    with opened(tmp_path, metrics_every=10, max_steps=30) as session:
        walk(session, 30)
    rows = reader_of(session).metric_windows()
    assert [row["env_steps"] for row in rows] == [10, 20, 30]
    assert [row["metrics"]["agent/loss"]["count"] for row in rows] == [10, 10, 10]


def test_checkpoints_are_taken_at_step_counts(tmp_path: Path) -> None:
    with opened(tmp_path, checkpoint_every=10, max_steps=35) as session:
        taken = checkpoints_noted(session)
        walk(session, 35)
    assert taken == [10, 20, 30, 35]
    assert steps_saved(session) == [20, 30, 35]


def test_without_an_interval_only_the_end_is_saved(tmp_path: Path) -> None:
    with opened(tmp_path, checkpoint_every=None) as session:
        walk(session, 35)
    assert steps_saved(session) == [35]


def batch(session: TrainingSession, rows: int, start: float) -> None:
    """One step of each of so many streams."""
    observations = np.full((rows, 1), start, np.float32)
    ones = np.ones(rows)
    session.observe_many(
        Transitions(observations, np.zeros(rows, np.int64), ones, observations + 1, np.zeros(rows, np.uint8))
    )


def test_an_interval_that_a_batch_jumps_over_fires_once(tmp_path: Path) -> None:
    calls: list[int] = []
    with opened(tmp_path, metrics_every=10, checkpoint_every=25) as session:
        taken = checkpoints_noted(session)
        session.every(3, lambda: calls.append(session.total_steps))
        for number in range(5):
            batch(session, 8, number)
        session.stop()
    assert calls == [8, 16, 24, 32, 40]
    assert [row["env_steps"] for row in reader_of(session).metric_windows()] == [16, 24, 32, 40]
    assert taken == [32, 40]


def test_intervals_do_not_drift_after_a_batch_has_jumped_over_one() -> None:
    calls: list[int] = []
    session = TrainingSession(ToyAgent())
    session.every(10, lambda: calls.append(session.total_steps))
    batch(session, 13, 0)
    for number in range(20):
        session.observe(move(1 + number))
    assert calls == [13, 20, 30]


def test_intervals_go_on_where_they_were_after_a_resume(tmp_path: Path) -> None:
    calls: list[int] = []
    for until in (7, 25):
        with opened(tmp_path) as session:
            session.every(10, lambda session=session: calls.append(session.total_steps))
            walk(session, until - session.total_steps, start=session.total_steps)
            session.stop()
    assert calls == [10, 20]


def test_at_one_step_metrics_come_first_then_hooks_then_the_checkpoint(tmp_path: Path) -> None:
    order: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, MetricsFlushed | Evaluated | Updated):
            order.append(type(event).__name__)

    with opened(tmp_path, metrics_every=5, checkpoint_every=5, callbacks=[note]) as session:
        session.attach("probe", Probe(lambda: order.append("checkpoint")))
        session.every(5, lambda: order.append("hook"))
        session.every(5, lambda: session.maybe_save_best(1.0))
        walk(session, 4)
        order.clear()
        walk(session, 1, start=4)
        at_one_step = list(order)
    assert at_one_step == ["Updated", "MetricsFlushed", "hook", "Evaluated", "checkpoint"]


def test_a_checkpoint_that_is_due_when_an_episode_ends_waits_for_the_announcement(tmp_path: Path) -> None:
    with opened(tmp_path, checkpoint_every=2, metrics_every=2) as session:
        taken = checkpoints_noted(session)
        session.observe(move(0))
        session.observe(move(1, status=1))
        assert taken == []
        session.on_episode()
        assert taken == [2]
        session.flush()
        assert "episode/return" in reader_of(session).metric_windows()[0]["metrics"]


def test_a_checkpoint_that_is_due_waits_for_every_stream_of_a_batch(tmp_path: Path) -> None:
    zeros = np.zeros((2, 1), np.float32)
    with opened(tmp_path, checkpoint_every=2) as session:
        taken = checkpoints_noted(session)
        ended = session.observe_many(
            Transitions(zeros, np.zeros(2, np.int64), np.ones(2), zeros + 1, np.array([1, 2], np.uint8)),
            streams=["left", "right"],
        )
        assert ended == ["left", "right"]
        session.on_episode(stream="left")
        assert taken == []
        session.on_episode(stream="right")
        assert taken == [2]


def test_hooks_are_called_in_the_order_given() -> None:
    order: list[str] = []
    session = TrainingSession(ToyAgent())
    session.every(2, lambda: order.append("first"))
    session.every(1, lambda: order.append("second"))
    walk(session, 2)
    assert order == ["second", "first", "second"]


def test_a_hook_may_add_another() -> None:
    order: list[str] = []
    session = TrainingSession(ToyAgent())

    def grow() -> None:
        order.append("old")
        if len(order) == 1:
            session.every(2, lambda: order.append("new"))

    session.every(1, grow)
    walk(session, 4)
    assert order == ["old", "old", "new", "old", "old", "new"]


@pytest.mark.parametrize("setting", ["max_steps", "checkpoint_every", "metrics_every"])
@pytest.mark.parametrize("value", [-1, 1.5, "10", True])
def test_an_interval_is_a_whole_number_or_none(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{setting} is"):
        TrainingSession(ToyAgent(), **{setting: value})


def test_a_hook_that_is_interrupted_is_called_when_the_run_is_resumed_before_anything_else(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []
    with opened(tmp_path, checkpoint_every=4, max_steps=9) as session:

        def interrupted() -> None:
            session.stop("enough")
            raise errors.Interrupted("enough")

        session.every(2, lambda: calls.append(("first", session.total_steps)))
        session.every(4, interrupted)
        session.every(4, lambda: calls.append(("third", session.total_steps)))
        while not session.is_done:
            walk(session, 1, start=session.total_steps)
    assert calls == [("first", 2), ("first", 4)]
    assert reader_of(session).metadata.stop_reason == "enough"
    calls.clear()
    with opened(tmp_path, checkpoint_every=4, max_steps=9) as session:
        for name, steps in (("first", 2), ("second", 4), ("third", 4)):
            session.every(steps, lambda name=name: calls.append((name, session.total_steps)))
        walk(session, 1, start=4)
        assert calls == [("second", 4), ("third", 4)]
        walk(session, 3, start=5)
    assert calls[2:] == [("first", 6), ("first", 8), ("second", 8), ("third", 8)]


def test_what_is_interrupted_inside_with_is_a_stop_and_no_failure(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        walk(session, 3)
        session.stop("enough")
        raise errors.Interrupted("replaying")
    assert (session.run is not None, reader_of(session).status) == (True, "stopped")
    assert (steps_saved(session), reader_of(session).metadata.stop_reason) == ([3], "enough")


def test_an_end_that_is_interrupted_is_none(tmp_path: Path) -> None:
    def interrupted() -> None:
        raise errors.Interrupted("enough")

    for end, status in ((interrupted, "stopped"), (lambda: None, "finished")):
        with opened(tmp_path, max_steps=3) as session:
            session.at_end(end)
            walk(session, 3 - session.total_steps)
        assert reader_of(session).status == status
        assert steps_saved(session) == [3]


def test_a_hook_is_called_every_whole_number_of_steps_or_refused() -> None:
    session = TrainingSession(ToyAgent())
    for steps in (0, -1, 1.5):
        with pytest.raises(ConfigError, match="every is"):
            session.every(steps, lambda: None)  # type: ignore[arg-type]


# Metrics


def test_numbers_of_the_host_join_the_window(tmp_path: Path) -> None:
    with opened(tmp_path, metrics_every=2) as session:
        session.log("fps", 30)
        session.log("game/score", 1.0)
        walk(session, 1)
        session.log("fps", 60)
        walk(session, 1, start=1)
        session.flush()
        (row,) = reader_of(session).metric_windows()
    assert row["metrics"]["train/fps"] == {"mean": 45.0, "min": 30.0, "max": 60.0, "last": 60.0, "count": 2}
    assert "game/score" in row["metrics"]


def test_metrics_reach_recorders_and_the_store(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    with opened(tmp_path, metrics_every=5, max_steps=10, recorders=[recorder]) as session:
        walk(session, 10)
        session.flush()
        assert session.store.latest("agent/loss") is not None
    assert [stamp.env_steps for stamp, _ in recorder.rows] == [5, 10]
    assert recorder.status == "finished"


def test_without_a_run_metrics_reach_recorders_all_the_same() -> None:
    recorder = MemoryRecorder()
    with TrainingSession(ToyAgent(), metrics_every=5, recorders=[recorder]) as session:
        walk(session, 5)
    assert [stamp.env_steps for stamp, _ in recorder.rows] == [5]


def test_the_store_is_filled_again_by_a_resume(tmp_path: Path) -> None:
    with opened(tmp_path, metrics_every=5) as session:
        walk(session, 10)
        session.flush()
        history = session.store.history("agent/loss")
        session.stop()
    with opened(tmp_path, metrics_every=5) as session:
        for before, after in zip(history, session.store.history("agent/loss"), strict=True):
            np.testing.assert_array_equal(before, after)


def test_the_row_of_a_half_filled_window_is_taken_back_by_a_resume(tmp_path: Path) -> None:
    with opened(tmp_path, metrics_every=10, max_steps=30) as session:
        walk(session, 15)
        session.stop()
    assert [row["env_steps"] for row in reader_of(session).metric_windows()] == [10, 15]
    with opened(tmp_path, metrics_every=10, max_steps=30) as session:
        assert [row["env_steps"] for row in reader_of(session).metric_windows()] == [10]
        walk(session, 15, start=15)
    rows = reader_of(session).metric_windows()
    assert [row["env_steps"] for row in rows] == [10, 20, 30]
    assert rows[1]["metrics"]["agent/loss"]["count"] == 10


# Events


def test_callbacks_are_called_in_order_with_every_event(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    callbacks = [
        lambda event: seen.append(("first", type(event).__name__)),
        lambda event: seen.append(("second", type(event).__name__)),
    ]
    with opened(tmp_path, metrics_every=2, callbacks=callbacks) as session:
        session.observe(move(0))
        session.observe(move(1, status=1))
        session.on_episode()
        session.checkpoint(wait=True)
    names = [name for who, name in seen if who == "first"]
    assert names == [
        *("TrainingStarted", "Updated", "Updated", "EpisodeEnded", "MetricsFlushed", "CheckpointSaved"),
        "TrainingEnded",
    ]
    assert seen[:2] == [("first", "TrainingStarted"), ("second", "TrainingStarted")]
    assert len(seen) == 2 * len(names)


def test_events_carry_all_counters(tmp_path: Path) -> None:
    events: list[Event] = []
    with opened(tmp_path, callbacks=[events.append]) as session:
        session.observe(move(0, reward=2.0, status=1))
        session.on_episode()
    ended = next(event for event in events if isinstance(event, EpisodeEnded))
    assert (ended.stamp.env_steps, ended.stamp.updates, ended.stamp.episodes) == (1, 1, 1)
    assert (ended.stream, ended.record.total_reward) == (0, 2.0)
    last = events[-1]
    assert isinstance(last, TrainingEnded)
    assert (last.status, last.reason) == ("stopped", "the host left its loop")


def test_a_resumed_session_says_from_where_it_started(tmp_path: Path) -> None:
    events: list[Event] = []
    for _ in range(2):
        with opened(tmp_path, callbacks=[events.append]) as session:
            walk(session, 3, start=session.total_steps)
            session.stop()
    started = [event.resumed_from for event in events if isinstance(event, TrainingStarted)]
    assert started == [None, 3]


def test_a_saved_checkpoint_is_told_of_with_the_moment_it_was_taken(tmp_path: Path) -> None:
    events: list[Event] = []
    with opened(tmp_path, checkpoint_every=5, callbacks=[events.append]) as session:
        walk(session, 8)
        session.flush()
        (saved,) = [event for event in events if isinstance(event, CheckpointSaved)]
    assert saved.stamp.env_steps == 5
    assert Path(saved.path).name == "step_5.mpk"


def test_a_callback_may_stop_the_training() -> None:
    def enough(event: Event) -> None:
        if isinstance(event, Updated) and event.stamp.updates >= 3:
            session.stop("three updates", complete=True)

    session = TrainingSession(ToyAgent(), callbacks=[enough])
    while not session.is_done:
        walk(session, 1, start=session.total_steps)
    assert (session.total_steps, session.stop_reason) == (3, "three updates")


class CountingCallback:
    """A callback with a state."""

    def __init__(self) -> None:
        self.updates = 0

    def __call__(self, event: Event) -> None:
        self.updates += isinstance(event, Updated)

    def state(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]


def test_the_state_of_a_callback_joins_the_checkpoint(tmp_path: Path) -> None:
    callbacks = [CountingCallback(), CountingCallback()]
    for callback in callbacks:
        with opened(tmp_path, callbacks=[print_nothing, callback]) as session:
            walk(session, 3, start=session.total_steps)
            session.stop()
    assert callbacks[1].updates == 6


def print_nothing(_event: Event) -> None:
    pass


class BrokenRecorder:
    """Takes nothing."""

    def record(self, values: Mapping[str, float], stamp: Any) -> None:
        raise OSError("no network")

    def close(self, status: str) -> None:
        pass


def test_a_recorder_that_fails_is_told_of_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    with opened(tmp_path, metrics_every=2, recorders=[BrokenRecorder()], callbacks=[events.append]) as session:
        walk(session, 4)
    warnings = [event.message for event in events if isinstance(event, Warned)]
    assert warnings == ["the recorder BrokenRecorder failed: OSError: no network"] * 2
    assert "no network" in caplog.text


@pytest.mark.parametrize("learner", ["inline", "background"])
def test_warnings_stay_in_the_run_over_resumes(tmp_path: Path, learner: Literal["inline", "background"]) -> None:
    events: list[Event] = []
    for until in (2, 4):
        recorders, callbacks = [BrokenRecorder()], [events.append]
        with opened(
            tmp_path, PolicyAgent(), learner=learner, metrics_every=2, recorders=recorders, callbacks=callbacks
        ) as session:
            walk(session, 2, start=session.total_steps)
            assert session.total_steps == until
            session.stop()
    told = [(event.stamp, event.message) for event in events if isinstance(event, Warned)]
    assert len(told) >= 2
    assert [
        (Stamp(row["env_steps"], row["updates"], row["episodes"], row["wall_time"]), row["message"])
        for row in RunReader(tmp_path / "walk").warnings()
    ] == told


def test_a_warning_has_the_counters_of_its_moment(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        walk(session, 2)
        session.mark_inexact("the wind has changed")
        walk(session, 2, start=2)
    (row,) = reader_of(session).warnings()
    assert (row["env_steps"], row["updates"], row["message"]) == (2, 2, "the wind has changed")


def test_a_warning_that_cannot_be_written_makes_no_further_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise StorageError("the disk is full")

    events: list[Event] = []
    with opened(tmp_path, metrics_every=2, recorders=[BrokenRecorder()], callbacks=[events.append]) as session:
        assert session.run is not None
        monkeypatch.setattr(session.run, "log_warning", refuse)
        walk(session, 4)
    assert len([event for event in events if isinstance(event, Warned)]) == 2


# Checkpoints


def test_a_checkpoint_can_be_asked_for_and_waited_for(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        walk(session, 3)
        session.checkpoint(wait=True)
        assert steps_saved(session) == [3]
        assert session.run is not None
        assert session.run.latest_checkpoint_path.samefile(session.run.checkpoint_path(3))
        assert reader_of(session).metadata.total_steps == 3


def test_a_checkpoint_asked_for_in_a_hook_is_taken_after_the_other_hooks(tmp_path: Path) -> None:
    order: list[str] = []
    with opened(tmp_path) as session:
        session.attach("probe", Probe(lambda: order.append("checkpoint")))
        session.every(2, session.checkpoint)
        session.every(2, lambda: order.append("hook"))
        walk(session, 2)
        taken = list(order)
    assert taken == ["hook", "checkpoint"]


def test_a_checkpoint_is_refused_while_an_end_is_not_announced(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.observe(move(0, status=1))
        with pytest.raises(InputError, match="never announced"):
            session.checkpoint()
        session.on_episode()


def test_a_checkpoint_needs_a_run() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\(\) needs a run"):
        TrainingSession(ToyAgent()).checkpoint()


def test_a_state_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path: Path) -> None:
    class Unsavable(ToyAgent):
        def state(self) -> dict[str, Any]:
            return {"weights": {1, 2}}

    with pytest.raises(StateError, match=r"agent\.weights is a set"), opened(tmp_path, Unsavable()):
        pass


def test_taking_checkpoints_does_not_change_the_training(tmp_path: Path) -> None:
    digests = []
    for name, every in (("often", 7), ("never", None)):
        with opened(tmp_path / name, ReplayAgent(), checkpoint_every=every, metrics_every=10, max_steps=60) as session:
            drive(session)
        digests.append(verify(tmp_path / name / "walk").digests)
    assert digests[0] == digests[1]


def test_an_agent_that_does_not_count_its_steps_is_not_saved(tmp_path: Path) -> None:
    class Lazy(ToyAgent):
        def observe(self, transitions: Transitions, streams: Array) -> None:
            pass

    with pytest.raises(AgentError, match=r"env_steps is 0 after 3 transitions"), opened(tmp_path, Lazy()) as session:
        walk(session, 3)
    assert steps_saved(session) == []


# The best


def test_the_best_agent_is_kept(tmp_path: Path) -> None:
    events: list[Event] = []
    with opened(tmp_path, callbacks=[events.append]) as session:
        walk(session, 3)
        assert session.best_score == -math.inf
        assert [session.maybe_save_best(score) for score in (1.0, 1.0, 0.5, math.nan, 2.0)] == [
            *(True, False, False, False),
            True,
        ]
        session.flush()
        assert session.run is not None
        assert session.run.best_checkpoint_path.exists()
    assert session.best_score == 2.0
    assert [event.is_best for event in events if isinstance(event, Evaluated)] == [True, False, False, False, True]


def test_the_best_score_survives_a_resume(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        walk(session, 3)
        session.maybe_save_best(5.0)
        session.stop()
    with opened(tmp_path) as session:
        assert session.best_score == 5.0
        assert not session.maybe_save_best(4.0)
        assert session.run is not None
        assert session.run.best_checkpoint_path.samefile(session.run.path / "checkpoints" / "best_3.mpk")


def test_a_best_from_after_the_checkpoint_is_forgotten_by_a_resume(tmp_path: Path) -> None:
    with contextlib.suppress(ValueError), opened(tmp_path, Interrupted("observe", ValueError, calls=7)) as session:
        walk(session, 3)
        session.maybe_save_best(1.0)
        session.checkpoint(wait=True)
        walk(session, 3, start=3)
        session.maybe_save_best(9.0)
        session.flush()
        walk(session, 1, start=6)
    with opened(tmp_path) as session:
        assert (session.total_steps, session.best_score) == (3, 1.0)
        assert session.run is not None
        assert session.run.best_checkpoint_path.samefile(session.run.path / "checkpoints" / "best_3.mpk")
        assert (session.run.path / "rewound" / "resume_1" / "best_6.mpk").exists()


def test_a_best_that_a_checkpoint_names_is_not_overwritten(tmp_path: Path) -> None:
    crashed = TrainingSession.open("walk", ToyAgent(), root=tmp_path, learner="manual")
    walk(crashed, 3)
    crashed.maybe_save_best(1.0)
    crashed.checkpoint(wait=True)
    crashed.learn()
    crashed.maybe_save_best(2.0)
    crashed.flush()
    assert crashed.run is not None
    crashed.interrupter.unwatch()
    crashed.run.close()
    with opened(tmp_path, learner="manual") as session:
        assert session.best_score == 1.0
        assert session.run is not None
        best = codec.read_file(session.run.best_checkpoint_path)
        assert (best["score"], best["agent"]["updates"]) == (1.0, 0)


# What joins the checkpoint


def test_an_attached_object_is_restored_when_it_is_attached(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.attach("world", Probe())
        session.stop()
    probe = Probe()
    with opened(tmp_path) as session:
        assert probe.loaded is None
        session.attach("world", probe)
        assert probe.loaded == {"seen": 1}


def test_a_state_that_nobody_claims_is_kept_for_later(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.attach("world", Probe())
        session.stop()
    with opened(tmp_path) as session:
        walk(session, 3)
        session.stop()
    probe = Probe()
    with opened(tmp_path) as session:
        assert session.total_steps == 3
        session.attach("world", probe)
    assert probe.loaded == {"seen": 1}


def test_an_object_the_checkpoint_does_not_know_starts_as_it_is(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.stop()
    probe = Probe()
    with opened(tmp_path) as session:
        session.attach("world", probe)
    assert probe.loaded is None


def test_a_name_is_attached_once() -> None:
    session = TrainingSession(ToyAgent())
    session.attach("world", Probe())
    with pytest.raises(ConfigError, match="that name is taken"):
        session.attach("world", Probe())


def test_what_has_no_state_cannot_be_attached() -> None:
    with pytest.raises(ConfigError, match="object has no state and no load_state"):
        TrainingSession(ToyAgent()).attach("world", object())  # type: ignore[arg-type]


def test_an_attached_state_is_that_of_the_moment_of_the_checkpoint(tmp_path: Path) -> None:
    class World(Probe):
        def __init__(self) -> None:
            super().__init__()
            self.position = np.zeros(3)

        def state(self) -> dict[str, Any]:
            return {"position": self.position}

    world = World()
    with opened(tmp_path) as session:
        session.attach("world", world)
        walk(session, 3)
        session.checkpoint()
        world.position[:] = 9.0
        session.flush()
        saved = Checkpoint.read(reader_of(session).path / "checkpoints" / "step_3.mpk")
    assert saved.attached["world"]["position"].tolist() == [0.0, 0.0, 0.0]


# Opening


def test_open_starts_a_run_and_then_goes_on_with_it(tmp_path: Path) -> None:
    with opened(tmp_path, max_steps=20) as session:
        assert session.resumed is None
        walk(session, 10)
    with opened(tmp_path, max_steps=20) as again:
        assert again.resumed is not None
        assert (again.resumed.step, again.resumed.grade, again.total_steps) == (10, "exact", 10)
        assert again.run is not None
        assert again.run.path == reader_of(session).path
        walk(again, 10, start=10)
    with opened(tmp_path, max_steps=20) as fresh:
        assert fresh.resumed is None


def test_open_takes_a_version_with_the_name(tmp_path: Path) -> None:
    with TrainingSession.open("walk/v7", ToyAgent(), root=tmp_path) as session:
        assert session.run is not None
        assert (session.run.name, session.run.version) == ("walk", "v7")


def test_a_run_that_is_open_cannot_be_opened_again(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        walk(session, 3)
        with pytest.raises(RunLocked), opened(tmp_path):
            pass
        walk(session, 1, start=3)


def test_a_session_that_cannot_be_made_leaves_the_run_free(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.stop()
    with pytest.raises(ConfigError), opened(tmp_path, learner="elsewhere"):
        pass
    with opened(tmp_path) as session:
        assert session.resumed is not None


def test_a_run_of_another_seed_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, seed=1) as session:
        session.stop()
    with pytest.raises(ConfigError, match=r"seed 2 was given, but .* was made with 1"), opened(tmp_path, seed=2):
        pass


def test_a_run_without_a_checkpoint_starts_anew_and_says_so(tmp_path: Path) -> None:
    run = TrainingRun.create("walk", root=tmp_path)
    run.log_train_episode(EpisodeRecord(1.0, 1, EpisodeStatus.TERMINATED), {"env_steps": 1})
    run.close()
    with opened(tmp_path) as session:
        assert session.resumed is not None
        assert (session.resumed.step, session.resumed.checkpoint) == (0, None)
        assert "starts over: 1 rows of train_episodes.jsonl" in session.resumed.lost[0]
        assert reader_of(session).train_episodes() == []


def test_strict_refuses_a_resume_that_is_not_exact(tmp_path: Path) -> None:
    with opened(tmp_path, PolicyAgent(), learner="background") as session:
        session.stop()
    with (
        pytest.raises(Exception, match="cannot be resumed exactly: the background learner"),
        opened(tmp_path, PolicyAgent(), learner="background", strict=True),
    ):
        pass


@pytest.mark.parametrize("missing", ["act", "observe", "updates_due", "update", "state", "load_state", "env_steps"])
def test_what_is_no_agent_is_refused_by_what_it_lacks(missing: str) -> None:
    members: dict[str, Any] = dict.fromkeys(("act", "observe", "updates_due", "update", "state", "load_state"))
    members |= {"env_steps": 0, "updates": 0}
    del members[missing]
    with pytest.raises(ConfigError, match=f"is not a LearningAgent: it has no {missing}"):
        TrainingSession(type("Half", (), members)())  # type: ignore[arg-type]


# How a run ends


def status_of(session: TrainingSession) -> tuple[str, str | None]:
    reader = reader_of(session)
    return reader.status, reader.metadata.stop_reason


def test_a_run_that_made_its_steps_is_finished(tmp_path: Path) -> None:
    with opened(tmp_path, max_steps=3) as session:
        walk(session, 3)
    assert status_of(session) == ("finished", "max_steps")
    metadata = reader_of(session).metadata
    assert (metadata.total_steps, metadata.updates, metadata.exact) == (3, 3, True)


def test_a_run_without_a_limit_is_never_finished_unless_its_host_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        walk(session, 3)
    assert status_of(session) == ("stopped", "the host left its loop")
    with opened(tmp_path) as session:
        assert session.total_steps == 3
        session.stop("solved", complete=True)
    assert status_of(session) == ("finished", "solved")


def test_a_run_that_was_left_early_is_stopped(tmp_path: Path) -> None:
    with opened(tmp_path, max_steps=10) as session:
        walk(session, 3)
    assert status_of(session) == ("stopped", "the host left its loop")


@pytest.mark.parametrize(("complete", "status"), [(False, "stopped"), (True, "finished")])
def test_a_stop_says_whether_the_goal_was_reached(tmp_path: Path, complete: bool, status: str) -> None:
    with opened(tmp_path, max_steps=10) as session:
        walk(session, 3)
        session.stop("the reason", complete=complete)
    assert status_of(session) == (status, "the reason")
    assert steps_saved(session) == [3]


def test_a_running_run_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        assert status_of(session) == ("running", None)


def test_a_keyboard_interrupt_stops_and_saves(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), opened(tmp_path) as session:  # noqa: PT012
        walk(session, 3)
        raise KeyboardInterrupt
    assert status_of(session) == ("stopped", "KeyboardInterrupt")
    assert steps_saved(session) == [3]


def test_an_exception_of_the_host_fails_and_saves(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), opened(tmp_path) as session:  # noqa: PT012
        walk(session, 3)
        _ = 1 / 0
    assert status_of(session) == ("failed", "ZeroDivisionError: division by zero")
    assert steps_saved(session) == [3]


@pytest.mark.parametrize("method", ["act", "observe", "update"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_agent_in_the_middle_of_something_is_not_saved(
    tmp_path: Path, method: str, error: type[BaseException]
) -> None:
    with pytest.raises(error), opened(tmp_path, Interrupted(method, error)) as session:  # noqa: PT012
        for number in range(5):
            session.act(line(number))
            if number == 2:
                session.checkpoint(wait=True)
            session.observe(move(number))
    assert steps_saved(session) == [2]
    assert status_of(session)[0] == ("stopped" if error is KeyboardInterrupt else "failed")


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32(math.nan), np.array([1.0, math.nan])])
def test_an_agent_whose_loss_is_not_finite_is_not_saved(tmp_path: Path, value: Any) -> None:
    class Diverging(ToyAgent):
        def update(self, n: int) -> Mapping[str, Any]:
            super().update(n)
            return {"loss": value if self.updates == 5 else 1.0}

    with (  # noqa: PT012
        pytest.raises(AgentError, match="agent/loss is not finite"),
        opened(tmp_path, Diverging()) as session,
    ):
        walk(session, 3)
        session.checkpoint(wait=True)
        walk(session, 5, start=3)
        session.checkpoint(wait=True)
    assert steps_saved(session) == [3]
    assert status_of(session)[0] == "failed"


@pytest.mark.parametrize("name", ["loss", "critic_loss"])
def test_a_loss_that_is_a_plain_number_and_not_finite_stops_the_training_at_once(tmp_path: Path, name: str) -> None:
    class Diverging(ToyAgent):
        def update(self, n: int) -> Mapping[str, Any]:
            super().update(n)
            return {name: math.nan if self.updates == 5 else 1.0}

    agent = Diverging()
    with pytest.raises(AgentError, match=f"agent/{name} is not finite"), opened(tmp_path, agent) as session:
        walk(session, 8)
    assert agent.updates == 5


def test_a_process_that_dies_leaves_a_crashed_run_that_goes_on(tmp_path: Path) -> None:
    program = f"""
        import os, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from toys import ToyAgent, drive
        from rekindle import TrainingSession
        with TrainingSession.open("walk", ToyAgent(), root={str(tmp_path)!r}, checkpoint_every=10) as session:
            drive(session, until=25)
            session.flush()
            os._exit(1)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert RunReader(tmp_path / "walk").status == "crashed"
    with opened(tmp_path, max_steps=60) as session:
        assert session.total_steps == 20
        drive(session)
    with opened(tmp_path / "whole", max_steps=60) as whole:
        drive(whole)
    assert verify(tmp_path / "walk").digests == verify(tmp_path / "whole" / "walk").digests


def test_a_run_whose_last_checkpoint_could_not_be_saved_has_failed(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    session = TrainingSession.open("walk", ToyAgent(), root=tmp_path, max_steps=3, recorders=[recorder])
    walk(session, 3)
    assert session.run is not None
    session.run.checkpoint_path(3).mkdir()
    with pytest.raises(StorageError, match="step_3"):
        session.close()
    assert status_of(session)[0] == recorder.status == "failed"
    assert not reader_of(session).is_live


def test_an_agent_that_fails_as_its_state_is_asked_for_fails_the_run(tmp_path: Path) -> None:
    class Failing(ToyAgent):
        def state(self) -> dict[str, Any]:
            if self.env_steps:
                raise ValueError("broken weights")
            return super().state()

    recorder = MemoryRecorder()
    with (
        pytest.raises(ValueError, match="broken weights"),
        opened(tmp_path, Failing(), recorders=[recorder]) as session,
    ):
        walk(session, 3)
    assert status_of(session) == ("failed", "ValueError: broken weights")
    assert recorder.status == "failed"


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    events: list[Event] = []
    with opened(tmp_path, callbacks=[events.append]) as session:
        walk(session, 3)
        session.close()
        session.close()
    assert sum(isinstance(event, TrainingEnded) for event in events) == 1
    assert status_of(session) == ("stopped", "the host left its loop")


def test_a_session_is_closed_without_a_with_block_too(tmp_path: Path) -> None:
    session = TrainingSession.open("walk", ToyAgent(), root=tmp_path)
    walk(session, 3)
    session.close()
    assert steps_saved(session) == [3]
    assert not reader_of(session).is_live


def test_a_session_that_did_nothing_new_saves_nothing_new(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        walk(session, 3)
        session.checkpoint(wait=True)
        before = session.run.checkpoint_path(3).stat().st_ino  # type: ignore[union-attr]
        session.stop()
    with opened(tmp_path) as session:
        session.stop()
    assert session.run is not None
    assert session.run.checkpoint_path(3).stat().st_ino == before


def test_an_end_that_was_never_announced_is_announced_by_closing(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.observe(move(0, status=1))
    assert [row["status"] for row in reader_of(session).train_episodes()] == ["terminated"]
    assert not reader_of(session).metadata.exact


# What a host sees and does


def test_named_observations_reach_the_agent_by_name() -> None:
    seen: list[Any] = []

    class Noting(ToyAgent):
        def observe(self, transitions: Transitions, streams: Array) -> None:
            super().observe(transitions, streams)
            seen.append((transitions.copy().observations, transitions.copy().next_observations))

    stream = TrainingSession(Noting()).stream()
    first = {"speed": np.array([1.0, 2.0], np.float32), "gear": 3}
    second = {"gear": 4, "speed": np.array([5.0, 6.0], np.float32)}
    stream.begin(first)
    stream.step(second, 1.0)
    ((before, after),) = seen
    assert {name: array.tolist() for name, array in before.items()} == {"speed": [[1.0, 2.0]], "gear": [3]}
    assert {name: array.tolist() for name, array in after.items()} == {"speed": [[5.0, 6.0]], "gear": [4]}


def test_named_observations_survive_a_resume(tmp_path: Path) -> None:
    observation = {"speed": np.array([1.0, 2.0], np.float32), "gear": 3}
    with opened(tmp_path) as session:
        action = session.stream().begin(observation)
        session.stop()
    with opened(tmp_path) as session:
        assert session.stream().resume(dict(reversed(observation.items()))) == action


def test_batches_of_named_observations_are_taken_too() -> None:
    session = TrainingSession(ToyAgent())
    before = {"a": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.int64)}
    actions = session.act_many(before)
    after = {"a": np.ones((3, 2), np.float32), "b": np.ones(3, np.int64)}
    session.observe_many(Transitions(before, actions, np.ones(3), after, np.zeros(3, np.uint8)))
    assert session.total_steps == 3


class Move(Enum):
    """What a host can do."""

    LEFT = "left"
    RIGHT = "right"


def test_an_encoder_and_a_mapper_stand_between_host_and_agent() -> None:
    agent = PolicyAgent()
    session = TrainingSession(agent, observation_encoder=DictEncoder("x", "y"), action_mapper=EnumMapper(Move))
    stream = session.stream()
    for step in range(10):
        here = {"x": step, "y": [0.5]}
        action = stream.begin(here) if step == 0 else stream.step(here, 1.0)
        assert action in list(Move)
    assert agent.env_steps == 9
    assert session.act({"x": 1, "y": 2}, ActMode.EXPLOIT) in list(Move)


def test_an_encoder_and_a_mapper_stand_before_batches_too() -> None:
    seen: list[Any] = []

    class Noting(ToyAgent):
        def observe(self, transitions: Transitions, streams: Array) -> None:
            super().observe(transitions, streams)
            seen.append(transitions.copy())

    session = TrainingSession(Noting(), observation_encoder=DictEncoder("x"), action_mapper=EnumMapper(Move))
    before, after = {"x": np.arange(3)}, {"x": np.arange(3) + 1}
    actions = session.act_many(before)
    assert set(actions) <= set(Move)
    session.observe_many(Transitions(before, actions, np.ones(3), after, np.zeros(3, np.uint8)))  # type: ignore[arg-type]
    assert seen[0].observations.tolist() == [[0.0], [1.0], [2.0]]
    assert seen[0].actions.tolist() == [list(Move).index(action) for action in actions]


def test_a_batch_of_one_is_the_same_as_one(tmp_path: Path) -> None:
    def by_one(session: TrainingSession, before: Array, after: Array, status: int) -> None:
        session.act(before)
        session.observe(move(float(before[0]), status=status))

    def by_batch(session: TrainingSession, before: Array, after: Array, status: int) -> None:
        session.act_many(before[None])
        session.observe_many(
            Transitions(before[None], np.zeros(1, np.int64), np.ones(1), after[None], np.array([status], np.uint8))
        )

    digests = []
    for name, call in (("one", by_one), ("batch", by_batch)):
        with opened(tmp_path / name, metrics_every=5) as session:
            for number in range(20):
                status = int(number % 6 == 5)
                call(session, line(number), line(number + 1), status)
                if status:
                    session.on_episode()
        digests.append(verify(tmp_path / name / "walk").digests)
    assert digests[0] == digests[1]


def test_streams_of_a_batch_may_come_in_any_order_and_number() -> None:
    agent = PolicyAgent()
    session = TrainingSession(agent)
    zeros = np.zeros((2, 1), np.float32)
    session.act_many(np.zeros((3, 1), np.float32), streams=["a", "b", "c"])
    session.observe_many(
        Transitions(zeros, np.zeros(2, np.int64), np.ones(2), zeros + 1, np.array([0, 1], np.uint8)),
        streams=["c", "a"],
    )
    session.on_episode(stream="a")
    assert [session.stream(name).is_open for name in ("a", "b", "c")] == [False, True, True]


def test_streams_may_be_named_by_numpy_numbers() -> None:
    session = TrainingSession(ToyAgent())
    session.act_many(np.zeros((2, 1), np.float32), streams=np.array([3, 5]))
    assert session.stream(np.int64(3)).is_open  # type: ignore[arg-type]
    assert session.stream(3).id == 3


# Learning elsewhere


def test_a_manual_learner_learns_only_when_told_to(tmp_path: Path) -> None:
    with opened(tmp_path, learner="manual") as session:
        walk(session, 5)
        assert session.updates == 0
        assert session.learn() == 5
        assert (session.learn(), session.updates) == (0, 5)
    assert reader_of(session).metadata.exact


def test_a_budget_of_time_makes_the_run_one_of_its_kind(tmp_path: Path) -> None:
    with opened(tmp_path, learner="manual") as session:
        walk(session, 5)
        session.learn(milliseconds=1000.0)
    assert not reader_of(session).metadata.exact


def test_a_resume_that_learns_with_a_budget_of_time_is_approximate_and_says_why(tmp_path: Path) -> None:
    with opened(tmp_path, learner="manual") as session:
        session.observe(move(0, status=1))
        session.on_episode()
    with opened(tmp_path, learner="manual") as session:
        walk(session, 5)
        session.learn(milliseconds=1000.0)
        session.learn(milliseconds=1000.0)
    assert session.resumed is not None
    assert session.resumed.grade == "approximate"
    (lost,) = session.resumed.lost
    assert lost.startswith("learn(milliseconds=...)")
    assert reader_of(session).metadata.resumes[-1].lost == (lost,)


def test_learn_is_for_manual_sessions() -> None:
    with pytest.raises(ConfigError, match="learner='manual'"):
        TrainingSession(ToyAgent()).learn()


def test_a_background_learner_loses_nothing_at_the_end(tmp_path: Path) -> None:
    agent = PolicyAgent()
    with opened(tmp_path, agent, learner="background", checkpoint_every=50, metrics_every=50) as session:
        drive(session, until=300)
        session.stop()
    assert agent.env_steps == session.total_steps == 300
    assert agent.updates == session.updates
    metadata = reader_of(session).metadata
    assert (metadata.total_steps, metadata.updates, metadata.exact) == (300, agent.updates, False)
    assert steps_saved(session)[-1] == 300
    counted = sum(
        row["metrics"].get("agent/loss", {"count": 0})["count"] for row in reader_of(session).metric_windows()
    )
    assert 0 < counted <= agent.updates


def test_a_checkpoint_of_a_background_learner_is_a_consistent_cut(tmp_path: Path) -> None:
    with opened(tmp_path, PolicyAgent(), learner="background", checkpoint_every=50) as session:
        drive(session, until=300)
        session.stop()
    agent = PolicyAgent()
    with opened(tmp_path, agent, learner="background") as session:
        assert session.total_steps == agent.env_steps == 300
        assert session.resumed is not None
        assert session.resumed.lost == ("the background learner is not bit-exact",)
        drive(session, until=400)
        session.stop()
    assert agent.env_steps == 400
    assert verify(tmp_path / "walk").grade == "approximate"
    assert verify(tmp_path / "walk").ok


def test_a_background_run_may_be_gone_on_with_inline(tmp_path: Path) -> None:
    with opened(tmp_path, PolicyAgent(), learner="background") as session:
        drive(session, until=50)
        session.stop()
    with opened(tmp_path, PolicyAgent()) as session:
        drive(session, until=100)
    assert session.total_steps == 100
    assert not reader_of(session).metadata.exact


def test_an_agent_that_fails_in_the_background_fails_the_run(tmp_path: Path) -> None:
    class Failing(PolicyAgent):
        def observe(self, transitions: Transitions, streams: Array) -> None:
            super().observe(transitions, streams)
            if self.env_steps > 20:
                raise ValueError("broken weights")

    with (
        pytest.raises(AgentError, match="broken weights"),
        opened(tmp_path, Failing(), learner="background", checkpoint_every=10) as session,
    ):
        drive(session, until=10_000)
    assert max(steps_saved(session)) <= 20
    assert status_of(session)[0] == "failed"


def test_what_a_background_learner_gave_up_is_counted_over_resumes(tmp_path: Path) -> None:
    skipped = 0
    for until in (500, 1000):
        agent = PolicyAgent()
        with opened(tmp_path, agent, learner="background") as session:
            while session.total_steps < until:
                walk(session, 1, start=session.total_steps)
            session.stop()
        skipped += agent.skipped
        assert session.skipped_updates == skipped


def test_warnings_are_for_log_and_callbacks_where_there_is_no_run(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []
    with (
        caplog.at_level(logging.WARNING, "rekindle"),
        TrainingSession(
            ToyAgent(), metrics_every=2, recorders=[BrokenRecorder()], callbacks=[events.append]
        ) as session,
    ):
        walk(session, 2)
    assert "no network" in caplog.text
    assert [event.message for event in events if isinstance(event, Warned)] == [
        "the recorder BrokenRecorder failed: OSError: no network"
    ]


def test_an_own_loop_over_an_environment_is_exact(tmp_path: Path) -> None:
    digests = []
    for name, stops in (("whole", [120]), ("cut", [7, 8, 50, 120])):
        for stop in stops:
            with opened(
                tmp_path / name, ReplayAgent(capacity=30), max_steps=120, checkpoint_every=20, metrics_every=15
            ) as session:
                drive(session, Corridor(), until=stop)
        digests.append(verify(tmp_path / name / "walk").digests)
    assert digests[0] == digests[1]


def test_the_run_says_what_trains_and_how_far_for_those_who_look_at_it(tmp_path: Path) -> None:
    with opened(tmp_path, max_steps=40) as session:
        known = reader_of(session).metadata
        assert (known.agent, known.max_steps) == ("ToyAgent", 40)
        drive(session, until=10)
    with opened(tmp_path, max_steps=20) as session:
        assert reader_of(session).metadata.max_steps == 20


def test_what_belongs_to_the_end_is_logged_after_the_last_checkpoint_and_taken_back(tmp_path: Path) -> None:
    def train(run: TrainingRun, end: int) -> None:
        with TrainingSession(ToyAgent(), run=run, max_steps=end, checkpoint_every=20) as session:

            def say() -> None:
                record = EpisodeRecord(float(end), 1, EpisodeStatus.TERMINATED)
                session.on_eval_episode(record, final=True)
                session.maybe_save_best(record.total_reward)

            session.at_end(say)
            drive(session)
        rows = run.reader.eval_episodes()
        assert [(row["total_reward"], row["final"]) for row in rows] == [(end, True)]
        assert codec.read_file(run.best_checkpoint_path)["score"] == end

    train(TrainingRun.create("whole", root=tmp_path), 60)
    train(TrainingRun.create("extended", root=tmp_path), 25)
    for end in (40, 60):
        train(TrainingRun.resume(tmp_path / "extended"), end)
    whole, extended = (verify(tmp_path / name) for name in ("whole", "extended"))
    assert whole.ok
    assert extended.digests == whole.digests


def test_a_run_that_is_stopped_has_not_come_to_its_end(tmp_path: Path) -> None:
    ends: list[int] = []
    for stop in (True, False):
        with opened(tmp_path, max_steps=30) as session:
            session.at_end(lambda session=session: ends.append(session.total_steps))
            drive(session, until=10)
            if stop:
                session.stop("enough")
            else:
                drive(session)
    assert ends == [30]


def test_a_failure_at_the_end_comes_after_the_last_checkpoint(tmp_path: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError("at the very end")

    session = TrainingSession(ToyAgent(), run=TrainingRun.create("end", root=tmp_path), max_steps=30)
    session.at_end(fail)
    drive(session)
    with pytest.raises(ZeroDivisionError, match="at the very end"):
        session.close()
    assert steps_saved(session) == [30]
    assert reader_of(session).metadata.status == "failed"


def test_a_loss_that_the_host_notes_makes_the_resume_approximate(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        drive(session, until=10)
        session.stop("enough")
    with opened(tmp_path) as session:
        session.mark_inexact("the weather was another")
        session.stop("enough")
    (resume,) = reader_of(session).metadata.resumes
    assert (resume.grade, resume.lost) == ("approximate", ("the weather was another",))
    assert verify(reader_of(session).path).grade == "approximate"
