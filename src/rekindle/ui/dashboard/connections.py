"""Connections to the dashboard: limited in number, and closed if a request is incomplete or a response unread."""

from __future__ import annotations

import asyncio
import resource
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BoundedProtocol", "most_connections", "most_streams"]

BACKLOG = 16
"""Connections that the event loop accepts in one round."""
_ROUNDS = 4
"""For how many rounds a refused connection keeps its descriptor."""
_MOST = 256
REQUEST_SECONDS = 10.0
"""The most time for a request to arrive, with headers and body."""
READ_SECONDS = 60.0
"""The most time for which a client may not read what it was sent."""


def most_connections() -> int:
    """How many connections the limit of open files allows, beside the other files of this process."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return _MOST
    return max(8, min(_MOST, (descriptors - _ROUNDS * BACKLOG) // 2))


def most_streams() -> int:
    """How many of the connections may be event streams, so that pages can still be opened."""
    return most_connections() // 4


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with limits for clients that connect and send nothing, or an incomplete request."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self.waits_since = 0.0
        """Since when the server has been waiting for the client."""

    @property
    def is_waiting(self) -> bool:
        """Whether the server waits for the client: no complete request has arrived."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Accept a connection; if there are too many, close the one that has waited longest."""
        super().connection_made(transport)
        self._watch()
        everybody = cast("set[BoundedProtocol]", self.connections)
        open_ones = [other for other in everybody if not other.transport.is_closing()]
        if len(open_ones) > most_connections():
            waiting = (other for other in open_ones if other.is_waiting)
            min(waiting, key=lambda other: other.waits_since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Process received data."""
        super().handle_events()
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Start to measure how long the client reads nothing."""
        super().pause_writing()
        self._stalled = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop measuring: the client reads again."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _watch(self) -> None:
        """Start the timeout if the server waits for the client."""
        if not self.is_waiting:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._deadline is None and not self.transport.is_closing():
            self.waits_since = self.loop.time()
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)
