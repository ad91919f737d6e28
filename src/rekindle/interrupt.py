"""Stopping a training: every request to stop goes through an `Interrupter`, with a reason."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType

from rekindle.errors import Interrupted, RekindleError
from rekindle.owner import Owner

__all__ = ["Interrupter", "ShouldStop", "never"]

logger = logging.getLogger("rekindle")

ShouldStop = Callable[[], bool]
"""Called by long work between two parts of it; if it returns true, the work raises `Interrupted`."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TICK = 0.1
"""Seconds until listeners are called after a stop."""


def never() -> bool:
    """A `ShouldStop` for work that is not interrupted."""
    return False


class Interrupter:
    """A request to stop, which anyone can make and the training checks: it takes a checkpoint, then stops.

    >>> interrupter = Interrupter()
    >>> interrupter.stop("solved", complete=True)
    >>> interrupter.is_stopped, interrupter.reason, interrupter.should_stop()
    (True, 'solved', False)
    """

    def __init__(self) -> None:
        self.is_stopped = False
        self.reason: str | None = None
        """Why the training stops: the reason of the first request."""
        self.is_complete = False
        """Whether the training stops because it reached its goal."""
        self.interruption: str | None = None
        """Why the training is interrupted before its end: the first reason that is not `complete`."""
        self._listeners: list[Callable[[str], object]] = []
        self._guard = threading.Lock()
        self.signal: str | None = None
        """The name of the first signal that requested a stop."""
        self._is_signalled = False
        self._unwatch = threading.Event()
        self._watcher: threading.Thread | None = None
        self._owner = Owner()

    def stop(self, reason: str, *, complete: bool = False) -> None:
        """Request a stop; `complete` means that the goal was reached, so the run counts as finished."""
        reason = str(reason)  # a host may pass an exception, which the metadata of a run cannot hold
        # A signal handler runs on the thread that it interrupts, so waiting for the lock could deadlock.
        taken = self._guard.acquire(blocking=False)
        if not complete and self.interruption is None:
            self.interruption = reason
        if not self.is_stopped:
            self.reason, self.is_complete, self.is_stopped = reason, complete, True
        if taken:
            self._guard.release()

    def should_stop(self) -> bool:
        """Whether long work, such as an evaluation or the updates on a rollout, should be interrupted.

        False after a stop that is `complete`: the work at the end of a training is then still done.
        """
        return self.interruption is not None

    def check(self) -> None:
        """Raise `Interrupted` if `should_stop()`."""
        if self.should_stop():
            raise Interrupted(f"stopped: {self.interruption}")

    def tell(self, listener: Callable[[str], object]) -> None:
        """Call a function with the reason as soon as the training is interrupted, on the thread of `watch`."""
        self._listeners.append(listener)

    def check_start(self) -> None:
        """Raise `Interrupted` if a stop was requested before there is anything to save."""
        if self.interruption is not None:
            raise Interrupted(f"stopped before the training began ({self.interruption})")

    def watch(self, stop_file: Path, *, seconds: float = 1.0) -> None:
        """On its own thread, until `unwatch`: check for a stop file, and call the listeners after an interruption.

        A second call does nothing.
        """
        if self._watcher is None:
            self._owner = Owner()
            self._watcher = threading.Thread(
                target=self._watch, args=(stop_file, seconds), name="rekindle-stop-file", daemon=True
            )
            self._watcher.start()

    def _watch(self, stop_file: Path, seconds: float) -> None:
        due = time.monotonic() + seconds
        while not self._unwatch.wait(min(seconds, _TICK)):
            if self.interruption is not None:
                self._announce(self.interruption)
                return
            if time.monotonic() >= due:
                due = time.monotonic() + seconds
                self._look_for(stop_file)

    def _look_for(self, stop_file: Path) -> None:
        try:
            text = _read_reason(stop_file)
        except FileNotFoundError:
            return
        except OSError:  # the file is the request; its text is only informative
            text = ""
        self.stop(text or "asked to stop by another process")

    def _announce(self, reason: str) -> None:
        for listener in self._listeners:
            try:
                listener(reason)
            except RekindleError as error:
                logger.warning("a listener could not be notified that the run is stopping: %s", error)

    def unwatch(self) -> None:
        """Stop checking for the stop file; does nothing in a forked child, which has no such thread."""
        if self._watcher is not None and self._owner.is_here:
            self._unwatch.set()
            self._watcher.join()

    @contextlib.contextmanager
    def time_limit(self, seconds: float | None) -> Generator[None]:
        """Request a stop after this many seconds inside the context; never if None."""
        if seconds is None:
            yield
            return
        timer = threading.Timer(seconds, self.stop, (f"the time limit of {seconds:g} s is over",))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def signals(self) -> Generator[None]:
        """Let SIGINT, SIGTERM and SIGHUP request a stop inside the context. May be nested.

        A second SIGINT or SIGTERM ends the process. SIGHUP does not, as a terminal that closes may send it twice; if it
        is ignored (`nohup`), it stays so.

        A child that is forked inside is not part of the training: there a signal has its previous effect.

        Does nothing outside of the main thread, where Python cannot set signal handlers.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # A handler that was set in C, not by Python, could not be restored: such a signal is left to the host.
        before = {number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) is not None}
        if before.get(signal.SIGHUP) == signal.SIG_IGN:
            del before[signal.SIGHUP]
        owner = Owner()

        def handle(number: int, _frame: FrameType | None) -> None:
            if not owner.is_here:
                signal.signal(number, before[signal.Signals(number)])
                os.kill(os.getpid(), number)
                return
            # Count signals, not stops: a first signal after another stop must not prevent the last checkpoint.
            if number != signal.SIGHUP:
                if self._is_signalled:
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)
                self._is_signalled = True
            name = signal.Signals(number).name
            self.signal = self.signal or name
            self.stop(name)

        for number in before:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _read_reason(stop_file: Path) -> str:
    # Without O_NONBLOCK a named pipe would block the watching thread, and with it the end of the training.
    descriptor = os.open(stop_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(descriptor, 800).decode(errors="replace").strip()[:200]
    finally:
        os.close(descriptor)
