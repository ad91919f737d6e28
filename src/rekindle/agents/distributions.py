"""Distributions over actions: how likely an action is, how undecided a policy is, and how to act with it.

Each turns the output of a network into log-probabilities and entropies inside an update, and has the `ActionHead` that
draws actions from the same output with numpy.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.networks import Weight
from rekindle.errors import ConfigError
from rekindle.experience import Array
from rekindle.policy.actions import ActionHead
from rekindle.spaces import discrete_values

__all__ = [
    "Categorical",
    "CensoredGaussian",
    "Distribution",
    "bounded_head",
    "categorical",
    "censored_gaussian",
    "distribution_of",
    "squashed_gaussian",
    "squashed_log_prob",
    "to_unit",
]

_NEVER = -1e9
"""The logit of an action that a mask forbids: finite, so that its share of the entropy is 0 and not NaN."""
_LEAST_LOG_STD, _MOST_LOG_STD = -20.0, 2.0


class Distribution(Protocol):
    """A distribution over the actions of a space, with parameters from a network."""

    @property
    def outputs(self) -> int:
        """How many numbers the network gives for it."""
        ...

    @property
    def deviations(self) -> int:
        """How many log standard deviations it has beside them, which are learned and do not depend on observations."""
        ...

    @property
    def masked(self) -> int:
        """How many actions an action mask speaks of."""
        ...

    def zeros(self, rows: int) -> Array:
        """Actions as `flat` gives them, all zero."""
        ...

    def flat(self, actions: Array) -> Array:
        """Actions of the space as `score` takes them: a row of numbers each, discrete ones counted from 0."""
        ...

    def score(
        self, outputs: jax.Array, log_std: Weight | None, mask: jax.Array | None, actions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Log-probability and entropy, each row."""
        ...

    def head(self, log_std: Array | None) -> ActionHead:
        """What draws an action from the same numbers."""
        ...


