"""Recreate the agent and the environment of a run at one of its checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rekindle.agent import LearningAgent, TakesOver
from rekindle.checkpoint import read_agent_state
from rekindle.checkpoint.store import list_steps
from rekindle.envs import EnvFactory
from rekindle.envs.factory import close_env
from rekindle.errors import CheckpointError, ConfigError, DataError, StateError
from rekindle.run.reader import RunReader
from rekindle.training.algorithms import make_agent
from rekindle.training.config import Parent, TrainerConfig, check_files, check_modules, import_others, read_config
from rekindle.training.learning_data import open_data
from rekindle.wire.space_trees import read_space_tree

__all__ = [
    "Rebuilt",
    "checkpoint_files",
    "find_parent",
    "load",
    "load_latest",
    "read_spaces",
    "rebuild",
    "rebuild_agent",
    "take_over",
]


class Rebuilt(NamedTuple):
    """An environment and an agent created from a run."""

    config: TrainerConfig
    factory: EnvFactory
    agent: LearningAgent


def rebuild(
    path: str | Path, *, modules: Sequence[str] = (), files: Sequence[str] = (), env: str | None = None
) -> Rebuilt:
    """Create the environment and a new agent from a run's config.

    Modules and files that the config names are imported and opened only if they are given. `env` is the environment for
    a run that learned from data without one.
    """
    config = _allowed_config(path, modules, files)
    source = config.env
    if source is None and config.spaces is None and not config.needs_env:
        source = env
    if source is None:
        if config.spaces is not None:
            raise ConfigError(f"{path} was trained by the clients of rekindle serve, and has no environment")
        if not config.needs_env:
            raise ConfigError(f"{path} learned from data, and has no environment: name one when you train")
        raise ConfigError(f"{path}: the environment is defined by its script, and cannot be created from the config")
    factory = EnvFactory(source)
    example = factory(training=False)
    spaces = (example.observation_space, example.action_space)
    close_env(example, factory.name)
    return Rebuilt(config, factory, _made_agent(path, config, spaces))


def rebuild_agent(path: str | Path, *, modules: Sequence[str] = (), files: Sequence[str] = ()) -> LearningAgent:
    """Create a new agent from a run's config, also if the run has no environment; see `rebuild`."""
    config = _allowed_config(path, modules, files)
    if config.spaces is not None:
        return _made_agent(path, config, read_spaces(config.spaces, name=str(path)))
    if config.env is not None or config.data is None or config.needs_env:
        return rebuild(path, modules=modules, files=files).agent
    dataset = open_data(config.data, None, msgspec.structs.asdict(config))
    return _made_agent(path, config, (dataset.observation_space, dataset.action_space))


def read_spaces(stored: Mapping[str, Any], *, name: str) -> tuple[Any, Any]:
    """The observation space and the action space in a config or file; raises `ConfigError`."""
    spaces: list[Any] = []
    for kind in ("observation_space", "action_space"):
        if kind not in stored:
            raise ConfigError(f"{name} has no {kind}")
        try:
            spaces.append(read_space_tree(stored[kind], name=f"{name}: {kind}"))
        except DataError as error:
            raise ConfigError(str(error)) from None
    return spaces[0], spaces[1]


def _allowed_config(path: str | Path, modules: Sequence[str], files: Sequence[str]) -> TrainerConfig:
    config = read_config(RunReader(path))
    check_modules(modules, env=config.env_modules, agent=config.agent_modules)
    check_files(config.env_files, files)
    import_others(modules, config)
    return config


def _made_agent(path: str | Path, config: TrainerConfig, spaces: tuple[Any, Any]) -> LearningAgent:
    if config.algorithm is None:
        raise ConfigError(f"{path}: the agent is defined by its script, and cannot be created from the config")
    return make_agent(config.algorithm, *spaces, seed=config.seed, settings=config.agent, is_offline=config.is_offline)


def checkpoint_files(path: str | Path, which: str) -> list[Path]:
    """The files with an agent: `best` (`latest` if there is none), `latest`, a step, or `all` checkpoints."""
    directory = RunReader(path).path / "checkpoints"
    steps = list_steps(directory)
    if which == "all":
        wanted = [directory / f"step_{step}.mpk" for step in steps]
    elif which.isdecimal():
        wanted = [directory / f"step_{which}.mpk"]
    elif which in ("best", "latest"):
        names = ["best.mpk", "latest.mpk"] if which == "best" else ["latest.mpk"]
        wanted = [directory / name for name in names if (directory / name).exists()][:1]
    else:
        raise ConfigError(f"there is no checkpoint {which!r}: use best, latest, all or a step")
    if not wanted or not all(file.exists() for file in wanted):
        there = ", ".join(map(str, steps)) or "none"
        raise CheckpointError(f"{directory} has no checkpoint {which}; existing steps: {there}")
    return wanted


def find_parent(source: str | Path, *, with_optimiser: bool) -> Parent:
    """The checkpoint that `PATH`, `PATH@best`, `PATH@latest` or `PATH@STEP` refers to."""
    path, at, which = str(source).rpartition("@")
    if not at or not (which in ("best", "latest") or which.isdecimal()):
        path, which = str(source), "latest"
    (file,) = checkpoint_files(path, which)
    if which in ("best", "latest"):  # a link, which will move to another file
        kind = "best" if file.name == "best.mpk" else "step"
        lasting = file.with_name(f"{kind}_{read_agent_state(file)[0]}.mpk")
        file = lasting if lasting.exists() else file
    return Parent.of(file.parent.parent.resolve(), file.name, with_optimiser=with_optimiser)


def take_over(agent: LearningAgent, parent: Parent) -> str:
    """Load the weights of another run's agent into an agent; returns `PATH@STEP`."""
    if not isinstance(agent, TakesOver):
        raise ConfigError(f"{type(agent).__name__} cannot start from another agent's weights: it has no take_over")
    file = parent.directory / "checkpoints" / parent.file
    step, state = read_agent_state(file)
    try:
        agent.take_over(state, with_optimiser=parent.with_optimiser)
    except StateError as error:
        advice = "use the algorithm, the spaces and the network settings of that run"
        raise ConfigError(f"{file} does not fit the agent: {error}; {advice}") from error
    return f"{parent.path}@{step}"


def load(agent: LearningAgent, file: Path) -> int:
    """Load the state in a checkpoint into an agent; returns its step."""
    step, state = read_agent_state(file)
    agent.load_state(state)
    return step


def load_latest(agent: LearningAgent, run: Path) -> None:
    """Load the newest checkpoint of a run that fits into an agent, so that it can be used before it is trained further.

    If none does, the training will say why.
    """
    for step in reversed(list_steps(run / "checkpoints")):
        with contextlib.suppress(Exception):  # of a damaged file, or of an agent of the user
            load(agent, run / "checkpoints" / f"step_{step}.mpk")
            return
