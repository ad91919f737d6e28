"""Advantage-weighted actor-critic (AWAC): imitate the data, weighted by the advantages of its actions.

Critics learn the value of an action; a target uses the minimum of the target critics. The policy learns to take the
actions of the data; the more an action is better than the policy's own, the larger its weight (with the factor
`advantage_scale`):

    q(s, a)  <-  r + discount * min target q(s', a'),    a' from the policy
    policy   <-  weight * log p(a | s),    weight = softmax over the batch of (q(s, a) - q(s, a from the policy))

So the policy stays near the data, and can keep learning from new transitions.

Paper: Nair 2020.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.configs import ActorCriticConfig
from rekindle.agents.continuous import (
    ActorCriticAgent,
    ActorNetwork,
    Critics,
    Deviations,
    delayed,
    draw_pairs,
    squared_errors,
    updated_target,
)
from rekindle.agents.distributions import bounded_head, tanh_gaussian, tanh_gaussian_log_prob, to_unit
from rekindle.agents.optimiser import optimised, optimiser_of
from rekindle.agents.settings import RunSteps, check_number, make_config, network_setting
from rekindle.agents.updates import Minibatch
from rekindle.agents.weights import Parts, Weights, norm
from rekindle.policy.actions import ActionHead

__all__ = ["AWAC", "AWACConfig", "AWACState", "AWACUpdate"]

_LEAST_LOG_STD, _MOST_LOG_STD = -6.0, 0.0


class AWACConfig(ActorCriticConfig, frozen=True, kw_only=True):
    """The settings of an `AWAC` agent."""

    warmup_steps: RunSteps = 0
    """Env steps before the first update; or a fraction of the training, from 0.0 to 1.0. Until then actions are uniform
    within the bounds, and correlated over time as `noise` says."""
    batch_size: int = 1_024
    """Transitions in the minibatch of one update, at least 1."""
    critics: int = 2
    """Number of critics, at least 1; with more than two, each target uses a random pair of them. Advantages use the
    minimum of all critics."""
    advantage_scale: float = 1.0
    """Factor of the advantages before the softmax that makes them weights (1 / lambda in the paper), above 0."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
        super().__post_init__()
        check_number("advantage_scale", self.advantage_scale, above=True)


# The update


class AWACState(NamedTuple):
    """The state that an update changes."""

    actor: Any
    """The weights of the policy."""
    critics: Any
    """The weights of all critics."""
    target: Any
    """The weights of the target critics."""
    actor_optimiser: Any
    critic_optimiser: Any
    actor_loss: Any
    """The loss in the last update of the policy."""
    updates: Any


