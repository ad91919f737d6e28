"""The base of both clients: the address of the server, the conversation with it, and its last replies."""

from __future__ import annotations

import ssl
import time
from typing import Any, cast

import msgspec

from rekindle.client.conversation import Conversation, OpenEpisode, reason_of
from rekindle.client.socket_protocol import SocketProtocol, address_of
from rekindle.errors import ServerError
from rekindle.wire.messages import StatsReply, StreamKey, Welcome

__all__ = ["BaseClient", "numbers_of"]


class BaseClient:
    """A client without its connection."""

    def __init__(
        self, address: str, talk: Conversation, *, patience: float, answer_seconds: float, tls: ssl.SSLContext | None
    ) -> None:
        self._address, self._tls = address_of(address), tls
        self._patience, self._answer_seconds = patience, answer_seconds
        self._talk = talk
        self._protocol: SocketProtocol | None = None
        self.reconnects = -1
        """How often the client has reconnected."""

    @property
    def open_episodes(self) -> dict[StreamKey, OpenEpisode]:
        """The episodes that were open when the client connected, by stream: continue them, or begin new ones."""
        return self._talk.open_episodes

    @property
    def tick(self) -> int:
        """The number of the tick that processed the last request; requests of the same tick are one batch."""
        return self._talk.tick

    @property
    def stop(self) -> str | None:
        """Why the session ended; None while it continues."""
        return self._talk.stop

    @property
    def welcome(self) -> Welcome:
        """The server's description of itself: its name, spaces and limits."""
        return cast("Welcome", self._talk.welcome)

    def _context(self) -> ssl.SSLContext | None:
        """The TLS context of a connection; None for `ws://`."""
        if not self._address.is_secure:
            return None
        return ssl.create_default_context() if self._tls is None else self._tls

    def _check_patience(self, error: Exception, until: float, what: str) -> None:
        """Raise `ServerError` if another attempt would fail too, or comes too late."""
        if isinstance(error, ssl.SSLCertVerificationError):
            text = f"the certificate of {self._address.text} is not trusted: {error.verify_message}"
            raise ServerError(text) from None
        if time.monotonic() > until:
            raise ServerError(f"{what} in {self._patience:g} s: {reason_of(error)}") from None


def numbers_of(reply: StatsReply) -> dict[str, Any]:
    """The statistics in a reply."""
    return {name: value for name, value in msgspec.to_builtins(reply).items() if name not in ("type", "ref")}
