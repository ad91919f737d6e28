"""How `train` and `resume` are stopped, from their first moment on."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from contextvars import ContextVar

from rekindle.interrupt import Interrupter

__all__ = ["current_interrupter", "stopped_by_signals"]

_TRAINING = ("train", "resume")
_current: ContextVar[Interrupter | None] = ContextVar("_current", default=None)


@contextlib.contextmanager
def stopped_by_signals(arguments: Sequence[str]) -> Generator[None]:
    """Let SIGINT and SIGTERM stop a command that trains; others end as Python does."""
    if not arguments or arguments[0] not in _TRAINING:
        yield
        return
    interrupter = Interrupter()
    token = _current.set(interrupter)
    try:
        with interrupter.signals():
            yield
    finally:
        _current.reset(token)


def current_interrupter() -> Interrupter:
    """What stops the command that is running; raises `Interrupted` if that has happened already."""
    interrupter = _current.get() or Interrupter()
    interrupter.check_start()
    return interrupter
