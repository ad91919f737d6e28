"""Become the process of a rekindle command that ends with the process that started it.

python -m rekindle.game.launch PARENT serve dqn ...
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Start the command, unless the process that started this one is gone already."""
    parent, arguments = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:
        os.execv(sys.executable, [sys.executable, "-m", "rekindle", *arguments])  # noqa: S606 - our own command


if __name__ == "__main__":
    main()
