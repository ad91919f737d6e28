"""Soft actor-critic (SAC): a stochastic policy for continuous actions that maximises return and entropy.

The critics learn the soft value of an action: the return plus the entropy of the policy at every later step, weighted
by a temperature. Targets use the minimum of two critics, because the maximisation over actions exploits the errors of
a single one. The actor maximises the soft value:

    q(s, a)      <-  r + discount * (min target q(s', a') - temperature * log p(a' | s')),    a' from the actor
    actor        <-  maximise min q(s, a) - temperature * log p(a | s),    a from the actor
    temperature  <-  increase while the entropy is below `target_entropy`, decrease while it is above

Papers: Haarnoja 2018 (SAC), Haarnoja 2018b (automatic temperature), Chen 2021 (REDQ: more than two critics).
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.configs import ActorCriticConfig
from rekindle.agents.continuous import (
    ActorCriticAgent,
    ActorNetwork,
    Critics,
    delayed,
    draw_pairs,
    squared_errors,
    updated_target,
)
from rekindle.agents.distributions import bounded_head, squashed_gaussian, to_unit
from rekindle.agents.optimiser import optimised, optimiser_of
from rekindle.agents.settings import Linear, Setting, check_number, make_config, network_setting
from rekindle.agents.updates import Minibatch
from rekindle.agents.weights import Parts, Weights, norm
from rekindle.errors import ConfigError
from rekindle.policy.actions import ActionHead

__all__ = ["SAC", "SACConfig", "SACState", "SACUpdate"]


class SACConfig(ActorCriticConfig, frozen=True, kw_only=True):
    """The settings of a `SAC` agent."""

    critics: int = 2
    """Number of critics, at least 1; with more than two, each target uses a random pair of them, and the actor
    maximises their mean (REDQ)."""
    temperature: float | Literal["auto"] = "auto"
    """Weight of the entropy, at least 0; `auto` learns it."""
    initial_temperature: float = 1.0
    """With `auto`: the temperature at the start, above 0."""
    temperature_learning_rate: Setting | None = None
    """With `auto`: learning rate of the temperature, above 0, or a linear schedule over env steps; None for
    `learning_rate`."""
    target_entropy: float | None = None
    """With `auto`: the entropy that the policy should have, for actions scaled to -1 to 1; None for minus the number of
    action dimensions."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
        super().__post_init__()
        if isinstance(self.temperature, str) and self.temperature != "auto":
            raise ConfigError(f"temperature is {self.temperature!r}: use a number of at least 0, or 'auto'")
        if not isinstance(self.temperature, str):
            check_number("temperature", self.temperature)
        check_number("initial_temperature", self.initial_temperature, above=True)
        rate = self.temperature_learning_rate
        if rate is not None:
            check_number("temperature_learning_rate", rate, above=not isinstance(rate, Linear))
        if self.target_entropy is not None:
            check_number("target_entropy", self.target_entropy, least=-math.inf)


# The update


class SACState(NamedTuple):
    """The state that an update changes."""

    actor: Any
    """The weights of the actor."""
    critics: Any
    """The weights of all critics."""
    target: Any
    """The weights of the target critics."""
    log_temperature: Any
    actor_optimiser: Any
    critic_optimiser: Any
    temperature_optimiser: Any
    actor_loss: Any
    """The loss of the actor's last update."""
    updates: Any


