"""Make the call of a record: what the host did, without the host."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable

import msgspec
import numpy as np

from rekindle.errors import CheckpointError, InputError, Interrupted, RekindleError
from rekindle.experience import Array, EpisodeStatus, Experience, Transitions
from rekindle.session.flow import Flow
from rekindle.session.parts import Parts
from rekindle.session.records import BATCH, ONE, OUTCOME, Body, Decoded, Flag, Kind
from rekindle.session.reports import Reports
from rekindle.session.taken import Claims
from rekindle.session.ticks import Ticks, recorded_tick
from rekindle.spaces import REWARDS, STATUSES, ArraySpec
from rekindle.stats import EpisodeRecord

__all__ = ["Calls"]

logger = logging.getLogger("rekindle")

_SLOTS = ArraySpec(np.dtype(np.int64))
_KINDS = range(max(Kind) + 1)
"""All numbers of kinds: a list by number is faster to look up than a dict."""
_STATUS = {int(status): status for status in EpisodeStatus}  # an enum is slow to look up its members


class Calls:
    """Makes calls from records."""

    def __init__(self, parts: Parts, flow: Flow, reports: Reports) -> None:
        self._flow, self._reports, self._table = flow, reports, parts.streams.table
        self._ticks = Ticks(parts, flow)
        self._read: tuple[Decoded, int, Body] | None = None
        """The newest record of one action, the row of its stream, and the record from the action on."""
        frequent: dict[int, Callable[[Decoded], None]] = {
            Kind.ACT: self._act,
            Kind.BEGIN: self._act,
            Kind.STEP: self._step,
            Kind.OBSERVE: self._observe,
            Kind.ACT_MANY: self._act_many,
            Kind.OBSERVE_MANY: self._observe_many,
            Kind.TICK: self._tick,
        }
        self._by_kind = [frequent.get(kind, self._make_rare) for kind in _KINDS]

    def make(self, record: Decoded) -> None:
        """Make a call; raises `CheckpointError` if it cannot be made."""
        try:
            self._by_kind[record.kind](record)
        except InputError as error:
            # A step after which the agent refused to act has a record too, and is refused again.
            if record.kind is not Kind.STEP or record.flags & Flag.ACTION:
                raise _failed(record, error) from error
        except (KeyError, TypeError, ValueError, struct.error, msgspec.MsgspecError) as error:
            raise _failed(record, error) from error

    def _make_rare(self, record: Decoded) -> None:
        match record.kind:
            case Kind.ANNOUNCE | Kind.START_EPISODE | Kind.CLOSE_EPISODE | Kind.CLOSE_STREAM:
                self._end(record)
            case Kind.ANNOUNCE_MANY:
                ends = msgspec.msgpack.decode(record.body, type=list[tuple[int, dict[str, float]]])
                self._flow.announce_many({self._table.id_of(slot): extras for slot, extras in ends})
            case Kind.LEARN:
                self._flow.learn(None, msgspec.msgpack.decode(record.body, type=list[int]))
            case Kind.CAUGHT_UP | Kind.DUE_AGAIN:
                self._catch_up(record)
            case _:
                self._report(record)

    def _act(self, record: Decoded) -> None:
        body = Body(record, self._table)
        (slot,) = body.numbers(ONE)
        observation = body.observation()
        self._read = (record, slot, body)
        if record.kind is Kind.ACT:
            self._flow.act(slot, observation)
        else:
            self._flow.begin(slot, observation)

    def _step(self, record: Decoded) -> None:
        body = Body(record, self._table)
        slot, reward, status = body.numbers(OUTCOME)
        observation = body.observation()
        extras = None
        if record.flags & Flag.EXTRAS:
            if record.flags & Flag.ACTION:
                body.skip_action()
            extras = msgspec.msgpack.decode(body.rest())
        else:
            self._read = (record, slot, body)
        self._flow.step(slot, observation, reward, _STATUS[status], extras)

    def _observe(self, record: Decoded) -> None:
        body = Body(record, self._table)
        slot, reward, status = body.numbers(OUTCOME)
        before = body.newest(slot) if record.flags & Flag.SAME else body.observation()
        action = body.action()
        self._flow.observe(slot, Experience(before, action, reward, body.observation(), _STATUS[status]))

    def _act_many(self, record: Decoded) -> None:
        body = Body(record, self._table)
        rows, slots = rows_of(record, body)
        self._flow.act_many(body.observation(rows), self._names(record, slots))

    def _observe_many(self, record: Decoded) -> None:
        body = Body(record, self._table)
        rows, slots = rows_of(record, body)
        before = body.newest(slots) if record.flags & Flag.SAME else body.observation(rows)
        actions, rewards, statuses = body.action(rows), body.array(REWARDS, rows), body.array(STATUSES, rows)
        transitions = Transitions(before, actions, rewards, body.observation(rows), statuses)
        self._flow.observe_many(transitions, self._names(record, slots))

    def _tick(self, record: Decoded) -> None:
        self._ticks.make(*recorded_tick(record, self._table)[:2])

    def _names(self, record: Decoded, slots: Array) -> list[int | str] | None:
        return [self._table.id_of(slot) for slot in slots.tolist()] if record.flags & Flag.STREAMS else None

    def _end(self, record: Decoded) -> None:
        if record.kind is Kind.ANNOUNCE:
            slot, claims, extras = msgspec.msgpack.decode(record.body, type=tuple[int, Claims, dict[str, float]])
            self._flow.announce(slot, claims, extras)
            return
        slot = msgspec.msgpack.decode(record.body, type=int)
        if record.kind is Kind.START_EPISODE:
            self._flow.start_episode(slot)
        elif record.kind is Kind.CLOSE_EPISODE:
            self._flow.close_episode(slot)
        else:
            self._flow.close_stream(slot)

    def _catch_up(self, record: Decoded) -> None:
        try:
            self._flow.owed.do(record.kind)
        except Interrupted:
            logger.debug("the work that was due before call %d was interrupted", record.number)

    def _report(self, record: Decoded) -> None:
        match record.kind:
            case Kind.LOG:
                name, numbers = msgspec.msgpack.decode(record.body, type=tuple[str, bytes])
                self._reports.log(name, np.frombuffer(numbers, np.float64).tolist())
            case Kind.EVALUATION:
                episode, final = msgspec.msgpack.decode(record.body, type=tuple[EpisodeRecord, bool])
                self._reports.add_evaluation(episode, final=final)
            case Kind.BEST:
                self._reports.save_if_best(float(np.frombuffer(record.body, np.float64)[0]))
            case Kind.INEXACT:
                self._reports.mark_inexact(msgspec.msgpack.decode(record.body, type=str))
            case _:
                raise ValueError("such a call is not made by itself")

    def recorded_actions(self, record: Decoded) -> tuple[Array, Array]:
        """The rows of the table that a call acted for, and the actions that it returned."""
        slots, body = self._acted(record)
        return np.asarray(slots).reshape(-1), body.action(np.size(slots))

    def acts_as_before(self, record: Decoded) -> bool:
        """Whether the pending actions are those that a call returned."""
        slots, body = self._acted(record)
        if isinstance(slots, int):
            return self._table.pending[slots : slots + 1].tobytes() == body.bytes_of_actions()
        return self._table.pending[slots].tobytes() == body.bytes_of_actions(len(slots))

    def _acted(self, record: Decoded) -> tuple[int | Array, Body]:
        """The rows of the table that a call acted for, and its record from the actions on."""
        if self._read is not None and self._read[0] is record:
            return self._read[1:]
        if record.kind is Kind.TICK:
            tick, _, body = recorded_tick(record, self._table)
            return tick.acting, body
        body = Body(record, self._table)
        if record.kind is Kind.ACT_MANY:
            rows, slots = rows_of(record, body)
            body.skip_observation(rows)
            return slots, body
        slot: int = body.numbers(OUTCOME if record.kind is Kind.STEP else ONE)[0]
        body.skip_observation()
        return slot, body


def rows_of(record: Decoded, body: Body) -> tuple[int, Array]:
    """The number of rows of a batch, and their rows in the table."""
    (rows,) = body.numbers(BATCH)
    return rows, body.array(_SLOTS, rows) if record.flags & Flag.STREAMS else np.arange(rows, dtype=np.int64)


def _failed(record: Decoded, error: Exception) -> CheckpointError:
    text = str(error) if isinstance(error, RekindleError) else f"{type(error).__name__}: {error}"
    return CheckpointError(
        f"call {record.number} of the input journal ({record.kind.name.lower()}) cannot be replayed: {text}"
    )
