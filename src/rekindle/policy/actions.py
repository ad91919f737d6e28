"""Convert the output of a network to an action."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np

from rekindle.experience import Array
from rekindle.nesting import Nesting
from rekindle.spaces import ActionStructure, ArraySpec

__all__ = ["ActionHead"]
_SQRT_HALF = math.sqrt(0.5)
# For a few numbers, numpy is faster with arrays than with scalars, and without added axes.
_ONE, _MINUS_ONE, _MOST_LOG_STD = (np.full((), value, np.float32) for value in (1, -1, 2))


# Actions


class ActionHead(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Converts the output of a network to an action.

    `greedy`: values of discrete actions; `exploration` is the probability of a random action.
    `softmax`: values of discrete actions; `exploration` is the temperature, 0 for the greedy action.
    `categorical`: logits of one or several discrete actions, concatenated.
    `gaussian`: a mean in the units of the action; explores with `scale`, clipped to the bounds.
    `noisy_tanh`: a mean before tanh; explores with noise of scale `exploration` within the bounds -1 and 1.
    `squashed`: a mean and a log standard deviation before tanh.
    `tanh_gaussian`: a mean before tanh, and a log standard deviation of noise after it, within the bounds -1 and 1.
    `product`: a composite action, with the outputs of its parts concatenated; an action is one row of numbers.
    """

    kind: Literal["greedy", "softmax", "categorical", "gaussian", "noisy_tanh", "squashed", "tanh_gaussian", "product"]
    dtype: str
    """The dtype of an action."""
    shape: list[int]
    """The shape of one action."""
    counts: list[int] = []
    """The number of values of each discrete action."""
    starts: list[int] = []
    """The first value of each discrete action."""
    low: Array = msgspec.field(default_factory=lambda: np.zeros(0, np.float32))
    """The bounds of a continuous action, flattened."""
    high: Array = msgspec.field(default_factory=lambda: np.zeros(0, np.float32))
    exploration: float = 0.0
    scale: Array = msgspec.field(default_factory=lambda: np.zeros(0, np.float32))
    anywhere: bool = False
    """Whether a continuous action explores uniformly within the bounds, ignoring the network."""
    parts: list[ActionHead] = []
    """For `product`: the head of each part, `categorical` or `gaussian`."""
    nesting: Any = None
    """For `product`: how the parts lie in dicts and tuples, as `Nesting.state`."""

    @functools.cached_property
    def structure(self) -> ActionStructure | None:
        """Converts the rows of a composite action to its structure; None for other actions."""
        if self.kind != "product":
            return None
        specs = [ArraySpec(np.dtype(part.dtype), tuple(part.shape)) for part in self.parts]
        return ActionStructure(Nesting.of_state(self.nesting), specs, self._dtype)

    @functools.cached_property
    def outputs(self) -> int:
        """The number of network outputs that a `categorical`, `gaussian` or `product` head takes."""
        return sum(part.outputs for part in self.parts) if self.parts else sum(self.counts) or self.low.size

    @functools.cached_property
    def _is_masked(self) -> Array:
        """For `product`: which outputs a mask covers."""
        return np.repeat([part.kind == "categorical" for part in self.parts], [part.outputs for part in self.parts])

    @functools.cached_property
    def centre(self) -> Array:
        """The middle of the bounds of a continuous action, as a row."""
        return (self.low + (self.high - self.low) * np.float32(0.5))[None]

    @functools.cached_property
    def reach(self) -> Array:
        """The distance from the middle to the bounds, rounded down, so that `centre +- reach` never exceeds them."""
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
        """`exploration` as an array, because numpy multiplies it faster."""
        return np.full((), self.exploration, np.float32)

    def choose(
        self, output: Array, mask: Array | None, rng: np.random.Generator | None, noise: Array | None = None
    ) -> Array:
        """Choose an action for each row of a network's output; explores if a generator is given.

        `noise` has a row of standard Gaussian numbers for each action. If it is given, `noisy_tanh`, `squashed` and
        `tanh_gaussian` explore with it instead of the generator.
        """
        if mask is not None:
            if self.parts:
                covered, mask = mask, np.ones(output.shape, np.bool_)
                mask[:, self._is_masked] = covered
            output = np.where(mask, output, np.float32(-np.inf))
        if noise is not None:
            actions = _uniform(self, noise) if self.anywhere else _NOISED[self.kind](self, output, noise)
        elif self.anywhere and rng is not None:
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
            if draw < head.exploration:  # masked actions stay forbidden
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
        start, actions = head.starts[0], logits.argmax(axis=1)
        return actions + start if start else actions
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
    if rng is None:
        return _within_bounds(head, np.tanh(mean))
    return _noised_tanh(head, mean, rng.standard_normal(mean.shape, np.float32))


