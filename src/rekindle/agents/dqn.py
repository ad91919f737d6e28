"""Deep Q-learning (DQN), with every part of Rainbow as a setting.

A network learns the value of each action: its reward plus the discounted value of the best next action. It learns from
minibatches of a replay buffer; the next value comes from a target network, an older copy of the network:

    q(s, a)  <-  r + discount * target(s', argmax q(s', .))

Papers: Mnih 2015 (DQN), van Hasselt 2016 (double), Wang 2016 (dueling), Schaul 2016 (prioritised), Bellemare 2017
(distributional), Dabney 2017 (quantiles), Fortunato 2018 (noisy), Hessel 2018 (Rainbow), Kumar 2020 (conservative).
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.configs import DiscreteConfig
from rekindle.agents.discrete import DiscreteAgent, updated_target
from rekindle.agents.encoders import encoder, feature_size
from rekindle.agents.networks import (
    Activation,
    Dense,
    Module,
    NoisyDense,
    Sequential,
    hidden_layers,
    layers_of,
    noise_size,
    normal_fan_in,
    split_noise,
)
from rekindle.agents.optimiser import optimised, optimiser_of
from rekindle.agents.own_networks import user_network
from rekindle.agents.returns import CategoricalReturns, MeanReturns, QuantileReturns, Returns
from rekindle.agents.settings import (
    Linear,
    Setting,
    check_choice,
    check_flag,
    check_number,
    check_whole,
    make_config,
    network_setting,
)
from rekindle.agents.updates import Minibatch
from rekindle.agents.weights import Parts, Weights, norm
from rekindle.agents.xla import pick
from rekindle.errors import ConfigError
from rekindle.experience import Array
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer, draw_noise

__all__ = ["DQN", "DQNConfig", "DQNState", "DQNUpdate", "QNetwork", "rainbow"]


class DQNConfig(DiscreteConfig, frozen=True, kw_only=True):
    """The settings of a `DQN` agent."""

    learning_rate: Setting = 1e-4
    """Learning rate of Adam, above 0; or a linear schedule over env steps."""
    max_grad_norm: float | None = 10.0
    """Largest L2 norm of the gradient, above 0: a larger gradient is scaled down; None for no limit."""
    dueling: bool = False
    """Dueling network: separate streams for the value of the state and the advantages of the actions."""
    atoms: int = 1
    """1 learns the mean return; more learn a distribution over that many evenly spaced returns (C51 uses 51)."""
    v_min: float = -10.0
    """With atoms: the smallest return of the distribution, after `reward_scale`."""
    v_max: float = 10.0
    """With atoms: the largest return of the distribution, after `reward_scale`; above `v_min`."""
    quantiles: int | None = None
    """Learn this many quantiles of the return (QR-DQN), such as 50; None learns the mean."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of the mean return: `huber` or `mse`. Atoms always use the cross-entropy, quantiles the quantile Huber
    loss."""
    cql_alpha: float = 0.0
    """Weight of the conservative Q-learning (CQL) loss, for learning from a data set, at least 0: it lowers the values
    of actions that the data does not contain. 1 is usual; 0 turns it off."""
    noisy: bool = False
    """Noisy networks: explore with learned noise on the weights of the dense layers instead of epsilon."""
    noisy_sigma: float = 0.5
    """With noisy networks: the initial scale of the noise, above 0."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
        super().__post_init__()
        check_number("noisy_sigma", self.noisy_sigma, above=True)
        check_number("cql_alpha", self.cql_alpha)
        for name in ("v_min", "v_max"):
            check_number(name, getattr(self, name), least=-math.inf)
        check_whole("atoms", self.atoms, 1)
        if self.quantiles is not None:
            check_whole("quantiles", self.quantiles, 1)
            if self.atoms > 1:
                raise ConfigError(f"quantiles is {self.quantiles} and atoms is {self.atoms}: use one of them")
        for name in ("dueling", "noisy"):
            check_flag(name, getattr(self, name))
        check_choice("loss", self.loss, ("huber", "mse"))
        if self.v_min >= self.v_max:
            raise ConfigError(f"v_max is {self.v_max!r}: use a number above v_min, {self.v_min!r}")

    @property
    def returns(self) -> Returns:
        """The kind of prediction: mean, distribution or quantiles of the return."""
        if self.quantiles is not None:
            return QuantileReturns(self.quantiles)
        return MeanReturns(self.loss) if self.atoms == 1 else CategoricalReturns(self.atoms, self.v_min, self.v_max)

    def explores(self, env_steps: int) -> float:
        """Epsilon, or the softmax temperature, after `env_steps` env steps; 0 if noisy layers replace epsilon."""
        return 0.0 if self.noisy and self.exploration == "epsilon" else super().explores(env_steps)


