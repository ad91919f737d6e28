"""All settings of a training, as stored in `config.json`."""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

import msgspec

from rekindle.agents.names import advice_on
from rekindle.agents.presets import SMALL_NETWORK
from rekindle.checkpoint.store import list_steps
from rekindle.checks import checked_choice, checked_count, required_count
from rekindle.envs import Determinism, EnvSettings, EnvWrapping
from rekindle.envs.determinism import LEAST_PROBE_STEPS, PROBE_STEPS
from rekindle.envs.factory import required_files, required_modules
from rekindle.envs.making import Vectorization
from rekindle.errors import ConfigError, RunError
from rekindle.recorders import RECORDERS, RecorderName
from rekindle.recorders.known import OUTSIDE
from rekindle.run.reader import RunReader
from rekindle.text import stored_path
from rekindle.training.algorithms import agent_module, plain
from rekindle.training.evaluation import EVAL_MAX_STEPS

__all__ = [
    "ARGUMENTS",
    "DEFAULT_STEPS",
    "Parent",
    "RESUMED",
    "TrainerConfig",
    "TrainerSettings",
    "check_cluster",
    "check_files",
    "check_modules",
    "check_recorders",
    "check_unedited",
    "import_others",
    "make_config",
    "read_config",
]

DEFAULT_STEPS = 100_000
"""The default length of a training."""

_MOST_MADE, _MOST_NATIVE = 2**12, 2**20
"""Limits of `num_envs`: environments that are created one by one, and rows of a vector environment."""
_MOST_WORKERS = 2**10
_MOST_ROUND = 2**20
"""Limits of `round_steps`, and of the transitions of a round."""
_MOST_EPISODES = 10**6
_CHECKPOINT = re.compile(r"(?:best|latest|(?:best|step)_\d{1,18})\.mpk")


ActorsOn = Literal["here", "processes", "ray"]


class TrainerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a training, except those of its environment and its agent."""

    seed: int = 0
    """The seed of all random numbers."""
    steps: int | None = DEFAULT_STEPS
    """Total number of env steps; None for no limit."""
    num_envs: int = 1
    """Number of environments that are stepped together."""
    vectorization: Vectorization = "sync"
    """How to step them: in this process, in worker processes, or as a vector environment."""
    workers: int | None = None
    """Number of worker processes, with `async` or with actors; None for one per processor."""
    actors: int | None = None
    """Number of actors, each with its own environments and random numbers; they play rounds in parallel."""
    envs_each: int = 1
    """Environments of each actor; then `num_envs` is `actors` x `envs_each`."""
    round_steps: int | None = None
    """Steps that each environment makes in a round, all with the same policy; None for about 64, so that rounds fill a
    rollout."""
    pipeline: Literal[0, 1] = 1
    """1: actors play a round while the agent learns from the one before, with a policy that is a round older. 0: they
    take turns."""
    free: bool = False
    """Let actors play on without rounds, each with the newest policy. Faster if they differ in speed, but not exact."""
    actors_on: ActorsOn = "processes"
    """Where actors run: in worker processes, on a Ray cluster, or `here`, in turns with the learner. The result is the
    same."""
    ray_address: str | None = None
    """The address of a running Ray cluster, such as `auto` or `10.0.0.1:6379`; None to start one here."""
    actor_patience: float = 120.0
    """Seconds without a step after which an actor counts as dead, and is started again."""
    determinism: Determinism | None = None
    """Whether episodes can be repeated exactly from their seed; None to test it."""
    probe_steps: int = PROBE_STEPS
    """The maximum number of env steps for that test, at least 30."""
    checkpoint_every: int | None = 10_000
    """Env steps between checkpoints; None for only the last one."""
    keep_checkpoints: int | None = 3
    """How many checkpoints to keep; None if a script passes policies."""
    metrics_every: int | None = 1_000
    """Env steps per metric window."""
    eval_every: int | None = 10_000
    """Env steps between evaluations; None for only the last one."""
    eval_episodes: int = 20
    """Episodes per evaluation; 0 for no evaluations."""
    eval_envs: int = 4
    """Number of environments that an evaluation steps together."""
    eval_workers: int | None = None
    """With actors in processes: play evaluations on this many of them; None for here. The result is the same."""
    eval_max_steps: int = EVAL_MAX_STEPS
    """Truncate evaluation episodes after this many steps, if the environment has no time limit of its own."""
    extras: tuple[str, ...] | None = None
    """Which numbers of the final info of an episode become episode extras; None for all."""
    target_score: float | None = None
    """Stop when the score of an evaluation reaches this value."""
    patience: int | None = None
    """Stop after this many evaluations without a better score."""
    time_limit: float | None = None
    """Seconds after which each process checkpoints and stops."""
    keep_data: bool = False
    """Keep every transition in the run, so that it is a data set."""
    data: str | None = None
    """A data set to learn from: a run, Minari, D4RL or npz. Then no environment is stepped, and steps are updates."""
    data_share: float = 1.0
    """Share of each batch that is from the data; below 1, the environment is stepped for the rest."""
    timeout_after: int | None = None
    """For data without timeouts: every episode was cut short after this many steps."""
    fixed_length: bool = False
    """Accept data in which every episode terminates after the same number of steps, like at a time limit."""
    record: tuple[RecorderName, ...] = ()
    """Additional recorders for metrics: `tensorboard`, `mlflow`, `wandb`."""

    def __post_init__(self) -> None:
        """Refuse values that are out of range, and convert numpy integers to int."""
        # A run, and its config, may come from anywhere; a wrong number must not exhaust memory or run forever.
        for name, least, most in (
            ("seed", 0, None),
            ("num_envs", 1, _MOST_NATIVE if self.vectorization == "native" else _MOST_MADE),
            ("eval_episodes", 0, _MOST_EPISODES),
            ("eval_envs", 1, _MOST_MADE),
            ("eval_max_steps", 1, None),
            ("probe_steps", LEAST_PROBE_STEPS, None),
            ("envs_each", 1, _MOST_MADE),
        ):
            msgspec.structs.force_setattr(self, name, required_count(name, getattr(self, name), least, most))
        for name, least, most in (
            ("steps", 0, None),
            ("workers", 1, _MOST_WORKERS),
            ("actors", 1, _MOST_MADE),
            ("round_steps", 1, _MOST_ROUND),
            ("eval_workers", 1, _MOST_WORKERS),
            ("checkpoint_every", 1, None),
            ("keep_checkpoints", 1, None),
            ("metrics_every", 1, None),
            ("eval_every", 1, None),
            ("patience", 1, None),
            ("timeout_after", 1, None),
        ):
            msgspec.structs.force_setattr(self, name, checked_count(name, getattr(self, name), least, most))
        checked_choice("vectorization", self.vectorization, ("sync", "async", "native"))
        self._check_actors()
        for name, names in (("record", self.record), ("extras", self.extras)):
            if isinstance(names, str):
                raise ConfigError(f"{name} is {names!r:.80}: use a list, such as [{names!r:.80}]")
        for name in self.record:
            checked_choice("record", name, tuple(RECORDERS))
        if self.time_limit is not None and not self.time_limit > 0:
            raise ConfigError(f"time_limit is {self.time_limit!r}: use a number of seconds above 0, or None")
        if isinstance(self.target_score, float) and not math.isfinite(self.target_score):  # JSON cannot hold it
            raise ConfigError(f"target_score is {self.target_score!r}: use a finite number, or None")
        if not 0 < self.data_share <= 1:
            raise ConfigError(f"data_share is {self.data_share!r}: use a number above 0, and at most 1")

    def _check_actors(self) -> None:
        checked_choice("actors_on", self.actors_on, ("here", "processes", "ray"))
        if self.pipeline not in (0, 1):
            raise ConfigError(f"pipeline is {self.pipeline!r}: use 0 or 1")
        if not 0 < self.actor_patience < math.inf:
            raise ConfigError(f"actor_patience is {self.actor_patience!r}: use a finite number of seconds above 0")
        if self.actors is None:
            return
        rows = required_count("actors x envs_each", self.actors * self.envs_each, 1, _MOST_MADE)
        required_count("actors x envs_each x round_steps", rows * (self.round_steps or 1), 1, _MOST_ROUND)
        msgspec.structs.force_setattr(self, "num_envs", rows)
        if self.free and self.actors_on != "processes":
            raise ConfigError(
                "free actors do not wait for each other, which needs processes: use --actors-on processes"
            )
        if self.vectorization == "native":
            raise ConfigError("vectorization is native: actors step their environments one by one; use sync")
        if self.vectorization == "async" and self.actors_on != "here":
            raise ConfigError(f"vectorization is async: actors on {self.actors_on} have processes already; use sync")

    @property
    def steps_at_once(self) -> int:
        """Env steps between two moments at which a training can end."""
        return self.num_envs * (1 if self.actors is None else self.round_steps or 1)

    @property
    def is_offline(self) -> bool:
        """Whether the agent learns from data alone, so that steps are updates."""
        return self.data is not None and self.data_share == 1


class Parent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoint of another run that a training starts from."""

    path: str
    """The directory of the run, absolute; as a `file:` URI if it is not valid UTF-8."""
    file: str
    with_optimiser: bool = False

    def __post_init__(self) -> None:
        """Refuse a name that leads out of the checkpoint directory."""
        if not _CHECKPOINT.fullmatch(self.file):
            raise ConfigError(f"{self.file!r:.80} is not the name of a checkpoint")

    @classmethod
    def of(cls, directory: Path, file: str, *, with_optimiser: bool) -> Parent:
        """The parent in an absolute directory."""
        return cls(stored_path(directory), file, with_optimiser)

    @property
    def directory(self) -> Path:
        """The directory of the run."""
        is_uri = self.path.startswith("file://")
        return Path(os.fsdecode(unquote_to_bytes(self.path.removeprefix("file://"))) if is_uri else self.path)


