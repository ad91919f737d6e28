"""Make the updates that are due, and add their metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rekindle.agent import Metrics
from rekindle.checks import checked_number
from rekindle.errors import ConfigError, Interrupted
from rekindle.events import Updated
from rekindle.session.learner import make_updates
from rekindle.session.parts import Parts

__all__ = ["Updater"]


class Updater:
    """Makes updates on behalf of the flow, and counts them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def learn(self) -> None:
        """Make the updates that are due after a transition."""
        try:
            learned = self._parts.learner.learned()
            if learned:
                self.add_all(learned)
        except Interrupted:  # the agent tracks how many updates it made; the rest of this call waits for the others
            self._parts.owed.updates = True

    def checked_time(self, milliseconds: float | None) -> float | None:
        """The time for updates, as a plain number; raises unless the learner is manual."""
        if not self._parts.direct.is_manual:
            raise ConfigError("learn() is for sessions with learner='manual'")
        return None if milliseconds is None else checked_number("milliseconds", milliseconds)

    def learn_now(self, milliseconds: float | None, sizes: Iterable[int] | None) -> list[int]:
        """Make the updates that are due, as many as fit into the time, or dispatches of these sizes; returns sizes."""
        direct = self._parts.direct
        made: list[int] = []
        for count, metrics in direct.learn(milliseconds) if sizes is None else direct.learn_again(sizes):
            self._add(count, metrics)
            made.append(count)
        return made

    def update(self, n: int) -> None:
        """Let the agent make `n` updates now."""
        self._add(*make_updates(self._parts.agent, n))

    def add_all(self, learned: Iterable[tuple[int, Metrics]]) -> None:
        """Add updates that a learner has made."""
        for made, metrics in learned:
            self._add(made, metrics)

    def _add(self, count: int, metrics: Metrics) -> None:
        parts = self._parts
        for name, value in metrics.items():
            if type(value) is float and "loss" in name and not math.isfinite(value):
                raise parts.diverged(f"agent/{name}")
        parts.counts.updates = int(parts.learner.updates)
        parts.logbook.add_update(metrics)
        if parts.outbox.wants_updates:
            parts.outbox.emit(Updated(parts.counts.stamp(), count, metrics))
