"""A space written as JSON is the same when it is read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rekindle.space_json import read_space, space_text
from rekindle.wire.space_trees import read_space_tree, space_as_tree


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


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (210, 160, 3), np.uint8),
        spaces.Box(-np.inf, np.inf, (20_000,), np.float64),
        spaces.Dict({"eyes": spaces.Tuple([spaces.Box(0, 1, (84, 84, 4), np.int8)])}),
    ],
)
def test_the_space_of_an_image_is_small_in_a_message(space: spaces.Space[Any]) -> None:
    tree = space_as_tree(space)
    assert len(json.dumps(tree)) < 200
    assert read_space_tree(tree, name="space") == space


def test_bounds_that_differ_are_written_one_by_one_in_a_message() -> None:
    space = spaces.Box(-np.arange(100, dtype=np.float32), np.full(100, np.inf, np.float32))
    tree = space_as_tree(space)
    assert (len(tree["low"]), tree["high"]) == (100, None)
    assert read_space_tree(tree, name="space") == space
