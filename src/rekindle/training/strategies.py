"""Strategies: the training loop of a trainer. All support checkpoints, metrics, evaluations, stops and resumes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from rekindle.envs import Envs
from rekindle.session.session import TrainingSession
from rekindle.training.sampling import Round, Sampler

__all__ = ["Components", "Strategy", "Synchronous"]


class Components(NamedTuple):
    """The objects that a strategy works with."""

    session: TrainingSession
    envs: Envs
    sampler: Sampler


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
