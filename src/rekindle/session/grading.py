"""Whether a session is exact: equal to the bit to one that was never interrupted."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator

import msgspec
import numpy as np

from rekindle.errors import StorageError
from rekindle.run.directory import TrainingRun
from rekindle.run.metadata import Resume
from rekindle.session.outbox import Outbox

__all__ = ["Grading"]

_MOST_LISTED = 20
"""The number of losses that a resume lists, as each of them is written to the run."""
_NOT_LISTED = "further losses are not listed"


class Grading:
    """Tracks whether the session is exact, and what its resume lost."""

    def __init__(self, run: TrainingRun | None, outbox: Outbox, *, is_exact: bool) -> None:
        self._run, self._outbox = run, outbox
        self.is_exact = is_exact
        self.resumed: Resume | None = None

    def depend_on_clock(self, why: str) -> None:
        """Mark the session as inexact because the host chose so; only a resume reports it."""
        self.is_exact = False
        if self.resumed is not None and why not in self.resumed.lost:
            self.mark_inexact(why)

    def mark_inexact(self, what: str) -> None:
        """Report a loss, and record it in the run and its resume."""
        self.is_exact = False
        if self._outbox.replaying is not None and not what.startswith("call "):  # reported before
            return
        if self.resumed is None or self._run is None:
            self._outbox.warn(what)
            return
        lost = self.resumed.lost
        if len(lost) >= _MOST_LISTED:
            if lost[-1] == _NOT_LISTED:
                return
            what = _NOT_LISTED
        self._outbox.warn(what)
        self.resumed = msgspec.structs.replace(self.resumed, grade="approximate", lost=(*lost, what))
        try:
            self._run.add_resume(self.resumed)
        except StorageError as error:
            self._outbox.warn(str(error))

    @contextlib.contextmanager
    def watching_generators(self, who: str) -> Generator[None]:
        """Mark the session as inexact if the global generators of Python or numpy are used, as a resume loses them."""
        before = _global_generators()
        try:
            yield
        finally:
            if self._run is not None and _global_generators() != before:
                self.mark_inexact(
                    f"{who} draws from the global generators of random or numpy.random, which a resume cannot restore: "
                    "use a generator of your own, in an object with state() and load_state()"
                )


def _global_generators() -> tuple[object, ...]:
    name, keys, position, *_ = np.random.get_state()
    return random.getstate(), name, np.asarray(keys).tobytes(), position
