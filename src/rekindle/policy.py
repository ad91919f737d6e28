"""A trained policy alone: small, immutable, and run by numpy with no other library installed.

policy = rekindle.policy.load("policy.mpk")
action = policy.act(observation[None])[0]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np

from rekindle import files
from rekindle.agent import State
from rekindle.checkpoint import codec
from rekindle.errors import ConfigError, FileRefused, InputError
from rekindle.experience import ActMode, Array, Observations

__all__ = ["ActionHead", "Encoding", "Layer", "NetworkPolicy", "Normaliser", "Part", "load", "save"]

ACTION_MASK = "action_mask"
"""The key of a Dict observation that says which actions are allowed."""


class Part(msgspec.Struct, frozen=True):
    """One part of an observation space."""

    name: str
    """The key in a Dict space; empty for a space that is no Dict."""
    kind: Literal["box", "discrete"]
    shape: list[int]
    """The shape of one value."""
    counts: list[int] = []
    """For `discrete`: how many values each element may take; it becomes a one-hot vector."""
    starts: list[int] = []

    @property
    def size(self) -> int:
        """How many numbers it becomes."""
        return sum(self.counts) if self.kind == "discrete" else math.prod(self.shape)


class Encoding(msgspec.Struct, frozen=True):
    """How observations become what a network takes: one vector, or an image as it is.

    Parts of a Dict space are put end to end in the order of the space; `action_mask` is not one of them.
    """

    parts: list[Part]
    is_dict: bool = False
    is_image: bool = False
    mask_size: int = 0
    """How many actions an `action_mask` speaks of; 0 if there is none."""

    @classmethod
    def of(cls, space: Any) -> Encoding:
        """The encoding of a Gymnasium space; raises `ConfigError` for one that cannot be encoded."""
        named = getattr(space, "spaces", None)
        if isinstance(named, Mapping):
            spaces = dict(cast("Mapping[str, Any]", named))
            mask = spaces.pop(ACTION_MASK, None)
            parts = [_part(name, part) for name, part in spaces.items()]
            if not parts:
                raise ConfigError(f"{space!r} has no part to learn from")
            return cls(parts, is_dict=True, mask_size=0 if mask is None else int(np.prod(mask.shape)))
        part = _part("", space)
        return cls([part], is_image=part.kind == "box" and len(part.shape) == 3)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one encoded observation."""
        return tuple(self.parts[0].shape) if self.is_image else (sum(part.size for part in self.parts),)

    def encode(self, observations: Observations, xp: Any = np) -> Any:
        """A batch of observations for a network, with numpy or with another library that is like it."""
        if self.is_image:
            return observations
        encoded = [_encode(part, self._get(observations, part.name), xp) for part in self.parts]
        return encoded[0] if len(encoded) == 1 else xp.concatenate(encoded, axis=1)

    def mask(self, observations: Observations, xp: Any = np) -> Any:
        """Which actions are allowed, row by row; None if all are."""
        if not self.mask_size:
            return None
        values = self._get(observations, ACTION_MASK)
        return xp.asarray(values).reshape(len(values), -1).astype(bool)

    def _get(self, observations: Observations, name: str) -> Any:
        return cast("Mapping[str, Any]", observations)[name] if self.is_dict else observations


def _part(name: str, space: Any) -> Part:
    kind, shape = type(space).__name__, list(getattr(space, "shape", None) or ())
    match kind:
        case "Box":
            return Part(name, "box", shape)
        case "MultiBinary":
            return Part(name, "box", shape)
        case "Discrete":
            return Part(name, "discrete", [], [int(space.n)], [int(space.start)])
        case "MultiDiscrete":
            counts = np.asarray(space.nvec).ravel().tolist()
            starts = np.broadcast_to(getattr(space, "start", 0), np.shape(space.nvec)).ravel().tolist()
            return Part(name, "discrete", shape, counts, starts)
        case _:
            where = f" (the part {name!r})" if name else ""
            raise ConfigError(
                f"the observation space {space!r}{where} is not supported: use Box, Discrete, MultiDiscrete, "
                "MultiBinary, or a Dict of those"
            )


def _encode(part: Part, values: Any, xp: Any) -> Any:
    rows = len(values)
    if part.kind == "box":
        return xp.asarray(values).reshape(rows, -1).astype(np.float32)
    columns = xp.asarray(values).reshape(rows, -1)
    hot = [
        columns[:, index, None] == xp.arange(start, start + count)
        for index, (count, start) in enumerate(zip(part.counts, part.starts, strict=True))
    ]
    return xp.concatenate(hot, axis=1).astype(np.float32)