def rainbow(**settings: Any) -> dict[str, Any]:
    """Settings with every part of Rainbow on, updated with yours: `DQN(..., **rainbow(v_min=0, v_max=100))`."""
    return {
        "double": True,
        "dueling": True,
        "n_step": 3,
        "prioritised": True,
        "priority_alpha": 0.5,
        "priority_beta": Linear(0.4, 1.0, 1_000_000),
        "atoms": 51,
        "noisy": True,
        "epsilon_start": 0.0,
        "epsilon_end": 0.0,
        "learning_rate": 6.25e-5,
        "adam_eps": 1.5e-4,
        "update_every": 4,
        "target_update_every": 2_000,
        "warmup_steps": 20_000,
        **settings,
    }


# The network

_BEFORE_RELU, _OUTPUT = normal_fan_in(math.sqrt(2)), normal_fan_in(1.0)


class QNetwork(eqx.Module):
    """Maps an observation to the value of each action, or to the logits or quantiles of its return."""

    body: Module
    value: Module | None
    """The stream for the value of the state, in a dueling network."""
    advantage: Module
    """The values of the actions, or in a dueling network their advantages."""
    returns: Returns = eqx.field(static=True)

    def __init__(
        self, config: DQNConfig, encoding: Encoding, actions: int, network: Any, rng: np.random.Generator
    ) -> None:
        """The streams of value and advantage each have their own last hidden layer, as in the papers."""
        sizes = config.hidden_sizes or ((512,) if encoding.is_image else (128, 128))
        if network is not None:
            self.body, sizes = user_network(network, encoding, rng=rng), ()
        elif encoding.is_image:
            self.body = Sequential(encoder(encoding, rng=rng))
        else:
            first = encoder(encoding, rng=rng, weight=_BEFORE_RELU, bias=0.0)
            inputs = feature_size(Sequential(first), encoding)
            hidden = hidden_layers(inputs, sizes[:-1], rng=rng, weight=_BEFORE_RELU, bias=0.0)
            self.body, sizes = Sequential([*first, *hidden]), sizes[-1:]
        features = feature_size(self.body, encoding)
        self.returns = config.returns
        atoms = self.returns.atoms
        self.value = _stream(config, features, (*sizes, atoms), rng) if config.dueling else None
        self.advantage = _stream(config, features, (*sizes, actions * atoms), rng)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:
        """(actions, atoms) for one observation."""
        body, value, advantage = split_noise(noise, (self.body, self.value, self.advantage))
        features = self.body(x, body)
        output = self.advantage(features, advantage).reshape(-1, self.returns.atoms)
        if self.value is not None:
            output = self.value(features, value) + output - output.mean(axis=0)
        return output

    @property
    def noise_size(self) -> int:
        """How many random numbers a noisy forward pass takes."""
        return sum(map(noise_size, (self.body, self.value, self.advantage)))

    def layers(self) -> list[Layer]:
        """The network as `Layer` data, from an encoded observation to the values of the actions."""
        body, advantage = layers_of(self.body), layers_of(self.advantage)
        if self.value is not None:
            atoms = self.returns.atoms
            advantage = [Layer("dueling", value=layers_of(self.value), advantage=advantage, atoms=atoms)]
        return [*body, *advantage, *self.returns.layers()]


def _stream(config: DQNConfig, features: int, sizes: Sequence[int], rng: np.random.Generator) -> Sequential:
    """Hidden layers and an output layer; all of them are noisy, or none is."""
    modules: list[Any] = []
    for index, size in enumerate(sizes, 1):
        if config.noisy:
            modules.append(NoisyDense(features, size, rng=rng, sigma=config.noisy_sigma))
        else:
            weight = _BEFORE_RELU if index < len(sizes) else _OUTPUT
            modules.append(Dense(features, size, rng=rng, weight=weight, bias=0.0))
        modules.append(Activation("relu"))
        features = size
    return Sequential(modules[:-1])


# The update


class DQNState(NamedTuple):
    """The state that an update changes."""

    params: Any
    """The weights of the network."""
    target: Any
    """The weights of the target network."""
    optimiser: Any
    updates: Any


