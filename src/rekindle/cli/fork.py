"""`rekindle fork`: continue from a checkpoint of a run as a new run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rekindle.checkpoint.forking import find_fork_point, fork_run
from rekindle.cli.commands.config_file import schedule_value, whole_numbers
from rekindle.cli.modules import find_modules_here
from rekindle.cli.stopping import current_interrupter
from rekindle.cli.train import argument_value, train_shown
from rekindle.envs import EnvSettings, EnvWrapping
from rekindle.errors import ConfigError
from rekindle.run.reader import RunReader
from rekindle.run.settings import setting_text
from rekindle.text import shown_path, whole
from rekindle.training import TrainerSettings
from rekindle.training.algorithms import ALGORITHMS, NoSettings, config_type, fields_of, plain
from rekindle.training.config import TrainerConfig
from rekindle.training.forking import fork, fork_place
from rekindle.ui.output import complain, write_json

__all__ = ["ForkChanges", "fork_hosted", "fork_training"]


class ForkChanges(NamedTuple):
    """What a fork changes."""

    env: EnvSettings | None
    """The environment; None if it stays the same."""
    agent: dict[str, Any]
    training: dict[str, Any]
    known: TrainerConfig
    """The config of the run that is forked."""

    @classmethod
    def of(
        cls,
        *,
        training: TrainerSettings,
        wrapping: EnvWrapping,
        arguments: Mapping[str, str],
        agent: Any,
        known: TrainerConfig,
    ) -> ForkChanges:
        """The options of the command that differ from the config of the run."""
        fields = {name: getattr(training, name) for name in TrainerSettings.__struct_fields__}
        changed = {name: value for name, value in fields.items() if value != getattr(known, name)}
        env = None
        if known.env is not None:
            given = {key: argument_value(text) for key, text in arguments.items()}
            env = msgspec.structs.replace(
                known.env, **msgspec.structs.asdict(wrapping), arguments={**known.env.arguments, **given}
            )
            env = None if env == known.env else env
        elif arguments:
            raise ConfigError("--env.arguments: the run has no environment that the config describes")
        settings: dict[str, Any] = {}
        if not isinstance(agent, NoSettings):
            settings = {
                name: value for name, value in fields_of(agent).items() if plain(value) != known.agent.get(name)
            }
        return cls(env, settings, changed, known)

    def assigned(self, assignments: Sequence[str]) -> ForkChanges:
        """With settings like `agent.learning_rate=1e-4` beside the others; raises `ConfigError`."""
        changes = self
        for assignment in assignments:
            key, is_assigned, text = assignment.partition("=")
            owner, _, name = key.strip().replace("-", "_").rpartition(".")
            if not is_assigned or not name:
                raise ConfigError(f"--set {assignment}: use KEY=VALUE, such as agent.learning_rate=1e-4")
            changes = changes._with(owner, name, argument_value(text.strip()), key)
        return changes._replace(training=whole_numbers(changes.training, TrainerSettings))

    def _with(self, owner: str, name: str, value: Any, key: str) -> ForkChanges:
        if owner == "agent":
            agent = {**self.agent, name: schedule_value(f"--set {key}", value)}
            algorithm = self.known.algorithm
            if algorithm in ALGORITHMS:  # nothing is imported that only the run names
                agent = whole_numbers(agent, config_type(algorithm))
            return self._replace(agent=agent)
        if owner == "" and name in TrainerSettings.__struct_fields__:
            return self._replace(training={**self.training, name: value})
        env = self.env or self.known.env
        if env is not None and owner == "env.arguments":
            return self._replace(env=msgspec.structs.replace(env, arguments={**env.arguments, name: value}))
        if env is not None and owner == "env" and name in EnvWrapping.__struct_fields__:
            return self._replace(env=msgspec.structs.replace(env, **{name: value}))
        raise ConfigError(f"--set {key}: the run has no such setting; `rekindle show` lists those that it has")


def fork_training(  # noqa: PLR0913 - these are the options of a command
    source: str,
    output: Path | None,
    *,
    version: str,
    tags: Sequence[str],
    changes: ForkChanges,
    create_only: bool,
    modules: Sequence[str],
    files: Sequence[str],
    ui: str,
    stay: bool,
    as_json: bool,
) -> int:
    """Create a fork, and train it."""
    find_modules_here(modules)
    interrupter = current_interrupter()
    trainer = fork(
        source,
        output,
        version=version,
        tags=tags,
        agent_settings=changes.agent,
        env=changes.env,
        modules=modules,
        files=files,
        interrupter=interrupter,
        **changes.training,
    )
    path = trainer.path
    if path is None:  # a fork always has a run
        raise ConfigError(f"{source} was not forked")
    if not create_only:
        if ui != "none":
            _tell(path, complain)
        return train_shown(trainer, ui=ui, stay=stay, as_json=as_json)
    if as_json:
        _print_json(path)
    else:
        _tell(path, print)
        print(f"continue it with: rekindle resume {shown_path(path)}")
    return 0


def fork_hosted(source: str, output: Path | None, *, version: str, tags: Sequence[str], as_json: bool) -> int:
    """Create a fork of a run whose calls a program of the user's makes."""
    point = find_fork_point(source)
    root, name = fork_place(point, RunReader(point.path).metadata.name, output)
    path = fork_run(point, name=name, version=version, tags=tags, root=root)
    if as_json:
        _print_json(path)
    else:
        _tell(path, print)
        print("continue it with your program, or with rekindle serve, under its name")
    return 0


def _tell(path: Path, say: Callable[[str], object]) -> None:
    made = RunReader(path).metadata.fork
    if made is not None:
        say(f"{shown_path(path)}: a fork of {made.run} at step {whole(made.step)}")
        for name, (before, after) in made.changes.items():
            say(f"  {name}: {setting_text(before)} -> {setting_text(after)}")


def _print_json(path: Path) -> None:
    made = RunReader(path).metadata.fork
    if made is not None:
        write_json(
            {"path": shown_path(path), "run": made.run, "parent": made.path, "step": made.step, "changes": made.changes}
        )
