"""Windows of metrics, where they go, and that nothing which goes wrong on the way is lost."""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.errors import InputError, StateError
from rekindle.events import MemoryRecorder, MetricsFlushed, Recorder, Stamp, Summary
from rekindle.run.metrics import EventStore, MetricWindow, metrics_row, restore_store
from rekindle.run.processor import EventProcessor
from rekindle.storage import logs
from rekindle.storage.logs import JsonLines

nan = math.nan


def stamp(env_steps: int = 10) -> Stamp:
    return Stamp(env_steps=env_steps, updates=5, episodes=2, wall_time=0.5)


def flushed(env_steps: int = 10, **values: float) -> MetricsFlushed:
    window = MetricWindow()
    for name, value in values.items():
        window.add(name, value)
    return MetricsFlushed(stamp(env_steps), window.flush())


# Windows


def test_a_window_sums_up_each_metric() -> None:
    window = MetricWindow()
    for value in (3.0, 1.0, 2.0):
        window.add("loss", value)
    window.add("epsilon", 1)
    assert window.flush() == {
        "epsilon": Summary(mean=1.0, min=1.0, max=1.0, last=1.0, count=1),
        "loss": Summary(mean=2.0, min=1.0, max=3.0, last=2.0, count=3),
    }


def test_a_flushed_window_is_empty() -> None:
    window = MetricWindow()
    assert window.is_empty
    window.add("loss", 1.0)
    assert not window.is_empty
    window.flush()
    assert window.is_empty
    assert window.flush() == {}


def test_the_summary_is_in_order_of_names() -> None:
    window = MetricWindow()
    for name in ("b", "a", "c"):
        window.add(name, 1.0)
    assert list(window.flush()) == ["a", "b", "c"]


@pytest.mark.parametrize("values", [[nan, 1.0, 2.0], [1.0, nan, 2.0], [1.0, 2.0, nan]])
def test_a_nan_shows_in_every_aggregate_wherever_it_stood(values: list[float]) -> None:
    window = MetricWindow()
    for value in values:
        window.add("loss", value)
    summary = window.flush()["loss"]
    assert all(math.isnan(value) for value in (summary.mean, summary.min, summary.max))
    assert summary.count == 3


def test_infinities_are_the_least_and_the_greatest() -> None:
    window = MetricWindow()
    for value in (0.0, math.inf, -math.inf):
        window.add("x", value)
    summary = window.flush()["x"]
    assert (summary.min, summary.max) == (-math.inf, math.inf)


