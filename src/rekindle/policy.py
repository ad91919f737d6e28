"""A trained policy alone: small, immutable, and run by numpy with no other library installed.

policy = rekindle.policy.load("policy.mpk")
action = policy.act(observation[None])[0]
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np

from rekindle import files
from rekindle.agent import State
from rekindle.checkpoint import codec
from rekindle.encoding import Encoding
from rekindle.errors import FileRefused, InputError
from rekindle.experience import ActMode, Array, Observations

__all__ = [
    "ActionHead",
    "Forward",
    "Layer",
    "NetworkPolicy",
    "Normaliser",
    "draw_noise",
    "forward",
    "load",
    "noise_size",
    "save",
]

Forward = Callable[[Array, Array | None], Array]
"""A network: a batch of encoded observations, and if it is to be noisy the noise of each, to its output."""

_EXPLORE = ActMode.EXPLORE

# For a few numbers numpy is quicker with arrays than with scalars, and when it need not add axes.
_ZERO, _ONE, _MINUS_ONE, _MOST_LOG_STD = (np.full((), value, np.float32) for value in (0, 1, -1, 2))


class Normaliser(msgspec.Struct, frozen=True, eq=False):
    """Subtracts a mean, divides by a standard deviation, and clips."""

    mean: Array
    variance: Array
    clip: float

    def apply(self, encoded: Array) -> Array:
        """The encoded observations, normalised."""
        scaled = (encoded - self.mean) / np.sqrt(self.variance + np.float32(1e-8))
        return np.clip(scaled, -self.clip, self.clip)


# Networks


class Layer(msgspec.Struct, frozen=True, eq=False):
    """One step of a network, as data.

    `dense`: weight (inputs, outputs), bias. `noisy_dense`: the same with `weight_noise`, `bias_noise`. `conv`: weight
    (outputs, inputs, k, k), bias, stride, no padding. `layer_norm`: weight, bias. `activation`: its name. `scale`:
    bytes to 0..1. `dueling`: two lists of layers, value and advantage. `expectation`: softmax over the atoms of each
    action, then the mean of `support`.
    """

    kind: Literal[
        "dense", "noisy_dense", "conv", "layer_norm", "activation", "scale", "flatten", "dueling", "expectation"
    ]
    arrays: dict[str, Array] = {}
    name: str = ""
    stride: int = 1
    value: list[Layer] = []
    advantage: list[Layer] = []
    atoms: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        missing = [name for name in _ARRAYS.get(self.kind, ()) if name not in self.arrays]
        if missing:
            raise ValueError(f"a layer {self.kind} has no {', '.join(missing)}")
        if self.kind == "activation" and self.name not in _ACTIVATIONS:
            raise ValueError(f"the activation {self.name!r} is not one of {', '.join(_ACTIVATIONS)}")

    @property
    def noise_size(self) -> int:
        """How many random numbers it takes to be noisy."""
        own = sum(self.arrays["weight"].shape) if self.kind == "noisy_dense" else 0
        return own + noise_size(self.value) + noise_size(self.advantage)


_ARRAYS = {
    "dense": ("weight", "bias"),
    "noisy_dense": ("weight", "bias", "weight_noise", "bias_noise"),
    "conv": ("weight", "bias"),
    "layer_norm": ("weight", "bias"),
    "expectation": ("support",),
}

_ACTIVATIONS = ("relu", "tanh")


def noise_size(layers: Sequence[Layer]) -> int:
    """How many random numbers it takes for layers to be noisy."""
    return sum(layer.noise_size for layer in layers)


def forward(layers: Sequence[Layer], start: int = 0) -> Forward:
    """The function that runs these layers; their arrays are looked at when it is called, and may change.

    The noise of the first layer that has any starts at column `start`; that of the others follows in order.
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
        case "flatten":
            return lambda values, _: values.reshape(len(values), -1)
        case "dueling":
            value, advantage = forward(layer.value, start), forward(layer.advantage, start + noise_size(layer.value))
            return _dueling(value, advantage, layer.atoms)
        case "expectation":
            return _expectation(layer.arrays["support"], layer.atoms)
        case "dense" | "activation":
            return _plain([layer])


def _plain(layers: Sequence[Layer]) -> Forward:
    """Dense layers and activations, in one function: for a single row, calls are what takes the time."""
    parts: list[tuple[Array | None, Array | None, str]] = []
    """Weight and bias of each dense layer, or None, and the activation that follows, or nothing."""
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
            # It may write to what it is given, which is always the output of a layer before it.
            if activation == "relu":
                np.maximum(values, _ZERO, out=values)
            elif activation:
                np.tanh(values, out=values)
        return values

    return run


def _noisy_dense(start: int, weight: Array, bias: Array, weight_noise: Array, bias_noise: Array) -> Forward:
    """With noise, every row has weights of its own: mean + weight_noise * outer(before, after)."""
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


