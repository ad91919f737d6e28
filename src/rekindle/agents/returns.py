"""What a value network predicts of returns: their mean, their distribution over fixed values, or their quantiles."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rekindle.experience import Array
from rekindle.policy.network import Layer

__all__ = ["CategoricalReturns", "MeanReturns", "QuantileReturns", "Returns", "midpoints", "quantile_huber"]


class Returns(Protocol):
    """How predictions of returns are compared with targets. A prediction is `atoms` numbers."""

    @property
    def atoms(self) -> int:
        """How many numbers predict a return."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """What `loss` measures beside the loss."""
        ...

    def means(self, outputs: jax.Array) -> jax.Array:
        """The mean return, from the numbers of the last axis."""
        ...

    def loss(
        self, predicted: jax.Array, rewards: jax.Array, discounts: jax.Array, future: jax.Array
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """The loss of each row against `reward + discount * future`, how much each surprised, and metrics."""
        ...

    def layers(self) -> list[Layer]:
        """What turns predictions into means, as data."""
        ...


@dataclass(frozen=True)
class MeanReturns:
    """The mean return, learned by the Huber loss or the square of the error."""

    kind: Literal["huber", "mse"]
    atoms = 1
    metrics = ()

    def means(self, outputs: jax.Array) -> jax.Array:
        """The mean return, which is all that is predicted."""
        return outputs[..., 0]

    def loss(
        self, predicted: jax.Array, rewards: jax.Array, discounts: jax.Array, future: jax.Array
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """The loss of each row, and the size of its error."""
        values = jax.lax.stop_gradient(rewards + discounts * future[:, 0])
        errors = predicted[:, 0] - values
        losses = optax.huber_loss(errors) if self.kind == "huber" else jnp.square(errors)
        return losses, jnp.abs(errors), {}

    def layers(self) -> list[Layer]:
        """Nothing is left to do."""
        return []


@dataclass(frozen=True)
class CategoricalReturns:
    """The distribution of the return over evenly spaced values (C51), learned by the cross entropy."""

    atoms: int
    v_min: float
    v_max: float
    metrics = ("saturation",)

    @property
    def support(self) -> Array:
        """The returns that the atoms stand for."""
        return np.linspace(self.v_min, self.v_max, self.atoms).astype(np.float32)

    def means(self, outputs: jax.Array) -> jax.Array:
        """The mean of each distribution, from its logits."""
        return jax.nn.softmax(outputs) @ jnp.array(self.support)

    def loss(
        self, predicted: jax.Array, rewards: jax.Array, discounts: jax.Array, future: jax.Array
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """The cross entropy of each row, its divergence from the target, and how much of that lies beyond the ends."""
        support = jnp.array(self.support)
        distribution = jax.nn.softmax(future)
        goal = jax.lax.stop_gradient(project(distribution, rewards, discounts, support))
        losses = -(goal * jax.nn.log_softmax(predicted)).sum(axis=1)
        surprise = losses + jax.scipy.special.xlogy(goal, goal).sum(axis=1)  # the Kullback-Leibler divergence
        landed = rewards[:, None] + discounts[:, None] * support
        beyond = (landed < support[0]) | (landed > support[-1])
        return losses, surprise, {"saturation": (distribution * beyond).sum(axis=1).mean()}

    def layers(self) -> list[Layer]:
        """The mean of each distribution."""
        return [Layer("expectation", {"support": self.support}, atoms=self.atoms)]


@dataclass(frozen=True)
class QuantileReturns:
    """As many quantiles of the return, at the midpoints of equal shares of probability (QR-DQN)."""

    atoms: int
    metrics = ()

    def means(self, outputs: jax.Array) -> jax.Array:
        """The mean return, which is the mean of the quantiles."""
        return outputs.mean(axis=-1)

    def loss(
        self, predicted: jax.Array, rewards: jax.Array, discounts: jax.Array, future: jax.Array
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """The quantile Huber loss of each row, and its mean over the quantiles."""
        goals = jax.lax.stop_gradient(rewards[:, None] + discounts[:, None] * future)
        losses = quantile_huber(predicted, jnp.array(midpoints(self.atoms)), goals)
        return losses, losses / self.atoms, {}

    def layers(self) -> list[Layer]:
        """The mean of the quantiles."""
        return [Layer("mean", atoms=self.atoms)]


def midpoints(count: int) -> Array:
    """The middles of so many equal shares of probability: 0.25 and 0.75 for two."""
    return ((np.arange(count) + 0.5) / count).astype(np.float32)


def quantile_huber(predicted: jax.Array, taus: jax.Array, goals: jax.Array) -> jax.Array:
    """The quantile Huber loss (Dabney 2018): (rows, own) and (rows, others) to (rows,).

    An error of a goal above the prediction of the quantile `tau` counts `tau` times, one below it `1 - tau` times. The
    loss is the mean over goals and the sum over predictions.
    """
    errors = goals[:, None, :] - predicted[:, :, None]
    shares = jnp.abs(taus[..., None] - (errors < 0))
    return (shares * optax.huber_loss(errors)).mean(axis=2).sum(axis=1)


def project(probabilities: jax.Array, rewards: jax.Array, discounts: jax.Array, support: jax.Array) -> jax.Array:
    """The distribution of `reward + discount * return`, put back on the atoms of the support.

    An atom's mass goes to the two atoms between which it lands, more to the nearer; one that lands on an atom keeps
    its mass whole, and one beyond the ends goes to the end.
    """
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    landed = jnp.clip(rewards[:, None] + discounts[:, None] * support, support[0], support[-1])
    places = (landed - support[0]) / spacing
    shares = jnp.clip(1 - jnp.abs(places[:, :, None] - jnp.arange(len(support))), 0, 1)
    return jnp.einsum("bj,bji->bi", probabilities, shares)
