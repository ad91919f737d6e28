"""What SAC, TD3, AWAC and IQL share: an actor, and several critics of its actions."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from rekindle.agents.acting import Actor, device_of
from rekindle.agents.configs import ActorCriticConfig, OffPolicyConfig
from rekindle.agents.encoders import encoder, feature_size
from rekindle.agents.networks import Dense, Module, Sequential, Weight, hidden_layers, layers_of
from rekindle.agents.offpolicy import OffPolicyAgent
from rekindle.agents.own_networks import user_network
from rekindle.agents.settings import encoding_of, generators
from rekindle.agents.updates import OffPolicyUpdate
from rekindle.agents.weights import Parts, Weights
from rekindle.experience import Array
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer

__all__ = [
    "ActorCriticAgent",
    "ActorNetwork",
    "Critics",
    "Deviations",
    "acting_with",
    "draw_pairs",
    "followed",
    "head_by_steps",
    "in_turn",
    "squared_errors",
]

Config = TypeVar("Config", bound=ActorCriticConfig)
State = TypeVar("State")


# Networks


def _encoder(encoding: Encoding, network: Any, rng: np.random.Generator) -> Module:
    """From an observation to features: the user's network, convolutions, or nothing at all."""
    if network is not None:
        return user_network(network, encoding, rng=rng)
    return Sequential(encoder(encoding, rng=rng))


class ActorNetwork(eqx.Module):
    """From an observation to the numbers that an action is made of."""

    encoder: Module
    body: Sequential

    def __init__(
        self,
        encoding: Encoding,
        outputs: int,
        sizes: Sequence[int],
        *,
        network: Any,
        rng: np.random.Generator,
        after: Sequence[Module] = (),
    ) -> None:
        """`after` are modules that follow the last layer."""
        self.encoder = _encoder(encoding, network, rng)
        hidden = hidden_layers(feature_size(self.encoder, encoding), sizes, rng=rng)
        self.body = Sequential([*hidden, Dense(sizes[-1], outputs, rng=rng), *after])

    def __call__(self, x: jax.Array) -> jax.Array:
        """The output for one observation."""
        return self.body(self.encoder(x))

    def layers(self) -> list[Layer]:
        """As data."""
        return [*layers_of(self.encoder), *layers_of(self.body)]


class Deviations(eqx.Module):
    """Log standard deviations that are learned and do not depend on observations, after the numbers it is given."""

    raw: Weight
    least: float = eqx.field(static=True)
    most: float = eqx.field(static=True)

    def __init__(self, size: int, *, least: float, most: float) -> None:
        """They start in the middle between the least and the most."""
        self.raw = np.zeros(size, np.float32)
        self.least, self.most = least, most

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The numbers, and the log standard deviations."""
        return jnp.concatenate([x, self.least + (self.most - self.least) * jax.nn.sigmoid(self.raw)])

    def layers(self) -> list[Layer]:
        """As data."""
        raw = np.asarray(self.raw)
        return [
            Layer(
                "deviations", {"raw": raw, "least": np.full_like(raw, self.least), "most": np.full_like(raw, self.most)}
            )
        ]


class Critics(eqx.Module):
    """Several values of an observation and an action, learned apart from each other, from features in common."""

    encoder: Module
    bodies: Sequential
    """With a leading axis, one for each critic, in every array."""

    def __init__(
        self,
        encoding: Encoding,
        dimensions: int,
        sizes: Sequence[int],
        *,
        count: int,
        layer_norm: bool,
        network: Any,
        rng: np.random.Generator,
    ) -> None:
        self.encoder = _encoder(encoding, network, rng)
        inputs = feature_size(self.encoder, encoding) + dimensions
        bodies = [
            Sequential([*hidden_layers(inputs, sizes, rng=rng, layer_norm=layer_norm), Dense(sizes[-1], 1, rng=rng)])
            for _ in range(count)
        ]
        self.bodies = jax.tree_util.tree_map(lambda *arrays: np.stack(arrays), *bodies)

    def __call__(self, observations: jax.Array, actions: jax.Array, only: jax.Array | Array | None = None) -> jax.Array:
        """(critics, rows) for a batch; `only` names the critics that are asked, by default all."""
        bodies = self.bodies if only is None else jax.tree_util.tree_map(lambda array: array[only], self.bodies)
        inputs = jnp.concatenate([jax.vmap(self.encoder)(observations), actions], axis=1)
        # Each critic has inputs of its own: XLA would turn over what a first layer in common gives and is given.
        count = jax.tree_util.tree_leaves(bodies)[0].shape[0]
        inputs = jnp.broadcast_to(inputs, (count, *inputs.shape))
        return jax.vmap(lambda body, rows: jax.vmap(body)(rows))(bodies, inputs)[..., 0]


def draw_pairs(rng: np.random.Generator, critics: int, count: int) -> Array | None:
    """Two different critics for each of so many updates, one pair after the other; None if there is no choice."""
    if critics <= 2:
        return None
    return rng.random((count, critics)).argsort(axis=1)[:, :2].astype(np.int32).ravel()


def squared_errors(predicted: jax.Array, values: jax.Array, weights: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """The mean over rows of the squared errors of all critics, and how much each row surprised them.

    Predictions are (critics, rows), the values to learn (rows,).
    """
    errors = predicted - values
    losses = jnp.square(errors).sum(axis=0)
    if weights is not None:
        losses = losses * weights
    return losses.mean(), jnp.abs(errors).mean(axis=0)


def in_turn(config: ActorCriticConfig, state: State, updates: jax.Array, improve: Callable[[], State]) -> State:
    """The state after the actor's update, if it is its turn after so many updates, or as it is."""
    if config.policy_delay == 1:
        return improve()
    return jax.lax.cond(updates % config.policy_delay == 0, improve, lambda: state)


