"""A signal asks for a checkpoint and a stop; a second one does not ask."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from forms import Rollouts
from harness import ENVIRONMENT, Training, assert_exact, assert_nothing_lost, until

import rekindle
from rekindle.run.directory import TrainingRun


def begin(training: Training, *options: str, until_it_says: str = "checkpoint") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        training.command("--pause=0.01", *options), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    until(lambda: any(until_it_says in line for line in training.acknowledged) or process.poll() is not None)
    return process


class TestOneSignal:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
    def test_it_checkpoints_and_exits_with_0(
        self, training: Training, number: signal.Signals, reference: Mapping[str, str | None]
    ) -> None:
        process = begin(training)
        process.send_signal(number)
        _, errors = process.communicate(timeout=100)
        assert (process.returncode, errors) == (0, "")
        metadata = rekindle.RunReader(training.run).metadata
        assert (metadata.status, metadata.stop_reason) == ("stopped", number.name)
        assert metadata.total_steps == training.steps_on_disk[-1] == training.acknowledged_steps[-1]
        training.finish()
        assert_exact(training, reference)

    def test_a_stop_file_does_the_same(self, training: Training, reference: Mapping[str, str | None]) -> None:
        process = begin(training, "--steps=100000")
        rekindle.RunReader(training.run).request_stop("lunch")
        _, errors = process.communicate(timeout=100)
        assert (process.returncode, errors) == (0, "")
        metadata = rekindle.RunReader(training.run).metadata
        assert (metadata.status, metadata.stop_reason) == ("stopped", "lunch")

    def test_signals_in_every_tenth_of_a_training_cost_nothing(
        self, training: Training, reference: Mapping[str, str | None]
    ) -> None:
        stops = 0
        while not training.is_finished:
            before = len(training.acknowledged_steps)
            child = training.begin_fork(pause=0.002)
            until(lambda before=before: len(training.acknowledged_steps) > before or training.is_finished)
            with contextlib.suppress(ProcessLookupError):  # it may just have finished
                os.kill(child, signal.SIGTERM)
            assert training.end_fork().code in (0, -signal.SIGTERM)
            stops += 1
            assert stops < 20
        assert stops > 3
        assert_exact(training, reference)


class TestTwoSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
    def test_the_second_ends_the_process_at_once_and_the_run_goes_on_exactly(
        self, training: Training, number: signal.Signals, reference: Mapping[str, str | None]
    ) -> None:
        process = begin(training, "--pause=3600", until_it_says="pausing")  # far longer than anybody waits for it
        process.send_signal(number)

        def is_over() -> bool:
            process.send_signal(number)  # again, as one that comes before the last is handled counts as the same
            return process.poll() is not None

        until(is_over)
        process.communicate(timeout=100)
        assert process.returncode == -number
        assert rekindle.RunReader(training.run).status == "crashed"
        assert_nothing_lost(training)
        training.finish()
        assert_exact(training, reference)


class TestHandlers:
    def test_the_handlers_of_the_host_come_back(self, tmp_path: Path) -> None:
        def own(number: int, frame: object) -> None:
            raise AssertionError

        before = signal.signal(signal.SIGTERM, own)
        try:
            with rekindle.TrainingSession(Rollouts(), run=TrainingRun.create("handlers", root=tmp_path)):
                assert signal.getsignal(signal.SIGTERM) is not own
            assert signal.getsignal(signal.SIGTERM) is own
            with pytest.raises(ZeroDivisionError), rekindle.TrainingSession(Rollouts()):
                _ = 1 / 0
            assert signal.getsignal(signal.SIGTERM) is own
        finally:
            signal.signal(signal.SIGTERM, before)

    def test_a_session_may_leave_signals_alone(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        with rekindle.TrainingSession(Rollouts(), signals=False):
            assert signal.getsignal(signal.SIGTERM) is before

    def test_a_session_on_another_thread_leaves_signals_alone(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        seen: list[object] = []

        def work() -> None:
            with rekindle.TrainingSession(Rollouts()):
                seen.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [before]

    def test_the_first_reason_is_the_one_that_counts(self) -> None:
        with rekindle.TrainingSession(Rollouts(), max_steps=5) as session:
            session.stop("solved", complete=True)
            session.stop("too late")
            assert session.stop_reason == "solved"
