"""Behaviour cloning (BC): imitate the data.

The policy learns to take the actions of the data, whatever their rewards:

    policy  <-  log p(a | s),    or with `loss="mse"` the squared distance of its action from a

A discrete policy is categorical, a continuous one is a Gaussian with a mean from -1 to 1. The result is about as good
as the data, which makes it a baseline for other algorithms. If the data is mixed, clone only its best episodes.

Paper: Pomerleau 1991.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.configs import OffPolicyConfig
from rekindle.agents.continuous import ActorNetwork, acting_with
from rekindle.agents.distributions import bounded_head
from rekindle.agents.imitation import Actions, BoxActions, actions_of
from rekindle.agents.offpolicy import OffPolicyAgent
from rekindle.agents.optimiser import optimised, optimiser_of
from rekindle.agents.settings import (
    RunSteps,
    check_choice,
    check_sizes,
    encoding_of,
    generators,
    make_config,
    network_setting,
)
from rekindle.agents.updates import Minibatch
from rekindle.agents.weights import Parts, Weights, norm
from rekindle.errors import ConfigError
from rekindle.policy.actions import ActionHead

__all__ = ["BC", "BCConfig", "BCState", "BCUpdate"]


class BCConfig(OffPolicyConfig, frozen=True, kw_only=True):
    """The settings of a `BC` agent."""

    warmup_steps: RunSteps = 0
    """Env steps before the first update; or a fraction of the training, from 0.0 to 1.0."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer; on images these layers come after the convolutions."""
    loss: Literal["likelihood", "mse"] = "likelihood"
    """`likelihood` maximises the log-probability of the actions in the data; `mse` learns one continuous action with
    the squared error."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
        super().__post_init__()
        check_sizes("hidden_sizes", self.hidden_sizes)
        check_choice("loss", self.loss, ("likelihood", "mse"))


# The update


class BCState(NamedTuple):
    """The state that an update changes."""

    actor: Any
    """The weights of the policy."""
    optimiser: Any
    updates: Any


class BCUpdate:
    """The update step of BC, as a pure function of the state and a minibatch."""

    algorithm = "bc"
    acting = ("actor",)
    metrics = ("loss", "grad_norm")

    def __init__(self, config: BCConfig, actions: Actions, actor: Weights[ActorNetwork]) -> None:
        self._config, self._actions, self._actor = config, actions, actor
        self.weights = {"actor": actor}
        self.schedules = {"learning_rate": config.learning_rate}
        self._optimiser = optimiser_of(config)

    def start(self) -> BCState:
        """The state before the first update."""
        actor = self._actor.initial
        return BCState(actor, jax.jit(self._optimiser.init)(actor), np.int32(0))

    def noise(self, rng: np.random.Generator, count: int) -> None:  # noqa: ARG002
        """None: updates draw no random numbers."""
        return

    def step(
        self, state: BCState, batch: Minibatch, schedules: Mapping[str, Any]
    ) -> tuple[BCState, dict[str, jax.Array], jax.Array]:
        """One gradient step on the loss."""
        (loss, priorities), gradient = jax.value_and_grad(self.loss, has_aux=True)(state.actor, batch)
        actor, optimiser = optimised(
            self._optimiser, gradient, state.optimiser, state.actor, schedules["learning_rate"]
        )
        return BCState(actor, optimiser, state.updates + 1), {"loss": loss, "grad_norm": norm(gradient)}, priorities

    def loss(self, actor: Parts, batch: Minibatch) -> tuple[jax.Array, jax.Array]:
        """The loss of a minibatch, with the new priority of each transition."""
        outputs = jax.vmap(self._actor.network(actor))(batch.observations)
        if self._config.loss == "mse":
            losses = priorities = jnp.square(jnp.tanh(outputs) - self._actions.encoded(batch.actions)).mean(axis=1)
        else:
            losses = -self._actions.log_prob(outputs, batch.mask, batch.actions)
            priorities = jax.nn.softplus(losses)  # a density may be above 1, a priority must not be below 0
        if batch.weights is not None:
            losses = losses * batch.weights
        return losses.mean(), priorities


# The agent


class BC(OffPolicyAgent[BCConfig]):
    """Behaviour cloning: learns to take the actions of the data.

    The settings are the fields of `BCConfig`: `BC(observation_space, action_space, seed=0, loss="mse")`. Actions are
    Discrete, MultiDiscrete, MultiBinary, or a Box with bounds. `network` may also be an equinox module, or a
    factory that takes the shape of an encoded observation and `key=`.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, seed: int, network: Any = None, **settings: Any
    ) -> None:
        config = make_config(BCConfig, {**settings, "network": network_setting(network)})
        initial, exploring, sampling = generators(seed)
        actions = actions_of(action_space, agent="BC")
        head, after = _head(action_space, actions, config), () if config.loss == "mse" else actions.after()
        encoding = encoding_of(observation_space, config, actions=actions.masked)
        actor = Weights(
            ActorNetwork(encoding, actions.outputs, config.hidden_sizes, network=network, rng=initial, after=after)
        )
        super().__init__(
            observation_space,
            action_space,
            config,
            BCUpdate(config, actions, actor),
            acting_with(actor, encoding, config),
            encoding=encoding,
            head=lambda _: head,
            exploring=exploring,
            sampling=sampling,
        )


def _head(space: Any, actions: Actions, config: BCConfig) -> ActionHead:
    if config.loss == "likelihood":
        return actions.head
    if not isinstance(actions, BoxActions):
        raise ConfigError(f"loss is 'mse': it is for a Box of actions, not for {type(space).__name__}")
    return bounded_head(space, "noisy_tanh", agent="BC")
