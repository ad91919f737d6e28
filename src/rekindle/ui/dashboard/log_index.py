"""Follow a log and keep the data for its charts: nothing is read twice, and the log may be of any length."""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.run.metadata import Log
from rekindle.storage.files import open_regular
from rekindle.text import printable
from rekindle.ui.dashboard.blocks import MOST_BLOCKS, Axis, Blocks, Points
from rekindle.ui.dashboard.rows import Columns, decode

__all__ = ["LogIndex"]

PIECE = 2**22
"""Bytes read at a time; a longer line is not a row."""
LONGEST_LINE = 2**28
"""The most bytes in which the end of a line is searched; a file with a longer line is not read further."""
_LINE_HEAD = 2**12
"""Bytes of a line by which it is recognised."""
_LONGEST_SHOWN = 2**16
"""The most bytes of a row that are shown."""
_NAMED = 20
"""The most broken lines whose numbers are kept."""


class LogIndex:
    """A log that may grow, or be truncated by a resume, while it is shown; may be used from several threads."""

    def __init__(self, path: Path, log: Log, *, most_blocks: int = MOST_BLOCKS) -> None:
        self.path = path
        self.log: Log = log
        self.guard = threading.RLock()
        self.blocks = Blocks(most=most_blocks)
        self.generation = 0
        """Increases when existing blocks have changed: the log was truncated, or blocks were merged."""
        self.cuts = 0
        self.size = 0
        """Bytes of the file at the last check."""
        self.offset = 0
        """Bytes of the file that have been read."""
        self.broken_count = 0
        self._broken: list[int] = []
        self._searched = 0
        """How far the end of a line that is too long has been searched."""
        self._most_blocks = most_blocks
        self._offsets = np.empty(256, np.int64)
        self._checks = np.empty(256, np.int64)
        self._last = (0, 0)
        """Offset and checksum of the last line that was read."""
        self._identity = (0, 0)

    @property
    def rows(self) -> int:
        """Lines read so far."""
        return self.blocks.rows

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return self.blocks.nbytes + self._offsets.nbytes + self._checks.nbytes

    @property
    def problem(self) -> str | None:
        """What is wrong with the log, in one line."""
        with self.guard:
            if self._is_endless:
                return f"{self.path.name}: line {self.rows + 1:,} has no end; the rest is not shown"
            if not self.broken_count:
                return None
            named = ", ".join(str(row + 1) for row in self._broken[:5])
            more = ", ..." if self.broken_count > 5 else ""
            lines = "line" if self.broken_count == 1 else "lines"
            return f"{self.path.name}: {self.broken_count:,} {lines} cannot be read ({named}{more})"

    @property
    def _is_endless(self) -> bool:
        """Whether the search for the end of the line after the last row was given up."""
        return self._searched - self.offset >= LONGEST_LINE

    def poll(self) -> bool:
        """Read new data, up to one piece; returns whether there is more to read at once."""
        with self.guard, self._opened() as descriptor:
            if descriptor is None:
                return False
            status = os.fstat(descriptor)
            self.size = status.st_size
            identity = (status.st_dev, status.st_ino)
            if self.rows and (identity != self._identity or not self._is_intact(descriptor, *self._last)):
                self._go_back(descriptor)
            self._identity = identity
            if self.size < self._searched:  # it was truncated, so the line may end now
                self._searched = self.offset
            if self.size == self.offset:
                return False
            data = os.pread(descriptor, PIECE, self.offset)
            end = data.rfind(b"\n") + 1
            if end:
                self._take(data[:end])
            elif len(data) == PIECE:
                return self._pass_over(descriptor)
            return self.offset + (len(data) - end) < self.size

    @contextlib.contextmanager
    def _opened(self) -> Generator[int | None]:
        try:
            descriptor = open_regular(self.path)
        except OSError:  # missing, or not a regular file: reported where the run is read
            yield None
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _take(self, lines: bytes, columns: Columns | None = None) -> None:
        """Add complete lines."""
        level = self.blocks.level
        first, known = self.rows, len(self.blocks)
        columns = columns or decode(self.log, lines, first=first)
        self.blocks.append(columns)
        for _ in range(self.blocks.level - level):
            half = -(-known // 2)
            self._offsets[:half], self._checks[:half] = self._offsets[:known:2], self._checks[:known:2]
            known = half
            self.generation += 1
        self._mark(lines, first, known)
        self.broken_count += len(columns.broken)
        self._broken += [first + index for index in columns.broken[: _NAMED - len(self._broken)]]
        self.offset += len(lines)

    def _mark(self, lines: bytes, first: int, known: int) -> None:
        """Record where each new block begins, and the start of its first line."""
        newlines = np.flatnonzero(np.frombuffer(lines, np.uint8) == 10)
        starts = np.append(0, newlines[:-1] + 1)
        count = len(self.blocks)
        if count > len(self._offsets):
            capacity = min(max(2 * len(self._offsets), count), self._most_blocks)
            self._offsets, self._checks = np.resize(self._offsets, capacity), np.resize(self._checks, capacity)
        for block in range(known, count):
            line = (block << self.blocks.level) - first
            start, end = int(starts[line]), int(newlines[line])
            self._offsets[block] = self.offset + start
            self._checks[block] = zlib.crc32(lines[start : min(end, start + _LINE_HEAD)])
        start, end = int(starts[-1]), int(newlines[-1])
        self._last = self.offset + start, zlib.crc32(lines[start : min(end, start + _LINE_HEAD)])

    def _pass_over(self, descriptor: int) -> bool:
        """Skip a line that is longer than any row, without keeping it; returns true when its end was found."""
        head = os.pread(descriptor, _LINE_HEAD, self.offset)
        self._searched = max(self._searched, self.offset)
        while not self._is_endless and (data := os.pread(descriptor, PIECE, self._searched)):
            end = data.find(b"\n")
            if end < 0:
                self._searched += len(data)
                continue
            length = self._searched + end + 1 - self.offset
            nothing = np.full(1, np.nan)
            self._take(head + b"\n", Columns(nothing, nothing, {}, broken=(0,)))
            self.offset += length - len(head) - 1
            return True
        return False

    def _is_intact(self, descriptor: int, offset: int, check: int) -> bool:
        """Whether the line that was read at an offset is still there; every row has its own wall time."""
        head, newline, _ = os.pread(descriptor, _LINE_HEAD + 1, offset).partition(b"\n")
        whole = bool(newline) or len(head) > _LINE_HEAD
        return whole and zlib.crc32(head[:_LINE_HEAD]) == check

    def _go_back(self, descriptor: int) -> None:
        """Find the blocks that are still valid, and continue from the start of the last of them."""
        low, high = 0, len(self.blocks)
        while low < high:
            middle = (low + high) // 2
            if self._is_intact(descriptor, int(self._offsets[middle]), int(self._checks[middle])):
                low = middle + 1
            else:
                high = middle
        kept = max(0, low - 1)
        self.offset = self._searched = int(self._offsets[kept]) if kept else 0
        self.blocks.cut(kept)
        self._broken = [row for row in self._broken if row < self.rows]
        self.broken_count = len(self._broken)
        self.generation += 1
        self.cuts += 1

    def detail(self, axis: Axis, low: float, high: float, most: int) -> Points:
        """A range of the log in about `most` points, read again from the file if the blocks are too coarse."""
        with self.guard:
            first, end = self.blocks.between(axis, low, high)
            if self.blocks.level == 0 or end - first > most:
                return self.blocks.points(most, first=first, end=end)
            number = first << self.blocks.level
            begin = int(self._offsets[first]) if end > first else 0
            stop = int(self._offsets[end]) if end < len(self.blocks) else self.offset
        finer = Blocks()
        for lines in self._lines(begin, stop):
            finer.append(decode(self.log, lines))
        first, end = finer.between(axis, low, high)
        points = finer.points(most, first=first, end=end)
        return msgspec.structs.replace(points, rows=points.rows + number)

    def _lines(self, begin: int, stop: int) -> Iterator[bytes]:
        """The bytes between two offsets in pieces of complete lines; a line that is too long becomes an empty one."""
        with self._opened() as descriptor:
            while descriptor is not None and begin < stop:
                data = os.pread(descriptor, min(PIECE, stop - begin), begin)
                end = data.rfind(b"\n") + 1
                if end:
                    yield data[:end]
                    begin += end
                    continue
                while data and (end := data.find(b"\n") + 1) == 0:
                    begin += len(data)
                    data = os.pread(descriptor, min(PIECE, stop - begin), begin)
                if not data:
                    return
                yield b"\n"
                begin += end

    def read_rows(self, first: int, count: int) -> list[dict[str, Any]]:
        """Rows of the log; for a row that cannot be read, its number and the start of its text."""
        with self.guard:
            first, end = max(0, first), min(self.rows, first + count)
            if first >= end:
                return []
            block = first >> self.blocks.level
            number = block << self.blocks.level
            last = ((end - 1) >> self.blocks.level) + 1
            begin = int(self._offsets[block])
            stop = int(self._offsets[last]) if last < len(self.blocks) else self.offset
        found: list[dict[str, Any]] = []
        for lines in self._lines(begin, stop):
            for line in lines.split(b"\n")[:-1]:
                if first <= number < end:
                    found.append(_row(number, line))
                number += 1
        return found


def _row(number: int, line: bytes) -> dict[str, Any]:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        value: Any = msgspec.json.decode(line) if len(line) <= _LONGEST_SHOWN else None
        if isinstance(value, dict):
            return {**cast("dict[str, Any]", value), "row": number}
    return {"row": number, "broken": printable(line[:100].decode(errors="replace"))}
