"""The thread that writes finished metric windows to the log, the store and the recorders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from rekindle.errors import RekindleError
from rekindle.events import MediaLogged, MetricsFlushed, Recorder, ShowsMedia
from rekindle.run.metrics import EventStore, metrics_row
from rekindle.run.worker import Worker
from rekindle.storage.logs import JsonLines, LogPosition, as_json

__all__ = ["EventProcessor"]


class EventProcessor:
    """Takes finished windows through a bounded queue and writes them to the log, the store and the recorders.

    Whatever goes wrong there is told to `report`, and training goes on. Only if `report` itself raises does the
    thread end; then every call here raises `RunError`.
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
        self._worker: Worker[MetricsFlushed | MediaLogged] = Worker("rekindle-events", self._take, capacity=capacity)

    def submit(self, event: MetricsFlushed | MediaLogged) -> None:
        """Hand over a window or media; waits while the queue is full."""
        self._worker.put(event)

    def mark(self) -> Future[LogPosition]:
        """The position of the metrics log once everything submitted before is in it."""
        return self._worker.call(lambda: self._log.position if self._log else LogPosition())

    def flush(self) -> None:
        """Return when everything submitted before has been written, stored and recorded."""
        self.mark().result()

    def close(self, status: str) -> None:
        """Finish what was submitted, then close the recorders."""
        try:
            self._worker.close()
        finally:
            for recorder in self._recorders:
                self._guarded(recorder, lambda recorder=recorder: recorder.close(status))

    # On the thread

    def _take(self, event: MetricsFlushed | MediaLogged) -> None:
        if isinstance(event, MediaLogged):
            self._show(event)
            return
        self._surviving("a row of metrics could not be logged", lambda: self._write(event))
        for log in self._deferred:
            self._surviving(f"{log.path.name} could not be written", log.write_out)
        self._surviving("a window of metrics could not be stored", lambda: self._pass_on(event))

    def _write(self, event: MetricsFlushed) -> None:
        if self._log is None:
            return
        row, rows_before = metrics_row(event), self._log.position.rows
        try:
            self._log.append(row)
        except RekindleError:
            raise  # the log keeps the row in memory
        except Exception as error:
            if self._log.position.rows > rows_before:
                raise
            self._log.append(as_json(row))
            self._report(
                f"the metrics of env step {event.stamp.env_steps} hold what JSON cannot "
                f"({type(error).__name__}: {error}); it is logged as text"
            )

    def _pass_on(self, event: MetricsFlushed) -> None:
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

    def _guarded(self, recorder: Recorder, action: Callable[[], None]) -> None:
        self._surviving(f"the recorder {type(recorder).__name__} failed", action)

    def _surviving(self, problem: str, action: Callable[[], None]) -> None:
        try:
            action()
        except RekindleError as error:
            self._report(str(error))
        except BaseException as error:  # even SystemExit, which a library may raise
            self._report(f"{problem}: {type(error).__name__}: {error}")
