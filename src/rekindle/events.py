"""Typed events of a training, and the protocols of those who record them."""

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


@runtime_checkable
class Recorder(Protocol):
    """Somewhere else to send metrics: called on a thread of its own, so it may take its time."""

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
