"""The session: coordinates an agent with whatever loop the host has, and owns none itself."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self, cast

import msgspec
import numpy as np

from rekindle.agent import LearningAgent, Metrics, State, Stateful, WarmsUp
from rekindle.checkpoint.retention import RetentionPolicy, retention
from rekindle.checkpoint.store import Best, Checkpoint
from rekindle.checks import checked_choice, checked_count
from rekindle.errors import AgentError, ConfigError, InputError, RekindleError, StorageError
from rekindle.events import (
    EpisodeEnded,
    Evaluated,
    Event,
    Histogram,
    Media,
    MediaLogged,
    MetricsFlushed,
    Recorder,
    RunRecorder,
    Stamp,
    TrainingEnded,
    TrainingStarted,
    Updated,
    Video,
    Warned,
)
from rekindle.experience import (
    ActionMapper,
    ActMode,
    Array,
    EpisodeStatus,
    Experience,
    ObservationEncoder,
    Transitions,
)
from rekindle.interrupt import Interrupter
from rekindle.rng import generator_from_state, generator_state
from rekindle.run.directory import TrainingRun
from rekindle.run.metadata import Resume, Status
from rekindle.run.metrics import EventStore, MetricWindow, restore_store
from rekindle.run.processor import EventProcessor
from rekindle.session.background import BackgroundLearner, with_policy
from rekindle.session.intake import Intake
from rekindle.session.learner import ClosedLearner, DirectLearner, Learner
from rekindle.session.saving import Persistence, Snapshot, frozen
from rekindle.session.stream import Stream
from rekindle.session.streams import Streams
from rekindle.session.table import StreamId, StreamTable
from rekindle.stats import EpisodeRecord, EvalReport, StatsTracker
from rekindle.storage import codec

__all__ = ["TrainingSession"]

logger = logging.getLogger("rekindle")

_AGENT_MEMBERS = ("act", "observe", "updates_due", "update", "state", "load_state", "env_steps", "updates")


def _hears_all(_: type[Event]) -> bool:
    return True


_EXPLOIT = ActMode.EXPLOIT
_REMEMBERED_EVALUATIONS = 1_000
"""Evaluation episodes that a report may look back on."""
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The session's part of a checkpoint."""

    streams: State
    episodes: _Count
    stats: State
    window: State
    best_score: float
    skipped_updates: _Count
    exploration: State