class TrainerConfig(TrainerSettings, frozen=True, kw_only=True):
    """All settings of a training."""

    algorithm: str | None = None
    """The name of the algorithm, or `module:Class`; None for an agent that only its script can create."""
    preset: str | None = None
    """The preset that provided the settings that were not given."""
    parent: Parent | None = None
    """The checkpoint that the agent starts from; None for a new agent."""
    agent: dict[str, Any] = {}
    """The agent's settings."""
    env: EnvSettings | None = None
    """The environment; None if there is none, or if it is created by a function that other processes cannot import."""
    data_digest: str | None = None
    """The digest of the data set; a resume with other data is refused."""
    spaces: dict[str, Any] | None = None
    """For a run that `rekindle serve` created, which has no environment: its `observation_space` and `action_space`."""

    @property
    def needs_env(self) -> bool:
        """Whether an environment is needed: to step it, or to evaluate the agent."""
        return not self.is_offline or self.eval_episodes > 0

    @property
    def env_modules(self) -> list[str]:
        """The modules that are imported to create the environment."""
        return [] if self.env is None else required_modules(self.env)

    @property
    def env_files(self) -> list[str]:
        """The files that the environment may open when it is created."""
        return [] if self.env is None else required_files(self.env)

    @property
    def agent_modules(self) -> list[str]:
        """The modules that are imported to create the agent."""
        network, own = self.agent.get("network"), agent_module(self.algorithm or "")
        is_foreign = network and network != SMALL_NETWORK
        return [*([] if own is None else [own]), *([str(network).partition(":")[0]] if is_foreign else [])]

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that must not change at a resume."""
        names = (*_IDENTITY, *self._actor_names, *(() if self.data is None else _DATA), "agent")
        return {name: msgspec.to_builtins(getattr(self, name)) for name in names}

    @property
    def _actor_names(self) -> tuple[str, ...]:
        """The settings of actors that belong to the training: where they run does not."""
        return () if self.actors is None else ("actors", "envs_each", "round_steps", "pipeline", "free")

    def differences(self, other: TrainerConfig) -> list[str]:
        """The settings of another config that must not differ, but do."""
        found: list[str] = []
        for name in (*_IDENTITY, "actors", *self._actor_names[1:]):
            mine, theirs = getattr(self, name), getattr(other, name)
            is_function = name == "env" and None in (mine, theirs)  # cannot be compared
            if mine != theirs and not is_function:
                found.append(f"{name} was {_shown(mine)} and is {_shown(theirs)}")
        if other.data_digest != self.data_digest:
            found.append(f"the digest of the data was {self.data_digest}, and of {other.data} is {other.data_digest}")
        if other.data_share != self.data_share:
            found.append(f"data_share was {self.data_share} and is {other.data_share}")
        names = self.agent.keys() | other.agent.keys() if other.algorithm == self.algorithm else ()
        for name in sorted(names):
            mine, theirs = self.agent.get(name), other.agent.get(name)
            if mine != theirs:
                found.append(f"agent.{name} was {_shown(mine)} and is {_shown(theirs)}")
        return found


_IDENTITY = ("algorithm", "env", "seed", "num_envs")
_DATA = ("data_digest", "data_share")


def _shown(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


RESUMED = (
    *(name for name in TrainerSettings.__struct_fields__ if name not in ("seed", "steps", "keep_checkpoints")),
    "preset",
    "parent",
)
"""Settings that a resumed trainer takes from the config unchanged."""


ARGUMENTS = (
    *("name", "root", "tags", "agent_settings", "start_from", "with_optimiser", "evaluator", "strategy", "sampler"),
    *("step_processor", "reset_options", "stats", "recorders", "new", "strict", "signals", "interrupter"),
)
"""The other arguments of a trainer by keyword."""


def make_config(settings: Mapping[str, Any], **known: Any) -> TrainerConfig:
    """A config from the settings given to a trainer, and those that it knows; raises `ConfigError`."""
    unknown = sorted(settings.keys() - set(RESUMED))
    if unknown:
        others = {
            "the agent: give it in agent_settings": known.get("agent", {}),
            "the environment: use EnvFactory(env, ...)": (*EnvWrapping.__struct_fields__, "arguments", "modules"),
        }
        named = (*TrainerSettings.__struct_fields__, *ARGUMENTS)
        advice = advice_on(unknown[0], named, others=others)
        raise ConfigError(f"a trainer has no setting {unknown[0]}; {advice}")
    config = TrainerConfig(**settings, **known)
    try:
        return msgspec.convert(plain(config), TrainerConfig)
    except (msgspec.ValidationError, TypeError, UnicodeEncodeError) as error:
        raise ConfigError(f"the settings of the trainer cannot be part of a config: {error}") from None


def read_config(reader: RunReader) -> TrainerConfig:
    """The config of a run that a trainer created."""
    stored: Mapping[str, Any] = reader.read_config()
    if not stored:
        killed = "if a rekindle train was killed here while it started, delete the run and start again"
        advice = "" if list_steps(reader.path / "checkpoints") else f"; {killed}"
        raise ConfigError(f"{reader.path} has no config.json: only its own script can continue it{advice}")
    try:
        return msgspec.convert(stored, TrainerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{reader.path / 'config.json'} is not the config of a trainer: {error}") from None


def check_unedited(reader: RunReader, config: TrainerConfig) -> None:
    """Raise if the config file was edited so that it describes another training."""
    if (known := reader.metadata.training) is None:
        return
    try:
        began = msgspec.convert(known, TrainerConfig)
    except msgspec.ValidationError as error:
        raise RunError(f"{reader.path / 'metadata.json'}: the field training is invalid: {error}") from None
    if edits := began.differences(config):
        raise ConfigError(
            f"{reader.path / 'config.json'} was edited since the training began: {'; '.join(edits)}. "
            f"Restore it, or start another training with rekindle train --from {reader.path}"
        )


def check_modules(allowed: Sequence[str], *, env: Sequence[str] = (), agent: Sequence[str] = ()) -> None:
    """Refuse to import modules that only the run's config names: anyone who can write the config could run code."""
    missing: list[str] = []
    options = ""
    for flag, named in (("--env-module", env), ("--agent-module", agent)):
        if new := [module for module in dict.fromkeys(named) if module not in allowed and module not in missing]:
            missing += new
            options += f"{' ' if options else ''}{flag} {' '.join(new)}"
    if not missing:
        return
    one, are, them = ("module", "is", "it") if len(missing) == 1 else ("modules", "are", "them")
    raise ConfigError(
        f"the run's config names the {one} {' and '.join(missing)}, which {are} imported only if you name {them} too: "
        f"{options}, or modules={missing} in Python"
    )


