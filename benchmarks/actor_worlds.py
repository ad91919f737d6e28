"""What `benchmarks/actors.py` trains: environments that only cost time, and an agent that learns nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from programs.timed_worlds import Computing, Instant, Sleeping

from rekindle import ActMode, State, Transitions
from rekindle.agent import Metrics, StreamSlots
from rekindle.experience import Array, Observations

__all__ = ["Computing", "IdleAgent", "IdlePolicy", "Instant", "Sleeping"]


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