class SACUpdate:
    """The update step of SAC, as a pure function of the state and a minibatch."""

    algorithm = "sac"
    acting = ("actor",)
    metrics = (
        "loss",
        "critic_loss",
        "actor_loss",
        "q_mean",
        "entropy",
        "temperature",
        "grad_norm",
        "target_lag",
    )

    def __init__(
        self,
        config: SACConfig,
        head: ActionHead,
        actor: Weights[ActorNetwork],
        critics: Weights[Critics],
    ) -> None:
        self._config, self._head = config, head
        self._actor, self._critics = actor, critics
        self._dimensions = head.low.size
        self.weights = {"actor": actor, "critics": critics, "target": critics}
        rate = config.temperature_learning_rate
        self.schedules = {
            "learning_rate": config.learning_rate,
            "temperature_learning_rate": config.learning_rate if rate is None else rate,
        }
        self._optimiser = optimiser_of(config)
        self._target_entropy = -float(self._dimensions) if config.target_entropy is None else config.target_entropy

    def start(self) -> SACState:
        """The state before the first update."""
        actor, critics = self._actor.initial, self._critics.initial
        log_temperature = np.float32(math.log(self._config.initial_temperature))
        actor_first, critic_first, temperature_first = (
            jax.jit(self._optimiser.init)(params) for params in (actor, critics, log_temperature)
        )
        return SACState(
            actor,
            critics,
            critics,
            log_temperature,
            actor_optimiser=actor_first,
            critic_optimiser=critic_first,
            temperature_optimiser=temperature_first,
            actor_loss=np.float32(0),
            updates=np.int32(0),
        )

    def noise(self, rng: np.random.Generator, count: int) -> dict[str, Any]:
        """Noise for the actions in the next and the current state, and a pair of critics for each update."""
        shape = (count * self._config.batch_size, self._dimensions)
        return {
            "next": rng.standard_normal(shape, np.float32),
            "now": rng.standard_normal(shape, np.float32),
            "pair": draw_pairs(rng, self._config.critics, count),
        }

    def step(
        self, state: SACState, batch: Minibatch, schedules: Mapping[str, Any]
    ) -> tuple[SACState, dict[str, jax.Array], jax.Array]:
        """Update the critics and the targets, and every `policy_delay` updates the actor and the temperature."""
        config = self._config
        batch = batch._replace(actions=to_unit(batch.actions, self._head))
        temperature = self.temperature(state)
        (critic_loss, (metrics, priorities)), gradient = jax.value_and_grad(self.critic_loss, has_aux=True)(
            state.critics, state, batch
        )
        critics, optimiser = optimised(
            self._optimiser, gradient, state.critic_optimiser, state.critics, schedules["learning_rate"]
        )
        state = state._replace(critics=critics, critic_optimiser=optimiser, updates=state.updates + 1)

        state = delayed(config, state, state.updates, lambda: self._update_actor(state, batch, schedules))

        target = updated_target(config, state.target, critics, state.updates)
        metrics = {
            **metrics,
            "loss": critic_loss + state.actor_loss,
            "critic_loss": critic_loss,
            "actor_loss": state.actor_loss,
            "temperature": temperature,
            "grad_norm": norm(gradient),
            "target_lag": norm(jax.tree_util.tree_map(jnp.subtract, critics, target)),
        }
        return state._replace(target=target), metrics, priorities

    def temperature(self, state: SACState) -> jax.Array:
        """The current weight of the entropy."""
        fixed = self._config.temperature
        return jnp.exp(state.log_temperature) if isinstance(fixed, str) else jnp.float32(fixed)

    def critic_loss(
        self, critics: Parts, state: SACState, batch: Minibatch
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        """The loss of all critics, with metrics and the new priority of each transition."""
        target = self._critics.network(state.target)
        actions, log_probs = self._act(state.actor, batch.next_observations, batch.noise["next"])
        future = target(batch.next_observations, actions, batch.noise["pair"]).min(axis=0)
        future = future - self.temperature(state) * log_probs
        targets = jax.lax.stop_gradient(batch.rewards + batch.discounts * future)

        predicted = self._critics.network(critics)(batch.observations, batch.actions)
        loss, priorities = squared_errors(predicted, targets, batch.weights)
        metrics = {"q_mean": predicted.mean(), "entropy": -log_probs.mean()}
        return 0.5 * loss, (metrics, priorities)

    def actor_loss(self, actor: Parts, state: SACState, batch: Minibatch) -> tuple[jax.Array, jax.Array]:
        """The loss of the actor, and the mean log density of its actions."""
        actions, log_probs = self._act(actor, batch.observations, batch.noise["now"])
        values = self._critics.network(state.critics)(batch.observations, actions)
        value = values.min(axis=0) if batch.noise["pair"] is None else values.mean(axis=0)
        return (self.temperature(state) * log_probs - value).mean(), log_probs.mean()

    def temperature_loss(self, log_temperature: jax.Array, log_prob: jax.Array) -> jax.Array:
        """The loss of the temperature, for the mean log density of the actor's actions."""
        return -log_temperature * (log_prob + self._target_entropy)

    def _update_actor(self, state: SACState, batch: Minibatch, schedules: Mapping[str, Any]) -> SACState:
        """Update the actor and the temperature."""
        (loss, log_prob), gradient = jax.value_and_grad(self.actor_loss, has_aux=True)(state.actor, state, batch)
        actor, optimiser = optimised(
            self._optimiser, gradient, state.actor_optimiser, state.actor, schedules["learning_rate"]
        )
        improved = state._replace(actor=actor, actor_optimiser=optimiser, actor_loss=loss)
        if not isinstance(self._config.temperature, str):
            return improved
        gradient = jax.grad(self.temperature_loss)(state.log_temperature, jax.lax.stop_gradient(log_prob))
        rate = schedules["temperature_learning_rate"]
        log_temperature, optimiser = optimised(
            self._optimiser, gradient, state.temperature_optimiser, state.log_temperature, rate
        )
        return improved._replace(log_temperature=log_temperature, temperature_optimiser=optimiser)

    def _act(self, actor: Parts, observations: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions of the policy, scaled to -1 to 1, and their log densities."""
        return squashed_gaussian(jax.vmap(self._actor.network(actor))(observations), noise)


# The agent


class SAC(ActorCriticAgent[SACConfig]):
    """Soft actor-critic: learns a stochastic policy for continuous actions from a replay buffer.

    The settings are the fields of `SACConfig`: `SAC(observation_space, action_space, seed=0, gamma=0.98)`. `network`
    may also be an equinox module, or a factory that takes the shape of an encoded observation and `key=`; the actor and
    the critics each get their own. `load_weights` replaces the actor and keeps the critics.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, seed: int, network: Any = None, **settings: Any
    ) -> None:
        config = make_config(SACConfig, {**settings, "network": network_setting(network)})
        head = bounded_head(action_space, "squashed", agent="SAC")
        super().__init__(
            observation_space, action_space, config, SACUpdate, head, outputs=2, network=network, seed=seed
        )
