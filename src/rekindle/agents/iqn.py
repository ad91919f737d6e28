"""Implicit quantile networks (IQN): Q-learning with the whole distribution of returns.

The network takes a probability `tau` as an input and returns the `tau`-quantile of the return of each action. An update
samples random quantiles of the current state and compares them with random quantiles of the next state:

    q_tau(s, a)  <-  r + discount * target_tau'(s', argmax mean over tau'' of q_tau''(s', .))

The features of an observation are multiplied element-wise by an embedding of `tau`, computed from the cosines of its
multiples.

Paper: Dabney 2018.
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

from rekindle.agents.configs import DiscreteConfig
from rekindle.agents.discrete import DiscreteAgent, updated_target
from rekindle.agents.encoders import encoder, feature_size
from rekindle.agents.networks import Dense, Module, Sequential, hidden_layers, layers_of, normal_fan_in
from rekindle.agents.optimiser import optimised, optimiser_of
from rekindle.agents.own_networks import user_network
from rekindle.agents.returns import midpoints, quantile_huber
from rekindle.agents.settings import Setting, check_whole, make_config, network_setting
from rekindle.agents.updates import Minibatch
from rekindle.agents.weights import Parts, Weights, norm
from rekindle.agents.xla import pick
from rekindle.experience import Array
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer

__all__ = ["IQN", "IQNConfig", "IQNNetwork", "IQNState", "IQNUpdate"]


class IQNConfig(DiscreteConfig, frozen=True, kw_only=True):
    """The settings of an `IQN` agent."""

    learning_rate: Setting = 5e-5
    """Learning rate of Adam, above 0; or a linear schedule over env steps."""
    adam_eps: float = 0.01 / 32
    """Epsilon of Adam, above 0."""
    double: bool = False
    """Double Q-learning: the network selects the next action and the target network evaluates it, which reduces
    overestimation."""
    quantiles: int = 8
    """Random quantiles of the return that an update samples for each transition, at least 1."""
    target_quantiles: int = 8
    """Random quantiles of the next state's return that they are compared with, at least 1."""
    policy_quantiles: int = 32
    """Quantiles whose mean is the value of an action, for acting and for the next action of a target, at least 1."""
    cosines: int = 64
    """Number of cosines in the embedding of a quantile, at least 1."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
        super().__post_init__()
        for name in ("quantiles", "target_quantiles", "policy_quantiles", "cosines"):
            check_whole(name, getattr(self, name), 1)


# The network

_BEFORE_RELU, _OUTPUT = normal_fan_in(math.sqrt(2)), normal_fan_in(1.0)


class IQNNetwork(eqx.Module):
    """Maps an observation and a probability `tau` to the `tau`-quantile of the return of each action."""

    body: Module
    embedding: Dense
    head: Sequential
    policy_quantiles: int = eqx.field(static=True)

    def __init__(
        self, config: IQNConfig, encoding: Encoding, actions: int, network: Any, rng: np.random.Generator
    ) -> None:
        """The last hidden layer comes after the product with the embedding, unless it is the only one."""
        sizes = config.hidden_sizes or ((512,) if encoding.is_image else (128, 128))
        if network is not None:
            self.body, sizes = user_network(network, encoding, rng=rng), ()
        elif encoding.is_image:
            self.body = Sequential(encoder(encoding, rng=rng))
        else:
            before = max(1, len(sizes) - 1)
            # Random biases: with zero biases, an all-zero observation would have zero features, and a zero product.
            first = encoder(encoding, rng=rng, weight=_BEFORE_RELU)
            inputs = feature_size(Sequential(first), encoding)
            hidden = hidden_layers(inputs, sizes[:before], rng=rng, weight=_BEFORE_RELU)
            self.body, sizes = Sequential([*first, *hidden]), sizes[before:]
        features = feature_size(self.body, encoding)
        self.embedding = Dense(config.cosines, features, rng=rng)
        after = hidden_layers(features, sizes, rng=rng, weight=_BEFORE_RELU, bias=0.0)
        self.head = Sequential([*after, Dense((features, *sizes)[-1], actions, rng=rng, weight=_OUTPUT, bias=0.0)])
        self.policy_quantiles = config.policy_quantiles

    def __call__(self, observations: jax.Array, taus: jax.Array) -> jax.Array:
        """The quantiles (rows, actions, quantiles) of a batch, for probabilities `taus` of shape (rows, quantiles)."""
        # Flatten to the rows of one matrix: with a separate axis for the quantiles, the weight gradients would be
        # computed for each row and then summed.
        rows, count = taus.shape
        cosines = jnp.cos(taus.reshape(-1, 1) * (math.pi * np.arange(len(self.embedding.weight))))
        embedded = jax.nn.relu(jax.vmap(self.embedding)(cosines.astype(jnp.float32)))
        features = jnp.repeat(jax.vmap(self.body)(observations), count, axis=0)
        quantiles = jax.vmap(self.head)(features * embedded)
        return quantiles.reshape(rows, count, -1).transpose(0, 2, 1)

    def values(self, x: jax.Array, noise: jax.Array | None) -> jax.Array:
        """The value of each action for one observation: the mean of `policy_quantiles` evenly spaced quantiles.

        With standard Gaussian noise, each quantile is shifted by a uniform random amount, modulo 1.
        """
        taus = jnp.array(midpoints(self.policy_quantiles))
        if noise is not None:
            taus = (taus + jax.scipy.special.ndtr(noise) - 0.5) % 1
        one = jax.tree_util.tree_map(lambda part: part[None], x)
        return self(one, taus[None])[0].mean(axis=-1)

    @property
    def noise_size(self) -> int:
        """How many random numbers choose the quantiles for acting."""
        return self.policy_quantiles

    def layers(self) -> list[Layer]:
        """The network as `Layer` data, from an encoded observation to the values of the actions."""
        arrays = {"weight": np.asarray(self.embedding.weight), "bias": np.asarray(self.embedding.bias)}
        count = self.policy_quantiles
        return [*layers_of(self.body), Layer("implicit_quantiles", arrays, advantage=layers_of(self.head), atoms=count)]


# The update


class IQNState(NamedTuple):
    """The state that an update changes."""

    params: Any
    """The weights of the network."""
    target: Any
    """The weights of the target network."""
    optimiser: Any
    updates: Any


class IQNUpdate:
    """The update step of IQN, as a pure function of the state and a minibatch."""

    algorithm = "iqn"
    acting = ("params", "target")
    metrics = ("loss", "q_mean", "grad_norm", "target_lag")

    def __init__(self, config: IQNConfig, weights: Weights[IQNNetwork], *, noise_size: int, first_action: int) -> None:
        self._config, self._weights, self._first_action = config, weights, first_action
        self._samples = np.cumsum([config.quantiles, config.target_quantiles, noise_size])
        self.weights = {"params": weights, "target": weights}
        self.schedules = {"learning_rate": config.learning_rate}
        self._optimiser = optimiser_of(config)

    def start(self) -> IQNState:
        """The state before the first update."""
        params = self._weights.initial
        return IQNState(params, params, jax.jit(self._optimiser.init)(params), np.int32(0))

    def noise(self, rng: np.random.Generator, count: int) -> Array:
        """Random probabilities for each transition: of the quantiles, the target quantiles and the policy quantiles."""
        return rng.random((count * self._config.batch_size, self._samples[-1]), np.float32)

    def step(
        self, state: IQNState, batch: Minibatch, schedules: Mapping[str, Any]
    ) -> tuple[IQNState, dict[str, jax.Array], jax.Array]:
        """One gradient step on the loss, then an update of the target network."""
        (loss, (q_mean, priorities)), gradient = jax.value_and_grad(self.loss, has_aux=True)(
            state.params, state.target, batch
        )
        params, optimiser = optimised(
            self._optimiser, gradient, state.optimiser, state.params, schedules["learning_rate"]
        )
        updates = state.updates + 1
        target = updated_target(self._config, state.target, params, updates)
        lag = norm(jax.tree_util.tree_map(jnp.subtract, params, target))
        metrics = {"loss": loss, "q_mean": q_mean, "grad_norm": norm(gradient), "target_lag": lag}
        return IQNState(params, target, optimiser, updates), metrics, priorities

    def loss(
        self, params: Parts, target_params: Parts, batch: Minibatch
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """The loss of a minibatch, with the mean value and the new priority of each transition."""
        config = self._config
        network, target = self._weights.network(params), self._weights.network(target_params)
        taus, target_taus, policy_taus = jnp.split(batch.noise, self._samples[:-1], axis=1)

        # The next action is the best by the mean of the policy quantiles; the target quantiles are its returns.
        values = (network if config.double else target)(batch.next_observations, policy_taus).mean(axis=-1)
        if batch.next_mask is not None:
            values = jnp.where(batch.next_mask, values, -jnp.inf)
        future = pick(target(batch.next_observations, target_taus), jnp.argmax(values, axis=1))
        targets = jax.lax.stop_gradient(batch.rewards[:, None] + batch.discounts[:, None] * future)

        predicted = pick(network(batch.observations, taus), batch.actions.astype(jnp.int32) - self._first_action)
        losses = quantile_huber(predicted, taus, targets)
        priorities = losses / config.quantiles
        if batch.weights is not None:
            losses = losses * batch.weights
        return losses.mean(), (predicted.mean(), priorities)


# The agent


class IQN(DiscreteAgent[IQNConfig]):
    """Implicit quantile networks: learns the distribution of the return of each discrete action from a replay buffer.

    The settings are the fields of `IQNConfig`: `IQN(observation_space, action_space, seed=0, gamma=0.98)`. `network`
    may also be an equinox module, or a factory that takes the shape of an encoded observation and `key=`. In mode
    EXPLORE the quantiles for acting are random, in addition to epsilon; in mode EXPLOIT they are fixed.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, seed: int, network: Any = None, **settings: Any
    ) -> None:
        config = make_config(IQNConfig, {**settings, "network": network_setting(network)})
        super().__init__(
            observation_space,
            action_space,
            config,
            lambda encoding, actions, rng: IQNNetwork(config, encoding, actions, network, rng),
            IQNUpdate,
            lambda network, x, noise: network.values(x, noise),
            seed=seed,
            passes=2 * config.policy_quantiles,  # for numpy, the embedding costs as much as the matrix products
        )
