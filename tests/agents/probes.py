"""Tiny worlds whose values are known, told to an agent without an environment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from rekindle.experience import Array, EpisodeStatus, Transitions

CONTINUING, TERMINATED, TRUNCATED = EpisodeStatus
NUMBER = Box(-2, 2, (1,), np.float32)
TWO = Discrete(2)

Move = tuple[float, Any, float, float, EpisodeStatus]
"""Observation, action, reward, next observation, status."""


def tell(agent: Any, moves: Iterable[Move], *, stream: int = 0) -> None:
    """Let an agent observe moves of one stream, one after the other."""
    space = agent.action_space
    for before, action, reward, after, status in moves:
        transitions = Transitions(
            np.array([[before]], np.float32),
            np.full((1, *space.shape), action, space.dtype),
            np.array([reward]),
            np.array([[after]], np.float32),
            np.array([status], np.uint8),
        )
        agent.observe(transitions, np.array([stream]))


def constant_reward(actions: Iterable[float] = (0, 1)) -> list[Move]:
    """Every step earns 1 and ends the task."""
    return [(0, action, 1, 0, TERMINATED) for action in actions]


def delayed_reward(actions: Iterable[float] = (0, 1)) -> list[Move]:
    """The second of two steps earns 1."""
    return [step for action in actions for step in ((-1, action, 0, 1, CONTINUING), (1, action, 1, 0, TERMINATED))]


def reward_by_action() -> list[Move]:
    """One action earns 1, the other costs 1."""
    return [(0, 0, -1, 0, TERMINATED), (0, 1, 1, 0, TERMINATED)]


def reward_by_observation(actions: Iterable[float] = (0, 1)) -> list[Move]:
    """What is seen is what is earned."""
    return [(seen, action, seen, 0, TERMINATED) for seen in (-1, 1) for action in actions]


def cut_short(actions: Iterable[float] = (0, 1)) -> list[Move]:
    """Every step earns 1, and the episode is cut short: the future has its value all the same."""
    return [(0, action, 1, 0, TRUNCATED) for action in actions]


def reward_by_distance(actions: Iterable[float]) -> list[Move]:
    """An action costs the square of its distance from the best one, which is one more than what is seen."""
    return [(seen, action, -((action - seen - 1) ** 2), seen, TERMINATED) for seen in (-1, 1) for action in actions]


def numbers(*values: float) -> Array:
    """Observations of `NUMBER`."""
    return np.array(values, np.float32)[:, None]


class Corridor(gymnasium.Env[Any, Any]):
    """A path through a square of rooms and back and forth, right in one row and left in the next.

    Each row looks like a picture of its own, and each column like a vector of its own, both of noise: what to do can
    only be told from both. Every step costs 0.1, and the last room earns 1; so the best return is `best`.
    """

    def __init__(self, *, size: int = 3, side: int = 12) -> None:
        rng = np.random.default_rng(7)
        self._pictures = rng.integers(0, 256, (size, side, side, 1), np.uint8)
        self._vectors = rng.random((size, 5)).astype(np.float32)
        self._size = size
        self.best = 1 - 0.1 * (size**2 - 2)
        self.observation_space = Dict(
            {"picture": Box(0, 255, (side, side, 1), np.uint8), "vector": Box(0, 1, (5,), np.float32)}
        )
        self.action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._room, self._steps = 0, 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        size = self._size
        row, column = self._place()
        right = row % 2 == 0
        is_end = column == (size - 1 if right else 0)
        ahead = 2 if is_end else int(not right)
        is_start = column == (0 if right else size - 1)
        if action == ahead:
            self._room += 1
        elif action == int(right) and not is_start:
            self._room -= 1
        self._steps += 1
        is_over = self._room == size**2 - 1
        return self._observation(), 1.0 if is_over else -0.1, is_over, self._steps >= 60, {}

    def _place(self) -> tuple[int, int]:
        row, column = divmod(self._room, self._size)
        return row, column if row % 2 == 0 else self._size - 1 - column

    def _observation(self) -> Any:
        row, column = self._place()
        return {"picture": self._pictures[row], "vector": self._vectors[column]}