class AWACUpdate:
    """The update step of AWAC, as a pure function of the state and a minibatch."""

    algorithm = "awac"
    acting = ("actor",)
    metrics = ("loss", "critic_loss", "actor_loss", "q_mean", "grad_norm", "target_lag")

    def __init__(
        self,
        config: AWACConfig,
        head: ActionHead,
        actor: Weights[ActorNetwork],
        critics: Weights[Critics],
    ) -> None:
        self._config, self._head = config, head
        self._actor, self._critics = actor, critics
        self.weights = {"actor": actor, "critics": critics, "target": critics}
        self.schedules = {"learning_rate": config.learning_rate}
        self._optimiser = optimiser_of(config)

    def start(self) -> AWACState:
        """The state before the first update."""
        actor, critics = self._actor.initial, self._critics.initial
        actor_first, critic_first = (jax.jit(self._optimiser.init)(params) for params in (actor, critics))
        return AWACState(actor, critics, critics, actor_first, critic_first, np.float32(0), np.int32(0))

    def noise(self, rng: np.random.Generator, count: int) -> dict[str, Any]:
        """Noise for the actions in the next and the current state, and a pair of critics for each update."""
        shape = (count * self._config.batch_size, self._head.low.size)
        return {
            "next": rng.standard_normal(shape, np.float32),
            "now": rng.standard_normal(shape, np.float32),
            "pair": draw_pairs(rng, self._config.critics, count),
        }

    def step(
        self, state: AWACState, batch: Minibatch, schedules: Mapping[str, Any]
    ) -> tuple[AWACState, dict[str, jax.Array], jax.Array]:
        """Update the critics and the target, and every `policy_delay` updates the policy."""
        config = self._config
        batch = batch._replace(actions=to_unit(batch.actions, self._head))
        (critic_loss, (q_mean, priorities)), gradient = jax.value_and_grad(self.critic_loss, has_aux=True)(
            state.critics, state, batch
        )
        critics, optimiser = optimised(
            self._optimiser, gradient, state.critic_optimiser, state.critics, schedules["learning_rate"]
        )
        state = state._replace(critics=critics, critic_optimiser=optimiser, updates=state.updates + 1)

        state = delayed(config, state, state.updates, lambda: self._update_actor(state, batch, schedules))

        target = updated_target(config, state.target, critics, state.updates)
        metrics = {
            "loss": critic_loss + state.actor_loss,
            "critic_loss": critic_loss,
            "actor_loss": state.actor_loss,
            "q_mean": q_mean,
            "grad_norm": norm(gradient),
            "target_lag": norm(jax.tree_util.tree_map(jnp.subtract, critics, target)),
        }
        return state._replace(target=target), metrics, priorities

    def critic_loss(
        self, critics: Parts, state: AWACState, batch: Minibatch
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """The loss of all critics, with the mean value and the new priority of each transition."""
        target = self._critics.network(state.target)
        actions = tanh_gaussian(self._outputs(state.actor, batch.next_observations), batch.noise["next"])
        future = target(batch.next_observations, actions, batch.noise["pair"]).min(axis=0)
        targets = jax.lax.stop_gradient(batch.rewards + batch.discounts * future)

        predicted = self._critics.network(critics)(batch.observations, batch.actions)
        loss, priorities = squared_errors(predicted, targets, batch.weights)
        return loss, (predicted.mean(), priorities)

    def actor_loss(self, actor: Parts, state: AWACState, batch: Minibatch) -> jax.Array:
        """The loss of the policy: minus the log-probability of the data's actions, weighted by their advantages."""
        outputs, critics = self._outputs(actor, batch.observations), self._critics.network(state.critics)
        own = tanh_gaussian(outputs, batch.noise["now"])
        values, own_values = (
            critics(batch.observations, actions, None).min(axis=0) for actions in (batch.actions, own)
        )
        advantages = jax.lax.stop_gradient(values - own_values)
        weights = jax.nn.softmax(self._config.advantage_scale * advantages)
        # The weights add up to 1, so the sum is a weighted mean.
        return -(weights * tanh_gaussian_log_prob(outputs, batch.actions)).sum()

    def _update_actor(self, state: AWACState, batch: Minibatch, schedules: Mapping[str, Any]) -> AWACState:
        """Update the policy."""
        loss, gradient = jax.value_and_grad(self.actor_loss)(state.actor, state, batch)
        actor, optimiser = optimised(
            self._optimiser, gradient, state.actor_optimiser, state.actor, schedules["learning_rate"]
        )
        return state._replace(actor=actor, actor_optimiser=optimiser, actor_loss=loss)

    def _outputs(self, actor: Parts, observations: jax.Array) -> jax.Array:
        """The means before tanh, and the log standard deviations."""
        return jax.vmap(self._actor.network(actor))(observations)


# The agent


class AWAC(ActorCriticAgent[AWACConfig]):
    """Advantage-weighted actor-critic: learns continuous actions from data, and then from its own transitions.

    The settings are the fields of `AWACConfig`: `AWAC(observation_space, action_space, seed=0, gamma=0.98)`. `network`
    may also be an equinox module, or a factory that takes the shape of an encoded observation and `key=`; actor
    and critics each have their own. `load_weights` replaces the actor, and leaves the critics as they are.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, seed: int, network: Any = None, **settings: Any
    ) -> None:
        config = make_config(AWACConfig, {**settings, "network": network_setting(network)})
        head = bounded_head(action_space, "tanh_gaussian", agent="AWAC")
        super().__init__(
            observation_space,
            action_space,
            config,
            AWACUpdate,
            head,
            outputs=1,
            network=network,
            seed=seed,
            after=(Deviations(head.low.size, least=_LEAST_LOG_STD, most=_MOST_LOG_STD),),
        )
