"""Log-probabilities of actions from data, for BC and IQL: discrete actions, and continuous actions of a Box."""

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
from rekindle.agents.xla import wrapped
from rekindle.policy.actions import ActionHead
from rekindle.spaces import ActionStructure, discrete_values

__all__ = ["Actions", "BoxActions", "DiscreteActions", "actions_of"]

_DISCRETE = ("Discrete", "MultiDiscrete", "MultiBinary")
_LEAST_LOG_STD, _MOST_LOG_STD = -5.0, 2.0


class Actions(Protocol):
    """A distribution over the actions of a space, and the encoding of actions for a critic."""

    @property
    def head(self) -> ActionHead:
        """The action head that samples from the output of a network."""
        ...

    @property
    def outputs(self) -> int:
        """How many outputs the last layer of the network has."""
        ...

    @property
    def masked(self) -> int:
        """How many entries an action mask has; 0 if actions cannot be masked."""
        ...

    @property
    def inputs(self) -> int:
        """How many inputs of a critic an action takes."""
        ...

    def after(self) -> Sequence[Module]:
        """The modules after the last layer."""
        ...

    def encoded(self, actions: jax.Array) -> jax.Array:
        """Encode actions for a critic: (rows, inputs)."""
        ...

    def log_prob(self, outputs: jax.Array, mask: jax.Array | None, actions: jax.Array) -> jax.Array:
        """The log-probability or log density of each row of actions, in the form that the agent observed."""
        ...


class DiscreteActions:
    """One or several discrete actions; a critic gets them one-hot encoded."""

    def __init__(self, space: Any) -> None:
        self._distribution = Categorical(space)
        self._counts, starts = discrete_values(space)
        self._starts = np.array([wrapped(start) for start in starts], np.int32)
        self.head = self._distribution.head(None)
        self.outputs = self.inputs = self.masked = self._distribution.outputs

    def after(self) -> Sequence[Module]:
        """None."""
        return ()

    def encoded(self, actions: jax.Array) -> jax.Array:
        """Encode each action one-hot."""
        flat = self._flat(actions)
        taken = [flat[:, index, None] == np.arange(count) for index, count in enumerate(self._counts)]
        return jnp.concatenate(taken, axis=1).astype(jnp.float32)

    def log_prob(self, outputs: jax.Array, mask: jax.Array | None, actions: jax.Array) -> jax.Array:
        """The joint log-probability of each row of actions."""
        return self._distribution.score(outputs, None, mask, self._flat(actions))[0]

    def _flat(self, actions: jax.Array) -> jax.Array:
        """Convert actions to indices from 0: (rows, actions)."""
        return actions.reshape(len(actions), -1).astype(jnp.int32) - self._starts


class BoxActions:
    """Continuous actions from a Gaussian with the mean tanh(output); a critic gets them scaled to -1 to 1."""

    masked = 0

    def __init__(
        self, space: Any, *, agent: str, least_log_std: float = _LEAST_LOG_STD, most_log_std: float = _MOST_LOG_STD
    ) -> None:
        self.head = bounded_head(space, "tanh_gaussian", agent=agent)
        self.outputs = self.inputs = self.head.low.size
        self._limits = {"least": least_log_std, "most": most_log_std}

    def after(self) -> Sequence[Module]:
        """The learned standard deviations."""
        return (Deviations(self.outputs, **self._limits),)

    def encoded(self, actions: jax.Array) -> jax.Array:
        """Scale actions to -1 to 1."""
        return to_unit(actions, self.head)

    def log_prob(self, outputs: jax.Array, mask: jax.Array | None, actions: jax.Array) -> jax.Array:  # noqa: ARG002
        """The log density of each row of actions, scaled to -1 to 1."""
        return tanh_gaussian_log_prob(outputs, self.encoded(actions))


def actions_of(space: Any, *, agent: str) -> Actions:
    """The actions of a space; raises `ConfigError` if there is no distribution for them."""
    if type(space).__name__ in _DISCRETE and ActionStructure.of(space) is None:
        return DiscreteActions(space)
    return BoxActions(space, agent=agent)
