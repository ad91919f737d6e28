"""Environments and networks with a fault that strikes late."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np


class Walk(gym.Env[Any, Any]):
    """A walk on a line; at one step of all, an observation or a reward is not what it should be."""

    def __init__(self, reward_at: int = -1, observation_at: int = -1, size: float = 1.0) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._fault = (reward_at, observation_at, size)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._steps = float(self.np_random.normal()), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place += 0.2 if action else -0.2
        self._steps += 1
        reward_at, observation_at, size = self._fault
        seen = self._seen()
        if self._steps == observation_at:
            seen[1] = size
        reward = float("nan") if self._steps == reward_at else -abs(self._place)
        return seen, reward, False, self._steps >= 1000, {}

    def _seen(self) -> Any:
        return np.array([self._place, 1, self._steps / 1000], np.float32)


class Power(eqx.Module):
    """A layer that overflows as soon as a number is above a limit."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.exp(jnp.where(x > 1.5, 100 * x, x))


class Root(eqx.Module):
    """A layer with a mistake: the root of a number that may be negative."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.sqrt(0.35 - x)


class Faulty(eqx.Module):
    """A linear layer, a faulty one, and another linear one."""

    first: eqx.nn.Linear
    second: Any
    third: eqx.nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.third(self.second(self.first(x))))


def overflowing(shape: Any, *, key: Any) -> Faulty:
    return _network(shape, key, Power())


def broken(shape: Any, *, key: Any) -> Faulty:
    return _network(shape, key, Root())


def _network(shape: Any, key: Any, second: Any) -> Faulty:
    first, third = jax.random.split(key)
    return Faulty(eqx.nn.Linear(shape[0], 4, key=first), second, eqx.nn.Linear(4, 8, key=third))
