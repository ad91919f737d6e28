"""The process that owns an object: a forked child has a copy of it, but not its threads, and must not use it."""

from __future__ import annotations

import os

from rekindle.errors import RunLocked

__all__ = ["Owner"]


class Owner:
    """The process that created it.

    >>> owner = Owner()
    >>> owner.is_here
    True
    >>> owner.check("the log")
    """

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this process is the owner, and not forked from it."""
        return os.getpid() == self._process

    def check(self, what: object) -> None:
        """Raise `RunLocked` in a forked child. Call it before taking a lock: a fork may have copied a held one."""
        if os.getpid() != self._process:
            raise RunLocked(
                f"{what} belongs to process {self._process}: a process forked from it cannot use it, "
                "but can open a run of its own"
            )
