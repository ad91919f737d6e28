"""The replay journal: a checkpoint writes only new rows, and refers to the rows that are on disk already.

Segments are immutable files with the rows `first <= number < end`. The manifest of a checkpoint lists the segments
of its replay buffer; checkpoints share the segments that they refer to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rekindle.agent import Replay, State
from rekindle.errors import FileRefused, StateError
from rekindle.experience import Array
from rekindle.owner import Owner
from rekindle.spaces import ArraySpec
from rekindle.storage import codec, files

__all__ = ["Manifest", "NewRows", "ReplayJournal", "Segment"]

_SEGMENT = re.compile(r"rows_[0-9]+_[0-9]+_r[0-9]+\.mpk")
_MERGE_LIMIT = 4 * 2**20
"""Segments below this size are merged like the digits of a binary counter, so that frequent small checkpoints
leave few files, and each row is rewritten only a few times."""
_SEGMENT_LIMIT = 2**30
"""Bytes of rows in one segment; the format allows 4 GiB per column and 16 GiB per file."""


class Segment(msgspec.Struct, frozen=True):
    """One file of the journal, as listed in a manifest."""

    file: str
    first: int
    end: int
    checksum: str


class _SavedColumn(msgspec.Struct, frozen=True):
    """A column, as stored in a checkpoint."""

    dtype: str
    shape: list[int]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A manifest, as stored in a checkpoint."""

    first: int
    end: int
    columns: dict[str, _SavedColumn]
    segments: list[Segment]


class Manifest(msgspec.Struct, frozen=True):
    """The segments with the rows of a replay buffer."""

    first: int
    end: int
    columns: dict[str, ArraySpec]
    segments: list[Segment]

    def tree(self) -> State:
        """The form stored in a checkpoint."""
        columns = {name: _SavedColumn(spec.dtype.str, list(spec.shape)) for name, spec in self.columns.items()}
        return msgspec.to_builtins(_Saved(self.first, self.end, columns, self.segments))

    @classmethod
    def of(cls, tree: Any, *, name: str) -> Manifest:
        """Read the stored form; raises `FileRefused`."""
        try:
            saved = msgspec.convert(tree, _Saved)
        except (msgspec.ValidationError, AttributeError, TypeError) as error:  # the latter two for misplaced arrays
            raise FileRefused(f"{name}: its replay manifest is wrong: {error}") from None
        columns: dict[str, ArraySpec] = {}
        for column, spec in saved.columns.items():
            try:
                columns[column] = ArraySpec.parse(spec.dtype, spec.shape)
            except StateError as error:
                raise FileRefused(f"{name}: its replay column {column!r}: {error}") from None
        number = saved.first
        for segment in saved.segments:
            if not _SEGMENT.fullmatch(segment.file) or not segment.first <= number < segment.end:
                raise FileRefused(f"{name}: its replay manifest does not fit at {segment.file!r}")
            number = segment.end
        if number != saved.end:
            raise FileRefused(f"{name}: its replay manifest ends at row {number}, not {saved.end}")
        return cls(saved.first, saved.end, columns, saved.segments)


class NewRows(msgspec.Struct, frozen=True):
    """The rows that a checkpoint adds to the journal, copied from the replay buffer."""

    first: int
    """The oldest row in the replay buffer, new or not."""
    start: int
    end: int
    columns: dict[str, ArraySpec]
    rows: dict[str, Array]


