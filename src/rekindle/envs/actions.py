"""Random actions for probing and checking an environment."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from rekindle.errors import InputError
from rekindle.experience import Array
from rekindle.policy.encoding import ACTION_MASK
from rekindle.spaces import discrete_values

__all__ = ["RandomActions"]


class RandomActions:
    """Draws random actions that an observation's `action_mask` allows.

    It samples from a copy of the action space, because an environment may sample from its own.
    """

    def __init__(self, space: Any) -> None:
        self._space = copy.deepcopy(space)
        match type(space).__name__:
            case "Discrete" | "MultiDiscrete":
                self._counts, self._starts = discrete_values(space)
            case "MultiBinary":
                size = math.prod(space.shape)
                self._counts, self._starts = [2] * size, [0] * size
            case _:
                self._counts, self._starts = [], []

    def seed(self, seed: int) -> None:
        """Seed the actions that follow."""
        self._space.seed(seed)

    def draw(self, observation: Any) -> Any:
        """A random action; raises `InputError` if the mask allows none, or has the wrong size."""
        masks = self._masks(observation)
        if masks is None:
            return self._space.sample()
        chosen = [
            start + self._space.np_random.choice(np.flatnonzero(mask))
            for start, mask in zip(self._starts, masks, strict=True)
        ]
        return np.array(chosen, self._space.dtype).reshape(self._space.shape)[()]

    def allows(self, observation: Any, action: Any) -> bool:
        """Whether the mask allows an action."""
        masks = self._masks(observation)
        if masks is None:
            return True
        places = np.ravel(action) - self._starts
        return all(mask[place] for mask, place in zip(masks, places.tolist(), strict=True))

    def _masks(self, observation: Any) -> list[Array] | None:
        """The allowed values of each element of an action; None if all are allowed."""
        if not self._counts or not isinstance(observation, Mapping) or ACTION_MASK not in observation:
            return None
        flat = np.ravel(cast("Mapping[str, Any]", observation)[ACTION_MASK]).astype(bool)
        if len(flat) != sum(self._counts):
            raise InputError(f"the action_mask has {len(flat)} numbers, but there are {sum(self._counts)} actions")
        masks = np.split(flat, np.cumsum(self._counts)[:-1])
        if not all(mask.any() for mask in masks):
            raise InputError("the action_mask allows no action")
        return masks
