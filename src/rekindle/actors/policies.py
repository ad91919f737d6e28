"""Policies for actors: as data, or unchanged for actors in this process."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, TypeGuard, cast

import numpy as np

from rekindle.actors.packing import aligned, pack, packed_size, unpack, write
from rekindle.agent import HasPolicy, LearningAgent, Policy, PortablePolicy, State
from rekindle.errors import ConfigError, RekindleError, StateError
from rekindle.experience import ActMode, Array
from rekindle.spaces import ActionStructure

__all__ = [
    "Act",
    "act_of_agent",
    "act_of_policy",
    "check_portable",
    "is_packed",
    "packed_policy",
    "policy_of",
    "policy_tree",
    "refusal",
    "repacked_policy",
    "unpacked_policy",
]

_EXPLORE = ActMode.EXPLORE


class Act(Protocol):
    """Chooses an exploring action for each row of a batch, as rows of numbers."""

    def __call__(self, observations: Any, rng: np.random.Generator, streams: Array) -> Array:
        """`streams` are the rows of the training that act."""
        ...


def policy_of(agent: LearningAgent) -> Policy | None:
    """The current policy of an agent; None if it has none of its own."""
    return agent.policy() if isinstance(agent, HasPolicy) else None


def refusal(agent: LearningAgent) -> str | None:
    """Why the policy of an agent cannot act in another process; None if it can."""
    name = type(agent).__name__
    policy = policy_of(agent)
    if policy is None:
        return f"{name} has no policy()"
    kind = type(policy)
    if not isinstance(policy, PortablePolicy):
        return f"the policy of {name}, {kind.__name__}, is code and not data: it has no state() and from_state()"
    if kind.__module__ == "__main__" or "<" in kind.__qualname__:
        return f"{kind.__qualname__} is defined in a script or function, where another process cannot import it"
    return None


def packed_policy(policy: PortablePolicy) -> Array:
    """A policy as bytes."""
    kind = type(policy)
    packed = pack({"class": [kind.__module__, kind.__qualname__], "state": policy.state()})
    data = aligned(packed_size(packed))
    write(packed, data)
    return data


def is_packed(policy: Any) -> TypeGuard[Array]:
    """Whether a policy is bytes, and not code."""
    return isinstance(policy, np.ndarray)


def unpacked_policy(data: Array) -> Policy:
    """The policy in the bytes of `packed_policy`; its arrays are views of them."""
    tree = unpack(data)
    module, name = tree["class"]
    kind: Any = importlib.import_module(module)
    for part in name.split("."):
        kind = getattr(kind, part)
    return cast("type[PortablePolicy]", kind).from_state(tree["state"])


def policy_tree(data: Array) -> State:
    """The state of a policy, for a checkpoint."""
    return unpack(data)["state"]


def repacked_policy(tree: State, agent: LearningAgent) -> Array:
    """A policy as bytes, from a checkpoint.

    Its class is that of the agent's own policy, never one that a file names. Raises `StateError`.
    """
    policy = policy_of(agent)
    if not isinstance(policy, PortablePolicy):
        raise StateError(f"the checkpoint has a policy, but {type(agent).__name__} has none that is data")
    try:
        again = type(policy).from_state(tree)
    except (RekindleError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise StateError(f"not the state of a {type(policy).__name__}: {error}") from None
    return packed_policy(cast("PortablePolicy", again))


def act_of_policy(policy: Policy, structure: ActionStructure | None) -> Act:
    """Act with a policy, and the generator of the actor."""

    def act(observations: Any, rng: np.random.Generator, streams: Array) -> Array:
        actions = policy.act(observations, _EXPLORE, rng)
        return actions if structure is None else structure.flat(actions, "actions", rows=len(streams))

    return act


def act_of_agent(agent: LearningAgent) -> Act:
    """Act with an agent that has no policy of its own; it draws its random numbers itself."""

    def act(observations: Any, rng: np.random.Generator, streams: Array) -> Array:  # noqa: ARG001
        return agent.act(observations, _EXPLORE, streams)

    return act


def check_portable(agent: LearningAgent, where: str) -> None:
    """Raise `ConfigError` if the agent cannot train with actors in other processes."""
    if (reason := refusal(agent)) is not None:
        raise ConfigError(
            f"actors on {where} act with a policy that is data, but {reason}. Use --actors-on here, with "
            "--vectorization async for environments in other processes"
        )
