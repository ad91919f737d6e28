"""The arguments of a trainer with the settings of a preset."""

from __future__ import annotations

from typing import Any

from rekindle.agents.presets import find_preset, presets
from rekindle.envs import EnvFactory
from rekindle.errors import ConfigError
from rekindle.training.algorithms import config_type

__all__ = ["preset_arguments"]


def preset_arguments(factory: EnvFactory, algorithm: str, steps: int | None) -> tuple[EnvFactory, dict[str, Any]]:
    """The environment with the wrappers of the preset, and the other arguments of a trainer.

    `steps` is the length of the training, if it is not that of the preset. Raises `ConfigError` if there is no preset.
    """
    preset = find_preset(algorithm, factory.name)
    if preset is None:
        config_type(algorithm)  # an unknown algorithm is an error of its own
        there = ", ".join(presets().get(algorithm, ())) or "none"
        raise ConfigError(f"there is no preset of {algorithm} for {factory.name}; those of {algorithm}: {there}")
    wrapped = {name: value for name, value in preset.env.items() if not getattr(factory.settings, name)}
    return EnvFactory(factory, **wrapped), {
        "steps": preset.steps if steps is None else steps,
        "num_envs": preset.num_envs,
        "agent_settings": preset.settings(steps),
        "preset": preset.name,
    }
