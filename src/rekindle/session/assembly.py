"""Build a session, new or resumed; if that fails, nothing is left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rekindle.agent import LearningAgent, Stateful, WarmsUp, is_offline, session_steps
from rekindle.checkpoint.retention import retention
from rekindle.errors import StorageError
from rekindle.interrupt import Interrupter
from rekindle.run.directory import TrainingRun
from rekindle.session.background import BackgroundLearner
from rekindle.session.counts import Counts
from rekindle.session.due import Due
from rekindle.session.ending import Ending
from rekindle.session.flow import Flow
from rekindle.session.grading import Grading
from rekindle.session.inputs import InputLog, StopPolls
from rekindle.session.intake import Intake
from rekindle.session.journal_options import About
from rekindle.session.journalling import Journalling, UnusedJournal
from rekindle.session.keeping import KeptData, prepare_data
from rekindle.session.learner import DirectLearner, refuse_transitions
from rekindle.session.logbook import Logbook
from rekindle.session.options import Options
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


class Assembled(NamedTuple):
    """A session that is ready for calls."""

    parts: Parts
    flow: Flow
    due: Due
    ending: Ending
    reports: Reports
    replay: Callable[[], None] | None
    """Replays the calls of an input journal; to be called before the first call of the host."""


def assemble(agent: LearningAgent, run: TrainingRun | None, options: Options) -> Assembled:
    """Check the options, create every part, and restore them if the run is resumed."""
    options = options.checked(agent, run)
    journal, is_background = options.journal, options.is_background
    seed = run.metadata.seed if run is not None else options.seed or 0
    use_signal_stack()  # whatever library the agent computes with
    with contextlib.ExitStack() as undo:
        parts = _created(agent, run, options, seed)
        if parts.saver is not None:
            undo.callback(parts.saver.close)
        if run is not None and parts.saver is not None:
            codec.encode({"agent": agent.state()})  # refuse now what cannot be saved, not at the first checkpoint
            if run.is_resumed:
                _restore(parts, run, parts.saver, strict=options.strict, has_journal=journal.is_on)
            prepare_data(run, agent, parts.kept)
            _describe(parts, run, options.max_steps)
        is_replaying = journal.is_on and run is not None and (run.is_resumed or journal.is_elsewhere)
        if is_background:
            parts.learner = _learner(parts, is_replaying=is_replaying)
            undo.callback(parts.learner.close)
        journalling = None
        if run is not None and parts.inputs is not None:
            parts.inputs.learner = parts.learner
            if not journal.is_elsewhere:
                settings = (options.learner, options.bad_values, options.metrics_every)
                about = About.of(agent, *settings, is_first=not is_replaying)
                journalling = Journalling(parts, run, parts.inputs, about, journal)
                if not is_replaying:
                    journalling.open(0)
                    undo.callback(parts.inputs.close)
        parts.logbook.start(options.recorders, defer=is_background)
        undo.callback(parts.logbook.close, "failed")
        for index, callback in enumerate(options.callbacks):
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
    flow, reports = Flow(parts, due, seed=seed, max_steps=options.max_steps), Reports(parts, due)
    ending = Ending(parts, flow, due, run, is_logging=options.metrics_every is not None)
    replay = journalling.replay(flow, reports) if journalling is not None and is_replaying else None
    return Assembled(parts, flow, due, ending, reports, replay)


def _created(agent: LearningAgent, run: TrainingRun | None, options: Options, seed: int) -> Parts:
    """Create the parts of a session that begins."""
    counts = Counts(env_steps=session_steps(agent), updates=agent.updates)
    outbox = Outbox(options.callbacks, counts, run)
    journal, interrupter = options.journal, options.interrupter
    should_stop = None if interrupter is None else interrupter.should_stop
    polls = None if should_stop is None or not journal.is_on else StopPolls(should_stop)
    direct = DirectLearner(agent, is_manual=options.learner == "manual", should_stop=polls or should_stop)
    if is_offline(agent):
        direct.observe = refuse_transitions
    table = StreamTable()
    intake = Intake(table, agent, options.observation_encoder, options.action_mapper)
    metrics_every, checkpoint_every = options.metrics_every, options.checkpoint_every
    schedule = Schedule(metrics_every=metrics_every, checkpoint_every=checkpoint_every, env_steps=counts.env_steps)
    inputs = None
    if journal.is_on:
        inputs = InputLog(
            table,
            outbox,
            polls,
            is_background=options.is_background,
            limit=journal.limit,
            ask_checkpoint=schedule.ask_checkpoint,
        )
    policy = retention(options.keep_checkpoints)
    return Parts(
        agent=agent,
        learner=direct,
        direct=direct,
        streams=Streams(table, intake, drops_bad_values=options.bad_values == "drop"),
        counts=counts,
        logbook=Logbook(run, counts, outbox, StatsTracker() if options.stats is None else options.stats),
        outbox=outbox,
        schedule=schedule,
        grading=Grading(run, outbox, is_exact=journal.is_on or not options.is_background),
        interrupter=Interrupter() if interrupter is None else interrupter,
        saver=None if run is None else Saver(run, policy=policy, announce=outbox.post, report=outbox.warn),
        kept=KeptData() if options.keep_data else None,
        exploration=np.random.default_rng([seed, 1]),
        inputs=inputs,
    )


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
