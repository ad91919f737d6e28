"""Threads that work in the background let the host's thread run first."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from toys import PolicyAgent, line

from rekindle import TrainingSession
from rekindle.priority import LEARNER_NICENESS, lower_priority, lower_priority_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")


def priority_after(change: Callable[[], None]) -> tuple[int, int]:
    """The policy and niceness of a thread that has called a function."""
    found: list[tuple[int, int]] = []

    def work() -> None:
        change()
        thread = threading.get_native_id()
        found.append((os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_lowers_its_own_priority_and_no_other() -> None:
    policy, niceness = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)

    assert priority_after(lambda: lower_priority(niceness + 1)) == (os.SCHED_BATCH, niceness + 1)

    assert (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == (policy, niceness)


def test_a_thread_that_is_nicer_already_stays_so() -> None:
    niceness = os.getpriority(os.PRIO_PROCESS, 0) + 2

    def change() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        lower_priority(niceness - 1)

    assert priority_after(change) == (os.SCHED_BATCH, niceness)


def test_the_background_learner_is_nice_and_the_host_is_not(tmp_path: Path) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with TrainingSession.open("nice", PolicyAgent(seed=0), root=tmp_path, learner="background") as session:
        stream = session.stream()
        stream.begin(line(0))
        stream.step(line(1), reward=0.0)
        session.checkpoint(wait=True)  # the learner has answered, so it runs
        (learner,) = [thread for thread in threading.enumerate() if thread.name == "rekindle-learner"]
        assert learner.native_id is not None
        assert os.getpriority(os.PRIO_PROCESS, learner.native_id) == max(before, LEARNER_NICENESS)
        assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_another_process_lets_others_run_first_with_the_threads_that_it_starts() -> None:
    program = "import os, threading\ninput()\n"
    program += "threading.Thread(target=lambda: print(os.sched_getscheduler(0), os.nice(0), flush=True)).start()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) as process:
        niceness = os.getpriority(os.PRIO_PROCESS, 0) + 3
        lower_priority_of(process.pid, niceness)
        output, _ = process.communicate("\n", timeout=60)
    assert output.split() == [str(os.SCHED_BATCH), str(niceness)]
