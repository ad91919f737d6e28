"""Implicit Q-learning (IQL): learn from data without evaluating actions that are not in it.

The value of a state is an upper expectile of the values of the data's actions there: with an `expectile` near 1, almost
the value of the best of them. Critics learn from it, and the policy imitates the actions that are better than it:

    v(s)     <-  expectile of min target q(s, a),    a from the data
    q(s, a)  <-  r + discount * v(s')
    policy   <-  weight * log p(a | s),    weight = exp(`advantage_scale` * (min target q(s, a) - v(s)))

Paper: Kostrikov 2021.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.configs import ActorCriticConfig
from rekindle.agents.continuous import (
    ActorNetwork,
    Critics,
    acting_with,
    delayed,
    draw_pairs,
    head_by_steps,
    squared_errors,
    updated_target,
)
from rekindle.agents.imitation import Actions, BoxActions, actions_of
from rekindle.agents.offpolicy import OffPolicyAgent
from rekindle.agents.optimiser import optimised, optimiser_of
from rekindle.agents.settings import (
    RunSteps,
    check_number,
    check_whole,
    encoding_of,
    generators,
    make_config,
    network_setting,
)
from rekindle.agents.updates import Minibatch
from rekindle.agents.weights import Parts, Weights, norm
from rekindle.agents.xla import after
from rekindle.errors import ConfigError
from rekindle.policy.encoding import row_count

__all__ = ["IQL", "IQLConfig", "IQLState", "IQLUpdate"]


class IQLConfig(ActorCriticConfig, frozen=True, kw_only=True):
    """The settings of an `IQL` agent."""

    warmup_steps: RunSteps = 0
    """Env steps before the first update; or a fraction of the training, from 0.0 to 1.0. Until then continuous actions
    are uniform within the bounds, and correlated over time as `noise` says."""
    expectile: float = 0.7
    """The expectile of the action values that the state value learns: 0.5 is their mean, and a value near 1 is close to
    their maximum; above 0 and below 1."""
    advantage_scale: float = 3.0
    """Factor of the advantages in the weights exp(advantage_scale * advantage) (beta in the paper), at least 0; 0 is
    behaviour cloning."""
    max_weight: float = 100.0
    """The largest weight of an action, above 0."""
    cosine_updates: int | None = None
    """Updates over which the learning rate of the policy falls to 0 (cosine schedule); None for no schedule."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
        super().__post_init__()
        check_number("expectile", self.expectile, most=1.0, above=True)
        if self.expectile == 1:
            raise ConfigError(f"expectile is {self.expectile!r}: use a number below 1")
        check_number("advantage_scale", self.advantage_scale)
        check_number("max_weight", self.max_weight, above=True)
        if self.cosine_updates is not None:
            check_whole("cosine_updates", self.cosine_updates, 1)


# The update


class IQLState(NamedTuple):
    """The state that an update changes."""

    actor: Any
    """The weights of the policy."""
    value: Any
    """The weights of the state values."""
    critics: Any
    """The weights of all critics."""
    target: Any
    """The weights of the target critics."""
    actor_optimiser: Any
    value_optimiser: Any
    critic_optimiser: Any
    actor_loss: Any
    """The loss in the last update of the policy."""
    updates: Any


