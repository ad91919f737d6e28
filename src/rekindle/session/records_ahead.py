"""Read the records of an input journal in order, as far ahead as a replay must look."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from rekindle.checkpoint.input_segments import JournalReader
from rekindle.session.records import Decoded, Kind, decode

__all__ = ["RecordsAhead"]


_ENDS_OF_HOOK = (Kind.HOOK_DONE, Kind.HOOK_RAISED, Kind.CAUGHT_UP, Kind.RESTARTED)
"""The last two are the first records after a resume from a checkpoint that was taken inside the hook."""


class RecordsAhead:
    """The records that a replay has not made yet."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader, self._source = reader, iter(reader)
        self._ahead: deque[Decoded] = deque()

    @property
    def number(self) -> int:
        """The number of the next record."""
        record = self.peek()  # the reader counts a record when the one after it is asked for
        return self._reader.number if record is None else record.number

    def peek(self, place: int = 0) -> Decoded | None:
        """A record ahead, without taking it; None after the last one."""
        if not place and self._ahead:
            return self._ahead[0]
        while len(self._ahead) <= place:
            record = next(self._source, None)
            if record is None:
                return None
            self._ahead.append(decode(*record))
        return self._ahead[place]

    def next(self) -> Decoded | None:
        """Take the next record; None after the last one."""
        record = self.peek()
        if record is not None:
            self._ahead.popleft()
        return record

    def take_early(self) -> list[Decoded]:
        """Take the calls of callbacks that were recorded before their outer call."""
        taken: list[Decoded] = []
        while (record := self.peek()) is not None and _is_early(record):
            taken.append(record)
            self._ahead.popleft()
        return taken

    def late(self) -> Iterator[Decoded]:
        """The calls of callbacks that were recorded next, after their outer call."""
        place = 0
        while (record := self.peek(place)) is not None and record.context.callback is not None:
            if _is_early(record):
                return
            yield record
            place += 1

    def remove(self, record: Decoded) -> None:
        """Take a record that is ahead."""
        self._ahead.remove(record)

    def is_at_end(self) -> bool:
        """Whether no call is left; calls of callbacks in a call that was not recorded do not count."""
        place = 0
        while (record := self.peek(place)) is not None:
            if not _is_early(record):
                return False
            place += 1
        return True

    def has_end_of_hook(self) -> bool:
        """Whether the hook that begins next, or has just begun, also ended, or a resume continued inside it."""
        place = 0
        while (record := self.peek(place)) is not None:
            if record.kind in _ENDS_OF_HOOK:
                return True
            place += 1
        return False


def _is_early(record: Decoded) -> bool:
    return record.context.callback is not None and not record.context.callback[2]
