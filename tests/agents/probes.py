"""Tiny worlds whose values are known, told to an agent without an environment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

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
