"""What closing does to a session before its last checkpoint; a replay does the same again."""

from __future__ import annotations

from rekindle.errors import StorageError
from rekindle.session.episodes import Episodes
from rekindle.session.learner import DirectLearner
from rekindle.session.parts import Parts
from rekindle.session.records import Context
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
            Updater(parts).add_all(learner.learned())

    def end_episodes(self) -> None:
        """End every episode whose end was not announced."""
        parts = self._parts
        if parts.inputs is not None and (self._is_background or parts.streams.ended_slots()):
            try:
                parts.inputs.closed()
            except StorageError as error:  # the last checkpoint, which follows, has all that the record would say
                parts.outbox.warn(f"the input journal ends before the end of the session: {error}")
        Episodes(parts).announce_all()

    def close_again(self, context: Context) -> None:
        """Do what closing did, while the calls of a journal are replayed; the session then continues."""
        parts, learner = self._parts, self._parts.learner
        try:
            if isinstance(learner, ReplayedLearner):
                learner.prepare(context, None)
                learner.look()
                learner.finish()
                parts.learner = parts.direct
                Updater(parts).add_all(learner.learned())
            Episodes(parts).announce_all()
        finally:
            parts.learner = learner
