"""Settings of agents: schedules over env steps, range checks, and errors that name the setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar, cast, get_args

import msgspec
import numpy as np

from rekindle.agents.names import advice_on
from rekindle.checks import plain_number
from rekindle.errors import ConfigError
from rekindle.policy.encoding import ACTION_MASK, Encoding

__all__ = [
    "Linear",
    "RunSteps",
    "Setting",
    "check_choice",
    "check_flag",
    "check_number",
    "check_sizes",
    "check_steps",
    "check_whole",
    "encoding_of",
    "generators",
    "make_config",
    "network_setting",
    "refuse_fractions",
    "refuse_functions",
    "resolved",
    "value_at",
]

Config = TypeVar("Config", bound=msgspec.Struct)


RunSteps = int | float
"""A number of env steps (int), or a fraction of the training (float from 0 to 1)."""
_FRACTIONS = ("epsilon_steps", "warmup_steps")
"""Settings that may be a fraction of the training."""


class Linear(msgspec.Struct, frozen=True):
    """A linear schedule: the value moves from `start` to `end` over `steps` env steps, and then stays at `end`."""

    start: float
    end: float
    steps: RunSteps
    """Env steps from the start of the training; or a fraction of the training, as a float above 0 and at most 1."""

    def __post_init__(self) -> None:
        """Check the ranges, and convert a length such as 1e6 to an int."""
        if isinstance(self.steps, float) and self.steps > 1 and self.steps.is_integer():
            msgspec.structs.force_setattr(self, "steps", int(self.steps))
        is_length = 0 < self.steps <= 1 if isinstance(self.steps, float) else self.steps >= 1
        if not (math.isfinite(self.start) and math.isfinite(self.end) and is_length):
            raise ConfigError(
                f"{self} is not a schedule: start and end must be finite, and steps at least 1 or a fraction of the "
                "training, above 0.0 and at most 1.0"
            )

    def over(self, training_steps: int) -> Linear:
        """The schedule with its length in env steps, for a training of `training_steps` env steps."""
        return Linear(self.start, self.end, max(1, steps_in(self.steps, training_steps)))

    def at(self, env_steps: int) -> float:
        """The value after `env_steps` env steps."""
        if isinstance(self.steps, float):
            raise ConfigError(f"the length of {self} is a fraction of a training: call over(steps) first")
        return self.start + (self.end - self.start) * min(1.0, env_steps / self.steps)


Setting = float | Linear
"""A number, or a schedule of numbers."""


def value_at(setting: Setting, env_steps: int) -> float:
    """The value of a setting after `env_steps` env steps."""
    return setting.at(env_steps) if isinstance(setting, Linear) else setting


def steps_in(steps: RunSteps, training_steps: int) -> int:
    """Convert a fraction of a training of `training_steps` to env steps."""
    return round(steps * training_steps) if isinstance(steps, float) else steps


def is_fraction(name: str, value: Any) -> bool:
    """Whether a setting is a fraction of the training, or a schedule over one."""
    length = cast("dict[str, Any]", value).get("steps") if isinstance(value, dict) else getattr(value, "steps", None)
    return isinstance(length, float) or (name in _FRACTIONS and isinstance(value, float))


def resolved(settings: Mapping[str, Any], training_steps: int | None) -> dict[str, Any]:
    """Convert every fraction of the training to env steps.

    Schedules may be `Linear` or in their JSON form. Raises `ConfigError` if the training has no limit.
    """
    found = dict(settings)
    for name, value in settings.items():
        if is_fraction(name, value):
            if training_steps is None:
                raise ConfigError(f"{name} is {value!r}, a fraction of a training without an end: set steps")
            if isinstance(value, float):
                check_steps(name, value)
                found[name] = steps_in(value, training_steps)
                continue
            try:
                found[name] = msgspec.convert(msgspec.to_builtins(value), Linear).over(training_steps)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{name} is {value!r}: {error}") from None
    return found


def refuse_fractions(config: Any) -> None:
    """Raise `ConfigError` for settings that are fractions of a training, whose length an agent does not know."""
    for name in config.__struct_fields__:
        if is_fraction(name, value := getattr(config, name)):
            raise ConfigError(f"{name} is {value!r}, a fraction of a training: use env steps, or a Trainer with steps")


def make_config(kind: type[Config], settings: Mapping[str, Any]) -> Config:
    """Make the config of an agent from keyword arguments; raises a `ConfigError` that names an unknown or wrong one."""
    known = kind.__struct_fields__
    unknown = sorted(settings.keys() - set(known))
    if unknown:
        raise ConfigError(f"{kind.__name__} has no setting {unknown[0]!r}; {advice_on(unknown[0], known)}")
    _refuse_schedules(kind, settings)
    config = kind(**{name: plain_number(value) for name, value in settings.items()})
    refuse_fractions(config)
    return config


def refuse_functions(settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a setting that is a function, as schedules are in Stable-Baselines3."""
    for name, value in settings.items():
        if callable(value) and name != "network":
            raise ConfigError(
                f"{name} is a function, which a config cannot store; a schedule is a rekindle.agents.Linear, such as "
                "Linear(1e-3, 0.0, 1.0): from a value to another, over a fraction of the training or over env steps"
            )