def _conv(weight: Array, bias: Array, stride: int) -> Forward:
    outputs, _, size, _ = weight.shape
    shift = bias.reshape(1, outputs, 1, 1)

    def run(images: Array, _: Array | None) -> Array:
        windows = np.lib.stride_tricks.sliding_window_view(images, (size, size), axis=(2, 3))
        windows = windows[:, :, ::stride, ::stride]
        output = np.tensordot(windows, weight, axes=((1, 4, 5), (1, 2, 3)))
        return np.ascontiguousarray(output.transpose(0, 3, 1, 2)) + shift

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


# Actions


class ActionHead(msgspec.Struct, frozen=True, eq=False, dict=True):
    """How a network's output becomes an action.

    `greedy`: values of discrete actions; `exploration` is how likely a random one is.
    `softmax`: values of discrete actions; `exploration` is the temperature, 0 for the best one.
    `categorical`: logits of one or several discrete actions, one after the other.
    `gaussian`: a mean in the units of the action; explores with `scale`, clipped to the bounds.
    `noisy_tanh`: a mean before tanh; explores with noise of `exploration`, where the bounds are -1 and 1.
    `squashed`: a mean and a log standard deviation before tanh.
    """

    kind: Literal["greedy", "softmax", "categorical", "gaussian", "noisy_tanh", "squashed"]
    dtype: str
    """Of an action."""
    shape: list[int]
    """Of one action."""
    counts: list[int] = []
    """How many values each discrete action may take."""
    starts: list[int] = []
    """The least of them."""
    low: Array = msgspec.field(default_factory=lambda: np.zeros(0, np.float32))
    """The bounds of a continuous action, flattened."""
    high: Array = msgspec.field(default_factory=lambda: np.zeros(0, np.float32))
    exploration: float = 0.0
    scale: Array = msgspec.field(default_factory=lambda: np.zeros(0, np.float32))
    anywhere: bool = False
    """Whether a continuous action explores anywhere in the bounds, whatever the network says."""

    @functools.cached_property
    def centre(self) -> Array:
        """The middle of the bounds of a continuous action, as a row."""
        return (self.low + (self.high - self.low) * np.float32(0.5))[None]

    @functools.cached_property
    def reach(self) -> Array:
        """How far it is from the middle to the bounds; rounded down, so that `centre +- reach` is never beyond."""
        reach = np.minimum(self.centre - self.low, self.high - self.centre)
        is_beyond = (self.centre - reach < self.low) | (self.centre + reach > self.high)
        return np.where(is_beyond, np.nextafter(reach, np.zeros_like(reach)), reach)

    @functools.cached_property
    def is_unit(self) -> bool:
        """Whether the bounds of a continuous action are -1 and 1."""
        return bool((self.low == -1).all() and (self.high == 1).all())

    @functools.cached_property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    @functools.cached_property
    def deviation(self) -> Array:
        """`exploration` as an array, by which numpy multiplies quicker."""
        return np.full((), self.exploration, np.float32)

    def choose(self, output: Array, mask: Array | None, rng: np.random.Generator | None) -> Array:
        """An action for each row of a network's output; explores if there is a generator."""
        if mask is not None:
            output = np.where(mask, output, np.float32(-np.inf))
        if self.anywhere and rng is not None:
            actions = rng.uniform(self.low, self.high, (len(output), self.low.size))
        else:
            actions = _CHOOSERS[self.kind](self, output, rng)
        if len(self.shape) != actions.ndim - 1:
            actions = actions.reshape(len(output), *self.shape)
        return actions if actions.dtype is self._dtype else actions.astype(self._dtype, copy=False)


def _greedy(head: ActionHead, values: Array, rng: np.random.Generator | None) -> Array:
    actions = values.argmax(axis=1)
    if rng is not None and head.exploration > 0:
        draws = rng.random(len(values)).tolist() if len(values) > 1 else (rng.random(),)
        for row, draw in enumerate(draws):
            if draw < head.exploration:  # what a mask forbids stays forbidden
                allowed = [index for index, value in enumerate(values[row].tolist()) if value > -math.inf]
                actions[row] = allowed[int(rng.random() * len(allowed))] if allowed else 0
    start = head.starts[0]
    return actions + start if start else actions


def _softmax(head: ActionHead, values: Array, rng: np.random.Generator | None) -> Array:
    if rng is None or head.exploration <= 0:
        return values.argmax(axis=1) + head.starts[0]
    return _sample(values / np.float32(head.exploration), rng) + head.starts[0]


def _categorical(head: ActionHead, logits: Array, rng: np.random.Generator | None) -> Array:
    if rng is not None:
        logits = logits + rng.gumbel(size=logits.shape)  # see _sample
    if len(head.counts) == 1:
        return logits.argmax(axis=1) + head.starts[0]
    actions = np.empty((len(logits), len(head.counts)), np.int64)
    end = 0
    for index, (count, least) in enumerate(zip(head.counts, head.starts, strict=True)):
        start, end = end, end + count
        actions[:, index] = logits[:, start:end].argmax(axis=1) + least
    return actions