def followed(config: ActorCriticConfig, target: Parts, newest: Parts, updates: jax.Array) -> Parts:
    """A target after so many updates: it moves by tau in every so many of them."""
    each = jax.tree_util.tree_map
    nearer = each(lambda target, newest: target + config.tau * (newest - target), target, newest)
    if config.target_update_every == 1:
        return nearer
    is_time = updates % config.target_update_every == 0
    return each(lambda nearer, target: jnp.where(is_time, nearer, target), nearer, target)


# The agent


class ActorCriticAgent(OffPolicyAgent[Config]):
    """An actor with critics, and an update that improves both."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        config: Config,
        update: Callable[[Config, ActionHead, Weights[ActorNetwork], Weights[Critics]], OffPolicyUpdate],
        head: ActionHead,
        *,
        outputs: int,
        network: Any,
        seed: int,
        after: Sequence[Module] = (),
    ) -> None:
        """`outputs` is how many numbers the actor gives for each dimension of an action, before modules `after`."""
        initial, exploring, sampling = generators(seed)
        encoding, dimensions = encoding_of(observation_space, config, actions=0), head.low.size
        actor = Weights(
            ActorNetwork(encoding, outputs * dimensions, config.hidden_sizes, network=network, rng=initial, after=after)
        )
        critics = Weights(
            Critics(
                encoding,
                dimensions,
                config.hidden_sizes,
                count=config.critics,
                layer_norm=config.layer_norm,
                network=network,
                rng=initial,
            )
        )
        super().__init__(
            observation_space,
            action_space,
            config,
            update(config, head, actor, critics),
            acting_with(actor, encoding, config),
            encoding=encoding,
            head=head_by_steps(head, config.warmup_steps),
            exploring=exploring,
            sampling=sampling,
        )


def acting_with(actor: Weights[ActorNetwork], encoding: Encoding, config: OffPolicyConfig) -> Actor[ActorNetwork]:
    """What acts with the weights of an actor."""
    device = device_of(config.acting_device, "acting_device")
    return Actor(actor, encoding, lambda network, x, _: network(x), device=device)


def head_by_steps(head: ActionHead, warmup_steps: float) -> Callable[[int], ActionHead]:
    """The head after so many env steps: one that explores anywhere in the bounds while warming up, then the given."""
    anywhere = msgspec.structs.replace(head, anywhere=True)
    return lambda env_steps: anywhere if env_steps < warmup_steps else head
