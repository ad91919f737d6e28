"""What both clients have: where the server is, the conversation with it, and what it said last."""

from __future__ import annotations

import ssl
from typing import Any, cast

import msgspec

from rekindle.client.conversation import Conversation, OpenEpisode
from rekindle.client.socket_protocol import SocketProtocol, address_of
from rekindle.wire.messages import StatsReply, StreamKey, Welcome

__all__ = ["BaseClient", "numbers_of"]


class BaseClient:
    """A client, without the connections that it talks over."""

    def __init__(
        self, address: str, talk: Conversation, *, patience: float, answer_seconds: float, tls: ssl.SSLContext | None
    ) -> None:
        self._address, self._tls = address_of(address), tls
        self._patience, self._answer_seconds = patience, answer_seconds
        self._talk = talk
        self._protocol: SocketProtocol | None = None
        self.reconnects = -1
        """How often the client had to connect again."""

    @property
    def open_episodes(self) -> dict[StreamKey, OpenEpisode]:
        """The episodes that were open when the client connected, by stream: go on with them, or begin new ones."""
        return self._talk.open_episodes

    @property
    def tick(self) -> int:
        """The number of the tick that processed the newest request: those of one tick were processed together."""
        return self._talk.tick

    @property
    def stop(self) -> str | None:
        """Why the session is over; None while it is not."""
        return self._talk.stop

    @property
    def welcome(self) -> Welcome:
        """What the server said about itself: its name, spaces and limits."""
        return cast("Welcome", self._talk.welcome)


def numbers_of(reply: StatsReply) -> dict[str, Any]:
    """What a reply says about the training."""
    return {name: value for name, value in msgspec.to_builtins(reply).items() if name not in ("type", "ref")}
