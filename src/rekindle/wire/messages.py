"""The messages of the protocol as structs, encoded as msgpack or JSON."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec

from rekindle.wire.rows import PartFormat, WireError

__all__ = [
    "Abandon",
    "Act",
    "Actions",
    "Batch",
    "Begin",
    "Bye",
    "Close",
    "ErrorMessage",
    "Hello",
    "Limits",
    "Starts",
    "StatsReply",
    "StatsRequest",
    "Step",
    "Steps",
    "StreamKey",
    "StreamStanding",
    "VERSION",
    "Welcome",
    "decode_reply",
    "decode_request",
    "encode",
]

VERSION = 1
"""The version of the protocol."""


Value = TypeVar("Value")
"""An array in a message: bytes in msgpack, nested lists in JSON; for several parts, a map of these by name."""
_Raw = bytes | dict[str, bytes]
_Nested = list[Any] | dict[str, Any]

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
StreamKey = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
"""The name of a stream, chosen by the client."""
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]
_Text = Annotated[str, msgspec.Meta(max_length=512)]


class _Message(msgspec.Struct, tag_field="type", kw_only=True, omit_defaults=True):
    """A message with its type."""


# From the client


class Hello(_Message, tag="hello"):
    """The first message of a connection."""

    versions: tuple[int, int]
    client: _Name | None = None
    secret: _Text | None = None
    last: Number = 0
    token: _Text | None = None
    mode: str = "train"
    observation_space: dict[str, Any] | None = None
    action_space: dict[str, Any] | None = None


class Starts(msgspec.Struct, Generic[Value], kw_only=True, omit_defaults=True):
    """First observations of streams."""

    observations: Value
    streams: list[StreamKey] | None = None


class Steps(msgspec.Struct, Generic[Value], kw_only=True, omit_defaults=True):
    """The outcomes of the last actions of streams."""

    observations: Value
    rewards: Value
    statuses: Value
    streams: list[StreamKey] | None = None
    actions: Value | None = None
    extras: dict[str, dict[str, float]] | None = None


class Begin(_Message, Generic[Value], tag="begin"):
    """Start an episode in each stream."""

    seq: Number
    observations: Value
    streams: list[StreamKey] | None = None


class Step(_Message, Generic[Value], tag="step"):
    """Report the outcome of the last action of each stream."""

    seq: Number
    observations: Value
    rewards: Value
    statuses: Value
    streams: list[StreamKey] | None = None
    actions: Value | None = None
    extras: dict[str, dict[str, float]] | None = None


class Abandon(_Message, tag="abandon"):
    """Truncate open episodes at their last transitions."""

    seq: Number
    streams: list[StreamKey] | None = None


class Close(_Message, tag="close"):
    """Truncate open episodes, and forget the streams."""

    seq: Number
    streams: list[StreamKey] | None = None


class Batch(_Message, Generic[Value], tag="batch"):
    """Close, abandon, step and begin streams in one request, in this order."""

    seq: Number
    close: list[StreamKey] = []
    abandon: list[StreamKey] = []
    step: Steps[Value] | None = None
    begin: Starts[Value] | None = None


class Act(_Message, Generic[Value], tag="act"):
    """Ask for greedy actions, without learning."""

    observations: Value
    ref: Number = 0


class StatsRequest(_Message, tag="stats"):
    """Request statistics of the training."""

    ref: Number = 0


class Bye(_Message, tag="bye"):
    """Disconnect for good: the server forgets the client."""


# From the server


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a client."""

    message: int
    """The most bytes of a message."""
    streams: int
    """The most streams of all clients together."""
    rate: float
    """The most messages per second, not counting processed requests."""


class StreamStanding(msgspec.Struct, kw_only=True):
    """A stream with an open episode."""

    stream: StreamKey
    length: int
    reward: float
    action: Any


class Welcome(_Message, tag="welcome", omit_defaults=False):
    """The answer to `Hello`."""

    version: int
    server: str
    run: str
    agent: str
    client: str
    incarnation: int
    secret: str | None
    last: int
    is_behind: bool
    streams: list[StreamStanding]
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    observation: dict[str, PartFormat]
    action: dict[str, PartFormat]
    limits: Limits
    stop: str | None = None


class Actions(_Message, tag="actions"):
    """The answer to a request."""

    seq: int | None = None
    ref: int | None = None
    tick: int | None = None
    actions: Any = None
    stop: str | None = None


class StatsReply(_Message, tag="stats", omit_defaults=False, rename={"mean_return": "return"}):
    """Statistics of the training."""

    ref: int
    steps: int
    episodes: int
    updates: int
    clients: int
    streams: int
    steps_per_second: float
    learning: dict[str, float | None]
    mean_return: float | None


class ErrorMessage(_Message, tag="error"):
    """A request was refused, or the connection is closed."""

    code: str
    message: str
    seq: int | None = None
    ref: int | None = None
    stop: str | None = None
    """With the code `leaving`: why the training is over; None if the server may be started again."""


_RawRequest = Hello | Begin[_Raw] | Step[_Raw] | Abandon | Close | Batch[_Raw] | Act[_Raw] | StatsRequest | Bye
_NestedRequest = (
    Hello | Begin[_Nested] | Step[_Nested] | Abandon | Close | Batch[_Nested] | Act[_Nested] | StatsRequest | Bye
)
_Reply = Welcome | Actions | StatsReply | ErrorMessage

_decoders = {
    False: msgspec.msgpack.Decoder(_RawRequest).decode,
    True: msgspec.json.Decoder(_NestedRequest).decode,
}
_reply_decoders = {False: msgspec.msgpack.Decoder(_Reply).decode, True: msgspec.json.Decoder(_Reply).decode}
_encoders = {False: msgspec.msgpack.Encoder().encode, True: msgspec.json.Encoder().encode}
# The errors of msgspec for malformed bytes, wrong types, text that is not UTF-8, and too deep nesting.
_MALFORMED = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, ValueError, MemoryError)


def decode_request(data: bytes | memoryview, *, is_json: bool) -> Any:
    """Decode a message from a client; raises `WireError`."""
    try:
        return _decoders[is_json](data)
    except _MALFORMED as error:
        raise WireError(f"the message cannot be read: {str(error)[:200] or type(error).__name__}") from None


def decode_reply(data: bytes | memoryview, *, is_json: bool = False) -> Any:
    """Decode a message from a server; raises `WireError`."""
    try:
        return _reply_decoders[is_json](data)
    except _MALFORMED as error:
        raise WireError(f"the answer cannot be read: {str(error)[:200] or type(error).__name__}") from None


def encode(message: Any, *, is_json: bool) -> bytes:
    """Encode a message."""
    return _encoders[is_json](message)
