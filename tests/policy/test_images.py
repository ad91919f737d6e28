"""Which arrays of an observation are images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from rekindle.policy.images import Convolutions, image_channels, image_shape
from rekindle.spaces import SpaceParts


def seen(space: Any, convolutions: Convolutions = "auto") -> tuple[int, ...] | None:
    """Channels, rows and columns; None if it is no image."""
    channels = image_channels(SpaceParts.of(space).parts[""], convolutions)
    return None if channels is None else image_shape(space.shape, channels)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((84, 84), (1, 84, 84)),
        ((4, 84, 84), (4, 84, 84)),
        ((84, 84, 4), (4, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((3, 210, 160), (3, 210, 160)),
        ((96, 96, 12), (12, 96, 96)),
        ((12, 96, 96), (12, 96, 96)),
        ((64, 36, 36), (64, 36, 36)),
        ((36, 36, 64), (64, 36, 36)),
        ((35, 35, 3), (3, 35, 35)),
        ((7, 7, 3), (3, 7, 7)),
        ((3, 7, 7), (3, 7, 7)),
        ((10, 10, 10), (10, 10, 10)),
        ((1, 36, 400), (1, 36, 400)),
        ((4, 96, 96, 3), (12, 96, 96)),
        ((4, 3, 96, 96), (12, 96, 96)),
        ((4, 84, 84, 1), (4, 84, 84)),
        ((6, 84, 84), (6, 84, 84)),
        ((128,), None),
        ((6, 7, 3), None),
        ((3, 96, 6), None),
        ((2, 4, 96, 96, 3), None),
        ((), None),
    ],
)
def test_the_channels_of_bytes_are_found_by_the_shape(shape: tuple[int, ...], expected: Any) -> None:
    assert seen(Box(0, 255, shape, np.uint8)) == expected


def ranged(low: float, high: float, *shape: int, dtype: Any = np.float32) -> Box:
    return Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    ("space", "auto", "always"),
    [
        (MultiBinary((10, 10, 4)), True, True),
        (ranged(0, 1, 10, 10, 4, dtype=np.bool_), True, True),
        (ranged(0, 1, 4, 10, 10), True, True),
        (ranged(0, 0.5, 2, 4, 10, 10, dtype=np.float64), True, True),
        (ranged(0, 1, 10, 10), False, True),
        (ranged(-1, 1, 4, 11, 11), False, True),
        (ranged(0, 255, 4, 11, 11), False, True),
        (ranged(0, 10, 9, 9, 3, dtype=np.uint8), False, True),
        (ranged(-np.inf, np.inf, 36, 36), True, True),
        (ranged(-1, 1, 1, 40, 36), True, True),
        (ranged(0, 254, 36, 36, 3, dtype=np.uint8), True, True),
        (ranged(0, 1, 5, 5, 4), False, False),
        (Discrete(9), False, False),
        (MultiDiscrete(np.full((10, 10, 4), 2)), False, False),
    ],
)
def test_other_arrays_are_images_if_they_are_like_one_or_if_a_setting_says_so(
    space: Any, auto: bool, always: bool
) -> None:
    assert (seen(space) is not None, seen(space, "always") is not None) == (auto, always)
    assert seen(space, "never") is None
