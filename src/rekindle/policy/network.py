"""Networks as `Layer` data, run with numpy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import msgspec
import numpy as np

from rekindle.experience import Array

__all__ = [
    "Forward",
    "Layer",
    "Normaliser",
    "draw_noise",
    "embedded_quantiles",
    "forward",
    "noise_size",
    "quantile_midpoints",
]

Forward = Callable[[Any, Array | None], Array]
"""Computes the output of a network from a batch of encoded observations (an array, or a tuple with one for each input)
and, for noisy networks, the noise of each row."""

_ZERO = np.zeros((), np.float32)  # for a few numbers, numpy is faster with arrays than with scalars


class Normaliser(msgspec.Struct, frozen=True, eq=False):
    """Subtracts a mean, divides by a standard deviation, and clips."""

    mean: Array
    variance: Array
    clip: float

    def apply(self, encoded: Any) -> Any:
        """Normalise encoded observations; images are not changed."""
        if isinstance(encoded, tuple):
            *images, vector = cast("tuple[Array, ...]", encoded)
            return (*images, self.apply(vector))
        scaled = (encoded - self.mean) / np.sqrt(self.variance + np.float32(1e-8))
        return np.clip(scaled, -self.clip, self.clip)


# Networks


class Layer(msgspec.Struct, frozen=True, eq=False):
    """One layer of a network, as data.

    The kinds of layers:

    - `dense`: weight (inputs, outputs), bias.
    - `noisy_dense`: the same with `weight_noise` and `bias_noise`.
    - `conv`: weight (outputs, inputs, k, k), bias, stride, no padding.
    - `layer_norm`: weight, bias.
    - `activation`: its name, `relu` or `tanh`.
    - `scale`: scales bytes to 0..1.
    - `pad`: appends rows and columns of zeros to an image.
    - `flatten`: flattens an image.
    - `branches`: a list of layers for each input; their outputs are concatenated.
    - `dueling`: two lists of layers, value and advantage.
    - `expectation`: softmax over the atoms of each action, then the mean of `support`.
    - `mean`: the mean of the atoms of each action.
    - `implicit_quantiles`: weight (cosines, inputs) and bias embed `atoms` quantiles; the layers `advantage` run on the
      product of the inputs and each embedding, and the outputs are averaged.
    - `deviations`: appends `least + (most - least) * sigmoid(raw)` to its inputs.
    """

    kind: Literal[
        "dense",
        "noisy_dense",
        "conv",
        "layer_norm",
        "activation",
        "scale",
        "pad",
        "flatten",
        "branches",
        "dueling",
        "expectation",
        "mean",
        "implicit_quantiles",
        "deviations",
    ]
    arrays: dict[str, Array] = {}
    name: str = ""
    stride: int = 1
    rows: int = 0
    columns: int = 0
    branches: list[list[Layer]] = []
    value: list[Layer] = []
    advantage: list[Layer] = []
    atoms: int = 1

    def __post_init__(self) -> None:
        """Raise `ValueError` for a layer that cannot be run."""
        missing = [name for name in ARRAYS.get(self.kind, ()) if name not in self.arrays]
        if missing:
            raise ValueError(f"a layer {self.kind} has no {', '.join(missing)}")
        if self.kind == "activation" and self.name not in _ACTIVATIONS:
            raise ValueError(f"the activation {self.name!r} is not one of {', '.join(_ACTIVATIONS)}")

    @property
    def noise_size(self) -> int:
        """The number of random numbers that it needs for its noise."""
        own = sum(self.arrays["weight"].shape) if self.kind == "noisy_dense" else 0
        own = self.atoms if self.kind == "implicit_quantiles" else own
        return own + sum(map(noise_size, (*self.branches, self.value, self.advantage)))


ARRAYS = {
    "dense": ("weight", "bias"),
    "noisy_dense": ("weight", "bias", "weight_noise", "bias_noise"),
    "conv": ("weight", "bias"),
    "layer_norm": ("weight", "bias"),
    "expectation": ("support",),
    "implicit_quantiles": ("weight", "bias"),
    "deviations": ("raw", "least", "most"),
}

_ACTIVATIONS = ("relu", "tanh")


def noise_size(layers: Sequence[Layer]) -> int:
    """The number of random numbers that layers need for their noise."""
    return sum(layer.noise_size for layer in layers)


def forward(layers: Sequence[Layer], start: int = 0) -> Forward:
    """Return a function that runs these layers; it reads their arrays at each call, so they may change.

    The noise of the first noisy layer starts at column `start`; that of the others follows in order.
    """
    steps: list[Forward] = []
    for is_plain, group in itertools.groupby(layers, lambda layer: layer.kind in {"dense", "activation"}):
        if is_plain:
            steps.append(_plain(list(group)))
            continue
        for layer in group:
            steps.append(_step(layer, start))
            start += layer.noise_size
    if layers and layers[0].kind in {"activation", "flatten"}:
        steps.insert(0, lambda values, _: values.copy())
    if len(steps) == 1:
        return steps[0]

    def run(values: Array, noise: Array | None) -> Array:
        for step in steps:
            values = step(values, noise)
        return values

    return run


def _step(layer: Layer, start: int) -> Forward:  # noqa: PLR0911 - one for each kind
    match layer.kind:
        case "noisy_dense":
            return _noisy_dense(start, **layer.arrays)
        case "conv":
            return _conv(layer.arrays["weight"], layer.arrays["bias"], layer.stride)
        case "layer_norm":
            return _layer_norm(layer.arrays["weight"], layer.arrays["bias"])
        case "scale":
            return lambda values, _: values.astype(np.float32) / np.float32(255)
        case "pad":
            widths = ((0, 0), (0, 0), (0, layer.rows), (0, layer.columns))
            return lambda values, _: np.pad(values, widths)
        case "flatten":
            return lambda values, _: values.reshape(len(values), -1)
        case "branches":
            return _branches(layer.branches, start)
        case "dueling":
            value, advantage = forward(layer.value, start), forward(layer.advantage, start + noise_size(layer.value))
            return _dueling(value, advantage, layer.atoms)
        case "expectation":
            return _expectation(layer.arrays["support"], layer.atoms)
        case "mean":
            return lambda values, _: values.reshape(len(values), -1, layer.atoms).mean(axis=-1)
        case "implicit_quantiles":
            after = forward(layer.advantage, start + layer.atoms)
            return _implicit_quantiles(layer.arrays["weight"], layer.arrays["bias"], after, start, layer.atoms)
        case "deviations":
            return _deviations(**layer.arrays)
        case "dense" | "activation":
            return _plain([layer])


def _plain(layers: Sequence[Layer]) -> Forward:
    """Dense layers and activations in one function: for a single row, function calls take most of the time."""
    parts: list[tuple[Array | None, Array | None, str]] = []
    """Weight and bias of each dense layer, or None, and the activation that follows, or an empty string."""
    for layer in layers:
        if layer.kind == "dense":
            parts.append((layer.arrays["weight"], layer.arrays["bias"][None], ""))
        elif parts and not parts[-1][2]:
            parts[-1] = (*parts[-1][:2], layer.name)
        else:
            parts.append((None, None, layer.name))

    def run(values: Array, _: Array | None) -> Array:
        for weight, bias, activation in parts:
            if weight is not None:
                values = values.dot(weight)
                values += bias
            # Writing to the input is safe: it is always the output of the previous layer.
            if activation == "relu":
                np.maximum(values, _ZERO, out=values)
            elif activation:
                np.tanh(values, out=values)
        return values

    return run


def _noisy_dense(start: int, weight: Array, bias: Array, weight_noise: Array, bias_noise: Array) -> Forward:
    """With noise, every row has its own weights: mean + weight_noise * outer(before, after)."""
    middle = start + weight.shape[0]
    end = middle + weight.shape[1]

    def run(values: Array, noise: Array | None) -> Array:
        output = values.dot(weight)
        output += bias
        if noise is not None:
            before, after = _signed_root(noise[:, start:middle]), _signed_root(noise[:, middle:end])
            output += ((values * before).dot(weight_noise) + bias_noise) * after
        return output

    return run


def _signed_root(noise: Array) -> Array:
    return np.copysign(np.sqrt(np.abs(noise)), noise)


_FEW_IMAGES = 4
"""The number of images to convolve together, so that their windows stay in the cache."""


def _conv(weight: Array, bias: Array, stride: int) -> Forward:
    outputs, _, size, _ = weight.shape

    def few(images: Array) -> Array:
        # im2col with the channels last: a row of a window is contiguous, also in the output for the next layer.
        images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
        windows = np.lib.stride_tricks.sliding_window_view(images, (size, size), axis=(1, 2))[:, ::stride, ::stride]
        count, rows, columns = windows.shape[:3]
        flat = windows.transpose(0, 1, 2, 4, 5, 3).reshape(count * rows * columns, weight[0].size)
        output = flat.dot(weight.transpose(0, 2, 3, 1).reshape(outputs, -1).T)
        output += bias
        return output.reshape(count, rows, columns, outputs)

    def run(images: Array, _: Array | None) -> Array:
        parts = [few(images[first : first + _FEW_IMAGES]) for first in range(0, max(1, len(images)), _FEW_IMAGES)]
        return np.concatenate(parts).transpose(0, 3, 1, 2)

    return run


def _branches(branches: Sequence[Sequence[Layer]], start: int) -> Forward:
    starts = itertools.accumulate(map(noise_size, branches[:-1]), initial=start)
    runs = [forward(layers, first) for layers, first in zip(branches, starts, strict=True)]

    def run(values: tuple[Array, ...], noise: Array | None) -> Array:
        return np.concatenate([run(part, noise) for run, part in zip(runs, values, strict=True)], axis=1)

    return run


def _layer_norm(weight: Array, bias: Array) -> Forward:
    def run(values: Array, _: Array | None) -> Array:
        centred = values - values.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        return centred / np.sqrt(variance + np.float32(1e-5)) * weight + bias

    return run


def _dueling(value: Forward, advantage: Forward, atoms: int) -> Forward:
    def run(values: Array, noise: Array | None) -> Array:
        rows = len(values)
        advantages = advantage(values, noise).reshape(rows, -1, atoms)
        advantages -= advantages.mean(axis=1, keepdims=True)
        advantages += value(values, noise).reshape(rows, 1, atoms)
        return advantages.reshape(rows, -1)

    return run


def _expectation(support: Array, atoms: int) -> Forward:
    def run(values: Array, _: Array | None) -> Array:
        logits = values.reshape(len(values), -1, atoms)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return weights.dot(support) / weights.sum(axis=-1)

    return run


def _implicit_quantiles(weight: Array, bias: Array, after: Forward, start: int, count: int) -> Forward:
    """The mean of evenly spaced quantiles, or with noise of random ones (IQN)."""
    midpoints = quantile_midpoints(count)

    def run(values: Array, noise: Array | None) -> Array:
        taus = midpoints[None]
        if noise is not None:  # each midpoint is shifted by a uniform random amount, modulo 1
            taus = (midpoints + _normal_cdf(noise[:, start : start + count]) - 0.5) % 1
        products = values[:, None] * embedded_quantiles(taus, weight, bias)
        outputs = after(products.reshape(-1, products.shape[-1]), None)
        return outputs.reshape(len(values), count, outputs.shape[1]).mean(axis=1)

    return run


def quantile_midpoints(count: int) -> Array:
    """The midpoints of `count` equal intervals from 0 to 1: 0.25 and 0.75 for two."""
    return (np.arange(count) + 0.5) / count


def embedded_quantiles(taus: Array, weight: Array, bias: Array) -> Array:
    """The embedding of each quantile in an IQN, which its inputs are multiplied by."""
    frequencies = (np.pi * np.arange(len(weight))).astype(np.float32)
    embedded = np.cos(taus[..., None].astype(np.float32) * frequencies).dot(weight)
    embedded += bias
    return np.maximum(embedded, _ZERO, out=embedded)


def _normal_cdf(numbers: Array) -> Array:
    """The cumulative distribution function of the standard Gaussian."""
    shares = [0.5 + 0.5 * math.erf(number * math.sqrt(0.5)) for number in numbers.ravel().tolist()]
    return np.array(shares).reshape(numbers.shape)


def _deviations(raw: Array, least: Array, most: Array) -> Forward:
    def run(values: Array, _: Array | None) -> Array:
        deviations = least + (most - least) / (np.float32(1) + np.exp(-raw))
        return np.concatenate([values, np.broadcast_to(deviations, (len(values), raw.size))], axis=1)

    return run


def draw_noise(rng: np.random.Generator | None, rows: int, size: int) -> Array | None:
    """The noise for noisy layers; None if there are none, or no generator."""
    return rng.standard_normal((rows, size), np.float32) if rng is not None and size else None
