"""Distributions over actions, with log-probabilities and entropies for updates.

A distribution is parametrised by the output of a network. Its `ActionHead` samples actions from the same output with
numpy.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.networks import Weight
from rekindle.errors import ConfigError
from rekindle.experience import Array
from rekindle.policy.actions import ActionHead
from rekindle.spaces import ActionStructure, SpaceParts, discrete_values

__all__ = [
    "Categorical",
    "CensoredGaussian",
    "Distribution",
    "Product",
    "bounded_head",
    "categorical",
    "censored_gaussian",
    "distribution_of",
    "squashed_gaussian",
    "squashed_log_prob",
    "tanh_gaussian",
    "tanh_gaussian_log_prob",
    "to_unit",
]

_NEVER = -1e9
"""The logit of a masked action: finite, so that its term in the entropy is 0 and not NaN."""
_LEAST_LOG_STD, _MOST_LOG_STD = -20.0, 2.0


class Distribution(Protocol):
    """A distribution over the actions of a space, parametrised by the output of a network."""

    @property
    def outputs(self) -> int:
        """How many network outputs it takes."""
        ...

    @property
    def deviations(self) -> int:
        """How many learned log standard deviations it takes; they do not depend on the observation."""
        ...

    @property
    def masked(self) -> int:
        """How many entries its action mask has; 0 if actions cannot be masked."""
        ...

    @property
    def mask_sizes(self) -> Mapping[str, int] | None:
        """The sizes of the masks by their path below `action_mask`, such as `move`; None unless it is composite."""
        ...

    def zeros(self, rows: int) -> Array:
        """A batch of zeros in the form that `flat` returns."""
        ...

    def flat(self, actions: Array) -> Array:
        """Convert actions of the space to the form that `score` takes: (rows, numbers), discrete ones from 0."""
        ...

    def score(
        self, outputs: jax.Array, log_std: Weight | None, mask: jax.Array | None, actions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The log-probability of the action and the entropy, for each row."""
        ...

    def head(self, log_std: Array | None) -> ActionHead:
        """The action head that samples from the same network outputs with numpy."""
        ...


