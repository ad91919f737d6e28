"""Proximal policy optimisation (PPO): on-policy learning with small steps of the policy.

The agent collects a rollout of `rollout_steps` transitions with one policy, learns from it in a few epochs of
minibatches, and discards it. Actions that were better than expected become more likely; clipping the probability ratio
limits how far the policy moves:

    ratio     = pi(a | s) / pi_old(a | s)
    objective = min(ratio * advantage, clip(ratio, 1 - clip, 1 + clip) * advantage)

Papers: Schulman 2017 (PPO), Schulman 2016 (generalised advantage estimation), Fujita 2018 (clipped actions).
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.acting import Actor, device_of, is_on_cpu
from rekindle.agents.configs import OnPolicyConfig
from rekindle.agents.distributions import Distribution, distribution_of
from rekindle.agents.encoders import encoder, feature_size
from rekindle.agents.networks import (
    Dense,
    Module,
    Sequential,
    Weight,
    hidden_layers,
    layers_of,
    orthogonal,
)
from rekindle.agents.onpolicy import OnPolicyAgent
from rekindle.agents.optimiser import optimised, optimiser_of
from rekindle.agents.own_networks import user_network
from rekindle.agents.settings import (
    Linear,
    Setting,
    check_flag,
    check_number,
    check_sizes,
    encoding_of,
    generators,
    make_config,
    network_setting,
)
from rekindle.agents.updates import RolloutBatch
from rekindle.agents.weights import Parts, Weights, norm
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer

__all__ = ["ActorCritic", "PPO", "PPOConfig", "PPOState", "PPOUpdate"]

_MOST_ROWS, _MOST_IMAGES = 1024, 64
"""Rows whose gradient is computed together on a CPU: the outputs of the layers then stay in the cache of a core.

Images of Atari games then need less than 32 MiB as well. The C library returns larger blocks to the system after each
call, and the page faults of the next call took a fifth of an update.
"""


class PPOConfig(OnPolicyConfig, frozen=True, kw_only=True):
    """The settings of a `PPO` agent."""

    clip: Setting = 0.2
    """Clip range of the probability ratio: ratios outside 1 - clip to 1 + clip give no further gain; or a linear
    schedule over env steps."""
    clip_value: float | None = None
    """Clip range of the change of values, in the unit of the (normalised) return; None for no limit."""
    entropy_coef: Setting = 0.0
    """Weight of the entropy bonus, which keeps the policy exploring; or a linear schedule over env steps."""
    value_coef: float = 0.5
    """Weight of the value loss against the policy loss."""
    normalise_advantages: bool = True
    """Normalise the advantages of each minibatch to mean 0 and standard deviation 1."""
    hidden_sizes: tuple[int, ...] | None = None
    """Units of each hidden layer of policy and value; None for (64, 64), or (512,) if an observation is one image."""
    log_std_init: float = 0.0
    """Initial logarithm of the standard deviation of continuous actions, in the unit of the action."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
        super().__post_init__()
        check_number("clip", self.clip, above=not isinstance(self.clip, Linear))
        for name in ("entropy_coef", "value_coef"):
            check_number(name, getattr(self, name))
        check_number("log_std_init", self.log_std_init, least=-20.0, most=20.0)
        if self.clip_value is not None:
            check_number("clip_value", self.clip_value, above=True)
        check_flag("normalise_advantages", self.normalise_advantages)
        check_sizes("hidden_sizes", self.hidden_sizes)


# The network


