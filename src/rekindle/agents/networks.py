"""Networks: equinox modules for learning, and the same layers as data for acting with numpy.

A module takes one observation (`jax.vmap` makes it take many), and where noise is wanted a vector of
`noise_size(module)` random numbers. Like all random numbers these are drawn by numpy on the host: it is quicker to
compile, and the same whether numpy or JAX acts.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from rekindle.errors import ConfigError
from rekindle.experience import Array
from rekindle.policy.network import Layer

__all__ = [
    "Activation",
    "Dense",
    "Initialiser",
    "LayerNorm",
    "Module",
    "NoisyDense",
    "Sequential",
    "Weight",
    "hidden_layers",
    "layers_of",
    "noise_size",
    "normal_fan_in",
    "orthogonal",
    "split_noise",
    "uniform_fan_in",
]

Initialiser = Callable[[np.random.Generator, tuple[int, int]], Array]
"""Makes a weight of (inputs, outputs). With numpy: JAX would compile for seconds to draw them."""

Weight = jax.Array | Array

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh}


class Module(Protocol):
    """A network from one encoded observation to its output."""

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:
        """The output; noisy, if it can be, with noise."""
        ...


def orthogonal(gain: float) -> Initialiser:
    """Orthogonal rows or columns, times a gain."""

    def make(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        tall = (max(shape), min(shape))
        columns, triangle = np.linalg.qr(rng.standard_normal(tall))
        columns *= np.sign(np.diag(triangle))  # otherwise not every orthogonal matrix is as likely
        return (gain * (columns if shape == tall else columns.T)).astype(np.float32)

    return make


def normal_fan_in(gain: float) -> Initialiser:
    """Normal, with a deviation of the gain over the root of the inputs; the root of 2 before a ReLU (He 2015)."""

    def make(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        return (gain / math.sqrt(shape[0]) * rng.standard_normal(shape)).astype(np.float32)

    return make


def uniform_fan_in(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Uniform in plus or minus one over the root of the inputs, as in PyTorch's Linear."""
    bound = 1 / math.sqrt(shape[0])
    return rng.uniform(-bound, bound, shape).astype(np.float32)


# XLA on a CPU is slow with the gradients of layers of some shapes: these are their equals, in other steps.

_NARROW, _LARGE = 4, 1 << 15
"""From how many inputs for each output on, and from how many weights on, a layer is of such a shape."""


@jax.custom_batching.custom_vmap
def _product(x: jax.Array, weight: Weight) -> jax.Array:
    return x @ weight


@_product.def_vmap
def _product_of_many(_: int, batched: Sequence[bool], x: jax.Array, weight: jax.Array) -> tuple[jax.Array, bool]:
    if list(batched) == [True, False]:
        return _product_of_rows(x, weight), True
    return jax.vmap(jnp.matmul, [0 if one else None for one in batched])(x, weight), True


