"""Fork a training: continue from any checkpoint of a run as a new run, with other settings if you like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rekindle.agent import HasReplay
from rekindle.checkpoint.forking import ForkPoint, find_fork_point, fork_run
from rekindle.checkpoint.replay_journal import ReplayJournal, check_layout
from rekindle.checkpoint.store import Checkpoint
from rekindle.envs import EnvFactory
from rekindle.errors import ConfigError, FileRefused, StateError
from rekindle.run.reader import RunReader
from rekindle.run.settings import flat_settings
from rekindle.training.algorithms import plain
from rekindle.training.config import TrainerConfig, check_unedited, read_config
from rekindle.training.resuming import trainer_arguments
from rekindle.training.trainer import AgentSource, Trainer

__all__ = ["fork", "fork_place"]

_STREAMS = ("num_envs", "actors", "envs_each", "round_steps", "pipeline", "free")
"""The settings that say which streams there are, and how they are played."""


def fork(
    source: str | Path,
    output: str | Path | None = None,
    *,
    version: str = "v1",
    tags: Sequence[str] = (),
    agent_settings: Mapping[str, Any] | None = None,
    env: Any = None,
    agent: AgentSource | None = None,
    modules: Sequence[str] = (),
    files: Sequence[str] = (),
    **settings: Any,
) -> Trainer:
    """A trainer on a new run that continues from a checkpoint of another.

    It has everything of the checkpoint: agent, replay buffer, random generators, open episodes and logs. Without
    changes, it ends with the digests of the other run. What is changed is recorded in the metadata of the new run. The
    other run is only read.

    Args:
        source: the checkpoint: `PATH` (its latest), `PATH@best` or `PATH@STEP`.
        output: the name of the new run, or a path whose last part is its name; by default the name of the other with
            `-fork` added, beside it.
        version: the version of the new run.
        tags: tags of the new run, which does not have those of the other.
        agent_settings: settings of the algorithm to change.
        env: another environment with the same spaces; needed if it was created by a lambda.
        agent: needed if the agent is your own and was not given by name.
        modules: modules named by the config that may be imported.
        files: files named by the config that the environment may open.
        settings: other arguments of `Trainer` to change, such as `steps`, `seed` and `eval_every`.
    """
    point = find_fork_point(source)
    reader = RunReader(point.path)
    config = read_config(reader)
    check_unedited(reader, config)
    trainer = _changed_trainer(point, config, agent_settings, env, agent, modules, files, settings)
    _check_fit(trainer, point, with_rows=bool(agent_settings))
    root, name = fork_place(point, reader.metadata.name, output)
    trainer.continue_run(
        fork_run(
            point,
            name=name,
            version=version,
            tags=tags,
            root=root,
            seed=trainer.config.seed,
            config=trainer.config,
            training=trainer.config.identity,
            changes=changed_settings(config, trainer.config),
            max_steps=trainer.config.steps,
        )
    )
    return trainer


def changed_settings(before: TrainerConfig, after: TrainerConfig) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by name: the values before and after."""
    old, new = (flat_settings(plain(config), depth=2) for config in (before, after))
    names = [name for name in {**old, **new} if name not in ("determinism", "data_digest")]
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _changed_trainer(
    point: ForkPoint,
    config: TrainerConfig,
    agent_settings: Mapping[str, Any] | None,
    env: Any,
    agent: AgentSource | None,
    modules: Sequence[str],
    files: Sequence[str],
    settings: Mapping[str, Any],
) -> Trainer:
    options = dict(settings)
    if env is not None and EnvFactory(env).settings != config.env:
        options.setdefault("determinism", None)  # to be tested again
    arguments = trainer_arguments(
        point.path,
        config,
        env=env,
        agent=agent,
        steps=options.pop("steps", None),
        modules=modules,
        files=files,
        options=options,
    )
    known = arguments.options
    if agent_settings:
        known["agent_settings"] = {**(known["agent_settings"] or {}), **agent_settings}
    trainer = Trainer(arguments.env, arguments.agent, **known)
    for name in _STREAMS:
        before, after = getattr(config, name), getattr(trainer.config, name)
        if before != after:
            raise ConfigError(
                f"{name} is {after}, but was {before} at the checkpoint: a fork keeps the streams of its checkpoint"
            )
    changed = trainer.config
    if changed.keep_data != config.keep_data:
        raise ConfigError(
            f"keep_data is {changed.keep_data}, but was {config.keep_data}: a run keeps its data from its beginning "
            "on, or not at all"
        )
    if changed.is_offline != config.is_offline:
        units = ("env steps", "updates")
        raise ConfigError(
            f"the steps of the run are {units[config.is_offline]}, and with these settings they are "
            f"{units[changed.is_offline]}: start a training from its weights instead: --from RUN, or start_from="
        )
    most = changed.steps
    # The last round of several environments may exceed the steps of the run.
    if most is not None and most != config.steps and most < point.step:
        raise ConfigError(f"steps is {most}, but the checkpoint is of step {point.step}: use at least {point.step}")
    return trainer


def _check_fit(trainer: Trainer, point: ForkPoint, *, with_rows: bool) -> None:
    """Raise `ConfigError`, before anything is written, if the agent cannot continue from the checkpoint.

    Reading the rows of its replay buffer takes time, so `with_rows` is for an agent with other settings.
    """
    checkpoint = Checkpoint.read(point.file)
    agent = trainer.agent
    before = agent.state()
    try:
        agent.load_state(checkpoint.agent)
        if isinstance(agent, HasReplay) and checkpoint.replay is not None:
            memory, manifest = agent.replay(), checkpoint.replay
            check_layout(manifest, memory.columns, name=str(point.file))
            if with_rows:
                memory.restore(manifest.first, ReplayJournal(point.path / "replay", resume_count=0).read(manifest))
    except (StateError, FileRefused) as error:
        raise ConfigError(f"{point.file} does not fit the changed settings: {error}") from error
    finally:
        agent.load_state(before)


def fork_place(point: ForkPoint, name: str, output: str | Path | None) -> tuple[Path, str]:
    """The directory of runs, and the name of the new run."""
    path = point.path
    beside = path.parents[2] if path.parent.parent.name == name else path.parent
    if output is None:
        return beside, f"{name}-fork"
    wanted = Path(output)
    return (beside if len(wanted.parts) == 1 else wanted.parent), wanted.name
