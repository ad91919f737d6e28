"""The convolution of images is that of XLA, with its gradients, in operations that are quick inside a loop."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportUnknownMemberType=false, reportUnknownLambdaType=false

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.agents import convolution
from rekindle.agents.convolution import convolved
from rekindle.agents.encoders import Conv, convolutions
from rekindle.agents.networks import uniform_fan_in
from rekindle.errors import ConfigError
from rekindle.experience import Array
from rekindle.policy.encoding import Input

SHAPES = {
    "the first of Nature's": (5, (4, 84, 84), 8, 4),
    "the second": (6, (7, 20, 20), 4, 2),
    "the third": (7, (3, 9, 9), 3, 1),
    "sides that the stride does not divide": (2, (3, 39, 42), 8, 4),
    "a stride of three": (2, (2, 14, 11), 6, 3),
    "a small image": (3, (3, 7, 9), 3, 1),
    "a stride of two, windows side by side": (3, (1, 9, 10), 2, 2),
}


def drawn(shape: tuple[int, ...], *, is_bytes: bool) -> Array:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, shape, np.uint8) if is_bytes else rng.normal(size=shape).astype(np.float32)


def expected(images: Any, weight: Any, bias: Any, stride: int) -> jax.Array:
    output = jax.lax.conv(images.astype(jnp.float32), weight, (stride, stride), "VALID")
    return jax.nn.relu(output + bias[:, None, None])


def in_blocks(image: Any, side: int) -> Any:
    """(channels, rows, columns) to (rows, columns, numbers of a block)."""
    channels, rows, columns = image.shape
    whole = image[:, : rows // side * side, : columns // side * side]
    split = whole.reshape(channels, rows // side, side, columns // side, side)
    return split.transpose(1, 3, 2, 4, 0).reshape(rows // side, columns // side, -1)


def from_blocks(blocks: Any, side: int) -> Any:
    """The inverse."""
    rows, columns, numbers = blocks.shape
    split = blocks.reshape(rows, columns, side, side, numbers // side**2)
    return split.transpose(4, 0, 2, 1, 3).reshape(-1, rows * side, columns * side)


def one(image: Any, weight: Any, bias: Any, stride: int, *, is_in_blocks: bool = False, out_blocks: int = 1) -> Any:
    image = in_blocks(image, stride) if is_in_blocks else image
    output = convolved(image, weight, bias, stride, is_in_blocks=is_in_blocks, out_blocks=out_blocks)
    return from_blocks(output, out_blocks)


@pytest.mark.parametrize(
    ("is_in_blocks", "out_blocks", "most_numbers"),
    [(False, 1, 1 << 19), (True, 1, 1), (False, 2, 1)],
    ids=["many images at a time", "from blocks, one at a time", "to blocks, one at a time"],
)
@pytest.mark.parametrize("is_bytes", [True, False], ids=["bytes", "floats"])
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_the_convolution_of_xla_with_its_gradients(
    name: str, is_bytes: bool, is_in_blocks: bool, out_blocks: int, most_numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "_MOST_NUMBERS", most_numbers)
    count, shape, size, stride = SHAPES[name]
    images = drawn((count, *shape), is_bytes=is_bytes)
    weight = drawn((6, shape[0], size, size), is_bytes=False) / (255 if is_bytes else 1)
    bias = drawn((6,), is_bytes=False)

    def ours(images: Any, weight: Any, bias: Any) -> jax.Array:
        return jax.vmap(
            lambda image: one(image, weight, bias, stride, is_in_blocks=is_in_blocks, out_blocks=out_blocks)
        )(images)

    def others(images: Any, weight: Any, bias: Any) -> jax.Array:
        output = expected(images, weight, bias, stride)
        rows, columns = (side // out_blocks * out_blocks for side in output.shape[2:])
        return output[:, :, :rows, :columns]

    output, to_inputs = jax.vjp(ours, images, weight, bias)
    other, to_other_inputs = jax.vjp(others, images, weight, bias)
    np.testing.assert_allclose(output, other, rtol=1e-4, atol=1e-3)
    slope = drawn(output.shape, is_bytes=False)
    of_images, of_weight, of_bias = to_inputs(slope)
    of_images_too, of_weight_too, of_bias_too = to_other_inputs(slope)
    np.testing.assert_allclose(of_weight, of_weight_too, rtol=1e-3, atol=1e-1 if is_bytes else 1e-3)
    np.testing.assert_allclose(of_bias, of_bias_too, rtol=1e-3, atol=1e-3)
    if not is_bytes:
        np.testing.assert_allclose(of_images, of_images_too, rtol=1e-3, atol=1e-3)


def test_one_image_and_many_weights_are_convolved_as_well() -> None:
    images, weights = drawn((3, 2, 12, 12), is_bytes=False), drawn((3, 5, 2, 4, 4), is_bytes=False)
    bias = drawn((5,), is_bytes=False)
    np.testing.assert_allclose(
        one(images[0], weights[0], bias, 2), expected(images[:1], weights[0], bias, 2)[0], rtol=1e-4, atol=1e-4
    )
    each = jax.vmap(lambda image, weight: one(image, weight, bias, 2))(images, weights)
    all_of_one = jax.vmap(lambda weight: one(images[0], weight, bias, 2))(weights)
    for index in range(3):
        wanted = expected(images, weights[index], bias, 2)
        np.testing.assert_allclose(each[index], wanted[index], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(all_of_one[index], wanted[0], rtol=1e-4, atol=1e-4)


def test_images_are_learned_from_without_a_convolution_of_xla() -> None:
    """It is many times slower inside a loop or a branch."""
    modules = convolutions(Input((4, 36, 36), np.dtype(np.uint8)), rng=np.random.default_rng(0))

    def total(weight: jax.Array, images: jax.Array) -> jax.Array:
        def features(x: jax.Array) -> jax.Array:
            for module in modules:
                x = eqx.tree_at(lambda first: first.weight, module, weight)(x) if module is modules[1] else module(x)
            return x

        return jax.vmap(features)(images).sum()

    images = np.zeros((2, 4, 36, 36), np.uint8)
    program = jax.jit(jax.grad(total)).lower(modules[1].weight, images).as_text()
    assert "dot_general" in program
    assert "convolution" not in program


def test_a_stride_that_does_not_divide_the_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="size 3 has the stride 2"):
        Conv(1, 1, 3, 2, rng=np.random.default_rng(0), weight=uniform_fan_in, is_first=True)
