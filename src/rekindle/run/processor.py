"""The thread that writes finished metric windows to the log and the store, and passes them to the recorders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from rekindle.errors import RekindleError, RowsHeld
from rekindle.events import MediaLogged, MetricsFlushed, Recorder
from rekindle.owner import Owner
from rekindle.run.metrics import EventStore, metrics_row
from rekindle.run.recording import RecorderThread, Window
from rekindle.run.worker import Worker
from rekindle.storage import documents
from rekindle.storage.logs import JsonLines, LogPosition

__all__ = ["EventProcessor"]

_NAP = 0.05
"""Seconds between two looks at the queue, if the logs are deferred: to wake the thread would take time of a frame."""


class EventProcessor:
    """Writes finished windows, taken from a bounded queue, to the log and the store, and passes them to the recorders.

    Each recorder has its own thread, so that neither the log nor another recorder waits for it.

    Problems are passed to `report`, and training continues. Only if `report` itself raises, the thread ends; then every
    call here raises `RunError`.
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
        patience: float = 120.0,
    ) -> None:
        """`flush` and `close` stop waiting for a recorder that spends more than `patience` seconds in one call."""
        self._owner = Owner()
        self._log = log
        self._deferred = deferred
        self._store = store
        directory = None if log is None else log.path.parent
        self._recorders = [
            RecorderThread(recorder, report=report, directory=directory, patience=patience) for recorder in recorders
        ]
        self._report = report
        self._worker: Worker[MetricsFlushed | MediaLogged] = Worker(
            "rekindle-events", self._take, capacity=capacity, nap=_NAP if deferred else None
        )

    def submit(self, event: MetricsFlushed | MediaLogged) -> None:
        """Queue a window or media; waits while the queue is full."""
        self._worker.put(event)

    def mark(self) -> Future[LogPosition]:
        """The position of the metrics log after everything submitted so far."""
        return self._worker.call(lambda: self._log.position if self._log else LogPosition())

    def flush(self) -> None:
        """Wait until everything submitted so far has been written, stored and recorded."""
        self.mark().result()
        for recorder in self._recorders:
            recorder.flush()

    def close(self, status: str) -> None:
        """Finish what was submitted, then close the recorders, and wait for those that are behind.

        Does nothing in a forked child, which has no threads and does not own the recorders.
        """
        if not self._owner.is_here:
            return
        with contextlib.ExitStack() as stack:
            # In reverse order: all are asked to close before waiting for any of them.
            for recorder in self._recorders:
                stack.callback(recorder.close)
            for recorder in self._recorders:
                stack.callback(recorder.ask_to_close, status)
            self._worker.close()

    # On the thread

    def _take(self, event: MetricsFlushed | MediaLogged) -> None:
        if isinstance(event, MetricsFlushed):
            self._surviving("a row of metrics could not be logged", lambda: self._write(event))
            for log in self._deferred:
                self._surviving(f"{log.path.name} could not be written", log.write_out)
            window = Window(event.stamp, {name: summary.mean for name, summary in event.metrics.items()})
            self._surviving(
                "a window of metrics could not be stored", lambda: self._store.add(event.stamp.env_steps, window.means)
            )
        else:
            window = event
        for recorder in self._recorders:
            self._surviving("a recorder could not be given a window", lambda recorder=recorder: recorder.put(window))

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
            self._log.append(documents.plain(row))
            self._report(
                f"the metrics of env step {event.stamp.env_steps} cannot be written as JSON "
                f"({type(error).__name__}: {error}); they are logged as text"
            )

    def _surviving(self, problem: str, action: Callable[[], None]) -> None:
        try:
            action()
        except RekindleError as error:
            if not isinstance(error, RowsHeld) or not error.is_repeated:
                self._report(str(error))
        except BaseException as error:  # even SystemExit, which a library may raise
            self._report(f"{problem}: {type(error).__name__}: {error}")
