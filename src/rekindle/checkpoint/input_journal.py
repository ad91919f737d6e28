"""The input journal: every call that changed a session, as records in segments that survive `kill -9`.

A segment is a file mapped into memory, so that a record costs no system call: what was copied to the mapping belongs to
the kernel, which writes it even if the process is killed. A thread syncs the file, so that a power cut loses only the
last moments.

    segment   magic, format, size, resume count, number of the first record, length of a description, description,
              CRC-32 of these; then records; then zeros
    record    length, CRC-32, number, synced offset, kind, data

The length is written last, so a killed process leaves a record whole or not at all. Only a power cut tears records, and
only above the synced offset: each record names the offset up to which its segment was durable when it was written. A
segment that is closed ends with a record of the kind `END`, and is shortened to it. The file `durable` names the newest
segment that has ever been synced.

After a resume, the records continue in a new segment, which may replace the last records of the one before.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from pathlib import Path
from zlib import crc32

from rekindle.checkpoint.input_segments import (
    CRC,
    END,
    FORMAT,
    HEADER,
    LENGTH,
    MAGIC,
    MOST_RECORD,
    RECORD,
    remove_segments,
    segment_name,
    unshortened,
    write_durable,
)
from rekindle.errors import StorageError
from rekindle.owner import Owner
from rekindle.priority import lower_priority
from rekindle.storage import files
from rekindle.storage.mapped import FaultsAhead

__all__ = ["InputJournal", "finish_segment", "shorten_segments"]

_ROOM = 1 << 22
"""Bytes of a segment, unless one record needs more."""
_FIRST_RECORDS = 1 << 16
"""Bytes of a new segment whose page faults are taken in advance."""
_MOST_UNSYNCED = 8
"""Segments that may wait for a slow disk. Each needs two descriptors, and too few of them would end the training."""
_SYNC_WHEN_WAITING = 0.05
"""Seconds between two syncs of what is left, if every record is synced at once."""
_HEAD_SIZE = RECORD.size
_END_SIZE = RECORD.size
_ROOM_FOR_ENDS = RECORD.size + _END_SIZE
"""The size of a record beside its data, and of the end of its segment."""
_BODY = struct.Struct("<QIB")
"""A record from its number on."""


class InputJournal:
    """Appends records to segments in a directory.

    `append` belongs to one thread. A second thread makes the records durable.
    """

    def __init__(
        self, directory: Path, *, number: int, resume_count: int, sync_every: float, about: bytes = b""
    ) -> None:
        """`number` is that of the next record, and `about` describes who writes them.

        If `sync_every`, in seconds, is 0, `append` waits until its record is durable.
        """
        self._owner = Owner()
        self._directory, self._resume_count, self._sync_every = directory, resume_count, sync_every
        self._about = about
        self.number = number
        """The number of the next record."""
        self.written = 0
        """Bytes of records since the last cut."""
        self._segment: _OpenSegment | None = None
        self._unsynced: list[_OpenSegment] = []
        """Segments with records that may not be durable, the oldest first."""
        self._spare: _Room | None = None
        """The file of the next segment, made by the thread: making it takes longer than a call may."""
        self._wants_spare = True
        self.failure: StorageError | None = None
        """Why nothing more can be written."""
        self._syncing = threading.Lock()
        self._is_closed = threading.Event()
        files.make_directory(directory)
        files.remove_temporaries(directory)
        self._syncer = threading.Thread(target=self._keep_syncing, name="rekindle-journal", daemon=True)
        self._syncer.start()

    def append(self, kind: int, data: bytes) -> None:
        """Add a record; raises `StorageError` if it cannot be written. Once it returns, `kill -9` loses nothing."""
        if self.failure is not None:
            raise self.failure
        segment, number = self._segment, self.number
        if segment is None or segment.end + len(data) + _ROOM_FOR_ENDS > segment.room:
            segment = self._start_segment(RECORD.size + len(data))
        self.written += segment.add(number, kind, data)
        self.number = number + 1
        if self._sync_every == 0:
            self.sync()

    def cut(self) -> int:
        """Let the next record begin a segment, so that earlier ones can be removed; returns its number."""
        if self._segment is not None:
            self._segment.finish(self.number)  # first: the thread closes every segment but the current one
        self._segment, self.written = None, 0
        return self.number

    def remove_before(self, number: int) -> None:
        """Remove segments in which no record from this number on is found."""
        remove_segments(self._directory, number)

    def sync(self) -> None:
        """Make all records durable; raises `StorageError` if that fails."""
        self._owner.check(self._directory)
        self._sync_all()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Make all records durable, and end the thread."""
        self._is_closed.set()
        self._syncer.join()
        if self.failure is None:
            self.cut()
            self._sync_all()
        for segment in self._unsynced:
            segment.close()
        self._unsynced.clear()
        if self._spare is not None:
            self._spare.discard()
            self._spare = None

    def _start_segment(self, size: int) -> _OpenSegment:
        self._owner.check(self._directory)
        if size > MOST_RECORD:
            raise StorageError(f"a record of {size} bytes does not fit into the input journal of {self._directory}")
        if self._segment is not None:
            self._segment.finish(self.number)
        if len(self._unsynced) >= _MOST_UNSYNCED:
            self.sync()
        path = self._directory / segment_name(self.number, self._resume_count)
        try:
            segment = _OpenSegment(self._room_for(size), path, self.number, self._resume_count, self._about)
        except StorageError as error:
            self.failure = error
            raise
        # In this order: the thread closes every segment but the current one.
        self._segment = segment
        self._unsynced.append(segment)
        return segment

    def _room_for(self, size: int) -> _Room:
        """The file that was made in advance, or one that is made now."""
        size += HEADER.size + len(self._about) + CRC.size + _END_SIZE
        spare = self._spare
        if spare is None or spare.size < size:
            return _Room(self._directory / ".segment.tmp", max(_ROOM, size))
        self._spare, self._wants_spare = None, True
        return spare

    def _make_spare(self) -> None:
        """Make the file of the next segment, unless that failed before: the append that needs one reports why."""
        if self._wants_spare and self.failure is None:
            self._wants_spare = False
            with contextlib.suppress(StorageError):
                self._spare = _Room(self._directory / ".next.tmp", _ROOM)

    def _sync_all(self) -> None:
        """Sync every segment; after a failure nothing is tried again, as a second fsync could claim success."""
        with self._syncing:
            for segment in list(self._unsynced):
                if self.failure is not None:
                    return
                is_over = segment is not self._segment
                try:
                    segment.sync(self._directory)
                    if is_over:
                        self._unsynced.remove(segment)
                        segment.close()
                except StorageError as error:
                    self.failure = error
                    return

    def _keep_syncing(self) -> None:
        lower_priority()
        self._make_spare()
        while not self._is_closed.wait(self._sync_every or _SYNC_WHEN_WAITING):
            self._sync_all()
            self._make_spare()


