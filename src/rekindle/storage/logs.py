"""Append-only JSON Lines logs: append, sync, truncate, read."""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from rekindle.errors import LogCorrupt, RowsHeld, StorageError
from rekindle.owner import Owner
from rekindle.storage import documents
from rekindle.storage.files import (
    LARGE,
    make_directory,
    open_regular,
    opened,
    read_all,
    remove_temporaries,
    reporting,
    require_directory,
    write_atomic,
)

__all__ = [
    "JsonLines",
    "LogPosition",
    "check_rows",
    "cut",
    "each_rows",
    "read_last_rows",
    "read_rows",
    "surplus",
    "whole_rows",
]
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT
_PART = 2**22
"""Bytes of a log that are in memory as rows at a time."""
_MOST_WITH_HOLES = 2**26
"""The largest log, in bytes, that is read even if it has holes, as after a power cut."""
_UNSYNCED_LIMIT = 8 * 2**20
"""A log without checkpoints is synced when it holds this many bytes in memory."""
_MOST_LATER = 1_000
"""Rows that may wait to be made."""


class LogPosition(NamedTuple):
    """A position in a log: rows, bytes, and the CRC-32 of those bytes."""

    rows: int = 0
    size: int = 0
    crc: int = 0

    def after(self, row: bytes) -> LogPosition:
        """The position after adding a row."""
        return LogPosition(self.rows + 1, self.size + len(row), zlib.crc32(row, self.crc))


class JsonLines:
    """An append-only log: one `write` per row, rows numbered from 0, strict JSON (NaN becomes null).

    A row that cannot be written stays in memory and is written first next time, so a full disk loses nothing.
    Appending and syncing may happen on different threads, but not in a forked child.
    """

    def __init__(self, path: Path, position: LogPosition | None = None) -> None:
        self.path = path
        position = position or LogPosition()
        self._position = position
        self._durable = position.size
        self._tail = bytearray()
        self._written = position.size
        self._suspect = False
        """Whether an fsync failed, so that the file may lack data that was written."""
        self._is_torn = False
        """Whether the file may end with an incomplete row."""
        self._is_holding = False
        """Whether the last attempt to write rows has failed."""
        self.is_deferred = False
        """Whether rows wait in memory for `write_out` or `sync`, so that appending does no I/O."""
        self._later: deque[Callable[[], Mapping[str, Any]]] = deque()
        """Functions that return the next rows."""
        self._owner = Owner()
        self._guard = threading.Lock()
        self._encode = msgspec.json.Encoder(enc_hook=documents.encode_numpy).encode
        with reporting("open", path):
            self._descriptor = open_regular(path, _APPEND)

    @property
    def position(self) -> LogPosition:
        """The position of the next row."""
        with self._guard:  # another thread may be making a row
            self._make_rows()
            return self._position

    def append(self, fields: Mapping[str, Any]) -> None:
        """Add a row; raises `StorageError` if the row is in memory only.

        A row that cannot be encoded as JSON raises `TypeError` or `ValueError`, and the log is unchanged.
        """
        self._owner.check(self.path)
        with self._guard:
            self._make_rows()
            self._add(fields)
            if not self.is_deferred:
                self._write_out()
        self._sync_if_large()

    def append_later(self, fields: Callable[[], Mapping[str, Any]]) -> None:
        """Add a row; a deferred log calls the function when it needs the row, maybe on another thread.

        JSON must be able to hold what the function returns, and that must not depend on when it is called.
        """
        if not self.is_deferred or len(self._later) >= _MOST_LATER:
            self.append(fields())
            return
        self._owner.check(self.path)
        self._later.append(fields)

    def _make_rows(self) -> None:
        while self._later:
            self._add(self._later.popleft()())

    def _add(self, fields: Mapping[str, Any]) -> None:
        line = documents.encode({"row": self._position.rows, **fields}, self._encode) + b"\n"
        self._tail += line
        self._position = self._position.after(line)

    def write_out(self) -> None:
        """Write the rows that wait in memory."""
        self._owner.check(self.path)
        with self._guard:
            self._write_out()
        self._sync_if_large()

    def _sync_if_large(self) -> None:
        """Sync rows as a checkpoint would, because they stay in memory until then."""
        if len(self._tail) > _UNSYNCED_LIMIT:
            self.sync()

    def _write_out(self) -> None:
        self._make_rows()
        if self._is_torn:
            self._mend_tail()
        view = memoryview(self._tail)[self._written - self._durable :]
        if not view:
            return
        self._is_torn = True  # until all is written: after an early end, no row may follow an incomplete one
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]  # after a short write, the next one raises the error
        except OSError as error:
            with contextlib.suppress(OSError):
                self._cut_tail()
            held = RowsHeld(
                f"cannot append to {self.path}: {error.strerror}; {len(view)} bytes of rows are held in memory and "
                "are written as soon as there is room"
            )
            held.is_repeated, self._is_holding = self._is_holding, True
            raise held from error
        finally:
            view.release()
        self._written = self._position.size
        self._is_torn = self._is_holding = False

    def _cut_tail(self) -> None:
        """Remove an incomplete row from the end of the file."""
        os.ftruncate(self._descriptor, self._written)
        self._is_torn = False

    def _mend_tail(self) -> None:
        try:
            self._cut_tail()
        except OSError:
            self._replace()

    def sync(self) -> None:
        """Make every row so far durable."""
        self._owner.check(self.path)
        with self._guard:
            self._make_rows()
            if self._suspect:
                self._replace()
                return
            self._write_out()
            end = self._position.size
            if end == self._durable:
                return
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            with self._guard:
                self._suspect = True
            raise StorageError(f"cannot sync {self.path}: {error.strerror}; the next sync writes a new file") from error
        with self._guard:
            if end > self._durable:  # another thread may have synced more in the meantime
                del self._tail[: end - self._durable]
                self._durable = end

    def _replace(self) -> None:
        """Write a new file from the durable part and the rows in memory.

        Needed if an fsync failed, which cannot be repeated, or if the end of the file cannot be truncated.
        """
        piece = 2**20
        durable = (
            os.pread(self._descriptor, min(piece, self._durable - offset), offset)
            for offset in range(0, self._durable, piece)
        )
        # A copy: a failed write keeps a view of the data, and the tail must be able to grow.
        write_atomic(self.path, *durable, bytes(self._tail))
        with reporting("open", self.path):
            descriptor = open_regular(self.path, _APPEND)
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._durable = self._written = self._position.size
        self._tail.clear()
        self._suspect = self._is_torn = False

    def close(self) -> None:
        """Write the rows in memory and close the file; data that was not synced is left to the operating system.

        A forked child only closes its copy of the descriptor.
        """
        try:
            if self._owner.is_here:
                self.write_out()
        finally:
            os.close(self._descriptor)


