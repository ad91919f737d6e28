"""Open the run of a trainer: which run to resume, how to create one, and whether a resumed run fits the trainer."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rekindle.agent import LearningAgent, is_offline, session_steps
from rekindle.checkpoint.store import list_steps
from rekindle.errors import ConfigError
from rekindle.run.creation import name_and_version
from rekindle.run.directory import TrainingRun
from rekindle.run.tags import add_tags, checked_tags
from rekindle.training.algorithms import plain
from rekindle.training.config import Parent, TrainerConfig, check_unedited, read_config
from rekindle.training.rebuilding import take_over

__all__ = ["Opening"]


class Opening:
    """Opens the run of a trainer, once for each training.

    A new run is created with everything that a resume needs. So whenever the process is killed, there is either no run,
    or one that can be resumed.
    """

    def __init__(
        self, agent: LearningAgent, *, name: str | None, root: str | Path, tags: Sequence[str] = (), is_new: bool
    ) -> None:
        """`name` is `name` or `name/version`, or None for a temporary run; with `is_new`, no run is resumed."""
        self._agent = agent
        self._name, self._version = name_and_version("unnamed" if name in (None, "") else name)
        self._root, self._is_new, self._is_unnamed = root, is_new, name is None
        self._tags = checked_tags(tags)
        self._parent: str | None = None
        """The checkpoint that the agent started from, as `PATH@STEP`."""
        self.is_temporary = False
        """Whether the run is removed when the trainer is no longer used."""
        self.path: Path | None = None
        """The run to continue; None until there is one."""

    def start_from(self, parent: Parent) -> None:
        """Load the weights of another run's checkpoint into the agent; raises `ConfigError` if they do not fit."""
        self._parent = take_over(self._agent, parent)

    def find(self) -> TrainingRun | None:
        """Open the run to continue; None if a new one must be created."""
        if self.path is not None:
            return TrainingRun.resume(self.path)
        if self._is_unnamed or self._is_new:
            return None
        return TrainingRun.resume_unfinished(self._name, self._version, root=self._root)

    def make(self, config: TrainerConfig) -> TrainingRun:
        """Create a run; if another process has created one of this name since `find`, open that one."""
        self._check_steps(config)
        root = self._root
        if self._is_unnamed:
            self.is_temporary = True
            root = tempfile.mkdtemp(prefix="rekindle-")
            weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        make = TrainingRun.create if self._is_new else TrainingRun.create_or_resume
        return make(
            self._name,
            self._version,
            root=root,
            tags=self._tags,
            seed=config.seed,
            config=config,
            agent=type(self._agent).__name__,
            max_steps=config.steps,
            parent=self._parent,
            training=config.identity,
        )

    def _check_steps(self, config: TrainerConfig) -> None:
        """Raise `ConfigError` if the counters that the agent has taken over leave nothing to train."""
        made = session_steps(self._agent)
        if config.parent is not None and config.steps is not None and made >= config.steps:
            unit = "updates" if is_offline(self._agent) else "env steps"
            raise ConfigError(
                f"{self._parent} has trained {made} {unit}, which with_optimiser takes over, and steps is "
                f"{config.steps}, the total: use more than {made}, or leave out --with-optimiser"
            )

    def agree(self, run: TrainingRun, config: TrainerConfig) -> TrainerConfig:
        """The config to train with; raises `ConfigError` if the resumed run is another training.

        The determinism of the environment, the preset and the parent are taken from the run.
        """
        if not run.is_resumed:
            return config
        if run.read_config():
            config = _agreed(run, config)
        made = list_steps(run.path / "checkpoints")
        # The last step of all environments, or the last round of actors, may exceed the limit.
        if config.steps is not None and made and made[-1] >= config.steps + config.steps_at_once:
            raise ConfigError(
                f"{run.path} has trained {made[-1]} {run.metadata.step_unit} already, and steps is {config.steps}: "
                f"use at least {made[-1]}, or start another training with rekindle train --from {run.path}@{made[-1]}"
            )
        if config.parent is not None and not made:
            self.start_from(config.parent)
        else:
            self._parent = run.metadata.parent
        return config

    def describe(self, run: TrainingRun, config: TrainerConfig) -> None:
        """Write to the run what is missing or has changed."""
        self.path = run.path
        add_tags(run.path, self._tags)
        if run.metadata.training is None:
            run.update_metadata(training=config.identity)
        if run.metadata.parent != self._parent:
            run.update_metadata(parent=self._parent)
        if run.read_config() != plain(config):
            run.write_config(config)


def _agreed(run: TrainingRun, config: TrainerConfig) -> TrainerConfig:
    stored = read_config(run.reader)
    check_unedited(run.reader, stored)
    if differences := stored.differences(config):
        raise ConfigError(
            f"{run.path} is another training: {'; '.join(differences)}. Use the original settings, or another name"
        )
    return msgspec.structs.replace(config, determinism=stored.determinism, preset=stored.preset, parent=stored.parent)
