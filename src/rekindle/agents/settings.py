"""What settings of all agents share: schedules over env steps, ranges, and errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from rekindle.agents.names import advice_on
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
    "resolved",
    "value_at",
]

Config = TypeVar("Config", bound=msgspec.Struct)


RunSteps = int | float
"""Env steps as an int; or as a float from 0 to 1, a fraction of the training."""
_FRACTIONS = ("epsilon_steps", "warmup_steps")
"""Settings that may be a fraction of the training."""


class Linear(msgspec.Struct, frozen=True):
    """A value that moves in a straight line over env steps, and then stays."""

    start: float
    end: float
    steps: RunSteps
    """Env steps, counted from the first; or as a float above 0 and at most 1, a fraction of the training."""

    def __post_init__(self) -> None:
        """Refuse what is out of range, and make an int of a length such as 1e6."""
        if isinstance(self.steps, float) and self.steps > 1 and self.steps.is_integer():
            msgspec.structs.force_setattr(self, "steps", int(self.steps))
        is_length = 0 < self.steps <= 1 if isinstance(self.steps, float) else self.steps >= 1
        if not (math.isfinite(self.start) and math.isfinite(self.end) and is_length):
            raise ConfigError(
                f"{self} is not a schedule: use finite ends, and at least 1 step or a fraction of the training"
            )

    def over(self, training_steps: int) -> Linear:
        """The schedule with its length in env steps, for a training of `training_steps`."""
        return Linear(self.start, self.end, max(1, steps_in(self.steps, training_steps)))

    def at(self, env_steps: int) -> float:
        """The value after so many env steps."""
        if isinstance(self.steps, float):
            raise ConfigError(f"{self} is over a fraction of a training: resolve it first with over(steps)")
        return self.start + (self.end - self.start) * min(1.0, env_steps / self.steps)


Setting = float | Linear
"""A number, or a schedule for it."""


def value_at(setting: Setting, env_steps: int) -> float:
    """What a setting is after so many env steps."""
    return setting.at(env_steps) if isinstance(setting, Linear) else setting


def steps_in(steps: RunSteps, training_steps: int) -> int:
    """Convert to env steps, in a training of `training_steps`."""
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
    """Raise `ConfigError` for settings that are fractions of a training: only a trainer knows its length."""
    for name in config.__struct_fields__:
        if is_fraction(name, value := getattr(config, name)):
            raise ConfigError(f"{name} is {value!r}, a fraction of a training: use env steps, or a Trainer with steps")


def make_config(kind: type[Config], settings: Mapping[str, Any]) -> Config:
    """The config of an agent from keyword arguments; raises `ConfigError` that names an unknown or wrong field."""
    known = kind.__struct_fields__
    unknown = sorted(settings.keys() - set(known))
    if unknown:
        raise ConfigError(f"{kind.__name__} has no setting {unknown[0]!r}; {advice_on(unknown[0], known)}")
    config = kind(**settings)
    refuse_fractions(config)
    return config


def encoding_of(space: Any, config: Any, *, actions: int, mask_sizes: Mapping[str, int] | None = None) -> Encoding:
    """How observations are encoded; raises `ConfigError` for those that cannot be, or not as the settings say.

    `actions` is how many a mask speaks of, 0 for continuous ones; `mask_sizes` is for masks of composite actions.
    """
    encoding = _with_masks(Encoding.of(space, config.convolutions), mask_sizes or {})
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
    """The masks of parts in the order of the actions."""
    if not encoding.masks:
        return encoding
    found = {part.name: part for part in encoding.masks}
    expected = {f"{ACTION_MASK}/{name}": size for name, size in sizes.items()}
    if {name: math.prod(part.shape) for name, part in found.items()} != expected:
        shown = ", ".join(f"{name} with {size} numbers" for name, size in expected.items()) or "one array"
        raise ConfigError(f"the action_mask must be one array, or have the structure of the discrete actions: {shown}")
    return msgspec.structs.replace(encoding, masks=[found[name] for name in expected])


def network_setting(network: Any) -> str | None:
    """What a config says of a network: where to import it from, or None if it is not to be found anywhere."""
    if network is None or isinstance(network, str):
        return network
    module, name = getattr(network, "__module__", None), getattr(network, "__qualname__", None)
    return f"{module}:{name}" if module and name and "<" not in name else None


def check_number(name: str, value: Any, least: float = 0.0, most: float = math.inf, *, above: bool = False) -> None:
    """Refuse a number (or an end of a schedule) that is not finite or outside a range; `above` leaves out the least."""
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
"""Beyond these a setting is a mistake, or the config of a hostile run: it would fill the memory, or never end."""
_MOST_LAYERS, _MOST_UNITS, _MOST_WEIGHTS = 100, 2**16, 2**28
"""Hidden layers, units of each, and weights between two."""


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least so much, or is absurdly large."""
    most = _MOST.get(name, _MOST_STEPS)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r:.60}: use a whole number of at least {least}")
    if value > most:
        raise ConfigError(f"{name} is {value:.3g}: use a whole number of at most {most}")


def check_steps(name: str, value: Any, least: int = 0) -> None:
    """Refuse what is neither a number of env steps (at least `least`) nor a fraction of the training."""
    if isinstance(value, float):
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} is {value!r}: use a whole number of env steps, or a fraction from 0.0 to 1.0")
    else:
        check_whole(name, value, least)


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}: use True or False")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse what is not one of a few words."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: use one of {', '.join(choices)}")


def check_sizes(name: str, value: Any) -> None:
    """Refuse what is neither None nor the sizes of one or more layers."""
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
    """For the weights, for exploring, and for sampling or shuffling.

    Each its own, so that how much is learned does not change which actions are tried.
    """
    check_whole("seed", seed, 0)
    return np.random.default_rng(seed).spawn(3)