def _refuse_schedules(kind: type[msgspec.Struct], settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a schedule of a setting that is constant, and for one that is a function."""
    refuse_functions(settings)
    scheduled = [field.name for field in msgspec.structs.fields(kind) if Linear in get_args(field.type)]
    for name, value in settings.items():
        if isinstance(value, Linear) and name not in scheduled:
            raise ConfigError(f"{name} is {value!r}: it cannot be a schedule; these can: {', '.join(scheduled)}")


def encoding_of(space: Any, config: Any, *, actions: int, mask_sizes: Mapping[str, int] | None = None) -> Encoding:
    """The encoding of observations; raises `ConfigError` if the space cannot be encoded, or not with these settings.

    `actions` is the size of an action mask, 0 for continuous actions. `mask_sizes` are those of composite actions.
    """
    encoding = _with_masks(Encoding.of(space, config.convolutions), mask_sizes or {})
    if not encoding.images and not encoding.vector_size:
        raise ConfigError(f"observation_space is {space!r:.80}: there are no numbers in an observation")
    if encoding.mask_size and not actions:
        raise ConfigError(
            "the observations have an action_mask: continuous actions cannot be masked, "
            "only discrete actions can be masked"
        )
    if encoding.mask_size not in (0, actions):
        raise ConfigError(f"the action_mask has {encoding.mask_size} numbers, but there are {actions} actions")
    if config.normalise_observations and not encoding.vector_size:
        raise ConfigError("normalise_observations is True: images are scaled to 0..1 and cannot be normalised")
    return encoding


def _with_masks(encoding: Encoding, sizes: Mapping[str, int]) -> Encoding:
    """Sort the masks of composite actions in the order of the actions."""
    if not encoding.masks:
        return encoding
    found = {part.name: part for part in encoding.masks}
    expected = {f"{ACTION_MASK}/{name}": size for name, size in sizes.items()}
    if {name: math.prod(part.shape) for name, part in found.items()} != expected:
        shown = ", ".join(f"{name} with {size} numbers" for name, size in expected.items()) or "one array"
        raise ConfigError(f"the action_mask must be one array, or have the structure of the discrete actions: {shown}")
    return msgspec.structs.replace(encoding, masks=[found[name] for name in expected])


def network_setting(network: Any) -> str | None:
    """The import path of a network for the config, `package.module:Name`; None if it cannot be imported by name."""
    if network is None or isinstance(network, str):
        return network
    module, name = getattr(network, "__module__", None), getattr(network, "__qualname__", None)
    return f"{module}:{name}" if module and name and "<" not in name else None


def check_number(name: str, value: Any, least: float = 0.0, most: float = math.inf, *, above: bool = False) -> None:
    """Raise `ConfigError` if a number, or an end of a schedule, is not finite or not from `least` to `most`.

    With `above`, `least` itself is refused too.
    """
    for number in (value.start, value.end) if isinstance(value, Linear) else (value,):
        is_number = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
        if not is_number or not least <= number <= most or (above and number == least):
            low = "" if least == -math.inf else f" above {least:g}" if above else f" of at least {least:g}"
            high = "" if most == math.inf else f"{' and' if low else ''} at most {most:g}"
            kind = "number" if low or high else "finite number"
            raise ConfigError(f"{name} is {value!r}: use a {kind}{low}{high}")


_MOST_STEPS = 2**53
_MOST = {
    "atoms": 10_001,
    "batch_size": 2**24,
    "capacity": 2**32,
    "cosines": 10_001,
    "critics": 100,
    "frame_stack": 1_000,
    "minibatch_size": 2**24,
    "n_step": 10_000,
    "policy_quantiles": 10_001,
    "quantiles": 10_001,
    "rollout_steps": 2**28,
    "target_quantiles": 10_001,
    "updates_each": 2**20,
}
"""The largest values of settings: larger ones, by mistake or in a hostile file, would exhaust memory or never end."""
_MOST_LAYERS, _MOST_UNITS, _MOST_WEIGHTS = 100, 2**16, 2**28
"""Limits on the number of hidden layers, the units of each, and the weights between two."""


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise `ConfigError` unless the value is a whole number of at least `least` and below a generous limit."""
    most = _MOST.get(name, _MOST_STEPS)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r:.60}: use a whole number of at least {least}")
    if value > most:
        raise ConfigError(f"{name} is {value:.3g}: use a whole number of at most {most}")


def check_steps(name: str, value: Any, least: int = 0) -> None:
    """Raise `ConfigError` unless the value is a number of env steps, `least` or more, or a fraction of a training."""
    if isinstance(value, float):
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} is {value!r}: use a whole number of env steps, or a fraction from 0.0 to 1.0")
    else:
        check_whole(name, value, least)


def check_flag(name: str, value: Any) -> None:
    """Raise `ConfigError` unless the value is a bool."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}: use True or False")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise `ConfigError` unless the value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: use one of {', '.join(choices)}")


def check_sizes(name: str, value: Any) -> None:
    """Raise `ConfigError` unless the value is None or the sizes of one or more layers."""
    if value is None:
        return
    sizes = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes):
        raise ConfigError(f"{name} is {value!r:.200}: use one or more whole numbers of at least 1")
    weights = max((before * after for before, after in pairwise(sizes)), default=0)
    if len(sizes) > _MOST_LAYERS or max(sizes) > _MOST_UNITS or weights > _MOST_WEIGHTS:
        raise ConfigError(
            f"{name} is {value!r:.200}: use at most {_MOST_LAYERS} layers of at most {_MOST_UNITS}, and at most "
            f"{_MOST_WEIGHTS} weights between two of them"
        )


def generators(seed: int) -> list[np.random.Generator]:
    """Random generators for the initial weights, for exploration, and for sampling or shuffling.

    They are separate, so that the number of updates does not change the exploration.
    """
    check_whole("seed", plain_number(seed), 0)
    return np.random.default_rng(seed).spawn(3)
