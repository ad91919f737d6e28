"""One call for many streams at once, as a server makes it: steps, first observations and ends, in one record.

A server collects the requests that arrive together, and makes them in one call, a *tick*: batches of other sizes would
lead to other bits, so the grouping is an input and belongs to the record. The record also carries a note of the
server's, so that a replay tells it again which requests it had answered.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from rekindle.agent import StreamSlots
from rekindle.errors import AgentError, ConfigError, InputError
from rekindle.experience import ActMode, Array, EpisodeStatus, Transitions
from rekindle.session.episodes import Episodes
from rekindle.session.flow import Flow
from rekindle.session.greedy import Greedy
from rekindle.session.ledger import Ledger
from rekindle.session.parts import Parts
from rekindle.session.records import Body, Decoded, Flag, Kind, raw
from rekindle.session.table import Phase, StreamId, StreamTable
from rekindle.session.taken import Claims, Taken
from rekindle.spaces import REWARDS, STATUSES, ArraySpec

__all__ = ["Tick", "Ticks", "recorded_tick"]

_SLOTS = ArraySpec(np.dtype(np.int64))
_COUNTS = struct.Struct("<6I")
_NONE = np.zeros(0, np.int64)
_STATUSES = tuple(EpisodeStatus)
_NO_ROWS = np.zeros(0, np.uint8)
_pack = msgspec.msgpack.encode


class Tick(msgspec.Struct):
    """What a tick does, in this order; rows are those of the table of streams."""

    close: StreamSlots = _NONE
    """Streams to remove."""
    abandon: StreamSlots = _NONE
    """Streams whose open episode is truncated at its last transition."""
    steps: StreamSlots = _NONE
    """Streams whose last action had an outcome."""
    after: Sequence[Array] = ()
    """What it led to: the arrays of the layout, a row for each step."""
    rewards: Array = _NO_ROWS
    statuses: Array = _NO_ROWS
    executed: Array | None = None
    """The actions that were executed; None if they are those that were chosen."""
    extras: Mapping[int, Mapping[str, float]] = {}
    """Numbers for the records of episodes that end, by the row among the steps."""
    begins: StreamSlots = _NONE
    """Streams in which an episode begins."""
    first: Sequence[Array] = ()
    """Its first observations."""

    @property
    def is_one_step(self) -> bool:
        """Whether it is the step of one stream, and nothing else."""
        if len(self.steps) != 1 or self.executed is not None:
            return False
        return not (len(self.begins) or len(self.close) or len(self.abandon))

    @property
    def acting(self) -> StreamSlots:
        """The streams that get an action, in this order."""
        return np.concatenate([self.steps[self.statuses == 0], self.begins])


class Ticks:
    """Makes ticks. The caller has checked every value: nothing can be refused in the middle of a batch."""

    def __init__(self, parts: Parts, flow: Flow) -> None:
        self._parts, self._flow, self._episodes = parts, flow, Episodes(parts)
        self._greedy = Greedy(parts, flow.owed)
        self._table: StreamTable = parts.streams.table

    @classmethod
    def of(cls, parts: Parts, flow: Flow, ledger: Ledger) -> Ticks:
        """The ticks of a session that has made no call yet, with a ledger that joins its checkpoints."""
        if parts.streams.intake.converts:
            raise ConfigError("a session with an observation_encoder or an action_mapper cannot be served")
        if parts.streams.drops_bad_values:
            raise ConfigError("a session with bad_values='drop' cannot be served: its server refuses bad values")
        if parts.grading.resumed is not None and parts.inputs is not None and flow.owed.replay is None:
            raise ConfigError("serve a session before its first call, because that replays the calls of the journal")
        parts.attached.add("server", ledger)
        parts.ledger = ledger
        return cls(parts, flow)

    @property
    def has_journal(self) -> bool:
        """Whether the session has an input journal."""
        return self._parts.inputs is not None

    def slot(self, stream: StreamId) -> int:
        """The row of a stream; added if it is new, which the next record says."""
        return self._flow.slot(stream)

    def streams(self) -> list[StreamId]:
        """All streams."""
        self._flow.owed.replay_journal()
        return list(self._table.slots)

    def is_open(self, slot: int) -> bool:
        """Whether the stream has an episode that has begun and not ended, and an action to execute."""
        return bool(self._table.has_pending[slot])

    def are_open(self, slots: Sequence[int]) -> bool:
        """Whether that is so for each of several streams."""
        return bool(self._table.has_pending[slots].all())

    def standing(self, slot: int) -> tuple[int, float, Array]:
        """The steps and the return of the open episode so far, and its pending action."""
        table = self._table
        return int(table.length[slot]), float(table.total_reward[slot]), table.pending[slot : slot + 1].copy()

    def pending(self, slots: StreamSlots) -> Array:
        """The actions that were chosen for these streams, as rows."""
        return self._table.pending[slots]

    def act(self, arrays: Sequence[Array]) -> Array:
        """Greedy actions for rows of observations, which change nothing."""
        return self._greedy.rows(arrays)

    def make(self, tick: Tick, note: bytes) -> Array:
        """Make a tick; returns an action for each step and begin, zeros where an episode ended."""
        with self._flow.call:
            try:
                if tick.is_one_step:
                    return self._make_one(tick, note)
                return self._make(tick, note)
            except InputError as error:  # part of the batch may have been taken: nothing of it can be saved
                raise AgentError(f"the agent refused a batch: {error}") from error

    def _make(self, tick: Tick, note: bytes) -> Array:
        parts, table, streams = self._parts, self._table, self._parts.streams
        streams.restored.expect(())  # clients continue by themselves: no episode is lost in a restart
        self._episodes.close_open(*tick.abandon.tolist())
        for slot in tick.close.tolist():
            self._episodes.close_open(slot)
            parts.learner.cut([slot])
            table.release(slot)
        acting, arrays = tick.begins, tick.first
        going = None
        if len(tick.steps):
            going = self._step(tick)
            if going is None:
                acting, arrays = tick.steps, tick.after
            else:
                acting, arrays = tick.steps[going], [array[going] for array in tick.after]
        if len(tick.begins):
            self._episodes.close_open(*(slot for slot in tick.begins.tolist() if table.phase[slot] != Phase.IDLE))
            if len(tick.steps):
                acting = np.concatenate([acting, tick.begins])
                arrays = [np.concatenate(pair) for pair in zip(arrays, tick.first, strict=True)]
        if len(acting):
            actions = parts.learner.act(table.observations(arrays), ActMode.EXPLORE, acting)
            streams.hand_out_many(acting, acting, arrays, actions, streams.beginning(acting))
        if parts.inputs is not None:
            pending = table.pending[acting].tobytes() if len(acting) else b""
            parts.inputs.tick(bool(len(acting)), tick.executed is not None, encoded_tick(tick, note), pending)
        rows = table.pending[acting] if len(acting) else table.pending[:0]
        if going is not None:
            padded = np.zeros((len(tick.steps) + len(tick.begins), *rows.shape[1:]), rows.dtype)
            padded[np.concatenate([going, np.ones(len(tick.begins), np.bool_)])] = rows
            rows = padded
        if parts.ledger is not None:
            parts.ledger.took(note, rows)
        self._flow.due.finish_call()
        return rows

    def _make_one(self, tick: Tick, note: bytes) -> Array:
        """The same for the step of one stream alone, which is most of the ticks when a server has little to do."""
        parts, table, streams = self._parts, self._table, self._parts.streams
        if streams.restored.slots:
            streams.restored.expect(())
        slot, status = int(tick.steps[0]), _STATUSES[int(tick.statuses[0])]
        after = [array[0] for array in tick.after]
        self._flow.take(streams.check_step(slot, after, float(tick.rewards[0]), status))
        is_over = status is not EpisodeStatus.CONTINUING
        if is_over:
            self._episodes.end(slot, Claims(), dict(tick.extras.get(0, {})))
        else:
            actions = parts.learner.act(table.batch_of_one(after), ActMode.EXPLORE, table.each[slot])
            table.pending[slot] = actions[0]
            table.has_pending[slot] = True
        if parts.inputs is not None:
            pending = b"" if is_over else table.pending[slot : slot + 1].tobytes()
            parts.inputs.tick(not is_over, False, encoded_tick(tick, note), pending)
        rows = np.zeros_like(table.pending[:1]) if is_over else table.pending[slot : slot + 1]
        if parts.ledger is not None:
            parts.ledger.took(note, rows)
        if parts.counts.env_steps >= parts.schedule.next:
            self._flow.due.finish_call()
        return rows

    def _step(self, tick: Tick) -> Array | None:
        """Take the transitions, and end episodes; returns which steps continue, None if all do."""
        table, slots, statuses = self._table, tick.steps, tick.statuses
        before = table.observations([last[slots] for last in table.last])
        actions = table.pending[slots] if tick.executed is None else tick.executed
        after, rewards = tick.after, tick.rewards
        transitions = Transitions(before, actions, rewards, table.observations(after), statuses)
        self._flow.take(Taken(slots, slots, transitions, len(slots), actions, rewards, after, statuses))
        if not statuses.any():
            return None
        for row in statuses.nonzero()[0].tolist():
            self._episodes.end(int(slots[row]), Claims(), dict(tick.extras.get(row, {})))
        return statuses == 0


def encoded_tick(tick: Tick, note: bytes) -> bytes:
    """A tick as bytes, for its record."""
    extras = _pack(dict(tick.extras)) if tick.extras else b""
    if tick.is_one_step:  # the same bytes, faster
        head = _COUNTS.pack(0, 0, 1, 0, len(note), len(extras))
        slot, reward, status = tick.steps.tobytes(), tick.rewards.tobytes(), tick.statuses.tobytes()
        return b"".join((head, slot, raw(tick.after), reward, status, extras, note))
    counts = (len(tick.close), len(tick.abandon), len(tick.steps), len(tick.begins), len(note), len(extras))
    parts = [_COUNTS.pack(*counts)]
    parts += [slots.tobytes() for slots in (tick.close, tick.abandon, tick.steps, tick.begins) if len(slots)]
    if len(tick.steps):
        parts += [array.tobytes() for array in tick.after]
        parts += [tick.rewards.tobytes(), tick.statuses.tobytes()]
        if tick.executed is not None:
            parts.append(tick.executed.tobytes())
    parts += [array.tobytes() for array in tick.first]
    parts += [extras, note]
    return b"".join(parts)


def recorded_tick(record: Decoded, table: StreamTable) -> tuple[Tick, bytes, Body]:
    """The tick of a record, its note, and the rest of the record: the actions that were chosen."""
    if record.kind is not Kind.TICK:
        raise ValueError("the record is not that of a tick")
    body = Body(record, table)
    close, abandon, steps, begins, size, extras = body.numbers(_COUNTS)
    tick = Tick(body.array(_SLOTS, close), body.array(_SLOTS, abandon))
    tick.steps, tick.begins = body.array(_SLOTS, steps), body.array(_SLOTS, begins)
    if steps:
        tick.after = body.arrays(steps)
        tick.rewards, tick.statuses = body.array(REWARDS, steps), body.array(STATUSES, steps)
        if record.flags & Flag.EXECUTED:
            tick.executed = body.action(steps)
    if begins:
        tick.first = body.arrays(begins)
    if extras:
        tick.extras = msgspec.msgpack.decode(body.bytes(extras), type=dict[int, dict[str, float]])
    return tick, body.bytes(size), body
