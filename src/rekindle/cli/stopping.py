"""Stop commands that train with signals, from the start of the command."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from contextvars import ContextVar

from rekindle.interrupt import Interrupter

__all__ = ["current_interrupter", "stopped_by_signals", "was_signalled"]

_TRAINING = ("train", "resume", "fork", "sweep", "serve")
_current: ContextVar[Interrupter | None] = ContextVar("_current", default=None)


@contextlib.contextmanager
def stopped_by_signals(arguments: Sequence[str]) -> Generator[None]:
    """Let SIGINT, SIGTERM and SIGHUP stop a training command with a checkpoint; other commands end as usual."""
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
    """The interrupter of the running command; raises `Interrupted` if a stop was already requested."""
    interrupter = _current.get() or Interrupter()
    interrupter.check_start()
    return interrupter


def was_signalled() -> bool:
    """Whether a signal has asked the running command to stop."""
    interrupter = _current.get()
    return interrupter is not None and interrupter.signal is not None
