"""A convolution as matrix products, for CPUs.

Plain, XLA's own convolution is about as quick on a CPU. Inside a loop or a branch it is 25 times slower, as it runs as
a naive kernel there, and updates run in a loop. A matrix product is as quick there as anywhere.

Each window of an image becomes a row of a matrix (im2col). The matrix is several times as large as the images, so it is
made for a few images at a time, which keeps it in the cache, and again for the gradient instead of being held.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

__all__ = ["convolved"]

_MOST_NUMBERS = 1 << 19
"""In the windows that are made at a time."""

_WORDS = {2: jnp.uint16, 4: jnp.uint32}
"""By number of bytes, the type in which they are moved together."""

_hidden = jax.lax.optimization_barrier
"""Keeps XLA from combining what is quicker apart."""


def convolved(image: jax.Array, weight: Any, stride: int, *, channels_first: bool) -> jax.Array:
    """An image convolved without padding: (rows, columns, outputs).

    It is of floats or bytes, and its channels come first or last; `weight` is (outputs, channels, size, size), and
    `stride` must divide `size`. Channels last are quicker, with what is added to them, and the sums of gradients.
    """

    @jax.custom_batching.custom_vmap
    def one(image: jax.Array, weight: jax.Array) -> jax.Array:
        return many(image[None], weight)[0]

    @one.def_vmap
    def _(_: int, batched: Sequence[bool], images: jax.Array, weight: jax.Array) -> tuple[jax.Array, bool]:
        if list(batched) == [True, False]:
            return many(images, weight), True
        axes = [0 if is_batched else None for is_batched in batched]
        return jax.vmap(lambda image, weight: many(image[None], weight)[0], axes)(images, weight), True

    def many(images: jax.Array, weight: jax.Array) -> jax.Array:
        images = images if channels_first else images.transpose(0, 3, 1, 2)
        return _convolved(images, weight, stride)

    return one(image, jnp.asarray(weight))


def _convolved(images: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    outputs, channels, size, _ = weight.shape
    across = size // stride
    # In blocks of `stride` by `stride` pixels a window is `across` by `across` blocks, and windows are one block apart.
    # Channels go last in floats, and before the columns in bytes, so that what stays together is as long as can be.
    order = (3, 1, 5) if images.dtype == jnp.uint8 else (3, 5, 1)
    by_block = weight.reshape(outputs, channels, across, stride, across, stride).transpose(2, 4, *order, 0)
    blocks = _in_blocks(images, size, stride, order)
    return _over_windows(blocks, by_block.reshape(-1, outputs), across)


def _in_blocks(images: jax.Array, size: int, stride: int, order: tuple[int, int, int]) -> jax.Array:
    """(images, rows, columns, numbers of a block), in words if they are bytes."""
    count, channels, *sides = images.shape
    rows, columns = ((side - size) // stride + size // stride for side in sides)
    seen = images[:, :, : rows * stride, : columns * stride]
    split = seen.reshape(count, channels, rows, stride, columns, stride)
    if images.dtype == jnp.uint8 and stride in _WORDS:
        split = jax.lax.bitcast_convert_type(split, _WORDS[stride])[..., None]
    return _hidden(split.transpose(0, 2, 4, *order).reshape(count, rows, columns, -1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _over_windows(blocks: jax.Array, matrix: jax.Array, across: int) -> jax.Array:
    """The product of every window of `across` by `across` blocks with a matrix: (images, rows, columns, outputs)."""
    count, rows, columns = blocks.shape[0], *(side - across + 1 for side in blocks.shape[1:3])
    pieces = _in_pieces(blocks, matrix, across)
    product = jax.lax.map(lambda piece: _numbers(piece, across) @ matrix, pieces)
    return product.reshape(count, rows, columns, -1)


def _forward(blocks: jax.Array, matrix: jax.Array, across: int) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _over_windows(blocks, matrix, across), (blocks, matrix)


def _backward(across: int, known: tuple[jax.Array, jax.Array], slopes: jax.Array) -> tuple[jax.Array | None, jax.Array]:
    blocks, matrix = known
    is_float = blocks.dtype == jnp.float32
    pieces = _in_pieces(blocks, matrix, across)

    def to_blocks(blocks: jax.Array, of_windows: jax.Array) -> jax.Array:
        return jax.vjp(lambda blocks: _windows(blocks, across), blocks)[1](of_windows)[0]

    def step(total: jax.Array, piece: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array | None]:
        blocks, slope = piece
        # The transpose of windows.T @ slope, for which XLA takes twice as long.
        total = total + _hidden(slope.T) @ _numbers(blocks, across)
        return total, to_blocks(blocks, slope @ matrix.T) if is_float else None

    slope_pieces = slopes.reshape(len(pieces), -1, matrix.shape[1])
    of_matrix, of_blocks = jax.lax.scan(step, jnp.zeros(matrix.shape[::-1]), (pieces, slope_pieces))
    return None if of_blocks is None else of_blocks.reshape(blocks.shape), of_matrix.T


_over_windows.defvjp(_forward, _backward)


def _in_pieces(blocks: jax.Array, matrix: jax.Array, across: int) -> jax.Array:
    """The images a few at a time, with an axis for the times."""
    count, rows, columns, _ = blocks.shape
    most = _MOST_NUMBERS // ((rows - across + 1) * (columns - across + 1) * len(matrix))
    size = max(size for size in range(1, max(most, 1) + 1) if count % size == 0)
    return blocks.reshape(count // size, size, *blocks.shape[1:])


def _windows(blocks: jax.Array, across: int) -> jax.Array:
    """The blocks of each window, one window a row."""
    rows, columns = (side - across + 1 for side in blocks.shape[1:3])
    parts = [blocks[:, y : y + rows, x : x + columns] for y in range(across) for x in range(across)]
    return jnp.concatenate(parts, axis=-1).reshape(len(blocks) * rows * columns, -1)


def _numbers(blocks: jax.Array, across: int) -> jax.Array:
    """`_windows` as floats."""
    if blocks.dtype == jnp.float32:
        return _windows(blocks, across)
    # The words are put together in a pass of their own: XLA takes twice as long to do so while it makes them floats.
    with set_xla_metadata(inlineable="false"):
        words = _hidden(jax.jit(_windows, static_argnums=1)(_hidden(blocks), across))
    return jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(len(words), -1).astype(jnp.float32)