def test_an_array_counts_as_its_elements() -> None:
    window = MetricWindow()
    window.add("loss", np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    assert window.flush()["loss"] == Summary(mean=2.5, min=1.0, max=4.0, last=4.0, count=4)


class OnDevice:
    """A value that takes time to fetch, as one still being computed does."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.fetched = False

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.fetched = True
        return np.array(self.value, dtype)


def test_a_value_on_a_device_is_fetched_only_when_the_result_is_needed() -> None:
    window, value = MetricWindow(), OnDevice(2.0)
    window.add("loss", value)
    assert not value.fetched
    assert not window.is_empty
    assert window.flush()["loss"].mean == 2.0


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans(), st.booleans()), min_size=1))
def test_values_count_in_the_order_given_whatever_their_kind(values: list[tuple[float, bool, bool]]) -> None:
    plain, mixed = MetricWindow(), MetricWindow()
    for value, is_lazy, reads in values:
        plain.add("x", value)
        mixed.add("x", np.float64(value) if is_lazy else value)
        if reads:
            mixed.read()
    assert mixed.flush() == plain.flush()


def test_values_of_many_names_are_those_given_one_by_one() -> None:
    one_by_one, together = MetricWindow(), MetricWindow()
    for value in (1.0, 2.5, 4.0):
        one_by_one.add("agent/loss", value)
        one_by_one.add("agent/updates", int(value))
        together.add_all("agent/", {"loss": value, "updates": int(value)})
    assert together.flush() == one_by_one.flush()


def test_a_value_that_is_no_number_takes_no_other_with_it() -> None:
    window = MetricWindow()
    window.add("before", 1.0)
    window.add("name", "no number")
    window.add("after", 2.0)
    with pytest.raises(InputError, match="'name'"):
        window.read()
    assert window.means() == {"before": 1.0, "after": 2.0}


def test_a_value_that_is_no_number_is_named() -> None:
    window = MetricWindow()
    window.add("note", "hello")
    with pytest.raises(InputError, match="'note' is not a number: 'hello'"):
        window.flush()


@pytest.mark.parametrize("value", [nan, math.inf, np.float32(nan), np.array([1.0, nan])])
def test_a_loss_that_is_not_finite_is_found(value: Any) -> None:
    window = MetricWindow()
    window.add("agent/critic_loss", 1.0)
    window.add("agent/actor_loss", value)
    window.add("agent/reward_scale", nan)
    window.read()
    assert window.non_finite_loss() == "agent/actor_loss"


def test_other_metrics_may_be_nan() -> None:
    window = MetricWindow()
    window.add("agent/loss", 1.0)
    window.add("eval/success", nan)
    assert window.non_finite_loss() is None


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.lists(st.floats(allow_nan=False), min_size=1))
def test_a_half_filled_window_goes_on_from_its_state(before: list[float], after: list[float]) -> None:
    straight, resumed = MetricWindow(), MetricWindow()
    for value in before:
        straight.add("x", value)
    resumed.load_state(straight.state())
    for value in after:
        straight.add("x", value)
        resumed.add("x", value)
    assert repr(resumed.flush()) == repr(straight.flush())


def test_the_state_of_a_window_holds_what_was_still_unread() -> None:
    window, resumed = MetricWindow(), MetricWindow()
    window.add("x", np.float32(3.0))
    resumed.load_state(window.state())
    assert resumed.flush()["x"].mean == 3.0


def test_loading_a_state_forgets_what_was_there() -> None:
    window = MetricWindow()
    window.add("x", 1.0)
    window.add("y", np.float32(1.0))
    window.load_state({})
    assert window.is_empty


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(StateError, match="5 numbers"):
        MetricWindow().load_state({"x": np.zeros(4)})


# The store


def test_the_store_knows_the_latest_the_best_and_the_history() -> None:
    store = EventStore()
    for step, value in ((10, 2.0), (20, 5.0), (30, 1.0)):
        store.add(step, {"return": value})
    assert store.names == ["return"]
    assert store.latest("return") == 1.0
    assert store.best("return") == (20, 5.0)
    assert store.best("return", mode="min") == (30, 1.0)
    steps, values = store.history("return")
    assert (steps.tolist(), values.tolist()) == ([10, 20, 30], [2.0, 5.0, 1.0])


def test_the_store_knows_nothing_of_a_metric_it_never_saw() -> None:
    store = EventStore()
    assert store.latest("return") is None
    assert store.best("return") is None
    assert [array.tolist() for array in store.history("return")] == [[], []]


def test_the_first_of_two_equals_is_the_best() -> None:
    store = EventStore()
    for step in (10, 20):
        store.add(step, {"return": 1.0})
    assert store.best("return") == store.best("return", mode="min") == (10, 1.0)


def test_the_store_leaves_out_nan() -> None:
    store = EventStore()
    store.add(10, {"return": nan})
    assert store.names == []


def test_the_best_is_remembered_longer_than_the_history() -> None:
    store = EventStore(remembered=2)
    for step, value in ((10, 9.0), (20, 1.0), (30, 2.0)):
        store.add(step, {"return": value})
    assert store.history("return")[0].tolist() == [20, 30]
    assert store.best("return") == (10, 9.0)


def test_a_store_is_filled_again_from_the_log(tmp_path: Path) -> None:
    straight, restored = EventStore(), EventStore()
    log = JsonLines(tmp_path / "log")
    processor = EventProcessor(log=log, store=straight, report=refuse_reports)
    for step in (10, 20):
        processor.submit(flushed(step, loss=1.0 / step, diverged=nan))
    processor.close("finished")
    log.close()
    restore_store(restored, logs.read_rows(tmp_path / "log"))
    assert restored.names == straight.names == ["loss"]
    assert restored.history("loss")[1].tolist() == straight.history("loss")[1].tolist()


# The processor


def refuse_reports(message: str) -> None:
    raise AssertionError(message)


def test_a_window_reaches_the_log_the_store_and_the_recorders(tmp_path: Path) -> None:
    log, store, recorder = JsonLines(tmp_path / "log"), EventStore(), MemoryRecorder()
    processor = EventProcessor(log=log, store=store, recorders=[recorder], report=refuse_reports)
    processor.submit(flushed(10, loss=0.5))
    processor.flush()
    assert logs.read_rows(tmp_path / "log") == [
        {
            "row": 0,
            "env_steps": 10,
            "updates": 5,
            "episodes": 2,
            "wall_time": 0.5,
            "metrics": {"loss": {"mean": 0.5, "min": 0.5, "max": 0.5, "last": 0.5, "count": 1}},
        }
    ]
    assert store.latest("loss") == 0.5
    assert recorder.rows == [(stamp(10), {"loss": 0.5})]
    processor.close("finished")
    log.close()


def test_a_row_carries_the_stamp_and_every_aggregate() -> None:
    row = metrics_row(flushed(10, loss=0.5))
    assert list(row) == ["env_steps", "updates", "episodes", "wall_time", "metrics"]
    assert row["metrics"]["loss"] == Summary(0.5, 0.5, 0.5, 0.5, 1)


def test_closing_finishes_what_was_submitted_and_tells_the_recorders_how_it_ended() -> None:
    recorder = MemoryRecorder()
    processor = EventProcessor(log=None, store=EventStore(), recorders=[recorder], report=refuse_reports)
    for step in range(50):
        processor.submit(flushed(step, loss=1.0))
    processor.close("stopped")
    assert [when.env_steps for when, _ in recorder.rows] == list(range(50))
    assert recorder.status == "stopped"


def test_a_mark_is_the_position_behind_what_was_submitted_before(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    processor = EventProcessor(log=log, store=EventStore(), report=refuse_reports)
    marks = []
    for step in range(3):
        marks.append(processor.mark())
        processor.submit(flushed(step, loss=1.0))
    assert [mark.result().rows for mark in marks] == [0, 1, 2]
    processor.close("finished")
    log.close()


class SlowRecorder:
    """Takes nothing before it is allowed to."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.steps: list[int] = []

    def record(self, values: Mapping[str, float], stamp: Stamp) -> None:
        self.gate.wait()
        self.steps.append(stamp.env_steps)

    def close(self, status: str) -> None:
        pass


def test_a_full_queue_holds_the_training_back_and_drops_nothing() -> None:
    recorder = SlowRecorder()
    processor = EventProcessor(log=None, store=EventStore(), recorders=[recorder], report=refuse_reports, capacity=2)
    submitted: list[int] = []

    def train() -> None:
        for step in range(10):
            processor.submit(flushed(step, loss=1.0))
            submitted.append(step)

    training = threading.Thread(target=train)
    training.start()
    training.join(0.1)
    assert training.is_alive()
    assert len(submitted) <= 3  # one in the recorder's hands, two in the queue
    recorder.gate.set()
    training.join()
    processor.close("finished")
    assert recorder.steps == list(range(10))


class BrokenRecorder:
    """Fails at everything."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def record(self, values: Mapping[str, float], stamp: Stamp) -> None:
        raise self.error

    def close(self, status: str) -> None:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("no network"), SystemExit("no network")])
def test_a_recorder_that_fails_is_reported_and_the_others_go_on(error: BaseException) -> None:
    reports: list[str] = []
    recorder = MemoryRecorder()
    processor = EventProcessor(
        log=None, store=EventStore(), recorders=[BrokenRecorder(error), recorder], report=reports.append
    )
    processor.submit(flushed(10, loss=1.0))
    processor.flush()
    processor.close("finished")
    told = f"the recorder BrokenRecorder failed: {type(error).__name__}: no network"
    assert reports == [told, told]
    assert len(recorder.rows) == 1
    assert recorder.status == "finished"


def test_a_log_that_cannot_be_written_is_reported_and_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[str] = []
    log, recorder = JsonLines(tmp_path / "log"), MemoryRecorder()
    processor = EventProcessor(log=log, store=EventStore(), recorders=[recorder], report=reports.append)
    write = os.write

    def full(*_arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    processor.submit(flushed(10, loss=1.0))
    processor.flush()
    monkeypatch.setattr(os, "write", write)
    processor.submit(flushed(20, loss=1.0))
    processor.close("finished")
    log.close()
    assert len(reports) == 1
    assert "No space left" in reports[0]
    assert [row["env_steps"] for row in logs.read_rows(tmp_path / "log")] == [10, 20]
    assert len(recorder.rows) == 2


def test_any_object_with_the_two_methods_is_a_recorder() -> None:
    assert isinstance(SlowRecorder(), Recorder)
    assert isinstance(MemoryRecorder(), Recorder)
    assert not isinstance(logging.getLogger(), Recorder)