@jax.custom_vjp
def _product_of_rows(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x @ weight


def _product_forward(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ weight, (x, weight)


def _product_backward(known: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight = known
    inputs, outputs = weight.shape
    if weight.size >= _LARGE:
        of_weight = _turned(x) @ slope
    elif inputs >= _NARROW * outputs:
        of_weight = _hidden(_hidden(slope.T) @ x).T
    else:
        of_weight = x.T @ slope
    return slope @ weight.T, of_weight


_product_of_rows.defvjp(_product_forward, _product_backward)

_hidden = jax.lax.optimization_barrier
"""Keeps XLA from undoing what it can see the purpose of."""


def _turned(matrix: jax.Array) -> jax.Array:
    """The matrix transposed in memory, in a pass of its own: XLA is slow to do so in one with other work."""
    with set_xla_metadata(inlineable="false"):
        return _hidden(_transpose(_hidden(matrix)))


@jax.jit
def _transpose(matrix: jax.Array) -> jax.Array:
    return matrix.T


class Dense(eqx.Module):
    """A linear layer."""

    weight: Weight
    """(inputs, outputs): the form in which numpy and XLA multiply a batch without turning anything over."""
    bias: Weight

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        rng: np.random.Generator,
        weight: Initialiser = uniform_fan_in,
        bias: float | None = None,
    ) -> None:
        """Without a `bias` to start from, it is as random as in PyTorch's Linear."""
        self.weight = weight(rng, (inputs, outputs))
        self.bias = uniform_fan_in(rng, (inputs, outputs))[0] if bias is None else np.full(outputs, bias, np.float32)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The layer's output."""
        return _product(x, self.weight) + self.bias

    def layers(self) -> list[Layer]:
        """As data."""
        return [_layer(self, "dense", "weight", "bias")]


class NoisyDense(eqx.Module):
    """A linear layer with factorised Gaussian noise on its weights; without noise, the mean weights."""

    weight: Weight
    bias: Weight
    weight_noise: Weight
    bias_noise: Weight

    def __init__(self, inputs: int, outputs: int, *, rng: np.random.Generator, sigma: float = 0.5) -> None:
        mean = Dense(inputs, outputs, rng=rng)
        self.weight, self.bias = mean.weight, mean.bias
        self.weight_noise = np.full((inputs, outputs), sigma / math.sqrt(inputs), np.float32)
        self.bias_noise = np.full(outputs, sigma / math.sqrt(inputs), np.float32)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:
        """The layer's output."""
        output = x @ self.weight + self.bias
        if noise is None:
            return output
        roots = jnp.copysign(jnp.sqrt(jnp.abs(noise)), noise)
        before, after = jnp.split(roots, [self.weight.shape[0]])
        # x @ (weight_noise * outer(before, after)) without forming the outer product.
        return output + ((x * before) @ self.weight_noise + self.bias_noise) * after

    @property
    def noise_size(self) -> int:
        """How many random numbers make it noisy."""
        return sum(self.weight.shape)

    def layers(self) -> list[Layer]:
        """As data."""
        return [_layer(self, "noisy_dense", "weight", "bias", "weight_noise", "bias_noise")]


class LayerNorm(eqx.Module):
    """Normalises a vector, then scales and shifts it."""

    weight: Weight
    bias: Weight

    def __init__(self, size: int) -> None:
        self.weight, self.bias = np.ones(size, np.float32), np.zeros(size, np.float32)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The layer's output."""
        return (x - x.mean()) / jnp.sqrt(x.var() + 1e-5) * self.weight + self.bias

    def layers(self) -> list[Layer]:
        """As data."""
        return [_layer(self, "layer_norm", "weight", "bias")]


class Activation(eqx.Module):
    """A function of each number."""

    name: Literal["relu", "tanh"] = eqx.field(static=True)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The layer's output."""
        return _ACTIVATIONS[self.name](x)

    def layers(self) -> list[Layer]:
        """As data."""
        return [Layer("activation", name=self.name)]


class Sequential(eqx.Module):
    """Modules one after the other."""

    modules: tuple[Any, ...]

    def __init__(self, modules: Sequence[Any]) -> None:
        self.modules = tuple(modules)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:
        """The last module's output; each has its own part of the noise."""
        parts = split_noise(noise, self.modules)
        for module, part in zip(self.modules, parts, strict=True):
            x = module(x, part)
        return x

    @property
    def noise_size(self) -> int:
        """How many random numbers make it noisy."""
        return sum(map(noise_size, self.modules))

    def layers(self) -> list[Layer]:
        """As data."""
        return [layer for module in self.modules for layer in layers_of(module)]


def noise_size(module: Any) -> int:
    """How many random numbers make a module noisy."""
    return getattr(module, "noise_size", 0)


def split_noise(noise: jax.Array | None, modules: Sequence[Any]) -> list[jax.Array | None]:
    """The part of each module, one after the other."""
    if noise is None or not modules:
        return [None] * len(modules)
    return list(jnp.split(noise, np.cumsum([noise_size(module) for module in modules])[:-1]))


def _layer(module: eqx.Module, kind: Any, *names: str) -> Layer:
    return Layer(kind, {name: np.asarray(getattr(module, name)) for name in names})


def hidden_layers(
    inputs: int,
    sizes: Sequence[int],
    *,
    rng: np.random.Generator,
    activation: Literal["relu", "tanh"] = "relu",
    layer_norm: bool = False,
    weight: Initialiser = uniform_fan_in,
    bias: float | None = None,
) -> list[Any]:
    """Linear layers with an activation after each: all of an MLP but its output."""
    modules: list[Any] = []
    for size in sizes:
        modules.append(Dense(inputs, size, rng=rng, weight=weight, bias=bias))
        modules += [LayerNorm(size)] if layer_norm else []
        modules.append(Activation(activation))
        inputs = size
    return modules


def layers_of(module: Any) -> list[Layer]:
    """A module as data; raises `ConfigError` for a user's own that cannot be."""
    layers = getattr(module, "layers", None)
    if not callable(layers):
        raise ConfigError(f"{type(module).__name__} cannot be run by numpy: give it layers() -> list[policy.Layer]")
    return cast("list[Layer]", layers())
