"""Everything that a training is made of, as it stands in `config.json`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from rekindle.checkpoint.store import list_steps
from rekindle.checks import checked_choice, checked_count, required_count
from rekindle.envs import Determinism, EnvSettings
from rekindle.envs.factory import required_files, required_modules
from rekindle.envs.making import Vectorization
from rekindle.errors import ConfigError, RunError
from rekindle.recorders import RECORDERS, RecorderName
from rekindle.recorders.known import OUTSIDE
from rekindle.run.reader import RunReader
from rekindle.training.algorithms import agent_module, plain
from rekindle.training.evaluation import EVAL_MAX_STEPS

__all__ = [
    "Parent",
    "RESUMED",
    "TrainerConfig",
    "TrainerSettings",
    "check_files",
    "check_modules",
    "check_recorders",
    "check_unedited",
    "make_config",
    "read_config",
]

_MOST_MADE, _MOST_NATIVE = 2**12, 2**20
"""Environments that are made one by one, and rows of a vector environment."""
_MOST_WORKERS = 2**10
_MOST_EPISODES = 10**6
_CHECKPOINT = re.compile(r"(?:best|latest|(?:best|step)_\d{1,18})\.mpk")


class TrainerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a training, besides those of its environment and its agent."""

    seed: int = 0
    """What every random number is derived from."""
    steps: int | None = None
    """Env steps in all; None for no end."""
    num_envs: int = 1
    """Environments that are stepped together."""
    vectorization: Vectorization = "sync"
    """Where they run."""
    workers: int | None = None
    """Worker processes, with `async`."""
    determinism: Determinism | None = None
    """What it takes to repeat an episode; None to find out."""
    checkpoint_every: int | None = 10_000
    """Env steps between checkpoints; None for only the last one."""
    keep_checkpoints: int | None = 3
    """How many to keep; None where policies of a script say which."""
    metrics_every: int | None = 1_000
    """Env steps in a window of metrics."""
    eval_every: int | None = 10_000
    """Env steps between evaluations; None for only the last one."""
    eval_episodes: int = 20
    """Episodes in an evaluation; 0 for no evaluations at all."""
    eval_envs: int = 4
    """Environments that an evaluation steps together."""
    eval_max_steps: int = EVAL_MAX_STEPS
    """Truncate evaluation episodes after so many steps, if the environment has no time limit of its own."""
    extras: tuple[str, ...] | None = None
    """Which numbers of an environment's last info become episode extras; None for all."""
    target_score: float | None = None
    """Stop when an evaluation's score is at least this."""
    patience: int | None = None
    """Stop after so many evaluations without a better score."""
    time_limit: float | None = None
    """Seconds after which to checkpoint and stop, in each process."""
    record: tuple[RecorderName, ...] = ()
    """Where else to send metrics: `tensorboard`, `mlflow`, `wandb`."""

    def __post_init__(self) -> None:
        """Refuse what is out of range, and make plain integers of numpy's."""
        # A config may come with a run from anywhere, and a wrong number must not run until memory or patience ends.
        for name, least, most in (
            ("seed", 0, None),
            ("num_envs", 1, _MOST_NATIVE if self.vectorization == "native" else _MOST_MADE),
            ("eval_episodes", 0, _MOST_EPISODES),
            ("eval_envs", 1, _MOST_MADE),
            ("eval_max_steps", 1, None),
        ):
            msgspec.structs.force_setattr(self, name, required_count(name, getattr(self, name), least, most))
        for name, least, most in (
            ("steps", 0, None),
            ("workers", 1, _MOST_WORKERS),
            ("checkpoint_every", 1, None),
            ("keep_checkpoints", 1, None),
            ("metrics_every", 1, None),
            ("eval_every", 1, None),
            ("patience", 1, None),
        ):
            msgspec.structs.force_setattr(self, name, checked_count(name, getattr(self, name), least, most))
        checked_choice("vectorization", self.vectorization, ("sync", "async", "native"))
        for name in self.record:
            checked_choice("record", name, tuple(RECORDERS))
        if self.time_limit is not None and not self.time_limit > 0:
            raise ConfigError(f"time_limit is {self.time_limit!r}: use a number of seconds above 0, or None")


