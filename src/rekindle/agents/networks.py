"""Networks: equinox modules for learning, and the same layers as data for acting with numpy."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rekindle.errors import ConfigError
from rekindle.policy import Encoding, Layer

__all__ = ["MLP", "Dense", "NatureCNN", "NoisyDense", "has_layers", "layers_of", "make_body", "orthogonal"]

Activation = Literal["relu", "tanh"]
_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh}

Initialiser = Callable[[jax.Array, tuple[int, int]], jax.Array]


def orthogonal(gain: float) -> Initialiser:
    """Orthogonal rows or columns, times a gain."""
    return jax.nn.initializers.orthogonal(gain)


def uniform_fan_in(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Uniform in plus or minus one over the root of the inputs, as in PyTorch's Linear."""
    bound = 1 / math.sqrt(shape[1])
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


class Dense(eqx.Module):
    """A linear layer on a vector."""

    weight: jax.Array
    bias: jax.Array

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        key: jax.Array,
        weight: Initialiser = uniform_fan_in,
        bias: float | None = None,
    ) -> None:
        weight_key, bias_key = jax.random.split(key)
        self.weight = weight(weight_key, (outputs, inputs))
        bound = 1 / math.sqrt(inputs)
        if bias is None:
            self.bias = jax.random.uniform(bias_key, (outputs,), minval=-bound, maxval=bound)
        else:
            self.bias = jnp.full(outputs, bias)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The layer's output."""
        return self.weight @ x + self.bias

    def layer(self) -> Layer:
        """As data."""
        return Layer("dense", {"weight": np.asarray(self.weight), "bias": np.asarray(self.bias)})


class NoisyDense(eqx.Module):
    """A linear layer with factorised Gaussian noise on its weights; without a key, the mean weights."""

    weight: jax.Array
    bias: jax.Array
    weight_noise: jax.Array
    bias_noise: jax.Array

    def __init__(self, inputs: int, outputs: int, *, key: jax.Array, sigma: float = 0.5) -> None:
        mean = Dense(inputs, outputs, key=key)
        self.weight, self.bias = mean.weight, mean.bias
        self.weight_noise = jnp.full((outputs, inputs), sigma / math.sqrt(inputs))
        self.bias_noise = jnp.full((outputs,), sigma / math.sqrt(inputs))

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """The layer's output."""
        if key is None:
            return self.weight @ x + self.bias
        row_key, column_key = jax.random.split(key)
        rows = _signed_root(jax.random.normal(row_key, self.bias.shape))
        columns = _signed_root(jax.random.normal(column_key, x.shape))
        # (mu + sigma * outer(rows, columns)) @ x without forming the outer product.
        noise = rows * (self.weight_noise @ (columns * x)) + self.bias_noise * rows
        return self.weight @ x + self.bias + noise

    def layer(self) -> Layer:
        """As data."""
        names = ("weight", "bias", "weight_noise", "bias_noise")
        return Layer("noisy_dense", {name: np.asarray(getattr(self, name)) for name in names})


def _signed_root(values: jax.Array) -> jax.Array:
    return jnp.sign(values) * jnp.sqrt(jnp.abs(values))


class LayerNorm(eqx.Module):
    """Normalises a vector, then scales and shifts it."""

    weight: jax.Array
    bias: jax.Array

    def __init__(self, size: int) -> None:
        self.weight, self.bias = jnp.ones(size), jnp.zeros(size)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The layer's output."""
        return (x - x.mean()) / jnp.sqrt(x.var() + 1e-5) * self.weight + self.bias

    def layer(self) -> Layer:
        """As data."""
        return Layer("layer_norm", {"weight": np.asarray(self.weight), "bias": np.asarray(self.bias)})


class MLP(eqx.Module):
    """Linear layers with an activation after each, and a linear output if it has one."""

    hidden: tuple[Dense, ...]
    norms: tuple[LayerNorm, ...]
    output: Dense | None
    activation: Activation = eqx.field(static=True)
    size: int = eqx.field(static=True)
    """How many numbers come out."""

    def __init__(
        self,
        inputs: int,
        hidden_sizes: Sequence[int],
        outputs: int | None = None,
        *,
        key: jax.Array,
        activation: Activation = "relu",
        layer_norm: bool = False,
        weight: Initialiser = uniform_fan_in,
        output_weight: Initialiser | None = None,
        bias: float | None = None,
    ) -> None:
        sizes = [inputs, *hidden_sizes]
        *keys, output_key = jax.random.split(key, len(sizes))
        self.hidden = tuple(
            Dense(before, after, key=layer_key, weight=weight, bias=bias)
            for before, after, layer_key in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )
        self.norms = tuple(LayerNorm(size) for size in hidden_sizes) if layer_norm else ()
        self.output = (
            None
            if outputs is None
            else Dense(sizes[-1], outputs, key=output_key, weight=output_weight or weight, bias=bias)
        )
        self.activation = activation
        self.size = sizes[-1] if outputs is None else outputs

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The network's output for one vector."""
        for index, layer in enumerate(self.hidden):
            x = layer(x)
            if self.norms:
                x = self.norms[index](x)
            x = _ACTIVATIONS[self.activation](x)
        return x if self.output is None else self.output(x)

    def layers(self) -> list[Layer]:
        """As data."""
        layers: list[Layer] = []
        for index, layer in enumerate(self.hidden):
            layers.append(layer.layer())
            if self.norms:
                layers.append(self.norms[index].layer())
            layers.append(Layer("activation", name=self.activation))
        return layers if self.output is None else [*layers, self.output.layer()]


