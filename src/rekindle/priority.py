"""The priority of threads that work in the background."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

__all__ = ["LEARNER_NICENESS", "lower_priority", "lower_priority_of"]

LEARNER_NICENESS = 5
"""A third of the processor time of a thread of normal priority, if both want the same core."""


def lower_priority(niceness: int = 0) -> None:
    """Let the current thread not interrupt another one when it wakes up, and make it as nice as this.

    Does nothing where threads have no priority of their own, or may not change it.
    """
    if sys.platform != "linux":  # elsewhere the whole process would change
        return
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


def lower_priority_of(process: int, niceness: int) -> None:
    """Let no thread of another process interrupt others when it wakes up, and make all as nice as this.

    The same goes for the threads that they start. Does nothing where threads have no priority of their own.
    """
    if sys.platform != "linux":
        return
    threads = [process]
    with contextlib.suppress(OSError):  # it ends just now, or there is no /proc
        threads = [int(thread) for thread in os.listdir(f"/proc/{process}/task")]
    for thread in threads:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