def import_others(modules: Sequence[str], config: TrainerConfig) -> None:
    """Import modules that the user names and the config does not: they may register the environment."""
    for module in modules:
        if module not in (*config.env_modules, *config.agent_modules):
            try:
                importlib.import_module(module)
            except Exception as error:  # code of the user
                text = f"the module {module} cannot be imported: {type(error).__name__}: {error}"
                raise ConfigError(text) from error


def check_files(named: Sequence[str], allowed: Sequence[str]) -> None:
    """Refuse files that only the run's config names: the environment could open any file of the user, or a pipe."""
    missing = [file for file in named if file not in allowed]
    if missing:
        raise ConfigError(
            f"the run's config gives {missing[0]!r:.200} to the environment, which may open it only if you name it "
            f"too: --env-file {missing[0]:.200}, or files=[{missing[0]!r:.200}] in Python"
        )


def check_recorders(named: Sequence[RecorderName]) -> None:
    """Refuse recorders outside of the run that only the run's config names."""
    if outside := [name for name in named if name in OUTSIDE]:
        again = " ".join(named)
        raise ConfigError(
            f"the run's config sends metrics to {outside[0]}, outside of the run, which is done only if you name it "
            f"too: --record {again}, or record={list(named)!r} in Python; --record alone, or record=[], means none"
        )


def check_cluster(settings: TrainerSettings, allowed: str | None = None) -> None:
    """Refuse a Ray cluster that only the run's config names: it runs code that it is sent, and so does the learner."""
    address = settings.ray_address
    if settings.actors is not None and settings.actors_on == "ray" and address not in (None, "auto", allowed):
        raise ConfigError(
            f"the run's config connects to the Ray cluster at {address!r:.200}, which is done only if you name it too: "
            f"--ray-address {address:.200} (for a fork --set ray_address={address:.200}), or "
            f"ray_address={address!r:.200} in Python; --actors-on processes continues without it"
        )
