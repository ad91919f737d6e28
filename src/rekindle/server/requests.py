"""Check the requests of clients, and combine several of them into one tick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.checks import checked_extras
from rekindle.errors import InputError
from rekindle.experience import Array
from rekindle.server.clients import Client, Entry
from rekindle.server.options import MOST_REWARD
from rekindle.server.refusals import Refusal
from rekindle.session.ticks import Tick, Ticks
from rekindle.spaces import ActionStructure
from rekindle.wire.messages import Abandon, Batch, Begin, Close, Starts, Step, Steps
from rekindle.wire.rows import RowFormat, WireError

__all__ = ["ActionRows", "Request", "RequestReader", "bad_requests", "complete", "entry_of", "gathered"]

_ONLY = [0]
"""The streams of a message without `streams`."""
_REWARDS, _STATUSES = RowFormat.of_dtype("float64"), RowFormat.of_dtype("uint8")
_LAST_STATUS = 2
_FEW = 32
"""Up to this many numbers, Python is faster than numpy."""
_MOST_EXTRAS = 64
"""The most different names of extras, of all clients together."""


class ActionRows:
    """Converts actions between the rows of a session and the arrays of messages."""

    def __init__(self, space: Any) -> None:
        self.format = RowFormat.of_space(space)
        self._structure = ActionStructure.of(space)
        self.is_plain = self._structure is None
        """Whether saved rows have the same form as in messages."""
        if self._structure is None:
            part = self.format.description[""]
            self._kept = np.dtype(np.uint8 if part.dtype == "bool" else part.dtype), tuple(part.shape)
        else:
            self._kept = self._structure.spec.dtype, self._structure.spec.shape

    def kept(self, rows: Array) -> Array:
        """Convert rows of the session to the form that the server saves, for answers that are sent again."""
        return rows.astype(self._kept[0], copy=False)

    def rows(self, raw: bytes) -> Array:
        """The rows in a saved answer."""
        dtype, shape = self._kept
        return np.frombuffer(raw, dtype).reshape(-1, *shape)

    def nested(self, rows: Array) -> Any:
        """Convert rows to the structure of the space."""
        return rows if self._structure is None else self._structure.nested(rows)

    def sent(self, rows: Array, *, is_json: bool) -> Any:
        """Encode rows for a message."""
        if self._structure is None:
            return self.format.sent([rows], is_json=is_json)
        parts = self._structure.nesting.leaves(self._structure.nested(rows), "actions")
        return self.format.sent([np.asarray(part) for part in parts], is_json=is_json)

    def executed(self, value: Any, rows: int, *, is_json: bool) -> Array:
        """The rows of actions that a client executed; raises `Refusal`."""
        arrays = self.format.received(value, rows, is_json=is_json)
        if self.format.bad_rows(arrays) is not None:
            raise Refusal("value", "an action is outside the space, or not finite")
        if self._structure is None:
            return arrays[0]
        try:
            return self._structure.flat(dict(zip(self.format.names, arrays, strict=True)), "actions", rows=rows)
        except InputError as error:
            raise Refusal("value", str(error)) from None


class Request(msgspec.Struct, eq=False, gc=False):
    """A request that waits for the next tick."""

    client: Client
    seq: int
    arrived: float
    close: Sequence[int | str] = ()
    abandon: Sequence[int] = ()
    steps: Sequence[int] = ()
    """The slots of the streams in the session."""
    after: tuple[bytes, ...] = ()
    rewards: bytes = b""
    statuses: bytes = b""
    executed: Array | None = None
    extras: Mapping[int, Mapping[str, float]] | None = None
    begins: Sequence[int | str] = ()
    """The client's names of the streams, which may not exist yet."""
    first: tuple[bytes, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows of actions in the answer."""
        return len(self.steps) + len(self.begins)


class RequestReader:
    """Checks everything about a message that does not depend on other clients; raises `Refusal`."""

    def __init__(self, observation: RowFormat, actions: ActionRows, ticks: Ticks) -> None:
        self._observation, self._actions = observation, actions
        self._is_open, self._are_open = ticks.is_open, ticks.are_open
        self._extra_names: set[str] = set()

    def read(self, client: Client, message: Any, arrived: float, *, is_json: bool) -> Request:
        """Check a message and convert it to a request."""
        request = Request(client, message.seq, arrived)
        try:
            if type(message) is Step:
                self._steps(request, cast("Steps[Any]", message), is_json)
                return request
            match message:
                case Begin():
                    self._begins(request, cast("Starts[Any]", message), is_json)
                case Abandon():
                    request.abandon = self._known(client, _ONLY if message.streams is None else message.streams)
                case Close():
                    request.close = self._closing(client, _ONLY if message.streams is None else message.streams)
                case _:
                    self._batch(request, cast("Batch[Any]", message), is_json)
        except WireError as error:
            raise Refusal("value", str(error)) from None
        return request

    def _batch(self, request: Request, message: Batch[Any], is_json: bool) -> None:
        client = request.client
        request.close = self._closing(client, message.close)
        request.abandon = self._known(client, message.abandon)
        if message.step is not None:
            self._steps(request, message.step, is_json)
        if message.begin is not None:
            self._begins(request, message.begin, is_json)
        closed = {client.streams[stream] for stream in request.close}
        begun = [client.streams.get(stream, -1) for stream in request.begins]
        going = {slot for slot, status in zip(request.steps, request.statuses, strict=True) if not status}
        if closed & {*request.steps, *request.abandon, *begun}:
            raise Refusal("stream", "a stream is closed and used in the same request")
        if going & set(begun):
            raise Refusal("stream", "a stream begins an episode in the request in which its last one continues")
        if not {*request.abandon}.isdisjoint(request.steps):
            raise Refusal("stream", "a stream is abandoned and stepped in the same request")

    def _steps(self, request: Request, message: Steps[Any], is_json: bool) -> None:
        streams, client = message.streams, request.client
        if streams is None or len(streams) == 1:
            request.steps = [self._open(client, 0 if streams is None else streams[0])]
            rows = 1
        else:
            rows = len(streams)
            request.steps = self._all_open(client, _each_once(streams))
        request.after = self._observation.raw(message.observations, rows, is_json=is_json)
        (request.rewards,) = _REWARDS.raw(message.rewards, rows, is_json=is_json)
        (statuses,) = _STATUSES.raw(message.statuses, rows, is_json=is_json)
        if max(statuses, default=0) > _LAST_STATUS:
            raise Refusal("value", "a status is not 0, 1 or 2")
        request.statuses = statuses
        if message.actions is not None:
            request.executed = self._actions.executed(message.actions, rows, is_json=is_json)
        if message.extras:
            request.extras = self._read_extras(message.extras, rows)

    def _read_extras(self, given: Mapping[str, Mapping[str, float]], rows: int) -> dict[int, dict[str, float]]:
        extras = _extras(given, rows)
        names = self._extra_names.union(*extras.values())
        if len(names) > _MOST_EXTRAS:  # each name is a metric of the run
            raise Refusal("value", f"extras: there are {_MOST_EXTRAS} names already")
        self._extra_names = names
        return extras

    def _begins(self, request: Request, message: Starts[Any], is_json: bool) -> None:
        streams = _ONLY if message.streams is None else _each_once(message.streams)
        for stream in streams:
            if type(stream) is str and stream.isascii() and stream.isdigit():
                raise Refusal("stream", f"the stream {stream!r} has only digits: use a number")
        request.begins = streams
        request.first = self._observation.raw(message.observations, len(streams), is_json=is_json)

    def _open(self, client: Client, stream: int | str) -> int:
        slot = client.streams.get(stream)
        if slot is None or not self._is_open(slot):
            raise Refusal("stream", f"stream {stream!r:.80} has no open episode: begin one")
        return slot

    def _all_open(self, client: Client, streams: Sequence[int | str]) -> list[int]:
        known = client.streams
        try:
            slots = [known[stream] for stream in streams]
        except KeyError:
            return [self._open(client, stream) for stream in streams]
        if not self._are_open(slots):
            return [self._open(client, stream) for stream in streams]
        return slots

    def _closing(self, client: Client, streams: Sequence[int | str]) -> Sequence[int | str]:
        self._known(client, streams)
        return streams

    @staticmethod
    def _known(client: Client, streams: Sequence[int | str]) -> list[int]:
        try:
            return [client.streams[stream] for stream in _each_once(streams)]
        except KeyError as error:
            raise Refusal("stream", f"there is no stream {error}") from None


def _each_once(streams: Sequence[int | str]) -> Sequence[int | str]:
    if len(set(streams)) != len(streams):
        raise Refusal("stream", "a stream occurs twice in a message")
    return streams


def _extras(given: Mapping[str, Mapping[str, float]], rows: int) -> dict[int, dict[str, float]]:
    extras: dict[int, dict[str, float]] = {}
    for place, numbers in given.items():
        if not (place.isascii() and place.isdigit() and len(place) < 10 and int(place) < rows):
            raise Refusal("value", f"extras: {place!r:.40} is not the position of a stream in the message")
        try:
            extras[int(place)] = checked_extras(numbers)
        except InputError as error:
            raise Refusal("value", str(error)) from None
    return extras


def gathered(requests: Sequence[Request], observation: RowFormat) -> Tick:
    """Combine the outcomes and first observations of several requests into one tick; `complete` adds the rest."""
    tick = Tick()
    stepping = [request for request in requests if request.steps]
    if stepping:
        tick.steps = np.array([slot for request in stepping for slot in request.steps], np.int64)
        tick.after = observation.joined([request.after for request in stepping], len(tick.steps))
        tick.rewards = np.frombuffer(b"".join([request.rewards for request in stepping]), np.float64)
        tick.statuses = np.frombuffer(b"".join([request.statuses for request in stepping]), np.uint8)
    firsts = [request.first for request in requests if request.begins]
    if firsts:
        tick.first = observation.joined(firsts, sum([len(request.begins) for request in requests]))
    return tick


def bad_requests(requests: Sequence[Request], tick: Tick, observation: RowFormat) -> list[int]:
    """The indices of requests with NaN, infinity, a reward that is too large or a value outside a discrete space."""
    bad: set[int] = set()
    found = [observation.bad_rows(tick.after), _bad_rewards(tick.rewards)] if len(tick.steps) else []
    for rows in found:
        if rows is not None:
            bad.update(_owners([len(one.steps) for one in requests])[rows].tolist())
    rows = observation.bad_rows(tick.first) if len(tick.first) else None
    if rows is not None:
        bad.update(_owners([len(one.begins) for one in requests])[rows].tolist())
    return sorted(bad)


def _bad_rewards(rewards: Array) -> Array | None:
    """Which rewards are NaN, infinite or too large; None if none is."""
    if len(rewards) <= _FEW and all(-MOST_REWARD <= reward <= MOST_REWARD for reward in rewards.tolist()):
        return None
    bad = ~(np.abs(rewards) <= MOST_REWARD)
    return bad if bad.any() else None


def _owners(counts: Sequence[int]) -> Array:
    return np.repeat(np.arange(len(counts)), counts)


def complete(tick: Tick, requests: Sequence[Request], ticks: Ticks) -> None:
    """Add the parts of a tick that depend on the session: the slots of streams, executed actions and extras."""
    place = 0
    extras: dict[int, Mapping[str, float]] = {}
    begins: list[int] = []
    close: list[int] = []
    abandon: list[int] = []
    for request in requests:
        if request.executed is not None:
            if tick.executed is None:
                tick.executed = ticks.pending(tick.steps)
            tick.executed[place : place + len(request.steps)] = request.executed
        if request.extras is not None:
            extras |= {place + row: numbers for row, numbers in request.extras.items()}
        place += len(request.steps)
        client = request.client
        if request.begins:
            for stream in request.begins:
                slot = client.streams.get(stream)
                if slot is None:
                    slot = client.streams[stream] = ticks.slot(f"{client.name}/{stream}")
                begins.append(slot)
        if request.close:
            close += [client.streams.pop(stream) for stream in request.close]
        if request.abandon:
            abandon += request.abandon
    if begins:
        tick.begins = np.array(begins, np.int64)
    if close:
        tick.close = np.array(close, np.int64)
    if abandon:
        tick.abandon = np.array(abandon, np.int64)
    tick.extras = extras


def entry_of(request: Request) -> bytes:
    """The entry of a request in the note of its tick."""
    return Entry.pack(request.client.number, request.seq, len(request.steps), len(request.begins))
