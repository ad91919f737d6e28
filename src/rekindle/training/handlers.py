"""The event handlers of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rekindle.agent import Stateful
from rekindle.events import Event
from rekindle.session.session import TrainingSession

__all__ = ["Handlers"]


class Handlers:
    """The functions registered with `Trainer.on`, as one callback of a session."""

    def __init__(self) -> None:
        self._known: list[tuple[type[Event], Callable[[Any], object]]] = []

    def add(self, kind: type[Event], handler: Callable[[Any], object]) -> None:
        """Call a function with every event of a class."""
        self._known.append((kind, handler))

    @property
    def callbacks(self) -> tuple[Handlers, ...]:
        """The callbacks for the session: none if there are no handlers."""
        return (self,) if self._known else ()

    def join(self, session: TrainingSession) -> None:
        """Save handlers with `state()` and `load_state()` with the checkpoint."""
        for index, (_, handler) in enumerate(self._known):
            if isinstance(handler, Stateful):
                session.attach(f"handler {index}: {type(handler).__qualname__}", handler)

    def hears(self, kind: type[Event]) -> bool:
        """Whether any handler subscribed to events of a class."""
        return any(issubclass(kind, wanted) for wanted, _ in self._known)

    def __call__(self, event: Event) -> None:
        """Pass an event to its handlers."""
        for kind, handler in self._known:
            if isinstance(event, kind):
                handler(event)
