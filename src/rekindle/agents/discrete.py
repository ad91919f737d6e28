"""Parts shared by DQN and IQN: the target network, epsilon-greedy and softmax exploration, the base of the agents."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from rekindle.agents.acting import Actor, device_of
from rekindle.agents.configs import DiscreteConfig
from rekindle.agents.networks import noise_size
from rekindle.agents.offpolicy import OffPolicyAgent
from rekindle.agents.settings import Linear, encoding_of, generators
from rekindle.agents.updates import OffPolicyUpdate
from rekindle.agents.weights import Parts, Weights
from rekindle.agents.xla import wrapped
from rekindle.errors import ConfigError
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding
from rekindle.spaces import ActionStructure

__all__ = ["DiscreteAgent", "updated_target"]

Config = TypeVar("Config", bound=DiscreteConfig)


def updated_target(config: DiscreteConfig, target: Parts, newest: Parts, updates: jax.Array) -> Parts:
    """The target network after an update: with `tau` a soft update, otherwise a copy every `target_update_every`."""
    each = jax.tree_util.tree_map
    if config.tau is None:
        is_time = updates % config.target_update_every == 0
        return each(lambda newest, target: jnp.where(is_time, newest, target), newest, target)
    return each(lambda newest, target: target + config.tau * (newest - target), newest, target)


class _MakesUpdate(Protocol):
    def __call__(self, config: Any, weights: Weights[Any], /, *, noise_size: int, first_action: int) -> OffPolicyUpdate:
        """The update step of a network; `first_action` is the first value of the action space, in 32 bits."""
        ...


class DiscreteAgent(OffPolicyAgent[Config]):
    """An off-policy agent with a network for the values of discrete actions."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        config: Config,
        network: Callable[[Encoding, int, np.random.Generator], eqx.Module],
        update: _MakesUpdate,
        values: Callable[[Any, jax.Array, jax.Array | None], jax.Array],
        *,
        seed: int,
        passes: int = 1,
    ) -> None:
        """`network` makes a network for a number of actions; `values(network, x, noise)` are the values of all actions.

        `passes` is how many forward passes one observation costs.
        """
        initial, exploring, sampling = generators(seed)
        head = _head(action_space, config, agent=type(self).__name__)
        actions = head.counts[0]
        encoding = encoding_of(observation_space, config, actions=actions)
        made = network(encoding, actions, initial)
        weights, noise = Weights(made), noise_size(made)
        super().__init__(
            observation_space,
            action_space,
            config,
            update(config, weights, noise_size=noise, first_action=wrapped(head.starts[0])),
            Actor(
                weights,
                encoding,
                values,
                noise_size=noise,
                passes=passes,
                device=device_of(config.acting_device, "acting_device"),
            ),
            encoding=encoding,
            head=_head_by_steps(head, config),
            reports=lambda env_steps: {config.exploration: config.explores(env_steps)},
            exploring=exploring,
            sampling=sampling,
        )

    @property
    def exploration(self) -> float:
        """The current epsilon, or the current softmax temperature."""
        return self.config.explores(self.env_steps)


def _head(space: Any, config: DiscreteConfig, *, agent: str) -> ActionHead:
    if not (hasattr(space, "n") and hasattr(space, "start") and getattr(space, "shape", None) == ()):
        other = "; use PPO for composite actions" if ActionStructure.of(space) is not None else ""
        raise ConfigError(f"action_space is {space!r}: {agent} needs a Discrete space{other}")
    kind = "greedy" if config.exploration == "epsilon" else "softmax"
    return ActionHead(kind, np.dtype(space.dtype).str, [], [int(space.n)], [int(space.start)])


def _head_by_steps(head: ActionHead, config: DiscreteConfig) -> Callable[[int], ActionHead]:
    """The head as a function of env steps; it is replaced only when exploration changes."""
    if config.exploration == "epsilon":
        settled_from = int(config.epsilon_steps)
    else:
        settled_from = int(config.temperature.steps) if isinstance(config.temperature, Linear) else 0

    @functools.lru_cache(maxsize=1)
    def exploring(exploration: float) -> ActionHead:
        return msgspec.structs.replace(head, exploration=exploration)

    settled = msgspec.structs.replace(head, exploration=config.explores(settled_from))
    return lambda env_steps: settled if env_steps >= settled_from else exploring(config.explores(env_steps))
