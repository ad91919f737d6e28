"""A frozen lake with a reward that is NaN."""

from typing import Any

import gymnasium as gym


class NanLake(gym.Wrapper[Any, Any, Any, Any]):
    """FrozenLake whose n-th step of an episode is rewarded with NaN."""

    def __init__(self, step: int = 5) -> None:
        super().__init__(gym.make("FrozenLake-v1"))
        self._at, self._steps = step, 0

    def reset(self, **options: Any) -> Any:
        self._steps = 0
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = super().step(action)
        self._steps += 1
        return seen, float("nan") if self._steps == self._at else reward, terminated, truncated, info
