"""Build a session, new or resumed; if that fails, nothing is left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rekindle.agent import ChecksLearner, LearningAgent, Stateful, WarmsUp, is_offline, session_steps
from rekindle.checkpoint.retention import RetentionPolicy, retention
from rekindle.checks import checked_choice, checked_count, checked_flag
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
from rekindle.session.inputs import InputLog, StopPolls
from rekindle.session.intake import Intake
from rekindle.session.journal_options import About, JournalOptions
from rekindle.session.journalling import Journalling, UnusedJournal
from rekindle.session.keeping import KeptData, prepare_data
from rekindle.session.learner import DirectLearner, refuse_transitions
from rekindle.session.logbook import Logbook
from rekindle.session.outbox import Outbox
from rekindle.session.parts import Parts
from rekindle.session.replayed_learner import ReplayedLearner
from rekindle.session.reports import Reports
from rekindle.session.restoring import restore
from rekindle.session.saving import Saver
from rekindle.session.schedule import Schedule
from rekindle.session.streams import Streams
from rekindle.session.table import StreamTable
from rekindle.signal_stack import use_signal_stack
from rekindle.stages import stage
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
    reports: Reports
    replay: Callable[[], None] | None
    """Replays the calls of an input journal; to be called before the first call of the host."""
    polls: StopPolls | None


def assemble(  # noqa: PLR0913, PLR0915 - the options and parts of a session
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
    journal: JournalOptions,
    keep_data: bool,
) -> Assembled:
    """Check the options, create every part, and restore them if the run is resumed."""
    journal = journal.checked(run)
    strict, keep_data = checked_flag("strict", strict), checked_flag("keep_data", keep_data)
    _check_agent(agent, learner)
    if is_offline(agent) and (learner != "inline" or journal.is_on or keep_data):
        raise ConfigError("the agent learns from data alone: use learner='inline', and neither journal nor keep_data")
    checked_choice("bad_values", bad_values, ("refuse", "drop"))
    checkpoint_every = checked_count("checkpoint_every", checkpoint_every, 1)
    metrics_every = checked_count("metrics_every", metrics_every, 1)
    seed = checked_count("seed", seed, 0)
    policy = retention(keep_checkpoints)
    is_background = learner == "background"
    if run is not None and seed not in (None, run.metadata.seed):
        raise ConfigError(f"seed {seed} was given, but {run.path} was made with {run.metadata.seed}")
    run_seed = run.metadata.seed if run is not None else seed or 0
    use_signal_stack()  # whatever library the agent computes with
    counts = Counts(env_steps=session_steps(agent), updates=agent.updates)
    outbox = Outbox(callbacks, counts, run)
    should_stop = None if interrupter is None else interrupter.should_stop
    polls = None if should_stop is None or not journal.is_on else StopPolls(should_stop)
    direct = DirectLearner(agent, is_manual=learner == "manual", should_stop=polls or should_stop)
    if is_offline(agent):
        direct.observe = refuse_transitions
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
            grading=Grading(run, outbox, is_exact=journal.is_on or not is_background),
            interrupter=Interrupter() if interrupter is None else interrupter,
            saver=saver,
            kept=_kept(run) if keep_data else None,
            exploration=np.random.default_rng([run_seed, 1]),
        )
        if journal.is_on:
            ask = parts.schedule.ask_checkpoint
            parts.inputs = InputLog(
                table, outbox, polls, is_background=is_background, limit=journal.limit, ask_checkpoint=ask
            )
        if run is not None and saver is not None:
            codec.encode({"agent": agent.state()})  # refuse now what cannot be saved, not at the first checkpoint
            if run.is_resumed:
                _restore(parts, run, saver, strict=strict, has_journal=journal.is_on)
            prepare_data(run, agent, parts.kept)
            _describe(parts, run, max_steps)
        is_replaying = journal.is_on and run is not None and (run.is_resumed or journal.is_elsewhere)
        if is_background:
            parts.learner = _learner(parts, is_replaying=is_replaying)
            undo.callback(parts.learner.close)
        journalling = None
        if run is not None and parts.inputs is not None:
            parts.inputs.learner = parts.learner
        if run is not None and parts.inputs is not None and not journal.is_elsewhere:
            about = About.of(agent, learner, bad_values, metrics_every, is_first=not is_replaying)
            journalling = Journalling(parts, run, parts.inputs, about, journal)
            if not is_replaying:
                journalling.open(0)
                undo.callback(parts.inputs.close)
        parts.logbook.start(recorders, defer=is_background)
        undo.callback(parts.logbook.close, "failed")
        for index, callback in enumerate(callbacks):
            if isinstance(callback, Stateful):
                parts.attached.add(f"callback {index}: {type(callback).__qualname__}", callback)
        if isinstance(agent, WarmsUp) and not parts.interrupter.is_stopped:
            stage(f"compiling {type(agent).__name__}")
            agent.warm_up()
        if run is not None:
            parts.interrupter.watch(run.stop_file)
        undo.pop_all()
    due = Due(parts)
    due.is_unsaved = parts.grading.resumed is None or parts.grading.resumed.checkpoint is None
    flow, reports = Flow(parts, due, seed=run_seed, max_steps=max_steps), Reports(parts, due)
    ending = Ending(parts, flow, due, run, is_logging=metrics_every is not None)
    replay = journalling.replay(flow, reports, polls) if journalling is not None and is_replaying else None
    return Assembled(parts, flow, due, ending, reports, replay, polls)


def _kept(run: TrainingRun | None) -> KeptData:
    if run is None:
        raise ConfigError("keep_data needs a run: TrainingSession(agent, run=TrainingRun.create(...))")
    return KeptData()


def _check_agent(agent: LearningAgent, learner: str) -> None:
    missing = [name for name in _AGENT_MEMBERS if not hasattr(agent, name)]
    if missing:
        raise ConfigError(f"{type(agent).__name__} is not a LearningAgent: it has no {', '.join(missing)}")
    checked_choice("learner", learner, ("inline", "manual", "background"))
    if isinstance(agent, ChecksLearner):
        agent.check_learner(learner)
    if learner == "background":
        with_policy(agent)


def _learner(parts: Parts, *, is_replaying: bool) -> BackgroundLearner | ReplayedLearner:
    if not is_replaying:
        return BackgroundLearner(parts.agent, parts.exploration)
    saved = parts.saved_inputs
    learner = ReplayedLearner(parts.agent, parts.exploration, None if saved is None else saved["learner"])
    parts.skipped_before -= learner.skipped
    return learner


def _restore(parts: Parts, run: TrainingRun, saver: Saver, *, strict: bool, has_journal: bool) -> None:
    not_exact = () if parts.grading.is_exact else ("the background learner is not bit-exact",)
    unused = None if has_journal else UnusedJournal(run)
    if unused is not None and unused.lost is not None:
        not_exact = (*not_exact, unused.lost)
    checkpoint, parts.grading.resumed = restore(
        run,
        saver.store,
        parts.agent,
        parts.load_state,
        keeps_data=parts.kept is not None,
        not_exact=not_exact,
        strict=strict,
        has_journal=has_journal,
    )
    if unused is not None:
        unused.set_aside()
    if checkpoint is not None:
        # With a journal, the replay counts the remaining updates at the calls that counted them before.
        if not has_journal or parts.saved_inputs is None:
            parts.counts.updates = int(parts.agent.updates)
        parts.logbook.restore(run, checkpoint.metrics)


def _describe(parts: Parts, run: TrainingRun, max_steps: int | None) -> None:
    try:
        run.describe(
            type(parts.agent).__name__, max_steps, step_unit="updates" if is_offline(parts.agent) else "env steps"
        )
    except StorageError as error:
        parts.outbox.warn(str(error))