class ActorCritic(eqx.Module):
    """Maps an observation to the policy (logits, or the means of continuous actions) and the value.

    Policy and value have separate hidden layers on the shared output of the convolutions or of a user's network. If an
    observation is one image, they share the hidden layers too.
    """

    body: Module
    policy: Module
    value: Module
    log_std: Weight | None
    """The log standard deviations of continuous actions; they do not depend on the observation."""

    def __init__(
        self, config: PPOConfig, encoding: Encoding, distribution: Distribution, network: Any, rng: np.random.Generator
    ) -> None:
        sizes, hidden = config.hidden_sizes or ((512,) if encoding.is_image else (64, 64)), orthogonal(math.sqrt(2))
        if network is not None:
            self.body, sizes = user_network(network, encoding, rng=rng), ()
        else:
            layers = encoder(encoding, rng=rng, weight=hidden, bias=0.0)
            if encoding.is_image:
                features = feature_size(Sequential(layers), encoding)
                layers += hidden_layers(features, sizes, rng=rng, weight=hidden, bias=0.0)
                sizes = ()
            self.body = Sequential(layers)
        features = feature_size(self.body, encoding)

        def stream(outputs: int, gain: float) -> Sequential:
            layers = hidden_layers(features, sizes, rng=rng, activation="tanh", weight=hidden, bias=0.0)
            last = Dense((features, *sizes)[-1], outputs, rng=rng, weight=orthogonal(gain), bias=0.0)
            return Sequential([*layers, last])

        self.policy = stream(distribution.outputs, 0.01)
        self.value = stream(1, 1.0)
        deviations = distribution.deviations
        self.log_std = np.full(deviations, config.log_std_init, np.float32) if deviations else None

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The outputs of the policy and the value, for one observation."""
        features = self.body(x)
        return self.policy(features), self.value(features)[0]

    def layers(self) -> list[Layer]:
        """The policy as `Layer` data."""
        return [*layers_of(self.body), *layers_of(self.policy)]


# The update


class PPOState(NamedTuple):
    """The state that an update changes."""

    params: Any
    """The weights of the network."""
    optimiser: Any
    made: Any
    """Updates made on this rollout."""
    is_over: Any
    """Whether `target_kl` ended the updates on this rollout."""


class PPOUpdate:
    """The update step of PPO, as a pure function of the state and a minibatch."""

    algorithm = "ppo"
    metrics = ("loss", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm")

    def __init__(
        self,
        config: PPOConfig,
        weights: Weights[ActorCritic],
        distribution: Distribution,
        *,
        most_rows: int | None = None,
    ) -> None:
        """`most_rows` limits the rows of a minibatch whose gradient is computed together; None for no limit."""
        self._config, self._weights, self._distribution = config, weights, distribution
        self._most_rows = most_rows or config.minibatch_size
        self.schedules = {
            "learning_rate": config.learning_rate,
            "clip": config.clip,
            "entropy_coef": config.entropy_coef,
        }
        self._optimiser = optimiser_of(config)

    def start(self) -> PPOState:
        """The state before the first update."""
        params = self._weights.initial
        return PPOState(params, jax.jit(self._optimiser.init)(params), np.int32(0), np.False_)

    def step(
        self, state: PPOState, batch: RolloutBatch, schedules: Mapping[str, Any]
    ) -> tuple[PPOState, dict[str, jax.Array]]:
        """One gradient step on the loss, unless `target_kl` ended the updates on this rollout."""
        if self._config.target_kl is None:
            return self._update(state, batch, schedules)
        nothing = dict.fromkeys(self.metrics, jnp.float32(0))
        return jax.lax.cond(state.is_over, lambda: (state, nothing), lambda: self._update(state, batch, schedules))

    def _update(
        self, state: PPOState, batch: RolloutBatch, schedules: Mapping[str, Any]
    ) -> tuple[PPOState, dict[str, jax.Array]]:
        if self._config.normalise_advantages:
            batch = batch.normalised()
        (loss, metrics), gradient = batch.gradient(
            lambda params, rows: self.loss(params, rows, schedules), state.params, self._most_rows
        )
        rate, target_kl = schedules["learning_rate"], self._config.target_kl
        params, optimiser = optimised(self._optimiser, gradient, state.optimiser, state.params, rate)
        is_over = state.is_over if target_kl is None else metrics["kl"] > target_kl
        metrics = {"loss": loss, "grad_norm": norm(gradient), **metrics}
        return PPOState(params, optimiser, state.made + 1, is_over), metrics

    def loss(
        self, params: Parts, batch: RolloutBatch, schedules: Mapping[str, Any]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The loss of a minibatch, or of a piece of it, with metrics."""
        config, clip, mean, advantages = self._config, schedules["clip"], batch.mean, batch.advantages
        log_probs, entropies, values = self.score(params, batch.observations, batch.mask, batch.actions)

        log_ratios = log_probs - batch.log_probs
        ratios = jnp.exp(log_ratios)
        objectives = jnp.minimum(ratios * advantages, jnp.clip(ratios, 1 - clip, 1 + clip) * advantages)
        errors = jnp.square(values - batch.returns)
        if config.clip_value is not None:
            clipped = batch.values + jnp.clip(values - batch.values, -config.clip_value, config.clip_value)
            errors = jnp.maximum(errors, jnp.square(clipped - batch.returns))
        metrics = {
            "policy_loss": -mean(objectives),
            "value_loss": mean(errors),
            "entropy": mean(entropies),
            "kl": mean(ratios - 1 - log_ratios),
            "clip_fraction": mean((jnp.abs(ratios - 1) > clip).astype(jnp.float32)),
        }
        loss = metrics["policy_loss"] + config.value_coef * metrics["value_loss"]
        return loss - schedules["entropy_coef"] * metrics["entropy"], metrics

    def score(
        self, params: Parts, observations: jax.Array, mask: jax.Array | None, actions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The log-probability of the action, the entropy and the value, for each row of encoded observations."""
        network = self._weights.network(params)
        outputs, values = jax.vmap(network)(observations)
        return *self._distribution.score(outputs, network.log_std, mask, actions), values


# The agent


class PPO(OnPolicyAgent[PPOConfig]):
    """Proximal policy optimisation: learns a policy and a value function from rollouts of its newest policy.

    Actions may be discrete (Discrete, MultiDiscrete, MultiBinary), continuous (Box), or composite (a Dict or Tuple of
    those, nested or not). `act` and `observe` take a composite action as a row of numbers; sessions, trainers and
    policies convert it (see `rekindle.spaces.ActionStructure`). The settings are the fields of `PPOConfig`:
    `PPO(observation_space, action_space, seed=0, gamma=0.98)`. `network` may also be an equinox module, or a
    factory that takes the shape of an encoded observation and `key=`.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, seed: int, network: Any = None, **settings: Any
    ) -> None:
        initial, exploring, shuffling = generators(seed)
        config = make_config(PPOConfig, {**settings, "network": network_setting(network)})
        distribution = distribution_of(action_space, agent="PPO")
        encoding = encoding_of(
            observation_space, config, actions=distribution.masked, mask_sizes=distribution.mask_sizes
        )
        weights = Weights(ActorCritic(config, encoding, distribution, network, initial))
        # Not for images and a user's network: XLA on a CPU is slow with its own convolution inside a loop.
        has_pieces = is_on_cpu(config.learning_device) and (network is None or not encoding.images)
        most_rows = _MOST_IMAGES if encoding.images else _MOST_ROWS
        super().__init__(
            observation_space,
            action_space,
            config,
            PPOUpdate(config, weights, distribution, most_rows=most_rows if has_pieces else None),
            Actor(
                weights,
                encoding,
                lambda network, x, _: network.policy(network.body(x)),
                device=device_of(config.acting_device, "acting_device"),
            ),
            weights=weights,
            encoding=encoding,
            distribution=distribution,
            exploring=exploring,
            shuffling=shuffling,
        )
