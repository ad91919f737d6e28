"""The run of a server: a new one, or the newest unfinished one of the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rekindle.cli.modules import find_modules_here, module_of
from rekindle.errors import ConfigError
from rekindle.run.creation import checked_name
from rekindle.run.directory import TrainingRun
from rekindle.run.finding import find_run, find_runs, find_unfinished
from rekindle.run.reader import RunReader
from rekindle.session.journal_options import JournalOptions
from rekindle.session.session import TrainingSession
from rekindle.text import path_text, whole
from rekindle.training.algorithms import agent_settings, config_type, fields_of, make_agent
from rekindle.training.config import TrainerConfig, read_config
from rekindle.training.learning_data import NEED_DATA
from rekindle.training.rebuilding import checkpoint_files, load, read_spaces, rebuild_agent
from rekindle.ui.output import complain
from rekindle.wire.space_trees import space_as_tree

__all__ = ["ServedRun", "say_stopped"]

_JOURNAL_LIMIT = 1 << 26
"""Bytes of records before a checkpoint is taken early: clients that make no steps could fill the disk otherwise."""


class ServedRun(msgspec.Struct, frozen=True):
    """What to train or to play, for clients whose spaces may not be known yet."""

    algorithm: str
    name: str
    version: str
    root: Path
    seed: int
    steps: int | None
    play: str | None
    """The checkpoint to act with, without learning; None to train."""
    session: dict[str, Any]
    """Options of the session."""
    agent: Any
    """Settings of the agent; None for the defaults."""

    def check(self) -> None:
        """Raise `ConfigError` for options that cannot be right: now, and not when the first client comes."""
        find_modules_here([*module_of(self.algorithm), *module_of(getattr(self.agent, "network", None))])
        config_type(self.algorithm)
        checked_name("name", self.name)
        checked_name("version", self.version)
        if self.play is not None:
            return
        if self.algorithm in NEED_DATA:
            raise ConfigError(
                f"{self.algorithm} learns from data, and not from clients: train it with rekindle train "
                f"{self.algorithm} ENV --data PATH, then serve it with --play"
            )
        TrainerConfig(
            seed=self.seed,
            steps=self.steps,
            algorithm=self.algorithm,
            checkpoint_every=self.session["checkpoint_every"],
            keep_checkpoints=self.session["keep_checkpoints"],
            metrics_every=self.session["metrics_every"],
        )
        keep, sync = self.session["journal_keep"], self.session["journal_sync"]
        JournalOptions(is_on=False, sync=sync, limit=_JOURNAL_LIMIT, keep=keep).checked(None)

    def known_spaces(self) -> tuple[Any, Any] | None:
        """The spaces of the run to continue; None if there is none."""
        directory = self.root / self.name / self.version
        found = find_unfinished(directory)
        if found is None:
            if finished := find_runs(directory):
                complain(f"{path_text(finished[-1])} is finished: a new run begins")
            return None
        config = read_config(RunReader(found))
        if config.spaces is None:
            raise ConfigError(f"{found} was not created by rekindle serve: use another --name")
        return read_spaces(config.spaces, name=str(found / "config.json"))

    def open(self, observation_space: Any, action_space: Any, **more: Any) -> TrainingSession:
        """Continue the newest unfinished run, or start one; `more` are further options of the session."""
        options, given = {**self.session, **more}, {} if self.agent is None else fields_of(self.agent)
        agent = make_agent(self.algorithm, observation_space, action_space, seed=self.seed, settings=given)
        config = TrainerConfig(
            seed=self.seed,
            steps=self.steps,
            algorithm=self.algorithm,
            agent=agent_settings(agent, self.algorithm, given),
            spaces={
                "observation_space": space_as_tree(observation_space),
                "action_space": space_as_tree(action_space),
            },
            eval_episodes=0,
            checkpoint_every=options["checkpoint_every"],
            keep_checkpoints=options["keep_checkpoints"],
            metrics_every=options["metrics_every"],
        )
        run = TrainingRun.create_or_resume(
            self.name,
            self.version,
            root=self.root,
            seed=self.seed,
            config=config,
            agent=type(agent).__name__,
            max_steps=self.steps,
            training=config.identity,
        )
        with run.let_go_on_failure():
            if run.is_resumed and (changed := read_config(run.reader).differences(config)):
                raise ConfigError(f"{run.path} is another training: {'; '.join(changed)}. Use another --name")
            self._check_steps(run)
            return TrainingSession(
                agent,
                run=run,
                max_steps=self.steps,
                journal=True,
                journal_limit=_JOURNAL_LIMIT,
                signals=False,
                **options,
            )

    def _check_steps(self, run: TrainingRun) -> None:
        """Raise `ConfigError` if a continued run would end at once, before the step at which it was to end."""
        made, before = run.metadata.total_steps, run.metadata.max_steps
        is_earlier = self.steps is not None and (before is None or self.steps < before)
        if run.is_resumed and is_earlier and made >= (self.steps or 0):
            raise ConfigError(f"--steps {self.steps}: {run.path} has made {made} steps already; use more, or none")

    def played(self, checkpoint: str) -> TrainingSession:
        """A session that only acts, with the agent of a checkpoint."""
        run = find_run(self.root / self.name / self.version)
        config = read_config(RunReader(run))
        if config.algorithm != self.algorithm:
            raise ConfigError(f"{run} was trained with {config.algorithm}, not with {self.algorithm}")
        files = checkpoint_files(run, checkpoint)
        agent = rebuild_agent(run, modules=module_of(self.algorithm))
        step = load(agent, files[0])
        complain(f"playing with the agent of {path_text(run)} at step {whole(step)}; nothing is learned")
        return TrainingSession(agent, signals=False)


def say_stopped(session: TrainingSession) -> None:
    """Say why and where a training stopped."""
    where = f"{whole(session.total_steps)} steps, {whole(session.episodes)} episodes"
    complain(f"stopped ({session.stop_reason}) at {where}")
