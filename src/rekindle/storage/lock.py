"""The lock of a run: one writer at a time; the kernel releases it when the process dies."""

from __future__ import annotations

import fcntl
import os
import socket
import time
import weakref
from pathlib import Path

from rekindle.errors import RunLocked
from rekindle.storage.files import open_regular, opened, reporting

__all__ = ["Lock"]

_LONGEST_HOLDER = 200
"""The most bytes that a process writes into the lock file about itself."""

_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_all() -> None:
    for lock in list(_held):
        lock.release()


# A forked worker shares the locks of its parent, and would hold them after the parent's death.
os.register_at_fork(after_in_child=_release_all)


class Lock:
    """One writer at a time; the kernel releases the lock when the process dies, however it dies."""

    def __init__(self, path: Path, *, patience: float = 1.0, advice: str | None = None) -> None:
        """Take the lock, waiting up to `patience` seconds; `advice` is the end of the message if it is not free."""
        self.path = path
        self._advice = advice or f"stop it first (rekindle stop {path.parent})"
        with reporting("open", path):
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            with reporting("lock", path):
                self._take(descriptor, patience)
        except BaseException:
            os.close(descriptor)  # otherwise this process would block itself
            raise
        self._descriptor: int | None = descriptor
        _held.add(self)

    def _take(self, descriptor: int, patience: float) -> None:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = _holder(descriptor) or "another process"
                    raise RunLocked(f"{self.path.parent} is being written by {holder}; {self._advice}") from None
                time.sleep(0.01)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock; keep the file, because after unlinking it two processes could lock files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @staticmethod
    def is_held(path: Path) -> bool:
        """Whether a process holds the lock; takes the lock for microseconds to check."""
        with opened(path) as file:
            if file is None:
                return False
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @staticmethod
    def holder(path: Path) -> str:
        """The process that took the lock last, as recorded in the lock file."""
        with opened(path) as file:
            return "" if file is None else _holder(file.fileno())


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, _LONGEST_HOLDER, 0).decode(errors="replace").strip()
