"""The session that the host's loop calls."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from rekindle.agent import LearningAgent, Stateful
from rekindle.checkpoint.retention import RetentionPolicy
from rekindle.checks import checked_mode, checked_number, required_count
from rekindle.errors import ConfigError, Interrupted
from rekindle.events import Event, Media, Recorder, RunRecorder, TrainingStarted
from rekindle.experience import ActionMapper, ActMode, Array, EpisodeStatus, Experience, ObservationEncoder, Transitions
from rekindle.interrupt import Interrupter
from rekindle.run.creation import name_and_version
from rekindle.run.directory import TrainingRun
from rekindle.run.metadata import Resume
from rekindle.run.metrics import EventStore
from rekindle.session.assembly import assemble
from rekindle.session.forks import abandon_in_forked_children
from rekindle.session.greedy import Greedy
from rekindle.session.grouping import CallGroup
from rekindle.session.journal_options import JournalOptions
from rekindle.session.ledger import Ledger
from rekindle.session.logbook import numbers_to_log
from rekindle.session.options import Options, SessionOptions
from rekindle.session.stream import Stream
from rekindle.session.table import StreamId
from rekindle.session.taken import Claims
from rekindle.session.ticks import Ticks
from rekindle.stats import EpisodeRecord, EvalReport, StatsTracker

__all__ = ["TrainingSession"]

_EXPLORE, _EXPLOIT = ActMode.EXPLORE, ActMode.EXPLOIT


class TrainingSession:
    """Connects an agent and a run with your own training loop.

    Call `act` for an action, `observe` to report the transition, and `on_episode` when the episode ends; or let a
    `stream` do all three. The session learns, counts, logs and checkpoints. On a run that is resumed, it restores
    everything before the constructor returns.
    """

    def __init__(  # noqa: PLR0913 - one place to see what a session is made of
        self,
        agent: LearningAgent,
        *,
        run: TrainingRun | None = None,
        max_steps: int | None = None,
        checkpoint_every: int | None = 10_000,
        keep_checkpoints: int | RetentionPolicy | Iterable[RetentionPolicy] = 3,
        metrics_every: int | None = 1_000,
        stats: StatsTracker | None = None,
        recorders: Sequence[Recorder | RunRecorder] = (),
        callbacks: Sequence[Callable[[Event], None]] = (),
        learner: Literal["inline", "manual", "background"] = "inline",
        observation_encoder: ObservationEncoder | None = None,
        action_mapper: ActionMapper | None = None,
        bad_values: Literal["refuse", "drop"] = "refuse",
        seed: int | None = None,
        strict: bool = False,
        signals: bool = True,
        interrupter: Interrupter | None = None,
        journal: bool = False,
        journal_sync: float = 0.05,
        journal_limit: int | None = None,
        journal_keep: Literal["needed", "all"] = "needed",
        keep_data: bool = False,
    ) -> None:
        """Connect an agent and a run, and restore both if the run is resumed.

        Args:
            agent: the agent that learns: any object with the methods of `LearningAgent`.
            run: the run directory for logs and checkpoints; without a run, nothing is saved.
            max_steps: number of env steps after which `is_done` is true; None for no limit.
            checkpoint_every: env steps between checkpoints; None for only the last one.
            keep_checkpoints: how many to keep, or policies that select them.
            metrics_every: env steps per metric window (one line of `metrics.jsonl`); None for no metrics.
            stats: which statistics to compute over episodes.
            recorders: where else to send metrics.
            callbacks: called with every event (see `rekindle.events`), in order, on the thread that drives the
                session. One with `state()` and `load_state()` is saved with the checkpoint; one with `hears(kind)` gets
                `Updated` only if that returns true.
            learner: `inline` learns inside `observe`; `manual` learns only inside `learn`; `background` learns on its
                own thread, for hosts with a frame rate to keep, and is exact only with a journal.
            observation_encoder: converts the host's observations to arrays.
            action_mapper: converts the agent's actions to the host's, and back.
            bad_values: what to do with NaN or infinity: `refuse` raises, `drop` discards and counts the transition.
            seed: seed from which episode seeds are derived if there is no run (a run has its own seed).
            strict: raise if the resume cannot be exact.
            signals: inside `with`, let SIGINT, SIGTERM and SIGHUP ask for a checkpoint and a stop.
            interrupter: stops the session, and long updates, from outside, for a loop that makes no calls after
                `is_done`; a resume makes the rest of the updates.
            journal: record every call, so that a resume replays those after the last checkpoint and the host continues
                in the middle of its episodes: for worlds that cannot be rewound.
            journal_sync: seconds of calls that a power cut may lose; with 0 every call waits until it is durable.
            journal_limit: bytes of records after which a checkpoint is taken early.
            journal_keep: `needed` removes records that no resume needs; `all` keeps them for `rekindle replay`.
            keep_data: keep every transition in the run, so that it is a data set; the same in all sessions of a run.
        """
        options = Options(
            max_steps=max_steps,
            checkpoint_every=checkpoint_every,
            keep_checkpoints=keep_checkpoints,
            metrics_every=metrics_every,
            stats=stats,
            recorders=recorders,
            callbacks=callbacks,
            learner=learner,
            observation_encoder=observation_encoder,
            action_mapper=action_mapper,
            bad_values=bad_values,
            seed=seed,
            strict=strict,
            interrupter=interrupter,
            journal=JournalOptions(journal, journal_sync, journal_limit, journal_keep),
            keep_data=keep_data,
        )
        made = assemble(agent, run, options)
        self.agent, self.run, self.max_steps = agent, run, made.flow.max_steps
        self._parts, self._flow, self._due, self._ending = made.parts, made.flow, made.due, made.ending
        self._greedy, self._reports = Greedy(made.parts, made.flow.owed), made.reports
        self.interrupter, self.stats = self._parts.interrupter, self._parts.logbook.stats
        self.together = CallGroup(made.parts, made.flow)
        """Groups calls: `with session.together: ...` does what is due when the block is left."""
        self._streams: weakref.WeakValueDictionary[StreamId, Stream] = weakref.WeakValueDictionary()
        """The handles of streams, one per stream, so that closing one closes it everywhere."""
        self._handles_signals, self._exit_stack = signals, contextlib.ExitStack()
        abandon_in_forked_children(self)
        try:
            if made.replay is None:
                self._announce_start()
            else:
                self._flow.owed.replay_first(functools.partial(self._replay, made.replay))
        except BaseException as error:  # the constructor fails, so the caller cannot close the session
            self._ending.close_after(error)
            raise

    def _replay(self, replay: Callable[[], object]) -> None:
        try:
            replay()
        finally:
            self._announce_start()

    def _announce_start(self) -> None:
        resumed, path = self._parts.grading.resumed, None if self.run is None else str(self.run.path)
        stamp = self._parts.counts.stamp()
        self._parts.outbox.emit(TrainingStarted(stamp, resumed.step if resumed else None, path))
        self._parts.outbox.raise_noted()

    @classmethod
    def open(
        cls,
        name: str,
        agent: LearningAgent,
        *,
        root: str | Path = "runs",
        seed: int = 0,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """Continue the newest unfinished run of `name` (or `name/version`), or start one.

        So the same script works the first time and after a crash. The options are those of `TrainingSession`.
        """
        run = TrainingRun.create_or_resume(*name_and_version(name), root=root, seed=seed)
        with run.let_go_on_failure():
            return cls(agent, run=run, seed=seed, **options)

    # Acting and observing

    def act(self, observation: Any, mode: ActMode | str = _EXPLORE, *, stream: StreamId = 0) -> Any:
        """Return an action for one observation of a stream; `mode` is an `ActMode` or its string value."""
        if mode is not _EXPLORE and checked_mode(mode) is _EXPLOIT:
            return self._greedy.act(stream, observation)
        return self._flow.act(self._flow.slot(stream), observation)

    def act_many(
        self, observations: Any, mode: ActMode | str = _EXPLORE, *, streams: Sequence[StreamId] | Array | None = None
    ) -> Any:
        """Return an action for each row of a batch; row i belongs to stream i unless `streams` is given."""
        if mode is not _EXPLORE and checked_mode(mode) is _EXPLOIT:
            return self._greedy.act_many(observations, streams)
        return self._flow.act_many(observations, streams)

    def observe(self, experience: Experience, *, stream: StreamId = 0) -> None:
        """Report one transition of a stream; learns if the learner is inline, and checkpoints if one is due."""
        self._flow.observe(self._flow.slot(stream), experience)

    def observe_many(
        self, transitions: Transitions, *, streams: Sequence[StreamId] | Array | None = None
    ) -> list[StreamId]:
        """Report one transition of each of several streams; row i belongs to stream i unless `streams` is given.

        Returns the streams whose episode ended; call `on_episode` for each of them, or `on_episodes`.
        """
        return self._flow.observe_many(transitions, streams)

    def on_episode(
        self,
        total_reward: float | None = None,
        steps: int | None = None,
        status: EpisodeStatus | None = None,
        extras: Mapping[str, float] | None = None,
        *,
        stream: StreamId = 0,
    ) -> EpisodeRecord:
        """Announce that a stream's episode has ended; totals, if given, must agree with the counted ones."""
        return self._flow.announce(self._flow.slot(stream), Claims.of(total_reward, steps, status), extras)

    def on_episodes(self, extras: Mapping[StreamId, Mapping[str, float]]) -> dict[StreamId, EpisodeRecord]:
        """Announce that the episodes of several streams have ended, each with its extras; returns their records."""
        return self._flow.announce_many(extras)

    def on_episode_start(self, *, stream: StreamId = 0) -> None:
        """Announce a new episode; one with steps that is still open on that stream is closed as truncated."""
        self._flow.start_episode(self._flow.slot(stream))

    def stream(self, stream: StreamId = 0) -> Stream:
        """Return a stream, with the two calls `begin` and `step`."""
        known = self._streams.get(self._parts.streams.table.id_of(self._flow.slot(stream)))
        if self._parts.inputs is not None:
            self._parts.inputs.stream()
        if known is None or known.is_closed:
            known = Stream(self._flow, self._parts.streams, stream)
            self._streams[known.id] = known
        return known

    def serve(self, ledger: Ledger) -> Ticks:
        """For a server: calls for many streams at once. The ledger is saved with checkpoints, and replayed."""
        self._ending.check_open()
        return Ticks.of(self._parts, self._flow, ledger)

    def learn(self, *, milliseconds: float | None = None, updates: int | None = None) -> int:
        """With `learner="manual"`: make the updates that are due, or as many as fit into the time; returns how many.

        With a time, a run without a journal is no longer exact. If the agent learns from data alone, give `updates`.
        """
        return self._flow.learn(milliseconds) if updates is None else self._flow.learn_offline(updates)

    def on_eval_episode(self, record: EpisodeRecord, *, final: bool = False) -> None:
        """Log an evaluation episode; `final` marks episodes of the agent at the end of the training."""
        self._prepare_call()
        self._reports.add_evaluation(record, final=final)

    def maybe_save_best(self, mean_reward: float) -> bool:
        """Save the current agent as the best if the score beats every earlier one; returns whether it does."""
        self._prepare_call()
        return self._reports.save_if_best(checked_number("mean_reward", mean_reward))

    def eval_report(self, n_episodes: int) -> EvalReport:
        """A report over the last `n_episodes` evaluation episodes, or over fewer if there were fewer."""
        return self._parts.logbook.report(required_count("n_episodes", n_episodes, 1))

    # Logging, hooks, and objects of the host

    def log(self, name: str, value: Any) -> None:
        """Add a number to the current metric window, in the group `train/` unless the name has a prefix."""
        self._prepare_call()
        self._reports.log(name, numbers_to_log(name, value))

    def show(self, name: str, media: Media) -> None:
        """Send media to the recorders, in the group `train/` unless the name has a prefix."""
        self._ending.check_open()
        self._parts.logbook.show(name, media)

    def attach(self, name: str, item: Stateful) -> None:
        """Save an object with the checkpoint; if the resumed checkpoint has a state of that name, load it now."""
        self._ending.check_open()
        self._parts.refuse_with_journal(
            "attach()", "give what must be saved to a callback with state() and load_state()"
        )
        self._parts.attached.add(name, item)

    def every(self, env_steps: int, function: Callable[[], object]) -> None:
        """Call a function every `env_steps` env steps, after logging and before the checkpoint of that step.

        If a batch passes several multiples, the function is called once. A function that raises stays due: the next
        call, here or after a resume, first calls it again. A long function can raise `Interrupted` after a stop.
        """
        self._ending.check_open()
        self._parts.schedule.add_hook(required_count("every", env_steps, 1), function, self._parts.counts.env_steps)

    def at_end(self, function: Callable[[], object]) -> None:
        """Call a function when the run finishes, after its last checkpoint.

        What it logs belongs to the end of this training: if the run is continued later, the resume removes it. If it
        raises `Interrupted`, the run is stopped and not finished.
        """
        self._ending.check_open()
        self._ending.add(function)

    def warn(self, message: str) -> None:
        """Warn of something that training survives: in the log, in `warnings.jsonl`, and with a `Warned` event."""
        self._parts.outbox.warn(str(message))

    def mark_inexact(self, what: str) -> None:
        """Record in the run that it differs from an uninterrupted one, and why."""
        self._prepare_call()
        self._reports.mark_inexact(str(what))

    def _prepare_call(self) -> None:
        self._ending.check_open()
        self._flow.owed.replay_journal()

    # Checkpoints, stops

    def checkpoint(self, *, wait: bool = False) -> None:
        """Take a checkpoint; with `wait`, return when it is durable, or raise if it could not be saved.

        Inside a callback or a hook it is taken when the current call ends, after everything else that is due. With
        `wait` it is taken at once: it records what is still due, and a resume does that.
        """
        if (saver := self._parts.saver) is None:
            raise ConfigError("checkpoint() needs a run: TrainingSession(agent, run=TrainingRun.create(...))")
        self._prepare_call()
        self._due.checkpoint(saver, wait=wait)

    def flush(self) -> None:
        """Wait until finished metric windows have reached logs, store and recorders, and the current save is over."""
        self._prepare_call()
        self._parts.logbook.flush()
        if self._parts.saver is not None:
            self._parts.saver.settle()
        self._parts.outbox.deliver()
        self._due.raise_noted()

    def stop(self, reason: str = "stopped by the host", *, complete: bool = False) -> None:
        """Make `is_done` true; with `complete` the goal was reached, so the run counts as finished."""
        self.interrupter.stop(reason, complete=complete)

    @property
    def is_done(self) -> bool:
        """Whether to leave the loop: `max_steps` is reached, or a stop was requested."""
        return self._flow.is_done

    @property
    def stop_reason(self) -> str | None:
        """Why `is_done` is true; None while it is false."""
        if self.interrupter.is_stopped:
            return self.interrupter.reason
        return "max_steps" if self.is_done else None

    @property
    def resumed(self) -> Resume | None:
        """From which step this session was resumed, and whether exactly; None for a new run.

        With a journal, `replayed` is the number of calls that were replayed.
        """
        self._flow.owed.replay_journal()
        return self._parts.grading.resumed

    @property
    def store(self) -> EventStore:
        """The store of metrics: latest, best, history."""
        return self._parts.logbook.store

    @property
    def total_steps(self) -> int:
        """Env steps so far, over all resumes."""
        self._flow.owed.replay_journal()
        return self._parts.counts.env_steps

    @property
    def episodes(self) -> int:
        """Episodes so far, over all resumes."""
        self._flow.owed.replay_journal()
        return self._parts.counts.episodes

    @property
    def updates(self) -> int:
        """Updates so far, over all resumes; of a background learner, those that the last call has noticed."""
        self._flow.owed.replay_journal()
        return self._parts.counts.updates if self._ending.is_closed else int(self._parts.learner.updates)

    @property
    def steps_per_sec(self) -> float:
        """Env steps per second since this process created the session."""
        return self._parts.logbook.steps_per_sec

    @property
    def dropped(self) -> int:
        """Transitions that were dropped because they contained NaN or infinity."""
        self._flow.owed.replay_journal()
        return self._parts.streams.dropped

    @property
    def skipped_updates(self) -> int:
        """Updates that the background learner skipped because it could not keep up."""
        return self._parts.skipped_updates

    @property
    def blocked_calls(self) -> int:
        """Calls that waited for room in the background learner's queue."""
        return self._parts.learner.blocked

    @property
    def checkpoint_stall(self) -> float:
        """Seconds that this process waited for a checkpoint that was still being written."""
        return self._parts.saver.stall if self._parts.saver else 0.0

    @property
    def checkpoint_failures(self) -> int:
        """Checkpoints of this process that could not be saved."""
        return self._parts.saver.failures if self._parts.saver else 0

    @property
    def best_score(self) -> float:
        """The best score seen, over all resumes; minus infinity if there is none."""
        self._flow.owed.replay_journal()
        return self._parts.best.score

    def stats_summary(self) -> dict[str, float]:
        """The statistics over the episodes so far."""
        self._flow.owed.replay_journal()
        return self.stats.summary()

    def close(self) -> None:
        """Checkpoint, flush and release the run; raises if the last checkpoint could not be saved.

        The run is finished if it reached `max_steps` or was stopped as complete; otherwise `open` continues it.
        """
        if not self._ending.is_closed:
            self._ending.close()

    def abandon(self) -> None:
        """Leave the session to the parent process; called in every forked child."""
        self._ending.abandon()

    def __enter__(self) -> Self:
        if self._handles_signals:
            self._exit_stack.enter_context(self.interrupter.signals())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:  # with `bool`, type checkers would assume that any exception may be suppressed
        with self._exit_stack:
            if error is None or isinstance(error, Interrupted):
                self.close()
                return error is not None
            self._ending.close_after(error)
            return False
