"""A worker process of a sweep: trains the runs that it is told to, one after the other."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

import msgspec

from rekindle.interrupt import Interrupter
from rekindle.launch import when_gone
from rekindle.sweep.executing import Job, Start, train_part

__all__ = ["main"]


class _Stop:
    """Passes a signal on to the training."""

    def __init__(self) -> None:
        self.current: Interrupter | None = None

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self.current is None:
            os._exit(0)  # idle: nothing is lost
        self.current.stop(f"signal {signal.Signals(number).name}")


def main() -> None:
    """Read a `Start` and then jobs from standard input, and write outcomes to standard output, as lines of JSON."""
    # So that no run is left with an unknown writer.
    when_gone(os.getppid(), lambda: os._exit(1))
    stop = _Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what environments print must not be taken for an answer
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=Start)
    sys.path[:] = start.search_path
    while line := sys.stdin.buffer.readline():
        stop.current = Interrupter()
        outcome = train_part(Path(start.study), start.settings, msgspec.json.decode(line, type=Job), stop.current)
        answers.write(msgspec.json.encode(outcome) + b"\n")
        stop.current = None


if __name__ == "__main__":
    main()
