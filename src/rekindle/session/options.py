"""The options of a session, with their types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypedDict

from rekindle.checkpoint.retention import RetentionPolicy
from rekindle.events import Event, Recorder, RunRecorder
from rekindle.experience import ActionMapper, ObservationEncoder
from rekindle.interrupt import Interrupter
from rekindle.stats import StatsTracker

__all__ = ["SessionOptions"]


class SessionOptions(TypedDict, total=False):
    """The options of `TrainingSession.open`; `TrainingSession` explains each of them."""

    max_steps: int | None
    checkpoint_every: int | None
    keep_checkpoints: int | RetentionPolicy | Iterable[RetentionPolicy]
    metrics_every: int | None
    stats: StatsTracker | None
    recorders: Sequence[Recorder | RunRecorder]
    callbacks: Sequence[Callable[[Event], None]]
    learner: Literal["inline", "manual", "background"]
    observation_encoder: ObservationEncoder | None
    action_mapper: ActionMapper | None
    bad_values: Literal["refuse", "drop"]
    strict: bool
    signals: bool
    interrupter: Interrupter | None
    journal: bool
    journal_sync: float
    journal_limit: int | None
    journal_keep: Literal["needed", "all"]
    keep_data: bool
