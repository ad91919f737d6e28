"""Reinforcement-learning training inside any loop, with resumes that are exact to the bit."""

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
    "TrainingRun",
    "TrainingSession",
    "Transitions",
    "__version__",
    "verify",
]
