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
from rekindle.spaces import ActionStructure, SpaceParts, discrete_values

__all__ = ["RandomActions"]


class RandomActions:
    """Draws random actions that an observation's `action_mask` allows.

    It samples from a copy of the action space, because an environment may sample from its own.
    """

    def __init__(self, space: Any) -> None:
        self._space = copy.deepcopy(space)
        self._structure = ActionStructure.of(space)
        self._counts: list[int] = []
        """The number of values of each discrete element."""
        self._starts: list[int] = []
        self._places: list[int] = []
        """The index of each discrete element in a flattened action."""
        end = 0
        for part in SpaceParts.of(space).parts.values():
            start, end = end, end + (0 if part.spec is None else math.prod(part.spec.shape))
            if part.has_choices:
                counts, starts = discrete_values(part.space)
                self._counts += counts
                self._starts += starts
                self._places += range(start, end)

    def seed(self, seed: int) -> None:
        """Seed the random actions."""
        self._space.seed(seed)

    def draw(self, observation: Any) -> Any:
        """Draw a random action; a composite one is a row of numbers.

        Raises `InputError` if the mask allows none, or has the wrong size.
        """
        masks, structure = self._masks(observation), self._structure
        if masks is None:
            action = self._space.sample()
            return action if structure is None else structure.flat(action, "the action")
        chosen = [
            start + self._space.np_random.choice(np.flatnonzero(mask))
            for start, mask in zip(self._starts, masks, strict=True)
        ]
        if structure is None:
            return np.array(chosen, self._space.dtype).reshape(self._space.shape)[()]
        row = structure.flat(self._space.sample(), "the action")
        row[self._places] = chosen
        return row

    def executed(self, action: Any) -> Any:
        """Convert a drawn action to the form that the environment takes."""
        if self._structure is not None:
            return self._structure.nested(action)
        return cast("Array", action)[()] if isinstance(action, np.ndarray) else action  # a number, not an array of one

    def allows(self, observation: Any, action: Any) -> bool:
        """Whether the mask allows a drawn action."""
        masks = self._masks(observation)
        if masks is None:
            return True
        chosen = np.ravel(action)[self._places] - self._starts
        return all(mask[int(place)] for mask, place in zip(masks, chosen.tolist(), strict=True))

    def _masks(self, observation: Any) -> list[Array] | None:
        """The allowed values of each element of an action; None if all are allowed."""
        if not self._counts or not isinstance(observation, Mapping) or ACTION_MASK not in observation:
            return None
        mask = cast("Mapping[str, Any]", observation)[ACTION_MASK]
        if self._structure is not None and self._structure.masks is not None and isinstance(mask, Mapping | tuple):
            mask = np.concatenate([np.ravel(part) for part in self._structure.masks.leaves(mask, "the action_mask")])
        flat = np.ravel(mask).astype(bool)
        if len(flat) != sum(self._counts):
            raise InputError(f"the action_mask has {len(flat)} numbers, but there are {sum(self._counts)} actions")
        masks = np.split(flat, np.cumsum(self._counts)[:-1])
        if not all(mask.any() for mask in masks):
            raise InputError("the action_mask allows no action")
        return masks
