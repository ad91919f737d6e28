"""What BC and IQL share: how likely a policy is to take the actions that it learns from, of any kind of space."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.continuous import Deviations
from rekindle.agents.distributions import Categorical, bounded_head, tanh_gaussian_log_prob, to_unit
from rekindle.agents.networks import Module
from rekindle.policy.actions import ActionHead
from rekindle.spaces import ActionStructure, discrete_values

__all__ = ["Actions", "BoxActions", "DiscreteActions", "actions_of"]

_DISCRETE = ("Discrete", "MultiDiscrete", "MultiBinary")
_LEAST_LOG_STD, _MOST_LOG_STD = -5.0, 2.0


class Actions(Protocol):
    """The actions of a space: what a network gives for them, and how likely they are."""

    @property
    def head(self) -> ActionHead:
        """What draws an action from the output of a network."""
        ...

    @property
    def outputs(self) -> int:
        """How many numbers the last layer of a network gives."""
        ...

    @property
    def masked(self) -> int:
        """How many actions an action mask speaks of."""
        ...

    @property
    def inputs(self) -> int:
        """How many numbers an action is for a critic."""
        ...

    def after(self) -> Sequence[Module]:
        """What follows the last layer."""
        ...

    def seen(self, actions: jax.Array) -> jax.Array:
        """Actions as a critic sees them: (rows, inputs)."""
        ...

    def log_prob(self, outputs: jax.Array, mask: jax.Array | None, actions: jax.Array) -> jax.Array:
        """The log probability of actions as they were observed, or its density, each row."""
        ...


class DiscreteActions:
    """One or several discrete actions; a critic sees a 1 for each that was taken, and 0 for the others."""

    def __init__(self, space: Any) -> None:
        self._distribution = Categorical(space)
        self._counts, starts = discrete_values(space)
        self._starts = np.array(starts, np.int32)
        self.head = self._distribution.head(None)
        self.outputs = self.inputs = self.masked = self._distribution.outputs

    def after(self) -> Sequence[Module]:
        """Nothing."""
        return ()

    def seen(self, actions: jax.Array) -> jax.Array:
        """A 1 for each action that was taken."""
        flat = self._flat(actions)
        taken = [flat[:, index, None] == np.arange(count) for index, count in enumerate(self._counts)]
        return jnp.concatenate(taken, axis=1).astype(jnp.float32)

    def log_prob(self, outputs: jax.Array, mask: jax.Array | None, actions: jax.Array) -> jax.Array:
        """The log probability of the actions together."""
        return self._distribution.score(outputs, None, mask, self._flat(actions))[0]

    def _flat(self, actions: jax.Array) -> jax.Array:
        """A row of numbers each, counted from 0."""
        return actions.reshape(len(actions), -1).astype(jnp.int32) - self._starts


class BoxActions:
    """Continuous actions from a Gaussian around the tanh of a network's output; a critic sees them from -1 to 1."""

    masked = 0

    def __init__(
        self, space: Any, *, agent: str, least_log_std: float = _LEAST_LOG_STD, most_log_std: float = _MOST_LOG_STD
    ) -> None:
        self.head = bounded_head(space, "tanh_gaussian", agent=agent)
        self.outputs = self.inputs = self.head.low.size
        self._limits = {"least": least_log_std, "most": most_log_std}

    def after(self) -> Sequence[Module]:
        """The standard deviations."""
        return (Deviations(self.outputs, **self._limits),)

    def seen(self, actions: jax.Array) -> jax.Array:
        """From -1 to 1."""
        return to_unit(actions, self.head)

    def log_prob(self, outputs: jax.Array, mask: jax.Array | None, actions: jax.Array) -> jax.Array:  # noqa: ARG002
        """The log density of actions from -1 to 1."""
        return tanh_gaussian_log_prob(outputs, self.seen(actions))


def actions_of(space: Any, *, agent: str) -> Actions:
    """The actions of a space; raises `ConfigError` if there is no distribution for them."""
    if type(space).__name__ in _DISCRETE and ActionStructure.of(space) is None:
        return DiscreteActions(space)
    return BoxActions(space, agent=agent)
