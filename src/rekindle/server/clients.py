"""The clients of a server: their names and secrets, and the number and answer of the last processed request of each.

All of this is part of the checkpoint and of the input journal. Each tick has a note: the requests that it processed, or
the client that it admitted or forgot. The answer to a request can be computed from the actions of its tick, so a replay
of the journal restores the same answers.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from rekindle.agent import State
from rekindle.checks import refuses_misfits
from rekindle.errors import StateError
from rekindle.experience import Array

__all__ = ["Client", "Clients", "Connection", "Entry", "client_and_stream", "new_secret"]

Entry = struct.Struct("<IQII")
"""A request in a note: the client, its number, its steps and its begins."""
_REQUESTS, _ADMITTED, _FORGOTTEN, _SKIPPED = b"R", b"A", b"F", b"S"
_pack, _unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


class Connection(Protocol):
    """The connection to a client."""

    def answer(self, client: Client) -> None:
        """Send the answer to the last request."""
        ...

    def refuse(self, code: str, message: str, *, seq: int | None = None, ref: int | None = None) -> None:
        """Send an error; close the connection if the code requires it."""
        ...


class Client:
    """One client, across all of its connections."""

    __slots__ = (
        "connection",
        "incarnation",
        "key",
        "last",
        "name",
        "number",
        "reply",
        "seen",
        "streams",
        "tick",
        "waiting",
    )

    def __init__(self, number: int, name: str, incarnation: int, key: bytes) -> None:
        self.number, self.name, self.incarnation, self.key = number, name, incarnation, key
        self.last = 0
        """The number of the last processed request."""
        self.tick = 0
        """The tick that processed it."""
        self.reply = b""
        """The rows of actions in its answer, as converted by `form` of `Clients`."""
        # The fields below are not saved.
        self.connection: Connection | None = None
        self.streams: dict[int | str, int] = {}
        """The slots of its streams in the session."""
        self.waiting = 0
        """The number of the request that waits for the next tick; 0 if there is none."""
        self.seen = 0.0
        """The time of its last connection, on the monotonic clock."""

    def has(self, secret: str) -> bool:
        """Whether this is the secret of the client."""
        return hmac.compare_digest(key_of(secret), self.key)

    def state(self) -> State:
        """For a checkpoint."""
        numbers = [self.number, self.incarnation, self.last, self.tick]
        return {"name": self.name, "key": self.key.hex(), "numbers": numbers, "reply": self.reply.hex()}


def new_secret() -> str:
    """Make a secret for a new client."""
    return secrets.token_hex(16)


def key_of(secret: str) -> bytes:
    """The hash of a secret, which the server saves instead of the secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class Clients:
    """All clients that the server knows."""

    def __init__(self, form: Callable[[Array], Array]) -> None:
        """`form` converts the actions of a tick to the rows that are saved."""
        self._form = form
        self.tick = 0
        """The number of ticks so far, across restarts."""
        self.by_number: dict[int, Client] = {}
        self.by_name: dict[str, Client] = {}
        self.next_number = 0

    # Notes

    def requests_note(self, entries: list[bytes]) -> bytes:
        """The note of a tick that processes requests, each packed as `Entry`."""
        return _REQUESTS + b"".join(entries)

    def admission_note(self, name: str, secret: str) -> bytes:
        """The note of a tick that admits a client; it replaces a client of the same name."""
        before = self.by_name.get(name)
        incarnation = 1 if before is None else before.incarnation + 1
        return _ADMITTED + _pack((self.next_number, name, incarnation, key_of(secret)))

    @staticmethod
    def forgetting_note(client: Client) -> bytes:
        """The note of a tick that forgets a client."""
        return _FORGOTTEN + _pack(client.number)

    @staticmethod
    def skipping_note(client: Client, last: int) -> bytes:
        """The note of a tick after which a client continues with the request after `last`."""
        return _SKIPPED + _pack((client.number, last))

    def took(self, note: bytes, actions: Array) -> None:
        """Apply the note and the actions of a tick that was made."""
        self.tick += 1
        kind, data = note[:1], note[1:]
        if kind == _REQUESTS:
            self._processed(data, actions)
        elif kind == _ADMITTED:
            number, name, incarnation, key = _unpack(data, type=tuple[int, str, int, bytes])
            before = self.by_name.get(name)
            if before is not None:
                del self.by_number[before.number]
            client = Client(number, name, incarnation, key)
            self.by_number[number] = self.by_name[name] = client
            self.next_number = number + 1
        elif kind == _FORGOTTEN:
            client = self.by_number.pop(_unpack(data, type=int))
            del self.by_name[client.name]
        elif kind == _SKIPPED:
            number, last = _unpack(data, type=tuple[int, int])
            client = self.by_number[number]
            client.last, client.tick, client.reply = last, self.tick, b""

    def _processed(self, data: bytes, actions: Array) -> None:
        kept = self._form(actions)
        if len(data) == Entry.size:
            number, seq, _, _ = Entry.unpack(data)
            client = self.by_number[number]
            client.last, client.tick, client.reply = seq, self.tick, kept.tobytes()
            return
        entries = list(Entry.iter_unpack(data))
        raw, size = kept.tobytes(), kept[:1].nbytes if len(kept) else 0
        step, begin = 0, size * sum([entry[2] for entry in entries])
        for number, seq, steps, begins in entries:
            client = self.by_number[number]
            client.last, client.tick = seq, self.tick
            stepped, begun = step + steps * size, begin + begins * size
            client.reply = raw[step:stepped] + raw[begin:begun] if begins else raw[step:stepped]
            step, begin = stepped, begun

    # Checkpoints

    def state(self) -> State:
        """For a checkpoint."""
        clients = [client.state() for _, client in sorted(self.by_number.items())]
        return {"tick": self.tick, "next_number": self.next_number, "clients": clients}

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Restore the state of a checkpoint."""
        saved = msgspec.convert(state, _Saved)
        self.tick, self.next_number = saved.tick, saved.next_number
        for one in saved.clients:
            number, incarnation, last, tick = one.numbers
            client = Client(number, one.name, incarnation, bytes.fromhex(one.key))
            client.last, client.tick, client.reply = last, tick, bytes.fromhex(one.reply)
            self.by_number[number] = self.by_name[one.name] = client
        if not len(self.by_number) == len(self.by_name) == len(saved.clients):
            raise StateError("the checkpoint has two clients of one name or number")


class _SavedClient(msgspec.Struct):
    name: str
    key: str
    numbers: tuple[int, int, int, int]
    reply: str


class _Saved(msgspec.Struct):
    tick: int
    next_number: int
    clients: list[_SavedClient]


def client_and_stream(name: Any) -> tuple[str, int | str] | None:
    """The client and the stream in the name of a session's stream; None if the stream belongs to no client."""
    client, slash, stream = str(name).partition("/")
    if not slash or not client or not stream:
        return None
    return client, int(stream) if stream.isascii() and stream.isdigit() else stream
