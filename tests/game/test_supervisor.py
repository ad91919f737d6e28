from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator

import pytest

from rekindle.errors import RekindleError
from rekindle.game.supervisor import Supervisor

READY = "print('ready', flush=True); import time; time.sleep(60)"


@pytest.fixture
def supervise() -> Generator[Callable[[str], Supervisor]]:
    supervisors: list[Supervisor] = []

    def make(program: str) -> Supervisor:
        supervisors.append(Supervisor([sys.executable, "-c", program]))
        return supervisors[-1]

    yield make
    for supervisor in supervisors:
        supervisor.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_that_is_killed_is_started_again(supervise: Callable[[str], Supervisor]) -> None:
    supervisor = supervise(READY)
    supervisor.start()
    first = supervisor.pid
    assert supervisor.kill() == first
    wait_until(lambda: supervisor.starts == 2 and supervisor.is_ready)
    assert supervisor.pid not in (None, first)
    supervisor.stop()
    assert supervisor.pid is None
    assert supervisor.kill() is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process has one priority for all threads")
def test_every_thread_of_a_process_that_is_ready_gives_way_to_others() -> None:
    program = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); " + READY
    normal = os.getpriority(os.PRIO_PROCESS, 0)
    supervisor = Supervisor([sys.executable, "-c", program], niceness=normal + 3)
    supervisor.start()
    threads = [int(thread) for thread in os.listdir(f"/proc/{supervisor.pid}/task")]
    priorities = [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads]
    supervisor.stop()
    assert priorities == [normal + 3] * 2


def test_a_process_that_cannot_start_is_an_error_with_its_last_words(supervise: Callable[[str], Supervisor]) -> None:
    supervisor = supervise("import sys; sys.exit('no room for me')")
    with pytest.raises(RekindleError, match="exit code 1: no room for me"):
        supervisor.start()


def test_a_process_that_ends_early_again_and_again_is_given_up(supervise: Callable[[str], Supervisor]) -> None:
    supervisor = supervise("print('ready', flush=True)")
    supervisor.start()
    wait_until(lambda: supervisor.failure is not None)
    assert supervisor.starts == 5
