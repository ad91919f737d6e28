"""Write every call that changes a session to its input journal.

The record of a call is written when the call has been applied and its action chosen, before anything that is due. While
a resumed session replays the calls, nothing is written: the same methods then compare the call with its record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from rekindle.agent import State
from rekindle.checkpoint.input_journal import InputJournal
from rekindle.errors import StorageError
from rekindle.experience import Array, EpisodeStatus
from rekindle.interrupt import ShouldStop
from rekindle.session.learner import Learner
from rekindle.session.outbox import Outbox
from rekindle.session.records import BATCH, ONE, OUTCOME, Context, Flag, Kind, encoded, raw
from rekindle.session.schedule import Hook
from rekindle.session.table import StreamId, StreamTable
from rekindle.session.taken import Claims, Taken
from rekindle.spaces import ArraySpec, Layout
from rekindle.stats import EpisodeRecord

__all__ = ["InputLog", "Replaying", "StopPolls"]

_pack = msgspec.msgpack.encode
# As plain numbers, which are faster than members of an enum.
_NO_FLAGS, _ACTION, _SAME = 0, Flag.ACTION, Flag.SAME
_STEP, _OBSERVE = int(Kind.STEP), int(Kind.OBSERVE)


class Replaying(Protocol):
    """What replays the calls of a journal."""

    @property
    def has_action(self) -> bool:
        """Whether the call that is being made returned an action."""
        ...

    def reached(self, kind: Kind) -> None:
        """A call has reached the point at which its record was written."""
        ...

    def hook(self, place: int, hook: Hook, env_steps: int) -> bool:
        """Replay the calls of a hook; returns False if the hook must be called."""
        ...


class StopPolls:
    """Counts how often updates ask whether to stop, because a stop interrupts them at that point."""

    def __init__(self, should_stop: ShouldStop) -> None:
        self._should_stop = should_stop
        self._asked = 0
        self.stopped_at = 0
        """The question that was answered with yes; 0 if none was."""
        self.replayed: int | None = None
        """During a replay: the question to answer with yes."""

    def __call__(self) -> bool:
        """Whether to stop."""
        self._asked += 1
        is_stopped = self._should_stop() if self.replayed is None else self._asked == self.replayed
        if is_stopped:
            self.stopped_at = self._asked
        return is_stopped

    def restart(self) -> None:
        """Begin to count again, for the next call."""
        self._asked = self.stopped_at = 0


class InputLog:
    """Writes the records of calls."""

    def __init__(
        self,
        table: StreamTable,
        outbox: Outbox,
        polls: StopPolls | None,
        *,
        is_background: bool,
        limit: int | None,
        ask_checkpoint: Callable[[], None],
    ) -> None:
        """Call `ask_checkpoint` when `limit` bytes were written since the last checkpoint."""
        self._table, self._outbox = table, outbox
        self.polls = polls
        """Counts how often updates ask whether to stop; None if nothing can stop them."""
        self._limit, self._ask_checkpoint = limit, ask_checkpoint
        self.learner: Learner | None = None
        """The learner whose dispatches are named."""
        self._is_background = is_background
        self._observations: Layout | None = table.observation_layout
        self._actions: ArraySpec | None = table.action_layout
        self.journal: InputJournal | None = None
        """Where records go; None until the calls of the journal have been replayed."""
        self.replaying: Replaying | None = None
        self.failure: StorageError | None = None
        """Why no record can be written; the session then stops."""
        self._is_recorded = True
        self._first = 0
        table.added = []

    @property
    def number(self) -> int:
        """The number of the next record."""
        return self._first if self.journal is None else self.journal.number

    @property
    def is_recorded(self) -> bool:
        """Whether the record of the current call has been written; True outside of calls."""
        return self._is_recorded

    def mark_recorded(self) -> None:
        """The current call needs no record any more: a replay has reached the one that it has, or it has failed."""
        self._is_recorded = True

    def begin_at(self, number: int) -> None:
        """Set the number of the first record after a checkpoint."""
        self._first = number

    def begin_call(self) -> None:
        """A call of the host begins; raises if no record of it can be written, before it changes anything."""
        if self.journal is not None and self.journal.failure is not None:
            self.failure = self.failure or self.journal.failure
        if self.failure is not None:
            raise self.failure
        if not self._outbox.is_emitting:
            self._is_recorded = False
            self._outbox.begin_call()
            if self.polls is not None:
                self.polls.restart()

    # Calls of streams

    def step(
        self,
        slot: int,
        after: Sequence[Array],
        reward: float,
        status: EpisodeStatus,
        extras: Mapping[str, float],
        *,
        has_action: bool,
    ) -> None:
        """`stream.step`."""
        if self.replaying is not None:
            self.replaying.reached(Kind.STEP)
            return
        flags = _ACTION if has_action else _NO_FLAGS
        parts = [OUTCOME.pack(slot, reward, status), raw(after)]
        if has_action:
            parts.append(self._table.pending[slot : slot + 1].tobytes())
        if extras:
            flags |= Flag.EXTRAS
            parts.append(_pack(extras))
        self._write(_STEP, flags, *parts)

    def act(self, kind: int, slot: int, arrays: Sequence[Array]) -> None:
        """`act` or `stream.begin`, which have returned the pending action."""
        self._write(kind, _ACTION, ONE.pack(slot), raw(arrays), self._table.pending[slot : slot + 1].tobytes())

    def act_many(self, slots: Array, places: Any, arrays: Sequence[Array]) -> None:
        """`act_many`."""
        streams, flags = _streams(slots, places)
        actions = self._table.pending[places].tobytes()
        self._write(Kind.ACT_MANY, flags | _ACTION, BATCH.pack(len(slots)), streams, raw(arrays), actions)

    def observe(self, slot: int, taken: Taken) -> None:
        """`observe`."""
        flags, seen = (_NO_FLAGS, raw(taken.before)) if taken.before else (_SAME, b"")
        numbers = OUTCOME.pack(slot, taken.rewards, taken.statuses)
        self._write(_OBSERVE, flags, numbers, seen, taken.actions.tobytes(), raw(taken.after))

    def observe_many(self, taken: Taken) -> None:
        """`observe_many`."""
        streams, flags = _streams(taken.slots, taken.places)
        seen = raw(taken.before) if taken.before else b""
        if not seen:
            flags |= _SAME
        parts = (seen, taken.actions.tobytes(), taken.rewards.tobytes(), taken.statuses.tobytes(), raw(taken.after))
        self._write(Kind.OBSERVE_MANY, flags, BATCH.pack(len(taken.slots)), streams, *parts)

    def tick(self, has_actions: bool, has_executed: bool, *parts: bytes) -> None:
        """A tick of a server."""
        flags = (_ACTION if has_actions else _NO_FLAGS) | (Flag.EXECUTED if has_executed else _NO_FLAGS)
        self._write(Kind.TICK, flags, *parts)

    def announce(self, slot: int, claims: Claims, extras: Mapping[str, float]) -> None:
        """`on_episode`."""
        self._write(Kind.ANNOUNCE, _NO_FLAGS, _pack((slot, claims, extras)))

    def announce_many(self, extras: Mapping[StreamId, Mapping[str, float]]) -> None:
        """`on_episodes`."""
        ends = [(self._table.slot(stream), numbers) for stream, numbers in extras.items()]
        self._write(Kind.ANNOUNCE_MANY, _NO_FLAGS, _pack(ends))

    def slot(self, kind: Kind, slot: int) -> None:
        """A call that has only a stream."""
        self._write(kind, _NO_FLAGS, _pack(slot))

    def stream(self) -> None:
        """`session.stream`, if the stream is new."""
        if self._table.added:
            self._write(Kind.STREAM, _NO_FLAGS)

    # Other calls

    def learn(self, sizes: Sequence[int]) -> None:
        """`learn`: the number of updates in each dispatch."""
        self._write(Kind.LEARN, _NO_FLAGS, _pack(sizes))

    def log(self, name: str, numbers: Sequence[float]) -> None:
        """`log`."""
        self._write(Kind.LOG, _NO_FLAGS, _pack((name, np.array(numbers, np.float64).tobytes())))

    def evaluation(self, record: EpisodeRecord, *, final: bool) -> None:
        """`on_eval_episode`."""
        self._write(Kind.EVALUATION, _NO_FLAGS, _pack((record, final)))

    def best(self, score: float) -> None:
        """`maybe_save_best`."""
        self._write(Kind.BEST, _NO_FLAGS, np.float64(score).tobytes())

    def inexact(self, what: str) -> None:
        """`mark_inexact`."""
        self._write(Kind.INEXACT, _NO_FLAGS, _pack(what))

    def hook(self, kind: Kind, place: int) -> None:
        """A hook begins or ends."""
        self._write(kind, _NO_FLAGS, _pack(place))

    def restarted(self) -> None:
        """A background learner continues after a resume."""
        self._write(Kind.RESTARTED, _NO_FLAGS)

    def closed(self) -> None:
        """The session is being closed, and its learner has ended."""
        self._write(Kind.CLOSED, _NO_FLAGS)

    def caught_up(self, kind: Kind) -> None:
        """What a resume (`CAUGHT_UP`) or an exception (`DUE_AGAIN`) left due is done now."""
        self._write(kind, _NO_FLAGS)

    def _write(self, kind: int, flags: int, *parts: bytes) -> None:
        journal = self.journal
        if journal is None:
            if self.replaying is not None:
                self.replaying.reached(Kind(kind))
            return
        table, outbox, polls = self._table, self._outbox, self.polls
        context = None
        if (
            self._is_background
            or table.added
            or outbox.is_emitting
            or (polls is not None and polls.stopped_at)
            or table.observation_layout is not self._observations
            or table.action_layout is not self._actions
        ):
            context = self._context()
        try:
            journal.append(kind, encoded(flags, context, *parts))
        except StorageError as error:
            self.failure = error
            raise
        if not outbox.is_emitting:
            self._is_recorded = True
        if self._limit is not None and journal.written >= self._limit:
            self._ask_checkpoint()

    def _context(self) -> Context:
        table, outbox, polls = self._table, self._outbox, self.polls
        context = Context()
        if table.added:
            context.added, table.added = table.added, []
        if outbox.is_emitting:
            context.callback = (outbox.event, outbox.callback, self._is_recorded)
        elif self.learner is not None:
            context.dispatches = self.learner.take_dispatches()
        if self.learner is not None:
            context.exploration = self.learner.exploration_state()
        if polls is not None:
            context.polls = polls.stopped_at
        observations, actions = table.observation_layout, table.action_layout
        if observations is not self._observations and observations is not None:
            context.observation_layout = observations.state()
        if actions is not self._actions and actions is not None:
            context.action_layout = [actions.dtype.str, list(actions.shape)]
        self._observations, self._actions = observations, actions
        return context

    # Checkpoints

    def state(self, restored: set[int]) -> State:
        """Where a resume from a checkpoint begins to read, and what it must know of the calls before."""
        learner = None if self.learner is None else self.learner.host_state()
        return {"number": self.number, "restored": sorted(restored), "learner": learner}

    def cut(self) -> None:
        """A checkpoint is taken: the next record begins a segment."""
        if self.journal is not None:
            self.journal.cut()

    def use(self, journal: InputJournal) -> None:
        """Write to this journal from now on."""
        self.journal, self.replaying = journal, None
        self._observations, self._actions = self._table.observation_layout, self._table.action_layout
        self._table.added = []

    def close(self) -> None:
        """Make all records durable; later calls have none."""
        journal, self.journal = self.journal, None
        if journal is not None:
            self._first = journal.number
            journal.close()


def _streams(slots: Array, places: Any) -> tuple[bytes, int]:
    return (b"", _NO_FLAGS) if isinstance(places, slice) else (slots.tobytes(), Flag.STREAMS)
