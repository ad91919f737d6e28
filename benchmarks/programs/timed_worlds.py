"""Environments that only cost time; they need nothing but Gymnasium, so that every peer can train on them."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

__all__ = ["Computing", "Instant", "Sleeping"]

SIZE = 4


class Instant(gymnasium.Env[Any, Any]):
    """A step takes no time; an episode has 200."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(-1, 1, (SIZE,), np.float32), Discrete(2)
        self._observation = np.zeros(SIZE, np.float32)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._steps += 1
        return self._observation, 1.0, False, self._steps >= 200, {}


class Sleeping(Instant):
    """A step waits for 5 ms, as for a simulator in another process."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.005)
        return super().step(action)


class Computing(Instant):
    """A step computes for 1 ms of CPU time."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        return super().step(action)
