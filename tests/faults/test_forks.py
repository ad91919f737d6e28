"""A forked child has a copy of every object of its parent's run, and changes nothing of it."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import ToyAgent

from rekindle.checkpoint.replay_journal import NewRows, ReplayJournal
from rekindle.checkpoint.retention import KeepLast
from rekindle.checkpoint.store import Best, CheckpointStore
from rekindle.errors import RunLocked
from rekindle.events import MediaLogged, MemoryRecorder, MetricsFlushed, Stamp, Summary, Text
from rekindle.interrupt import Interrupter
from rekindle.recorders.following import Follower
from rekindle.run.directory import TrainingRun
from rekindle.run.metrics import EventStore
from rekindle.run.processor import EventProcessor
from rekindle.run.reader import RunReader
from rekindle.session import TrainingSession
from rekindle.storage import logs
from rekindle.storage.logs import JsonLines

STAMP = Stamp(env_steps=10, updates=5, episodes=2, wall_time=0.5)
WINDOW = MetricsFlushed(STAMP, {"loss": Summary(1.0, 1.0, 1.0, 1.0, 1)})
PATIENCE = 100
"""Seconds after which a child counts as hanging."""


def in_child(action: Callable[[], object]) -> str:
    """What an action raised in a forked child, as `Type: message`; empty if nothing."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX warn of forks, which is what is tested here
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        try:
            action()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}; {signal.SIGALRM.value} means that it hung"
    return told


def assert_refused_in_child(action: Callable[[], object]) -> None:
    assert in_child(action).startswith("RunLocked: ")
    assert f"belongs to process {os.getpid()}: a process forked from it cannot use it" in in_child(action)


