"""Build a session, new or resumed; if that fails, nothing is left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rekindle.agent import ChecksLearner, LearningAgent, Stateful, WarmsUp
from rekindle.checkpoint.retention import RetentionPolicy, retention
from rekindle.checks import checked_choice, checked_count
from rekindle.errors import ConfigError, StorageError
from rekindle.events import Event, Recorder, RunRecorder
from rekindle.experience import ActionMapper, ObservationEncoder
from rekindle.interrupt import Interrupter
from rekindle.run.directory import TrainingRun
from rekindle.session.background import BackgroundLearner, with_policy
from rekindle.session.counts import Counts
from rekindle.session.due import Due
from rekindle.session.ending import Ending
from rekindle.session.flow import Flow
from rekindle.session.grading import Grading
from rekindle.session.intake import Intake
from rekindle.session.learner import DirectLearner
from rekindle.session.logbook import Logbook
from rekindle.session.outbox import Outbox
from rekindle.session.parts import Parts
from rekindle.session.restoring import restore
from rekindle.session.saving import Saver
from rekindle.session.schedule import Schedule
from rekindle.session.streams import Streams
from rekindle.session.table import StreamTable
from rekindle.stats import StatsTracker
from rekindle.storage import codec

__all__ = ["Assembled", "assemble"]

_AGENT_MEMBERS = ("act", "observe", "updates_due", "update", "state", "load_state", "env_steps", "updates")


class Assembled(NamedTuple):
    """A session that is ready for calls."""

    parts: Parts
    flow: Flow
    due: Due
    ending: Ending


def assemble(  # noqa: PLR0913 - the options of a session
    agent: LearningAgent,
    run: TrainingRun | None,
    *,
    max_steps: int | None,
    checkpoint_every: int | None,
    keep_checkpoints: int | RetentionPolicy | Iterable[RetentionPolicy],
    metrics_every: int | None,
    stats: StatsTracker | None,
    recorders: Sequence[Recorder | RunRecorder],
    callbacks: Sequence[Callable[[Event], None]],
    learner: str,
    observation_encoder: ObservationEncoder | None,
    action_mapper: ActionMapper | None,
    bad_values: str,
    seed: int | None,
    strict: bool,
    interrupter: Interrupter | None,
) -> Assembled:
    """Check the options, create every part, and restore them if the run is resumed."""
    missing = [name for name in _AGENT_MEMBERS if not hasattr(agent, name)]
    if missing:
        raise ConfigError(f"{type(agent).__name__} is not a LearningAgent: it has no {', '.join(missing)}")
    checked_choice("learner", learner, ("inline", "manual", "background"))
    if isinstance(agent, ChecksLearner):
        agent.check_learner(learner)
    checked_choice("bad_values", bad_values, ("refuse", "drop"))
    checkpoint_every = checked_count("checkpoint_every", checkpoint_every, 1)
    metrics_every = checked_count("metrics_every", metrics_every, 1)
    seed = checked_count("seed", seed, 0)
    policy = retention(keep_checkpoints)
    is_background = learner == "background"
    if is_background:
        with_policy(agent)
    if run is not None and seed not in (None, run.metadata.seed):
        raise ConfigError(f"seed {seed} was given, but {run.path} was made with {run.metadata.seed}")
    run_seed = run.metadata.seed if run is not None else seed or 0
    counts = Counts(env_steps=agent.env_steps, updates=agent.updates)
    outbox = Outbox(callbacks, counts, run)
    should_stop = None if interrupter is None else interrupter.should_stop
    direct = DirectLearner(agent, is_manual=learner == "manual", should_stop=should_stop)
    table = StreamTable()
    intake = Intake(table, agent, observation_encoder, action_mapper)
    with contextlib.ExitStack() as undo:
        saver = None if run is None else Saver(run, policy=policy, announce=outbox.post, report=outbox.warn)
        if saver is not None:
            undo.callback(saver.close)
        parts = Parts(
            agent=agent,
            learner=direct,
            direct=direct,
            streams=Streams(table, intake, drops_bad_values=bad_values == "drop"),
            counts=counts,
            logbook=Logbook(run, counts, outbox, StatsTracker() if stats is None else stats),
            outbox=outbox,
            schedule=Schedule(
                metrics_every=metrics_every, checkpoint_every=checkpoint_every, env_steps=counts.env_steps
            ),
            grading=Grading(run, outbox, is_exact=not is_background),
            interrupter=Interrupter() if interrupter is None else interrupter,
            saver=saver,
            exploration=np.random.default_rng([run_seed, 1]),
        )
        if run is not None and saver is not None:
            codec.encode({"agent": agent.state()})  # refuse now what cannot be saved, not at the first checkpoint
            if run.is_resumed:
                _restore(parts, run, saver, strict=strict)
            _describe(parts, run, max_steps)
        if is_background:
            parts.learner = BackgroundLearner(agent, parts.exploration)
            undo.callback(parts.learner.close)
        parts.logbook.start(recorders, defer=is_background)
        undo.callback(parts.logbook.close, "failed")
        for index, callback in enumerate(callbacks):
            if isinstance(callback, Stateful):
                parts.attached.add(f"callback {index}: {type(callback).__qualname__}", callback)
        if isinstance(agent, WarmsUp) and not parts.interrupter.is_stopped:
            agent.warm_up()
        if run is not None:
            parts.interrupter.watch(run.stop_file)
        undo.pop_all()
    due = Due(parts)
    due.is_unsaved = parts.grading.resumed is None or parts.grading.resumed.checkpoint is None
    flow = Flow(parts, due, seed=run_seed, max_steps=max_steps)
    return Assembled(parts, flow, due, Ending(parts, flow, due, run, is_logging=metrics_every is not None))


def _restore(parts: Parts, run: TrainingRun, saver: Saver, *, strict: bool) -> None:
    not_exact = () if parts.grading.is_exact else ("the background learner is not bit-exact",)
    checkpoint, parts.grading.resumed = restore(
        run, saver.store, parts.agent, parts.load_state, not_exact=not_exact, strict=strict
    )
    if checkpoint is not None:
        parts.counts.updates = int(parts.agent.updates)
        parts.logbook.restore(run, checkpoint.metrics)


def _describe(parts: Parts, run: TrainingRun, max_steps: int | None) -> None:
    try:
        run.describe(type(parts.agent).__name__, max_steps)
    except StorageError as error:
        parts.outbox.warn(str(error))