def _gaussian(head: ActionHead, mean: Array, rng: np.random.Generator | None) -> Array:
    if rng is not None:
        mean = mean + head.scale * rng.standard_normal(mean.shape, np.float32)
    return np.minimum(np.maximum(mean, head.low), head.high)  # np.clip takes several times as long


def _noisy_tanh(head: ActionHead, mean: Array, rng: np.random.Generator | None) -> Array:
    unit = np.tanh(mean)
    if rng is not None:
        noise = rng.standard_normal(unit.shape, np.float32)
        noise *= head.deviation
        unit += noise
        # Not np.clip, which is several times as slow for a few numbers.
        np.minimum(np.maximum(unit, _MINUS_ONE, out=unit), _ONE, out=unit)
    return _within_bounds(head, unit)


def _squashed(head: ActionHead, output: Array, rng: np.random.Generator | None) -> Array:
    size = head.low.size
    before = output[:, :size]
    if rng is not None:
        noise = rng.standard_normal(before.shape, np.float32)
        # From below it need not be clipped to be the same action: exp(-20) is nothing beside a mean.
        noise *= np.exp(np.minimum(output[:, size:], _MOST_LOG_STD))
        noise += before
        before = noise
    return _within_bounds(head, np.tanh(before))


def _within_bounds(head: ActionHead, unit: Array) -> Array:
    """From -1..1 to the bounds."""
    if head.is_unit:
        return unit
    actions = unit * head.reach
    actions += head.centre
    return actions


_CHOOSERS: dict[str, Callable[[ActionHead, Array, np.random.Generator | None], Array]] = {
    "greedy": _greedy,
    "softmax": _softmax,
    "categorical": _categorical,
    "gaussian": _gaussian,
    "noisy_tanh": _noisy_tanh,
    "squashed": _squashed,
}


def _sample(logits: Array, rng: np.random.Generator) -> Array:
    """One draw from each row's softmax, by the largest of logits with Gumbel noise; -inf is never drawn."""
    return np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


# Policies


class _Saved(msgspec.Struct, frozen=True, eq=False):
    """A policy as data."""

    algorithm: str
    encoding: Encoding
    layers: list[Layer]
    head: ActionHead
    normaliser: Normaliser | None = None


class NetworkPolicy:
    """Encoding, normaliser, layers and head: all it takes to act."""

    def __init__(
        self,
        encoding: Encoding,
        layers: Sequence[Layer],
        head: ActionHead,
        *,
        normaliser: Normaliser | None = None,
        algorithm: str = "",
    ) -> None:
        self.encoding = encoding
        self.layers = list(layers)
        self.head = head
        self.normaliser = normaliser
        self.algorithm = algorithm
        """What trained it."""
        self._encode = encoding.encoder()
        self._forward = forward(self.layers)
        self._noise_size = noise_size(self.layers)

    def act(
        self, observations: Observations, mode: ActMode = ActMode.EXPLOIT, rng: np.random.Generator | None = None
    ) -> Array:
        """An action for each row; EXPLOIT draws no random number."""
        if mode is not _EXPLORE:
            rng = None
        elif rng is None:
            raise InputError("exploring needs a random generator: act(observations, mode, rng)")
        return self.head.choose(self.output(observations, rng), self.encoding.mask(observations), rng)

    def output(self, observations: Observations, rng: np.random.Generator | None = None) -> Array:
        """What the network says of each observation, such as the value of each action; noisy with a generator."""
        encoded = self._encode(observations)
        if self.normaliser is not None:
            encoded = self.normaliser.apply(encoded)
        return self._forward(encoded, draw_noise(rng, len(encoded), self._noise_size))


def draw_noise(rng: np.random.Generator | None, rows: int, size: int) -> Array | None:
    """What noisy layers take; None if there are none, or no generator."""
    return rng.standard_normal((rows, size), np.float32) if rng is not None and size else None


def save(policy: NetworkPolicy, path: str | Path) -> None:
    """Write a policy to a file that `load` reads with numpy alone."""
    saved = _Saved(policy.algorithm, policy.encoding, policy.layers, policy.head, policy.normaliser)
    tree: State = {"kind": "policy", "policy": msgspec.to_builtins(saved, builtin_types=(np.ndarray,), enc_hook=_keep)}
    files.write_atomic(Path(path), *codec.encode(tree))


def load(path: str | Path) -> NetworkPolicy:
    """Read a policy; raises `FileRefused` for anything else."""
    tree = codec.read_file(path)
    if tree.get("kind") != "policy":
        raise FileRefused(f"{path}: not an exported policy")
    try:
        saved = msgspec.convert(tree.get("policy"), _Saved, dec_hook=_array)
        return NetworkPolicy(
            saved.encoding, saved.layers, saved.head, normaliser=saved.normaliser, algorithm=saved.algorithm
        )
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise FileRefused(f"{path}: not a policy this rekindle can run: {error}") from None


def _keep(value: Any) -> Any:
    return value


def _array(kind: type, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return cast("Array", value)
    raise TypeError(f"{kind} expected, got {type(value).__name__}")
