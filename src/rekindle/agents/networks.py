"""Network layers as equinox modules, which convert to `policy.Layer` data so that numpy can run them too.

A module takes one observation (use `jax.vmap` for a batch) and optionally a vector of `noise_size(module)` standard
Gaussian numbers. numpy draws all random numbers on the host, so that compilation is faster and the numbers are the
same whether numpy or JAX acts.
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
"""Draws an initial weight matrix of shape (inputs, outputs) with numpy: with JAX, compilation takes seconds."""

Weight = jax.Array | Array

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh}


class Module(Protocol):
    """A network that maps one encoded observation to an output vector."""

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:
        """The output; `noise` perturbs the weights of noisy layers."""
        ...


def orthogonal(gain: float) -> Initialiser:
    """Orthogonal initialisation, scaled by a gain."""

    def make(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        tall = (max(shape), min(shape))
        columns, triangle = np.linalg.qr(rng.standard_normal(tall))
        columns *= np.sign(np.diag(triangle))  # makes the distribution uniform over orthogonal matrices
        return (gain * (columns if shape == tall else columns.T)).astype(np.float32)

    return make


def normal_fan_in(gain: float) -> Initialiser:
    """Gaussian initialisation with standard deviation gain / sqrt(inputs); use sqrt(2) before a ReLU (He 2015)."""

    def make(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        return (gain / math.sqrt(shape[0]) * rng.standard_normal(shape)).astype(np.float32)

    return make


def uniform_fan_in(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Uniform initialisation between -1 / sqrt(inputs) and 1 / sqrt(inputs), as in PyTorch's `Linear`."""
    bound = 1 / math.sqrt(shape[0])
    return rng.uniform(-bound, bound, shape).astype(np.float32)


# XLA is slow on a CPU with the weight gradients of some layer shapes. The functions below compute the same gradients
# with other operations.

_NARROW, _LARGE = 4, 1 << 15
"""A layer is narrow from this ratio of inputs to outputs on, and large from this number of weights on."""


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
        of_weight = _transposed(x) @ slope
    elif inputs >= _NARROW * outputs:
        of_weight = _barrier(_barrier(slope.T) @ x).T
    else:
        of_weight = x.T @ slope
    return slope @ weight.T, of_weight


_product_of_rows.defvjp(_product_forward, _product_backward)

_barrier = jax.lax.optimization_barrier
"""Stops XLA from merging operations across this point, which would undo a transpose."""


def _transposed(matrix: jax.Array) -> jax.Array:
    """The matrix transposed in memory, as a separate operation: XLA is slow when it fuses a transpose."""
    with set_xla_metadata(inlineable="false"):
        return _barrier(_transpose(_barrier(matrix)))


@jax.jit
def _transpose(matrix: jax.Array) -> jax.Array:
    return matrix.T


class Dense(eqx.Module):
    """A linear layer."""

    weight: Weight
    """(inputs, outputs), so that numpy and XLA multiply a batch without a transpose."""
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
        """`bias` is the initial bias; None draws it as PyTorch's `Linear` does."""
        self.weight = weight(rng, (inputs, outputs))
        self.bias = uniform_fan_in(rng, (inputs, outputs))[0] if bias is None else np.full(outputs, bias, np.float32)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The layer's output."""
        return _product(x, self.weight) + self.bias

    def layers(self) -> list[Layer]:
        """The module as `Layer` data."""
        return [_layer(self, "dense", "weight", "bias")]


class NoisyDense(eqx.Module):
    """A linear layer with factorised Gaussian noise on its weights; called without noise, it uses the mean weights."""

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
        """How many random numbers a noisy forward pass takes."""
        return sum(self.weight.shape)

    def layers(self) -> list[Layer]:
        """The module as `Layer` data."""
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
        """The module as `Layer` data."""
        return [_layer(self, "layer_norm", "weight", "bias")]


class Activation(eqx.Module):
    """An activation function, applied to each element."""

    name: Literal["relu", "tanh"] = eqx.field(static=True)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The layer's output."""
        return _ACTIVATIONS[self.name](x)

    def layers(self) -> list[Layer]:
        """The module as `Layer` data."""
        return [Layer("activation", name=self.name)]


class Sequential(eqx.Module):
    """A chain of modules: each takes the output of the one before."""

    modules: tuple[Any, ...]

    def __init__(self, modules: Sequence[Any]) -> None:
        self.modules = tuple(modules)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:
        """The last module's output; `noise` is split between the modules."""
        parts = split_noise(noise, self.modules)
        for module, part in zip(self.modules, parts, strict=True):
            x = module(x, part)
        return x

    @property
    def noise_size(self) -> int:
        """How many random numbers a noisy forward pass takes."""
        return sum(map(noise_size, self.modules))

    def layers(self) -> list[Layer]:
        """The module as `Layer` data."""
        return [layer for module in self.modules for layer in layers_of(module)]


def noise_size(module: Any) -> int:
    """How many random numbers a noisy forward pass of a module takes; 0 for a module without noise."""
    return getattr(module, "noise_size", 0)


def split_noise(noise: jax.Array | None, modules: Sequence[Any]) -> list[jax.Array | None]:
    """Split a noise vector into one part for each module, in order; None for each if there is no noise."""
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
    """The hidden layers of an MLP: linear layers, each followed by an activation."""
    modules: list[Any] = []
    for size in sizes:
        modules.append(Dense(inputs, size, rng=rng, weight=weight, bias=bias))
        modules += [LayerNorm(size)] if layer_norm else []
        modules.append(Activation(activation))
        inputs = size
    return modules


def layers_of(module: Any) -> list[Layer]:
    """Convert a module to `policy.Layer` data; raises `ConfigError` for a module without a method `layers`."""
    layers = getattr(module, "layers", None)
    if not callable(layers):
        raise ConfigError(f"{type(module).__name__} cannot be run by numpy: give it layers() -> list[policy.Layer]")
    return cast("list[Layer]", layers())
