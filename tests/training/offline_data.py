"""A small data set of random episodes, as an npz file."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


def write_data(path: Path, env_id: str = "Pendulum-v1", *, episodes: int = 4, seed: int = 0) -> Path:
    """Random episodes of at most 50 steps."""
    env = gymnasium.make(env_id, max_episode_steps=50)
    env.action_space.seed(seed)
    rows: dict[str, list[object]] = {
        name: [] for name in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    }
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        is_done = False
        while not is_done:
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            row = (observation, action, float(reward), following, terminated, truncated and not terminated)
            for column, value in zip(rows.values(), row, strict=True):
                column.append(value)
            observation, is_done = following, terminated or truncated
    env.close()
    columns: dict[str, Any] = {name: np.array(column) for name, column in rows.items()}
    np.savez(path, **columns)
    return path
