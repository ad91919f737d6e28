"""What a session measures: metric windows, episode statistics, evaluations, and their logs."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from rekindle.agent import Metrics, State, numbers_of
from rekindle.checks import check_text
from rekindle.errors import ConfigError, InputError, RowsHeld, StorageError
from rekindle.events import Histogram, Media, MediaLogged, MetricsFlushed, Recorder, RunRecorder, Stamp, Video
from rekindle.run.directory import TrainingRun
from rekindle.run.memory import ProcessMemory
from rekindle.run.metrics import EventStore, MetricWindow, restore_store
from rekindle.run.processor import EventProcessor
from rekindle.session.counts import Counts
from rekindle.session.outbox import Outbox
from rekindle.session.table import StreamId
from rekindle.stats import EpisodeRecord, EvalReport, StatsTracker
from rekindle.storage.logs import LogPosition, each_rows

__all__ = ["Logbook", "numbers_to_log"]

_REMEMBERED_EVALUATIONS = 1_000
"""Evaluation episodes that are kept in memory for reports."""


class Logbook:
    """Owns every number about the training that is not a counter; only `start` creates threads."""

    def __init__(self, run: TrainingRun | None, counts: Counts, outbox: Outbox, stats: StatsTracker) -> None:
        self._run, self._counts, self._outbox = run, counts, outbox
        self.stats = stats
        self.store = EventStore()
        self.window = MetricWindow()
        self.latest: dict[str, float] = {}
        """The mean of every metric in the last window that has it."""
        self._evaluations: deque[EpisodeRecord] = deque(maxlen=_REMEMBERED_EVALUATIONS)
        self._processor: EventProcessor | None = None
        self.is_deferred = False
        """Whether another thread writes all logs."""
        self._memory = ProcessMemory()
        self._started_at, self._started_with = time.perf_counter(), counts.env_steps

    def start(self, recorders: Sequence[Recorder | RunRecorder], *, defer: bool) -> None:
        """Start the thread that writes metrics; with `defer` it writes all logs, so that no call waits for them."""
        run, self.is_deferred = self._run, defer
        logs = [run.log(log) for log in ("train_episodes", "eval_episodes", "warnings")] if run and defer else []
        for log in logs:
            log.is_deferred = True
        self._processor = EventProcessor(
            log=None if run is None else run.log("metrics"),
            deferred=logs,
            store=self.store,
            recorders=[self._opened(recorder) for recorder in recorders],
            report=self._outbox.warn,
        )
        self._started_at, self._started_with = time.perf_counter(), self._counts.env_steps

    def _opened(self, recorder: Recorder | RunRecorder) -> Recorder:
        if not isinstance(recorder, RunRecorder):
            return recorder
        if self._run is None:
            raise ConfigError(f"{type(recorder).__name__} records a run: pass run=TrainingRun.create(...)")
        return recorder.open(self._run.path, self._outbox.warn)

    @property
    def _events(self) -> EventProcessor:
        assert self._processor is not None, "start() comes first"  # noqa: S101
        return self._processor

    @property
    def steps_per_sec(self) -> float:
        """Env steps per second since `start`."""
        elapsed = time.perf_counter() - self._started_at
        return (self._counts.env_steps - self._started_with) / elapsed if elapsed > 0 else 0.0

    # Adding

    def add(self, name: str, numbers: Sequence[float]) -> None:
        """Add numbers from the host to the window."""
        self.window.add(_prefixed(name), np.array(numbers))

    def add_update(self, metrics: Metrics) -> None:
        """Add the metrics of updates; their values may stay on a device until they are read."""
        self.window.add_all("agent/", metrics)

    def add_episode(self, record: EpisodeRecord, stream: StreamId, stamp: Stamp) -> None:
        """Add a training episode, and log it."""
        self.stats.update(record)
        self._add_record("episode/", record)
        if self._run is not None:
            self._write(self._run.log_train_episode, record, {**msgspec.structs.asdict(stamp), "stream": stream})

    @contextlib.contextmanager
    def rows_together(self) -> Generator[None]:
        """Inside `with`, the rows of training episodes wait in memory, so that one write takes all of them."""
        log = None if self._run is None else self._run.log("train_episodes")
        if log is None:
            yield
            return
        log.is_deferred = True
        try:
            yield
        finally:
            log.is_deferred = False
            self._write(log.write_out)

    def add_evaluation(self, record: EpisodeRecord, *, final: bool) -> None:
        """Add an evaluation episode, and log it."""
        self._evaluations.append(record)
        self._add_record("eval/", record)
        if self._run is not None:
            tag = {"final": True} if final else {}
            stamp = msgspec.structs.asdict(self._counts.stamp())
            self._write(self._run.log_eval_episode, record, {**stamp, **tag})

    def _add_record(self, prefix: str, record: EpisodeRecord) -> None:
        self.window.add_all(prefix, {"return": record.total_reward, "length": record.length})
        if record.extras:
            self.window.add_all(prefix, record.extras)

    def _write(self, write: Callable[..., None], *what: Any) -> None:
        """Write a row; if the file system refuses it, report that once and keep the row in memory."""
        try:
            write(*what)
        except RowsHeld as error:
            if not error.is_repeated:
                self._outbox.warn(str(error))
        except StorageError as error:
            self._outbox.warn(str(error))

    def show(self, name: str, media: Media) -> None:
        """Send media to the recorders."""
        name = _prefixed(name)
        if isinstance(media, Histogram):
            media = Histogram(np.array(media.values, np.float64).ravel())
            if not (media.values.size and np.isfinite(media.values).all()):
                raise InputError(f"show({name!r}): a histogram needs values, all of them finite")
        elif isinstance(media, Video):
            media = Video(np.array(media.frames), media.fps)
            if media.frames.dtype != np.uint8 or media.frames.ndim != 4 or media.frames.shape[-1] != 3:
                raise InputError(
                    f"show({name!r}): a video is frames, height, width and 3 colours of uint8, "
                    f"not {media.frames.shape} of {media.frames.dtype}"
                )
        self._events.submit(MediaLogged(self._counts.stamp(), name, media))

    # Flushing

    def non_finite_loss(self) -> str | None:
        """The name of an agent's loss that is not finite in this window; reads values that are still on a device."""
        self.window.read()
        return self.window.non_finite_loss()

    def flush_window(self, timings: Mapping[str, float]) -> MetricsFlushed:
        """End the window, add timings of the session, and pass it to logs, store and recorders."""
        own = {"steps_per_sec": self.steps_per_sec, "cpu_seconds": time.process_time(), **timings}
        if (resident := self._memory.resident()) is not None:
            own["memory_mb"] = resident / 1e6
        summaries = self.window.flush({f"time/{name}": value for name, value in own.items()})
        self.latest.update({name: summary.mean for name, summary in summaries.items()})
        event = MetricsFlushed(self._counts.stamp(), summaries)
        self._events.submit(event)
        return event

    def flush(self) -> None:
        """Wait until everything submitted has reached logs, store and recorders."""
        self._events.flush()

    def mark(self) -> Callable[[], LogPosition]:
        """Return a function that waits for the position of the metrics log after everything submitted so far."""
        return self._events.mark().result

    def means(self) -> dict[str, float]:
        """The newest mean of every metric, including the current window."""
        return {**self.latest, **self.window.means()}

    def report(self, n_episodes: int) -> EvalReport:
        """A report over the last evaluation episodes."""
        return EvalReport.of(list(self._evaluations)[-n_episodes:], self._counts.env_steps)

    def close(self, status: str) -> None:
        """Finish what was submitted, then close the recorders."""
        self._memory.close()
        if self._processor is not None:
            self._processor.close(status)

    # State

    def state(self) -> State:
        """Statistics and the incomplete window."""
        return {"stats": self.stats.state(), "window": self.window.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self.stats.load_state(state["stats"])
        self.window.load_state(state["window"])

    def restore(self, run: TrainingRun, metrics: Mapping[str, float]) -> None:
        """Load recent metrics and evaluations from the logs of a resumed run."""
        self.latest = dict(metrics)
        rows = run.reader.last_rows("eval_episodes", _REMEMBERED_EVALUATIONS)
        self._evaluations.extend(map(EpisodeRecord.from_row, rows))
        for windows in each_rows(run.path / "metrics.jsonl"):
            restore_store(self.store, windows)


def numbers_to_log(name: str, value: Any) -> list[float]:
    """A number or an array of numbers from the host, as a list; raises `InputError` for anything else."""
    try:
        return numbers_of("None" if value is None else value)  # numpy would convert None to NaN
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"the metric {_prefixed(name)!r} is not a number: {value!r:.80}") from None


def _prefixed(name: str) -> str:
    """The full name of a metric of the host: in the group `train` unless the name has a prefix."""
    if type(name) is not str:
        raise InputError(f"the name of a metric must be a str, not {name!r:.80}")
    check_text(name, "the name of a metric")
    return name if "/" in name else f"train/{name}"