def surplus(path: Path, position: LogPosition) -> bytes:
    """The bytes of a log after a position.

    Raises `LogCorrupt` if the log is shorter than the position, or differs from what was written.
    """
    if position.size == 0:
        for _ in each_rows(path):  # checks them
            pass
        return _read_log(path)
    size = crc = lines = 0
    with opened(path) as file:
        if file is not None:
            _check_holes(path, file)
        while file is not None and (data := file.read(min(_PART, position.size - size))):
            size, crc, lines = size + len(data), zlib.crc32(data, crc), lines + data.count(b"\n")
        if file is not None and size == position.size and crc == position.crc:
            return read_all(path, file)
    if size < position.size:
        raise LogCorrupt(
            f"{path} has {size} bytes, but the checkpoint was taken when it had {position.size} "
            f"({position.rows} rows): rows are missing from line {lines + 1} on"
        )
    for _ in each_rows(path, end=position.size):  # names the first row that is not one
        pass
    raise LogCorrupt(f"{path}: the first {position.rows} rows are not the ones that were written")


def cut(path: Path, tail: bytes, rewound: Path) -> int:
    """Move the tail of a log, as found by `surplus`, to `rewound`; returns the number of rows moved."""
    if not tail:
        return 0
    make_directory(rewound)
    require_directory(rewound)
    remove_temporaries(rewound)  # left by a resume that was killed here
    write_atomic(rewound / path.name, tail)
    with reporting("cut", path):
        descriptor = open_regular(path, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - len(tail))
        finally:
            os.close(descriptor)
    return tail.count(b"\n")


def mend(path: Path, rewound: Path) -> LogPosition:
    """For a log without a position in a checkpoint: move everything after its last valid row to `rewound`."""
    data = _read_log(path)
    position = LogPosition()
    for line in data.split(b"\n")[:-1]:
        try:
            check_rows(path, line + b"\n", first=position.rows)
        except LogCorrupt:
            break
        position = position.after(line + b"\n")
    cut(path, data[position.size :], rewound)
    return position


