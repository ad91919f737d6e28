"""Links between rows: which step follows which row, and which steps can be sampled; all derived from the rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import StateError
from rekindle.experience import Array, EpisodeStatus
from rekindle.replay.rows import Rows

__all__ = ["FRAGMENT", "Links", "NONE", "NO_STEP", "RowNumbers", "check_links"]

RowNumbers = NDArray[np.int64]

NONE = -1
"""Instead of a row number: there is no such row."""
NO_STEP = 3
"""The status of a row without a step: the first observation of an episode, or an older frame of a stack."""

FRAGMENT = 4
"""In kept data, the status of the first row of an episode whose earlier steps were not kept."""

_CONTINUING = int(EpisodeStatus.CONTINUING)


class Links:
    """Forward links for the columns `previous` (the row that a step starts from) and `older` (see `Memory`).

    A step can be sampled while everything that it starts from is stored: one row, or `depth` rows with stacked frames.
    The oldest of these rows decides how long.
    """

    def __init__(self, rows: Rows, *, depth: int) -> None:
        self._rows = rows
        self._depth = depth
        self._older: RowNumbers = rows.slots["older" if depth > 1 else "previous"]
        # For slots without a row, the values mean nothing.
        self.next: RowNumbers = np.zeros(rows.capacity, np.int64)
        """The step that starts from a row."""
        self._needed_by: RowNumbers = self.next if depth == 1 else np.zeros(rows.capacity, np.int64)
        """The step for which a row is the oldest that it starts from."""
        self.can_sample: NDArray[np.bool_] = np.zeros(rows.capacity, np.bool_)
        self.count = 0
        """How many steps can be sampled."""

    @property
    def nbytes(self) -> int:
        """The bytes of all links."""
        return self.next.nbytes + self.can_sample.nbytes + (self._needed_by.nbytes if self._depth > 1 else 0)

    def oldest(self, row: int) -> int:
        """The oldest row that the observation of a row needs, or `NONE` if it is no longer stored."""
        first, capacity = self._rows.first, self._rows.capacity
        for _ in range(self._depth - 1):
            if row < first:
                return NONE
            row = int(self._older[row % capacity])
        return row if row >= first else NONE

    def follow(self, first: int, end: int, steps: list[int], previous: list[int]) -> list[int]:
        """Update the links after rows were appended, among them `steps`; before, rows `first` to `end` were stored.

        Returns the stored steps that can no longer be sampled.
        """
        rows, capacity = self._rows, self._rows.capacity
        dropped = self._forget(first, rows.first) if rows.first > first else []
        self._clear(end, rows.end)
        # A Python loop: there are few rows at a time, and numpy would be slower.
        for step, before in zip(steps, previous, strict=True):
            if before < rows.first:
                continue
            self.next[before % capacity] = step
            oldest = before if self._depth == 1 else self.oldest(before)
            if oldest != NONE:
                self._needed_by[oldest % capacity] = step
                self.can_sample[step % capacity] = True
                self.count += 1
        return dropped

    def follow_one(self, first: int, step: int, before: int) -> list[int]:
        """`follow` for a single step, which starts from one row."""
        rows, capacity = self._rows, self._rows.capacity
        dropped = self._forget(first, rows.first) if rows.first > first else []
        is_held = before >= rows.first
        self.next[step % capacity] = NONE
        self.can_sample[step % capacity] = is_held
        if is_held:
            self.next[before % capacity] = step
            self.count += 1
        return dropped

    def rebuild(self, steps: RowNumbers, previous: RowNumbers) -> None:
        """Compute the links of all stored rows, among them `steps`."""
        self._clear(self._rows.first, self._rows.end)
        steps, slots = self._with_held(steps, previous)
        self.next[slots] = steps
        for _ in range(self._depth - 1):
            steps, slots = self._with_held(steps, self._older.take(slots))
        self._needed_by[slots] = steps
        self.can_sample[steps % self._rows.capacity] = True
        self.count = len(steps)

    def _with_held(self, steps: RowNumbers, needed: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
        """The steps that need a stored row, and the slots of these rows."""
        held = needed >= self._rows.first
        return steps[held], needed[held] % self._rows.capacity

    def _clear(self, first: int, end: int) -> None:
        slots = self._rows.span(first, end)
        self.next[slots] = NONE
        if self._depth > 1:
            self._needed_by[slots] = NONE
        self.can_sample[slots] = False

    def _forget(self, first: int, end: int) -> list[int]:
        slots, capacity = self._rows.span(first, end), self._rows.capacity
        dropped = [step for step in self._needed_by[slots].tolist() if step >= end]
        self.count -= self.can_sample[slots].tolist().count(True) + len(dropped)
        for step in dropped:
            self.can_sample[step % capacity] = False
        return dropped


def check_links(numbers: RowNumbers, rows: Mapping[str, Array]) -> None:
    """Raise if the rows are not linked as a replay buffer links them."""
    status, previous = rows["status"], rows["previous"]
    sound = bool((status <= NO_STEP).all()) and np.array_equal(status == NO_STEP, previous == NONE)
    for links in (previous, rows.get("older", previous)):
        sound = sound and bool(((links >= NONE) & (links < numbers)).all())
    if sound and len(numbers):
        held = previous >= numbers[0]
        before = previous[held] - numbers[0]
        following = np.full(len(numbers), NONE)
        following[before] = numbers[held]
        ended = (status[before] != _CONTINUING) & (status[before] != NO_STEP)
        sound = np.array_equal(following[before], numbers[held]) and not ended.any()
    if not sound:
        raise StateError("these rows cannot be restored: they are not linked as a replay buffer links them")