class Normaliser(msgspec.Struct, frozen=True, eq=False):
    """Subtracts a mean, divides by a standard deviation, and clips."""

    mean: Array
    variance: Array
    clip: float

    def apply(self, encoded: Array) -> Array:
        """The encoded observations, normalised."""
        scaled = (encoded - self.mean) / np.sqrt(self.variance + np.float32(1e-8))
        return np.clip(scaled, -self.clip, self.clip)


class Layer(msgspec.Struct, frozen=True, eq=False):
    """One step of a network, as data.

    `dense`: weight (out, in), bias. `noisy_dense`: the same with `weight_noise`, `bias_noise`. `conv`: weight
    (out, in, k, k), bias, stride, on images scaled to 0..1. `layer_norm`: weight, bias. `activation`: its name.
    `dueling`: two lists of layers, value and advantage. `atoms`: softmax over a support, then its expectation.
    """

    kind: Literal["dense", "noisy_dense", "conv", "layer_norm", "activation", "dueling", "atoms", "scale", "flatten"]
    arrays: dict[str, Array] = {}
    name: str = ""
    stride: int = 1
    value: list[Layer] = []
    advantage: list[Layer] = []
    atoms: int = 1

    def apply(self, values: Array, rng: np.random.Generator | None) -> Array:
        """The layer's output; noise is drawn only when there is a generator."""
        match self.kind:
            case "dense":
                return values @ self.arrays["weight"].T + self.arrays["bias"]
            case "noisy_dense":
                return self._noisy(values, rng)
            case "activation":
                return _ACTIVATIONS[self.name](values)
            case "layer_norm":
                centred = values - values.mean(axis=-1, keepdims=True)
                scaled = centred / np.sqrt(values.var(axis=-1, keepdims=True) + np.float32(1e-5))
                return scaled * self.arrays["weight"] + self.arrays["bias"]
            case "conv":
                return _convolve(values, self.arrays["weight"], self.arrays["bias"], self.stride)
            case "scale":
                return values.astype(np.float32) / np.float32(255)
            case "flatten":
                return values.reshape(len(values), -1)
            case "dueling":
                value = run_layers(self.value, values, rng).reshape(len(values), 1, self.atoms)
                advantage = run_layers(self.advantage, values, rng).reshape(len(values), -1, self.atoms)
                return (value + advantage - advantage.mean(axis=1, keepdims=True)).reshape(len(values), -1)
            case "atoms":
                logits = values.reshape(len(values), -1, self.atoms)
                weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
                return (weights / weights.sum(axis=-1, keepdims=True)) @ self.arrays["support"]

    def _noisy(self, values: Array, rng: np.random.Generator | None) -> Array:
        weight, bias = self.arrays["weight"], self.arrays["bias"]
        if rng is not None:
            rows, columns = (_signed_root(rng.standard_normal(size, np.float32)) for size in weight.shape)
            weight = weight + self.arrays["weight_noise"] * np.outer(rows, columns)
            bias = bias + self.arrays["bias_noise"] * rows
        return values @ weight.T + bias


def _signed_root(values: Array) -> Array:
    return np.sign(values) * np.sqrt(np.abs(values))


_ACTIVATIONS: dict[str, Any] = {
    "relu": lambda values: np.maximum(values, np.float32(0)),
    "tanh": np.tanh,
}