class IQLUpdate:
    """The update step of IQL, as a pure function of the state and a minibatch."""

    algorithm = "iql"
    acting = ("actor",)
    metrics = ("loss", "critic_loss", "value_loss", "actor_loss", "q_mean", "v_mean", "grad_norm", "target_lag")

    def __init__(
        self,
        config: IQLConfig,
        actions: Actions,
        actor: Weights[ActorNetwork],
        value: Weights[Critics],
        critics: Weights[Critics],
    ) -> None:
        self._config, self._actions = config, actions
        self._actor, self._value, self._critics = actor, value, critics
        self.weights = {"actor": actor, "value": value, "critics": critics, "target": critics}
        self.schedules = {"learning_rate": config.learning_rate}
        self._optimiser = optimiser_of(config)

    def start(self) -> IQLState:
        """The state before the first update."""
        actor, value, critics = (weights.initial for weights in (self._actor, self._value, self._critics))
        actor_first, value_first, critic_first = (
            jax.jit(self._optimiser.init)(params) for params in (actor, value, critics)
        )
        return IQLState(
            actor,
            value,
            critics,
            critics,
            actor_optimiser=actor_first,
            value_optimiser=value_first,
            critic_optimiser=critic_first,
            actor_loss=np.float32(0),
            updates=np.int32(0),
        )

    def noise(self, rng: np.random.Generator, count: int) -> dict[str, Any]:
        """A pair of critics for each update."""
        return {"pair": draw_pairs(rng, self._config.critics, count)}

    def step(
        self, state: IQLState, batch: Minibatch, schedules: Mapping[str, Any]
    ) -> tuple[IQLState, dict[str, jax.Array], jax.Array]:
        """Update the state values and the critics, and every `policy_delay` updates the policy.

        All of them use the weights before the update, so that the values of a batch are computed once.
        """
        config, rate = self._config, schedules["learning_rate"]
        (value_loss, v_mean), value_gradient = jax.value_and_grad(self.value_loss, has_aux=True)(
            state.value, state, batch
        )
        (critic_loss, (q_mean, priorities)), gradient = jax.value_and_grad(self.critic_loss, has_aux=True)(
            state.critics, state, batch
        )
        updates = state.updates + 1
        rate = after(rate, (value_gradient, gradient))  # the same number: see `after`
        state = delayed(config, state, updates, lambda: self._update_actor(state, batch, rate))
        value, value_optimiser = optimised(self._optimiser, value_gradient, state.value_optimiser, state.value, rate)
        critics, optimiser = optimised(self._optimiser, gradient, state.critic_optimiser, state.critics, rate)
        target = updated_target(config, state.target, critics, updates)
        state = state._replace(
            value=value,
            critics=critics,
            target=target,
            value_optimiser=value_optimiser,
            critic_optimiser=optimiser,
            updates=updates,
        )
        metrics = {
            "loss": critic_loss + value_loss + state.actor_loss,
            "critic_loss": critic_loss,
            "value_loss": value_loss,
            "actor_loss": state.actor_loss,
            "q_mean": q_mean,
            "v_mean": v_mean,
            "grad_norm": norm(gradient),
            "target_lag": norm(jax.tree_util.tree_map(jnp.subtract, critics, target)),
        }
        return state, metrics, priorities

    def value_loss(self, value: Parts, state: IQLState, batch: Minibatch) -> tuple[jax.Array, jax.Array]:
        """The expectile loss of the state values, with their mean: errors above 0 have the weight `expectile`."""
        values = self._values(value, batch.observations)
        errors = self._action_values(state, batch) - values
        shares = jnp.abs(self._config.expectile - (errors < 0))
        return self._weighted(shares * jnp.square(errors), batch), values.mean()

    def critic_loss(
        self, critics: Parts, state: IQLState, batch: Minibatch
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """The loss of all critics, with the mean value and the new priority of each transition."""
        future = self._values(state.value, batch.next_observations)
        targets = jax.lax.stop_gradient(batch.rewards + batch.discounts * future)
        predicted = self._critics.network(critics)(batch.observations, self._actions.encoded(batch.actions))
        loss, priorities = squared_errors(predicted, targets, batch.weights)
        return loss, (predicted.mean(), priorities)

    def actor_loss(self, actor: Parts, state: IQLState, batch: Minibatch) -> jax.Array:
        """The loss of the policy: minus the log-probability of the data's actions, weighted by their advantages."""
        advantages = self._action_values(state, batch) - self._values(state.value, batch.observations)
        weights = jnp.minimum(jnp.exp(self._config.advantage_scale * advantages), self._config.max_weight)
        outputs = jax.vmap(self._actor.network(actor))(batch.observations)
        log_probs = self._actions.log_prob(outputs, batch.mask, batch.actions)
        return self._weighted(-jax.lax.stop_gradient(weights) * log_probs, batch)

    def _update_actor(self, state: IQLState, batch: Minibatch, rate: Any) -> IQLState:
        """Update the policy."""
        loss, gradient = jax.value_and_grad(self.actor_loss)(state.actor, state, batch)
        if self._config.cosine_updates is not None:
            progress = jnp.minimum(state.updates / self._config.cosine_updates, 1)
            rate = rate * 0.5 * (1 + jnp.cos(math.pi * progress))
        actor, optimiser = optimised(self._optimiser, gradient, state.actor_optimiser, state.actor, rate)
        return state._replace(actor=actor, actor_optimiser=optimiser, actor_loss=loss)

    def _action_values(self, state: IQLState, batch: Minibatch) -> jax.Array:
        """The values of the actions of the data: the minimum of the target critics."""
        target, actions = self._critics.network(state.target), self._actions.encoded(batch.actions)
        return jax.lax.stop_gradient(target(batch.observations, actions, batch.noise["pair"]).min(axis=0))

    def _values(self, value: Parts, observations: jax.Array) -> jax.Array:
        """The values of states."""
        return self._value.network(value)(observations, jnp.zeros((row_count(observations), 0)))[0]

    def _weighted(self, losses: jax.Array, batch: Minibatch) -> jax.Array:
        """The mean of losses, with importance weights if the replay buffer is prioritised."""
        return (losses if batch.weights is None else losses * batch.weights).mean()


# The agent


class IQL(OffPolicyAgent[IQLConfig]):
    """Implicit Q-learning: learns from data, and then from its own transitions.

    The settings are the fields of `IQLConfig`: `IQL(observation_space, action_space, seed=0, expectile=0.9)`. Actions
    are Discrete, MultiDiscrete, MultiBinary, or a Box with bounds. `network` may also be an equinox module, or a
    factory that takes the shape of an encoded observation and `key=`; policy, values and critics each have their own.
    `load_weights` replaces the policy, and leaves the others as they are.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, seed: int, network: Any = None, **settings: Any
    ) -> None:
        config = make_config(IQLConfig, {**settings, "network": network_setting(network)})
        initial, exploring, sampling = generators(seed)
        actions = actions_of(action_space, agent="IQL")
        if config.noise != "white" and not isinstance(actions, BoxActions):
            raise ConfigError(f"noise is {config.noise!r}: only continuous actions have correlated noise")
        encoding, sizes = encoding_of(observation_space, config, actions=actions.masked), config.hidden_sizes
        actor = Weights(
            ActorNetwork(encoding, actions.outputs, sizes, network=network, rng=initial, after=actions.after())
        )
        value, critics = (
            Weights(
                Critics(
                    encoding,
                    inputs,
                    sizes,
                    count=count,
                    layer_norm=config.layer_norm,
                    network=network,
                    rng=initial,
                )
            )
            for inputs, count in ((0, 1), (actions.inputs, config.critics))
        )
        is_box = isinstance(actions, BoxActions)
        super().__init__(
            observation_space,
            action_space,
            config,
            IQLUpdate(config, actions, actor, value, critics),
            acting_with(actor, encoding, config),
            encoding=encoding,
            head=head_by_steps(actions.head, config.warmup_steps) if is_box else lambda _: actions.head,
            exploring=exploring,
            sampling=sampling,
        )
