"""A space written as JSON is the same when it is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rekindle.space_json import read_space, space_text


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.5, np.array([1, np.inf], np.float32), dtype=np.float32),
        spaces.Box(0, 255, (3, 2), np.uint8),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 3], start=[1, 0]),
        spaces.MultiBinary((2, 2)),
        spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Tuple([spaces.Box(0, 1), spaces.MultiBinary(3)]))]),
    ],
)
def test_a_space_can_be_written_and_read(space: spaces.Space[Any]) -> None:
    again = read_space(space_text(space), name="space")
    assert again == space
    assert repr(again) == repr(space)