class Categorical:
    """One or several independent discrete actions: Discrete, MultiDiscrete or MultiBinary."""

    deviations = 0
    mask_sizes = None

    def __init__(self, space: Any) -> None:
        counts, starts = discrete_values(space)
        self._head = ActionHead("categorical", np.dtype(space.dtype).str, list(space.shape or ()), counts, starts)
        self._counts, self._starts = tuple(counts), np.array(starts)
        self.outputs = self.masked = sum(counts)

    def zeros(self, rows: int) -> Array:
        """A batch of zeros in the form that `flat` returns."""
        return np.zeros((rows, len(self._counts)), np.int32)

    def flat(self, actions: Array) -> Array:
        """Convert actions to indices from 0: (rows, actions)."""
        return (actions.reshape(len(actions), -1) - self._starts).astype(np.int32)

    def score(
        self,
        outputs: jax.Array,
        log_std: Weight | None,  # noqa: ARG002
        mask: jax.Array | None,
        actions: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """The log-probability and entropy of each row, from the concatenated logits of the actions."""
        return categorical(outputs if mask is None else jnp.where(mask, outputs, _NEVER), actions, self._counts)

    def head(self, log_std: Array | None) -> ActionHead:  # noqa: ARG002
        """The action head that samples from the logits."""
        return self._head


def categorical(logits: jax.Array, actions: jax.Array, counts: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The log-probability and entropy of each row of discrete actions (rows, actions), with `counts` logits each."""
    rows, width = len(logits), max(counts)
    if min(counts) == width:
        logits = logits.reshape(rows, len(counts), width)
    else:
        places = np.arange(width)
        table = np.minimum(np.cumsum([0, *counts[:-1]])[:, None] + places, sum(counts) - 1)
        logits = jnp.where(places < np.array(counts)[:, None], logits[:, table], _NEVER)
    logs = jax.nn.log_softmax(logits)
    chosen = jnp.where(actions[:, :, None] == np.arange(width), logs, 0)
    return chosen.sum(axis=(1, 2)), -(jnp.exp(logs) * logs).sum(axis=(1, 2))


class CensoredGaussian:
    """Continuous actions, sampled from a Gaussian and clipped to the bounds of a Box."""

    masked = 0
    mask_sizes = None

    def __init__(self, space: Any) -> None:
        self._low, self._high = _inside(space.low), -_inside(-space.high)
        self._dtype, self._shape = np.dtype(space.dtype).str, list(space.shape)
        self.outputs = self.deviations = self._low.size

    def zeros(self, rows: int) -> Array:
        """A batch of zeros in the form that `flat` returns."""
        return np.zeros((rows, self.outputs), np.float32)

    def flat(self, actions: Array) -> Array:
        """Convert actions to (rows, dimensions)."""
        return actions.reshape(len(actions), -1).astype(np.float32)

    def score(
        self,
        outputs: jax.Array,
        log_std: Weight | None,
        mask: jax.Array | None,  # noqa: ARG002
        actions: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """The log-probability of each row, and the entropy of the unclipped Gaussian, whose mean is `outputs`."""
        return censored_gaussian(outputs, jnp.asarray(log_std), actions, self._low, self._high)

    def head(self, log_std: Array | None) -> ActionHead:
        """The action head that samples around the mean and clips."""
        scale = np.zeros(0, np.float32) if log_std is None else np.exp(log_std)
        return ActionHead("gaussian", self._dtype, self._shape, low=self._low, high=self._high, scale=scale)


def censored_gaussian(
    mean: jax.Array, log_std: jax.Array, actions: jax.Array, low: Array, high: Array
) -> tuple[jax.Array, jax.Array]:
    """The log-probability of each row of executed actions, and the entropy of the Gaussian before clipping.

    An action at a bound has the probability of everything that is clipped to it; other actions have a density.
    """
    distances = (actions - mean) * jnp.exp(-log_std)
    is_low, is_high = actions <= low, actions >= high
    # Actions inside the bounds do not use this term; 0 keeps its gradient finite.
    tails = jax.scipy.special.log_ndtr(jnp.where(is_low, distances, jnp.where(is_high, -distances, 0)))
    densities = -0.5 * jnp.square(distances) - log_std - 0.5 * math.log(2 * math.pi)
    entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
    return jnp.where(is_low | is_high, tails, densities).sum(axis=1), jnp.broadcast_to(entropy, len(mean))


def _inside(low: Array) -> Array:
    """Lower bounds in single precision, rounded up so that none is below the original."""
    with np.errstate(over="ignore"):
        single = low.ravel().astype(np.float32)
    return np.where(single < low.ravel(), np.nextafter(single, np.float32(np.inf)), single)


class Product:
    """Composite actions (Dict and Tuple, possibly nested) with independent parts.

    Outputs, log standard deviations and masks of the parts are concatenated in the order of the space.
    """

    def __init__(self, structure: ActionStructure, parts: Sequence[Categorical | CensoredGaussian]) -> None:
        self._structure, self._parts = structure, tuple(parts)
        self.outputs = sum(part.outputs for part in parts)
        self.deviations = sum(part.deviations for part in parts)
        self.masked = sum(part.masked for part in parts)
        names = () if structure.masks is None else structure.masks.names
        self.mask_sizes = dict(zip(names, (part.masked for part in parts if part.masked), strict=True))
        self._dtype = np.float32 if self.deviations else np.int32

    def zeros(self, rows: int) -> Array:
        """A batch of zeros in the form that `flat` returns."""
        return np.zeros((rows, *self._structure.spec.shape), self._dtype)

    def flat(self, actions: Array) -> Array:
        """Convert actions to (rows, numbers); discrete parts become indices from 0."""
        pairs = zip(self._parts, self._structure.places, strict=True)
        return np.concatenate([part.flat(actions[:, place]) for part, place in pairs], axis=1).astype(self._dtype)

    def score(
        self, outputs: jax.Array, log_std: Weight | None, mask: jax.Array | None, actions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The log-probability and entropy of each row, summed over the parts."""
        log_probs, entropies = jnp.zeros(len(outputs)), jnp.zeros(len(outputs))
        at = _Places()
        for part, place in zip(self._parts, self._structure.places, strict=True):
            at = at.next(part)
            log_prob, entropy = part.score(
                outputs[:, at.outputs],
                None if log_std is None else log_std[at.deviations],
                mask[:, at.masked] if mask is not None and part.masked else None,
                actions[:, place],
            )
            log_probs, entropies = log_probs + log_prob, entropies + entropy
        return log_probs, entropies

    def head(self, log_std: Array | None) -> ActionHead:
        """The action head that samples each part from its own outputs."""
        heads: list[ActionHead] = []
        at = _Places()
        for part in self._parts:
            at = at.next(part)
            heads.append(part.head(None if log_std is None else log_std[at.deviations]))
        spec = self._structure.spec
        nesting = self._structure.nesting.state()
        return ActionHead("product", spec.dtype.str, list(spec.shape), parts=heads, nesting=nesting)


class _Places(NamedTuple):
    """The slices of a part in the concatenated outputs, deviations and masks."""

    outputs: slice = slice(0, 0)
    deviations: slice = slice(0, 0)
    masked: slice = slice(0, 0)

    def next(self, part: Categorical | CensoredGaussian) -> _Places:
        """The slices of the next part."""
        sizes = (part.outputs, part.deviations, part.masked)
        return _Places(*(slice(last.stop, last.stop + size) for last, size in zip(self, sizes, strict=True)))


def distribution_of(space: Any, *, agent: str) -> Distribution:
    """The distribution over the actions of a space; raises `ConfigError` if there is none."""
    structure = ActionStructure.of(space)
    if structure is None:
        return _part_of(space, agent, "")
    parts = SpaceParts.of(space).parts.items()
    return Product(structure, [_part_of(part.space, agent, name) for name, part in parts])


def _part_of(space: Any, agent: str, name: str) -> Categorical | CensoredGaussian:
    match type(space).__name__:
        case "Discrete" | "MultiDiscrete" | "MultiBinary":
            return Categorical(space)
        case "Box" if np.dtype(space.dtype).kind == "f":
            return CensoredGaussian(space)
        case _:
            where = f"action_space has the part {name!r}, {space!r}" if name else f"action_space is {space!r}"
            raise ConfigError(
                f"{where}: {agent} needs Discrete, MultiDiscrete, MultiBinary, a Box of floats, or a Dict or Tuple of "
                "those"
            )


def squashed_gaussian(outputs: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sample actions from a tanh-squashed Gaussian: actions from -1 to 1, and the log density of each row.

    The outputs are the mean and the log standard deviation of the Gaussian; `noise` is standard Gaussian.
    """
    mean, log_std = jnp.split(outputs, 2, axis=1)
    log_std = jnp.clip(log_std, _LEAST_LOG_STD, _MOST_LOG_STD)
    before = mean + jnp.exp(log_std) * noise
    return jnp.tanh(before), squashed_log_prob(before, noise, log_std)


def squashed_log_prob(before: jax.Array, noise: jax.Array, log_std: jax.Array) -> jax.Array:
    """The log density of actions `tanh(before)`, where `before` is `mean + exp(log_std) * noise`.

    The derivative of tanh, 1 - tanh(x)^2, is written so that it stays exact for large x, where tanh rounds to 1.
    """
    gaussian = -0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    log_slope = 2 * (math.log(2) - before - jax.nn.softplus(-2 * before))
    return (gaussian - log_slope).sum(axis=-1)


def tanh_gaussian(outputs: jax.Array, noise: jax.Array) -> jax.Array:
    """Sample actions from a Gaussian and clip them to -1 to 1; `noise` is standard Gaussian.

    The mean is the tanh of the first half of the outputs; the second half are log standard deviations.
    """
    mean, log_std = jnp.split(outputs, 2, axis=1)
    return jnp.clip(jnp.tanh(mean) + jnp.exp(log_std) * noise, -1, 1)


def tanh_gaussian_log_prob(outputs: jax.Array, actions: jax.Array) -> jax.Array:
    """The log density of each row of actions under the unclipped Gaussian of `tanh_gaussian`."""
    mean, log_std = jnp.split(outputs, 2, axis=1)
    distances = (actions - jnp.tanh(mean)) * jnp.exp(-log_std)
    return (-0.5 * jnp.square(distances) - log_std - 0.5 * math.log(2 * math.pi)).sum(axis=1)


# Bounded actions: agents learn them scaled to -1 to 1


def bounded_head(space: Any, kind: Any, *, agent: str, exploration: float = 0.0) -> ActionHead:
    """The action head for a Box with finite bounds; raises `ConfigError` for other spaces."""
    dtype = getattr(space, "dtype", None)
    if type(space).__name__ != "Box" or np.dtype(dtype).kind != "f" or not np.size(space.low):
        other = "; use PPO for composite actions" if ActionStructure.of(space) is not None else ""
        raise ConfigError(f"action_space is {space!r}: {agent} needs a Box of floats{other}")
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (np.asarray(bound, dtype).ravel() for bound in (space.low, space.high))
        width = high.astype(np.float32) - low.astype(np.float32)
    if not (np.isfinite(width) & (width >= 0)).all():
        raise ConfigError(
            f"action_space is {space!r}: {agent} needs finite bounds; use a Box with the range of useful actions"
        )
    return ActionHead(kind, np.dtype(dtype).str, list(space.shape), low=low, high=high, exploration=exploration)


def to_unit(actions: jax.Array, head: ActionHead) -> jax.Array:
    """Scale actions of a Box to -1 to 1: (rows, dimensions)."""
    centre, reach = head.centre.astype(np.float32), head.reach.astype(np.float32)
    flat = actions.reshape(-1, centre.size).astype(jnp.float32)
    return jnp.clip((flat - centre) / np.where(reach > 0, reach, 1), -1, 1)