class ReplayJournal:
    """The segments of one run."""

    def __init__(self, directory: Path, *, resume_count: int, known: Iterable[Segment] = ()) -> None:
        self._owner = Owner()
        self.directory = directory
        self.resume_count = resume_count
        self.segments = list(known)
        """The durable segments that are still needed, in order."""

    def collect(self, memory: Replay) -> NewRows:
        """Copy the rows that are not in a segment yet, and those of small segments that are merged."""
        columns = dict(memory.columns)
        row_size = sum(spec.nbytes for spec in columns.values())
        start = max(memory.first, self.segments[-1].end if self.segments else 0)
        for segment in reversed(self.segments):
            size, new = (segment.end - segment.first) * row_size, (memory.end - start) * row_size
            if segment.end != start or size > new or size + new > _MERGE_LIMIT:
                break
            start = max(segment.first, memory.first)
        return NewRows(
            first=memory.first,
            start=start,
            end=memory.end,
            columns=columns,
            rows=memory.read(start, memory.end),
        )

    def write(self, new: NewRows) -> Manifest:
        """Make the new rows durable, and return the manifest of all rows."""
        self._owner.check(self.directory)
        older = self.segments if new.first < new.start else []  # otherwise the new segments contain everything
        segments = [segment for segment in older if segment.first < new.start and segment.end > new.first]
        row_size = sum(column[:1].nbytes for column in new.rows.values())
        longest = max(1, _SEGMENT_LIMIT // max(1, row_size))
        for first in range(new.start, new.end, longest):
            end = min(first + longest, new.end)
            rows = {name: column[first - new.start : end - new.start] for name, column in new.rows.items()}
            segments.append(self._write_segment(first, end, rows))
        self.segments = segments
        return Manifest(new.first, new.end, new.columns, segments)

    def _write_segment(self, first: int, end: int, rows: Mapping[str, Array]) -> Segment:
        # The resume count distinguishes it from files written before a resume went back.
        path = self.directory / f"rows_{first}_{end}_r{self.resume_count}.mpk"
        pieces = codec.encode({"kind": "segment", "first": first, "columns": dict(rows)})
        files.write_atomic(path, *pieces)
        return Segment(path.name, first, end, codec.stored_checksum(pieces[0]))

    def read(self, manifest: Manifest) -> dict[str, Array]:
        """Every row in a manifest; raises `FileRefused` if a segment is missing or is not the listed one."""
        pieces: dict[str, list[Array]] = {name: [] for name in manifest.columns}
        for rows in self.read_each(manifest):
            for name, array in rows.items():
                pieces[name].append(array)
        return {
            name: np.concatenate(arrays)
            if len(arrays := pieces[name]) > 1
            else (arrays[0] if arrays else np.empty((0, *spec.shape), spec.dtype))
            for name, spec in manifest.columns.items()
        }

    def first_mergeable(self, row_size: int) -> int:
        """The first row that a later segment may contain again, because the segments from there on are small."""
        first = self.segments[-1].end if self.segments else 0
        for segment in reversed(self.segments):
            if (segment.end - segment.first) * row_size > _MERGE_LIMIT:
                break
            first = segment.first
        return first

    def read_each(self, manifest: Manifest) -> Iterator[dict[str, Array]]:
        """The rows in a manifest, one segment after the other; raises like `read`."""
        number = manifest.first
        for segment in manifest.segments:
            rows = self._read_segment(segment, manifest.columns)
            yield {name: array[number - segment.first :] for name, array in rows.items()}
            number = segment.end

    def check_presence(self, manifest: Manifest) -> None:
        """Raise `FileRefused` if a segment is missing or is not the listed one, judged by its length and header."""
        for segment in manifest.segments:
            codec.check_header(self.directory / segment.file, checksum=segment.checksum)

    def _read_segment(self, segment: Segment, columns: Mapping[str, ArraySpec]) -> dict[str, Array]:
        path = self.directory / segment.file
        tree = codec.read_file(path, checksum=segment.checksum)
        arrays: dict[str, Any] = tree.get("columns") or {}
        if tree.get("first") != segment.first or type(arrays) is not dict or set(arrays) != set(columns):
            raise FileRefused(f"{path}: not the segment that the checkpoint names")
        rows = segment.end - segment.first
        for name, spec in columns.items():
            array = arrays[name]
            if type(array) is not np.ndarray or (array.shape, array.dtype) != ((rows, *spec.shape), spec.dtype):
                found = f"{array.shape} of {array.dtype}" if type(array) is np.ndarray else repr(array)[:40]
                raise FileRefused(f"{path}: the column {name!r} is {found}, not {rows} rows of {spec}")
        return arrays

    def files(self) -> list[Path]:
        """Every segment of the journal, whether a manifest lists it or not."""
        if not self.directory.is_dir():
            return []
        return sorted(path for path in self.directory.iterdir() if path.suffix == ".mpk" and path.name[0] != ".")


def check_layout(manifest: Manifest, columns: Mapping[str, ArraySpec], *, name: str) -> None:
    """Raise `FileRefused` if the columns of a manifest are not those of a replay buffer."""
    saved, held = manifest.columns, columns
    if dict(saved) != dict(held):
        different = sorted(key for key in saved.keys() | held.keys() if saved.get(key) != held.get(key))
        differences = "; ".join(f"{key}: saved {saved.get(key)}, now {held.get(key)}" for key in different)
        raise FileRefused(f"{name}: its replay buffer does not fit this agent: {differences}")