class Categorical:
    """One or several discrete actions, independent of each other: Discrete, MultiDiscrete, MultiBinary."""

    deviations = 0

    def __init__(self, space: Any) -> None:
        shape: list[int] = list(space.shape or ())
        if type(space).__name__ == "MultiBinary":
            counts, starts = [2] * math.prod(shape), [0] * math.prod(shape)
        else:
            counts, starts = discrete_values(space)
        self._head = ActionHead("categorical", np.dtype(space.dtype).str, shape, counts, starts)
        self._counts, self._starts = tuple(counts), np.array(starts)
        self.outputs = self.masked = sum(counts)

    def zeros(self, rows: int) -> Array:
        """Actions as `flat` gives them, all zero."""
        return np.zeros((rows, len(self._counts)), np.int32)

    def flat(self, actions: Array) -> Array:
        """Actions as a row of numbers each, counted from 0."""
        return (actions.reshape(len(actions), -1) - self._starts).astype(np.int32)

    def score(
        self,
        outputs: jax.Array,
        log_std: Weight | None,  # noqa: ARG002
        mask: jax.Array | None,
        actions: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Log-probability and entropy, each row, from the logits of each action, one after the other."""
        return categorical(outputs if mask is None else jnp.where(mask, outputs, _NEVER), actions, self._counts)

    def head(self, log_std: Array | None) -> ActionHead:  # noqa: ARG002
        """What draws an action from the logits."""
        return self._head


def categorical(logits: jax.Array, actions: jax.Array, counts: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Log-probability and entropy of discrete actions, each row: (rows, actions) with `counts` logits for each."""
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
    """Continuous actions that are drawn from a Gaussian and clipped to the bounds of a Box."""

    masked = 0

    def __init__(self, space: Any) -> None:
        self._low, self._high = _inside(space.low), -_inside(-space.high)
        self._dtype, self._shape = np.dtype(space.dtype).str, list(space.shape)
        self.outputs = self.deviations = self._low.size

    def zeros(self, rows: int) -> Array:
        """Actions as `flat` gives them, all zero."""
        return np.zeros((rows, self.outputs), np.float32)

    def flat(self, actions: Array) -> Array:
        """Actions as a row of numbers each."""
        return actions.reshape(len(actions), -1).astype(np.float32)

    def score(
        self,
        outputs: jax.Array,
        log_std: Weight | None,
        mask: jax.Array | None,  # noqa: ARG002
        actions: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Log-probability, each row, and the entropy of the Gaussian before it is clipped; the outputs are its mean."""
        return censored_gaussian(outputs, jnp.asarray(log_std), actions, self._low, self._high)

    def head(self, log_std: Array | None) -> ActionHead:
        """What draws an action around the mean, and clips it."""
        scale = np.zeros(0, np.float32) if log_std is None else np.exp(log_std)
        return ActionHead("gaussian", self._dtype, self._shape, low=self._low, high=self._high, scale=scale)


def censored_gaussian(
    mean: jax.Array, log_std: jax.Array, actions: jax.Array, low: Array, high: Array
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of executed actions, each row, and the entropy of the Gaussian before it is clipped.

    An action at a bound stands for all that was clipped to it, and has the probability of that; others have a density.
    """
    distances = (actions - mean) * jnp.exp(-log_std)
    is_low, is_high = actions <= low, actions >= high
    # Where it does not apply it is the tail from 0 on: what is left out must have a finite gradient as well.
    tails = jax.scipy.special.log_ndtr(jnp.where(is_low, distances, jnp.where(is_high, -distances, 0)))
    densities = -0.5 * jnp.square(distances) - log_std - 0.5 * math.log(2 * math.pi)
    entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
    return jnp.where(is_low | is_high, tails, densities).sum(axis=1), jnp.broadcast_to(entropy, len(mean))


def _inside(low: Array) -> Array:
    """Lower bounds in single precision, none of them below what it was."""
    with np.errstate(over="ignore"):
        single = low.ravel().astype(np.float32)
    return np.where(single < low.ravel(), np.nextafter(single, np.float32(np.inf)), single)


def distribution_of(space: Any, *, agent: str) -> Distribution:
    """The distribution over the actions of a space; raises `ConfigError` if there is none."""
    match type(space).__name__:
        case "Discrete" | "MultiDiscrete" | "MultiBinary":
            return Categorical(space)
        case "Box" if np.dtype(space.dtype).kind == "f":
            return CensoredGaussian(space)
        case _:
            raise ConfigError(
                f"action_space is {space!r}: {agent} needs Discrete, MultiDiscrete, MultiBinary, or a Box of floats"
            )


def squashed_gaussian(outputs: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions from -1 to 1 for standard Gaussian noise, and their log densities, each row.

    They are the tanh of a Gaussian; the outputs are its mean and log standard deviation.
    """
    mean, log_std = jnp.split(outputs, 2, axis=1)
    log_std = jnp.clip(log_std, _LEAST_LOG_STD, _MOST_LOG_STD)
    before = mean + jnp.exp(log_std) * noise
    return jnp.tanh(before), squashed_log_prob(before, noise, log_std)


def squashed_log_prob(before: jax.Array, noise: jax.Array, log_std: jax.Array) -> jax.Array:
    """The log density of actions `tanh(before)`, where `before` is a mean and `noise` standard deviations.

    The slope of tanh, 1 - tanh(x)^2, is written so that it is exact far out, where tanh is 1 to the last bit.
    """
    gaussian = -0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    log_slope = 2 * (math.log(2) - before - jax.nn.softplus(-2 * before))
    return (gaussian - log_slope).sum(axis=-1)


# Actions between bounds, which are learned as from -1 to 1


def bounded_head(space: Any, kind: Any, *, agent: str, exploration: float = 0.0) -> ActionHead:
    """How an actor's output becomes an action of a Box; raises `ConfigError` for a space that has no bounds."""
    dtype = getattr(space, "dtype", None)
    if type(space).__name__ != "Box" or np.dtype(dtype).kind != "f" or not np.size(space.low):
        raise ConfigError(f"action_space is {space!r}: {agent} needs a Box of floats")
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (np.asarray(bound, dtype).ravel() for bound in (space.low, space.high))
        width = high.astype(np.float32) - low.astype(np.float32)
    if not (np.isfinite(width) & (width >= 0)).all():
        raise ConfigError(
            f"action_space is {space!r}: {agent} needs finite bounds; use a Box with the range that is of use"
        )
    return ActionHead(kind, np.dtype(dtype).str, list(space.shape), low=low, high=high, exploration=exploration)


def to_unit(actions: jax.Array, head: ActionHead) -> jax.Array:
    """Actions of a Box as from -1 to 1: (rows, dimensions)."""
    centre, reach = head.centre.astype(np.float32), head.reach.astype(np.float32)
    flat = actions.reshape(-1, centre.size).astype(jnp.float32)
    return jnp.clip((flat - centre) / np.where(reach > 0, reach, 1), -1, 1)
