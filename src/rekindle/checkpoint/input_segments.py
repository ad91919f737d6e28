"""The segments of an input journal on disk: their format, and how they are read and checked."""

from __future__ import annotations

import contextlib
import re
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from rekindle.errors import CheckpointError
from rekindle.storage import files

__all__ = [
    "CRC",
    "END",
    "FORMAT",
    "HEADER",
    "JournalReader",
    "LENGTH",
    "MAGIC",
    "MOST_RECORD",
    "RECORD",
    "Record",
    "Segment",
    "current_segments",
    "description_of",
    "has_segments",
    "next_record",
    "remove_segments",
    "segment_name",
    "segments",
    "unshortened",
    "write_durable",
]

MAGIC, FORMAT = b"RKINPUTS", 1
HEADER = struct.Struct("<8sHIIQI")
"""Magic, format, size of the file, resume count, number of the first record, length of the description."""
RECORD = struct.Struct("<IIQIB")
"""Length of the data plus 1, CRC-32 of everything after it, number, synced offset, kind."""
LENGTH, CRC = struct.Struct("<I"), struct.Struct("<I")
END = 0
"""The kind of the last record of a segment; it has the number of the first record of the next one."""
MOST_RECORD = 1 << 30
_MOST_SEGMENT = MOST_RECORD + (1 << 22)
_MOST_DESCRIPTION = 1 << 22
_NAME = re.compile(r"inputs_(\d{1,18})_r(\d{1,9})\.journal")
_DURABLE = "durable"


class Record(NamedTuple):
    """One call."""

    number: int
    """Counted from the first call of the run."""
    kind: int
    data: bytes


class Segment(NamedTuple):
    """A file of records."""

    path: Path
    first: int
    """The number of its first record."""
    resume_count: int
    """How often the run had been resumed when it was written."""

    @property
    def order(self) -> tuple[int, int]:
        """Sorts segments in the order in which they were written."""
        return self.resume_count, self.first


def segment_name(first: int, resume_count: int) -> str:
    """The name of a segment."""
    return f"inputs_{first}_r{resume_count}.journal"


def has_segments(directory: Path) -> bool:
    """Whether there is an input journal."""
    return bool(segments(directory))


def segments(directory: Path) -> list[Segment]:
    """The segments in a directory, in the order in which they were written."""
    paths = files.entries(directory) if directory.is_dir() else []
    found = [(path, match) for path in paths if (match := _NAME.fullmatch(path.name))]
    return sorted((Segment(path, int(match[1]), int(match[2])) for path, match in found), key=lambda one: one.order)


def remove_segments(directory: Path, number: int) -> None:
    """Remove the segments in which no record from this number on is found."""
    found = _current(segments(directory))
    kept = {segment.path for segment, end in _with_ends(found) if end is None or end > number}
    files.remove(segment.path for segment in segments(directory) if segment.path not in kept)


def _current(written: list[Segment]) -> list[Segment]:
    """The segments with current records: a later segment replaces everything from its first record on."""
    current: list[Segment] = []
    for segment in written:
        while current and current[-1].first >= segment.first:
            current.pop()
        current.append(segment)
    return current


def current_segments(directory: Path) -> list[Segment]:
    """The segments with current records, in the order of these."""
    return _current(segments(directory))


def description_of(segment: Segment) -> bytes:
    """The description in the header of a segment, without reading its records; raises `CheckpointError`."""
    with files.opened(segment.path) as file:
        header = b"" if file is None else file.read(HEADER.size)
        if file is None or len(header) < HEADER.size or not header.startswith(MAGIC):
            raise CheckpointError(f"{segment.path}: not a segment of an input journal")
        return file.read(min(HEADER.unpack(header)[-1], _MOST_DESCRIPTION))


def next_record(segment: Segment) -> tuple[int, int]:
    """The number that follows the last record of a segment, and the bytes after it that are damaged."""
    scan, number = _Scan(segment), segment.first
    for record in scan.records():
        if record.kind != END:
            number = record.number + 1
    return number, scan.lost if scan.is_damaged else 0


def unshortened(directory: Path, least: int) -> Iterator[tuple[Path, int, int]]:
    """Segments that have their end, but also the room after it, at least this many bytes in all.

    A process that is killed right after a checkpoint leaves such a segment. Yields its path, where its end begins, and
    the number of the record after it.
    """
    for segment in segments(directory):
        if segment.path.stat().st_size < least:
            continue
        scan, newest = _Scan(segment), deque[Record](maxlen=1)
        with contextlib.suppress(CheckpointError):  # the reader reports it, if the segment is needed
            newest.extend(scan.records())
        if scan.is_finished and not scan.is_damaged and scan.has_room:
            yield segment.path, scan.stopped_at - RECORD.size, newest[0].number


def _with_ends(current: list[Segment]) -> Iterable[tuple[Segment, int | None]]:
    """Each segment, and the number of the record that follows its last current one (None: it is the last)."""
    firsts: list[int | None] = [segment.first for segment in current[1:]]
    return zip(current, [*firsts, None], strict=False)


def write_durable(directory: Path, name: str) -> None:
    """Record that a segment was synced, so that its loss can be noticed."""
    files.write_atomic(directory / _DURABLE, msgspec.json.encode({"segment": name}))


def _read_durable(directory: Path) -> Segment | None:
    path = directory / _DURABLE
    if not path.exists():
        return None
    try:
        name = msgspec.json.decode(files.read_bytes(path, most=4096), type=dict[str, str]).get("segment", "")
    except msgspec.MsgspecError:
        name = ""
    match = _NAME.fullmatch(name)
    if match is None:
        raise CheckpointError(f"{path}: it does not name a segment of the input journal")
    return Segment(directory / name, int(match[1]), int(match[2]))