def check_rows(path: Path, data: bytes, *, first: int = 0) -> list[dict[str, Any]]:
    """Decode the complete rows of a log; a bad line or row number raises `LogCorrupt` with the line number.

    An unterminated last line is a row that is still being written, and is ignored.
    """
    complete = data.rfind(b"\n") + 1
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(data[:complete].split(b"\n")[:-1], first):
        try:
            value: Any = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LogCorrupt(f"{path}: line {number + 1} is not JSON: {error}") from None
        fields = cast("dict[str, Any] | None", value if isinstance(value, dict) else None)
        if fields is None or fields.get("row") != number:
            raise LogCorrupt(f"{path}: line {number + 1} is not row {number}: {line[:60]!r}")
        rows.append(fields)
    return rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Every complete row of a log, live or not; a missing log has no rows."""
    return [row for rows in each_rows(path) for row in rows]


def each_rows(path: Path, *, end: int | None = None) -> Iterator[list[dict[str, Any]]]:
    """The complete rows of a log, or of its bytes before `end`, in parts; raises `LogCorrupt` as `check_rows` does.

    Rows in memory take ten times their size on disk, so a long log may not fit into memory as a whole.
    """
    first = 0
    for lines in _parts(path, end):
        rows = check_rows(path, lines, first=first)
        first += len(rows)
        yield rows


def whole_rows(path: Path, *, end: int | None = None) -> LogPosition:
    """The position after the last complete row of a log, or of its bytes before `end`; the rows are not checked."""
    rows = size = crc = 0
    for lines in _parts(path, end):
        rows, size, crc = rows + lines.count(b"\n"), size + len(lines), zlib.crc32(lines, crc)
    return LogPosition(rows, size, crc)


def _parts(path: Path, end: int | None) -> Iterator[bytes]:
    """The complete lines of a log in parts of some megabytes; a longer line is a part of its own."""
    with opened(path) as file:
        if file is None:
            return
        _check_holes(path, file)
        unread = os.fstat(file.fileno()).st_size if end is None else end
        begun: list[bytes] = []
        while data := file.read(min(_PART, unread)):
            unread -= len(data)
            complete = data.rfind(b"\n") + 1
            if complete:
                yield b"".join((*begun, data[:complete]))
                begun.clear()
            begun.append(data[complete:])


def _read_log(path: Path) -> bytes:
    """The content of a log; empty if it does not exist."""
    with opened(path) as file:
        if file is None:
            return b""
        _check_holes(path, file)
        return read_all(path, file)


def _check_holes(path: Path, file: BinaryIO) -> None:
    """Refuse a large log with holes: they read as zeros, which no log has, and may be larger than memory."""
    size = os.fstat(file.fileno()).st_size
    if size > _MOST_WITH_HOLES and os.lseek(file.fileno(), 0, os.SEEK_HOLE) < size:
        raise LogCorrupt(f"{path}: it has {size} bytes, and parts of it were never written")
    file.seek(0)


def read_last_rows(path: Path, count: int, *, most_bytes: int = 2**24) -> list[dict[str, Any]]:
    """The last complete rows of a log, live or not, read from its end: at most `count`, and at most `most_bytes`.

    The rows before them are neither read nor checked. Raises `LogCorrupt` if they are not consecutive rows, or if not
    even one of them fits into `most_bytes`.
    """
    with opened(path) as file:
        if file is None:
            return []
        end = file.seek(0, os.SEEK_END)
        block = min(LARGE, most_bytes)
        while True:
            start = max(0, end - block)
            file.seek(start)
            data = file.read(end - start)
            if start == 0 or block == most_bytes or data.count(b"\n") > count:
                break
            block = min(4 * block, most_bytes)
    lines = data.split(b"\n")[1 if start else 0 : -1]
    if start and not lines:
        raise LogCorrupt(f"{path}: the last row takes more than {most_bytes} bytes")
    skipped = max(0, len(lines) - count)
    first = _row_number(path, lines[0]) if start else 0
    return check_rows(path, b"".join(line + b"\n" for line in lines[skipped:]), first=first + skipped)


def _row_number(path: Path, line: bytes) -> int:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value: Any = msgspec.json.decode(line)
        number = cast("dict[str, Any]", value).get("row") if isinstance(value, dict) else None
        if type(number) is int and number > 0:
            return number
    raise LogCorrupt(f"{path}: a line near its end is not a row: {line[:60]!r}")
