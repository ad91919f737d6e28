"""Sessions in forked processes: a child shares the session of its parent, and must leave it alone."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["abandon_in_forked_children"]


class _Session(Protocol):
    def abandon(self) -> None: ...


_open_sessions: weakref.WeakSet[_Session] = weakref.WeakSet()


def abandon_in_forked_children(session: _Session) -> None:
    """In every child that is forked from now on, call `abandon` of the session."""
    _open_sessions.add(session)


def _abandon_all() -> None:
    for session in list(_open_sessions):
        session.abandon()


# A forked child must neither write to the run nor wait for the parent's threads.
os.register_at_fork(after_in_child=_abandon_all)
