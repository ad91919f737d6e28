"""What happens in a training, as typed events: to callbacks at once, to logs and recorders on a thread."""

from __future__ import annotations

import functools
import math
import operator
import queue
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import State, numbers_of
from rekindle.errors import InputError, RekindleError, StateError
from rekindle.files import JsonLines, LogPosition
from rekindle.stats import EpisodeRecord

__all__ = [
    "CheckpointSaved",
    "EpisodeEnded",
    "Evaluated",
    "Event",
    "EventProcessor",
    "EventStore",
    "Histogram",
    "Media",
    "MediaLogged",
    "MemoryRecorder",
    "MetricWindow",
    "MetricsFlushed",
    "Recorder",
    "RunRecorder",
    "ShowsMedia",
    "Stamp",
    "Summary",
    "Text",
    "TrainingEnded",
    "TrainingStarted",
    "Updated",
    "Video",
    "Warned",
]


class Stamp(msgspec.Struct, frozen=True):
    """When something happened, in every unit there is."""

    env_steps: int
    updates: int
    episodes: int
    wall_time: float


class Summary(msgspec.Struct, frozen=True):
    """A metric over one window: always the same aggregates, however many values there were."""

    mean: float
    min: float
    max: float
    last: float
    count: int


class Event(msgspec.Struct, frozen=True):
    """Something that happened, stamped with all counters."""

    stamp: Stamp


class TrainingStarted(Event, frozen=True):
    """A session is ready; after a resume `resumed_from` is the step of the checkpoint."""

    resumed_from: int | None = None
    path: str | None = None
    """Of the run, if there is one."""


class Updated(Event, frozen=True):
    """The agent made updates; for callbacks only, as there may be one a step."""

    count: int
    metrics: Mapping[str, Any]


class EpisodeEnded(Event, frozen=True):
    """A training episode ended."""

    stream: int | str
    record: EpisodeRecord


class Evaluated(Event, frozen=True):
    """An evaluation gave a score; `is_best` if it beat every earlier one."""

    score: float
    is_best: bool


class MetricsFlushed(Event, frozen=True):
    """A window of metrics is complete."""

    metrics: dict[str, Summary]


class Histogram(msgspec.Struct, frozen=True):
    """How values are spread; they may have any shape."""

    values: NDArray[np.float64]


class Text(msgspec.Struct, frozen=True):
    """Something to read."""

    text: str


class Video(msgspec.Struct, frozen=True):
    """Frames, height, width and three colours of 0 to 255."""

    frames: NDArray[np.uint8]
    fps: int = 30


Media: TypeAlias = Histogram | Text | Video


class MediaLogged(Event, frozen=True):
    """The host has something to show that is no number; only recorders keep it."""

    name: str
    media: Media


class CheckpointSaved(Event, frozen=True):
    """A checkpoint is durable; the stamp is that of the moment it was taken."""

    path: str


class Warned(Event, frozen=True):
    """Something went wrong that training survives."""

    message: str


class TrainingEnded(Event, frozen=True):
    """The session closed."""

    status: str
    reason: str | None


_MOST_UNREAD = 10_000
"""Values that a window keeps at most before it reads them."""


class MetricWindow:
    """Gathers values by name until the window ends at a step count.

    Values (numbers, arrays, values still on a device) are kept as they are until somebody needs the result.
    """

    def __init__(self) -> None:
        self._totals: dict[str, list[float]] = {}
        self._unread: list[tuple[str, dict[str, Any]]] = []
        """Prefixes, and values under names that they belong before."""

    def add(self, name: str, value: Any) -> None:
        """Add a number, or an array of numbers, under a name."""
        self.add_all("", {name: value})

    def add_all(self, prefix: str, values: Mapping[str, Any]) -> None:
        """Add such values under their names, each with the prefix."""
        self._unread.append((prefix, dict(values)))
        if len(self._unread) > _MOST_UNREAD:
            self.read()

    def read(self) -> None:
        """Turn every value still unread into numbers."""
        unread, self._unread = self._unread, []
        found: defaultdict[str, list[float]] = defaultdict(list)
        for prefix, values in unread:
            for name, value in values.items():
                if type(value) is float or type(value) is int:
                    found[prefix + name].append(float(value))
                    continue
                try:
                    found[prefix + name].extend(numbers_of(value))
                except (TypeError, ValueError):
                    del values[name]
                    self._unread = unread  # the others are still to be counted
                    raise InputError(f"the metric {prefix + name!r} is not a number: {value!r:.80}") from None
        for name, numbers in found.items():
            if numbers:
                self._count_in(name, numbers)

    def _count_in(self, name: str, numbers: list[float]) -> None:
        total = self._totals.setdefault(name, [0, 0.0, math.inf, -math.inf, 0.0])
        total[0] += len(numbers)
        # One after the other, so that it does not matter when they are read; sum() does not promise that.
        total[1] = functools.reduce(operator.add, numbers, total[1])
        # Not min() and max() alone: a NaN must show, wherever it stands.
        has_nan = math.isnan(total[1]) and any(map(math.isnan, (*numbers, total[2])))
        total[2] = math.nan if has_nan else min(total[2], *numbers)
        total[3] = math.nan if has_nan else max(total[3], *numbers)
        total[4] = numbers[-1]

    def non_finite_loss(self) -> str | None:
        """The name of a loss in this window that is not finite, if there is one."""
        for name, total in self._totals.items():
            if "loss" in name and not math.isfinite(total[1]):
                return name
        return None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added since the window began."""
        return not self._totals and not self._unread

    def means(self) -> dict[str, float]:
        """The mean of every metric so far."""
        self.read()
        return {name: total[1] / total[0] for name, total in self._totals.items()}

    def flush(self) -> dict[str, Summary]:
        """The window's result; a new window begins."""
        self.read()
        totals, self._totals = self._totals, {}
        return {
            name: Summary(mean=total / count, min=least, max=most, last=last, count=int(count))
            for name, (count, total, least, most, last) in sorted(totals.items())
        }

    def state(self) -> State:
        """The half-filled window."""
        self.read()
        return {name: np.array(total, np.float64) for name, total in self._totals.items()}

    def load_state(self, state: State) -> None:
        """Go on with a half-filled window."""
        if any(np.shape(total) != (5,) for total in state.values()):
            raise StateError("not the state of a metric window: each entry has 5 numbers")
        self._totals = {name: np.asarray(total, np.float64).tolist() for name, total in state.items()}
        self._unread = []


