"""The arguments of a trainer that continues a run, from its config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rekindle.checkpoint import KeepEvery
from rekindle.data.shipped import is_shipped
from rekindle.errors import ConfigError, DataError
from rekindle.run.finding import find_run
from rekindle.run.reader import RunReader
from rekindle.storage.files import absolute
from rekindle.training.config import (
    RESUMED,
    TrainerConfig,
    check_cluster,
    check_files,
    check_modules,
    check_recorders,
    import_others,
    read_config,
)

__all__ = ["Resumed", "resumed_arguments", "trainer_arguments"]


class Resumed(NamedTuple):
    """A run to continue, and what to create its trainer with."""

    path: Path
    env: Any
    agent: Any
    options: dict[str, Any]


def resumed_arguments(
    path: str | Path,
    *,
    env: Any,
    agent: Any,
    steps: int | None,
    modules: Sequence[str],
    files: Sequence[str],
    options: Mapping[str, Any],
) -> Resumed:
    """Read the config of a run; raises `ConfigError` if it names anything that the caller does not allow."""
    reader = RunReader(absolute(find_run(path, unfinished_first=True)))
    config = read_config(reader)
    data = options.get("data", config.data)
    if isinstance(data, str) and not is_shipped(data) and not Path(data).exists():
        raise DataError(f"{data} does not exist: pass --data PATH (data= in Python) if the data was moved")
    return trainer_arguments(
        reader.path, config, env=env, agent=agent, steps=steps, modules=modules, files=files, options=options
    )


def trainer_arguments(
    path: Path,
    config: TrainerConfig,
    *,
    env: Any,
    agent: Any,
    steps: int | None,
    modules: Sequence[str],
    files: Sequence[str],
    options: Mapping[str, Any],
) -> Resumed:
    """The arguments of a trainer like the one that created a run, from its config; raises like `resumed_arguments`."""
    check_modules(
        modules,
        env=config.env_modules if env is None else (),
        agent=config.agent_modules if agent is None else (),
    )
    if env is None:
        check_files(config.env_files, files)
    if "record" not in options:
        check_recorders(config.record)
    if "ray_address" not in options:
        check_cluster(msgspec.structs.replace(config, actors_on=options.get("actors_on", config.actors_on)))
    import_others(modules, config)
    source = config.env if env is None else env
    if source is None and config.spaces is not None:
        raise ConfigError(
            f"{path} was trained by the clients of rekindle serve: continue it with rekindle serve {config.algorithm} "
            f"--name {path.parent.parent.name} --version {path.parent.name}, and the options that it was started with"
        )
    if source is None and config.needs_env:
        raise ConfigError(f"{path} was trained on a function that only its script defines: pass it as env")
    if agent is None and config.algorithm is None:
        raise ConfigError(f"{path}: only its script defines its agent: pass one as agent")
    arguments: dict[str, Any] = {
        "steps": config.steps if steps is None else steps,
        "seed": config.seed,
        "agent_settings": config.agent if agent is None else None,
        "keep_checkpoints": config.keep_checkpoints or KeepEvery(1),
        **{name: getattr(config, name) for name in RESUMED},
        **options,
    }
    return Resumed(path, source, config.algorithm or "" if agent is None else agent, arguments)