class Parent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoint of another run that a training begins with."""

    path: str
    """The directory of the run, absolute; as a `file:` URI if it is not UTF-8."""
    file: str
    with_optimiser: bool = False

    def __post_init__(self) -> None:
        """Refuse a name that leads out of the directory of checkpoints."""
        if not _CHECKPOINT.fullmatch(self.file):
            raise ConfigError(f"{self.file!r:.80} is not the name of a checkpoint")

    @classmethod
    def of(cls, directory: Path, file: str, *, with_optimiser: bool) -> Parent:
        """The parent in an absolute directory."""
        text = str(directory)
        return cls(text if _is_utf8(text) else directory.as_uri(), file, with_optimiser)

    @property
    def directory(self) -> Path:
        """The directory of the run."""
        is_uri = self.path.startswith("file://")
        return Path(os.fsdecode(unquote_to_bytes(self.path.removeprefix("file://"))) if is_uri else self.path)


class TrainerConfig(TrainerSettings, frozen=True, kw_only=True):
    """All settings of a training."""

    algorithm: str | None = None
    """The name of the algorithm, or `module:Class`; None for an agent that only its script can make."""
    preset: str | None = None
    """The preset that the settings come from where nothing else was asked for."""
    parent: Parent | None = None
    """What the agent begins with; None for nothing."""
    agent: dict[str, Any] = {}
    """The agent's settings."""
    env: EnvSettings | None = None
    """The environment; None if it is made by a function that no other process can find."""

    @property
    def env_modules(self) -> list[str]:
        """The modules that making the environment would import."""
        return [] if self.env is None else required_modules(self.env)

    @property
    def env_files(self) -> list[str]:
        """The files that making the environment may open."""
        return [] if self.env is None else required_files(self.env)

    @property
    def agent_modules(self) -> list[str]:
        """The modules that making the agent would import."""
        network, own = self.agent.get("network"), agent_module(self.algorithm or "")
        return [*([] if own is None else [own]), *([str(network).partition(":")[0]] if network else [])]

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it this training and no other."""
        return {name: msgspec.to_builtins(getattr(self, name)) for name in (*_IDENTITY, "agent")}

    def differences(self, other: TrainerConfig) -> list[str]:
        """What another config says that would make it another training."""
        told: list[str] = []
        for name in _IDENTITY:
            mine, theirs = getattr(self, name), getattr(other, name)
            is_function = name == "env" and None in (mine, theirs)  # which cannot be compared
            if mine != theirs and not is_function:
                told.append(f"{name} was {_shown(mine)} and is {_shown(theirs)}")
        for name in sorted(self.agent.keys() | other.agent.keys()):
            mine, theirs = self.agent.get(name), other.agent.get(name)
            if mine != theirs:
                told.append(f"agent.{name} was {_shown(mine)} and is {_shown(theirs)}")
        return told


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_IDENTITY = ("algorithm", "env", "seed", "num_envs")


def _shown(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


RESUMED = (
    *(name for name in TrainerSettings.__struct_fields__ if name not in ("seed", "steps", "keep_checkpoints")),
    "preset",
    "parent",
)
"""Settings that a resumed trainer takes from the config as they are."""


def make_config(settings: Mapping[str, Any], **known: Any) -> TrainerConfig:
    """A config from the settings that a trainer was given, and those that it knows; raises `ConfigError`."""
    unknown = sorted(settings.keys() - set(RESUMED))
    if unknown:
        raise ConfigError(f"a trainer has no setting {', '.join(unknown)}; there are {', '.join(RESUMED)}")
    config = TrainerConfig(**settings, **known)
    try:
        return msgspec.convert(plain(config), TrainerConfig)
    except (msgspec.ValidationError, TypeError, UnicodeEncodeError) as error:
        raise ConfigError(f"the settings of the trainer cannot stand in a config: {error}") from None


def read_config(reader: RunReader) -> TrainerConfig:
    """The config of a run that a trainer made."""
    stored: Mapping[str, Any] = reader.read_config()
    if not stored:
        killed = "if it is left of a rekindle train that was killed as it started, delete it and start again"
        advice = "" if list_steps(reader.path / "checkpoints") else f"; {killed}"
        raise ConfigError(f"{reader.path} has no config.json: only its own script can go on with it{advice}")
    try:
        return msgspec.convert(stored, TrainerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{reader.path / 'config.json'} is not the config of a trainer: {error}") from None


def check_unedited(reader: RunReader, config: TrainerConfig) -> None:
    """Refuse a config file that somebody made that of another training."""
    if (known := reader.metadata.training) is None:
        return
    try:
        began = msgspec.convert(known, TrainerConfig)
    except msgspec.ValidationError as error:
        raise RunError(f"{reader.path / 'metadata.json'}: training is not what a trainer wrote: {error}") from None
    if edits := began.differences(config):
        raise ConfigError(
            f"{reader.path / 'config.json'} was edited since the training began: {'; '.join(edits)}. "
            f"Put it back, or begin another training with rekindle train --from {reader.path}"
        )


def check_modules(allowed: Sequence[str], *, env: Sequence[str] = (), agent: Sequence[str] = ()) -> None:
    """Refuse to import what only the run names: whoever can write a file there could run code here."""
    for flag, named in (("--env-module", env), ("--agent-module", agent)):
        for module in named:
            if module not in allowed:
                raise ConfigError(
                    f"the run's config names the module {module}, which is imported only if you name it too: "
                    f"{flag} {module}, or modules=[{module!r}] in Python"
                )


def check_files(named: Sequence[str], allowed: Sequence[str]) -> None:
    """Refuse to let an environment open what only the run names: it may be any file of the user, or a pipe."""
    missing = [file for file in named if file not in allowed]
    if missing:
        raise ConfigError(
            f"the run's config gives {missing[0]!r:.200} to the environment, which may open it only if you name it "
            f"too: --env-file {missing[0]:.200}, or files=[{missing[0]!r:.200}] in Python"
        )


def check_recorders(named: Sequence[RecorderName]) -> None:
    """Refuse to send metrics out of the run because only the run says so."""
    if outside := [name for name in named if name in OUTSIDE]:
        again = " ".join(named)
        raise ConfigError(
            f"the run's config sends metrics to {outside[0]}, outside of the run, which is done only if you name it "
            f"too: --record {again}, or record={list(named)!r} in Python; --record alone, or record=[], goes on without"
        )
