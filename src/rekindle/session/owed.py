"""What comes before the next call of the host: calls of the journal, and what a resume or an exception left due."""

from __future__ import annotations

from collections.abc import Callable

from rekindle.errors import Interrupted
from rekindle.session.due import Due
from rekindle.session.episodes import Episodes
from rekindle.session.parts import Parts
from rekindle.session.records import Kind
from rekindle.session.updating import Updater

__all__ = ["OwedWork"]


class OwedWork:
    """Knows whether the session is behind, and catches up: every call of the host does that first.

    What is left of an earlier call are its updates, its episodes, and what was due after it.
    """

    def __init__(self, parts: Parts, due: Due, updater: Updater, episodes: Episodes) -> None:
        self._parts, self._due, self._updater, self._episodes = parts, due, updater, episodes
        self.replay: Callable[[], None] | None = None
        """Replays the calls of the journal; None if there are none, or they were replayed."""
        self.is_behind = parts.grading.resumed is not None
        """Whether something may be left to do: no call was made since a resume, or an exception left something due."""
        self._has_raised = False
        """Whether an exception has left something due in this session."""

    def replay_first(self, replay: Callable[[], None]) -> None:
        """Call this function, which replays the calls of the journal, before the first call of the host."""
        self.replay, self.is_behind = replay, True

    def replay_journal(self) -> None:
        """Replay the calls of the journal, unless that was done."""
        replay, self.replay = self.replay, None
        if replay is None:
            return
        self.is_behind = False
        try:
            with self._parts.outbox.holding_back():
                replay()
        except BaseException as error:
            if error is not self._due.raised:  # a hook that was still due after the last call
                self._parts.learner.fail(error)
            raise
        finally:
            self.is_behind, self._has_raised = True, False

    def leave_due(self) -> None:
        """After an exception, let the next call begin with what is due, as the first call after a resume does."""
        if self._due.is_inside_a_call or self._due.is_waiting:
            return
        if self._is_due:
            self.is_behind = self._has_raised = True

    def catch_up(self) -> None:
        """Replay the calls of the journal, and do once what a resume or an exception left due.

        Raises `Interrupted` if a stop comes in between: the rest stays due, and no step may be made before it.
        """
        self.replay_journal()
        if self.is_behind:
            self.do(Kind.DUE_AGAIN if self._has_raised else Kind.CAUGHT_UP)

    def do(self, kind: Kind) -> None:
        """Do what was left due, before a resume (`CAUGHT_UP`) or by an exception (`DUE_AGAIN`), and record that.

        Raises `Interrupted` if a stop comes before it is complete.
        """
        self.is_behind = False
        try:
            self._do(kind)
        except BaseException:
            self.is_behind = True
            raise

    def _do(self, kind: Kind) -> None:
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
