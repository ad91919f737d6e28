"""The ends of episodes: count them, log them, and tell the agent and the callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rekindle.checks import checked_extras, is_mapping
from rekindle.errors import InputError
from rekindle.events import EpisodeEnded
from rekindle.session.parts import Ended, Parts
from rekindle.session.table import StreamId
from rekindle.session.taken import Claims
from rekindle.stats import EpisodeRecord

__all__ = ["Episodes"]

_SHOWN = 5
"""The number of lost episodes that a message names."""


class Episodes:
    """Ends episodes on behalf of the flow."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._streams, self._counts = parts, parts.streams, parts.counts

    def end(self, slot: int, claims: Claims, extras: dict[str, float]) -> EpisodeRecord:
        """End the episode of a stream whose last transition was terminated or truncated."""
        streams = self._streams
        record = streams.check_end(slot, claims, extras)
        stream = streams.table.id_of(slot)
        streams.end(slot)
        if self._parts.kept is not None:
            self._parts.kept.cut(slot)
        return self.add(stream, record) if record.length else record  # of length 0, all of it was dropped

    def checked(self, ended: Mapping[StreamId, Mapping[str, float]]) -> dict[StreamId, dict[str, float]]:
        """Check that the episodes of several streams can be ended, all of them before the first one is."""
        if not is_mapping(ended):
            raise InputError(f"on_episodes takes a dict of the extras of each stream, not {ended!r:.80}")
        numbers = {stream: checked_extras(extras) for stream, extras in ended.items()}
        for stream, extras in numbers.items() if len(numbers) > 1 else ():  # a single one is checked when it is ended
            self._streams.check_end(self._streams.table.slot(stream), Claims(), extras)
        return numbers

    def end_many(self, ended: Mapping[StreamId, dict[str, float]]) -> dict[StreamId, EpisodeRecord]:
        """End the episodes of several streams, each with its extras, and write their rows together."""
        if len(ended) < 2 or self._parts.logbook.is_deferred:  # a deferred log writes rows together anyway
            return self._end_each(ended)
        with self._parts.logbook.rows_together():
            return self._end_each(ended)

    def _end_each(self, ended: Mapping[StreamId, dict[str, float]]) -> dict[StreamId, EpisodeRecord]:
        slot, claims = self._streams.table.slot, Claims()
        return {stream: self.end(slot(stream), claims, extras) for stream, extras in ended.items()}

    def announce_all(self) -> None:
        """End every episode whose end was not announced."""
        for slot in self._streams.ended_slots():
            name = self._streams.table.name(slot)
            self.end(slot, Claims(), {})
            lost = f"the end of an episode of {name} was never announced; its extras are missing"
            self._parts.grading.mark_inexact(lost)

    def close_open(self, *slots: int) -> None:
        """Close open episodes at their last complete transitions, as truncated."""
        lost: list[str] = []
        for slot in slots:
            closed = self._streams.close_open(slot)
            if closed is None:
                continue
            self._parts.learner.cut([slot])
            if self._parts.kept is not None:
                self._parts.kept.cut(slot)
            if closed.lost is not None:
                lost.append(closed.lost)
            if closed.record.length:
                self.add(closed.stream, closed.record)
        if lost:
            self._parts.grading.mark_inexact(_closed(lost))

    def add(self, stream: StreamId, counted: EpisodeRecord) -> EpisodeRecord:
        """Count and log an episode; one that ends while updates are owed waits for them."""
        if self._parts.owed.updates:
            self._parts.owed.episodes.append(Ended(stream, counted))
            return counted
        extras = self._parts.learner.episode_extras()
        record = msgspec.structs.replace(counted, extras={**counted.extras, **extras}) if extras else counted
        self._counts.episodes += 1
        stamp = self._counts.stamp()
        self._parts.logbook.add_episode(record, stream, stamp)
        self._parts.learner.start_episode()
        self._parts.outbox.emit(EpisodeEnded(stamp, stream, record))
        return record


def _closed(episodes: Sequence[str]) -> str:
    """A sentence about episodes that a resume could not continue."""
    if len(episodes) == 1:
        return f"the open episode of {episodes[0]} was closed as truncated"
    shown, more = ", ".join(episodes[:_SHOWN]), len(episodes) - _SHOWN
    rest = f" and {more:,} more" if more > 0 else ""
    return f"the open episodes of {len(episodes):,} streams were closed as truncated: {shown}{rest}"
