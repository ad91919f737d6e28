"""The table of streams: one row per stream, as arrays."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, TypeVar, cast

import numpy as np

from rekindle.agent import State, StreamSlots
from rekindle.checks import are_distinct, check_text, is_rising
from rekindle.errors import InputError, StateError
from rekindle.experience import Array, Observations
from rekindle.spaces import ArraySpec, Layout, rows_at
from rekindle.traces import EpisodeTrace

__all__ = ["Phase", "Places", "StreamId", "StreamTable"]

_Layout = TypeVar("_Layout")

StreamId = int | str
"""The host's name for a stream: an integer, or a string, for example the name of a client or character."""

Places = slice | StreamSlots
"""Rows of the table as an index: a slice if they are the first rows, because numpy handles it faster."""


class Phase(IntEnum):
    """The state of a stream."""

    IDLE = 0
    """No episode."""
    BEGUN = 1
    """The first observation is known; there is no transition yet."""
    OPEN = 2
    """In the middle of an episode."""
    ENDED = 3
    """The last transition ended the episode, and `on_episode` has not been called."""


_NO_SLOTS: StreamSlots = np.zeros(0, np.int64)
_COLUMNS = ("phase", "episode", "total_reward", "length", "status", "unlinked", "has_pending", "has_gaps")


class StreamTable:
    """One row per stream, as arrays, so that a batch takes only a few array operations."""

    def __init__(self) -> None:
        self.ids: list[StreamId | None] = []
        """The stream of each row; None for a row that is free."""
        self._free: list[int] = []
        self.slots: dict[StreamId, int] = {}
        self.added: list[StreamId] | None = None
        """The streams that were added since the input journal last recorded them; None without a journal."""
        self.each: list[StreamSlots] = []
        """The index of every single row, as an array."""
        self._first: dict[int, tuple[StreamSlots, Places]] = {}
        self._named: tuple[tuple[np.dtype[Any], bytes] | None, StreamSlots] = None, _NO_SLOTS
        """The streams of the last batch that named them in an array, and their rows."""
        self._by_number = _NO_SLOTS
        """The row of each stream that is a number, up to some number; -1 if there is none."""
        self.observation_layout: Layout | None = None
        self.plain_layout: ArraySpec | None = None
        """The layout of an observation that is one array, for a fast path in the hot loop."""
        self.action_layout: ArraySpec | None = None
        self.traces: dict[int, EpisodeTrace] = {}
        self._room = 0
        self.phase = np.zeros(0, np.uint8)
        self.episode = np.zeros(0, np.int64)
        self.total_reward = np.zeros(0, np.float64)
        self.length = np.zeros(0, np.int64)
        self.status = np.zeros(0, np.uint8)
        """How the episode of an ENDED stream ended."""
        self.unlinked = np.zeros(0, np.bool_)
        """Streams whose last transition was dropped, so the next cannot be checked against it."""
        self.has_pending = np.zeros(0, np.bool_)
        self.has_gaps = np.zeros(0, np.bool_)
        """Streams with a dropped transition in their episode."""
        self.last: list[Array] = []
        """The newest observation of each stream."""
        self.pending: Array = np.zeros(0)
        """The action that was returned and has not been observed in a transition yet."""

    def slot(self, stream: StreamId) -> int:
        """The row of a stream; added if the stream is new."""
        try:
            slot = self.slots.get(stream)
        except TypeError:  # it is not hashable
            slot = None
        return self._add(stream) if slot is None else slot

    def slots_of(self, streams: Sequence[StreamId] | Array | None, rows: int) -> tuple[StreamSlots, Places]:
        """The rows of the streams of a batch, as an array and as an index; None means streams 0, 1, 2, ..."""
        if streams is None:
            known = self._first.get(rows)
            if known is None:
                slots = self._look_up(range(rows))
                is_slice = np.array_equal(slots, np.arange(rows))
                known = self._first[rows] = slots, slice(rows) if is_slice else slots
            return known
        try:
            given = len(streams)
        except TypeError:
            raise InputError(f"streams must be a sequence of their names, got {streams!r:.80}") from None
        if given != rows:
            raise InputError(f"{given} streams were given for a batch of {rows}")
        # Usually the transitions of the streams follow that were asked for actions.
        name = (streams.dtype, streams.tobytes()) if isinstance(streams, np.ndarray) else None
        if name is not None and name == self._named[0]:
            return self._named[1], self._named[1]
        slots = self._numbered(streams) if isinstance(streams, np.ndarray) else None
        if slots is None:
            slots = self._look_up(streams)
            if not are_distinct(slots):
                raise _twice(streams)
        self._named = name, slots
        return slots, slots

    def _numbered(self, streams: Array) -> StreamSlots | None:
        """The rows of streams that are numbers from 0 on, all of them known; None for others. It is much faster.

        Raises `InputError` if one occurs twice.
        """
        if streams.dtype.kind not in "iu" or streams.ndim != 1 or not streams.size:
            return None
        if is_rising(streams):  # which is usual, and faster
            least, most = streams[0], streams[-1]
        elif are_distinct(streams):
            least, most = np.minimum.reduce(streams), np.maximum.reduce(streams)
        else:
            raise _twice(streams)
        known, end = self._by_number, int(most) + 1
        if least < 0:
            return None
        if end > len(known):
            if end > 2 * len(self.slots):
                return None
            known = self._by_number = np.array([self.slots.get(stream, -1) for stream in range(end)], np.int64)
        slots = known[streams]
        return None if np.minimum.reduce(slots) < 0 else slots

    def peek(self, streams: Sequence[StreamId] | Array) -> StreamSlots:
        """The rows of streams, without adding any: unknown streams get numbers that no stream has."""
        unused = len(self.ids)
        return np.array([self.slots.get(stream, unused + row) for row, stream in enumerate(streams)], np.int64)

    def _look_up(self, streams: Sequence[StreamId] | Array) -> StreamSlots:
        return np.array([self.slot(stream) for stream in streams], np.int64)

    def _add(self, stream: Any) -> int:
        stream = _plain(stream)
        if stream in self.slots:
            return self.slots[stream]
        slot = heapq.heappop(self._free) if self._free else self._new_row()
        self.ids[slot] = stream
        self.slots[stream] = slot
        self._by_number = _NO_SLOTS
        if self.added is not None:
            self.added.append(stream)
        return slot

    def _new_row(self) -> int:
        slot = len(self.ids)
        self.ids.append(None)
        self.each.append(np.array([slot], np.int64))
        if slot >= self._room:
            self._grow(max(8, 2 * self._room))
        return slot

    def release(self, slot: int) -> None:
        """Remove a stream that has no episode; another stream may use its row."""
        del self.slots[self.id_of(slot)]
        self.ids[slot] = None
        self._by_number = _NO_SLOTS
        self.episode[slot] = 0
        heapq.heappush(self._free, slot)  # the lowest free row is used first, also after a resume
        self._first.clear()
        self._named = None, _NO_SLOTS

    def id_of(self, slot: int) -> StreamId:
        """The stream of a row."""
        return cast("StreamId", self.ids[slot])

    def _grow(self, room: int) -> None:
        self._room = room
        for name in _COLUMNS:
            setattr(self, name, _grown(getattr(self, name), room))
        self.last = [_grown(array, room) for array in self.last]
        self.pending = _grown(self.pending, room)

    def use_observation_layout(self, layout: Layout) -> None:
        """Set the layout of all observations."""
        self.observation_layout = layout
        self.plain_layout = layout.plain
        self.last = [np.zeros((self._room, *leaf.shape), leaf.dtype) for leaf in layout.leaves.values()]

    def use_action_layout(self, layout: ArraySpec) -> None:
        """Set the layout of all actions."""
        self.action_layout = layout
        self.pending = np.zeros((self._room, *layout.shape), layout.dtype)

    def observations(self, arrays: Sequence[Array]) -> Observations:
        """The arrays of a batch in the form that the agent takes."""
        return cast("Layout", self.observation_layout).observations(arrays)

    def batch_of_one(self, arrays: Sequence[Array]) -> Observations:
        """The arrays of a single observation in the form that the agent takes."""
        if self.plain_layout is not None:
            return arrays[0][None]
        return self.observations([array[None] for array in arrays])

    def name(self, slot: int) -> str:
        """The name of a stream in a message."""
        return f"stream {self.ids[slot]!r}"

    def is_newest(self, slot: int, observation: Sequence[Array]) -> bool:
        """Whether an observation equals the newest one of a stream to the bit."""
        if self.plain_layout is not None:
            return observation[0].tobytes() == self.last[0][slot].tobytes()
        return all(
            array.tobytes() == table[slot].tobytes() for array, table in zip(observation, self.last, strict=True)
        )

    def continues(self, slot: int, observation: Sequence[Array]) -> bool:
        """Whether an observation equals the newest one of a stream."""
        # Comparing bytes is ten times faster, and differs only for zeros of different signs.
        if self.is_newest(slot, observation):
            return True
        pairs = zip(observation, self.last, strict=True)
        return all(np.array_equal(array, table[slot]) for array, table in pairs)

    def continue_all(self, places: Places, observations: Sequence[Array]) -> bool:
        """Whether the observations of a batch equal the newest ones of its streams, with certainty."""
        for array, last in zip(observations, self.last, strict=True):
            if array.tobytes() != rows_at(last, places).tobytes():
                return False
        return True

    def set_last(self, slot: int, observation: Sequence[Array]) -> None:
        """Record the newest observation of a stream."""
        if self.plain_layout is not None:
            self.last[0][slot] = observation[0]
            return
        for table, array in zip(self.last, observation, strict=True):
            table[slot] = array

    def last_shown(self, slot: int) -> str:
        """The newest observation of a stream, for a message."""
        shown = [array[slot].tolist() for array in self.last]
        return f"{shown[0] if len(shown) == 1 else shown}"[:120]

    def finish(self, slot: int) -> None:
        """Record that the stream's episode is over and announced."""
        self.phase[slot] = Phase.IDLE
        self.episode[slot] += 1
        self.total_reward[slot] = 0.0
        self.length[slot] = 0
        self.has_pending[slot] = False
        self.has_gaps[slot] = False
        self.unlinked[slot] = False
        self.traces.pop(slot, None)

    def open_slots(self) -> list[int]:
        """The streams with an episode that has begun and not ended."""
        phase = self.phase[: len(self.ids)]
        return np.flatnonzero((phase == Phase.BEGUN) | (phase == Phase.OPEN)).tolist()

    def state(self) -> State:
        """The state for a checkpoint."""
        count = len(self.ids)
        layout, action = self.observation_layout, self.action_layout
        return {
            "ids": list(self.ids),
            **{name: getattr(self, name)[:count].copy() for name in _COLUMNS},
            "observation_layout": None if layout is None else layout.state(),
            "action_layout": None if action is None else [action.dtype.str, list(action.shape)],
            "last": [array[:count].copy() for array in self.last],
            "pending": self.pending[:count].copy(),
            "traces": {str(slot): trace.state() for slot, trace in self.traces.items()},
        }

    def load_ids(self, ids: Sequence[Any]) -> None:
        """Assign these streams to rows by position; None is a free row."""
        for stream in ids:
            slot = self._new_row()
            if stream is None:
                self._free.append(slot)
                continue
            if self.slots.setdefault(_plain(stream), slot) != slot:
                raise StateError(f"ids: a stream occurs twice: {ids}")
            self.ids[slot] = stream

    def load_state(self, state: State) -> None:
        """Restore the state."""
        saved = _loaded("observation_layout", Layout.of_state, state)
        known = self.observation_layout
        if saved is not None and known is not None and saved.leaves != known.leaves:
            raise StateError(f"the checkpoint has observations of {saved.leaves}, the agent's are {known.leaves}")
        loaded = StreamTable()
        loaded.load_ids(state["ids"])
        count = len(loaded.ids)
        if layout := known or saved:
            loaded.use_observation_layout(layout)
        if (action := _loaded("action_layout", ArraySpec.of_state, state)) is not None:
            loaded.use_action_layout(action)
        elif self.action_layout is not None:
            loaded.use_action_layout(self.action_layout)
        for name in _COLUMNS:
            _fill(getattr(loaded, name), count, state[name], name)
        if loaded.phase.max(initial=0) >= Phase.ENDED:
            raise StateError(f"phase: {loaded.phase[:count]} has an ended episode, which is never saved")
        if saved is not None:
            if len(state["last"]) != len(loaded.last):
                raise StateError(f"last: {len(state['last'])} arrays, not {len(loaded.last)}")
            columns = dict(zip(cast("Layout", layout).leaves, loaded.last, strict=True))
            for name, last in zip(saved.leaves, state["last"], strict=True):
                _fill(columns[name], count, last, "last")
        if state["action_layout"] is not None:
            _fill(loaded.pending, count, state["pending"], "pending")
        for slot in loaded.open_slots():
            if str(slot) in state["traces"]:
                loaded.traces[slot] = EpisodeTrace.of_state(state["traces"][str(slot)], loaded.action_layout)
        if len(loaded.traces) != len(state["traces"]):
            raise StateError(f"traces: {list(state['traces'])} are not all of open episodes")
        self.__dict__.update({**loaded.__dict__, "added": self.added})


