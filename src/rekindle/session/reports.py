"""What the host reports other than transitions: metrics, evaluations, the best agent."""

from __future__ import annotations

from collections.abc import Sequence

from rekindle.checks import checked_extras, checked_number, checked_status, checked_whole
from rekindle.errors import InputError
from rekindle.events import Evaluated
from rekindle.session.due import Due
from rekindle.session.parts import Parts
from rekindle.stats import EpisodeRecord

__all__ = ["Reports"]


class Reports:
    """Adds what the host reports to the logs."""

    def __init__(self, parts: Parts, due: Due) -> None:
        self._parts, self._due = parts, due

    def add_evaluation(self, record: EpisodeRecord, *, final: bool) -> None:
        """Log an evaluation episode."""
        record = _checked(record)
        self._due.is_unsaved = True
        self._parts.logbook.add_evaluation(record, final=final)
        if self._parts.inputs is not None:
            self._parts.inputs.evaluation(record, final=final)

    def save_if_best(self, score: float) -> bool:
        """Save the current agent as the best if the score beats every earlier one; returns whether it does."""
        parts = self._parts
        best = parts.best.beats(score, parts.counts.env_steps)
        if best is not None:
            self._due.is_unsaved = True
            if parts.saver is not None:
                parts.saver.save_best(best, parts.learner.read(parts.agent.state))
        if parts.inputs is not None:
            parts.inputs.best(score)
        parts.outbox.emit(Evaluated(parts.counts.stamp(), score, best is not None))
        self._due.raise_noted()
        return best is not None

    def log(self, name: str, numbers: Sequence[float]) -> None:
        """Add numbers to the current metric window."""
        self._due.is_unsaved = True
        self._parts.logbook.add(name, numbers)
        if self._parts.inputs is not None:
            self._parts.inputs.log(name, numbers)

    def mark_inexact(self, what: str) -> None:
        """Record in the run that it differs from an uninterrupted one, and why."""
        self._parts.grading.mark_inexact(what)
        if self._parts.inputs is not None:
            self._parts.inputs.inexact(what)


def _checked(record: EpisodeRecord) -> EpisodeRecord:
    """A record of the host with plain values, as logs and a journal hold them."""
    if not isinstance(record, EpisodeRecord):  # pyright: ignore[reportUnnecessaryIsInstance] - the host gave it
        raise InputError(f"on_eval_episode takes an EpisodeRecord, not {record!r:.80}")
    length = checked_whole("the length of an episode", record.length)
    total_reward = checked_number("the total_reward of an episode", record.total_reward)
    return EpisodeRecord(total_reward, length, checked_status(record.status), checked_extras(record.extras))
