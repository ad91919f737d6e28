"""Finished windows reach the log, the store and the recorders, whatever goes wrong on the way."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from rekindle.errors import InputError, RunError
from rekindle.events import MemoryRecorder, MetricsFlushed, Recorder, Stamp, Summary
from rekindle.run.metrics import EventStore, MetricWindow, metrics_row
from rekindle.run.processor import EventProcessor
from rekindle.storage import logs
from rekindle.storage.logs import JsonLines, LogPosition


def stamp(env_steps: int = 10) -> Stamp:
    return Stamp(env_steps=env_steps, updates=5, episodes=2, wall_time=0.5)


def flushed(env_steps: int = 10, **values: float) -> MetricsFlushed:
    window = MetricWindow()
    for name, value in values.items():
        window.add(name, value)
    return MetricsFlushed(stamp(env_steps), window.flush())


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


class Odd:
    """A value that JSON has no word for."""

    def __repr__(self) -> str:
        return "odd"


def test_counters_and_metrics_of_numpy_are_logged_as_numbers(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    processor = EventProcessor(log=log, store=EventStore(), report=refuse_reports)
    counters: dict[str, Any] = {"env_steps": np.int64(10), "updates": np.int32(5), "episodes": np.uint8(2)}
    aggregates: list[Any] = [np.float32(0.5), np.float64(0.5), 0.5, np.float16(0.5), np.int64(1)]
    processor.submit(MetricsFlushed(Stamp(**counters, wall_time=0.5), {"loss": Summary(*aggregates)}))
    assert processor.mark().result(timeout=60).rows == 1
    processor.close("finished")
    log.close()
    assert logs.read_rows(tmp_path / "log") == [{"row": 0, **json_row(flushed(10, loss=0.5))}]


def json_row(event: MetricsFlushed) -> dict[str, Any]:
    return msgspec.to_builtins(metrics_row(event))


def test_a_row_that_is_no_json_is_logged_as_text_and_reported(tmp_path: Path) -> None:
    log, reports = JsonLines(tmp_path / "log"), []
    processor = EventProcessor(log=log, store=EventStore(), report=reports.append)
    odd: Any = Odd()
    processor.submit(MetricsFlushed(stamp(10), {"bad \udc80 name": Summary(1.0, 1.0, 1.0, odd, 1)}))
    processor.submit(flushed(20, loss=0.5))
    assert processor.mark().result(timeout=60).rows == 2
    processor.close("finished")
    log.close()
    first, second = logs.read_rows(tmp_path / "log")
    assert first["metrics"] == {
        "bad \\udc80 name": {"mean": 1.0, "min": 1.0, "max": 1.0, "last": "odd", "count": 1},
    }
    assert second["env_steps"] == 20
    assert len(reports) == 1
    assert "env step 10" in reports[0]


class BrokenLog:
    """A log that fails at everything."""

    path = Path("broken.jsonl")
    position = LogPosition()

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def append(self, fields: Mapping[str, Any]) -> None:
        raise self.error

    def write_out(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no log"), MemoryError("no log"), SystemExit("no log")])
def test_a_log_that_breaks_is_reported_and_holds_nobody(error: BaseException) -> None:
    reports: list[str] = []
    store, recorder, log = EventStore(), MemoryRecorder(), cast("JsonLines", BrokenLog(error))
    processor = EventProcessor(log=log, deferred=[log], store=store, recorders=[recorder], report=reports.append)
    processor.submit(flushed(10, loss=0.5))
    assert processor.mark().result(timeout=60) == LogPosition()
    processor.close("finished")
    assert reports == [
        f"a row of metrics could not be logged: {type(error).__name__}: no log",
        f"broken.jsonl could not be written: {type(error).__name__}: no log",
    ]
    assert store.latest("loss") == 0.5
    assert len(recorder.rows) == 1


def test_a_thread_that_could_not_even_report_makes_every_call_raise() -> None:
    recorder = MemoryRecorder()
    log = cast("JsonLines", BrokenLog(RuntimeError("no log")))
    processor = EventProcessor(log=log, store=EventStore(), recorders=[recorder], report=refuse_reports)
    processor.submit(flushed(10, loss=0.5))
    with pytest.raises(RunError, match="the thread rekindle-events ended: AssertionError: a row of metrics"):
        processor.flush()
    with pytest.raises(RunError, match="rekindle-events ended"):
        processor.submit(flushed(20, loss=0.5))
    with pytest.raises(RunError, match="rekindle-events ended"):
        processor.mark()
    with pytest.raises(RunError, match="rekindle-events ended"):
        processor.close("failed")
    assert recorder.status == "failed"


def test_a_closed_processor_takes_nothing() -> None:
    processor = EventProcessor(log=None, store=EventStore(), report=refuse_reports)
    processor.close("finished")
    with pytest.raises(InputError, match="closed"):
        processor.submit(flushed(10, loss=0.5))
    with pytest.raises(InputError, match="closed"):
        processor.mark()


class WaitingLog(JsonLines):
    """A log on a disk that takes nothing before it is allowed to."""

    gate = threading.Event()

    def append(self, fields: Mapping[str, Any]) -> None:
        self.gate.wait()
        super().append(fields)


def test_a_full_queue_holds_the_training_back_and_drops_nothing(tmp_path: Path) -> None:
    log = WaitingLog(tmp_path / "log")
    processor = EventProcessor(log=log, store=EventStore(), report=refuse_reports, capacity=2)
    submitted: list[int] = []

    def train() -> None:
        for step in range(10):
            processor.submit(flushed(step, loss=1.0))
            submitted.append(step)

    training = threading.Thread(target=train)
    training.start()
    training.join(0.1)
    assert training.is_alive()
    assert len(submitted) <= 3  # one at the log, two in the queue
    log.gate.set()
    training.join()
    processor.close("finished")
    log.close()
    assert [row["env_steps"] for row in logs.read_rows(tmp_path / "log")] == list(range(10))


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


def test_a_slow_recorder_delays_no_window_no_mark_and_no_other_recorder(tmp_path: Path) -> None:
    log, slow, quick = JsonLines(tmp_path / "log"), SlowRecorder(), MemoryRecorder()
    recorders = [slow, quick]
    processor = EventProcessor(log=log, store=EventStore(), recorders=recorders, report=refuse_reports, capacity=2)
    for step in range(50):
        processor.submit(flushed(step, loss=1.0))
    assert processor.mark().result(timeout=60).rows == 50
    assert slow.steps == []
    slow.gate.set()
    processor.flush()
    assert slow.steps == list(range(50))
    assert len(quick.rows) == 50
    processor.close("finished")
    log.close()


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
