"""Observations of every space as one vector, or as an image."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from rekindle.errors import ConfigError
from rekindle.policy.encoding import Encoding


def encoded(space: Space[Any], *values: Any) -> Any:
    encoding = Encoding.of(space)
    if isinstance(space, Dict):
        batch: Any = {name: np.stack([value[name] for value in values]) for name in space.spaces}
    else:
        batch = np.stack([np.asarray(value) for value in values])
    result = encoding.encode(batch)
    np.testing.assert_array_equal(encoding.encoder()(batch), result)
    assert result.shape[1:] == encoding.shape
    return result


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (Box(-1, 1, (2,), np.float32), [0.5, -1], [0.5, -1]),
        (Box(-1, 1, (2,), np.float64), [0.5, -1], [0.5, -1]),
        (Box(-1, 1, (2, 2), np.float32), [[1, 2], [3, 4]], [1, 2, 3, 4]),
        (Box(0, 9, (), np.float32), 3.0, [3]),
        (Discrete(3), 2, [0, 0, 1]),
        (Discrete(3, start=-1), -1, [1, 0, 0]),
        (MultiDiscrete([2, 3]), [1, 0], [0, 1, 1, 0, 0]),
        (MultiDiscrete([2, 3], start=[5, -1]), [5, 1], [1, 0, 0, 0, 1]),
        (MultiBinary(3), [1, 0, 1], [1, 0, 1]),
        (Box(0, 255, (3, 3, 1), np.uint8), np.arange(9).reshape(3, 3, 1), list(range(9))),
    ],
)
def test_a_space_becomes_a_vector(space: Space[Any], value: Any, expected: list[float]) -> None:
    found = encoded(space, value, value)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [expected, expected])


def test_parts_of_a_dict_are_put_end_to_end_without_the_mask() -> None:
    space = Dict({"b": Discrete(2), "a": Box(-1, 1, (2,)), "action_mask": MultiBinary(4)})
    value = {"b": 1, "a": np.array([5, 6], np.float32), "action_mask": np.array([1, 0, 0, 1])}
    order = [part.name for part in Encoding.of(space).parts]
    expected = {"a": [5, 6], "b": [0, 1]}
    np.testing.assert_array_equal(encoded(space, value), [sum((expected[name] for name in order), [])])  # noqa: RUF017
    batch = {name: np.stack([part]) for name, part in value.items()}
    np.testing.assert_array_equal(Encoding.of(space).mask(batch), [[True, False, False, True]])


@pytest.mark.parametrize(
    ("shape", "kind", "expected"),
    [
        ((4, 84, 84), "channels_first", (4, 84, 84)),
        ((96, 80, 3), "channels_last", (3, 96, 80)),
        ((84, 84), "one_channel", (1, 84, 84)),
    ],
)
def test_images_keep_their_bytes_with_channels_first(
    shape: tuple[int, ...], kind: str, expected: tuple[int, ...]
) -> None:
    space = Box(0, 255, shape, np.uint8)
    encoding = Encoding.of(space)
    image = np.arange(np.prod(shape), dtype=np.uint64).astype(np.uint8).reshape(shape)
    assert (encoding.image, encoding.is_bytes, encoding.shape) == (kind, True, expected)
    found = encoded(space, image)
    assert found.dtype == np.uint8
    moved = np.moveaxis(image, 2, 0) if kind == "channels_last" else image.reshape(expected)
    np.testing.assert_array_equal(found[0], moved)


@pytest.mark.parametrize(
    "space",
    [
        Text(3),
        Tuple([Text(3)]),
        Tuple([]),
        Dict({"deep": Dict({"a": Text(3)})}),
        Dict({"deep": Dict()}),
        Dict({"action_mask": Discrete(2)}),
    ],
)
def test_what_cannot_be_encoded_is_refused(space: Space[Any]) -> None:
    with pytest.raises(ConfigError, match=r"not supported|no part to learn from"):
        Encoding.of(space)
