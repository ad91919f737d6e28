"""Strategies: which loop a trainer uses. Checkpoints, metrics, evaluations, stops and resumes come with each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from rekindle.envs import Envs
from rekindle.session.session import TrainingSession
from rekindle.training.sampling import Round, Sampler

__all__ = ["Components", "Strategy", "Synchronous"]


class Components(NamedTuple):
    """What a strategy works with, ready to use."""

    session: TrainingSession
    envs: Envs
    sampler: Sampler


class Strategy(Protocol):
    """A loop of training."""

    def train_loop(self, components: Components) -> Iterator[Round]:
        """Train until `session.is_done`, and yield after each round."""
        ...


class Synchronous:
    """Act, step, learn, in turns: on- and off-policy alike, and exact."""

    def train_loop(self, components: Components) -> Iterator[Round]:
        """Train until `session.is_done`, and yield after each round."""
        session, sample = components.session, components.sampler.sample
        while not session.is_done:
            yield sample()