def _loaded(name: str, load: Callable[[Any], _Layout], state: State) -> _Layout | None:
    try:
        return None if state[name] is None else load(state[name])
    except StateError as error:
        raise StateError(f"{name}: {error}") from None


def _fill(column: Array, count: int, saved: Any, name: str) -> None:
    expected = (count, *column.shape[1:])
    if type(saved) is not np.ndarray or saved.shape != expected or saved.dtype != column.dtype:
        found = f"{saved.shape} of {saved.dtype}" if type(saved) is np.ndarray else repr(saved)[:40]
        raise StateError(f"{name}: the column is {found}, not {expected} of {column.dtype}")
    column[:count] = saved


_LARGEST_ID = 2**63 - 1
"""The largest stream number that a checkpoint can hold."""


def _plain(stream: Any) -> StreamId:
    if isinstance(stream, str):
        check_text(stream, "the name of a stream")
        return str(stream)  # numpy has its own string type, which a checkpoint cannot hold
    if isinstance(stream, int | np.integer) and not isinstance(stream, bool):
        number = int(cast("int", stream))
        if 0 <= number <= _LARGEST_ID:
            return number
        raise InputError(f"{number} cannot name a stream: use an int from 0 to {_LARGEST_ID}, or a str")
    raise InputError(f"{stream!r:.80} cannot name a stream: use an int of 0 or more, or a str")


def _twice(streams: Sequence[StreamId] | Array) -> InputError:
    return InputError(f"a stream occurs twice in one batch: {list(streams)}")


def _grown(array: Array, room: int) -> Array:
    grown = np.zeros((room, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