class Conv(eqx.Module):
    """A convolution without padding on an image of channels, rows and columns."""

    weight: jax.Array
    bias: jax.Array
    stride: int = eqx.field(static=True)

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int, *, key: jax.Array, weight: Initialiser | None
    ) -> None:
        fan_in = inputs * size * size
        flat = (weight or uniform_fan_in)(key, (outputs, fan_in))
        self.weight = flat.reshape(outputs, inputs, size, size)
        self.bias = jnp.zeros(outputs)
        self.stride = stride

    def __call__(self, x: jax.Array) -> jax.Array:
        """The layer's output."""
        strides = (self.stride, self.stride)
        return jax.lax.conv(x[None], self.weight, strides, "VALID")[0] + self.bias[:, None, None]

    def layer(self) -> Layer:
        """As data."""
        arrays = {"weight": np.asarray(self.weight), "bias": np.asarray(self.bias)}
        return Layer("conv", arrays, stride=self.stride)


class NatureCNN(eqx.Module):
    """The network of the DQN paper: three convolutions and a linear layer, on uint8 images scaled to 0..1."""

    convolutions: tuple[Conv, ...]
    dense: Dense
    size: int = eqx.field(static=True)

    def __init__(
        self, shape: Sequence[int], *, key: jax.Array, size: int = 512, weight: Initialiser | None = None
    ) -> None:
        channels, rows, columns = shape
        keys = jax.random.split(key, 4)
        convolutions: list[Conv] = []
        for (outputs, kernel, stride), layer_key in zip(((32, 8, 4), (64, 4, 2), (64, 3, 1)), keys[:3], strict=True):
            convolutions.append(Conv(channels, outputs, kernel, stride, key=layer_key, weight=weight))
            channels, rows, columns = outputs, (rows - kernel) // stride + 1, (columns - kernel) // stride + 1
            if rows < 1 or columns < 1:
                raise ConfigError(f"images of {tuple(shape)} are too small for NatureCNN: use 36 x 36 or more")
        self.convolutions = tuple(convolutions)
        self.dense = Dense(channels * rows * columns, size, key=keys[3], weight=weight or uniform_fan_in, bias=0.0)
        self.size = size

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The features of one image."""
        x = x.astype(jnp.float32) / 255
        for convolution in self.convolutions:
            x = jax.nn.relu(convolution(x))
        return jax.nn.relu(self.dense(x.ravel()))

    def layers(self) -> list[Layer]:
        """As data."""
        layers = [Layer("scale")]
        for convolution in self.convolutions:
            layers += [convolution.layer(), Layer("activation", name="relu")]
        return [*layers, Layer("flatten"), self.dense.layer(), Layer("activation", name="relu")]


def make_body(
    network: Any,
    encoding: Encoding,
    hidden_sizes: Sequence[int],
    *,
    key: jax.Array,
    activation: Activation = "relu",
    layer_norm: bool = False,
    weight: Initialiser | None = None,
) -> Any:
    """The network from an encoded observation to features: the user's own, a CNN for images, or an MLP.

    `network` is an equinox module, or a text `package.module:Name` of one or of what makes one.
    """
    if network is None:
        if encoding.is_image:
            return NatureCNN(encoding.shape, key=key, weight=weight)
        initial = weight or uniform_fan_in
        bias = None if weight is None else 0.0
        return MLP(
            encoding.shape[0],
            hidden_sizes,
            key=key,
            activation=activation,
            layer_norm=layer_norm,
            weight=initial,
            bias=bias,
        )
    module = _imported(network) if isinstance(network, str) else network
    if not isinstance(module, eqx.Module):
        module = module(encoding.shape, key=key)
    if not callable(module):
        raise ConfigError(f"network is {network!r}: use a callable equinox module, or 'package.module:Name' of one")
    return module


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"network is {path!r}: {error}; use 'package.module:Name'") from None


def feature_size(body: Any, encoding: Encoding) -> int:
    """How many features a body gives."""
    dtype = jnp.uint8 if encoding.is_image else jnp.float32
    out = eqx.filter_eval_shape(body, jax.ShapeDtypeStruct(encoding.shape, dtype))
    if len(out.shape) != 1:
        raise ConfigError(f"the network gives {out.shape} for one observation: it must give a vector of features")
    return out.shape[0]


def has_layers(body: Any) -> bool:
    """Whether a network can also be run by numpy."""
    return hasattr(body, "layers")


def layers_of(body: Any) -> list[Layer]:
    """A network as data; raises `ConfigError` for a user's own that cannot be."""
    if not has_layers(body):
        raise ConfigError(f"{type(body).__name__} cannot be exported: give it layers() -> list[rekindle.policy.Layer]")
    return body.layers()
