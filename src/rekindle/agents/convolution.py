"""A convolution as matrix products, for CPUs.

Outside of loops, XLA's own convolution is about as fast on a CPU. Inside a loop or a branch, where updates run, it is
25 times slower, because XLA uses a naive kernel there. A matrix product is equally fast everywhere.

Each window of an image becomes a row of a matrix (im2col). The matrix is several times as large as the images, so it is
built for a few images at a time, which keeps it in the cache, and built again for the gradient instead of being stored.
Bias and ReLU are computed while the product is in the cache.
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
"""The most numbers in the windows that are built at a time."""

_WORDS = {2: jnp.uint16, 4: jnp.uint32}
"""The type in which this many bytes are moved together."""

_hidden = jax.lax.optimization_barrier
"""Keeps XLA from fusing operations that are faster apart."""


def convolved(
    image: jax.Array, weight: Any, bias: Any, stride: int, *, is_in_blocks: bool, out_blocks: int = 1
) -> jax.Array:
    """The ReLU of an image convolved without padding; `weight` is (outputs, channels, size, size).

    The image is of floats or bytes, and `stride` must divide `size`. It is (channels, rows, columns), or in blocks of
    `stride` by `stride` pixels: (rows, columns, numbers), where the numbers of a block are its rows, columns and
    channels in this order. The output is in blocks of `out_blocks` by `out_blocks` pixels; rows and columns that fill
    no block are left out.
    """

    @jax.custom_batching.custom_vmap
    def one(image: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return many(image[None], weight, bias)[0]

    @one.def_vmap
    def _(
        _: int, batched: Sequence[bool], images: jax.Array, weight: jax.Array, bias: jax.Array
    ) -> tuple[jax.Array, bool]:
        if list(batched) == [True, False, False]:
            return many(images, weight, bias), True
        axes = [0 if is_batched else None for is_batched in batched]
        return jax.vmap(lambda image, *rest: many(image[None], *rest)[0], axes)(images, weight, bias), True

    def many(images: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        outputs, channels, size, _ = weight.shape
        across = size // stride
        # Channels go last in floats, and before the columns in bytes, so that what stays together is as long as can be.
        order = (3, 1, 5) if images.dtype == jnp.uint8 and not is_in_blocks else (3, 5, 1)
        by_block = weight.reshape(outputs, channels, across, stride, across, stride).transpose(2, 4, *order, 0)
        blocks = images if is_in_blocks else _in_blocks(images, stride, order)
        # A window is `across` by `across` blocks, and windows are one block apart.
        return _over_windows(blocks, by_block.reshape(-1, outputs), bias, across, out_blocks)

    return one(image, jnp.asarray(weight), jnp.asarray(bias))


def _in_blocks(images: jax.Array, stride: int, order: tuple[int, int, int]) -> jax.Array:
    """(images, rows, columns, numbers of a block), in words if they are bytes."""
    count, channels, *sides = images.shape
    rows, columns = (side // stride for side in sides)
    seen = images[:, :, : rows * stride, : columns * stride]
    split = seen.reshape(count, channels, rows, stride, columns, stride)
    if images.dtype == jnp.uint8 and stride in _WORDS:
        split = jax.lax.bitcast_convert_type(split, _WORDS[stride])[..., None]
    return _hidden(split.transpose(0, 2, 4, *order).reshape(count, rows, columns, -1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _over_windows(blocks: jax.Array, matrix: jax.Array, bias: jax.Array, across: int, out_blocks: int) -> jax.Array:
    """The ReLU of bias and product of each window of `across` by `across` blocks, in the layout of `convolved`."""
    rows, columns = ((side - across + 1) // out_blocks for side in blocks.shape[1:3])
    pieces = _in_pieces(blocks, matrix, across)
    output = jax.lax.map(lambda piece: jax.nn.relu(_numbers(piece, across, out_blocks) @ matrix + bias), pieces)
    return output.reshape(len(blocks), rows, columns, out_blocks * out_blocks * len(bias))


_Known = tuple[jax.Array, jax.Array, jax.Array]
"""What the gradient needs: blocks, matrix and output."""


def _forward(
    blocks: jax.Array, matrix: jax.Array, bias: jax.Array, across: int, out_blocks: int
) -> tuple[jax.Array, _Known]:
    output: Any = _over_windows(blocks, matrix, bias, across, out_blocks)
    return output, (blocks, matrix, output)


def _backward(
    across: int, out_blocks: int, known: _Known, slopes: jax.Array
) -> tuple[jax.Array | None, jax.Array, jax.Array]:
    blocks, matrix, outputs = known
    is_float = blocks.dtype == jnp.float32
    pieces = _in_pieces(blocks, matrix, across)

    def to_blocks(blocks: jax.Array, of_windows: jax.Array) -> jax.Array:
        return jax.vjp(lambda blocks: _windows(blocks, across, out_blocks), blocks)[1](of_windows)[0]

    def step(totals: Any, piece: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Any, jax.Array | None]:
        blocks, output, slope = piece
        slope = _hidden(jnp.where(output > 0, slope, 0))
        of_matrix, of_bias = totals
        # The transpose of windows.T @ slope, for which XLA takes twice as long.
        of_matrix = of_matrix + slope.T @ _numbers(blocks, across, out_blocks)
        return (of_matrix, of_bias + slope.sum(axis=0)), to_blocks(blocks, slope @ matrix.T) if is_float else None

    by_piece = len(pieces), -1, matrix.shape[1]
    zeros: Any = jnp.zeros(matrix.shape[::-1]), jnp.zeros(matrix.shape[1])
    (of_matrix, of_bias), of_blocks = jax.lax.scan(
        step, zeros, (pieces, outputs.reshape(by_piece), slopes.reshape(by_piece))
    )
    return None if of_blocks is None else of_blocks.reshape(blocks.shape), of_matrix.T, of_bias


_over_windows.defvjp(_forward, _backward)


def _in_pieces(blocks: jax.Array, matrix: jax.Array, across: int) -> jax.Array:
    """The images a few at a time, with an axis for the times."""
    count, rows, columns, _ = blocks.shape
    most = _MOST_NUMBERS // ((rows - across + 1) * (columns - across + 1) * len(matrix))
    size = max(size for size in range(1, max(most, 1) + 1) if count % size == 0)
    return blocks.reshape(count // size, size, *blocks.shape[1:])


def _windows(blocks: jax.Array, across: int, out_blocks: int) -> jax.Array:
    """The blocks of each window, one window a row, in the order of the output."""
    count, side = len(blocks), out_blocks
    rows, columns = ((length - across + 1) // side for length in blocks.shape[1:3])

    def part(y: int, x: int) -> jax.Array:
        seen = blocks[:, y : y + rows * side, x : x + columns * side]
        return seen.reshape(count, rows, side, columns, side, -1).transpose(0, 1, 3, 2, 4, 5)

    parts = [part(y, x) for y in range(across) for x in range(across)]
    return jnp.concatenate(parts, axis=-1).reshape(count * rows * columns * side * side, -1)


def _numbers(blocks: jax.Array, across: int, out_blocks: int) -> jax.Array:
    """`_windows` as floats."""
    if blocks.dtype == jnp.float32:
        return _windows(blocks, across, out_blocks)
    # The words are put together in a pass of their own: XLA takes twice as long to do so while it makes them floats.
    with set_xla_metadata(inlineable="false"):
        words = _hidden(jax.jit(_windows, static_argnums=(1, 2))(_hidden(blocks), across, out_blocks))
    return jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(len(words), -1).astype(jnp.float32)