class TrainingSession:
    """Coordinates an agent, a run and a loop that the host owns.

    The host asks for actions, hands back what came of them and says when an episode ends; the session learns,
    counts, logs, checkpoints and, on a run that is resumed, restores everything before it returns.
    """

    def __init__(  # noqa: PLR0913, PLR0915 - one place to see what a session is made of
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
            callbacks: called with every event, in order, on the thread that drives the session. One with
                `state()` and `load_state()` joins the checkpoint; one with `hears(kind)` is asked whether it wants
                `Updated`, of which there may be one a step.
            learner: `inline` learns inside `observe` and is exact; `manual` only inside `learn`; `background`
                on a thread of its own, for hosts with frames to draw.
            observation_encoder: turns the host's observations into arrays.
            action_mapper: turns the agent's actions into the host's, and back.
            bad_values: what to do about NaN or infinity: `refuse` raises, `drop` leaves the transition out
                and counts it.
            seed: what episode seeds are derived from when there is no run (a run has its own).
            strict: refuse a resume that is not exact.
            signals: inside `with`, let SIGINT and SIGTERM ask for a checkpoint and a stop.
        """
        missing = [name for name in _AGENT_MEMBERS if not hasattr(agent, name)]
        if missing:
            raise ConfigError(f"{type(agent).__name__} is not a LearningAgent: it has no {', '.join(missing)}")
        checked_choice("learner", learner, ("inline", "manual", "background"))
        checked_choice("bad_values", bad_values, ("refuse", "drop"))
        checked_count("max_steps", max_steps, 0)
        checked_count("checkpoint_every", checkpoint_every, 1)
        checked_count("metrics_every", metrics_every, 1)
        checked_count("seed", seed, 0)
        if learner == "background":
            with_policy(agent)
        if run is not None and seed not in (None, run.metadata.seed):
            raise ConfigError(f"seed {seed} was given, but {run.path} was made with {run.metadata.seed}")
        self.agent = agent
        self.run = run
        self.max_steps = max_steps
        self.stats = StatsTracker() if stats is None else stats
        self.store = EventStore()
        """Looks up metrics: latest, best, history."""
        self.interrupter = Interrupter()
        self.resumed: Resume | None = None
        """From where and how exactly this session went on; None for a new run."""
        self._checkpoint_every, self._metrics_every = checkpoint_every, metrics_every
        self._callbacks = list(callbacks)
        self._updates_are_heard = any(getattr(callback, "hears", _hears_all)(Updated) for callback in callbacks)
        self._handles_signals = signals
        self._hooks: list[tuple[int, Callable[[], object]]] = []
        self._endings: list[Callable[[], object]] = []
        self._attached: dict[str, Stateful] = {}
        self._unclaimed: dict[str, State] = {}
        self._saved_attached: dict[str, State] = {}
        self._window = MetricWindow()
        self._latest: dict[str, float] = {}
        self._env_steps = agent.env_steps
        self._episodes = 0
        self._evaluations: deque[EpisodeRecord] = deque(maxlen=_REMEMBERED_EVALUATIONS)
        self._best: Best | None = None
        self._best_score = -math.inf
        self._skipped_before = 0
        self._is_exact = learner != "background"
        self._is_dirty = True
        self._is_closed = self._is_ending = False
        self._in_safe_point = False
        self._checkpoint_asked = False
        self._exit_stack = contextlib.ExitStack()
        self._outbox: deque[Event] = deque()
        """What happened, on whichever thread, for this one to pass on."""

        run_seed = run.metadata.seed if run is not None else seed or 0
        self._exploration = np.random.default_rng([run_seed, 1])
        self._direct = DirectLearner(agent, is_manual=learner == "manual")
        self._learner: Learner = self._direct
        table = StreamTable()
        self._streams = Streams(
            table,
            Intake(table, agent, observation_encoder, action_mapper),
            self._learner,
            seed=run_seed,
            drops_bad_values=bad_values == "drop",
            # A manual learner may learn before the next step, so that its action is chosen now or never.
            is_done=lambda: self.is_done and not self._direct.is_manual,
            on_transitions=self._after_transitions,
            on_end=self._after_episode,
            on_loss=self.note_loss,
        )
        self._persistence = (
            None
            if run is None
            else Persistence(run, policy=retention(keep_checkpoints), tell=self._outbox.append, report=self._report)
        )
        if self._persistence is not None:
            codec.encode({"agent": agent.state()})  # what cannot be saved is said now, not at the first checkpoint
            if self._persistence.run.is_resumed:
                self._restore(self._persistence, strict=strict)
            self._write(self._persistence.run.describe, type(agent).__name__, max_steps)
        if learner == "background":
            self._streams.learner = self._learner = BackgroundLearner(agent, self._exploration)
        deferred = (
            []
            if run is None or learner != "background"
            else [run.log(log) for log in ("train_episodes", "eval_episodes", "warnings")]
        )
        for log in deferred:
            log.is_deferred = True  # a frame waits for no disk
        self._processor = EventProcessor(
            log=None if run is None else run.log("metrics"),
            deferred=deferred,
            store=self.store,
            recorders=[self._opened(recorder) for recorder in recorders],
            report=self._report,
        )
        for index, callback in enumerate(self._callbacks):
            if isinstance(callback, Stateful):
                self.attach(f"callback {index}: {type(callback).__qualname__}", callback)
        if isinstance(agent, WarmsUp):
            agent.warm_up()
        if run is not None:
            self.interrupter.watch(run.stop_file)
        self._started_at, self._started_with = time.perf_counter(), self._env_steps
        self._plan()
        step, path = self.resumed.step if self.resumed else None, None if run is None else str(run.path)
        self._emit(TrainingStarted(self._stamp(), step, path))

    @classmethod
    def open(cls, name: str, agent: LearningAgent, *, root: str | Path = "runs", seed: int = 0, **options: Any) -> Self:
        """Go on with the newest unfinished run of `name` (or `name/version`), or start one.

        The same script thus works the first time and after a crash. Options are those of `TrainingSession`.
        """
        run_name, _, version = name.partition("/")
        run = TrainingRun.create_or_resume(run_name, version or "v1", root=root, seed=seed)
        with run.let_go_on_failure():
            return cls(agent, run=run, seed=seed, **options)

    # What the host calls

    def act(self, observation: Any, mode: ActMode = ActMode.EXPLORE, *, stream: StreamId = 0) -> Any:
        """An action for one observation of a stream."""
        if mode is _EXPLOIT:
            return self._streams.exploit(stream, observation)
        return self._streams.act(self._streams.table.slot(stream), observation)

    def act_many(
        self,
        observations: Any,
        mode: ActMode = ActMode.EXPLORE,
        *,
        streams: Sequence[StreamId] | Array | None = None,
    ) -> Any:
        """An action for each row of a batch; row i is of stream i unless told otherwise."""
        if mode is _EXPLOIT:
            return self._streams.exploit_many(observations, streams)
        return self._streams.act_many(observations, streams)

    def observe(self, experience: Experience, *, stream: StreamId = 0) -> None:
        """Take one transition of a stream: remember it, learn if the learner is inline, checkpoint if due."""
        self._streams.observe(self._streams.table.slot(stream), experience)

    def observe_many(
        self, transitions: Transitions, *, streams: Sequence[StreamId] | Array | None = None
    ) -> list[StreamId]:
        """Take one transition of each of several streams; row i is of stream i unless told otherwise.

        Returns the streams whose episode ended; each of them awaits its `on_episode`.
        """
        return self._streams.observe_many(transitions, streams)

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
        return self._streams.announce(
            self._streams.table.slot(stream), total_reward=total_reward, steps=steps, status=status, extras=extras
        )

    def on_episode_start(self, *, stream: StreamId = 0) -> None:
        """Announce a new episode; one with steps that is still open on that stream is closed as truncated."""
        slot = self._streams.table.slot(stream)
        if self._streams.table.length[slot]:
            self._streams.close_as_truncated(slot)
        self._learner.start_episode()

    def stream(self, stream: StreamId = 0) -> Stream:
        """One stream, in the form of two calls: `begin` and `step`."""
        return Stream(self._streams, stream)

    def learn(self, *, milliseconds: float | None = None) -> int:
        """With `learner="manual"`: make the updates that are due, or as many as fit; returns how many.

        A budget in milliseconds makes the run depend on the clock, so it is no longer exact.
        """
        if not self._direct.is_manual:
            raise ConfigError("learn() is for sessions with learner='manual'")
        self._is_exact = self._is_exact and milliseconds is None
        self._is_dirty = True
        made = 0
        self._streams.is_torn = True
        for count, metrics in self._direct.learn(milliseconds):
            self._take_update(count, metrics)
            made += count
        self._streams.is_torn = False
        return made

    def on_eval_episode(self, record: EpisodeRecord, *, final: bool = False) -> None:
        """Log an evaluation episode; `final` marks those of the agent that the training ended with."""
        self._check_open()
        self._evaluations.append(record)
        self._window.add_all("eval/", {"return": record.total_reward, "length": record.length})
        self._window.add_all("eval/", record.extras)
        self._is_dirty = True
        if self.run is not None:
            tag = {"final": True} if final else {}
            self._write(self.run.log_eval_episode, record, {**msgspec.structs.asdict(self._stamp()), **tag})

    def maybe_save_best(self, mean_reward: float) -> bool:
        """Keep the agent of this moment as the best if the score beats every earlier one; says whether it did."""
        self._check_open()
        score = float(mean_reward)
        is_best = score > self._best_score
        if is_best:
            self._best_score = score
            self._is_dirty = True
            if self._persistence is not None:
                self._best = Best(self._best_file(), score, self._env_steps)
                self._persistence.save_best(self._best, self._learner.call(self.agent.state))
        self._emit(Evaluated(self._stamp(), score, is_best))
        return is_best

    def _best_file(self) -> str:
        """A name of its own for each best, as a checkpoint may name an earlier one of the same step."""
        steps, best = self._env_steps, self._best
        if best is None or best.step != steps:
            return f"best_{steps}.mpk"
        count = int(best.file.removesuffix(".mpk").partition(f"best_{steps}_")[2] or 1)
        return f"best_{steps}_{count + 1}.mpk"

    def log(self, name: str, value: float) -> None:
        """Add a number of the host's own to the current window of metrics (`train/` unless it has a prefix)."""
        self._window.add(name if "/" in name else f"train/{name}", value)
        self._is_dirty = True

    def show(self, name: str, media: Media) -> None:
        """Give recorders something to show that is no number (`train/` unless the name has a prefix)."""
        self._check_open()
        if isinstance(media, Histogram):
            media = Histogram(np.array(media.values, np.float64).ravel())
            if not (media.values.size and np.isfinite(media.values).all()):
                raise InputError(f"show({name!r}): a histogram needs values, all of them finite")
        elif isinstance(media, Video):
            media = Video(np.array(media.frames), media.fps)
            if media.frames.dtype != np.uint8 or media.frames.ndim != 4 or media.frames.shape[-1] != 3:
                raise InputError(
                    f"show({name!r}): a video is frames, height, width and 3 colours of uint8, "
                    f"not {media.frames.shape} of {media.frames.dtype}"
                )
        self._processor.submit(MediaLogged(self._stamp(), name if "/" in name else f"train/{name}", media))

    def attach(self, name: str, item: Stateful) -> None:
        """Let an object of the host's join the checkpoint; if the resumed one knows it, it is restored now."""
        missing = [method for method in ("state", "load_state") if not hasattr(item, method)]
        if missing:
            raise ConfigError(f"attach({name!r}): {type(item).__name__} has no {' and no '.join(missing)}")
        if name in self._attached:
            raise ConfigError(f"attach({name!r}): that name is taken")
        if name in self._unclaimed:
            item.load_state(self._unclaimed[name])
            del self._unclaimed[name]
        self._attached[name] = item

    def every(self, env_steps: int, function: Callable[[], object]) -> None:
        """Call a function every so many env steps, after logging and before the checkpoint of that step.

        Steps that a batch jumps over make one call.
        """
        checked_count("every", env_steps, 1)
        self._hooks.append((env_steps, function))
        self._plan()

    def at_end(self, function: Callable[[], object]) -> None:
        """Call a function when the run finishes, after its last checkpoint.

        What it logs is the end of this training: if the run goes on after all, the resume takes it back.
        """
        self._endings.append(function)

    def note_loss(self, what: str) -> None:
        """Say, and record in the run, that it is not to the bit what it would have been without interruption."""
        self._is_exact = False
        self._report(what)
        if self.resumed is not None and self.run is not None:
            lost = (*self.resumed.lost, what)
            self.resumed = msgspec.structs.replace(self.resumed, grade="approximate", lost=lost)
            self._write(self.run.add_resume, self.resumed)

    def stop(self, reason: str = "stopped by the host", *, complete: bool = False) -> None:
        """Make `is_done` true. `complete` says that the goal was reached, so that the run counts as finished."""
        self.interrupter.stop(reason, complete=complete)

    def flush(self) -> None:
        """Return when finished windows have reached logs, store and recorders, and the save under way is over."""
        self._processor.flush()
        if self._persistence is not None:
            self._persistence.settle()
        self._pass_on()

    def checkpoint(self, *, wait: bool = False) -> None:
        """Take a checkpoint now; with `wait`, return when it is durable, or raise if it could not be saved."""
        if self._persistence is None:
            raise ConfigError("checkpoint() needs a run: TrainingSession(agent, run=TrainingRun.create(...))")
        self._check_open()
        if self._in_safe_point:
            self._checkpoint_asked = True  # after the others that are due at this step
            return
        self._streams.check_announced()
        if self._streams.is_torn:
            raise AgentError("checkpoint(): the agent failed inside an earlier call, so what it holds is not saved")
        self._take_checkpoint(self._persistence)
        if wait:
            error = self._persistence.settle()
            self._pass_on()
            if error is not None:
                raise error

    def _check_open(self) -> None:
        if self._is_closed and not self._is_ending:
            raise InputError("the session is closed: open another to go on with its run")

    # What the host asks

    @property
    def is_done(self) -> bool:
        """Whether the host should leave its loop: enough steps, or somebody asked for a stop."""
        return self.interrupter.is_stopped or (self.max_steps is not None and self._env_steps >= self.max_steps)

    @property
    def stop_reason(self) -> str | None:
        """Why `is_done`; None while it is not."""
        if self.interrupter.is_stopped:
            return self.interrupter.reason
        return "max_steps" if self.is_done else None

    @property
    def total_steps(self) -> int:
        """Env steps so far, over all resumes."""
        return self._env_steps

    @property
    def episodes(self) -> int:
        """Episodes so far, over all resumes."""
        return self._episodes

    @property
    def updates(self) -> int:
        """Updates so far, over all resumes."""
        return self._learner.updates

    @property
    def steps_per_sec(self) -> float:
        """Env steps a second since this process made the session; resumed steps do not count."""
        elapsed = time.perf_counter() - self._started_at
        return (self._env_steps - self._started_with) / elapsed if elapsed > 0 else 0.0

    @property
    def dropped(self) -> int:
        """Transitions left out because they held NaN or infinity."""
        return self._streams.dropped

    @property
    def skipped_updates(self) -> int:
        """Updates that the background learner could not keep up with."""
        return self._skipped_before + self._learner.skipped

    @property
    def blocked_calls(self) -> int:
        """Calls that waited for room in the background learner's queue."""
        return self._learner.blocked

    @property
    def checkpoint_stall(self) -> float:
        """Seconds this process's training waited for a checkpoint that was still being written."""
        return self._persistence.stall if self._persistence else 0.0

    @property
    def checkpoint_failures(self) -> int:
        """Checkpoints of this process that could not be saved."""
        return self._persistence.failures if self._persistence else 0

    @property
    def best_score(self) -> float:
        """The best score seen, over all resumes; minus infinity if there is none."""
        return self._best_score

    def stats_summary(self) -> dict[str, float]:
        """The aggregates over episodes so far."""
        return self.stats.summary()

    def eval_report(self, n_episodes: int) -> EvalReport:
        """A report over the last `n_episodes` evaluation episodes, or as many as there were."""
        checked_count("n_episodes", n_episodes, 1)
        return EvalReport.of(list(self._evaluations)[-n_episodes:], self._env_steps)

    # What happens after a transition

    def _after_transitions(self, count: int) -> None:
        self._env_steps += count
        self._is_dirty = True
        for made, metrics in self._learner.learned():
            self._take_update(made, metrics)
        self._streams.is_torn = False
        if self._env_steps >= self._next_due and not self._streams.unannounced_ends:
            self._safe_point()

    def _take_update(self, count: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            if type(value) is float and "loss" in name and not math.isfinite(value):
                raise _non_finite(f"agent/{name}")
        self._window.add_all("agent/", metrics)
        if self._updates_are_heard:
            self._emit(Updated(self._stamp(), count, metrics))

    def _after_episode(self, stream: StreamId, counted: EpisodeRecord) -> None:
        extras = self._learner.episode_extras()
        record = msgspec.structs.replace(counted, extras={**counted.extras, **extras}) if extras else counted
        self._episodes += 1
        self._is_dirty = True
        self.stats.update(record)
        self._window.add_all("episode/", {"return": record.total_reward, "length": record.length})
        self._window.add_all("episode/", record.extras)
        stamp = self._stamp()
        if self.run is not None:
            self._write(self.run.log_train_episode, record, {**msgspec.structs.asdict(stamp), "stream": stream})
        self._learner.start_episode()
        self._streams.is_torn = False
        if self._callbacks:
            self._emit(EpisodeEnded(stamp, stream, record))
        if self._env_steps >= self._next_due and not self._streams.unannounced_ends:
            self._safe_point()

    def _plan(self) -> None:
        """Find the next env step at which anything is due."""
        every = [self._metrics_every, *(steps for steps, _ in self._hooks), self._checkpoint_every]
        self._due = [_next_multiple(self._env_steps, steps) for steps in every]
        self._next_due = min(self._due)

    def _safe_point(self) -> None:
        """Everything that is due at this step: log, hooks (evaluation, best), checkpoint, in this order."""
        metrics_due, *hooks_due, checkpoint_due = self._due
        self._plan()
        self._in_safe_point = True
        try:
            if self._env_steps >= metrics_due:
                self._flush_metrics()
            for (_, function), due in zip(list(self._hooks), hooks_due, strict=False):
                if self._env_steps >= due:
                    function()
        finally:
            self._in_safe_point = False
        if self._persistence is not None and (self._env_steps >= checkpoint_due or self._checkpoint_asked):
            self._checkpoint_asked = False
            self._take_checkpoint(self._persistence)
        self._pass_on()

    def _flush_metrics(self) -> None:
        self._check_losses()
        self._window.add("time/steps_per_sec", self.steps_per_sec)
        self._window.add("time/checkpoint_stall", self.checkpoint_stall)
        self._window.add("time/cpu_seconds", time.process_time())
        if (resident := _resident_memory()) is not None:
            self._window.add("time/memory_mb", resident / 1e6)
        if isinstance(self._learner, BackgroundLearner):
            self._window.add("time/skipped_updates", self.skipped_updates)
            self._window.add("time/blocked_calls", self.blocked_calls)
        summaries = self._window.flush()
        self._latest.update({name: summary.mean for name, summary in summaries.items()})
        event = MetricsFlushed(self._stamp(), summaries)
        self._processor.submit(event)
        self._emit(event)

    def _check_losses(self) -> None:
        """Stop before a diverged agent is logged or saved; values still on a device are read for this."""
        self._window.read()
        bad = self._window.non_finite_loss()
        if bad is not None:
            self._streams.is_torn = True
            raise _non_finite(bad)

    # Checkpoints

    def _take_checkpoint(self, persistence: Persistence) -> None:
        self._check_losses()
        if isinstance(self._learner, DirectLearner):
            persistence.settle()
            if self.agent.env_steps != self._env_steps:
                self._streams.is_torn = True
                raise AgentError(
                    f"{type(self.agent).__name__}.env_steps is {self.agent.env_steps} after {self._env_steps} "
                    "transitions: observe must add len(transitions) to it"
                )
        self._saved_attached = {
            **self._unclaimed,
            **{name: frozen(item.state(), f"attached[{name!r}]") for name, item in self._attached.items()},
        }
        snapshot = Snapshot(
            stamp=self._stamp(),
            session=self._state(),
            attached=self._saved_attached,
            metrics={**self._latest, **self._window.means()},
            best=self._best,
            exact=self._is_exact,
        )
        part = self._learner.call(persistence.agent_copier(self.agent))
        persistence.save(snapshot, part, self._processor.mark().result)
        self._is_dirty = False

    def _state(self) -> State:
        return {
            "streams": self._streams.state(),
            "episodes": self._episodes,
            "stats": self.stats.state(),
            "window": self._window.state(),
            "best_score": self._best_score,
            "skipped_updates": self.skipped_updates,
            "exploration": generator_state(self._exploration),
        }

    def _restore(self, persistence: Persistence, *, strict: bool) -> None:
        not_exact = () if self._is_exact else ("the background learner is not bit-exact",)
        found, self.resumed = persistence.restore(self.agent, self._load_session, not_exact=not_exact, strict=strict)
        if found is not None:
            self._best = found.best
            self._latest = dict(found.metrics)
            rows = persistence.run.reader.last_rows("eval_episodes", _REMEMBERED_EVALUATIONS)
            self._evaluations.extend(map(EpisodeRecord.from_row, rows))
            self._unclaimed = dict(found.attached)
            self._saved_attached = dict(found.attached)
            self._env_steps = self.agent.env_steps
            self._is_dirty = False
            restore_store(self.store, persistence.run.reader.metric_windows())

    def _load_session(self, checkpoint: Checkpoint) -> None:
        saved = msgspec.convert(checkpoint.session, _Saved)
        self._streams.load_state(saved.streams)
        self.stats.load_state(saved.stats)
        self._window.load_state(saved.window)
        self._episodes = saved.episodes
        self._best_score = saved.best_score
        self._skipped_before = saved.skipped_updates
        self._exploration = generator_from_state(saved.exploration)

    # Events

    def _opened(self, recorder: Recorder | RunRecorder) -> Recorder:
        if not isinstance(recorder, RunRecorder):
            return recorder
        if self.run is None:
            raise ConfigError(f"{type(recorder).__name__} records a run: pass run=TrainingRun.create(...)")
        return recorder.open(self.run.path, self._report)

    def _stamp(self) -> Stamp:
        return Stamp(self._env_steps, self._learner.updates, self._episodes, time.time())

    def _emit(self, event: Event) -> None:
        for callback in self._callbacks:
            callback(event)

    def _pass_on(self) -> None:
        """Emit what happened since, and keep the warnings."""
        while self._outbox:
            event = self._outbox.popleft()
            if isinstance(event, Warned) and self.run is not None:
                try:
                    self.run.log_warning(event.message, msgspec.structs.asdict(event.stamp))
                except StorageError as error:  # not another warning to keep, or there would be no end to them
                    logger.warning("%s", error)
            self._emit(event)

    def _report(self, message: str) -> None:
        """Say that something went wrong that training survives; safe on any thread."""
        logger.warning("%s", message)
        self._outbox.append(Warned(self._stamp(), message))

    def _write(self, write: Callable[..., None], *what: Any) -> None:
        """Write to the run; a refusal of the file system is reported, and the row waits in memory."""
        try:
            write(*what)
        except StorageError as error:
            self._report(str(error))

    # The end

    def close(self) -> None:
        """Checkpoint, flush, and let go of the run; raises if the last checkpoint could not be saved.

        The run is finished if it made its `max_steps` or was stopped as complete; otherwise `open` goes on with it.
        """
        reached = self.max_steps is not None and self._env_steps >= self.max_steps
        finished = self.interrupter.is_complete if self.interrupter.is_stopped else reached
        if self._streams.is_torn:
            self._close("failed", "the agent failed inside a call", save=False)
            return
        self._close("finished" if finished else "stopped", self.stop_reason or "the host left its loop", save=True)

    def __enter__(self) -> Self:
        if self._handles_signals:
            self._exit_stack.enter_context(self.interrupter.signals())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._exit_stack:
            if error is None:
                self.close()
                return
            interrupted = isinstance(error, KeyboardInterrupt)
            # A call that did not come to its end may have left the agent between two states.
            save = not self._streams.is_torn and not isinstance(error, AgentError)
            reason = "KeyboardInterrupt" if interrupted else f"{type(error).__name__}: {error}"
            try:
                self._close("stopped" if interrupted else "failed", reason, save=save)
            except Exception as second:
                logger.error("while closing after %s: %s", reason, second)

    def _close(self, status: Status, reason: str | None, *, save: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        problem: Exception | None = None
        try:
            try:
                self._end_learner()
                if save:
                    self._save_last(finished=status == "finished")
            except Exception as error:
                problem = error
                if status != "failed":  # whatever it had reached, what it holds is not all on disk
                    status, reason = "failed", f"{type(error).__name__}: {error}"
            self._processor.close(status)
            if self.run is not None:
                try:
                    self._seal(self.run, status, reason)
                except RekindleError as error:
                    problem = problem or error
            self._pass_on()
            self._emit(TrainingEnded(self._stamp(), status, reason))
        finally:
            self._streams.learner = cast("Learner", ClosedLearner())
            self.interrupter.unwatch()
            if self._persistence is not None:
                self._persistence.close()
            if self.run is not None:
                self.run.close()
        if problem is not None:
            raise problem

    def _end_learner(self) -> None:
        learner, self._learner, self._streams.learner = self._learner, self._direct, self._direct
        learner.close()
        self._skipped_before += learner.skipped
        if learner is not self._direct:
            for made, metrics in learner.learned():
                self._take_update(made, metrics)

    def _save_last(self, *, finished: bool) -> None:
        """Take the last checkpoint, then log what is of the end only: a resume takes these rows back and goes on."""
        for name in self._streams.announce_all():
            self.note_loss(f"the end of an episode of {name} was never announced; its extras are missing")
        if self._persistence is not None:
            self._persistence.settle()
            if self._is_dirty or self._persistence.is_behind or self._attached_changed():
                self._take_checkpoint(self._persistence)
            error = self._persistence.settle()
            if error is not None:
                raise error
        if finished:
            self._end()
        if self._metrics_every is not None and not self._window.is_empty:
            self._flush_metrics()

    def _end(self) -> None:
        self._is_ending = True
        for function in self._endings:
            function()
        self._is_ending = False
        if self._persistence is not None and (error := self._persistence.settle_best()) is not None:
            raise error

    def _attached_changed(self) -> bool:
        """Whether what is attached differs from what was saved last; it may change without a word."""
        now = {**self._unclaimed, **{name: item.state() for name, item in self._attached.items()}}
        return codec.tree_digest(now) != codec.tree_digest(self._saved_attached)

    def _seal(self, run: TrainingRun, status: Status, reason: str | None) -> None:
        run.log("metrics").sync()
        run.update_metadata(
            status=status, stop_reason=reason, exact=run.metadata.exact and self._is_exact, **self._counts()
        )

    def _counts(self) -> dict[str, int]:
        return {"total_steps": self._env_steps, "total_episodes": self._episodes, "updates": self._learner.updates}


def _non_finite(name: str) -> AgentError:
    return AgentError(f"the metric {name} is not finite: training has diverged; the last good checkpoint is kept")


def _resident_memory() -> int | None:
    """Bytes of memory that this process has in use; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return None


def _next_multiple(steps: int, every: int | None) -> float:
    return math.inf if every is None else (steps // every + 1) * every
