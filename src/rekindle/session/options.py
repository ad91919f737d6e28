"""The options of a session: their types, defaults and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypedDict

import msgspec

from rekindle.agent import ChecksLearner, LearningAgent, is_offline
from rekindle.checkpoint.retention import RetentionPolicy, retention
from rekindle.checks import checked_choice, checked_count, checked_flag
from rekindle.errors import ConfigError
from rekindle.events import Event, Recorder, RunRecorder
from rekindle.experience import ActionMapper, ObservationEncoder
from rekindle.interrupt import Interrupter
from rekindle.run.directory import TrainingRun
from rekindle.session.background import with_policy
from rekindle.session.journal_options import JournalOptions
from rekindle.stats import StatsTracker

__all__ = ["Options", "SessionOptions"]

_AGENT_MEMBERS = ("act", "observe", "updates_due", "update", "state", "load_state", "env_steps", "updates")


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


class Options(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The options that `TrainingSession` was created with, in one object."""

    max_steps: int | None
    checkpoint_every: int | None
    keep_checkpoints: int | RetentionPolicy | Iterable[RetentionPolicy]
    metrics_every: int | None
    learner: str
    bad_values: str
    journal: JournalOptions
    keep_data: bool
    callbacks: Sequence[Callable[[Event], None]] = ()
    recorders: Sequence[Recorder | RunRecorder] = ()
    stats: StatsTracker | None = None
    observation_encoder: ObservationEncoder | None = None
    action_mapper: ActionMapper | None = None
    seed: int | None = None
    strict: bool = False
    interrupter: Interrupter | None = None

    @property
    def is_background(self) -> bool:
        """Whether the learner has its own thread."""
        return self.learner == "background"

    def checked(self, agent: LearningAgent, run: TrainingRun | None) -> Options:
        """The options as plain values; raises `ConfigError` for options that cannot be right."""
        checked_choice("learner", self.learner, ("inline", "manual", "background"))
        checked_choice("bad_values", self.bad_values, ("refuse", "drop"))
        checked = msgspec.structs.replace(
            self,
            max_steps=checked_count("max_steps", self.max_steps, 0),
            checkpoint_every=checked_count("checkpoint_every", self.checkpoint_every, 1),
            keep_checkpoints=retention(self.keep_checkpoints),
            metrics_every=checked_count("metrics_every", self.metrics_every, 1),
            journal=self.journal.checked(run),
            keep_data=checked_flag("keep_data", self.keep_data),
            seed=checked_count("seed", self.seed, 0),
            strict=checked_flag("strict", self.strict),
        )
        checked._check_agent(agent)
        checked._check_run(run)
        return checked

    def _check_agent(self, agent: LearningAgent) -> None:
        missing = [name for name in _AGENT_MEMBERS if not hasattr(agent, name)]
        if missing:
            raise ConfigError(f"{type(agent).__name__} is not a LearningAgent: it has no {', '.join(missing)}")
        if isinstance(agent, ChecksLearner):
            agent.check_learner(self.learner)
        if self.is_background:
            with_policy(agent)
        if is_offline(agent) and (self.learner != "inline" or self.journal.is_on or self.keep_data):
            raise ConfigError(
                "the agent learns from data alone: use learner='inline', and neither journal nor keep_data"
            )

    def _check_run(self, run: TrainingRun | None) -> None:
        if run is None and self.keep_data:
            raise ConfigError("keep_data needs a run: TrainingSession(agent, run=TrainingRun.create(...))")
        if run is not None and self.seed not in (None, run.metadata.seed):
            raise ConfigError(f"seed {self.seed} was given, but {run.path} was made with {run.metadata.seed}")
