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
"""Approximate bytes of events that wait in memory; more events wait in a temporary file."""
_FIRST_WORD = 5.0
"""Seconds of waiting before a message names the recorder; the next message comes after twice as long, and so on."""
_MEDIA: dict[str, type[Media]] = {kind.__name__: kind for kind in (Histogram, Text, Video)}


class Window(msgspec.Struct, frozen=True):
    """The mean of each metric of one window."""

    stamp: Stamp
    means: dict[str, float]


class RecorderThread:
    """Calls one recorder on its own thread, in order, with all of its events.

    `put` never waits: events that the recorder has not processed stay in memory, and beyond about 16 MiB in a temporary
    file. Exceptions of the recorder are passed to `report`.

    `flush` and `close` wait as long as the recorder makes progress. If one call takes more than `patience` seconds,
    they stop waiting and report that.
    """

    def __init__(
        self, recorder: Recorder, *, report: Callable[[str], None], directory: Path | None, patience: float
    ) -> None:
        """`directory` is for the temporary file; None for the system's directory."""
        self._recorder, self._report, self._patience = recorder, report, patience
        self._name = type(recorder).__name__
        self._spool = Spool(directory)
        self._spool_works = True
        self._held = 0
        """Approximate bytes of events in memory."""
        self._guard = threading.Lock()
        self._busy_since: float | None = None
        self._has_said_numbers_only = False
        self._closed: Future[None] | None = None
        self._worker: Worker[Window | MediaLogged | _Spooled] = Worker(f"rekindle-recorder-{self._name}", self._take)

    def put(self, event: Window | MediaLogged) -> None:
        """Queue a window or media for the recorder; never waits."""
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
                self._report(f"the recorder {self._name} is behind, and its events wait in memory: {error}")
            return False
        return True

    def flush(self) -> None:
        """Wait until the recorder has processed everything queued."""
        self._wait(self._worker.call(lambda: None))

    def ask_to_close(self, status: str) -> None:
        """Queue the close of the recorder."""
        self._closed = self._worker.call(lambda: self._call(lambda: self._recorder.close(status)))

    def close(self) -> None:
        """Wait until the recorder is closed, as `ask_to_close` requested."""
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
                    f"the recorder {self._name} has been in one call for {now - since:.0f} s and is no longer waited "
                    f"for: {self._worker.backlog} more events are queued"
                )
                return False
            if now >= started + word_after:
                word_after *= 2
                self._report(f"waiting for the recorder {self._name}, which has {self._worker.backlog} events left")

    # On the thread

    def _take(self, item: Window | MediaLogged | _Spooled) -> None:
        if isinstance(item, _Spooled):
            try:
                event = _event(codec.decode(self._spool.get(), name="a temporary file"))
            except RekindleError as error:
                self._report(f"the recorder {self._name} missed a window or media: {error}")
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
            self._report(f"the recorder {self._name} supports only numbers: {kind} {event.name!r} is not shown")

    def _call(self, action: Callable[[], None]) -> None:
        self._busy_since = time.monotonic()
        try:
            action()
        except BaseException as error:  # even SystemExit, which a library may raise
            self._report(f"the recorder {self._name} failed: {type(error).__name__}: {error}")
        finally:
            self._busy_since = None


class _Spooled:
    """A placeholder in the queue for the oldest event in the spool."""


_SPOOLED = _Spooled()


def _size(event: Window | MediaLogged) -> int:
    """Approximate bytes in memory."""
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