def _convolve(images: Array, weight: Array, bias: Array, stride: int) -> Array:
    size = weight.shape[-1]
    windows = np.lib.stride_tricks.sliding_window_view(images, (size, size), axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("ncyxkl,ockl->noyx", windows, weight, optimize=True) + bias.reshape(1, -1, 1, 1)


def run_layers(layers: Sequence[Layer], values: Array, rng: np.random.Generator | None = None) -> Array:
    """The output of layers one after the other."""
    for layer in layers:
        values = layer.apply(values, rng)
    return values


class ActionHead(msgspec.Struct, frozen=True, eq=False):
    """How a network's output becomes an action.

    `greedy`: values of discrete actions; explores with `epsilon`, or by softmax at `temperature`.
    `categorical`: logits of one or several discrete actions, one after the other.
    `gaussian`: a mean; explores with `scale`, clipped to the bounds.
    `squashed`: a mean and a log standard deviation, squashed by tanh into the bounds; or, with `scale`, a
    mean squashed by tanh that explores with that noise.
    """

    kind: Literal["greedy", "categorical", "gaussian", "squashed"]
    dtype: str
    shape: list[int]
    """The shape of one action."""
    counts: list[int] = []
    starts: list[int] = []
    low: Array = msgspec.field(default_factory=lambda: np.zeros(0, np.float32))
    high: Array = msgspec.field(default_factory=lambda: np.zeros(0, np.float32))
    epsilon: float = 0.0
    temperature: float = 0.0
    scale: Array | None = None

    def choose(self, output: Array, mask: Array | None, mode: ActMode, rng: np.random.Generator | None) -> Array:
        """An action for each row of a network's output."""
        explore = mode is ActMode.EXPLORE
        if explore and rng is None:
            raise InputError("exploring needs a random generator: act(observations, mode, rng)")
        chooser = {
            "greedy": self._greedy,
            "categorical": self._categorical,
            "gaussian": self._gaussian,
            "squashed": self._squashed,
        }[self.kind]
        actions = chooser(output, mask, rng if explore else None)
        return actions.reshape(len(output), *self.shape).astype(self.dtype)

    def _greedy(self, values: Array, mask: Array | None, rng: np.random.Generator | None) -> Array:
        if mask is not None:
            values = np.where(mask, values, -np.inf)
        if rng is not None and self.temperature:
            return _sample(values / np.float32(self.temperature), rng) + self.starts[0]
        actions = values.argmax(axis=1)
        if rng is not None and self.epsilon:
            strays = rng.random(len(values)) < self.epsilon
            if strays.any():
                even = np.zeros_like(values) if mask is None else np.where(mask, np.float32(0), np.float32(-np.inf))
                actions = np.where(strays, _sample(even, rng), actions)
        return actions + self.starts[0]

    def _categorical(self, logits: Array, mask: Array | None, rng: np.random.Generator | None) -> Array:
        if mask is not None:
            logits = np.where(mask, logits, -np.inf)
        ends = np.cumsum(self.counts)
        parts = np.split(logits, ends[:-1], axis=1)
        chosen = [part.argmax(axis=1) if rng is None else _sample(part, rng) for part in parts]
        return np.stack(chosen, axis=1) + np.asarray(self.starts)

    def _gaussian(self, mean: Array, _: Array | None, rng: np.random.Generator | None) -> Array:
        if rng is not None:
            mean = mean + self._scale() * rng.standard_normal(mean.shape, np.float32)
        return np.clip(mean, self.low.ravel(), self.high.ravel())

    def _squashed(self, output: Array, _: Array | None, rng: np.random.Generator | None) -> Array:
        low, high = self.low.ravel(), self.high.ravel()
        mean = output[:, : low.size]
        if self.scale is not None:
            unit = np.tanh(mean)
            if rng is not None:
                unit = np.clip(unit + self._scale() * rng.standard_normal(unit.shape, np.float32), -1, 1)
        elif rng is None:
            unit = np.tanh(mean)
        else:
            log_std = np.clip(output[:, low.size :], -20, 2)
            unit = np.tanh(mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32))
        return np.clip(low + (unit + 1) * np.float32(0.5) * (high - low), low, high)

    def _scale(self) -> Array:
        return np.float32(0) if self.scale is None else self.scale


def _sample(logits: Array, rng: np.random.Generator) -> Array:
    """One draw from each row's softmax, by the largest of logits with Gumbel noise; -inf is never drawn."""
    return np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


class NetworkPolicy(msgspec.Struct, frozen=True, eq=False):
    """Encoding, normaliser, layers and head: all it takes to act."""

    encoding: Encoding
    layers: list[Layer]
    head: ActionHead
    normaliser: Normaliser | None = None
    algorithm: str = ""

    def act(
        self, observations: Observations, mode: ActMode = ActMode.EXPLOIT, rng: np.random.Generator | None = None
    ) -> Array:
        """An action for each row; EXPLOIT draws no random number."""
        encoded = self.encoding.encode(observations)
        if self.normaliser is not None:
            encoded = self.normaliser.apply(encoded)
        output = run_layers(self.layers, encoded, rng if mode is ActMode.EXPLORE else None)
        return self.head.choose(output, self.encoding.mask(observations), mode, rng)


def save(policy: NetworkPolicy, path: str | Path) -> None:
    """Write a policy to a file that `load` reads with numpy alone."""
    tree: State = {"kind": "policy", "policy": msgspec.to_builtins(policy, builtin_types=(np.ndarray,), enc_hook=_keep)}
    files.write_atomic(Path(path), *codec.encode(_listed(tree)))


def load(path: str | Path) -> NetworkPolicy:
    """Read a policy; raises `FileRefused` for anything else."""
    tree = codec.read_file(path)
    if tree.get("kind") != "policy":
        raise FileRefused(f"{path}: not an exported policy (rekindle export makes one from a run)")
    try:
        return msgspec.convert(tree.get("policy"), NetworkPolicy, dec_hook=_array_hook)
    except (msgspec.ValidationError, TypeError) as error:
        raise FileRefused(f"{path}: not a policy this rekindle can run: {error}") from None


def _keep(value: Any) -> Any:
    return value


def _array_hook(kind: type, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return cast("Array", value)
    raise TypeError(f"{kind} expected, got {type(value).__name__}")


def _listed(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _listed(value) for key, value in cast("dict[str, Any]", tree).items()}
    if isinstance(tree, list | tuple):
        return [_listed(value) for value in cast("list[Any]", tree)]
    return tree
