"""The processors of this machine that this process may use."""

from __future__ import annotations

import os

__all__ = ["processors"]


def processors() -> int:
    """How many processors this process may use: a job of a cluster, or `taskset`, may allow it fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
