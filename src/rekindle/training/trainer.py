"""The trainer: environments, an agent, a session, evaluations and a training loop in one object."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rekindle.actors import Crew
from rekindle.agent import session_steps
from rekindle.agents.settings import resolved
from rekindle.checkpoint import KeepLast, RetentionPolicy
from rekindle.checkpoint.retention import retention
from rekindle.checks import checked_count, required_count
from rekindle.envs import Determinism, EnvFactory, Envs, EnvSettings, make_envs, probe
from rekindle.errors import ConfigError, Interrupted
from rekindle.events import Event, Recorder, RunRecorder
from rekindle.interrupt import Interrupter, ShouldStop, never
from rekindle.recorders import RECORDERS
from rekindle.run.directory import TrainingRun
from rekindle.run.reader import RunReader
from rekindle.session.session import TrainingSession
from rekindle.stats import EvalReport, StatsTracker
from rekindle.terminal import shown_interactively
from rekindle.training import algorithms
from rekindle.training.actor_crews import actor_sampler, check_actors, default_strategy, make_crew
from rekindle.training.config import DEFAULT_STEPS, make_config
from rekindle.training.evaluation import Evaluator
from rekindle.training.evaluations import Evaluations
from rekindle.training.forecast import check_rollout, foreseen, with_round_steps
from rekindle.training.handlers import Handlers
from rekindle.training.learning_data import (
    AgentSource,
    DataSource,
    check_data,
    created_agent,
    data_settings,
    environment_spaces,
    give_data,
    open_data,
    without_evaluations,
)
from rekindle.training.opening import Opening
from rekindle.training.preset_arguments import preset_arguments
from rekindle.training.progress import Progress
from rekindle.training.rebuilding import find_parent, load_latest
from rekindle.training.report import TrainingReport
from rekindle.training.resuming import resumed_arguments
from rekindle.training.sampling import ResetOptions, Round, Sampler, StepProcessor, make_sampler
from rekindle.training.steps import Step, steps_of
from rekindle.training.strategies import Actors, Components, NoSampler, Strategy

if TYPE_CHECKING:
    from gymnasium import Env

__all__ = ["Trainer"]

_Event = TypeVar("_Event", bound=Event)


class Trainer:
    """Trains an agent on an environment; continues the run of that name if it was interrupted.

    >>> trainer = Trainer("FrozenLake-v1", "tabular", steps=2_000, eval_episodes=5)
    >>> trainer.train().env_steps
    2000
    """

    def __init__(  # noqa: PLR0913 - one place to see what a trainer is made of
        self,
        env: str | EnvSettings | EnvFactory | Env[Any, Any] | Callable[..., Any] | None,
        agent: AgentSource,
        *,
        data: DataSource | None = None,
        steps: int | None = DEFAULT_STEPS,
        name: str | None = None,
        root: str | Path = "runs",
        tags: Sequence[str] = (),
        seed: int = 0,
        agent_settings: Mapping[str, Any] | None = None,
        start_from: str | Path | None = None,
        with_optimiser: bool = False,
        keep_checkpoints: int | RetentionPolicy | Sequence[RetentionPolicy] = 3,
        evaluator: Evaluator | None = None,
        strategy: Strategy | None = None,
        sampler: Callable[[TrainingSession, Envs], Sampler] | None = None,
        step_processor: StepProcessor | None = None,
        reset_options: ResetOptions | None = None,
        stats: StatsTracker | None = None,
        recorders: Sequence[Recorder | RunRecorder] = (),
        new: bool = False,
        strict: bool = False,
        signals: bool = True,
        interrupter: Interrupter | None = None,
        **settings: Any,
    ) -> None:
        """Set everything up; nothing is written before `train` or `steps` is called.

        Args:
            env: a Gymnasium id, `module:name`, a function that creates an environment, an environment (of which others
                are made), or an `EnvFactory`; None to learn from data without evaluations.
            agent: the name of an algorithm (`rekindle algos` lists them), `module:Class` of your own agent, an
                agent, or a function from observation and action space to an agent.
            data: a data set to learn from, or its path. By default (`data_share=1`) no environment is stepped, and all
                steps are updates; with a smaller `data_share`, that share of each batch is from the data.
            steps: total number of env steps; None for no limit.
            name: name of the run, as `name` or `name/version`: the newest unfinished run of that name is continued, or
                a new one created. Without a name the run is temporary.
            root: the directory of runs.
            tags: words to find the run by; they are added to a run that is continued.
            seed: seed of all random numbers.
            agent_settings: settings of the algorithm, if the agent is given by name. Fractions of the training become
                env steps, as in `{"epsilon_steps": 0.5}` or `Linear(1e-3, 0.0, 1.0)`.
            start_from: start with weights and normalisation of a checkpoint: `PATH` (latest), `PATH@best`, `PATH@STEP`.
            with_optimiser: also take over its optimiser and counters.
            keep_checkpoints: how many to keep, or policies that select them.
            evaluator: runs the evaluations; an `EpisodeEvaluator` by default.
            strategy: the training loop; by default `Offline` if the agent learns from data alone, else `Synchronous`.
            sampler: creates the sampler, which steps the environments, from the session and the environments.
            step_processor: changes rewards before the agent sees them.
            reset_options: returns the options of a reset for a stream, an episode and the env steps, for curricula.
            stats: which statistics to compute over episodes.
            recorders: additional recorders; use `record` for those that need no settings.
            new: create a new run even if one of that name is unfinished.
            strict: raise if a resume cannot be exact.
            signals: let SIGINT, SIGTERM and SIGHUP ask for a checkpoint and a stop.
            interrupter: stops the training from outside; if that happened before, `train` raises `Interrupted`.
            settings: the other fields of `TrainerSettings`, such as `num_envs` and `eval_every`.
        """
        seed, steps = required_count("seed", seed, 0), checked_count("steps", steps, 0)
        keep = retention(keep_checkpoints)
        settings |= strategy.settings if isinstance(strategy, Actors) else {}
        self._factory = None if env is None else EnvFactory(env)
        spaces = None if self._factory is None else environment_spaces(self._factory)
        if interrupter is not None:
            interrupter.check_start()
        dataset = None
        if data is not None:
            should_stop = never if interrupter is None else interrupter.should_stop
            dataset = open_data(data, spaces, settings, should_stop=should_stop)
            settings |= data_settings(data, dataset)
            spaces = spaces or (dataset.observation_space, dataset.action_space)
        if spaces is None:
            raise ConfigError(
                "there is nothing to learn from: pass an environment (ENV), or data (--data PATH, or data=)"
            )
        self._spaces = spaces
        if self._factory is None and evaluator is None:
            settings |= without_evaluations(settings)
        if agent_settings is not None and isinstance(agent, str) and agent in algorithms.ALGORITHMS:
            agent_settings = resolved(algorithms.with_named_network(agent_settings), steps)
        self.agent = created_agent(
            agent, spaces, seed, agent_settings, dataset=dataset, share=settings.get("data_share", 1)
        )
        self._opening = Opening(self.agent, name=name, root=root, tags=tags, is_new=new)
        if start_from is not None:
            settings["parent"] = find_parent(start_from, with_optimiser=with_optimiser)
            self._opening.start_from(settings["parent"])  # before anything is written, as it may not fit
        self.config = make_config(
            with_round_steps(settings, self.agent),
            algorithm=agent if isinstance(agent, str) else algorithms.algorithm_of(self.agent),
            agent=algorithms.agent_settings(self.agent, agent if isinstance(agent, str) else None, agent_settings),
            env=None if self._factory is None else self._factory.settings,
            data_digest=None if dataset is None else dataset.digest,
            seed=seed,
            steps=steps,
            keep_checkpoints=keep.count if isinstance(keep, KeepLast) else None,
        )
        check_data(self.config, is_named=isinstance(agent, str))
        if self._factory is None and not self.config.is_offline:
            raise ConfigError("data_share is below 1: pass an environment for the rest of each batch")
        check_rollout(self.agent, self.config.num_envs)
        check_actors(self.agent, self.config, has_sampler=sampler is not None)
        if dataset is not None:
            give_data(self.agent, dataset, self.config.data_share)
        self.session: TrainingSession | None = None
        """The session during a training."""
        self._keep = keep
        self._evaluations = Evaluations(self.agent, self._factory, evaluator)
        self._strategy = strategy or default_strategy(self.config)
        self._crew: Crew | None = None
        self._make_sampler = sampler
        self._processor, self._reset_options = step_processor, reset_options
        self._stats, self._dataset = stats, dataset
        self._recorders = [*recorders, *(RECORDERS[name]() for name in self.config.record)]
        self._strict, self._signals = strict, signals
        self._handlers = Handlers()
        self._given_interrupter, self._interrupter = interrupter, interrupter or Interrupter()
        self._listeners: list[Callable[[str], object]] = []
        self._ended: tuple[TrainingSession, float] | None = None
        self._progress: Progress | None = None

    @classmethod
    def from_preset(
        cls,
        env: str | EnvSettings | EnvFactory,
        algorithm: str,
        *,
        steps: int | None = None,
        agent_settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Trainer:
        """A trainer with the settings of a preset; arguments override the preset.

        Raises `ConfigError` if there is no preset for the environment: `rekindle algos` lists the presets.
        """
        factory, tuned = preset_arguments(EnvFactory(env), algorithm, steps)
        tuned["agent_settings"] |= agent_settings or {}
        return cls(factory, algorithm, **{**tuned, **options})

    @classmethod
    def resume(
        cls,
        path: str | Path,
        *,
        env: Any = None,
        agent: AgentSource | None = None,
        steps: int | None = None,
        modules: Sequence[str] = (),
        files: Sequence[str] = (),
        **options: Any,
    ) -> Trainer:
        """A trainer that continues the run at a path, created from its config, with the agent of its latest checkpoint.

        Args:
            path: a run, or a version or name directory: its newest unfinished run, or else its newest.
            env: needed if the environment was created by a lambda.
            agent: needed if the agent is your own and was not given by name.
            steps: a new total number of env steps.
            modules: modules named by the config that may be imported.
            files: files named by the config that the environment may open.
            options: the arguments of `Trainer` that a config cannot hold.
        """
        run = resumed_arguments(path, env=env, agent=agent, steps=steps, modules=modules, files=files, options=options)
        trainer = cls(run.env, run.agent, **run.options)
        trainer.continue_run(run.path)
        return trainer

    def continue_run(self, path: Path) -> None:
        """Continue the run at a path, which must have the config of this trainer, with the agent of its checkpoint."""
        self._opening.path = path
        load_latest(self.agent, path)

    # Training

    def train(self, steps: int | None = None, *, progress: bool | None = None) -> TrainingReport:
        """Train to the end, or until a stop is requested; everything is durable when this returns.

        `steps` changes the total number of env steps: a second call with more steps continues the training. `progress`
        is printed to a terminal or notebook, unless it is False; to anything else only if it is True.
        """
        if progress or (progress is None and shown_interactively()):
            self._progress = self._progress or Progress(self)
        with self._progress.shown() if self._progress and progress is not False else contextlib.nullcontext():
            for _ in self._rounds(steps):
                pass
        return self.report

    def steps(self, steps: int | None = None) -> Generator[Step]:
        """Train like `train`, and yield each env step; leaving the loop checkpoints and stops."""
        if self.config.is_offline:
            raise ConfigError("steps(): a training from data alone makes no env steps; use train()")
        with contextlib.closing(self._rounds(steps)) as rounds:
            for made in rounds:
                if self.session is not None:
                    yield from steps_of(made, self.session)

    def _rounds(self, steps: int | None) -> Generator[Round]:
        if self.session is not None:
            raise ConfigError("this trainer is training: leave its loop first")
        former = self.config
        if steps is not None:
            self.config = msgspec.structs.replace(self.config, steps=steps)
        started = time.perf_counter()
        self._interrupter = interrupter = self._given_interrupter or Interrupter()
        interrupter.check_start()
        for listener in self._listeners:
            interrupter.tell(listener)
        with contextlib.ExitStack() as undo:
            if self._signals:
                undo.enter_context(interrupter.signals())
            undo.enter_context(interrupter.time_limit(self.config.time_limit))
            undo.callback(interrupter.unwatch)
            try:
                run, envs = self._opened(undo)
            except ConfigError:
                self.config = former  # `steps` may be the invalid part
                raise
            was_finished = run.metadata.status == "finished"
            with run.let_go_on_failure():
                self.session = session = self._session_on(run)
            undo.callback(self._end, session, started)
            with session:
                self._opening.describe(run, self.config)
                self._handlers.join(session)
                self._evaluations.join(session, self.config, was_finished=was_finished)
                if session.resumed is None:
                    for warning in foreseen(self.agent, self.config, envs, self._dataset):
                        session.warn(warning)
                components = Components(session, envs, self._sampler(session, envs))
                self._evaluations.begin(session, self.config)
                gc.freeze()  # nearly all existing objects live to the end, and need not be visited by the collector
                undo.callback(gc.unfreeze)
                try:
                    yield from self._strategy.train_loop(components)
                except GeneratorExit:  # the host left its loop, which is not a failure
                    return

    def _end(self, session: TrainingSession, started: float) -> None:
        self._evaluations.leave()
        self.session = None
        self._ended = (session, time.perf_counter() - started)

    def _find_out_determinism(self, should_stop: ShouldStop = never) -> Determinism | None:
        found = self.config.determinism
        if found is None and self._factory is not None:
            found = probe(self._factory, steps=self.config.probe_steps, should_stop=should_stop)
        self.config = msgspec.structs.replace(self.config, determinism=found)
        return found

    def _made_envs(self, undo: contextlib.ExitStack) -> Envs | None:
        config = self.config
        try:
            determinism = self._find_out_determinism(self._interrupter.should_stop)
        except Interrupted:  # no step will be made, and the next process tests it
            determinism = Determinism.REPEATS
        if self._factory is None or determinism is None or config.is_offline:
            return None
        if config.actors is not None:
            self._crew = make_crew(self.agent, self._factory, self._spaces, config, determinism, self._reset_options)
            undo.callback(self._crew.close)
            return None
        envs = make_envs(
            self._factory,
            config.num_envs,
            vectorization=config.vectorization,
            workers=config.workers,
            determinism=determinism,
        )
        undo.callback(envs.close)
        return envs

    def _sampler(self, session: TrainingSession, envs: Envs | None) -> Sampler:
        if envs is None:
            crew, self._crew = self._crew, None
            self._evaluations.crew = crew
            return NoSampler() if crew is None else actor_sampler(session, crew, self.config, self._processor)
        if self._make_sampler is not None:
            return self._make_sampler(session, envs)
        return make_sampler(
            session, envs, processor=self._processor, reset_options=self._reset_options, extras=self.config.extras
        )

    # The run

    def _opened(self, undo: contextlib.ExitStack) -> tuple[TrainingRun, Envs | None]:
        """The run to continue, or a new one, and the environments.

        A new run is created last, after everything that can fail or take long.
        """
        opening, envs = self._opening, None
        is_new = (run := opening.find()) is None
        if run is None:
            envs = self._made_envs(undo)
            run = opening.make(self.config)
        with run.let_go_on_failure():
            run.watch_for_stop(self._interrupter)
            self.config = opening.agree(run, self.config)
            return run, envs if is_new else self._made_envs(undo)

    def _session_on(self, run: TrainingRun) -> TrainingSession:
        config = self.config
        return TrainingSession(
            self.agent,
            run=run,
            max_steps=config.steps,
            checkpoint_every=None if self._opening.is_temporary else config.checkpoint_every,
            keep_checkpoints=self._keep,
            metrics_every=config.metrics_every,
            stats=self._stats,
            recorders=self._recorders,
            callbacks=self._handlers.callbacks,
            strict=self._strict,
            signals=False,  # the trainer handles them, even before there is a session
            interrupter=self._interrupter,
            keep_data=config.keep_data,
        )

    # Events

    def on(self, kind: type[_Event], handler: Callable[[_Event], object]) -> None:
        """Call a function with every event of a class, in order, on the training thread.

        A function with `state()` and `load_state()` is saved with the checkpoint.
        """
        if self.session is not None:
            raise ConfigError("on(): register handlers before the training starts")
        self._handlers.add(kind, handler)

    def on_stop(self, listener: Callable[[str], object]) -> None:
        """Call a function with the reason as soon as a stop is requested before the end.

        It is called on another thread, because the training thread may need a while to take a checkpoint.
        """
        if self.session is not None:
            raise ConfigError("on_stop(): register functions before the training starts")
        self._listeners.append(listener)

    def stop(self, reason: str = "stopped by the host", *, complete: bool = False) -> None:
        """End the training after this round; `complete` means that its goal was reached.

        Otherwise a running evaluation, or the updates on a rollout, are interrupted, and a resume completes them.
        """
        if self.session is not None:
            self.session.stop(reason, complete=complete)

    # Evaluation

    def eval(self, episodes: int | None = None) -> EvalReport:
        """Evaluate the current agent; during a training this is logged, and the best agent is kept.

        During a training, it raises `Interrupted` if a stop is requested in the meantime; then nothing is logged.
        """
        count = required_count("episodes", self.config.eval_episodes if episodes is None else episodes, 1)
        if not self._evaluations.has_evaluator:
            self._find_out_determinism()
        return EvalReport.of(self._evaluations.evaluate(count, self.config).records, session_steps(self.agent))

    # The end

    @property
    def path(self) -> Path | None:
        """The run directory, once there is one."""
        return self._opening.path

    @property
    def report(self) -> TrainingReport:
        """The result of the last training."""
        if self._ended is None or self.path is None:
            raise ConfigError("there is no report: this trainer has not trained yet")
        session, seconds = self._ended
        return TrainingReport.of(session, RunReader(self.path), seconds, is_kept=not self._opening.is_temporary)
