"""A queue of records on disk."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import IO

from rekindle.storage.files import reporting

__all__ = ["Spool"]

_PREFIX = 8
"""Bytes before each record, which hold its length."""


class Spool:
    """A first-in-first-out queue of bytes in an unnamed file that disappears with the process.

    The first `put` creates the file, and it is truncated whenever it has been read completely. `put` and `get` may be
    called on different threads.

    >>> spool = Spool()
    >>> spool.put(b"first")
    >>> spool.put(b"second")
    >>> spool.get(), spool.get()
    (b'first', b'second')
    >>> spool.close()
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._start = self._end = 0
        self._guard = threading.Lock()

    def put(self, record: bytes) -> None:
        """Add a record; raises `StorageError` if there is no room, and the queue is then unchanged."""
        with self._guard, reporting("write to a temporary file in", self._directory or tempfile.gettempdir()):
            self._file = self._file or _file_without_name(self._directory)
            view = memoryview(len(record).to_bytes(_PREFIX, "little") + record)
            end = self._end
            while view:
                count = os.pwrite(self._file.fileno(), view, end)
                view, end = view[count:], end + count
            self._end = end

    def get(self) -> bytes:
        """Take the oldest record; there must be one. If it cannot be read, it is dropped and `StorageError` raised."""
        with self._guard, reporting("read a temporary file in", self._directory or tempfile.gettempdir()):
            if self._file is None or self._start == self._end:
                raise IndexError("the spool is empty")
            start = self._start + _PREFIX
            length = int.from_bytes(_read(self._file, self._start, _PREFIX), "little")
            self._start = start + length
            record = _read(self._file, start, length)
            if self._start == self._end:
                self._start = self._end = 0
                os.ftruncate(self._file.fileno(), 0)
            return record

    def close(self) -> None:
        """Close the file and discard its contents."""
        with self._guard:
            if self._file is not None:
                self._file.close()
                self._file = None
            self._start = self._end = 0


def _file_without_name(directory: Path | None) -> IO[bytes]:
    # Some systems need a name for a moment, and a kill may leave the file: `remove_temporaries` removes this one.
    return tempfile.TemporaryFile(buffering=0, dir=directory, prefix=".spool-", suffix=".tmp")


def _read(file: IO[bytes], start: int, length: int) -> bytes:
    pieces: list[bytes] = []
    while length > 0:
        piece = os.pread(file.fileno(), length, start)
        if not piece:
            raise OSError("the file ends early")
        pieces.append(piece)
        start += len(piece)
        length -= len(piece)
    return b"".join(pieces)
