"""A vector environment with one row, used as a single environment."""

from __future__ import annotations

from typing import Any, cast

import gymnasium
import numpy as np

from rekindle.envs.autoreset import AutoresetEnvs
from rekindle.errors import ConfigError
from rekindle.experience import EpisodeStatus
from rekindle.spaces import ActionStructure

__all__ = ["AloneEnv"]


class AloneEnv(gymnasium.Env[Any, Any]):
    """Wraps a vector environment of one row as a single environment, for evaluations and for probing it."""

    def __init__(self, vector_env: gymnasium.vector.VectorEnv[Any, Any, Any], name: str) -> None:
        if vector_env.num_envs != 1:
            raise ConfigError(
                f"{name} created a vector environment of {vector_env.num_envs} rows, but one was needed: "
                "give the function a parameter num_envs, without a default"
            )
        self.env = vector_env
        self._envs = AutoresetEnvs(vector_env, name)
        self.observation_space, self.action_space = self._envs.observation_space, self._envs.action_space
        self._structure = ActionStructure.of(self.action_space)
        self.metadata = {name: value for name, value in vector_env.metadata.items() if name != "autoreset_mode"}
        self.render_mode = vector_env.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        chosen = int(self.np_random.integers(2**31)) if seed is None else seed
        return self._envs.first(self._envs.reset(np.ones(1, np.bool_), [chosen], options)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; only the numbers of the final info are kept."""
        if self._structure is None:
            actions = np.asarray(action, self.action_space.dtype)[None]
        else:
            actions = self._structure.nested(self._structure.flat(action, "the action")[None])
        outcome = self._envs.step(actions)
        status = outcome.statuses[0]
        return (
            self._envs.first(outcome.observations),
            float(outcome.rewards[0]),
            bool(status == EpisodeStatus.TERMINATED),
            bool(status == EpisodeStatus.TRUNCATED),
            cast("dict[str, Any]", outcome.extras.get(0, {})),
        )

    def render(self) -> Any:
        """Render the environment."""
        frames: Any = self._envs.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close the environment."""
        self._envs.close()
