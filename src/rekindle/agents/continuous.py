"""What SAC and TD3 share: actions between bounds, an actor, and several critics of it.

Wherever they learn, an action is a vector from -1 to 1, whatever the bounds of the space are.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from rekindle.agents.networks import (
    Dense,
    Module,
    Sequential,
    convolutions,
    feature_size,
    hidden_layers,
    layers_of,
    user_network,
)
from rekindle.agents.normalisation import normalise
from rekindle.agents.offpolicy import check_off_policy
from rekindle.agents.settings import check_flag, check_number, check_sizes, check_whole
from rekindle.agents.weights import Parts, Weights
from rekindle.errors import ConfigError
from rekindle.experience import Array
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer

__all__ = [
    "ActorNetwork",
    "Critics",
    "Seen",
    "check_actor_critic",
    "continuous_head",
    "draw_pairs",
    "followed",
    "head_by_steps",
    "in_turn",
    "networks",
    "seen",
]

LearnerState = TypeVar("LearnerState")


def check_actor_critic(config: Any) -> None:
    """Refuse settings out of range that SAC and TD3 have in common."""
    check_off_policy(config)
    check_number("tau", config.tau, most=1.0, above=True)
    check_sizes("hidden_sizes", () if config.hidden_sizes is None else config.hidden_sizes)
    for name in ("critics", "policy_delay"):
        check_whole(name, getattr(config, name), 1)
    check_flag("layer_norm", config.layer_norm)


# Spaces


def continuous_head(
    space: Any, kind: Literal["squashed", "noisy_tanh"], *, agent: str, exploration: float = 0.0
) -> ActionHead:
    """How an actor's output becomes an action of a Box; raises `ConfigError` for a space that has no bounds."""
    dtype = getattr(space, "dtype", None)
    if type(space).__name__ != "Box" or np.dtype(dtype).kind != "f" or not np.size(space.low):
        raise ConfigError(f"action_space is {space!r}: {agent} needs a Box of floats")
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (np.asarray(bound, dtype).ravel() for bound in (space.low, space.high))
        width = high.astype(np.float32) - low.astype(np.float32)
    if not (np.isfinite(width) & (width >= 0)).all():
        raise ConfigError(
            f"action_space is {space!r}: {agent} needs finite bounds; use a Box with the range that is of use"
        )
    return ActionHead(kind, np.dtype(dtype).str, list(space.shape), low=low, high=high, exploration=exploration)


def head_by_steps(head: ActionHead, warmup_steps: int) -> Callable[[int], ActionHead]:
    """The head after so many env steps: one that explores anywhere in the bounds while warming up, then the given."""
    anywhere = msgspec.structs.replace(head, anywhere=True)
    return lambda env_steps: anywhere if env_steps < warmup_steps else head


class Seen(NamedTuple):
    """A batch as networks see it."""

    observations: jax.Array
    actions: jax.Array
    """(rows, dimensions) from -1 to 1."""
    rewards: jax.Array
    next_observations: jax.Array
    discounts: jax.Array
    weights: jax.Array | None
    noise: dict[str, Any]


def seen(batch: Any, inputs: Any, *, encoding: Encoding, head: ActionHead, reward_scale: float) -> Seen:
    """A batch encoded, normalised and scaled."""
    observations, next_observations = (
        normalise(encoding.encode(batch[name], jnp), inputs["normaliser"])
        for name in ("observations", "next_observations")
    )
    centre, reach = head.centre.astype(np.float32), head.reach.astype(np.float32)
    actions = batch["actions"].reshape(-1, centre.size).astype(jnp.float32)
    return Seen(
        observations=observations,
        actions=jnp.clip((actions - centre) / np.where(reach > 0, reach, 1), -1, 1),
        rewards=batch["rewards"] * reward_scale,
        next_observations=next_observations,
        discounts=batch["discounts"],
        weights=batch["weights"],
        noise=batch["noise"],
    )


# Networks


def _encoder(encoding: Encoding, network: Any, rng: np.random.Generator) -> Module:
    """From an observation to features: the user's network, convolutions, or nothing at all."""
    if network is not None:
        return user_network(network, encoding, rng=rng)
    return Sequential(convolutions(encoding, rng=rng) if encoding.image else [])


class ActorNetwork(eqx.Module):
    """From an observation to the numbers that an action is made of, before tanh."""

    encoder: Module
    body: Sequential

    def __init__(
        self, encoding: Encoding, outputs: int, sizes: Sequence[int], *, network: Any, rng: np.random.Generator
    ) -> None:
        self.encoder = _encoder(encoding, network, rng)
        hidden = hidden_layers(feature_size(self.encoder, encoding), sizes, rng=rng)
        self.body = Sequential([*hidden, Dense(sizes[-1], outputs, rng=rng)])

    def __call__(self, x: jax.Array) -> jax.Array:
        """The output for one observation."""
        return self.body(self.encoder(x))

    def layers(self) -> list[Layer]:
        """As data."""
        return [*layers_of(self.encoder), *layers_of(self.body)]


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


def networks(
    encoding: Encoding, config: Any, *, outputs: int, dimensions: int, network: Any, rng: np.random.Generator
) -> tuple[Weights[ActorNetwork], Weights[Critics]]:
    """An actor with so many outputs, and critics of actions with so many dimensions."""
    actor = ActorNetwork(encoding, outputs, config.hidden_sizes, network=network, rng=rng)
    critics = Critics(
        encoding,
        dimensions,
        config.hidden_sizes,
        count=config.critics,
        layer_norm=config.layer_norm,
        network=network,
        rng=rng,
    )
    return Weights(actor), Weights(critics)


# Parts of an update


def draw_pairs(rng: np.random.Generator, critics: int, count: int) -> Array | None:
    """Two different critics for each of so many updates, one pair after the other; None if there is no choice."""
    if critics <= 2:
        return None
    return rng.random((count, critics)).argsort(axis=1)[:, :2].astype(np.int32).ravel()


def in_turn(config: Any, state: LearnerState, updates: jax.Array, improve: Callable[[], LearnerState]) -> LearnerState:
    """The state after the actor's update, if it is its turn after so many updates, or as it is."""
    if config.policy_delay == 1:
        return improve()
    return jax.lax.cond(updates % config.policy_delay == 0, improve, lambda: state)


def followed(config: Any, target: Parts, newest: Parts, updates: jax.Array) -> Parts:
    """A target after so many updates: it moves by tau in every so many of them."""
    each = jax.tree_util.tree_map
    nearer = each(lambda target, newest: target + config.tau * (newest - target), target, newest)
    if config.target_update_every == 1:
        return nearer
    is_time = updates % config.target_update_every == 0
    return each(lambda nearer, target: jnp.where(is_time, nearer, target), nearer, target)
