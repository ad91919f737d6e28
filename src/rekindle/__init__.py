"""Reinforcement-learning training inside any loop, with resumes that are exact to the bit."""

# Must come before all other imports (`from __future__` is one), so that none finds a module in the working directory.
from rekindle import startup

startup.drop_working_directory()

# ruff: noqa: E402
import importlib
import typing

from rekindle.version import __version__

if typing.TYPE_CHECKING:
    from rekindle.agent import HasPolicy, HasReplay, LearningAgent, Policy, Replay, ReportsEpisodes, State
    from rekindle.checkpoint import KeepBest, KeepEvery, KeepLast
    from rekindle.errors import RekindleError
    from rekindle.events import (
        CheckpointSaved,
        EpisodeEnded,
        Evaluated,
        Event,
        MemoryRecorder,
        MetricsFlushed,
        Recorder,
        TrainingEnded,
        TrainingStarted,
        Updated,
        Warned,
    )
    from rekindle.experience import ActMode, EpisodeStatus, Experience, Transitions
    from rekindle.interrupt import Interrupter
    from rekindle.run import RunReader, TrainingRun
    from rekindle.run.metrics import EventStore
    from rekindle.session import Stream, TrainingSession
    from rekindle.stats import EpisodeRecord, EvalReport, StatsTracker
    from rekindle.training import Trainer, diagnose, fork
    from rekindle.verification import verify

__all__ = [
    "ActMode",
    "CheckpointSaved",
    "EpisodeEnded",
    "EpisodeRecord",
    "EpisodeStatus",
    "EvalReport",
    "Evaluated",
    "Event",
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
    "MetricsFlushed",
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
    "TrainingEnded",
    "TrainingRun",
    "TrainingSession",
    "TrainingStarted",
    "Transitions",
    "Updated",
    "Warned",
    "__version__",
    "diagnose",
    "fork",
    "verify",
]

# Public names are loaded when they are first used: a program that only runs an exported policy needs neither the
# session nor the files of a run (and with them `fcntl`, which Windows does not have).
_MODULES = {
    "agent": ("HasPolicy", "HasReplay", "LearningAgent", "Policy", "Replay", "ReportsEpisodes", "State"),
    "checkpoint": ("KeepBest", "KeepEvery", "KeepLast"),
    "errors": ("RekindleError",),
    "events": (
        "CheckpointSaved",
        "EpisodeEnded",
        "Evaluated",
        "Event",
        "MemoryRecorder",
        "MetricsFlushed",
        "Recorder",
        "TrainingEnded",
        "TrainingStarted",
        "Updated",
        "Warned",
    ),
    "experience": ("ActMode", "EpisodeStatus", "Experience", "Transitions"),
    "interrupt": ("Interrupter",),
    "run": ("RunReader", "TrainingRun"),
    "run.metrics": ("EventStore",),
    "session": ("Stream", "TrainingSession"),
    "stats": ("EpisodeRecord", "EvalReport", "StatsTracker"),
    "training": ("Trainer", "diagnose", "fork"),
    "verification": ("verify",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> typing.Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rekindle.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