class JournalReader:
    """Reads the current records of a journal from a number on.

    Iterating raises `CheckpointError` for a record that is missing or damaged although it was durable. Records that a
    power cut has damaged are dropped: `lost` counts their bytes.
    """

    def __init__(self, directory: Path, number: int) -> None:
        self.number = number
        """The number of the next record; after the last one, that of the first which is not there."""
        self.lost = 0
        """Bytes of damaged records that were never known to be durable."""
        self.about = b""
        """The description of the newest segment that was read."""
        self.unfinished: tuple[Path, int] | None = None
        """After the last record: its segment and where it ends, if a killed process left that without an end."""
        self._directory = directory

    def __iter__(self) -> Iterator[Record]:
        found = segments(self._directory)
        synced = _read_durable(self._directory)
        if synced is not None and synced.first >= self.number and all(one.order < synced.order for one in found):
            raise CheckpointError(
                f"{synced.path} is missing: it has the records of the input journal from {synced.first} on"
            )
        chain = [(segment, end) for segment, end in _with_ends(_current(found)) if end is None or end > self.number]
        for place, (segment, end) in enumerate(chain):
            if segment.first > self.number:
                raise CheckpointError(f"{self._directory}: record {self.number} of the input journal is missing")
            scan = _Scan(segment)
            for record in scan.records():
                self.about = scan.about
                if end is not None and record.number >= end:
                    break
                if record.number >= self.number and record.kind != END:
                    yield record
                    self.number = record.number + 1
            if self.number == end or not (scan.is_damaged or end is not None):
                self.unfinished = None if scan.is_finished or end is not None else (segment.path, scan.stopped_at)
                continue
            later = [_Scan(other) for other, _ in chain[place + 1 :]]
            # Segments are synced in order: one that was synced shows that all before it were, and its own header.
            is_synced = any(one.durable() for one in later)
            if synced is not None:
                is_synced |= synced.order > segment.order or (synced.order == segment.order and not scan.stopped_at)
            if is_synced or scan.stopped_at < scan.durable():
                raise CheckpointError(
                    f"{segment.path}: record {max(self.number, segment.first)}, at byte {scan.stopped_at}, is damaged, "
                    "although it had been written safely"
                )
            self.lost = scan.lost + sum(one.lost for one in later)
            return


class _Scan:
    """Reads the records of one segment up to its end, or to the first that is damaged."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._data = files.read_bytes(segment.path, most=_MOST_SEGMENT)
        self.about = b""
        """The description in the header."""
        self.is_damaged = False
        """Whether the last record read is followed by one that is damaged."""
        self.stopped_at = 0
        """Where reading stopped."""
        self.is_finished = False
        """Whether the segment has its end."""

    @property
    def lost(self) -> int:
        """Bytes from where reading stopped to the last that is not 0."""
        return max(0, len(self._data.rstrip(b"\0")) - self.stopped_at)

    @property
    def has_room(self) -> bool:
        """Whether anything follows what was read."""
        return len(self._data) > self.stopped_at

    def records(self) -> Iterator[Record]:
        """The records, up to the first that is damaged."""
        data, segment = self._data, self._segment
        header = self._header()
        self.is_damaged = True
        if header is None:
            return
        room, self.stopped_at = header
        number = segment.first
        while (record := _record_at(data, self.stopped_at)) is not None and record.number == number:
            yield record
            self.stopped_at += RECORD.size + len(record.data)
            if record.kind == END:
                self.is_finished, self.is_damaged = True, self.lost > 0
                return
            number += 1
        if len(data) != room:
            # A power cut does not shorten a file, and only a segment that has its end is shortened.
            raise CheckpointError(f"{segment.path}: it is cut short at record {number}, after {len(data)} bytes")
        self.is_damaged = self.lost > 0

    def _header(self) -> tuple[int, int] | None:
        """The size of the file when it was made, and where the first record begins; None if the header is damaged."""
        data, segment = self._data, self._segment
        if len(data) < HEADER.size + CRC.size:
            return None
        magic, version, room, resume_count, first, length = HEADER.unpack_from(data)
        end = HEADER.size + length
        if end + CRC.size > len(data) or CRC.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
            return None
        if magic != MAGIC or version != FORMAT:
            raise CheckpointError(
                f"{segment.path}: not a segment of an input journal of format {FORMAT}, which this version reads"
            )
        if (first, resume_count) != (segment.first, segment.resume_count):
            raise CheckpointError(f"{segment.path}: it begins with record {first}, not with the one in its name")
        self.about = data[HEADER.size : end]
        return room, end + CRC.size

    def durable(self) -> int:
        """The offset up to which the segment was durable, as any of its records says, also one after the damage."""
        data, durable, start = self._data, 0, 0
        end = len(data.rstrip(b"\0"))
        numbers = range(self._segment.first, self._segment.first + end)
        while start + RECORD.size <= len(data) and start < end:
            length, _, number, synced, _ = RECORD.unpack_from(data, start)
            if length and number in numbers and (record := _record_at(data, start)) is not None:
                durable = max(durable, synced)
                start += RECORD.size + len(record.data)
            else:
                start += 1
        return durable


def _record_at(data: bytes, start: int) -> Record | None:
    """The record that begins there; None if there is none, or it is damaged."""
    if start + RECORD.size > len(data):
        return None
    length, crc, number, _, kind = RECORD.unpack_from(data, start)
    end = start + RECORD.size + length - 1
    if not length or end > len(data) or zlib.crc32(data[start + 8 : end]) != crc:
        return None
    return Record(number, kind, data[start + RECORD.size : end])
