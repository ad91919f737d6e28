"""Agents that no part of rekindle knows, as a user would write them."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np

from rekindle import ActMode, State, Transitions
from rekindle.errors import ConfigError
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer
from rekindle.policy.policy import NetworkPolicy
from rekindle.rng import generator_from_state, generator_state


class WanderingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `Wandering`."""

    spread: float = 0.1
    """How far the weights wander in an update."""
    update_every: int = 4
    """Env steps between two updates."""
    sizes: tuple[int, ...] = (2,)
    """Nothing, but not a number."""

    def __post_init__(self) -> None:
        if self.update_every < 1:
            raise ConfigError(f"update_every is {self.update_every}: use at least 1")


class Wandering:
    """A linear policy whose weights wander about."""

    def __init__(self, observation_space: Any, action_space: Any, *, seed: int, **settings: Any) -> None:
        self.config = WanderingConfig(**settings)
        self.observation_space, self.action_space = observation_space, action_space
        self.env_steps = self.updates = 0
        self._rng = np.random.default_rng(seed)
        self._weights = self._rng.normal(0, 1, (observation_space.shape[0], int(action_space.n))).astype(np.float32)

    def act(self, observations: Any, mode: ActMode, streams: Any) -> Any:
        values = np.asarray(observations, np.float32) @ self._weights
        if mode is ActMode.EXPLORE:
            values = values + self._rng.gumbel(size=values.shape)
        return values.argmax(axis=1)

    def observe(self, transitions: Transitions, streams: Any) -> None:
        self.env_steps += len(transitions)

    def updates_due(self) -> int:
        return self.env_steps // self.config.update_every - self.updates

    def update(self, n: int) -> dict[str, float]:
        for _ in range(n):
            self._weights += self._rng.normal(0, self.config.spread, self._weights.shape).astype(np.float32)
        self.updates += n
        return {"size": float(np.abs(self._weights).sum())}

    def policy(self) -> NetworkPolicy:
        bias = np.zeros(self._weights.shape[1], np.float32)
        layer = Layer("dense", {"weight": self._weights.copy(), "bias": bias})
        head = ActionHead("greedy", "<i8", [], [len(bias)], [0])
        return NetworkPolicy(Encoding.of(self.observation_space), [layer], head, algorithm="wandering")

    def state(self) -> State:
        return {
            "weights": {"weights": self._weights.copy()},
            "env_steps": self.env_steps,
            "updates": self.updates,
            "rng": generator_state(self._rng),
        }

    def load_state(self, state: State) -> None:
        self._weights = state["weights"]["weights"].copy()
        self.env_steps, self.updates = state["env_steps"], state["updates"]
        self._rng = generator_from_state(state["rng"])


class Nested(Wandering):
    """Has its settings inside, as a dataclass, and something else as `config`."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        spread: float = 0.2

    def __init__(self, observation_space: Any, action_space: Any, *, seed: int, spread: float) -> None:
        super().__init__(observation_space, action_space, seed=seed, spread=spread)


class Plain(Wandering):
    """Has no settings."""

    Config = None

    def __init__(self, observation_space: Any, action_space: Any, *, seed: int) -> None:
        super().__init__(observation_space, action_space, seed=seed)


class Demanding(Wandering):
    """Has a setting without a default."""

    class Config(msgspec.Struct):
        spread: float


class Odd(Wandering):
    """Has settings that are none."""

    Config = 7


class Failing(Wandering):
    """Cannot be made."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space, seed=0)


a_function = print
