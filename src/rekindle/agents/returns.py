"""Predictions of returns: the mean, a categorical distribution over fixed values (C51), or quantiles (QR-DQN)."""

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
from rekindle.policy.network import Layer, quantile_midpoints

__all__ = ["CategoricalReturns", "MeanReturns", "QuantileReturns", "Returns", "midpoints", "quantile_huber"]


class Returns(Protocol):
    """A kind of prediction of returns, and its loss. A prediction is a vector of `atoms` numbers."""

    @property
    def atoms(self) -> int:
        """How many numbers a prediction has."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics that `loss` returns."""
        ...

    def means(self, outputs: jax.Array) -> jax.Array:
        """The mean return of each prediction: (..., atoms) to (...)."""
        ...

    def loss(
        self, predicted: jax.Array, rewards: jax.Array, discounts: jax.Array, future: jax.Array
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """The loss of each row for the target `reward + discount * future`, its priority, and metrics."""
        ...

    def layers(self) -> list[Layer]:
        """Layers that compute `means`, for acting with numpy."""
        ...


@dataclass(frozen=True)
class MeanReturns:
    """The mean return, learned with the Huber loss or the squared error."""

    kind: Literal["huber", "mse"]
    atoms = 1
    metrics = ()

    def means(self, outputs: jax.Array) -> jax.Array:
        """The mean return, which is the prediction itself."""
        return outputs[..., 0]

    def loss(
        self, predicted: jax.Array, rewards: jax.Array, discounts: jax.Array, future: jax.Array
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """The loss of each row, and its absolute TD error."""
        targets = jax.lax.stop_gradient(rewards + discounts * future[:, 0])
        errors = predicted[:, 0] - targets
        losses = optax.huber_loss(errors) if self.kind == "huber" else jnp.square(errors)
        return losses, jnp.abs(errors), {}

    def layers(self) -> list[Layer]:
        """None: the prediction is the mean."""
        return []


@dataclass(frozen=True)
class CategoricalReturns:
    """The distribution of the return over evenly spaced values (C51), learned with the cross-entropy."""

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
        """The cross-entropy and KL divergence of each row, and how much target mass is outside `v_min` to `v_max`."""
        support = jnp.array(self.support)
        distribution = jax.nn.softmax(future)
        target = jax.lax.stop_gradient(project(distribution, rewards, discounts, support))
        losses = -(target * jax.nn.log_softmax(predicted)).sum(axis=1)
        priorities = losses + jax.scipy.special.xlogy(target, target).sum(axis=1)  # KL divergence
        shifted = rewards[:, None] + discounts[:, None] * support
        beyond = (shifted < support[0]) | (shifted > support[-1])
        return losses, priorities, {"saturation": (distribution * beyond).sum(axis=1).mean()}

    def layers(self) -> list[Layer]:
        """The mean of each distribution."""
        return [Layer("expectation", {"support": self.support}, atoms=self.atoms)]


@dataclass(frozen=True)
class QuantileReturns:
    """Quantiles of the return at the midpoints of `atoms` equal intervals of probability (QR-DQN)."""

    atoms: int
    metrics = ()

    def means(self, outputs: jax.Array) -> jax.Array:
        """The mean return, which is the mean of the quantiles."""
        return outputs.mean(axis=-1)

    def loss(
        self, predicted: jax.Array, rewards: jax.Array, discounts: jax.Array, future: jax.Array
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """The quantile Huber loss of each row, and its mean over the quantiles."""
        targets = jax.lax.stop_gradient(rewards[:, None] + discounts[:, None] * future)
        losses = quantile_huber(predicted, jnp.array(midpoints(self.atoms)), targets)
        return losses, losses / self.atoms, {}

    def layers(self) -> list[Layer]:
        """The mean of the quantiles."""
        return [Layer("mean", atoms=self.atoms)]


def midpoints(count: int) -> Array:
    """The midpoints of `count` equal intervals from 0 to 1, in single precision."""
    return quantile_midpoints(count).astype(np.float32)


def quantile_huber(predicted: jax.Array, taus: jax.Array, targets: jax.Array) -> jax.Array:
    """The quantile Huber loss (Dabney 2018) of each row: (rows, quantiles) and (rows, targets) to (rows,).

    For the quantile `tau`, the error of a target above the prediction has the weight `tau`, and below it `1 - tau`. The
    loss is the mean over targets and the sum over quantiles.
    """
    errors = targets[:, None, :] - predicted[:, :, None]
    shares = jnp.abs(taus[..., None] - (errors < 0))
    return (shares * optax.huber_loss(errors)).mean(axis=2).sum(axis=1)


def project(probabilities: jax.Array, rewards: jax.Array, discounts: jax.Array, support: jax.Array) -> jax.Array:
    """The distribution of `reward + discount * return`, projected onto the atoms of the support (Bellemare 2017).

    The mass of a projected value is split between its two neighbouring atoms in proportion to nearness. If the value
    falls exactly on an atom, that atom gets all of the mass. A value beyond the ends is clipped to the end.
    """
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    shifted = jnp.clip(rewards[:, None] + discounts[:, None] * support, support[0], support[-1])
    positions = (shifted - support[0]) / spacing
    shares = jnp.clip(1 - jnp.abs(positions[:, :, None] - jnp.arange(len(support))), 0, 1)
    return jnp.einsum("bj,bji->bi", probabilities, shares)
