"""Twin delayed deep deterministic policy gradients (TD3): a deterministic policy for continuous actions.

Critics learn the value of an action; a target uses the minimum of two, so that values are not overestimated. Noise on
the action in the target smooths narrow peaks of the critics. The actor maximises the first critic; the actor and the
target networks are updated less often than the critics:

    q(s, a)  <-  r + discount * min target q(s', clip(target actor(s') + clipped noise)),
    actor    <-  q(s, actor(s)),    every `policy_delay` updates

With `bc_alpha` it learns from data (TD3+BC): the actor also stays near the actions of the data.

Papers: Fujimoto 2018 (TD3), Fujimoto 2021 (TD3+BC).
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
    delayed,
    draw_pairs,
    squared_errors,
    updated_target,
)
from rekindle.agents.distributions import bounded_head, to_unit
from rekindle.agents.optimiser import optimised, optimiser_of
from rekindle.agents.settings import Setting, check_number, make_config, network_setting
from rekindle.agents.updates import Minibatch
from rekindle.agents.weights import Parts, Weights, norm
from rekindle.policy.actions import ActionHead

__all__ = ["TD3", "TD3Config", "TD3State", "TD3Update", "td3_bc"]


class TD3Config(ActorCriticConfig, frozen=True, kw_only=True):
    """The settings of a `TD3` agent."""

    learning_rate: Setting = 1e-3
    """Learning rate of Adam for actor and critics, above 0; or a linear schedule over env steps."""
    hidden_sizes: tuple[int, ...] = (400, 300)
    """Units of each hidden layer of actor and critics; on images these layers come after the convolutions."""
    critics: int = 2
    """Number of critics, at least 1; with more than two, each target uses a random pair of them. The actor maximises
    the first critic."""
    policy_delay: int = 2
    """Critic updates for each update of the actor, at least 1."""
    target_update_every: int = 2
    """Updates between target updates, at least 1."""
    exploration_noise: float = 0.1
    """Standard deviation of the exploration noise, for actions scaled to -1 to 1, at least 0."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the actions in targets (target policy smoothing), at least 0."""
    target_noise_clip: float = 0.5
    """Clip the noise on the actions in targets to plus or minus this value, at least 0."""
    bc_alpha: float | None = None
    """Weight of the critic's value against the behaviour cloning loss, for learning from a data set (TD3+BC), above 0;
    2.5 is usual. None uses the value only."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
        super().__post_init__()
        for name in ("exploration_noise", "target_noise", "target_noise_clip"):
            check_number(name, getattr(self, name))
        if self.bc_alpha is not None:
            check_number("bc_alpha", self.bc_alpha, above=True)


def td3_bc(**settings: Any) -> dict[str, Any]:
    """Settings of TD3+BC, updated with yours: `TD3(..., **td3_bc(bc_alpha=1.0))`."""
    return {
        "bc_alpha": 2.5,
        "hidden_sizes": (256, 256),
        "learning_rate": 3e-4,
        "normalise_observations": True,
        "warmup_steps": 0,
        **settings,
    }


# The update


class TD3State(NamedTuple):
    """The state that an update changes."""

    actor: Any
    """The weights of the actor."""
    target_actor: Any
    critics: Any
    """The weights of all critics."""
    target_critics: Any
    actor_optimiser: Any
    critic_optimiser: Any
    actor_loss: Any
    """The loss in the last update of the actor."""
    updates: Any


class TD3Update:
    """The update step of TD3, as a pure function of the state and a minibatch."""

    algorithm = "td3"
    acting = ("actor", "target_actor")
    metrics = ("loss", "critic_loss", "actor_loss", "q_mean", "grad_norm", "target_lag")

    def __init__(
        self,
        config: TD3Config,
        head: ActionHead,
        actor: Weights[ActorNetwork],
        critics: Weights[Critics],
    ) -> None:
        self._config, self._head = config, head
        self._actor, self._critics = actor, critics
        self.weights = {"actor": actor, "target_actor": actor, "critics": critics, "target_critics": critics}
        self.schedules = {"learning_rate": config.learning_rate}
        self._optimiser = optimiser_of(config)

    def start(self) -> TD3State:
        """The state before the first update."""
        actor, critics = self._actor.initial, self._critics.initial
        actor_first, critic_first = (jax.jit(self._optimiser.init)(params) for params in (actor, critics))
        return TD3State(actor, actor, critics, critics, actor_first, critic_first, np.float32(0), np.int32(0))

    def noise(self, rng: np.random.Generator, count: int) -> dict[str, Any]:
        """Noise for the actions in targets, and a pair of critics for each update."""
        shape = (count * self._config.batch_size, self._head.low.size)
        return {
            "next": rng.standard_normal(shape, np.float32),
            "pair": draw_pairs(rng, self._config.critics, count),
        }

    def step(
        self, state: TD3State, batch: Minibatch, schedules: Mapping[str, Any]
    ) -> tuple[TD3State, dict[str, jax.Array], jax.Array]:
        """Update the critics and the targets, and every `policy_delay` updates the actor."""
        config = self._config
        batch = batch._replace(actions=to_unit(batch.actions, self._head))
        (critic_loss, (metrics, priorities)), gradient = jax.value_and_grad(self.critic_loss, has_aux=True)(
            state.critics, state, batch
        )
        critics, optimiser = optimised(
            self._optimiser, gradient, state.critic_optimiser, state.critics, schedules["learning_rate"]
        )
        state = state._replace(critics=critics, critic_optimiser=optimiser, updates=state.updates + 1)

        state = delayed(config, state, state.updates, lambda: self._update_actor(state, batch, schedules))

        state = state._replace(
            target_actor=updated_target(config, state.target_actor, state.actor, state.updates),
            target_critics=updated_target(config, state.target_critics, state.critics, state.updates),
        )
        metrics = {
            **metrics,
            "loss": critic_loss + state.actor_loss,
            "critic_loss": critic_loss,
            "actor_loss": state.actor_loss,
            "grad_norm": norm(gradient),
            "target_lag": norm(jax.tree_util.tree_map(jnp.subtract, critics, state.target_critics)),
        }
        return state, metrics, priorities

    def critic_loss(
        self, critics: Parts, state: TD3State, batch: Minibatch
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        """The loss of all critics, with metrics and the new priority of each transition."""
        config, target = self._config, self._critics.network(state.target_critics)
        noise = jnp.clip(batch.noise["next"] * config.target_noise, -config.target_noise_clip, config.target_noise_clip)
        actions = jnp.clip(self._act(state.target_actor, batch.next_observations) + noise, -1, 1)
        future = target(batch.next_observations, actions, batch.noise["pair"]).min(axis=0)
        targets = jax.lax.stop_gradient(batch.rewards + batch.discounts * future)

        predicted = self._critics.network(critics)(batch.observations, batch.actions)
        loss, priorities = squared_errors(predicted, targets, batch.weights)
        return loss, ({"q_mean": predicted.mean()}, priorities)

    def actor_loss(self, actor: Parts, state: TD3State, batch: Minibatch) -> jax.Array:
        """The loss of the actor: minus the value of its actions, and with `bc_alpha` their distance from the data."""
        critics, first = self._critics.network(state.critics), np.array([0])
        actions = self._act(actor, batch.observations)
        values = critics(batch.observations, actions, first)
        if self._config.bc_alpha is None:
            return -values.mean()
        # The scale of the values must not change their weight against the distance.
        scale = self._config.bc_alpha / jax.lax.stop_gradient(jnp.abs(values).mean())
        return -scale * values.mean() + jnp.square(actions - batch.actions).mean()

    def _update_actor(self, state: TD3State, batch: Minibatch, schedules: Mapping[str, Any]) -> TD3State:
        """Update the actor."""
        loss, gradient = jax.value_and_grad(self.actor_loss)(state.actor, state, batch)
        actor, optimiser = optimised(
            self._optimiser, gradient, state.actor_optimiser, state.actor, schedules["learning_rate"]
        )
        return state._replace(actor=actor, actor_optimiser=optimiser, actor_loss=loss)

    def _act(self, actor: Parts, observations: jax.Array) -> jax.Array:
        """The actions of an actor, scaled to -1 to 1."""
        return jnp.tanh(jax.vmap(self._actor.network(actor))(observations))


# The agent


class TD3(ActorCriticAgent[TD3Config]):
    """Twin delayed DDPG: learns a deterministic policy for continuous actions from a replay buffer.

    The settings are the fields of `TD3Config`: `TD3(observation_space, action_space, seed=0, gamma=0.98)`. `network`
    may also be an equinox module, or a factory that takes the shape of an encoded observation and `key=`; actor
    and critics each have their own. `load_weights` replaces the actor, and leaves the critics as they are.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, seed: int, network: Any = None, **settings: Any
    ) -> None:
        config = make_config(TD3Config, {**settings, "network": network_setting(network)})
        head = bounded_head(action_space, "noisy_tanh", agent="TD3", exploration=config.exploration_noise)
        super().__init__(
            observation_space, action_space, config, TD3Update, head, outputs=1, network=network, seed=seed
        )
