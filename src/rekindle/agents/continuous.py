"""Parts shared by SAC, TD3, AWAC and IQL: the actor and critic networks, and the base of the agents."""

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
    "delayed",
    "draw_pairs",
    "head_by_steps",
    "squared_errors",
    "updated_target",
]

Config = TypeVar("Config", bound=ActorCriticConfig)
State = TypeVar("State")


# Networks


def _encoder(encoding: Encoding, network: Any, rng: np.random.Generator) -> Module:
    """The feature network: the user's own, convolutions for images, or the identity for a vector."""
    if network is not None:
        return user_network(network, encoding, rng=rng)
    return Sequential(encoder(encoding, rng=rng))


class ActorNetwork(eqx.Module):
    """Maps an observation to the inputs of an action head, such as the mean of a Gaussian."""

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
        """`after` are modules to append after the last layer."""
        self.encoder = _encoder(encoding, network, rng)
        hidden = hidden_layers(feature_size(self.encoder, encoding), sizes, rng=rng)
        self.body = Sequential([*hidden, Dense(sizes[-1], outputs, rng=rng), *after])

    def __call__(self, x: jax.Array) -> jax.Array:
        """The output for one observation."""
        return self.body(self.encoder(x))

    def layers(self) -> list[Layer]:
        """The network as `Layer` data."""
        return [*layers_of(self.encoder), *layers_of(self.body)]


class Deviations(eqx.Module):
    """Appends learned log standard deviations, which do not depend on the observation, to its input."""

    raw: Weight
    least: float = eqx.field(static=True)
    most: float = eqx.field(static=True)

    def __init__(self, size: int, *, least: float, most: float) -> None:
        """They start halfway between `least` and `most`."""
        self.raw = np.zeros(size, np.float32)
        self.least, self.most = least, most

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        """The input followed by the log standard deviations."""
        return jnp.concatenate([x, self.least + (self.most - self.least) * jax.nn.sigmoid(self.raw)])

    def layers(self) -> list[Layer]:
        """The layer as `Layer` data."""
        raw = np.asarray(self.raw)
        return [
            Layer(
                "deviations", {"raw": raw, "least": np.full_like(raw, self.least), "most": np.full_like(raw, self.most)}
            )
        ]


class Critics(eqx.Module):
    """Several critics of an observation and an action: separate networks on shared features."""

    encoder: Module
    bodies: Sequential
    """The networks of all critics: every array has a leading axis of critics."""

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
        """The values (critics, rows) of a batch; `only` are the indices of the critics to evaluate, by default all."""
        bodies = self.bodies if only is None else jax.tree_util.tree_map(lambda array: array[only], self.bodies)
        inputs = jnp.concatenate([jax.vmap(self.encoder)(observations), actions], axis=1)
        count = jax.tree_util.tree_leaves(bodies)[0].shape[0]
        if count == 1:  # without an axis for critics, with which XLA transposes the gradients of the weights
            body = jax.tree_util.tree_map(lambda array: array.reshape(array.shape[1:]), bodies)
            return jax.vmap(body)(inputs).reshape(1, -1)
        # Copy the inputs for each critic: with shared inputs, XLA transposes the input and output of the first layer.
        inputs = jnp.broadcast_to(inputs, (count, *inputs.shape))
        return jax.vmap(lambda body, rows: jax.vmap(body)(rows))(bodies, inputs)[..., 0]


def draw_pairs(rng: np.random.Generator, critics: int, count: int) -> Array | None:
    """A random pair of different critics for each of `count` updates, concatenated; None for at most two critics."""
    if critics <= 2:
        return None
    return rng.random((count, critics)).argsort(axis=1)[:, :2].astype(np.int32).ravel()


def squared_errors(predicted: jax.Array, targets: jax.Array, weights: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """The squared error summed over critics and averaged over rows, and the mean absolute TD error of each row.

    `predicted` has the shape (critics, rows), and `targets` (rows,).
    """
    errors = predicted - targets
    losses = jnp.square(errors).sum(axis=0)
    if weights is not None:
        losses = losses * weights
    return losses.mean(), jnp.abs(errors).mean(axis=0)


def delayed(config: ActorCriticConfig, state: State, updates: jax.Array, update_actor: Callable[[], State]) -> State:
    """Apply the update of the actor in every `policy_delay`-th update; otherwise keep the state."""
    if config.policy_delay == 1:
        return update_actor()
    return jax.lax.cond(updates % config.policy_delay == 0, update_actor, lambda: state)


def updated_target(config: ActorCriticConfig, target: Parts, newest: Parts, updates: jax.Array) -> Parts:
    """The target network after an update: it moves by `tau` in every `target_update_every`-th update."""
    each = jax.tree_util.tree_map
    nearer = each(lambda target, newest: target + config.tau * (newest - target), target, newest)
    if config.target_update_every == 1:
        return nearer
    is_time = updates % config.target_update_every == 0
    return each(lambda nearer, target: jnp.where(is_time, nearer, target), nearer, target)


# The agent


class ActorCriticAgent(OffPolicyAgent[Config]):
    """An off-policy agent with an actor and several critics."""

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
        """`outputs` is the number of actor outputs for each action dimension, before the modules `after`."""
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
    """An `Actor` that acts with the weights of an actor network."""
    device = device_of(config.acting_device, "acting_device")
    return Actor(actor, encoding, lambda network, x, _: network(x), device=device)


def head_by_steps(head: ActionHead, warmup_steps: float) -> Callable[[int], ActionHead]:
    """The head as a function of env steps: during the warm-up it samples uniformly within the bounds."""
    anywhere = msgspec.structs.replace(head, anywhere=True)
    return lambda env_steps: anywhere if env_steps < warmup_steps else head
