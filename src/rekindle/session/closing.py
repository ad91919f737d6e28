"""What closing does to a session before its last checkpoint; a replay does the same again."""

from __future__ import annotations

from rekindle.errors import StorageError
from rekindle.session.episodes import Episodes
from rekindle.session.learner import DirectLearner
from rekindle.session.parts import Parts
from rekindle.session.replayed_learner import ReplayedLearner
from rekindle.session.updating import Updater

__all__ = ["Closing"]


class Closing:
    """Ends the learner, and the episodes whose end was not announced."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._is_background = False

    def end_learner(self) -> None:
        """Let the learner process everything; afterwards the agent belongs to the thread of the host."""
        parts = self._parts
        learner, parts.learner = parts.learner, parts.direct
        try:
            learner.close()
        finally:
            if learner.failure is not None:
                parts.direct.fail(learner.failure)
        parts.skipped_before += learner.skipped
        self._is_background = not isinstance(learner, DirectLearner)
        if self._is_background:
            self._record()
            Updater(parts).add_all(learner.learned())

    def end_episodes(self) -> None:
        """End every episode whose end was not announced."""
        if not self._is_background and self._parts.streams.ended_slots():
            self._record()
        Episodes(self._parts).announce_all()

    def _record(self) -> None:
        """Record the end of the session before the calls that callbacks make in it."""
        parts = self._parts
        if parts.inputs is None or parts.direct.failure is not None:
            return
        parts.outbox.begin_call()
        try:
            parts.inputs.closed()
        except StorageError as error:  # the last checkpoint, which follows, has all that the record would say
            parts.outbox.warn(f"the input journal ends before the end of the session: {error}")

    def close_again(self) -> None:
        """Do what closing did, while the calls of a journal are replayed; the session then continues."""
        parts, learner = self._parts, self._parts.learner
        parts.outbox.begin_call()
        try:
            if isinstance(learner, ReplayedLearner):
                learner.finish()
                parts.learner = parts.direct
                Updater(parts).add_all(learner.learned())
            Episodes(parts).announce_all()
        finally:
            parts.learner = learner
