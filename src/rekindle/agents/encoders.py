"""Feature networks for encoded observations: convolutions for images, and branches for several inputs."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.convolution import convolved
from rekindle.agents.networks import (
    Activation,
    Dense,
    Initialiser,
    Module,
    Sequential,
    Weight,
    layers_of,
    uniform_fan_in,
)
from rekindle.errors import ConfigError
from rekindle.policy.encoding import Encoding, Input
from rekindle.policy.network import Layer

__all__ = ["Branches", "Conv", "Flatten", "Pad", "Rectified", "Scale", "convolutions", "encoder", "feature_size"]


class Conv(eqx.Module):
    """A convolution without padding, with the ReLU after it; it scales bytes to 0 to 1.

    The first of several takes an image as in encoded observations: (channels, rows, columns). The others take it in
    blocks of `stride` by `stride` pixels, (rows, columns, numbers), which the previous one writes at no cost.
    """

    weight: Weight
    """(outputs, inputs, size, size)."""
    bias: Weight
    stride: int = eqx.field(static=True)
    is_first: bool = eqx.field(static=True)
    """Whether the input is (channels, rows, columns), as in encoded observations, or in blocks."""
    next_stride: int = eqx.field(static=True)
    """The stride of the next convolution: the side of the blocks of the output; 1 for (rows, columns, outputs)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        stride: int,
        *,
        rng: np.random.Generator,
        weight: Initialiser,
        is_first: bool,
        next_stride: int = 1,
    ) -> None:
        if size % stride:
            raise ConfigError(
                f"a convolution of size {size} has the stride {stride}: use a stride that divides the size"
            )
        flat = weight(rng, (inputs * size * size, outputs))
        self.weight = flat.T.reshape(outputs, inputs, size, size)
        self.bias = np.zeros(outputs, np.float32)
        self.stride, self.is_first, self.next_stride = stride, is_first, next_stride

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The layer's output."""
        weight = self.weight / 255 if x.dtype == jnp.uint8 else self.weight
        return convolved(x, weight, self.bias, self.stride, is_in_blocks=not self.is_first, out_blocks=self.next_stride)

    def layers(self) -> list[Layer]:
        """The module as `Layer` data."""
        arrays = {"weight": np.asarray(self.weight), "bias": np.asarray(self.bias)}
        return [Layer("conv", arrays, stride=self.stride)]


class Rectified(eqx.Module):
    """ReLU. In JAX the previous `Conv` does it, while its output is in the cache."""

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The input, unchanged."""
        return x

    def layers(self) -> list[Layer]:
        """The module as `Layer` data."""
        return [Layer("activation", name="relu")]


class Scale(eqx.Module):
    """Scales bytes to 0 to 1. In JAX the next `Conv` does it, because bytes are faster to rearrange than floats."""

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The input, unchanged."""
        return x

    def layers(self) -> list[Layer]:
        """The module as `Layer` data."""
        return [Layer("scale")]


class Pad(eqx.Module):
    """Pads an image with zeros at the bottom and the right, so that the convolutions cover all of it."""

    rows: int = eqx.field(static=True)
    columns: int = eqx.field(static=True)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The padded image."""
        return jnp.pad(x, ((0, 0), (0, self.rows), (0, self.columns)))

    def layers(self) -> list[Layer]:
        """The module as `Layer` data."""
        return [Layer("pad", rows=self.rows, columns=self.columns)]


class Flatten(eqx.Module):
    """Flattens the output of a `Conv` in the order of channels, rows and columns."""

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The layer's output."""
        return x.transpose(2, 0, 1).ravel()

    def layers(self) -> list[Layer]:
        """The module as `Layer` data."""
        return [Layer("flatten")]


class Branches(eqx.Module):
    """One module for each input; their outputs are concatenated."""

    modules: tuple[Sequential, ...]

    def __init__(self, modules: Sequence[Sequential]) -> None:
        self.modules = tuple(modules)

    def __call__(self, x: tuple[jax.Array, ...], noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The features of all inputs."""
        return jnp.concatenate([module(part) for module, part in zip(self.modules, x, strict=True)])

    def layers(self) -> list[Layer]:
        """The module as `Layer` data."""
        return [Layer("branches", branches=[layers_of(module) for module in self.modules])]


def encoder(
    encoding: Encoding, *, rng: np.random.Generator, weight: Initialiser = uniform_fan_in, bias: float | None = None
) -> list[Any]:
    """The modules of a feature network: none for a vector, convolutions for an image.

    With several inputs, each image has its own convolutions and dense layer.
    """
    inputs = encoding.inputs
    if len(inputs) == 1:
        return convolutions(inputs[0], rng=rng, weight=weight) if encoding.is_image else []
    branches: list[Sequential] = []
    for given in inputs:
        modules: list[Any] = []
        if len(given.shape) == 3:
            modules = convolutions(given, rng=rng, weight=weight)
            size = _output_size(Sequential(modules), jax.ShapeDtypeStruct(given.shape, given.dtype))
            modules += [Dense(size, _IMAGE_FEATURES, rng=rng, weight=weight, bias=bias), Activation("relu")]
        branches.append(Sequential(modules))
    return [Branches(branches)]


_IMAGE_FEATURES = 256
"""The number of features of each image, if there are several inputs."""
_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""The convolutions of the Nature paper (Mnih 2015): filters, size and stride."""
_SMALLER = {16: ((16, 3, 1), (32, 3, 1)), 24: ((16, 3, 1), (32, 4, 2))}
"""Convolutions for images of less than the area of a square with this side: there each pixel may carry meaning."""
_OTHERS = ((32, 4, 2), (64, 4, 2), (64, 3, 1))
"""Convolutions for larger images with a side that is too short for those of the Nature paper."""


def convolutions(image: Input, *, rng: np.random.Generator, weight: Initialiser = uniform_fan_in) -> list[Any]:
    """Convolutions that fit the size of an image, followed by `Flatten`."""
    channels, *sides = image.shape
    others = _NATURE if min(sides) >= 36 else _OTHERS
    filters = next((smaller for least, smaller in _SMALLER.items() if math.prod(sides) < least**2), others)
    modules: list[Any] = [Scale()] if image.dtype == np.uint8 else []
    missing = [0, 0] if filters is _NATURE else [_covered(side, filters) - side for side in sides]
    modules += [Pad(*missing)] if any(missing) else []
    next_strides = [stride for _, _, stride in filters[1:]] + [1]
    for index, ((outputs, size, stride), next_stride) in enumerate(zip(filters, next_strides, strict=True)):
        conv = Conv(
            channels, outputs, size, stride, rng=rng, weight=weight, is_first=index == 0, next_stride=next_stride
        )
        modules += [conv, Rectified()]
        channels = outputs
    return [*modules, Flatten()]


def _covered(side: int, filters: Sequence[tuple[int, int, int]]) -> int:
    """The smallest size of at least `side` that the convolutions cover without a remainder."""
    for _, size, stride in filters:
        side = max(0, -((size - side) // stride)) + 1
    for _, size, stride in reversed(filters):
        side = (side - 1) * stride + size
    return side


def feature_size(module: Module, encoding: Encoding) -> int:
    """The number of features that a module returns for one observation."""
    inputs = tuple(jax.ShapeDtypeStruct(given.shape, given.dtype) for given in encoding.inputs)
    return _output_size(module, inputs[0] if len(inputs) == 1 else inputs)


def _output_size(module: Any, inputs: Any) -> int:
    out = eqx.filter_eval_shape(module, inputs)
    if len(out.shape) != 1:
        raise ConfigError(f"the network returns {out.shape} for one observation: it must return a vector of features")
    return out.shape[0]
