"""The messages to a browser about a run: first everything, then only what is new."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import numpy as np

from rekindle.run.metadata import LOGS, Log, RunMetadata
from rekindle.run.overview import tolerant
from rekindle.run.reader import RunReader
from rekindle.run.settings import flat_settings, setting_text
from rekindle.storage import documents
from rekindle.text import printable
from rekindle.ui.dashboard.blocks import Axis, Points
from rekindle.ui.dashboard.families import Relative
from rekindle.ui.dashboard.listing import Listing, RunRow
from rekindle.ui.dashboard.log_index import LogIndex
from rekindle.ui.dashboard.rows import Floats
from rekindle.ui.details import CheckpointFile, list_checkpoints, replay_size, sign, writer
from rekindle.ui.videos import list_videos

__all__ = ["Gone", "IndexCache", "LogPoints", "RunDetails", "RunWatch", "Warned", "log_points"]

MEMORY = 2**28
"""Bytes of chart data that are kept for runs that no page shows."""
_MOST_SETTINGS = 1000
_MOST_WARNINGS = 100
_MOST_VIDEOS = 24
_DETAILS_PAUSE = 1.0
_QUIET_PAUSE = 2.0
"""Seconds between two checks of a run that is not live."""
_TABLE_PAUSE = 0.5
"""Seconds between two full tables of a log that is being read for the first time."""


class LogPoints(msgspec.Struct, frozen=True, tag="log", tag_field="kind"):
    """Points of a log: keep the first `keep` points, then add these."""

    id: str
    log: Log
    keep: int
    total: int
    """Rows in the log so far."""
    progress: float
    """The share of the file that has been read, up to 1."""
    rows: list[int]
    steps: list[float]
    times: list[float]
    mean: dict[str, list[float | None]]
    least: dict[str, list[float | None]]
    most: dict[str, list[float | None]]


class Warned(msgspec.Struct, frozen=True):
    """A warning about a run."""

    level: Literal["error", "warning", "note"]
    text: str


class RunDetails(msgspec.Struct, frozen=True, tag="run", tag_field="kind"):
    """Everything about a run except its curves."""

    id: str
    path: str
    row: RunRow
    writer: str | None
    is_stopping: bool
    metadata: RunMetadata | None
    settings: dict[str, str]
    checkpoints: list[CheckpointFile]
    replay_size: int
    videos: list[str]
    """The names of its videos, newest first."""
    warnings: list[Warned]
    siblings: list[str]
    family: list[Relative]
    """The runs that it comes from, and those that come from them."""


class Gone(msgspec.Struct, frozen=True, tag="gone", tag_field="kind"):
    """The run does not exist any more."""

    id: str


class IndexCache:
    """The indexes of the runs that are shown, and of those shown last, as far as memory allows."""

    def __init__(self, *, memory: int = MEMORY) -> None:
        self._memory = memory
        self._indexes: OrderedDict[Path, dict[Log, LogIndex]] = OrderedDict()
        self._users: dict[Path, int] = {}
        self._guard = threading.Lock()

    def acquire(self, path: Path) -> dict[Log, LogIndex]:
        """The indexes of a run; they stay until they are released."""
        with self._guard:
            if path not in self._indexes:
                self._indexes[path] = {log: LogIndex(path / f"{log}.jsonl", log) for log in LOGS}
            self._indexes.move_to_end(path)
            self._users[path] = self._users.get(path, 0) + 1
            return self._indexes[path]

    def release(self, path: Path) -> None:
        """Allow the indexes to be removed; they stay as long as memory allows."""
        with self._guard:
            self._users[path] -= 1
            held = sum(index.nbytes for indexes in self._indexes.values() for index in indexes.values())
            for other in [path for path in self._indexes if not self._users.get(path)]:
                if held <= self._memory:
                    break
                held -= sum(index.nbytes for index in self._indexes.pop(other).values())


class _Sent(msgspec.Struct):
    """What a browser has received of a log."""

    generation: int = -1
    points: int = 0
    rows: int = -1
    last: int = 0
    """The block at which the last point begins."""
    group: int = 1
    progress: float = 0.0
    at: float = 0.0


class RunWatch:
    """One browser that shows one run, while the watch is entered."""

    def __init__(self, id_: str, path: Path, listing: Listing, cache: IndexCache, *, points: int, band: bool) -> None:
        self.id = id_
        self.path = path
        self._listing = listing
        self._cache = cache
        self._most = points
        self._band = band
        self._indexes: dict[Log, LogIndex] = {}
        self._sent: dict[Log, _Sent] = {log: _Sent() for log in LOGS}
        self._signs: tuple[Any, ...] = ()
        self._next_details = self._next_look = 0.0
        self._is_busy = True

    def __enter__(self) -> Self:
        self._indexes = self._cache.acquire(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        self._cache.release(self.path)

    def look(self) -> tuple[list[bytes], bool]:
        """JSON messages with new data, and whether there is more to read at once."""
        now = time.monotonic()
        if not self._is_busy and now < self._next_look:
            return [], False
        messages: list[bytes] = []
        self._is_busy = False
        for log, index in self._indexes.items():
            more = index.poll()
            self._is_busy |= more
            message = self._new_points(log, index, more=more)
            if message is not None:
                messages.append(documents.encode(message))
        if now >= self._next_details:
            messages[:0] = self._look_at_details()
            self._next_details = time.monotonic() + _DETAILS_PAUSE
        is_quiet = not self._is_busy and not messages and not self._is_live
        self._next_look = now + _QUIET_PAUSE if is_quiet else 0.0
        return messages, self._is_busy

    @property
    def _is_live(self) -> bool:
        return tolerant([], lambda: RunReader(self.path).is_live, False)

    def _new_points(self, log: Log, index: LogIndex, *, more: bool) -> LogPoints | None:
        sent = self._sent[log]
        with index.guard:
            blocks = index.blocks
            progress = min(1.0, index.offset / index.size) if more else 1.0
            is_table = sent.generation != index.generation or sent.points > 2 * self._most
            is_same = blocks.rows == sent.rows and not is_table and progress == sent.progress
            now = time.monotonic()
            if is_same or (is_table and more and now < sent.at + _TABLE_PAUSE):
                return None
            if is_table:
                sent.group, sent.last, sent.points = blocks.group_for(self._most), 0, 0
            # The last point that was sent may have grown, so send it again.
            points = blocks.points(self._most, first=sent.last, group=sent.group)
            message = log_points(
                self.id, index, points, keep=max(0, sent.points - 1), progress=progress, band=self._band
            )
            sent.points = message.keep + len(points.rows)
            if len(points.rows):
                sent.last = int(points.rows[-1]) >> blocks.level
            sent.generation, sent.rows, sent.progress, sent.at = index.generation, blocks.rows, progress, now
            return message

    def _look_at_details(self) -> Iterator[bytes]:
        row = self._listing.row(self.id)
        parts = ("config.json", "warnings.jsonl", "checkpoints", "replay", "control", "videos")
        broken = [index.broken_count for index in self._indexes.values()]
        signs = (row, *(sign(f"{self.path}/{part}") for part in parts), *broken)
        if signs == self._signs:
            return
        self._signs = signs
        details = Gone(self.id) if row is None else _details(self.id, self.path, row, self._listing, self._indexes)
        yield documents.encode(details)

    def detail(self, axis: Axis, low: float, high: float) -> Iterator[LogPoints]:
        """A range of each log, in the finest resolution that can be shown."""
        for index in self._indexes.values():
            while index.poll():
                pass
            points = index.detail(axis, low, high, self._most)
            yield log_points(self.id, index, points, keep=0, progress=1.0, band=self._band)

    def rows(self, log: Log, before: int | None, count: int) -> tuple[list[dict[str, Any]], int]:
        """Rows of a log, newest first, and their number."""
        index = self._indexes[log]
        index.poll()
        end = index.rows if before is None else min(before, index.rows)
        first = max(0, end - count)
        return index.read_rows(first, end - first)[::-1], index.rows


def log_points(id_: str, index: LogIndex, points: Points, *, keep: int, progress: float, band: bool) -> LogPoints:
    """Points as a message; without `band`, only the means."""
    names = list(points.mean)
    parts = (points.mean, points.least, points.most)[: 3 if band else 1]
    values = _short(np.array([[part[name] for name in names] for part in parts])).tolist()
    columns = [dict(zip(names, part, strict=True)) for part in values]
    return LogPoints(
        id=id_,
        log=index.log,
        keep=keep,
        total=index.rows,
        progress=round(progress, 3),
        rows=points.rows.tolist(),
        steps=points.steps.tolist(),
        times=np.round(points.times, 3).tolist(),
        mean=columns[0],
        least=columns[1] if band else {},
        most=columns[2] if band else {},
    )


def _short(values: Floats) -> Floats:
    """Numbers rounded to six digits, as a screen shows no more."""
    with np.errstate(all="ignore"):
        scale = 10.0 ** (5 - np.floor(np.log10(np.abs(values))))
        return np.where(np.isfinite(scale) & (scale > 0), np.round(values * scale) / scale, values)


def _details(id_: str, path: Path, row: RunRow, listing: Listing, indexes: dict[Log, LogIndex]) -> RunDetails:
    problems: list[str] = []
    reader = tolerant(problems, lambda: RunReader(path), None)
    metadata = tolerant(problems, lambda: reader.metadata, None) if reader else None
    settings = flat_settings(tolerant(problems, reader.read_config, {})) if reader else {}
    first = list(settings.items())[:_MOST_SETTINGS]
    checkpoints = list_checkpoints(path / "checkpoints", problems)
    recent = tolerant(problems, lambda: reader.last_rows("warnings", _MOST_WARNINGS), []) if reader else []
    return RunDetails(
        id=id_,
        path=printable(path, most=1000),
        row=row,
        writer=tolerant(problems, lambda: writer(reader), None) if reader else None,
        is_stopping=row.status == "running" and os.path.lexists(path / "control" / "stop"),
        metadata=metadata,
        settings={printable(name, most=100): printable(setting_text(value)) for name, value in first},
        checkpoints=checkpoints,
        replay_size=replay_size(path),
        videos=[
            video.path.name for video in tolerant(problems, lambda: list_videos(path), [])[: -_MOST_VIDEOS - 1 : -1]
        ],
        warnings=[
            *_warnings(path, row, metadata),
            *(Warned("error", text) for text in _lines(problems, row, indexes)),
            *(Warned("warning", _warning_text(warning)) for warning in reversed(recent)),
        ],
        siblings=listing.siblings(id_)[-200:],
        family=listing.family(id_),
    )


def _warning_text(warning: Mapping[str, Any]) -> str:
    step = warning.get("env_steps")
    at = f"At step {step:,}: " if type(step) is int else ""
    return printable(f"{at}{warning.get('message', '')}", most=1000)


def _lines(problems: list[str], row: RunRow, indexes: dict[Log, LogIndex]) -> Iterator[str]:
    known = [printable(problem, most=1000) for problem in problems]
    known += [problem for index in indexes.values() if (problem := index.problem)]
    if row.problem and not known:
        known.append(row.problem)
    yield from sorted(set(known), key=known.index)


def _warnings(path: Path, row: RunRow, metadata: RunMetadata | None) -> Iterator[Warned]:
    if row.status == "crashed":
        yield Warned("error", "This run crashed: no process writes it any more. Run its script again to continue it.")
    if row.status == "failed" and metadata and metadata.stop_reason:
        yield Warned("error", printable(f"Failed: {metadata.stop_reason}", most=1000))
        if metadata.training is not None:  # only a trainer's run can be repeated
            yield Warned("warning", printable(f"Find out why: rekindle diagnose {path}", most=1000))
    if row.exact is False:
        yield Warned("warning", "Not exact: it cannot be reproduced to the bit.")
    for resume in metadata.resumes if metadata else ():
        for lost in resume.lost:
            level = "note" if resume.grade == "exact" else "warning"
            yield Warned(level, printable(f"Resume {resume.number} at step {resume.step:,}: {lost}", most=1000))
