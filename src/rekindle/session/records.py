"""The records of an input journal: how calls of the host are written as bytes, and read again.

A record begins with flags and, if one of them says so, a `Context`. Then come numbers and arrays, without their dtypes
and shapes: these are those of the table of streams. Rare calls are msgpack instead.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rekindle.errors import CheckpointError
from rekindle.experience import Array
from rekindle.session.table import StreamId, StreamTable
from rekindle.spaces import ArraySpec, Layout

__all__ = [
    "BATCH",
    "Body",
    "Context",
    "Decoded",
    "Dispatched",
    "Flag",
    "Kind",
    "ONE",
    "OUTCOME",
    "decode",
    "encoded",
    "raw",
]


class Kind(IntEnum):
    """The calls that have records; 0 is the end of a segment."""

    STREAM = 1
    """`session.stream`, for a stream that is new."""
    ACT = 2
    ACT_MANY = 3
    OBSERVE = 4
    OBSERVE_MANY = 5
    ANNOUNCE = 6
    START_EPISODE = 7
    BEGIN = 8
    STEP = 10
    CLOSE_EPISODE = 11
    CLOSE_STREAM = 12
    LEARN = 13
    LOG = 14
    EVALUATION = 15
    BEST = 16
    INEXACT = 17
    HOOK_BEGUN = 18
    HOOK_DONE = 19
    HOOK_RAISED = 20
    CAUGHT_UP = 21
    """The session was resumed; it has done what was due before."""
    RESTARTED = 22
    """A background learner continues, after a resume, with everything processed that was sent to it."""
    CLOSED = 23
    """The session is being closed: a background learner has ended, and unannounced episodes were ended."""
    TICK = 24
    """A batch of calls of many streams, as a server makes it."""
    DUE_AGAIN = 25
    """What an exception had left due is done, before the next call."""
    ANNOUNCE_MANY = 26


class Flag:
    """What a record contains; plain numbers, because members of an enum are slow to combine."""

    CONTEXT = 1
    ACTION = 2
    """The actions that were returned."""
    SAME = 4
    """The observations are the newest of their streams, and are left out."""
    STREAMS = 8
    """The streams of a batch; otherwise they are the first ones, in order."""
    EXTRAS = 16
    EXECUTED = 32
    """Actions that were executed instead of the chosen ones."""


class Dispatched(msgspec.Struct, frozen=True, array_like=True):
    """A decision of a background learner that the call has seen: what it did after how many messages."""

    number: int
    """Counted from the first dispatch of the run."""
    messages: int
    """Messages that the learner had processed, counted likewise."""
    skipped: int
    updates: int


class Context(msgspec.Struct, array_like=True, omit_defaults=True):
    """What a call depended on other than its input."""

    added: list[StreamId] = []
    """Streams that were added before it."""
    observation_layout: dict[str, Any] | None = None
    """The layout of observations, if the agent has no space and this call set it."""
    action_layout: list[Any] | None = None
    polls: int = 0
    """How often updates asked whether to stop, if the last answer was yes."""
    callback: tuple[int, int, bool] | None = None
    """For a call that a callback made: the event, the callback, and whether the record of the outer call was written
    before."""
    dispatches: list[Dispatched] = []
    exploration: list[Any] | None = None
    """The state of the generator that explores with the policies of a background learner."""


class Decoded(NamedTuple):
    """A record that was read."""

    number: int
    kind: Kind
    flags: int
    context: Context
    body: memoryview


ONE = struct.Struct("<I")
"""The row of a stream."""
OUTCOME = struct.Struct("<IdB")
"""The row of a stream, a reward and a status."""
BATCH = struct.Struct("<I")
"""The number of rows."""
_LENGTH = struct.Struct("<I")
_NO_CONTEXT = Context()
_KINDS = {int(kind): kind for kind in Kind}  # an enum is slow to look up its members
_FLAGS = [bytes((flags,)) for flags in range(256)]
_decode_context = msgspec.msgpack.Decoder(Context).decode
_encode_context = msgspec.msgpack.Encoder().encode  # making an encoder takes as long as using it


def encoded(flags: int, context: Context | None, *parts: bytes) -> bytes:
    """A record."""
    if context is None:
        return _FLAGS[flags] + b"".join(parts)
    data = _encode_context(context)
    return b"".join((_FLAGS[flags | Flag.CONTEXT], _LENGTH.pack(len(data)), data, *parts))


def decode(number: int, kind: int, data: bytes) -> Decoded:
    """Read the beginning of a record; raises `CheckpointError`."""
    try:
        flags, start, context = data[0], 1, _NO_CONTEXT
        if flags & Flag.CONTEXT:
            start += _LENGTH.size
            end = start + _LENGTH.unpack_from(data, 1)[0]
            context, start = _decode_context(data[start:end]), end
        return Decoded(number, _KINDS[kind], flags, context, memoryview(data)[start:])
    except (IndexError, KeyError, ValueError, struct.error, msgspec.MsgspecError) as error:
        raise CheckpointError(f"record {number} of the input journal is not one that this version writes") from error


def raw(arrays: Sequence[Array]) -> bytes:
    """The bytes of arrays, one after the other."""
    return arrays[0].tobytes() if len(arrays) == 1 else b"".join([array.tobytes() for array in arrays])


class Body:
    """Reads numbers and arrays from a record, in order."""

    def __init__(self, record: Decoded, table: StreamTable) -> None:
        self._data, self._table = record.body, table
        self._at = 0

    def numbers(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next numbers."""
        found = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return found

    def array(self, spec: ArraySpec, rows: int | None = None) -> Array:
        """The next array: one, or one for each row."""
        shape = spec.shape if rows is None else (rows, *spec.shape)
        array = np.frombuffer(self._data, spec.dtype, math.prod(shape), self._at).reshape(shape)
        self._at += array.nbytes
        return array

    def observation(self, rows: int | None = None) -> Any:
        """The next observation, or a batch of them, as the host would give it."""
        plain = self._table.plain_layout
        if plain is not None:
            return self.array(plain, rows)
        layout = self._layout()
        return layout.nested([self.array(leaf, rows) for leaf in layout.leaves.values()])

    def arrays(self, rows: int) -> list[Array]:
        """The next batch of observations, as the arrays of their layout."""
        return [self.array(leaf, rows) for leaf in self._layout().leaves.values()]

    def bytes(self, size: int) -> bytes:
        """The next bytes."""
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def skip_observation(self, rows: int = 1) -> None:
        """Pass over the next observation, or a batch of them."""
        self._at += rows * sum(array[:1].nbytes for array in self._table.last)

    def skip_action(self) -> None:
        """Pass over the next action."""
        self._at += self._table.pending[:1].nbytes

    def bytes_of_actions(self, rows: int = 1) -> bytes:
        """The bytes of the next action, or of a batch of them."""
        size = rows * self._table.pending.strides[0]
        return bytes(self._data[self._at : self._at + size])

    def newest(self, rows: Any) -> Any:
        """The newest observation of a stream, or of several."""
        return self._layout().nested([array[rows].copy() for array in self._table.last])

    def action(self, rows: int | None = None) -> Array:
        """The next action, or a batch of them, as the agent chose it."""
        if self._table.action_layout is None:
            raise ValueError("the layout of actions is not known")
        return self.array(self._table.action_layout, rows)

    def rest(self) -> bytes:
        """Everything that is left."""
        return bytes(self._data[self._at :])

    def _layout(self) -> Layout:
        if self._table.observation_layout is None:
            raise ValueError("the layout of observations is not known")
        return self._table.observation_layout
