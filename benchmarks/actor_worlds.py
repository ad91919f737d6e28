"""What `benchmarks/actors.py` trains: environments that only cost time, and an agent that learns nothing."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from rekindle import ActMode, State, Transitions
from rekindle.agent import Metrics, StreamSlots
from rekindle.experience import Array, Observations

__all__ = ["Computing", "IdleAgent", "IdlePolicy", "Instant", "Sleeping"]

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


class IdlePolicy:
    """Always chooses action 0."""

    def act(
        self,
        observations: Any,
        mode: ActMode = ActMode.EXPLOIT,  # noqa: ARG002
        rng: np.random.Generator | None = None,  # noqa: ARG002
    ) -> Any:
        return np.zeros(len(observations), np.int64)

    def state(self) -> State:
        return {}

    @classmethod
    def from_state(cls, state: State) -> IdlePolicy:  # noqa: ARG003
        return cls()


class IdleAgent:
    """Acts with zeros and forgets everything."""

    def __init__(self, observation_space: Any, action_space: Any, *, seed: int) -> None:  # noqa: ARG002
        self.observation_space, self.action_space = observation_space, action_space
        self.env_steps = self.updates = 0

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:  # noqa: ARG002
        return np.zeros(len(streams), np.int64)

    def policy(self) -> IdlePolicy:
        return IdlePolicy()

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:  # noqa: ARG002
        self.env_steps += len(transitions)

    def updates_due(self) -> int:
        return 0

    def update(self, n: int) -> Metrics:  # noqa: ARG002
        return {}

    def state(self) -> State:
        return {"env_steps": self.env_steps}

    def load_state(self, state: State) -> None:
        self.env_steps = state["env_steps"]
