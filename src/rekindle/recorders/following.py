"""A thread that follows a run's `metrics.jsonl` and sends new rows to a service; a resume continues at its position.

The log is the queue: if a service is down for an hour, this takes no memory and loses no row.
"""

from __future__ import annotations

import atexit
import math
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import msgspec

from rekindle.errors import RunError, StorageError
from rekindle.events import Media, MediaLogged, Stamp
from rekindle.owner import Owner
from rekindle.run.metadata import MOST_JSON
from rekindle.run.reader import RunReader
from rekindle.storage import files

__all__ = ["Follower", "Mark", "Place", "Row", "Service"]

_MOST_ROWS = 50
"""Rows that are sent at once."""
_MOST_BYTES = 2**20
"""Bytes of the log that are read at once."""
_MOST_MEDIA = 100
"""The most histograms, texts and videos that wait for a service."""
_TOKEN = re.compile(r"[0-9a-f]{8}")
_LAST_PATIENCE = 5.0
"""Seconds to wait for the service if the process ends without closing the session."""


class Mark(msgspec.Struct, frozen=True, order=True):
    """Identifies a row: after an exact resume the same row has the same mark.

    The row number is not enough: a resume removes the last row of a closed session, and another row gets its number.
    """

    env_steps: int = -1
    row: int = -1


class Row(msgspec.Struct, frozen=True):
    """One row of `metrics.jsonl`."""

    row: int
    env_steps: int
    updates: int
    episodes: int
    wall_time: float
    metrics: dict[str, dict[str, float | None]]

    @property
    def mark(self) -> Mark:
        """The mark of the row."""
        return Mark(self.env_steps, self.row)

    @property
    def values(self) -> dict[str, float]:
        """The finite means of the metrics."""
        return {name: mean for name, summary in self.metrics.items() if (mean := summary.get("mean")) is not None}


class Sending(msgspec.Struct, frozen=True):
    """A row that was being sent when this was written."""

    mark: Mark
    wall_time: float


class Place(msgspec.Struct):
    """The progress of a service: the content of `recorders/<name>.json`."""

    token: str
    """A unique token, with which an existing run in the service can be found again."""
    external_id: str | None = None
    """The service's id of the run."""
    last: Mark = Mark()
    """The newest row that was sent."""
    sent: int = 0
    """How much was sent so far, in the service's own unit."""
    sending: list[Sending] = []
    """Rows that may have been sent: the process can be killed between sending and recording that."""
    resumes: int = 0
    """How often the run had been resumed when the newest row was sent."""
    described: int | None = None
    """The checksum of the config that was sent."""
    shown: dict[str, int] = {}
    """The env step of the newest histogram, text or video of each name."""
    files: dict[str, int] = {}
    """Files written for the service, and the size of each up to the last row that counts as sent."""

    def start_over(self) -> None:
        """Reset the progress, so that everything is sent again."""
        self.last, self.sent, self.sending, self.described = Mark(), 0, [], None
        self.shown, self.files = {}, {}


class Service(Protocol):
    """The interface of a service. Any call may raise: everything is retried later, beginning with `start`."""

    def start(self, run: RunReader, place: Place) -> None:
        """Create the run in the service, or continue it at its place."""
        ...

    def describe(self, config: Mapping[str, Any]) -> None:
        """Send the settings of the training."""
        ...

    def send(self, rows: Sequence[Row], place: Place, doubtful: Mapping[Mark, float]) -> None:
        """Send rows. The doubtful ones may have been sent already, with these wall times."""
        ...

    def show(self, name: str, media: Media, stamp: Stamp, place: Place) -> bool:
        """Send a histogram, a text or a video; returns False if the service does not support it."""
        ...

    def take_back(self, env_steps: int) -> bool:
        """Hide everything from an env step on; returns False if the service does not support it."""
        ...

    def note(self, name: str, text: str) -> None:
        """Send a note about the run; a note of the same name is replaced."""
        ...

    def finish(self, status: str, place: Place) -> None:
        """End the run in the service."""
        ...


