"""Do what a resume or an exception left due, before the next call of the host."""

from __future__ import annotations

from rekindle.errors import Interrupted
from rekindle.session.due import Due
from rekindle.session.episodes import Episodes
from rekindle.session.parts import Parts
from rekindle.session.records import Kind
from rekindle.session.updating import Updater

__all__ = ["OwedWork"]


class OwedWork:
    """The rest of an earlier call: its updates, its episodes, and what was due after it."""

    def __init__(self, parts: Parts, due: Due, updater: Updater, episodes: Episodes) -> None:
        self._parts, self._due, self._updater, self._episodes = parts, due, updater, episodes

    def do(self, kind: Kind) -> None:
        """Do it, and record it with this kind; raises `Interrupted` if a stop comes before it is complete."""
        parts, owed = self._parts, self._parts.owed
        if parts.inputs is not None and kind is Kind.CAUGHT_UP:
            parts.streams.expect_hosts()
        if owed.updates or self._is_due:
            self._due.is_unsaved = True
        if owed.updates:
            owed.updates = False
            self._updater.learn()
        if not owed.updates:
            episodes, owed.episodes = owed.episodes, []
            for ended in episodes:
                self._episodes.add(ended.stream, ended.record)
        if parts.inputs is not None:
            parts.inputs.caught_up(kind)
        self._due.finish_call()
        if owed.updates or (self._is_due and not self._due.is_waiting):
            raise Interrupted("stopped before the work that the last stop had interrupted was complete")

    @property
    def _is_due(self) -> bool:
        return self._parts.schedule.next <= self._parts.counts.env_steps
