"""Deliver events from any thread to the callbacks."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from rekindle.errors import StorageError
from rekindle.events import Event, Updated, Warned
from rekindle.run.directory import TrainingRun
from rekindle.session.counts import Counts
from rekindle.text import encodable

__all__ = ["Outbox"]

logger = logging.getLogger("rekindle")

Callback = Callable[[Event], None]


class Outbox:
    """Calls the callbacks in order, on the thread that drives the session.

    Other threads `post` events; `deliver` emits them later, and writes warnings to the run.
    """

    def __init__(self, callbacks: Sequence[Callback], counts: Counts, run: TrainingRun | None) -> None:
        self._callbacks = list(callbacks)
        self._counts, self._run = counts, run
        self._posted: deque[Event] = deque()
        self.wants_updates = any(_wants(callback, Updated) for callback in callbacks)
        """Whether any callback subscribed to `Updated`, which may occur at every step."""
        self.is_emitting = False
        """Whether a callback is being called right now."""
        self.raised: BaseException | None = None
        """What a callback raised last."""

    def emit(self, event: Event) -> None:
        """Call every callback with an event now."""
        if not self._callbacks:
            return
        outer, self.is_emitting = self.is_emitting, True
        try:
            for callback in self._callbacks:
                callback(event)
        except BaseException as error:
            self.raised = error
            raise
        finally:
            self.is_emitting = outer

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
            if isinstance(event, Warned) and self._run is not None:
                try:
                    self._run.log_warning(event.message, msgspec.structs.asdict(event.stamp))
                except StorageError as error:  # do not warn about this too: that could go on forever
                    logger.warning("%s", error)
            self.emit(event)


def _wants(callback: Callback, kind: type[Event]) -> bool:
    hears: Callable[[type[Event]], bool] | None = getattr(callback, "hears", None)
    return True if hears is None else hears(kind)
