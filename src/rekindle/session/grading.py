"""Whether a session is exact: equal to the bit to one that was never interrupted."""

from __future__ import annotations

import msgspec

from rekindle.errors import StorageError
from rekindle.run.directory import TrainingRun
from rekindle.run.metadata import Resume
from rekindle.session.outbox import Outbox

__all__ = ["Grading"]


class Grading:
    """Tracks whether the session is exact, and what its resume lost."""

    def __init__(self, run: TrainingRun | None, outbox: Outbox, *, is_exact: bool) -> None:
        self._run, self._outbox = run, outbox
        self.is_exact = is_exact
        self.resumed: Resume | None = None

    def mark_inexact(self, what: str) -> None:
        """Report a loss, and record it in the run and its resume."""
        self.is_exact = False
        self._outbox.warn(what)
        if self.resumed is not None and self._run is not None:
            lost = (*self.resumed.lost, what)
            self.resumed = msgspec.structs.replace(self.resumed, grade="approximate", lost=lost)
            try:
                self._run.add_resume(self.resumed)
            except StorageError as error:
                self._outbox.warn(str(error))