class Follower:
    """Sends the rows of one run to one service, on a thread that starts with the first row.

    A failure is reported once and retried with increasing delays; at the end, for at most `patience` seconds. Rows that
    could not be sent by then are sent when the run is resumed.
    """

    def __init__(
        self,
        name: str,
        service: Service,
        path: Path,
        report: Callable[[str], None],
        *,
        patience: float = 60.0,
        first_delay: float = 1.0,
        longest_delay: float = 60.0,
    ) -> None:
        self._owner = Owner()
        self._name, self._service, self._report = name, service, report
        self._run = RunReader(path)
        self._file = self._run.path / "recorders" / f"{name}.json"
        self._patience, self._delays = patience, (first_delay, longest_delay)
        self._tail = self._run.tail("metrics")
        self._backlog: deque[Row] = deque()
        self._media: deque[MediaLogged] = deque()
        self._not_shown: set[type[Media]] = set()
        self._place: Place | None = None
        """None until the service has started, and after a failure: then it restarts from the progress on disk."""
        self._status: str | None = None
        self._deadline = math.inf
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"rekindle-{name}", daemon=True)

    def record(self, values: Mapping[str, float], stamp: Stamp) -> None:  # noqa: ARG002 - they are in the log
        """Note that the log has a new row."""
        if self._thread.ident is None:
            atexit.register(self._abandon)
            self._thread.start()
        self._wake.set()

    def show(self, name: str, media: Media, stamp: Stamp) -> None:
        """Queue a histogram, a text or a video in memory."""
        if len(self._media) >= _MOST_MEDIA:
            left = self._media.popleft()
            self._report(f"{self._name} is behind: {left.name!r} of step {left.stamp.env_steps} is dropped")
        self._media.append(MediaLogged(stamp, name, media))
        self.record({}, stamp)

    def close(self, status: str) -> None:
        """Send the rest and end the run in the service with this status; a forked child leaves that to its parent."""
        if not self._owner.is_here:
            return
        atexit.unregister(self._abandon)
        if self._status is not None:
            return
        self._deadline = time.monotonic() + self._patience
        self._status = status
        if self._thread.ident is None:
            self._thread.start()
        self._wake.set()
        self._closing.set()
        self._thread.join(self._patience + 1.0)
        if self._thread.is_alive():
            self._report(f"{self._name} did not answer for {self._patience:g} s: {self._left()}")

    def _abandon(self) -> None:
        """Handle the end of a process in which the session was not closed."""
        self._patience = min(self._patience, _LAST_PATIENCE)
        self.close("failed")

    def _work(self) -> None:
        first, longest = self._delays
        delay, reported = first, ""
        while True:
            self._wake.clear()
            status = self._status
            try:
                place = self._deliver()
                if status is not None:
                    self._service.finish(status, place)
                    self._save(place)
                    return
                delay, reported = first, ""
            except (Exception, SystemExit) as error:  # a library that exits would end only this thread
                self._place = None
                problem = f"{type(error).__name__}: {error}"
                if time.monotonic() + delay > self._deadline:
                    self._report(f"{self._name} failed: {problem}; {self._left()}")
                    return
                if problem != reported:
                    reported = problem
                    self._report(f"{self._name} failed: {problem}; it is retried, and training continues")
                delay = min(2 * delay, longest) if self._pause(delay, is_closing=status is not None) else first
                continue
            self._wake.wait()

    def _pause(self, seconds: float, *, is_closing: bool) -> bool:
        """Wait before the next attempt; returns False if the end interrupted the wait."""
        if not is_closing:
            return not self._closing.wait(seconds)
        time.sleep(seconds)
        return True

    def _left(self) -> str:
        return f"the missing rows are in {self._tail.path.name}, and are sent when the run is resumed"

    def _deliver(self) -> Place:
        place = self._place = self._place or self._start()
        self._describe(place)
        while self._backlog or self._read():
            self._skip(place)
            batch = list(islice(self._backlog, _MOST_ROWS))
            if batch:
                self._send(batch, place)
        while self._media:
            event = self._media.popleft()
            try:
                self._show(event, place)
            except BaseException:
                self._media.appendleft(event)
                raise
        return place

    def _show(self, event: MediaLogged, place: Place) -> None:
        """Send media that the service does not have yet; report once if it does not support them."""
        kind, steps = type(event.media), event.stamp.env_steps
        if kind in self._not_shown or steps <= place.shown.get(event.name, -1):
            return
        if not self._service.show(event.name, event.media, event.stamp, place):
            self._not_shown.add(kind)
            self._report(f"{self._name} cannot show a {kind.__name__.lower()}: {event.name!r} is dropped")
            return
        place.shown[event.name] = steps
        self._save(place)

    def _start(self) -> Place:
        directory = self._file.parent
        files.make_directory(directory)
        files.require_directory(directory)
        place = self._read_place()
        if place is None:
            place = Place(secrets.token_hex(4))
            self._save(place)
        self._tail = self._run.tail("metrics")
        self._backlog.clear()
        self._service.start(self._run, place)
        self._save(place)
        return place

    def _describe(self, place: Place) -> None:
        config = self._run.read_config()
        checksum = crc32(msgspec.json.encode(config, order="deterministic"))
        if config and checksum != place.described:
            self._service.describe(config)
            place.described = checksum

    def _send(self, batch: Sequence[Row], place: Place) -> None:
        doubtful = {sending.mark: sending.wall_time for sending in place.sending}
        fresh = [Sending(row.mark, row.wall_time) for row in batch if row.mark not in doubtful]
        if fresh:
            place.sending = [*place.sending, *fresh]
            self._save(place)
        self._service.send(batch, place, doubtful)
        for _ in batch:
            self._backlog.popleft()
        place.last, place.sent = batch[-1].mark, place.sent + len(batch)
        place.sending = [sending for sending in place.sending if sending.mark > place.last]
        place.resumes = len(self._run.metadata.resumes)
        self._save(place)

    def _read(self) -> bool:
        rows, _ = self._tail.poll(_MOST_BYTES)
        self._backlog.extend(msgspec.convert(row, Row) for row in rows)
        return bool(rows)

    def _skip(self, place: Place) -> None:
        """Skip rows that the service has; if a resume replaced some of them, hide or keep the old ones."""
        if not self._backlog or self._backlog[0].mark > place.last:
            return
        rewound = [
            resume
            for resume in self._run.metadata.resumes
            if resume.number > place.resumes and resume.grade == "approximate"
        ]
        point = min((resume.step for resume in rewound), default=math.inf)
        while self._backlog and (row := self._backlog[0]).mark <= place.last:
            if row.env_steps > point:
                if self._service.take_back(int(point) + 1):
                    place.last, place.sending = Mark(int(point), row.row - 1), []
                    place.shown = {name: min(steps, int(point)) for name, steps in place.shown.items()}
                    return
                self._service.note(
                    f"rekindle.resume_{rewound[-1].number}",
                    f"went back to step {int(point)} and is approximate: rows up to step "
                    f"{place.last.env_steps} are from before the resume",
                )
                point = math.inf
            self._backlog.popleft()

    def _read_place(self) -> Place | None:
        try:
            place = msgspec.json.decode(files.read_bytes(self._file, most=MOST_JSON), type=Place)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RunError(f"{self._file} is damaged ({error}): remove it to start a new run there") from None
        if not _TOKEN.fullmatch(place.token):  # it becomes part of file names and patterns
            raise RunError(f"{self._file} is damaged (its token is invalid): remove it to start a new run there")
        return place

    def _save(self, place: Place) -> None:
        files.write_atomic(self._file, msgspec.json.encode(place), sync_name=False)
