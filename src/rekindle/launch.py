"""Run a rekindle command that stops when the process that started it is gone, however it ended.

python -P -m rekindle.launch PARENT train dqn ...
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable

__all__ = ["launching", "main", "when_gone"]

_LOOK = 0.25
"""Seconds between two looks at whether the parent still exists."""


def launching(*arguments: str) -> list[str]:
    """The command line of a rekindle command that gets SIGTERM when this process has ended."""
    # -P: do not import from the working directory, except modules that the command names.
    return [sys.executable, "-P", "-m", "rekindle.launch", str(os.getpid()), *arguments]


def when_gone(parent: int, act: Callable[[], object]) -> None:
    """Call a function, on another thread, when this process has another parent than that."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        act()

    threading.Thread(target=look, name="rekindle-parent", daemon=True).start()


def main() -> None:
    """Run the command, unless the process that started this one is gone already."""
    parent = int(sys.argv.pop(1))
    if os.getppid() == parent:
        when_gone(parent, lambda: os.kill(os.getpid(), signal.SIGTERM))
        runpy.run_module("rekindle", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
