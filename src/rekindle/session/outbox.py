"""Deliver events from any thread to the callbacks."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import msgspec

from rekindle.agent import Stateful
from rekindle.errors import RowsHeld, StorageError
from rekindle.events import Event, Updated, Warned
from rekindle.run.directory import TrainingRun
from rekindle.session.counts import Counts
from rekindle.text import encodable

__all__ = ["Outbox"]

logger = logging.getLogger("rekindle")

Callback = Callable[[Event], None]

_DELIVERED = -1
"""Instead of the number of an event: it was posted by another thread, at a time that depends on the clock."""


class CallsOfCallbacks(Protocol):
    """Replays the calls that callbacks made."""

    def callback(self, event: int, callback: int) -> bool:
        """Make the calls that a callback made when it was called with an event; returns False if it must be called."""
        ...


class Outbox:
    """Calls the callbacks in order, on the thread that drives the session.

    Other threads `post` events; `deliver` emits them later, and writes warnings to the run. What a callback raises is
    noted, and the call of the host raises it when it is complete: so a callback cannot tear a call. Of several errors
    the host is told one, and the others are logged. A `KeyboardInterrupt`, or another that is no `Exception`, comes
    first: a host that handles the errors of its callbacks must not miss it.
    """

    def __init__(self, callbacks: Sequence[Callback], counts: Counts, run: TrainingRun | None) -> None:
        self._callbacks = list(callbacks)
        self._is_stateful = [isinstance(callback, Stateful) for callback in callbacks]
        self._counts, self._run = counts, run
        self._posted: deque[Event] = deque()
        self.wants_updates = any(_wants(callback, Updated) for callback in callbacks)
        """Whether any callback subscribed to `Updated`, which may occur at every step."""
        self.is_emitting = False
        """Whether a callback is being called right now."""
        self.event = 0
        """The event that is being emitted, counted from the beginning of the host's call."""
        self.callback: int = 0
        """The callback that is being called with it."""
        self._emitted = 0
        """Events since the beginning of the host's call."""
        self.replaying: CallsOfCallbacks | None = None
        """While the calls of a journal are replayed: what callbacks without a state did."""
        self.noted: BaseException | None = None
        """What a callback raised, and no call has raised yet."""
        self.raised: BaseException | None = None
        """What a call raised last of what callbacks had raised."""
        self._is_held_back = False

    @property
    def is_in_mid_call(self) -> bool:
        """Whether a callback is being called before the call that emitted the event is complete."""
        return self.is_emitting and self.event != _DELIVERED

    @property
    def callback_count(self) -> int:
        """How many callbacks there are."""
        return len(self._callbacks)

    def begin_call(self) -> None:
        """Count events from 1 again: a call of the host begins."""
        self._emitted = 0

    def emit(self, event: Event) -> None:
        """Call every callback with an event now."""
        if self._callbacks:
            self._emitted += 1
            self._emit(event, self._emitted)

    def _emit(self, event: Event, number: int) -> None:
        outer = self.is_emitting, self.event, self.callback
        self.is_emitting = True
        try:
            for index, callback in enumerate(self._callbacks):
                self.event, self.callback = number, index
                replaying = None if self._is_stateful[index] else self.replaying
                if replaying is None or not replaying.callback(number, index):
                    try:
                        callback(event)
                    except BaseException as error:
                        self._note(error)
        finally:
            self.is_emitting, self.event, self.callback = outer

    def _note(self, error: BaseException) -> None:
        if self.replaying is not None:
            if isinstance(error, KeyboardInterrupt):  # it interrupts the replay
                raise error
            if isinstance(error, Exception):  # it was raised, or delivered, when the call was made
                return
        if self.noted is not None and _is_urgent(error) and not _is_urgent(self.noted):
            self.noted, error = error, self.noted
        if self.noted is None:
            self.noted = error
        else:
            logger.error("another callback raised %s: %s", type(error).__name__, error)

    @contextlib.contextmanager
    def holding_back(self) -> Generator[None]:
        """Inside `with`, keep what callbacks raise: the host's current call raises it at its end, or the next call."""
        self._is_held_back = True
        try:
            yield
        finally:
            self._is_held_back = False

    def raise_noted(self) -> None:
        """Raise what a callback raised, if anything."""
        if self.noted is not None and not self._is_held_back:
            self.raised, self.noted = self.noted, None
            raise self.raised

    def raise_interrupt(self) -> None:
        """Raise what a callback raised if it is no `Exception`: before work that may take long."""
        if self.noted is not None and _is_urgent(self.noted) and not self._is_held_back:
            error, self.noted = self.noted, None
            raise error

    def log_noted(self, told: BaseException) -> None:
        """Log what a callback raised, as the host is told of another error now; raise it if it comes before that."""
        error = self.noted
        if error is None or error is told:
            return
        if _is_urgent(error) and not _is_urgent(told):
            self.raise_noted()
            return
        self.noted = None
        logger.error("a callback raised %s: %s", type(error).__name__, error)

    def post(self, event: Event) -> None:
        """Queue an event for `deliver`; safe on any thread."""
        self._posted.append(event)

    def warn(self, message: str) -> None:
        """Log and queue a warning about something that training survives; safe on any thread."""
        message = encodable(message)
        logger.warning("%s", message)
        self.post(Warned(self._counts.stamp(), message))

    def deliver(self) -> None:
        """Write the queued warnings to the run and emit all queued events."""
        while self._posted:
            event = self._posted.popleft()
            if self.replaying is not None:  # it was raised, or delivered, when the call was made
                continue
            if isinstance(event, Warned) and self._run is not None:
                try:
                    self._run.log_warning(event.message, msgspec.structs.asdict(event.stamp))
                except StorageError as error:  # do not warn about this too: that could go on forever
                    if not isinstance(error, RowsHeld) or not error.is_repeated:
                        logger.warning("%s", error)
            if self._callbacks:
                self._emit(event, _DELIVERED)


def _is_urgent(error: BaseException) -> bool:
    return not isinstance(error, Exception)


def _wants(callback: Callback, kind: type[Event]) -> bool:
    hears: Callable[[type[Event]], bool] | None = getattr(callback, "hears", None)
    return True if hears is None else hears(kind)
