"""Strategies: the training loop of a trainer. All support checkpoints, metrics, evaluations, stops and resumes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from rekindle.envs import Envs
from rekindle.errors import ConfigError
from rekindle.session.session import TrainingSession
from rekindle.training.actor_sampling import ActorSampler
from rekindle.training.free_sampling import FreeSampler
from rekindle.training.sampling import Round, Sampler

__all__ = ["Actors", "Components", "NoSampler", "Offline", "Strategy", "Synchronous"]

_ROUND = 50
"""Updates of a round. Rounds end at its multiples, so that a resume makes the same: a batch of several updates is drawn
at once, and schedules advance with rounds. They also end where anything is due, such as a checkpoint."""


class Components(NamedTuple):
    """The objects that a strategy works with."""

    session: TrainingSession
    envs: Envs | None
    """The environments; None if the agent learns from data alone."""
    sampler: Sampler
    """Steps the environments."""


class NoSampler:
    """The sampler of an agent that learns from data alone."""

    def sample(self) -> Round:
        """Raise `ConfigError`."""
        raise ConfigError("the agent learns from data alone, so there is no environment to step: use Offline")


class Strategy(Protocol):
    """A training loop."""

    def train_loop(self, components: Components) -> Iterator[Round]:
        """Train until `session.is_done`, and yield after each round."""
        ...


class Synchronous:
    """Act, step and learn in turn; for on-policy and off-policy agents, and exact."""

    def train_loop(self, components: Components) -> Iterator[Round]:
        """Train until `session.is_done`, and yield after each round."""
        session, sample = components.session, components.sampler.sample
        while not session.is_done:
            yield sample()


class Actors(msgspec.Struct, frozen=True, kw_only=True):
    """Logical actors play rounds with the policies of the agent; exact wherever they run.

    The actors, their environments, seeds and generators are part of the training; where they run is not.
    """

    actors: int
    envs_each: int = 1
    """Environments of each actor."""
    round_steps: int | None = None
    """Steps that each environment makes in a round; None for about 64, so that rounds fill a rollout."""
    pipeline: Literal[0, 1] = 1
    """1: a round is played while the agent learns from the one before. 0: they take turns."""
    free: bool = False
    """Play on without rounds, each actor with the newest policy; not exact."""
    on: Literal["here", "processes", "ray"] = "processes"
    workers: int | None = None
    """Worker processes; None for one per processor."""
    ray_address: str | None = None
    """The address of a running Ray cluster; None to start one here."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a trainer with this strategy."""
        fields = msgspec.structs.asdict(self)
        return {"actors_on": fields.pop("on"), **fields}

    def train_loop(self, components: Components) -> Iterator[Round]:
        """Train until `session.is_done` after a round, and yield after each step of all environments."""
        sampler = components.sampler
        if not isinstance(sampler, ActorSampler | FreeSampler):
            raise ConfigError("the strategy Actors needs the sampler of the trainer: use Synchronous with your own")
        yield from sampler.steps()


class Offline:
    """Make updates of an agent that learns from data alone; exact."""

    def train_loop(self, components: Components) -> Iterator[Round]:
        """Train until `session.is_done`, and yield an empty round after each round of updates."""
        session = components.session
        while not session.is_done:
            session.learn(updates=_ROUND - session.total_steps % _ROUND)
            yield Round((), (), (), {})
