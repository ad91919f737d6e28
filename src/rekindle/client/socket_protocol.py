"""A WebSocket client without I/O, based on the protocol layer of `websockets`: it converts bytes to messages."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple
from urllib.parse import urlsplit

from rekindle.client.conversation import Retry
from rekindle.errors import ConfigError, MissingExtra, ServerError
from rekindle.text import install_command

try:
    from websockets.client import ClientProtocol
    from websockets.exceptions import InvalidHandshake, InvalidURI
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Response
    from websockets.protocol import State
    from websockets.uri import parse_uri
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] == "rekindle":
        raise
    raise MissingExtra(f"the client needs {missing.name}: {install_command('client')}", name=missing.name) from None

__all__ = ["Address", "SocketProtocol", "address_of"]

_MOST = 1 << 30
"""The most bytes of an answer."""


class Address(NamedTuple):
    """The address of a server."""

    text: str
    host: str
    port: int
    is_secure: bool


def address_of(text: str) -> Address:
    """Read an address; raises `ConfigError`."""
    try:
        parts = urlsplit(text if "://" in text else f"ws://{text}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"the address {text!r} cannot be read: {error}") from None
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ConfigError(f"{text!r} is not the address of a server: use ws://HOST:PORT/session")
    is_secure = parts.scheme == "wss"
    path = parts.path if parts.path not in ("", "/") else "/session"
    port = port or (443 if is_secure else 80)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Address(f"{parts.scheme}://{host}:{port}{path}", parts.hostname, port, is_secure)


class SocketProtocol:
    """One connection."""

    def __init__(self, address: Address) -> None:
        try:
            self._protocol = ClientProtocol(parse_uri(address.text), max_size=_MOST)
        except InvalidURI as error:
            raise ConfigError(str(error)) from None
        self._address = address
        self._protocol.send_request(self._protocol.connect())
        self._messages: deque[bytes] = deque()
        self._parts: list[bytes] = []
        self.is_open = False
        """Whether the handshake is done."""

    def feed(self, data: bytes) -> None:
        """Process bytes from the socket, empty if it was closed; raises `Retry` if the connection has ended."""
        protocol = self._protocol
        if data:
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
        for event in protocol.events_received():
            if isinstance(event, Response):
                self._handshake(event)
            elif isinstance(event, Frame):
                self._frame(event)
        failure = protocol.handshake_exc
        if failure is not None and not isinstance(failure.__cause__, EOFError):
            raise Retry(f"{self._address.text} answered, but not as a WebSocket server: {failure.__cause__ or failure}")
        if protocol.state is not State.OPEN and not self._messages and (not data or self.is_open):
            raise Retry(f"the connection to {self._address.text} was closed")

    def _handshake(self, response: Response) -> None:
        error = self._protocol.handshake_exc
        if error is None:
            self.is_open = True
            return
        body = bytes(response.body or b"").decode(errors="replace").strip()
        text = f"{self._address.text} answered {response.status_code}: {body:.200}"
        if response.status_code in (502, 503, 504):
            raise Retry(text)
        raise ServerError(text if isinstance(error, InvalidHandshake) else str(error))

    def _frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            if frame.fin:
                self._messages.append(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))
                self._parts = []

    def send(self, data: bytes) -> None:
        """Queue a message for `outgoing`; raises `Retry` if the connection has ended."""
        if self._protocol.state is not State.OPEN:
            raise Retry(f"the connection to {self._address.text} was closed")
        self._protocol.send_binary(data)

    def outgoing(self) -> list[bytes]:
        """Bytes to write to the socket."""
        return [data for data in self._protocol.data_to_send() if data]

    def next_message(self) -> bytes | None:
        """The next received message; None if there is none."""
        return self._messages.popleft() if self._messages else None
