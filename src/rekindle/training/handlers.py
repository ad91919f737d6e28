"""The event handlers of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rekindle.agent import Stateful
from rekindle.events import Event
from rekindle.session.session import TrainingSession

__all__ = ["Handlers"]


class _Handler:
    """A function registered with `Trainer.on`, as a callback of a session."""

    def __init__(self, kind: type[Event], function: Callable[[Any], object]) -> None:
        self._kind, self.function = kind, function

    def hears(self, kind: type[Event]) -> bool:
        """Whether it subscribed to events of a class."""
        return issubclass(kind, self._kind)

    def __call__(self, event: Event) -> None:
        """Call it, if it subscribed to the event."""
        if isinstance(event, self._kind):
            self.function(event)


class Handlers:
    """The functions registered with `Trainer.on`."""

    def __init__(self) -> None:
        self._known: list[_Handler] = []

    def add(self, kind: type[Event], handler: Callable[[Any], object]) -> None:
        """Call a function with every event of a class."""
        self._known.append(_Handler(kind, handler))

    @property
    def callbacks(self) -> tuple[_Handler, ...]:
        """The callbacks for the session, one for each, so that if one raises, the others still get the event."""
        return tuple(self._known)

    def join(self, session: TrainingSession) -> None:
        """Save handlers with `state()` and `load_state()` with the checkpoint."""
        for index, handler in enumerate(self._known):
            if isinstance(handler.function, Stateful):
                session.attach(f"handler {index}: {type(handler.function).__qualname__}", handler.function)
