"""A thread for each recorder, so that a slow one delays neither the training nor the run's own log."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from rekindle.errors import RekindleError
from rekindle.events import Histogram, Media, MediaLogged, Recorder, ShowsMedia, Stamp, Text, Video
from rekindle.run.worker import Worker
from rekindle.storage import codec
from rekindle.storage.spool import Spool

__all__ = ["RecorderThread", "Window"]

_MOST_MEMORY = 16 * 2**20
"""Bytes of events that wait in memory, about; more wait in a temporary file."""
_FIRST_WORD = 5.0
"""Seconds of waiting after which it is said what is waited for; then after twice as long, and so on."""
_MEDIA: dict[str, type[Media]] = {kind.__name__: kind for kind in (Histogram, Text, Video)}


class Window(msgspec.Struct, frozen=True):
    """The mean of each metric of one window."""

    stamp: Stamp
    means: dict[str, float]


class RecorderThread:
    """Calls one recorder on a thread of its own, in order, with everything that it is given.

    Giving never waits: what the recorder has no time for stays in memory, and beyond about 16 MiB in a temporary
    file. What the recorder raises is told to `report`.

    `flush` and `close` wait for as long as the recorder gets on. They give it up, and say so, if one call takes
    more than `patience` seconds.
    """

    def __init__(
        self, recorder: Recorder, *, report: Callable[[str], None], directory: Path | None, patience: float
    ) -> None:
        """`directory` is where the temporary file goes; None for that of the system."""
        self._recorder, self._report, self._patience = recorder, report, patience
        self._name = type(recorder).__name__
        self._spool = Spool(directory)
        self._spool_works = True
        self._held = 0
        """Bytes of events in memory, about."""
        self._guard = threading.Lock()
        self._busy_since: float | None = None
        self._has_said_numbers_only = False
        self._closed: Future[None] | None = None
        self._worker: Worker[Window | MediaLogged | _Spooled] = Worker(f"rekindle-recorder-{self._name}", self._take)

    def put(self, event: Window | MediaLogged) -> None:
        """Give the recorder a window or media; never waits for it."""
        size = _size(event)
        if self._held + size > _MOST_MEMORY and self._spooled(event):
            self._worker.put(_SPOOLED)
            return
        with self._guard:
            self._held += size
        self._worker.put(event)

    def _spooled(self, event: Window | MediaLogged) -> bool:
        try:
            self._spool.put(b"".join(codec.encode(_tree(event))))
        except RekindleError as error:
            if self._spool_works:
                self._spool_works = False
                self._report(f"the recorder {self._name} is behind, and what it is given waits in memory: {error}")
            return False
        return True

    def flush(self) -> None:
        """Return when the recorder has taken everything it was given."""
        self._wait(self._worker.call(lambda: None))

    def ask_to_close(self, status: str) -> None:
        """Have the recorder closed after everything it was given."""
        self._closed = self._worker.call(lambda: self._call(lambda: self._recorder.close(status)))

    def close(self) -> None:
        """Return when the recorder has been closed as it was asked to."""
        if self._closed is not None and self._wait(self._closed):
            self._worker.close()
            self._spool.close()

    def _wait(self, done: Future[None]) -> bool:
        started = time.monotonic()
        word_after = _FIRST_WORD
        while True:
            since, now = self._busy_since, time.monotonic()
            end_of_patience = (now if since is None else since) + self._patience
            concurrent.futures.wait([done], max(0.0, min(end_of_patience, started + word_after) - now))
            if done.done():
                done.result()
                return True
            now = time.monotonic()
            if since is not None and since == self._busy_since and now >= end_of_patience:
                self._report(
                    f"the recorder {self._name} has been in one call for {now - since:.0f} s and is not waited for any "
                    f"longer: {self._worker.backlog} more wait for it"
                )
                return False
            if now >= started + word_after:
                word_after *= 2
                self._report(f"waiting for the recorder {self._name}, which has {self._worker.backlog} to go")

    # On the thread

    def _take(self, item: Window | MediaLogged | _Spooled) -> None:
        if isinstance(item, _Spooled):
            try:
                event = _event(codec.decode(self._spool.get(), name="a temporary file"))
            except RekindleError as error:
                self._report(f"the recorder {self._name} misses a window or media: {error}")
                return
        else:
            event = item
            with self._guard:
                self._held -= _size(event)
        if isinstance(event, MediaLogged):
            self._show(event)
        else:
            self._call(lambda: self._recorder.record(dict(event.means), event.stamp))

    def _show(self, event: MediaLogged) -> None:
        recorder = self._recorder
        if isinstance(recorder, ShowsMedia):
            self._call(lambda: recorder.show(event.name, event.media, event.stamp))
        elif not self._has_said_numbers_only:
            self._has_said_numbers_only = True
            kind = type(event.media).__name__.lower()
            self._report(f"the recorder {self._name} shows numbers only, so no {kind} {event.name!r}")

    def _call(self, action: Callable[[], None]) -> None:
        self._busy_since = time.monotonic()
        try:
            action()
        except BaseException as error:  # even SystemExit, which a library may raise
            self._report(f"the recorder {self._name} failed: {type(error).__name__}: {error}")
        finally:
            self._busy_since = None


class _Spooled:
    """Stands in the queue for the oldest event in the spool."""


_SPOOLED = _Spooled()


def _size(event: Window | MediaLogged) -> int:
    """Bytes in memory, about."""
    if isinstance(event, Window):
        return 200 + 100 * len(event.means)
    media = event.media
    if isinstance(media, Text):
        return 200 + 4 * len(media.text)
    return 200 + (media.values if isinstance(media, Histogram) else media.frames).nbytes


def _tree(event: Window | MediaLogged) -> dict[str, Any]:
    stamp = msgspec.structs.asdict(event.stamp)
    if isinstance(event, Window):
        return {"stamp": stamp, "means": event.means}
    media = event.media
    return {"stamp": stamp, "name": event.name, type(media).__name__: msgspec.structs.asdict(media)}


def _event(tree: Mapping[str, Any]) -> Window | MediaLogged:
    stamp = Stamp(**tree["stamp"])
    if "means" in tree:
        return Window(stamp, tree["means"])
    media = next(kind(**tree[name]) for name, kind in _MEDIA.items() if name in tree)
    return MediaLogged(stamp, tree["name"], media)
