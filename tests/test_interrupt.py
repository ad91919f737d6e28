"""The one way to stop: whoever asks first is heard, be it the host, a file or a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from rekindle.errors import Interrupted, StorageError
from rekindle.interrupt import Interrupter


def wait_for_stop(interrupter: Interrupter) -> None:
    deadline = time.monotonic() + 60
    while not interrupter.is_stopped and time.monotonic() < deadline:
        time.sleep(0.001)


def test_nobody_has_asked_at_first() -> None:
    interrupter = Interrupter()
    assert (interrupter.is_stopped, interrupter.reason, interrupter.is_complete) == (False, None, False)


def test_the_first_reason_is_the_one_that_is_heard() -> None:
    interrupter = Interrupter()
    interrupter.stop("solved", complete=True)
    interrupter.stop("SIGTERM")
    assert (interrupter.is_stopped, interrupter.reason, interrupter.is_complete) == (True, "solved", True)


def test_of_many_threads_that_ask_one_is_heard() -> None:
    for _ in range(20):
        interrupter, start = Interrupter(), threading.Barrier(4)

        def ask(number: int, interrupter: Interrupter = interrupter, start: threading.Barrier = start) -> None:
            start.wait()
            interrupter.stop(f"reason {number}", complete=number % 2 == 0)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert interrupter.reason is not None
        assert interrupter.is_complete == (int(interrupter.reason[-1]) % 2 == 0)


def test_a_goal_that_was_reached_interrupts_nothing_until_somebody_asks_for_a_stop() -> None:
    interrupter = Interrupter()
    interrupter.stop("solved", complete=True)
    assert (interrupter.should_stop(), interrupter.interruption) == (False, None)
    interrupter.check()
    interrupter.stop("SIGTERM")
    interrupter.stop("too late")
    assert (interrupter.should_stop(), interrupter.interruption) == (True, "SIGTERM")
    with pytest.raises(Interrupted, match="SIGTERM"):
        interrupter.check()


# The stop file


def test_a_pipe_in_place_of_the_stop_file_stops_the_training_and_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stop")
    interrupter = Interrupter()
    interrupter.watch(tmp_path / "stop", seconds=0.001)
    wait_for_stop(interrupter)
    interrupter.unwatch()
    assert interrupter.reason == "asked to stop by another process"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"the budget is spent\n", "the budget is spent"),
        (b"", "asked to stop by another process"),
        (b"\xff", "�"),
        (b"x" * 10_000, "x" * 200),
    ],
)
def test_a_stop_file_stops_with_the_reason_in_it(tmp_path: Path, content: bytes, reason: str) -> None:
    interrupter = Interrupter()
    interrupter.watch(tmp_path / "stop", seconds=0.001)
    (tmp_path / "new").write_bytes(content)
    (tmp_path / "new").rename(tmp_path / "stop")
    wait_for_stop(interrupter)
    interrupter.unwatch()
    assert (interrupter.reason, interrupter.is_complete) == (reason, False)


def test_listeners_are_told_of_an_interruption_and_of_no_goal(tmp_path: Path) -> None:
    interrupter, told, reasons = Interrupter(), threading.Event(), list[str]()
    interrupter.tell(reasons.append)
    interrupter.tell(lambda _: told.set())
    interrupter.watch(tmp_path / "stop")
    interrupter.stop("solved", complete=True)
    interrupter.stop("SIGINT")
    assert told.wait(20)
    interrupter.unwatch()
    assert reasons == ["SIGINT"]


def test_a_listener_that_fails_is_a_warning_and_the_next_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(reason: str) -> None:
        raise StorageError("the disk is full")

    interrupter, told = Interrupter(), threading.Event()
    interrupter.tell(fail)
    interrupter.tell(lambda _: told.set())
    interrupter.watch(tmp_path / "stop")
    interrupter.stop("SIGINT")
    assert told.wait(20)
    interrupter.unwatch()
    assert "a listener could not be notified that the run is stopping: the disk is full" in caplog.text


def test_after_unwatch_nobody_looks_for_the_file(tmp_path: Path) -> None:
    interrupter = Interrupter()
    interrupter.watch(tmp_path / "stop", seconds=0.001)
    interrupter.unwatch()
    (tmp_path / "stop").touch()
    time.sleep(0.02)
    assert not interrupter.is_stopped


def test_unwatch_does_not_wait_for_the_next_look(tmp_path: Path) -> None:
    interrupter = Interrupter()
    interrupter.watch(tmp_path / "stop", seconds=3600.0)
    interrupter.unwatch()


def test_unwatch_without_watch_is_no_error() -> None:
    Interrupter().unwatch()


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_for_a_stop(number: signal.Signals) -> None:
    interrupter = Interrupter()
    with interrupter.signals():
        signal.raise_signal(number)
    assert (interrupter.reason, interrupter.is_complete) == (number.name, False)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupter().signals():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_on_another_thread_signals_are_left_alone() -> None:
    seen: list[bool] = []
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        with Interrupter().signals():
            seen.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]


def child(body: str) -> subprocess.CompletedProcess[str]:
    program = f"""
        import signal, sys
        from rekindle.interrupt import Interrupter
        interrupter = Interrupter()
        with interrupter.signals():
            {body}
            print("got to the end", interrupter.reason, flush=True)
    """
    return subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False, capture_output=True, text=True)


@pytest.mark.parametrize("second", ["SIGINT", "SIGTERM"])
def test_a_second_signal_ends_the_process_at_once(second: str) -> None:
    done = child(f"signal.raise_signal(signal.SIGINT); signal.raise_signal(signal.{second})")
    assert done.returncode == -getattr(signal, second)
    assert done.stdout == ""


def test_a_terminal_that_closes_may_send_its_signal_twice() -> None:
    done = child("for _ in range(2): signal.raise_signal(signal.SIGHUP)")
    assert done.stdout == "got to the end SIGHUP\n"
    done = child("signal.raise_signal(signal.SIGTERM); signal.raise_signal(signal.SIGHUP)")
    assert done.stdout == "got to the end SIGTERM\n"


def test_sighup_stays_ignored_with_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupter = Interrupter()
    try:
        with interrupter.signals():
            signal.raise_signal(signal.SIGHUP)
        assert (interrupter.is_stopped, interrupter.signal) == (False, None)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_signal_after_a_stop_for_another_reason_lets_the_checkpoint_finish() -> None:
    done = child("interrupter.stop('solved'); signal.raise_signal(signal.SIGTERM)")
    assert done.stdout == "got to the end solved\n"


def test_the_second_signal_counts_also_if_handlers_are_nested() -> None:
    done = child(
        "signal.raise_signal(signal.SIGTERM)\n"
        "            with interrupter.signals(): signal.raise_signal(signal.SIGTERM)"
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


def test_a_stop_before_the_start_is_raised() -> None:
    interrupter = Interrupter()
    interrupter.check_start()
    interrupter.stop("SIGTERM")
    with pytest.raises(Interrupted, match=r"stopped before the training began \(SIGTERM\)"):
        interrupter.check_start()