class DQNUpdate:
    """The update step of DQN, as a pure function of the state and a minibatch."""

    algorithm = "dqn"
    acting = ("params", "target")

    def __init__(self, config: DQNConfig, weights: Weights[QNetwork], *, noise_size: int, first_action: int) -> None:
        self._config, self._weights, self._returns = config, weights, config.returns
        self._noise_size, self._first_action = noise_size, first_action
        self.weights = {"params": weights, "target": weights}
        self.schedules = {"learning_rate": config.learning_rate}
        self._optimiser = optimiser_of(config)
        gap = ("q_gap",) if config.cql_alpha else ()
        self.metrics = ("loss", "q_mean", "grad_norm", "target_lag", *self._returns.metrics, *gap)

    def start(self) -> DQNState:
        """The state before the first update."""
        params = self._weights.initial
        return DQNState(params, params, jax.jit(self._optimiser.init)(params), np.int32(0))

    def noise(self, rng: np.random.Generator, count: int) -> Array | None:
        """Noise for noisy layers: two samples for each update, for the network and the target network."""
        return draw_noise(rng, 2 * count, self._noise_size)

    def step(
        self, state: DQNState, batch: Minibatch, schedules: Mapping[str, Any]
    ) -> tuple[DQNState, dict[str, jax.Array], jax.Array]:
        """One gradient step on the loss, then an update of the target network."""
        rate = schedules["learning_rate"]
        (loss, (metrics, priorities)), gradient = jax.value_and_grad(self.loss, has_aux=True)(
            state.params, state.target, batch
        )
        params, optimiser = optimised(self._optimiser, gradient, state.optimiser, state.params, rate)
        updates = state.updates + 1
        target = updated_target(self._config, state.target, params, updates)
        lag = norm(jax.tree_util.tree_map(jnp.subtract, params, target))
        metrics = {"loss": loss, "grad_norm": norm(gradient), "target_lag": lag, **metrics}
        return DQNState(params, target, optimiser, updates), metrics, priorities

    def loss(
        self, params: Parts, target_params: Parts, batch: Minibatch
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        """The loss of a minibatch, with metrics and the new priority of each transition."""
        config, returns = self._config, self._returns
        network, target = self._weights.network(params), self._weights.network(target_params)
        # One noise sample for the whole minibatch, and another for the target network.
        noise, target_noise = (None, None) if batch.noise is None else batch.noise

        # The value of the next state. With double Q-learning the network selects the action, and the target network
        # evaluates it.
        future = jax.vmap(target, (0, None))(batch.next_observations, target_noise)
        if batch.next_mask is None and not config.double and returns.atoms == 1:
            future = future.max(axis=1)  # the same result as below, but faster
        else:
            choices = jax.vmap(network, (0, None))(batch.next_observations, noise) if config.double else future
            ranks, mask = returns.means(choices), batch.next_mask
            best = jnp.argmax(ranks if mask is None else jnp.where(mask, ranks, -jnp.inf), axis=1)
            future = pick(future, best)

        outputs = jax.vmap(network, (0, None))(batch.observations, noise)
        predicted = pick(outputs, batch.actions.astype(jnp.int32) - self._first_action)
        losses, priorities, metrics = returns.loss(predicted, batch.rewards, batch.discounts, future)
        if config.cql_alpha:
            # CQL: lower a soft maximum of the values of all actions, and raise the value of the action in the data.
            values = returns.means(outputs)
            legal = values if batch.mask is None else jnp.where(batch.mask, values, -jnp.inf)
            gaps = jax.nn.logsumexp(legal, axis=1) - returns.means(predicted)
            losses, metrics = losses + config.cql_alpha * gaps, {**metrics, "q_gap": gaps.mean()}
        if batch.weights is not None:
            losses = losses * batch.weights
        return losses.mean(), ({"q_mean": returns.means(predicted).mean(), **metrics}, priorities)


# The agent


class DQN(DiscreteAgent[DQNConfig]):
    """Deep Q-learning: learns the values of discrete actions from a replay buffer.

    The settings are the fields of `DQNConfig`: `DQN(observation_space, action_space, seed=0, gamma=0.98)`. `network`
    may also be an equinox module, or a factory that takes the shape of an encoded observation and `key=`.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, seed: int, network: Any = None, **settings: Any
    ) -> None:
        config = make_config(DQNConfig, {**settings, "network": network_setting(network)})
        super().__init__(
            observation_space,
            action_space,
            config,
            lambda encoding, actions, rng: QNetwork(config, encoding, actions, network, rng),
            DQNUpdate,
            lambda network, x, noise: config.returns.means(network(x, noise)),
            seed=seed,
        )
