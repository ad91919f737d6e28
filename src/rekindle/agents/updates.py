"""What an algorithm is made of: a state, and one update of it as a pure function of a batch."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.normalisation import Moments, normalise
from rekindle.agents.settings import Setting
from rekindle.agents.weights import Parts, Weights
from rekindle.experience import Array
from rekindle.policy.encoding import Encoding

__all__ = ["Minibatch", "OffPolicyUpdate", "OnPolicyUpdate", "RolloutBatch", "Update"]


_each = jax.tree_util.tree_map


class Update(Protocol):
    """An algorithm: its state, which is a named tuple, and one update of it."""

    @property
    def algorithm(self) -> str:
        """Its name, in states and exported policies."""
        ...

    @property
    def metrics(self) -> Sequence[str]:
        """What each update measures, a `loss` among it."""
        ...

    @property
    def schedules(self) -> Mapping[str, Setting]:
        """Settings whose values of the moment an update takes."""
        ...

    def start(self) -> Any:
        """The state before the first update."""
        ...


class Minibatch(NamedTuple):
    """Remembered transitions as networks see them: encoded, normalised and scaled."""

    observations: jax.Array
    mask: jax.Array | None
    """Which actions were allowed; None if all were."""
    actions: jax.Array
    """As they were observed."""
    rewards: jax.Array
    next_observations: jax.Array
    next_mask: jax.Array | None
    """Which actions are allowed next; None if all are."""
    discounts: jax.Array
    weights: jax.Array | None
    """With priorities: how much each transition counts."""
    noise: Any
    """The random numbers of the update."""

    @classmethod
    def of(
        cls, columns: Mapping[str, Any], encoding: Encoding, moments: Moments | None, *, reward_scale: float
    ) -> Minibatch:
        """From the columns of a batch as the memory has them."""
        observations, next_observations = (
            normalise(encoding.encode(columns[name], jnp), moments) for name in ("observations", "next_observations")
        )
        return cls(
            observations=observations,
            mask=encoding.mask(columns["observations"], jnp),
            actions=columns["actions"],
            rewards=columns["rewards"] * reward_scale,
            next_observations=next_observations,
            next_mask=encoding.mask(columns["next_observations"], jnp),
            discounts=columns["discounts"],
            weights=columns["weights"],
            noise=columns["noise"],
        )


class OffPolicyUpdate(Update, Protocol):
    """An algorithm that learns from memory; its state has a field `updates`."""

    @property
    def weights(self) -> Mapping[str, Weights[Any]]:
        """By field of the state: the weights of its networks."""
        ...

    @property
    def acting(self) -> Sequence[str]:
        """The fields with the weights of the network that acts: the newest first, then its targets."""
        ...

    def step(
        self, state: Any, batch: Minibatch, schedules: Mapping[str, Any]
    ) -> tuple[Any, dict[str, jax.Array], jax.Array]:
        """One update: the state after it, its metrics, and how much each transition surprised."""
        ...

    def noise(self, rng: np.random.Generator, count: int) -> Any:
        """The random numbers of so many updates, one after the other in every array."""
        ...


class RolloutBatch(NamedTuple):
    """A minibatch of a rollout, as networks see it: observations are encoded and normalised."""

    observations: jax.Array
    mask: jax.Array | None
    """Which actions were allowed; None if all were."""
    actions: jax.Array
    """As the distribution scores them."""
    log_probs: jax.Array
    """Of the policy that chose them."""
    values: jax.Array
    """As they were before the rollout was learned from."""
    advantages: jax.Array
    returns: jax.Array
    counts: jax.Array | None
    """Which rows count, where a minibatch is not full; None if all do."""
    total: Any
    """How many rows count in the whole minibatch, if this is a piece of one."""

    @classmethod
    def of(cls, rollout: Mapping[str, Any], indices: jax.Array | Array, rollout_steps: int) -> RolloutBatch:
        """These rows of a rollout; an index past its end is a row that does not count."""
        columns = _each(lambda column: jnp.take(column, indices, axis=0, mode="clip"), rollout)
        counts = jnp.asarray(indices) < rollout_steps if rollout_steps % len(indices) else None
        log_probs, values, advantages, returns = columns["numbers"].T
        return cls(
            columns["observations"],
            columns["mask"],
            columns["actions"],
            log_probs,
            values,
            advantages,
            returns,
            counts,
            len(indices) if counts is None else counts.sum(),
        )

    def mean(self, column: jax.Array, *, less: int = 0) -> jax.Array:
        """The mean of a column, over the rows that count; of a piece, its share of the mean of the minibatch."""
        if self.counts is None:
            return column.sum() / (self.total - less)
        return jnp.where(self.counts, column, 0).sum() / jnp.maximum(self.total - less, 1)

    def normalised(self) -> RolloutBatch:
        """With advantages of mean 0 and deviation 1."""
        if len(self.advantages) == 1:
            return self
        centred = self.advantages - self.mean(self.advantages)
        return self._replace(advantages=centred / (jnp.sqrt(self.mean(jnp.square(centred), less=1)) + 1e-8))

    def gradient(
        self, loss: Callable[[Parts, RolloutBatch], Any], params: Parts, rows: int
    ) -> tuple[tuple[jax.Array, dict[str, jax.Array]], Parts]:
        """A loss that is made of means, its metrics and its gradient, from at most so many rows at a time."""
        graded = jax.value_and_grad(loss, has_aux=True)
        pieces = math.ceil(len(self.advantages) / rows)
        first = len(self.advantages) - (pieces - 1) * rows
        sums = graded(params, self._piece(0, first))
        if pieces == 1:
            return sums

        def add(index: jax.Array, sums: Any) -> Any:
            return _each(jnp.add, sums, graded(params, self._piece(first + index * rows, rows)))

        return jax.lax.fori_loop(0, pieces - 1, add, sums)

    def _piece(self, start: jax.Array | int, rows: int) -> RolloutBatch:
        columns = self._replace(total=None)
        piece = _each(lambda column: jax.lax.dynamic_slice_in_dim(column, start, rows), columns)
        return piece._replace(total=self.total)


class OnPolicyUpdate(Update, Protocol):
    """An algorithm that learns from rollouts; its state has `params`, `optimiser`, `made` and `is_over`."""

    def step(self, state: Any, batch: RolloutBatch, schedules: Mapping[str, Any]) -> tuple[Any, dict[str, jax.Array]]:
        """One update, or none if the state `is_over`: the state after it, and its metrics."""
        ...

    def score(
        self, params: Parts, observations: jax.Array, mask: jax.Array | None, actions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Log-probability of the action, entropy and value, each row."""
        ...
