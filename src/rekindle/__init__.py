"""Reinforcement-learning training inside any loop, with resumes that are exact to the bit."""

from __future__ import annotations

import typing

from rekindle.agent import HasPolicy, HasReplay, LearningAgent, Policy, Replay, ReportsEpisodes, State
from rekindle.checkpoint import KeepBest, KeepEvery, KeepLast
from rekindle.errors import RekindleError
from rekindle.events import EventStore, MemoryRecorder, Recorder
from rekindle.experience import ActMode, EpisodeStatus, Experience, Transitions
from rekindle.interrupt import Interrupter
from rekindle.run import RunReader, TrainingRun
from rekindle.session import TrainingSession
from rekindle.stats import EpisodeRecord, EvalReport, StatsTracker
from rekindle.streams import Stream
from rekindle.verification import verify
from rekindle.version import __version__

if typing.TYPE_CHECKING:
    from rekindle.training import Trainer

__all__ = [
    "ActMode",
    "EpisodeRecord",
    "EpisodeStatus",
    "EvalReport",
    "EventStore",
    "Experience",
    "HasPolicy",
    "HasReplay",
    "Interrupter",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "LearningAgent",
    "MemoryRecorder",
    "Policy",
    "Recorder",
    "RekindleError",
    "Replay",
    "ReportsEpisodes",
    "RunReader",
    "State",
    "StatsTracker",
    "Stream",
    "Trainer",
    "TrainingRun",
    "TrainingSession",
    "Transitions",
    "__version__",
    "verify",
]


def __getattr__(name: str) -> typing.Any:
    if name != "Trainer":  # which those who own their loop need not load
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rekindle.training import Trainer

    return Trainer
