"""The env steps of a training, one by one, for a loop over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rekindle.experience import EpisodeStatus
from rekindle.session.session import TrainingSession
from rekindle.training.sampling import Round

__all__ = ["Step", "steps_of"]


class Step(NamedTuple):
    """One env step of a training."""

    total_steps: int
    """Env steps so far, including the whole round."""
    stream: int
    """The row of the environment."""
    episode: int
    """The number of the episode in its stream, from 0."""
    episode_step: int
    """Steps of the episode so far."""
    reward: float
    episode_reward: float
    """The return of the episode so far."""
    status: EpisodeStatus
    exploration: float | None
    """The current exploration rate, if the agent reports it."""

    @property
    def is_done(self) -> bool:
        """Whether the episode ended with this step."""
        return self.status.is_done


def steps_of(made: Round, session: TrainingSession) -> Iterator[Step]:
    """The steps of a round, row by row."""
    for row, reward, status in zip(made.rows, made.rewards, made.statuses, strict=True):
        stream, record = session.stream(row), made.records.get(row)
        yield Step(
            session.total_steps,
            row,
            stream.episode - 1 if record else stream.episode,
            record.length if record else stream.length,
            float(reward),
            record.total_reward if record else stream.total_reward,
            EpisodeStatus(int(status)),
            getattr(session.agent, "exploration", None),
        )
