"""The thread that writes finished metric windows to the log, the store and the recorders."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from rekindle.errors import RekindleError
from rekindle.events import MediaLogged, MetricsFlushed, Recorder, ShowsMedia
from rekindle.run.metrics import EventStore, metrics_row
from rekindle.storage.logs import JsonLines, LogPosition

__all__ = ["EventProcessor"]


class EventProcessor:
    """Takes finished windows through a bounded queue and writes them to the log, the store and the recorders.

    Nothing it meets on its thread is lost: what goes wrong is told to `report`, and training goes on.
    """

    def __init__(
        self,
        *,
        log: JsonLines | None,
        deferred: Sequence[JsonLines] = (),
        store: EventStore,
        recorders: Sequence[Recorder] = (),
        report: Callable[[str], None],
        capacity: int = 1024,
    ) -> None:
        self._log = log
        self._deferred = deferred
        self._store = store
        self._recorders = recorders
        self._report = report
        self._without_media: list[Recorder] = []
        """Those that were said to show numbers only."""
        self._queue: queue.Queue[MetricsFlushed | MediaLogged | Future[LogPosition] | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._work, name="rekindle-events", daemon=True)
        self._thread.start()

    def submit(self, event: MetricsFlushed | MediaLogged) -> None:
        """Hand over a window, or what else there is to show; waits while the queue is full."""
        self._queue.put(event)

    def mark(self) -> Future[LogPosition]:
        """The position of the metrics log once everything submitted before is in it."""
        marker: Future[LogPosition] = Future()
        self._queue.put(marker)
        return marker

    def flush(self) -> None:
        """Return when everything submitted before has been written, stored and recorded."""
        self.mark().result()

    def close(self, status: str) -> None:
        """Finish what was submitted, then close the recorders."""
        self._queue.put(None)
        self._thread.join()
        for recorder in self._recorders:
            self._guarded(recorder, lambda recorder=recorder: recorder.close(status))

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, Future):
                item.set_result(self._log.position if self._log else LogPosition())
                continue
            if isinstance(item, MediaLogged):
                self._show(item)
            else:
                self._take(item)

    def _take(self, event: MetricsFlushed) -> None:
        self._write(event)
        means = {name: summary.mean for name, summary in event.metrics.items()}
        self._store.add(event.stamp.env_steps, means)
        for recorder in self._recorders:
            self._guarded(recorder, lambda recorder=recorder: recorder.record(means, event.stamp))

    def _show(self, event: MediaLogged) -> None:
        for recorder in self._recorders:
            if isinstance(recorder, ShowsMedia):
                self._guarded(recorder, lambda recorder=recorder: recorder.show(event.name, event.media, event.stamp))
            elif recorder not in self._without_media:
                self._without_media.append(recorder)
                kind = type(event.media).__name__.lower()
                self._report(f"the recorder {type(recorder).__name__} shows numbers only, so no {kind} {event.name!r}")

    def _write(self, event: MetricsFlushed) -> None:
        if self._log is None:
            return
        try:
            self._log.append(metrics_row(event))
            for log in self._deferred:
                log.write_out()
        except RekindleError as error:
            self._report(str(error))

    def _guarded(self, recorder: Recorder, action: Callable[[], None]) -> None:
        try:
            action()
        except (Exception, SystemExit) as error:  # a library that exits would end the thread, and nothing else
            self._report(f"the recorder {type(recorder).__name__} failed: {type(error).__name__}: {error}")