class EventStore:
    """Looks up any metric: its latest value, its best, its recent history. Safe to ask from any thread."""

    def __init__(self, *, remembered: int = 10_000) -> None:
        self._remembered = remembered
        self._points: dict[str, deque[tuple[int, float]]] = {}
        self._least: dict[str, tuple[int, float]] = {}
        self._most: dict[str, tuple[int, float]] = {}
        self._guard = threading.Lock()

    def add(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Remember the values of one window."""
        with self._guard:
            for name, value in values.items():
                if math.isnan(value):
                    continue
                point = (env_steps, value)
                self._points.setdefault(name, deque(maxlen=self._remembered)).append(point)
                if name not in self._least or value < self._least[name][1]:
                    self._least[name] = point
                if name not in self._most or value > self._most[name][1]:
                    self._most[name] = point

    @property
    def names(self) -> list[str]:
        """Every metric seen so far."""
        with self._guard:
            return sorted(self._points)

    def latest(self, name: str) -> float | None:
        """The newest value; None if there is none."""
        with self._guard:
            points = self._points.get(name)
            return points[-1][1] if points else None

    def best(self, name: str, *, mode: Literal["max", "min"] = "max") -> tuple[int, float] | None:
        """The step and value of the best window ever seen; the first one if several are equal."""
        with self._guard:
            return (self._most if mode == "max" else self._least).get(name)

    def history(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and values, oldest first; the last ten thousand unless told otherwise."""
        with self._guard:
            points = list(self._points.get(name, ()))
        steps = np.array([step for step, _ in points], np.int64)
        return steps, np.array([value for _, value in points], np.float64)


@runtime_checkable
class Recorder(Protocol):
    """Somewhere else to send metrics: called on the processor's thread, so it may take its time."""

    def record(self, values: Mapping[str, float], stamp: Stamp) -> None:
        """Take the values of one window."""
        ...

    def close(self, status: str) -> None:
        """The run ended with this status (finished, stopped, failed)."""
        ...


@runtime_checkable
class RunRecorder(Protocol):
    """A recorder that keeps its place in the run's directory: a session opens it for each run."""

    def open(self, path: Path, report: Callable[[str], None]) -> Recorder:
        """What records the run at a path; what goes wrong later is told to `report`, on any thread."""
        ...


@runtime_checkable
class ShowsMedia(Protocol):
    """A recorder that can show more than numbers."""

    def show(self, name: str, media: Media, stamp: Stamp) -> None:
        """Take a histogram, a text or a video."""
        ...


class MemoryRecorder:
    """Keeps everything in a list; for tests and notebooks."""

    def __init__(self) -> None:
        self.rows: list[tuple[Stamp, dict[str, float]]] = []
        self.status: str | None = None

    def record(self, values: Mapping[str, float], stamp: Stamp) -> None:
        """Take the values of one window."""
        self.rows.append((stamp, dict(values)))

    def close(self, status: str) -> None:
        """The run ended with this status."""
        self.status = status


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


def metrics_row(event: MetricsFlushed) -> dict[str, Any]:
    """One line of `metrics.jsonl`."""
    return {**msgspec.structs.asdict(event.stamp), "metrics": event.metrics}


def restore_store(store: EventStore, rows: Sequence[Mapping[str, Any]]) -> None:
    """Fill a store from the rows of `metrics.jsonl`."""
    for row in rows:
        metrics = cast("dict[str, dict[str, float | None]]", row["metrics"])
        means = {name: mean for name, summary in metrics.items() if (mean := summary["mean"]) is not None}
        store.add(row["env_steps"], means)
