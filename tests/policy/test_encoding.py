"""Observations of every space as a vector, an image, or several images and a vector."""

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
        (Box(0, 10, (3, 3, 1), np.uint8), np.arange(9).reshape(3, 3, 1), list(range(9))),
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
    ("shape", "channels", "expected"),
    [
        ((4, 84, 84), "first", (4, 84, 84)),
        ((96, 80, 3), "last", (3, 96, 80)),
        ((84, 84), "none", (1, 84, 84)),
        ((4, 96, 80, 3), "last", (12, 96, 80)),
        ((4, 3, 7, 9), "first", (12, 7, 9)),
    ],
)
def test_images_keep_their_bytes_with_channels_first(
    shape: tuple[int, ...], channels: str, expected: tuple[int, ...]
) -> None:
    space = Box(0, 255, shape, np.uint8)
    encoding = Encoding.of(space)
    image = np.arange(np.prod(shape), dtype=np.uint64).astype(np.uint8).reshape(shape)
    (part,) = encoding.parts
    assert (part.kind, part.channels, part.is_bytes, encoding.shape) == ("image", channels, True, expected)
    found = encoded(space, image)
    assert found.dtype == np.uint8
    moved = np.moveaxis(image, -1, -3) if channels == "last" else image
    np.testing.assert_array_equal(found[0], moved.reshape(expected))


def test_bytes_that_are_no_image_are_scaled_to_one() -> None:
    found = encoded(Box(0, 255, (2,), np.uint8), [51, 255])
    np.testing.assert_allclose(found, [[0.2, 1]], rtol=1e-6)
    assert found.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.uint8], ids=["of the space MultiBinary", "bool", "uint8"])
def test_flags_of_an_image_become_numbers_that_are_not_scaled(dtype: Any) -> None:
    shape = (7, 8, 2)
    space: Any = MultiBinary(shape) if dtype is np.int8 else Box(0, 1, shape, dtype)
    flags = np.arange(112).reshape(7, 8, 2) % 3 == 0
    found = encoded(space, flags.astype(space.dtype))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[0], np.moveaxis(flags, -1, 0))


def test_images_come_before_the_vector_of_everything_else() -> None:
    space = Dict(
        {"a": Box(-1, 1, (2,)), "b": Box(0, 255, (9, 8, 3), np.uint8), "c": Discrete(2), "d": MultiBinary((7, 7, 1))}
    )
    encoding = Encoding.of(space)
    assert encoding.shape == ((3, 9, 8), (1, 7, 7), (4,))
    assert [part.name for part in encoding.images] == ["b", "d"]
    colours = np.arange(216, dtype=np.uint8).reshape(1, 9, 8, 3)
    batch = {
        "a": np.array([[0.5, -1]], np.float32),
        "b": colours,
        "c": np.array([1]),
        "d": np.ones((1, 7, 7, 1), np.int8),
    }
    first, second, vector = encoding.encode(batch)
    np.testing.assert_array_equal(first, np.moveaxis(colours, -1, 1))
    np.testing.assert_array_equal(second, np.ones((1, 1, 7, 7)))
    np.testing.assert_array_equal(vector, [[0.5, -1, 0, 1]])
    zeros = encoding.zeros(3)
    assert [array.dtype for array in zeros] == [array.dtype for array in (first, second, vector)]
    assert [array.shape[1:] for array in zeros] == list(encoding.shape)


def test_an_image_beside_nothing_but_a_mask_is_the_only_input() -> None:
    encoding = Encoding.of(Dict({"seen": Box(0, 255, (40, 40), np.uint8), "action_mask": MultiBinary((7, 7, 1))}))
    assert encoding.is_image
    assert encoding.shape == (1, 40, 40)


def test_masks_are_never_images() -> None:
    masks = Tuple([MultiBinary((7, 7, 2))])
    encoding = Encoding.of(Dict({"seen": Box(-1, 1, (2,)), "action_mask": masks}), "always")
    assert [part.kind for part in encoding.masks] == ["box"]


WIDE = {
    "int64": np.array([2**33 + 5, -7, 2**62], np.int64),
    "uint64": np.array([2**33 + 5, 7, 2**63 + 1], np.uint64),
    "uint32": np.array([2**32 - 1, 7, 2**31], np.uint32),
    "float64": np.array([2**33 + 5, 1 / 3, -1e-40], np.float64),
}


@pytest.mark.parametrize("name", WIDE)
def test_wide_numbers_are_the_same_for_numpy_and_for_what_has_32_bits(name: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    dtype: Any = np.dtype(name)
    low, high = (-np.inf, np.inf) if name == "float64" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    for space in (Box(low, high, (3,), dtype), Box(low, high, (3, 1), dtype)):
        encoding = Encoding.of(space)
        values = WIDE[name].reshape(1, *space.shape)
        expected = WIDE[name].astype(np.float32)[None]
        np.testing.assert_array_equal(encoding.encode(values), expected)
        np.testing.assert_array_equal(encoding.encode(encoding.narrow(values), jnp), expected)


def test_discrete_values_may_begin_beyond_32_bits() -> None:
    jnp = pytest.importorskip("jax.numpy")
    space = Dict({"a": Discrete(3, start=2**40), "b": MultiDiscrete([2, 2], start=[2**31 - 2, 0])})
    encoding = Encoding.of(space)
    batch = {"a": np.array([2**40 + 1]), "b": np.array([[2**31 - 1, 1]])}
    expected = [[0, 1, 0, 0, 1, 0, 1]]
    np.testing.assert_array_equal(encoding.encode(batch), expected)
    np.testing.assert_array_equal(encoding.encode(encoding.narrow(batch), jnp), expected)


def test_masks_of_64_bits_keep_their_meaning() -> None:
    jnp = pytest.importorskip("jax.numpy")
    encoding = Encoding.of(Dict({"seen": Discrete(2), "action_mask": Box(0, 2**40, (2,), np.int64)}))
    batch = {"seen": np.array([1]), "action_mask": np.array([[2**32, 0]])}
    for mask in (encoding.mask(batch), encoding.mask(encoding.narrow(batch), jnp)):
        np.testing.assert_array_equal(mask, [[True, False]])


@pytest.mark.parametrize(
    "space",
    [
        Text(3),
        Tuple([Text(3)]),
        Tuple([]),
        Dict({"deep": Dict({"a": Text(3)})}),
        Dict({"deep": Dict()}),
        Dict({"action_mask": Discrete(2)}),
        Box(0, 1, (0,)),
        Dict({"left": Box(0, 1, (3, 0)), "right": Box(0, 1, (0,))}),
    ],
)
def test_what_cannot_be_encoded_is_refused(space: Space[Any]) -> None:
    with pytest.raises(ConfigError, match=r"not supported|no (part|number) to learn from"):
        Encoding.of(space)