def finish_segment(path: Path, end: int, number: int) -> None:
    """End a segment that a killed process left, and release the room after it: kills could fill a disk otherwise.

    `end` is where its last record ends, and `number` that of the next one. Durable when it returns: a damaged end would
    be taken for damaged records once later segments have been synced.
    """
    body = _BODY.pack(number, 0, END)
    with files.reporting("shorten", path):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, LENGTH.pack(1) + CRC.pack(crc32(body)) + body, end)
            os.fsync(descriptor)
            os.ftruncate(descriptor, end + _END_SIZE)
        finally:
            os.close(descriptor)


def shorten_segments(directory: Path) -> None:
    """Release the room of segments that a killed process had ended and not yet shortened."""
    for path, end, number in unshortened(directory, _ROOM):
        finish_segment(path, end, number)


class _Room:
    """A file of zeros, mapped into memory, with a temporary name: a segment gets its own when it has its header."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        with files.reporting("write", path):
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, files.PRIVATE)
            try:
                os.posix_fallocate(self.descriptor, 0, size)  # finds a full disk now, and not while it is mapped
                self.map = mmap.mmap(self.descriptor, size)
            except BaseException:
                os.close(self.descriptor)
                files.remove([path])
                raise
        self.faults = FaultsAhead(self.map)
        self.faults.prepare(0, _FIRST_RECORDS)

    def discard(self) -> None:
        """Remove the file, which was not needed."""
        self.map.close()
        os.close(self.descriptor)
        files.remove([self.path])


class _OpenSegment:
    """One file, mapped into memory."""

    def __init__(self, room: _Room, path: Path, first: int, resume_count: int, about: bytes) -> None:
        """Write the header into a file, and give it the name of the segment."""
        self.path, self.room = path, room.size
        self._map, self._descriptor, self._faults = room.map, room.descriptor, room.faults
        header = HEADER.pack(MAGIC, FORMAT, self.room, resume_count, first, len(about)) + about
        self.end = len(header) + CRC.size
        """Where the next record begins."""
        self.synced = 0
        """Bytes that are durable."""
        self._is_finished = False
        self._map[: self.end] = header + CRC.pack(crc32(header))
        try:
            with files.reporting("write", path):
                os.rename(room.path, path)
        except StorageError:
            room.discard()
            raise

    def add(self, number: int, kind: int, data: bytes) -> int:
        """Copy a record to the mapping, its length last; returns its size."""
        start, mapping = self.end, self._map
        head = _BODY.pack(number, self.synced, kind)
        mapping[start + 4 : start + _HEAD_SIZE] = CRC.pack(crc32(data, crc32(head))) + head
        self.end = end = start + _HEAD_SIZE + len(data)
        mapping[start + _HEAD_SIZE : end] = data
        LENGTH.pack_into(mapping, start, len(data) + 1)  # plus 1: without data, too, it is not 0
        return end - start

    def finish(self, number: int) -> None:
        """Add the last record, once; `number` is that of the first record of the next segment."""
        if not self._is_finished:  # it is, if the next segment could not be made
            self.add(number, END, b"")
            self._is_finished = True

    def sync(self, directory: Path) -> None:
        """Make what was added durable, and the name of the file."""
        end = self.end
        if end == self.synced:
            return
        with files.reporting("sync", self.path):
            os.fsync(self._descriptor)
        if not self.synced:
            files.sync_directory(directory)
            write_durable(directory, self.path.name)
        added, self.synced = end - self.synced, end
        if not self._is_finished:  # as much again may come before the next sync; twice that, because loads vary
            self._faults.prepare(end, 2 * added)

    def close(self) -> None:
        """Release the file; if it is finished, without the room that it does not need."""
        self._map.close()
        try:
            if self._is_finished:
                with files.reporting("shorten", self.path):
                    os.ftruncate(self._descriptor, self.end)
        finally:
            os.close(self._descriptor)
