"""The session: what the host calls."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack

from rekindle.agent import LearningAgent, Stateful
from rekindle.checkpoint.retention import RetentionPolicy
from rekindle.checks import checked_count, checked_mode, required_count
from rekindle.errors import AgentError, ConfigError, Interrupted
from rekindle.events import Evaluated, Event, Media, Recorder, RunRecorder, TrainingStarted
from rekindle.experience import ActionMapper, ActMode, Array, EpisodeStatus, Experience, ObservationEncoder, Transitions
from rekindle.interrupt import Interrupter
from rekindle.run.directory import TrainingRun
from rekindle.run.metadata import Resume
from rekindle.run.metrics import EventStore
from rekindle.session.assembly import assemble
from rekindle.session.stream import Stream
from rekindle.session.table import StreamId
from rekindle.session.taken import Claims
from rekindle.stats import EpisodeRecord, EvalReport, StatsTracker

__all__ = ["SessionOptions", "TrainingSession"]

_EXPLORE, _EXPLOIT = ActMode.EXPLORE, ActMode.EXPLOIT

_open_sessions: weakref.WeakSet[TrainingSession] = weakref.WeakSet()


def _abandon_all() -> None:
    for session in list(_open_sessions):
        session.abandon()


# A forked child shares the session of its parent, and must neither write to its run nor wait for its threads.
os.register_at_fork(after_in_child=_abandon_all)


class SessionOptions(TypedDict, total=False):
    """The options of a session, as `TrainingSession.open` passes them on; `TrainingSession` explains each."""

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


class TrainingSession:
    """Coordinates an agent, a run and a loop that you own.

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
    ) -> None:
        """Bring agent and run together.

        Args:
            agent: what learns; any object with the methods of `LearningAgent`.
            run: where to keep logs and checkpoints; nothing is kept without one.
            max_steps: `is_done` after this many env steps; None for no limit.
            checkpoint_every: env steps between checkpoints; None for only the last one.
            keep_checkpoints: how many to keep, or policies that say which.
            metrics_every: env steps in a window of metrics, one line of `metrics.jsonl` each; None for never.
            stats: what to aggregate over episodes.
            recorders: where else to send metrics.
            callbacks: called with every event (see `rekindle.events`), in order, on the thread that drives the
                session. One with `state()` and `load_state()` joins the checkpoint; one with `hears(kind)` is asked
                whether it wants `Updated`, of which there may be one a step.
            learner: `inline` learns inside `observe` and is exact; `manual` only inside `learn`; `background`
                on a thread of its own, for hosts with frames to draw.
            observation_encoder: turns the host's observations into arrays.
            action_mapper: turns the agent's actions into the host's, and back.
            bad_values: what to do about NaN or infinity: `refuse` raises, `drop` leaves the transition out
                and counts it.
            seed: what episode seeds are derived from when there is no run (a run has its own).
            strict: refuse a resume that is not exact.
            signals: inside `with`, let SIGINT and SIGTERM ask for a checkpoint and a stop.
            interrupter: how to stop, for a loop that makes no more calls once `is_done`: updates that take long
                are then interrupted too, and a resume makes the rest of them. A session has one of its own otherwise.
        """
        self.agent, self.run = agent, run
        self.max_steps = checked_count("max_steps", max_steps, 0)
        made = assemble(
            agent,
            run,
            max_steps=self.max_steps,
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
        )
        self._parts, self._flow, self._due, self._ending = made.parts, made.flow, made.due, made.ending
        self.interrupter = self._parts.interrupter
        self.stats = self._parts.logbook.stats
        self._table = self._parts.streams.table
        self._streams: weakref.WeakValueDictionary[StreamId, Stream] = weakref.WeakValueDictionary()
        """The handles of streams: one each, so that closing it closes it for everybody who has it."""
        self._handles_signals = signals
        self._exit_stack = contextlib.ExitStack()
        _open_sessions.add(self)
        resumed = self.resumed
        path = None if run is None else str(run.path)
        try:
            stamp = self._parts.counts.stamp()
            self._parts.outbox.emit(TrainingStarted(stamp, resumed.step if resumed else None, path))
        except BaseException as error:  # no session is made, so nobody would close it
            self._ending.close_after(error)
            raise

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
        """Go on with the newest unfinished run of `name` (or `name/version`), or start one.

        The same script thus works the first time and after a crash. Options are those of `TrainingSession`.
        """
        run_name, _, version = name.partition("/")
        run = TrainingRun.create_or_resume(run_name, version or "v1", root=root, seed=seed)
        with run.let_go_on_failure():
            return cls(agent, run=run, seed=seed, **options)

    # Acting and observing

    def act(self, observation: Any, mode: ActMode | str = _EXPLORE, *, stream: StreamId = 0) -> Any:
        """An action for one observation of a stream; `mode` is an `ActMode` or its text."""
        if mode is not _EXPLORE and checked_mode(mode) is _EXPLOIT:
            return self._flow.exploit(stream, observation)
        return self._flow.act(self._table.slot(stream), observation)

    def act_many(
        self,
        observations: Any,
        mode: ActMode | str = _EXPLORE,
        *,
        streams: Sequence[StreamId] | Array | None = None,
    ) -> Any:
        """An action for each row of a batch; row i is of stream i unless told otherwise."""
        if mode is not _EXPLORE and checked_mode(mode) is _EXPLOIT:
            return self._flow.exploit_many(observations, streams)
        return self._flow.act_many(observations, streams)

    def observe(self, experience: Experience, *, stream: StreamId = 0) -> None:
        """Take one transition of a stream: remember it, learn if the learner is inline, checkpoint if due."""
        self._flow.observe(self._table.slot(stream), experience)

    def observe_many(
        self, transitions: Transitions, *, streams: Sequence[StreamId] | Array | None = None
    ) -> list[StreamId]:
        """Take one transition of each of several streams; row i is of stream i unless told otherwise.

        Returns the streams whose episode ended; call `on_episode` for each of them.
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
        """Announce that a stream's episode has ended; totals, if given, must agree with those counted."""
        return self._flow.announce(self._table.slot(stream), Claims(total_reward, steps, status), extras)

    def on_episode_start(self, *, stream: StreamId = 0) -> None:
        """Announce a new episode; one with steps that is still open on that stream is closed as truncated."""
        self._flow.start_episode(self._table.slot(stream))

    def stream(self, stream: StreamId = 0) -> Stream:
        """One stream, in the form of two calls: `begin` and `step`."""
        known = self._streams.get(self._table.id_of(self._table.slot(stream)))
        if known is None or known.is_closed:
            known = Stream(self._flow, self._parts.streams, stream)
            self._streams[known.id] = known
        return known

    def learn(self, *, milliseconds: float | None = None) -> int:
        """With `learner="manual"`: make the updates that are due, or as many as fit; returns how many.

        A budget in milliseconds makes the run depend on the clock, so it is no longer exact.
        """
        return self._flow.learn(milliseconds)

    # Evaluations

    def on_eval_episode(self, record: EpisodeRecord, *, final: bool = False) -> None:
        """Log an evaluation episode; `final` marks those of the agent that the training ended with."""
        self._ending.check_open()
        self._due.is_unsaved = True
        self._parts.logbook.add_evaluation(record, final=final)

    def maybe_save_best(self, mean_reward: float) -> bool:
        """Keep the agent of this moment as the best if the score beats every earlier one; returns whether it did."""
        self._ending.check_open()
        parts, score = self._parts, float(mean_reward)
        best = parts.best.beats(score, parts.counts.env_steps)
        if best is not None:
            self._due.is_unsaved = True
            if parts.saver is not None:
                parts.saver.save_best(best, parts.learner.read(self.agent.state))
        parts.outbox.emit(Evaluated(parts.counts.stamp(), score, best is not None))
        return best is not None

    def eval_report(self, n_episodes: int) -> EvalReport:
        """A report over the last `n_episodes` evaluation episodes, or as many as there were."""
        return self._parts.logbook.report(required_count("n_episodes", n_episodes, 1))

    # Logging, hooks, and objects of the host

    def log(self, name: str, value: Any) -> None:
        """Add a number of the host's own to the current window of metrics (`train/` unless it has a prefix)."""
        self._ending.check_open()
        self._parts.logbook.add(name, value)
        self._due.is_unsaved = True

    def show(self, name: str, media: Media) -> None:
        """Give recorders something to show that is no number (`train/` unless the name has a prefix)."""
        self._ending.check_open()
        self._parts.logbook.show(name, media)

    def attach(self, name: str, item: Stateful) -> None:
        """Let an object of the host's join the checkpoint; if the resumed one knows it, it is restored now."""
        self._ending.check_open()
        self._parts.attached.add(name, item)

    def every(self, env_steps: int, function: Callable[[], object]) -> None:
        """Call a function every so many env steps, after logging and before the checkpoint of that step.

        Steps that a batch jumps over make one call. A function that raises stays due: after a resume, the first call
        of the session calls it again. Work that takes long can raise `Interrupted` when a stop was asked for.
        """
        self._ending.check_open()
        self._parts.schedule.add_hook(required_count("every", env_steps, 1), function, self.total_steps)

    def at_end(self, function: Callable[[], object]) -> None:
        """Call a function when the run finishes, after its last checkpoint.

        What it logs belongs to the end of this training: if the run goes on after all, the resume takes it back. If it
        raises `Interrupted`, the run is stopped and not finished.
        """
        self._ending.check_open()
        self._ending.add(function)

    def mark_inexact(self, what: str) -> None:
        """Record in the run that it differs from an uninterrupted one, and why."""
        self._ending.check_open()
        self._parts.grading.mark_inexact(what)

    # Checkpoints, stops

    def checkpoint(self, *, wait: bool = False) -> None:
        """Take a checkpoint; with `wait`, return when it is durable, or raise if it could not be saved.

        Inside a callback or a hook it is taken when the call under way ends, after everything else that is due. With
        `wait` it is taken at once: what is still due is part of it, and is done after a resume.
        """
        saver = self._parts.saver
        if saver is None:
            raise ConfigError("checkpoint() needs a run: TrainingSession(agent, run=TrainingRun.create(...))")
        self._ending.check_open()
        if self._due.is_inside_a_call and not wait:
            self._parts.schedule.ask_checkpoint()
            return
        self._parts.streams.check_all_announced()
        if (failure := self._parts.learner.failure) is not None:
            raise AgentError(
                "checkpoint(): the agent failed in an earlier call, so what it holds is not saved"
            ) from failure
        self._due.take_checkpoint(saver)
        if wait:
            error = saver.settle()
            self._parts.outbox.deliver()
            if error is not None:
                raise error

    def flush(self) -> None:
        """Return when finished windows have reached logs, store and recorders, and the save under way is over."""
        self._ending.check_open()
        self._parts.logbook.flush()
        if self._parts.saver is not None:
            self._parts.saver.settle()
        self._parts.outbox.deliver()

    def stop(self, reason: str = "stopped by the host", *, complete: bool = False) -> None:
        """Make `is_done` true. `complete` says that the goal was reached, so that the run counts as finished."""
        self.interrupter.stop(reason, complete=complete)

    # What the host asks

    @property
    def is_done(self) -> bool:
        """Whether the host should leave its loop: enough steps, or somebody asked for a stop."""
        return self._flow.is_done

    @property
    def stop_reason(self) -> str | None:
        """Why `is_done`; None while it is not."""
        if self.interrupter.is_stopped:
            return self.interrupter.reason
        return "max_steps" if self.is_done else None

    @property
    def resumed(self) -> Resume | None:
        """From where and how exactly this session went on; None for a new run."""
        return self._parts.grading.resumed

    @property
    def store(self) -> EventStore:
        """Looks up metrics: latest, best, history."""
        return self._parts.logbook.store

    @property
    def total_steps(self) -> int:
        """Env steps so far, over all resumes."""
        return self._parts.counts.env_steps

    @property
    def episodes(self) -> int:
        """Episodes so far, over all resumes."""
        return self._parts.counts.episodes

    @property
    def updates(self) -> int:
        """Updates so far, over all resumes."""
        return self._parts.counts.updates if self._ending.is_closed else int(self._parts.learner.updates)

    @property
    def steps_per_sec(self) -> float:
        """Env steps a second since this process made the session; resumed steps do not count."""
        return self._parts.logbook.steps_per_sec

    @property
    def dropped(self) -> int:
        """Transitions left out because they held NaN or infinity."""
        return self._parts.streams.dropped

    @property
    def skipped_updates(self) -> int:
        """Updates that the background learner could not keep up with."""
        return self._parts.skipped_updates

    @property
    def blocked_calls(self) -> int:
        """Calls that waited for room in the background learner's queue."""
        return self._parts.learner.blocked

    @property
    def checkpoint_stall(self) -> float:
        """Seconds this process's training waited for a checkpoint that was still being written."""
        return self._parts.saver.stall if self._parts.saver else 0.0

    @property
    def checkpoint_failures(self) -> int:
        """Checkpoints of this process that could not be saved."""
        return self._parts.saver.failures if self._parts.saver else 0

    @property
    def best_score(self) -> float:
        """The best score seen, over all resumes; minus infinity if there is none."""
        return self._parts.best.score

    def stats_summary(self) -> dict[str, float]:
        """The aggregates over episodes so far."""
        return self.stats.summary()

    # The end

    def close(self) -> None:
        """Checkpoint, flush, and let go of the run; raises if the last checkpoint could not be saved.

        The run is finished if it made its `max_steps` or was stopped as complete; otherwise `open` goes on with it.
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
    ) -> Any:  # of `bool`, type checkers would infer that any exception may be suppressed
        with self._exit_stack:
            if error is None or isinstance(error, Interrupted):
                self.close()
                return error is not None
            self._ending.close_after(error)
            return False
