"""Typed events of a training, and the protocols of recorders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.stats import EpisodeRecord

__all__ = [
    "CheckpointSaved",
    "EpisodeEnded",
    "Evaluated",
    "Event",
    "Histogram",
    "Media",
    "MediaLogged",
    "MemoryRecorder",
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
    """When something happened: all counters and the wall time."""

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
    """Something that happened, with a stamp of all counters."""

    stamp: Stamp


class TrainingStarted(Event, frozen=True):
    """A session is ready; after a resume `resumed_from` is the step of the checkpoint."""

    resumed_from: int | None = None
    path: str | None = None
    """The path of the run, if there is one."""


class Updated(Event, frozen=True):
    """The agent made updates; only for callbacks, because there may be one at each step."""

    count: int
    metrics: Mapping[str, Any]


class EpisodeEnded(Event, frozen=True):
    """A training episode ended."""

    stream: int | str
    record: EpisodeRecord


class Evaluated(Event, frozen=True):
    """An evaluation has a score; `is_best` if it beats every earlier one."""

    score: float
    is_best: bool


class MetricsFlushed(Event, frozen=True):
    """A metric window is complete."""

    metrics: dict[str, Summary]


class Histogram(msgspec.Struct, frozen=True):
    """The distribution of values of any shape."""

    values: NDArray[np.float64]


class Text(msgspec.Struct, frozen=True):
    """A text."""

    text: str


class Video(msgspec.Struct, frozen=True):
    """Frames, height, width and three colours from 0 to 255."""

    frames: NDArray[np.uint8]
    fps: int = 30


Media: TypeAlias = Histogram | Text | Video


class MediaLogged(Event, frozen=True):
    """The host logged media; only recorders keep it."""

    name: str
    media: Media


class CheckpointSaved(Event, frozen=True):
    """A checkpoint is durable; the stamp is from the moment it was taken."""

    path: str


class Warned(Event, frozen=True):
    """A problem that did not stop the training."""

    message: str


class TrainingEnded(Event, frozen=True):
    """The session closed."""

    status: str
    reason: str | None


@runtime_checkable
class Recorder(Protocol):
    """An additional destination for metrics; called on its own thread, so it may be slow."""

    def record(self, values: Mapping[str, float], stamp: Stamp) -> None:
        """Record the values of one window."""
        ...

    def close(self, status: str) -> None:
        """End the record of a run with its status (finished, stopped, failed)."""
        ...


@runtime_checkable
class RunRecorder(Protocol):
    """A recorder that stores its progress in the run directory: a session opens it for each run."""

    def open(self, path: Path, report: Callable[[str], None]) -> Recorder:
        """Return the recorder of the run at a path; later problems are passed to `report`, on any thread."""
        ...


@runtime_checkable
class ShowsMedia(Protocol):
    """A recorder that supports media."""

    def show(self, name: str, media: Media, stamp: Stamp) -> None:
        """Record a histogram, a text or a video."""
        ...


class MemoryRecorder:
    """Keeps everything in a list; for tests and notebooks."""

    def __init__(self) -> None:
        self.rows: list[tuple[Stamp, dict[str, float]]] = []
        self.status: str | None = None

    def record(self, values: Mapping[str, float], stamp: Stamp) -> None:
        """Record the values of one window."""
        self.rows.append((stamp, dict(values)))

    def close(self, status: str) -> None:
        """Record the status of the run."""
        self.status = status
