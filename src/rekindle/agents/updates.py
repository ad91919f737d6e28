"""The interface of an algorithm: a state, and an update step as a pure function of the state and a minibatch."""

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
    """An algorithm: its state, a named tuple, and its update step."""

    @property
    def algorithm(self) -> str:
        """The name of the algorithm, as in saved states and exported policies."""
        ...

    @property
    def metrics(self) -> Sequence[str]:
        """The names of the metrics of an update; `loss` is one of them."""
        ...

    @property
    def schedules(self) -> Mapping[str, Setting]:
        """Settings that may be schedules; each update gets their current values."""
        ...

    def start(self) -> Any:
        """The state before the first update."""
        ...


class Minibatch(NamedTuple):
    """A minibatch from the replay buffer: observations are encoded and normalised, rewards are scaled."""

    observations: jax.Array
    mask: jax.Array | None
    """Which actions were allowed; None if all were."""
    actions: jax.Array
    """In the form that the agent observed."""
    rewards: jax.Array
    next_observations: jax.Array
    next_mask: jax.Array | None
    """Which actions are allowed in the next state; None if all are."""
    discounts: jax.Array
    """The factor of the next state's value in the target; 0 where the episode terminated."""
    weights: jax.Array | None
    """The importance weights of prioritised replay."""
    noise: Any
    """The random numbers of the update, from `OffPolicyUpdate.noise`."""

    @classmethod
    def of(
        cls, columns: Mapping[str, Any], encoding: Encoding, moments: Moments | None, *, reward_scale: float
    ) -> Minibatch:
        """Encode the columns of a batch from the replay buffer."""
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
    """An algorithm that learns from a replay buffer; its state has a field `updates`."""

    @property
    def weights(self) -> Mapping[str, Weights[Any]]:
        """The `Weights` of each network, by the field of the state that has its parameters."""
        ...

    @property
    def acting(self) -> Sequence[str]:
        """The fields with the parameters of the acting network: the network itself first, then its targets."""
        ...

    def step(
        self, state: Any, batch: Minibatch, schedules: Mapping[str, Any]
    ) -> tuple[Any, dict[str, jax.Array], jax.Array]:
        """One update: the new state, the metrics, and the new priority of each transition."""
        ...

    def noise(self, rng: np.random.Generator, count: int) -> Any:
        """The random numbers for `count` updates: a tree of arrays with the updates along the first axis."""
        ...


class RolloutBatch(NamedTuple):
    """A minibatch of a rollout: observations are encoded and normalised."""

    observations: jax.Array
    mask: jax.Array | None
    """Which actions were allowed; None if all were."""
    actions: jax.Array
    """In the form that `Distribution.score` takes."""
    log_probs: jax.Array
    """The log-probabilities of the actions under the policy that chose them."""
    values: jax.Array
    """The value estimates before the first update on this rollout."""
    advantages: jax.Array
    returns: jax.Array
    counts: jax.Array | None
    """Which rows count, if the minibatch is padded; None if all do."""
    total: Any
    """How many rows of the whole minibatch count, also if this batch is a piece of it."""
    indices: jax.Array | Array
    """The indices of its rows in the rollout."""
    rollout: Any
    """All observations of the rollout."""

    @classmethod
    def of(cls, rollout: Mapping[str, Any], indices: jax.Array | Array, rollout_steps: int) -> RolloutBatch:
        """The rows of a rollout with these indices; an index past the end is padding, which does not count."""
        columns = _rows(rollout, indices)
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
            indices,
            rollout["observations"],
        )

    def mean(self, column: jax.Array, *, less: int = 0) -> jax.Array:
        """The mean of a column over the rows that count, with `less` subtracted from their number.

        For a piece of a minibatch it is the contribution to the mean of the whole minibatch.
        """
        if self.counts is None:
            return column.sum() / (self.total - less)
        return jnp.where(self.counts, column, 0).sum() / jnp.maximum(self.total - less, 1)

    def normalised(self) -> RolloutBatch:
        """The batch with advantages of mean 0 and standard deviation 1."""
        if len(self.advantages) == 1:
            return self
        centred = self.advantages - self.mean(self.advantages)
        return self._replace(advantages=centred / (jnp.sqrt(self.mean(jnp.square(centred), less=1)) + 1e-8))

    def gradient(
        self, loss: Callable[[Parts, RolloutBatch], Any], params: Parts, rows: int
    ) -> tuple[tuple[jax.Array, dict[str, jax.Array]], Parts]:
        """The loss, metrics and gradient, summed over pieces of at most `rows` rows.

        The loss and the metrics must be linear in the results of `mean`.
        """
        graded = jax.value_and_grad(loss, has_aux=True)
        pieces = math.ceil(len(self.advantages) / rows)
        first = len(self.advantages) - (pieces - 1) * rows
        if pieces == 1:
            return graded(params, self)
        sums = graded(params, self._piece(0, first))

        def add(index: jax.Array, sums: Any) -> Any:
            return _each(jnp.add, sums, graded(params, self._piece(first + index * rows, rows)))

        return jax.lax.fori_loop(0, pieces - 1, add, sums)

    def _piece(self, start: jax.Array | int, rows: int) -> RolloutBatch:
        columns = self._replace(observations=None, total=None, rollout=None)
        piece = _each(lambda column: jax.lax.dynamic_slice_in_dim(column, start, rows), columns)
        # Observations may be large: those of all pieces are never there together.
        return piece._replace(observations=_rows(self.rollout, piece.indices), total=self.total)


def _rows(columns: Any, indices: jax.Array | Array) -> Any:
    """These rows of each column, or the last where there are fewer."""
    return _each(lambda column: jnp.take(column, indices, axis=0, mode="clip"), columns)


class OnPolicyUpdate(Update, Protocol):
    """An algorithm that learns from rollouts; its state has `params`, `optimiser`, `made` and `is_over`."""

    def step(self, state: Any, batch: RolloutBatch, schedules: Mapping[str, Any]) -> tuple[Any, dict[str, jax.Array]]:
        """One update: the new state and the metrics. If `state.is_over`, the state does not change."""
        ...

    def score(
        self, params: Parts, observations: jax.Array, mask: jax.Array | None, actions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """For each row: the log-probability of the action, the entropy of the policy, and the value."""
        ...
