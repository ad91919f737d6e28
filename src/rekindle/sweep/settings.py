"""The settings of a study, as stored in `study.json`, and what follows from them for one training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from rekindle.agents.names import advice_on
from rekindle.checks import checked_choice, required_count
from rekindle.envs import EnvFactory, EnvSettings, EnvWrapping
from rekindle.envs.factory import required_modules
from rekindle.errors import ConfigError
from rekindle.run.scores import MEASURES, Measure
from rekindle.sweep.samplers import SAMPLERS, SamplerName, propose
from rekindle.sweep.space import Choice, Range, Space
from rekindle.training import Trainer, TrainerSettings
from rekindle.training.algorithms import config_type, converted, plain
from rekindle.training.config import RESUMED

__all__ = ["Pruning", "StudySettings", "trial_version"]

Pruning = Literal["median", "none"]
_MOST_TRIALS = 10_000
_MOST_SEEDS = 1000


class StudySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that determines a study; of one that exists, only `trials` may change."""

    algorithm: str
    """The name of the algorithm, or `module:Class`."""
    env: EnvSettings | None
    """The environment; None to learn from data alone."""
    training: TrainerSettings
    """The settings of each training; its seed is that of the sampler."""
    agent: dict[str, Any] = {}
    """The agent's settings, before those of a trial."""
    preset: str | None = None
    """The preset that they are from."""
    space: dict[str, Any] = {}
    """What is varied, by the dotted name of the setting: a `Range` or a `Choice`, or their fields."""
    sampler: SamplerName = "tpe"
    """How settings are proposed."""
    trials: int = 20
    """How many settings to try."""
    seeds: tuple[int, ...] = (0, 1)
    """One run for each of these seeds, in every trial."""
    ahead: int = 4
    """Trials that run before the result of the first of them is used: trial n knows those up to n - ahead."""
    prune: Pruning = "median"
    """End trials early that are worse than the median of the others."""
    prune_at: tuple[float, ...] = (0.25, 0.5)
    """When to decide that, as shares of the steps."""
    measure: Measure = "final"
    """The score of a run: of its last evaluation, its best one, or the mean of all."""

    def __post_init__(self) -> None:
        """Refuse values that are out of range, and bring the others into their form in a file."""
        for name in ("agent", "space"):
            msgspec.structs.force_setattr(self, name, plain(getattr(self, name)))
        try:
            known = self.parameters
        except (msgspec.ValidationError, TypeError) as error:
            raise ConfigError(f"the space of a study is invalid: {error}") from None
        if not known:
            raise ConfigError("a sweep varies settings: give it a space")
        required_count("trials", self.trials, 1, _MOST_TRIALS)
        required_count("ahead", self.ahead, 1, _MOST_TRIALS)
        checked_choice("sampler", self.sampler, SAMPLERS)
        checked_choice("prune", self.prune, ("median", "none"))
        checked_choice("measure", self.measure, MEASURES)
        if not self.seeds or len(self.seeds) > _MOST_SEEDS or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds are {list(self.seeds)!r:.80}: use different whole numbers")
        if not all(0 < share < 1 for share in self.prune_at):
            raise ConfigError(f"prune_at is {list(self.prune_at)}: use shares between 0 and 1")
        training = self.training
        if training.steps is None or not training.eval_episodes:
            raise ConfigError("a sweep compares evaluations: give it steps, and at least one evaluation episode")
        for name, is_timed in (("time_limit", training.time_limit is not None), ("free", training.free)):
            if is_timed:
                raise ConfigError(f"a sweep has no {name}, as its result would depend on the speed of the machine")

    @property
    def parameters(self) -> Space:
        """The space."""
        return {
            name: msgspec.convert(fields, Choice if "choice" in fields else Range)
            for name, fields in self.space.items()
        }

    @property
    def rungs(self) -> list[int]:
        """The steps of the evaluations at which trials may be pruned."""
        every, steps = self.training.eval_every, self.training.steps or 0
        if self.prune == "none" or every is None:
            return []
        return sorted({rung for share in self.prune_at if 0 < (rung := int(share * steps) // every * every) < steps})

    @property
    def env_modules(self) -> list[str]:
        """The modules that are imported to create the environment."""
        return [] if self.env is None else required_modules(self.env)

    def check(self) -> None:
        """Raise `ConfigError` if a setting of the space does not exist or refuses a value, or nothing can be trained.

        It creates the environment and the agent once, so that a mistake in them is not reported by every trial.
        """
        for number in range(3):
            drawn = propose("random", self.parameters, number, seed=0, ranked=(), pending=())
            self.options(drawn, seed=self.seeds[0])
        options = self.options({}, seed=self.seeds[0])
        Trainer(options.pop("env"), options.pop("agent"), **options)

    def options(self, trial: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
        """The arguments of the `Trainer` for one run of a trial; raises `ConfigError`."""
        agent, env, training = dict(self.agent), cast("dict[str, Any]", {}), cast("dict[str, Any]", {})
        arguments = {} if self.env is None else dict(self.env.arguments)
        for name, value in trial.items():
            owner, dot, field = name.partition(".")
            if not dot:
                _check_name(name, RESUMED, "a training")
                training[name] = value
            elif owner == "agent":
                agent[field] = value
            elif name.startswith("env.arguments."):
                arguments[name.removeprefix("env.arguments.")] = value
            elif owner == "env":
                _check_name(field, EnvWrapping.__struct_fields__, "an environment")
                env[field] = value
            else:
                raise ConfigError(f"the space varies {name}: use agent.NAME, env.NAME, or a setting of the training")
        converted(config_type(self.algorithm), agent)
        try:
            fields = plain({**msgspec.structs.asdict(self.training), **training, "seed": seed})
            settings = msgspec.convert(fields, TrainerSettings)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the settings of a training: {error}") from None
        return {
            "env": None if self.env is None else EnvFactory(self.env, **env, arguments=arguments),
            "agent": self.algorithm,
            "agent_settings": agent,
            "preset": self.preset,
            **msgspec.structs.asdict(settings),
        }

    def differences(self, other: StudySettings) -> list[str]:
        """What differs from the settings of another study, except the number of trials."""
        found: list[str] = []
        for name in self.__struct_fields__:
            mine, theirs = (plain(getattr(settings, name)) for settings in (self, other))
            if mine != theirs and name != "trials":
                found.append(_difference(name, mine, theirs))
        return found


def _difference(name: str, mine: Any, theirs: Any) -> str:
    if isinstance(mine, dict) and isinstance(theirs, dict):
        old, new = cast("dict[str, Any]", mine), cast("dict[str, Any]", theirs)
        keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        return "; ".join(f"{name}.{key} was {old.get(key)!r:.60} and is {new.get(key)!r:.60}" for key in keys)
    return f"{name} was {mine!r:.80} and is {theirs!r:.80}"


def _check_name(name: str, known: Sequence[str], owner: str) -> None:
    if name not in known:
        raise ConfigError(f"the space varies {name}, and {owner} has no such setting; {advice_on(name, known)}")


def trial_version(trial: int, seed: int) -> str:
    """The version of a run of a study.

    >>> trial_version(7, 1)
    'trial-0007-seed1'
    """
    return f"trial-{trial:04}-seed{seed}"
