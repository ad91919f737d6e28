"""The WebSocket connection of a client: assembles messages from frames, enforces limits and deadlines, and answers."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Protocol, cast

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from rekindle.server.clients import Client
from rekindle.server.counting import Counters
from rekindle.server.desk import Desk
from rekindle.server.opening import Ready
from rekindle.server.options import ServerOptions
from rekindle.server.pages import is_token
from rekindle.server.refusals import CLOSE_CODES, Refusal
from rekindle.wire.messages import (
    VERSION,
    Abandon,
    Act,
    Actions,
    Batch,
    Begin,
    Bye,
    Close,
    ErrorMessage,
    Hello,
    StatsReply,
    StatsRequest,
    Step,
    decode_request,
    encode,
)
from rekindle.wire.rows import WireError

__all__ = ["ClientConnection", "House"]

logger = logging.getLogger("rekindle")

_TEXT, _BINARY, _CONTINUATION, _CLOSE, _PING = (
    WSMsgType.TEXT,
    WSMsgType.BINARY,
    WSMsgType.CONTINUATION,
    WSMsgType.CLOSE,
    WSMsgType.PING,
)
_MOST_UNREAD = 1 << 20
"""The most unsent bytes for a client that does not read; beyond this, the connection is closed."""
_BUSY = 0.2
"""Seconds after a deadline at which it is clear that the server itself was late."""
_AFTER_BUSY = 1.0
"""Seconds that a client has then."""
_MOST_EARLY = 64
"""The most messages of a client that waits for the session to be opened."""


class House(Protocol):
    """The server of a connection."""

    options: ServerOptions
    counters: Counters
    connections: set[ClientConnection]

    @property
    def is_leaving(self) -> bool:
        """Whether the server is stopping."""
        ...

    @property
    def ended(self) -> str | None:
        """Why the training is over; None if it continues, or may continue after a restart of the server."""
        ...

    def desk_for(self, hello: Hello, ready: Ready) -> Desk | None:
        """The desk that processes the requests of a client; raises `Refusal`.

        None while the session is being opened: `ready` is called afterwards.
        """
        ...

    def learns(self) -> bool:
        """Whether numbered requests are processed too, not only `act`."""
        ...

    def stats(self, ref: int) -> StatsReply:
        """Statistics of the training."""
        ...


class ClientConnection(WSListener):
    """One connection."""

    def __init__(self, house: House) -> None:
        self._house, self._options, self._counters = house, house.options, house.counters
        self._transport: WSTransport | None = None
        self._is_json = False
        self._desk: Desk | None = None
        self._client: Client | None = None
        self._is_playing = False
        self._waiting_hello: Hello | None = None
        """The `hello` of the client, while the session is being opened."""
        self._early: list[tuple[bytes, bool]] = []
        """Messages that arrived meanwhile, and whether each is JSON."""
        self._parts: list[bytes] = []
        self._part_bytes = 0
        self._parts_are_text = False
        self._deadline: asyncio.TimerHandle | None = None
        """Ends the connection if `hello`, or the rest of a fragmented message, does not arrive in time."""
        self._allowance, self._allowed_at = self._options.rate, time.monotonic()
        self._is_paused = False
        self._is_over = False

    # Called by picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Register the connection after the handshake."""
        self._transport = transport
        self._house.connections.add(self)
        self._counters.connections += 1
        self._counters.accepted += 1
        self._set_deadline(self._options.hello_seconds, "hello")

    def on_ws_disconnected(self, transport: WSTransport) -> None:  # noqa: ARG002 - picows calls it so
        """Unregister the connection after it closed."""
        self._is_over = True
        self._cancel_deadline()
        if self in self._house.connections:
            self._house.connections.discard(self)
            self._counters.connections -= 1
        if self._client is not None and self._desk is not None:
            self._desk.disconnected(self._client, self)
        self._transport = self._waiting_hello = None
        self._parts.clear()
        self._early.clear()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Process a frame."""
        if self._is_over:
            return
        kind = frame.msg_type
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._fail("bad_message", "reserved bits are set: no extension, such as compression, was agreed on", 1002)
        elif (kind is _BINARY or kind is _TEXT) and frame.fin and not self._parts:
            self._message(frame.get_payload_as_bytes(), kind is _TEXT)
        elif kind is _BINARY or kind is _TEXT or kind is _CONTINUATION:
            self._fragment(frame)
        elif kind is _PING:
            self._pong(transport, frame.get_payload_as_bytes())
        elif kind is _CLOSE:
            self._close(transport, frame)

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Note that the client reads again."""
        self._is_paused = False

    def _close(self, transport: WSTransport, frame: WSFrame) -> None:
        self._is_over = True
        transport.send_close(frame.get_close_code() or WSCloseCode.OK)  # browsers send none after close()
        transport.disconnect()

    def _pong(self, transport: WSTransport, payload: bytes) -> None:
        """Answer a ping, within the limits of messages: picows would buffer any number of answers."""
        self._spend()
        if not self._is_over:
            transport.send_pong(payload)
            self._cut_unread(transport)

    def _fragment(self, frame: WSFrame) -> None:
        is_first = frame.msg_type is not _CONTINUATION
        if is_first == bool(self._parts):
            self._fail("bad_message", "the fragments of a message are out of order", 1002)
            return
        if is_first:
            self._parts_are_text = frame.msg_type is _TEXT
            self._set_deadline(self._options.message_seconds, "the rest of a message")
        self._part_bytes += frame.payload_size
        if self._part_bytes > self._options.max_message or len(self._parts) > self._options.max_message // 16:
            self._fail("too_large", f"a message may have at most {self._options.max_message} bytes")
            return
        self._parts.append(frame.get_payload_as_bytes())
        if frame.fin:
            data = b"".join(self._parts)
            self._parts.clear()
            self._part_bytes = 0
            if self._desk is None and self._waiting_hello is None:
                self._set_deadline(self._options.hello_seconds, "hello")
            else:
                self._cancel_deadline()
            self._message(data, self._parts_are_text)

    # Messages

    def _message(self, data: bytes, is_json: bool) -> None:
        try:
            message: Any = decode_request(data, is_json=is_json)
        except WireError as error:
            self._is_json = is_json if self._desk is None else self._is_json
            self._fail("bad_message", str(error))
            return
        try:
            client, desk = self._client, self._desk
            if desk is None:
                if self._waiting_hello is None:
                    self._hello(message, is_json)
                else:
                    self._keep(data, is_json)
            elif is_json is not self._is_json:
                self._fail("bad_message", "text and binary messages must not be mixed")
            elif client is not None and type(message) in _NUMBERED and not self._house.is_leaving:
                if not desk.submit(client, message, is_json=is_json):
                    self._spend()
            else:
                self._other(message, desk)
        except Exception as error:
            self._answer_error(message, error)

    def _answer_error(self, message: Any, error: Exception) -> None:
        refusal = error if isinstance(error, Refusal) else self._broken(error)
        seq, ref = getattr(message, "seq", None), getattr(message, "ref", None)
        self.refuse(refusal.code, str(refusal), seq=seq, ref=ref)
        self._spend()

    def _broken(self, error: Exception) -> Refusal:
        """Log an error of the server itself; only this client is told."""
        name = "a client" if self._client is None else f"client {self._client.name}"
        logger.error("a message of %s could not be processed", name, exc_info=error)
        return Refusal("internal", "the message could not be processed")

    def _hello(self, message: Any, is_json: bool) -> None:
        self._is_json = is_json
        if not isinstance(message, Hello):
            raise Refusal("bad_message", "the first message must be hello")
        house, token = self._house, self._options.token
        if token is not None and not is_token(message.token, token):
            raise Refusal("token", "the token is missing or wrong")
        if house.is_leaving:
            raise Refusal("leaving", "the server stops")
        if not message.versions[0] <= VERSION <= message.versions[1]:
            raise Refusal("version", f"the server speaks version {VERSION}, you speak {message.versions}")
        if message.mode not in ("train", "play"):
            raise Refusal("bad_message", f"mode is {message.mode!r:.40}: use train or play")
        desk = house.desk_for(message, self._try_again)
        if desk is None:
            self._waiting_hello = message
            self._cancel_deadline()
            return
        if message.mode == "play" or not house.learns():
            desk.check_spaces(message)
            self._is_playing = True
            welcome = desk.welcome(message.client or "", 0, None, 0, [])
        else:
            self._client, welcome = desk.admit(message, self, is_json=is_json)
        self._desk = desk
        self._cancel_deadline()
        self._send(welcome)

    def _try_again(self, refusal: Refusal | None) -> None:
        """Answer `hello`, and what came after it, when the session is open; or refuse it."""
        hello, self._waiting_hello = self._waiting_hello, None
        early, self._early = self._early, []
        if hello is None or self._is_over:
            return
        try:
            if refusal is not None:
                raise refusal
            self._hello(hello, self._is_json)
        except Exception as error:
            self._answer_error(hello, error)
        for data, is_json in early:
            if not self._is_over:
                self._message(data, is_json)

    def _keep(self, data: bytes, is_json: bool) -> None:
        """Keep a message until the session is open; all of them together may be as long as one."""
        self._early.append((data, is_json))
        if sum([len(early) for early, _ in self._early]) > self._options.max_message or len(self._early) > _MOST_EARLY:
            raise Refusal("rate", "too many messages before welcome: wait for it")

    def _other(self, message: Any, desk: Desk) -> None:
        if isinstance(message, Act):
            self._spend()
            actions = desk.act(cast("Act[Any]", message).observations, is_json=self._is_json)
            sent = desk.actions.sent(actions, is_json=self._is_json)
            self._send(Actions(ref=message.ref, actions=sent))
        elif isinstance(message, StatsRequest):
            self._spend()
            self._send(self._house.stats(message.ref))
        elif isinstance(message, Bye):
            self._bye(desk)
        elif isinstance(message, Hello):
            raise Refusal("bad_message", "hello is only the first message")
        elif self._is_playing:
            raise Refusal("mode", "this connection or server only plays: use act")
        else:
            raise Refusal("leaving", "the server stops")

    def _bye(self, desk: Desk) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.connection = None
            desk.forget(client)
        self._end(1000, "")

    def answer(self, client: Client) -> None:
        """Send the answer to the last request."""
        desk = self._desk
        if desk is None:
            return
        actions: Any = client.reply or None
        if actions is not None and (self._is_json or not desk.actions.is_plain):
            actions = desk.actions.sent(desk.actions.rows(client.reply), is_json=self._is_json)
        self._send(Actions(seq=client.last, tick=client.tick, actions=actions, stop=desk.stop_reason))

    def refuse(self, code: str, message: str, *, seq: int | None = None, ref: int | None = None) -> None:
        """Send an error; close the connection if the code requires it."""
        if self._is_over:
            return
        self._counters.refuse(code)
        stop = self._house.ended if code == "leaving" else None
        self._send(ErrorMessage(code=code, message=message, seq=seq, ref=ref, stop=stop))
        close_code = CLOSE_CODES.get(code)
        if close_code is not None:
            self._end(close_code, code)

    def _fail(self, code: str, message: str, close_code: int | None = None) -> None:
        if not self._is_over:
            self._counters.refuse(code)
            self._send(ErrorMessage(code=code, message=message))
            self._end(close_code or CLOSE_CODES[code], code)

    def _end(self, close_code: int, reason: str) -> None:
        transport, self._is_over = self._transport, True
        self._cancel_deadline()
        self._parts.clear()
        if self._client is not None and self._desk is not None:
            self._desk.disconnected(self._client, self)
        if transport is not None:
            transport.send_close(_close_code(close_code), reason.encode())
            transport.disconnect()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._is_over = True
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    def _send(self, message: Any) -> None:
        transport = self._transport
        if transport is None or self._is_over:
            return
        transport.send(_TEXT if self._is_json else _BINARY, encode(message, is_json=self._is_json))
        self._cut_unread(transport)

    def _cut_unread(self, transport: WSTransport) -> None:
        """Close the connection of a client that does not read."""
        if self._is_paused and transport.underlying_transport.get_write_buffer_size() > _MOST_UNREAD:
            self._is_over = True
            self._counters.refuse("rate")
            transport.underlying_transport.abort()

    # Limits

    def _spend(self) -> None:
        """Count a message that is not a processed request, or a ping, towards the rate limit."""
        if self._is_over:
            return
        now = time.monotonic()
        rate = self._options.rate
        self._allowance = min(rate, self._allowance + (now - self._allowed_at) * rate) - 1.0
        self._allowed_at = now
        if self._allowance < 0:
            self._fail("rate", f"more than {rate:g} messages per second")

    def _set_deadline(self, seconds: float, what: str) -> None:
        self._cancel_deadline()
        due = time.monotonic() + seconds
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._too_late, what, due)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self, what: str, due: float) -> None:
        if time.monotonic() - due > _BUSY:
            # The server was busy, for example with a long update, and has not read yet what arrived in time.
            self._set_deadline(_AFTER_BUSY, what)
            return
        self._fail("rate", f"{what} did not come in time")


_NUMBERED = frozenset((Begin, Step, Abandon, Close, Batch))


def _close_code(number: int) -> Any:
    """A close code for picows, which accepts any number although its enum has only the registered ones."""
    try:
        return WSCloseCode(number)
    except ValueError:
        return number