def content(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


# Logs


def test_a_child_cannot_append_to_a_log_nor_sync_it(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    log.append({"from": "parent"})
    before = content(tmp_path)
    for action in (lambda: log.append({"from": "child"}), log.write_out, log.sync):
        assert_refused_in_child(action)
    assert content(tmp_path) == before
    log.append({"from": "parent"})
    log.close()
    assert [row["row"] for row in logs.read_rows(tmp_path / "log")] == [0, 1]


def test_a_child_that_closes_a_log_leaves_the_waiting_rows_to_the_parent(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    log.is_deferred = True
    log.append({"from": "parent"})
    assert in_child(log.close) == ""
    assert logs.read_rows(tmp_path / "log") == []
    log.close()
    assert len(logs.read_rows(tmp_path / "log")) == 1


def test_a_log_whose_guard_was_held_during_the_fork_holds_no_child(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    with log._guard:
        assert_refused_in_child(log.sync)
    log.close()


# The run


@pytest.fixture
def run(tmp_path: Path) -> Any:
    run = TrainingRun.create("forked", root=tmp_path)
    yield run
    run.close()


@pytest.mark.parametrize(
    "action",
    [
        lambda run: run.update_metadata(status="failed"),
        lambda run: run.update_counts(total_steps=1, total_episodes=1, updates=1),
        lambda run: run.describe("Agent", 10),
        lambda run: run.write_config({"seed": 7}),
        lambda run: run.rewind({}),
        lambda run: run.log_warning("from the child", {}),
    ],
)
def test_a_child_cannot_change_the_run(run: TrainingRun, action: Callable[[TrainingRun], None]) -> None:
    before = content(run.path)
    assert_refused_in_child(lambda: action(run))
    assert content(run.path) == before
    assert RunReader(run.path).status == "running"


def test_a_child_that_closes_the_run_leaves_the_lock_and_the_files(run: TrainingRun) -> None:
    before = content(run.path)
    assert in_child(run.close) == ""
    assert content(run.path) == before
    assert RunReader(run.path).is_live
    run.update_metadata(status="stopped")


def test_a_child_that_fails_to_open_a_session_does_not_remove_the_run(run: TrainingRun) -> None:
    def fail() -> None:
        with run.let_go_on_failure():
            raise ValueError("no session")

    assert in_child(fail) == "ValueError: no session"
    assert (run.path / "metadata.json").exists()


def test_a_child_can_make_a_run_of_its_own(run: TrainingRun, tmp_path: Path) -> None:
    def train() -> None:
        own = TrainingRun.create("own", root=tmp_path)
        own.log_warning("from the child", {"env_steps": 0})
        own.close()

    assert in_child(train) == ""
    assert RunReader(tmp_path / "own").warnings()[0]["message"] == "from the child"


# Checkpoints


def test_a_child_writes_no_checkpoint_and_no_segment(tmp_path: Path) -> None:
    for name in ("checkpoints", "replay"):
        (tmp_path / name).mkdir()
    store = CheckpointStore(tmp_path, policy=KeepLast(1), resume_count=0)
    journal = ReplayJournal(tmp_path / "replay", resume_count=0)
    rows = NewRows(first=0, start=0, end=2, columns={}, rows={"number": np.arange(2)})
    unused: Any = None
    for action in (
        lambda: journal.write(rows),
        lambda: store.save(unused, None),
        lambda: store.save_best(Best("best_1.mpk", 1.0, 1), {}),
        store.tidy,
        lambda: store.go_back_to(None, tmp_path / "rewound"),
    ):
        assert_refused_in_child(action)
    assert content(tmp_path) == {}


# The thread of the events


def test_a_child_cannot_submit_and_closes_nothing(tmp_path: Path) -> None:
    log, recorder = JsonLines(tmp_path / "log"), MemoryRecorder()
    processor = EventProcessor(log=log, store=EventStore(), recorders=[recorder], report=[].append)
    processor.submit(WINDOW)
    processor.flush()
    for action in (
        lambda: processor.submit(WINDOW),
        lambda: processor.submit(MediaLogged(STAMP, "notes", Text("words"))),
        processor.mark,
        processor.flush,
    ):
        assert_refused_in_child(action)

    def close() -> None:
        processor.close("failed")
        assert recorder.status is None

    assert in_child(close) == ""
    processor.submit(WINDOW)
    processor.close("finished")
    log.close()
    assert len(logs.read_rows(tmp_path / "log")) == 2
    assert (len(recorder.rows), recorder.status) == (2, "finished")


def test_a_child_does_not_end_the_outside_run_of_a_recorder(run: TrainingRun) -> None:
    unused: Any = None
    follower = Follower("service", unused, run.path, [].append)

    def close() -> None:
        follower.close("failed")
        assert threading.active_count() == 1

    assert in_child(close) == ""


# Stopping


def test_a_child_need_not_wait_for_the_thread_that_looks_for_the_stop_file(tmp_path: Path) -> None:
    interrupter = Interrupter()
    interrupter.watch(tmp_path / "stop")
    with getattr(interrupter._unwatch, "_cond"):  # noqa: B009 - as if the thread were just looking at it
        assert in_child(interrupter.unwatch) == ""
    interrupter.unwatch()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_child_as_if_there_were_no_training(number: signal.Signals) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests without it
    interrupter = Interrupter()
    with interrupter.signals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PATIENCE)
            try:
                os.kill(os.getpid(), number)
                time.sleep(2 * PATIENCE)  # until the signal is handled, or the alarm ends the child
                os._exit(1)
            except KeyboardInterrupt:
                os._exit(0)
        _, status = os.waitpid(child, 0)
    assert status == (0 if number is signal.SIGINT else number)
    assert not interrupter.is_stopped


# All together


def test_a_child_that_leaves_the_session_changes_nothing_of_the_run(tmp_path: Path) -> None:
    with TrainingSession.open("forked", ToyAgent(), root=tmp_path, checkpoint_every=10, max_steps=100) as session:
        session.stream().begin(np.zeros(2, np.float32))
        session.flush()
        before = content(tmp_path)

        def leave() -> None:
            session.__exit__(SystemExit, SystemExit(0), None)

        assert in_child(leave) == ""
        assert content(tmp_path) == before
        assert session.run is not None
        assert RunReader(session.run.path).status == "running"
    assert RunReader(tmp_path / "forked").status == "stopped"


def test_what_a_child_is_refused_names_the_run_and_its_process(run: TrainingRun) -> None:
    told = in_child(lambda: run.update_metadata(status="failed"))
    assert told.startswith(f"{RunLocked.__name__}: {run.path} belongs to process {os.getpid()}: ")
