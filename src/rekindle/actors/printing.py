"""What environments print in worker processes: it goes where the learner prints, also if that changes."""

from __future__ import annotations

import contextlib
import os
import select
import threading

from rekindle.storage.files import write_all

__all__ = ["Printing"]

_PART = 2**16
_PATIENCE = 1.0
"""Seconds to wait for the last words of workers; a process that one has left behind may keep a pipe open."""


class Printing:
    """Copies what workers write to the standard output and standard error of this process.

    If they inherited these, they would write over a terminal UI: it redirects only the process that it belongs to.
    """

    def __init__(self) -> None:
        pipes = [os.pipe(), os.pipe()]
        self.stdout, self.stderr = (write for _, write in pipes)
        """What to give to a worker."""
        self._quit, self._asks = os.pipe()
        reads = {read: target for (read, _), target in zip(pipes, (1, 2), strict=True)}
        self._thread = threading.Thread(target=self._copy, args=(reads,), name="rekindle-printing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy what is left; workers have ended."""
        for descriptor in (self.stdout, self.stderr):
            os.close(descriptor)
        self._thread.join(_PATIENCE)
        os.close(self._asks)
        self._thread.join(_PATIENCE)

    def _copy(self, reads: dict[int, int]) -> None:
        opened, poll = dict(reads), select.poll()
        for read in (*reads, self._quit):
            poll.register(read, select.POLLIN)
        while opened:
            for read, _ in poll.poll():
                data = b"" if read == self._quit else os.read(read, _PART)
                if data:
                    with contextlib.suppress(OSError):  # the terminal was closed
                        write_all(opened[read], data)
                elif read == self._quit:
                    opened.clear()
                    break
                else:
                    poll.unregister(read)
                    del opened[read]
        for descriptor in (*reads, self._quit):
            os.close(descriptor)
