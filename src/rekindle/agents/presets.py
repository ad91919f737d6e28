"""Presets: tuned settings for some environments."""

from __future__ import annotations

import functools
import tomllib
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

import msgspec

from rekindle.agents.settings import Linear

__all__ = ["Preset", "SMALL_NETWORK", "find_preset", "presets"]

SMALL_NETWORK = "rekindle.agents.small_network:small_network"
"""The small network of rekindle, as presets name it in the setting `network`."""

_LEAST_ROLLOUTS = 8
"""The smallest number of rollouts in a run that is shorter than its preset."""


class _Span(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A linear schedule over the whole run."""

    start: float
    end: float


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tuned settings of an algorithm for an environment."""

    steps: int
    """Env steps of the training that the preset is tuned for."""
    num_envs: int = 1
    """Number of parallel environments."""
    agent: dict[str, bool | int | float | str | tuple[int, ...] | _Span] = {}
    """Settings of the agent; schedules have no length."""
    env: dict[str, Any] = {}
    """Settings of the environment, such as wrappers."""
    envs: tuple[str, ...] = ()
    """Patterns of environment ids that it is for; if empty, the name of the preset is the only one."""
    name: str = ""
    """The name of the preset in the file."""

    def fits(self, env_id: str) -> bool:
        """Whether the preset is for this environment."""
        return any(fnmatchcase(env_id, pattern) for pattern in self.envs or (self.name,))

    def settings(self, steps: int | None = None) -> dict[str, Any]:
        """The agent's settings for a run of `steps` env steps, by default those of the preset.

        Schedules span the whole run. A shorter run has a proportionally shorter warm-up, and at least 8 rollouts.
        """
        length = steps or self.steps
        chosen: dict[str, Any] = {
            name: Linear(value.start, value.end, length) if isinstance(value, _Span) else value
            for name, value in self.agent.items()
        }
        if length == self.steps:
            return chosen
        if "epsilon_steps" in chosen:
            chosen["epsilon_steps"] = round(chosen["epsilon_steps"] * length / self.steps)
        if length < self.steps and "warmup_steps" in chosen:
            warmup = chosen["warmup_steps"]
            chosen["warmup_steps"] = max(warmup * length // self.steps, min(warmup, chosen.get("batch_size", 0)))
        if "rollout_steps" in chosen:
            rounds = max(1, length // (_LEAST_ROLLOUTS * self.num_envs))
            chosen["rollout_steps"] = min(chosen["rollout_steps"], rounds * self.num_envs)
            chosen["minibatch_size"] = min(chosen["minibatch_size"], chosen["rollout_steps"])
        return chosen


@functools.cache
def presets() -> dict[str, dict[str, Preset]]:
    """All presets, by algorithm and name."""
    text = resources.files("rekindle.agents").joinpath("presets.toml").read_text("utf-8")
    stored = msgspec.convert(tomllib.loads(text), dict[str, dict[str, Preset]])
    return {
        algorithm: {name: msgspec.structs.replace(preset, name=name) for name, preset in known.items()}
        for algorithm, known in stored.items()
    }


def find_preset(algorithm: str, env_id: str) -> Preset | None:
    """The first preset of an algorithm for an environment; None if there is none."""
    return next((preset for preset in presets().get(algorithm, {}).values() if preset.fits(env_id)), None)
