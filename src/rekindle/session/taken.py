"""Calls of the host after they were checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from rekindle.agent import StreamSlots
from rekindle.checks import checked_number, checked_status, checked_whole
from rekindle.experience import Array, EpisodeStatus, Transitions
from rekindle.session.table import Places, StreamId
from rekindle.stats import EpisodeRecord

__all__ = ["Begun", "Claims", "Closed", "Taken"]


class Taken(msgspec.Struct, gc=False):
    """A checked call with transitions: what the agent observes, and how the table changes."""

    slots: StreamSlots
    places: int | Places
    """The rows of the table: one row, or the rows of a batch."""
    transitions: Transitions | None
    """The transitions that the agent observes; None if all of them are dropped."""
    count: int
    """How many transitions the agent observes."""
    actions: Array
    rewards: Any
    """A number, or an array for a batch; like `actions`, `after` and `statuses`, it includes dropped rows."""
    after: Sequence[Array]
    statuses: Any
    good: Array | None = None
    """Which rows of a batch are kept; None if all of them are."""
    broken: Sequence[int] = ()
    """Streams whose open episode ended unseen before a resume: it is closed as truncated first."""
    dropped: Sequence[int] = ()
    """Streams whose transition contains NaN or infinity, and is dropped."""
    before: Sequence[Array] = ()
    """The observations that the transitions start from, unless they are the newest of their streams anyway."""


class Claims(NamedTuple):
    """What the host claims about an episode that has ended; None means no claim."""

    total_reward: float | None = None
    steps: int | None = None
    status: EpisodeStatus | None = None

    @classmethod
    def of(cls, total_reward: Any, steps: Any, status: Any) -> Claims:
        """Claims as plain values, which a journal can record; raises `InputError` for a value that is no number."""
        if total_reward is not None:
            total_reward = checked_number("total_reward", total_reward)
        if steps is not None:
            steps = checked_whole("steps", steps)
        return cls(total_reward, steps, None if status is None else checked_status(status))

    def contradictions(self, counted: EpisodeRecord, *, has_gaps: bool) -> list[str]:
        """Where the claims differ from what was counted; with gaps, the host may have counted dropped transitions."""
        wrong: list[str] = []
        total, steps, status = self
        if not has_gaps:
            if total is not None and not math.isclose(total, counted.total_reward, rel_tol=1e-4, abs_tol=1e-4):
                wrong.append(f"total_reward {total} was given, {counted.total_reward} was counted")
            if steps is not None and steps != counted.length:
                wrong.append(f"steps {steps} was given, {counted.length} was counted")
        if status is not None and status != counted.status:
            wrong.append(f"status {status!r} was given, {counted.status!r} was seen")
        return wrong


class Closed(NamedTuple):
    """An episode that was closed at its last complete transition."""

    slot: int
    stream: StreamId
    record: EpisodeRecord
    lost: str | None
    """The stream and the length of the episode, if it was open before a resume."""


class Begun(NamedTuple):
    """The state of a stream after a resume: the action that was returned before it, and what was lost."""

    action: Array | None
    lost: str | None