def _noised_tanh(head: ActionHead, mean: Array, noise: Array) -> Array:
    return _clipped(head, np.tanh(mean), noise * head.deviation)


def _tanh_gaussian(head: ActionHead, output: Array, rng: np.random.Generator | None) -> Array:
    mean = output[:, : head.low.size]
    if rng is None:
        return _within_bounds(head, np.tanh(mean))
    return _noised_tanh_gaussian(head, output, rng.standard_normal(mean.shape, np.float32))


def _noised_tanh_gaussian(head: ActionHead, output: Array, noise: Array) -> Array:
    size = head.low.size
    return _clipped(head, np.tanh(output[:, :size]), noise * np.exp(output[:, size:]))


def _clipped(head: ActionHead, unit: Array, noise: Array) -> Array:
    unit += noise
    # np.clip is several times as slow for a few numbers.
    np.minimum(np.maximum(unit, _MINUS_ONE, out=unit), _ONE, out=unit)
    return _within_bounds(head, unit)


def _squashed(head: ActionHead, output: Array, rng: np.random.Generator | None) -> Array:
    mean = output[:, : head.low.size]
    if rng is None:
        return _within_bounds(head, np.tanh(mean))
    return _noised_squashed(head, output, rng.standard_normal(mean.shape, np.float32))


def _noised_squashed(head: ActionHead, output: Array, noise: Array) -> Array:
    size = head.low.size
    # No lower limit as in the update: exp(-20) does not change the action.
    before = np.exp(np.minimum(output[:, size:], _MOST_LOG_STD))
    before *= noise
    before += output[:, :size]
    return _within_bounds(head, np.tanh(before))


def _uniform(head: ActionHead, noise: Array) -> Array:
    """Actions that are uniform within the bounds if the noise is standard Gaussian."""
    unit = [math.erf(number * _SQRT_HALF) for number in noise.ravel().tolist()]
    return _within_bounds(head, np.array(unit, np.float32).reshape(noise.shape))


def _within_bounds(head: ActionHead, unit: Array) -> Array:
    """Scale from -1..1 to the bounds."""
    if head.is_unit:
        return unit
    actions = unit * head.reach
    actions += head.centre
    return actions


def _product(head: ActionHead, output: Array, rng: np.random.Generator | None) -> Array:
    rows: list[Array] = []
    end = 0
    for part in head.parts:
        start, end = end, end + part.outputs
        rows.append(part.choose(output[:, start:end], None, rng).reshape(len(output), -1))
    return np.concatenate(rows, axis=1, dtype=head.dtype, casting="unsafe")


_CHOOSERS: dict[str, Callable[[ActionHead, Array, np.random.Generator | None], Array]] = {
    "greedy": _greedy,
    "softmax": _softmax,
    "categorical": _categorical,
    "gaussian": _gaussian,
    "noisy_tanh": _noisy_tanh,
    "squashed": _squashed,
    "tanh_gaussian": _tanh_gaussian,
    "product": _product,
}


_NOISED: dict[str, Callable[[ActionHead, Array, Array], Array]] = {
    "noisy_tanh": _noised_tanh,
    "squashed": _noised_squashed,
    "tanh_gaussian": _noised_tanh_gaussian,
}


def _sample(logits: Array, rng: np.random.Generator) -> Array:
    """Sample from each row's softmax with the Gumbel-max trick; -inf is never drawn."""
    return np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
