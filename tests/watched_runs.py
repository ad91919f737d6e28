"""Runs to look at; as a program, a training that goes on until somebody stops it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gymnasium as gym

from rekindle import EpisodeRecord, EpisodeStatus, TrainingRun, TrainingSession
from rekindle.agents import Tabular

LENGTH = 10
"""Steps of an episode."""


class Writer:
    """Writes what a session would, without training anything."""

    def __init__(self, root: Path, name: str = "lake", *, max_steps: int | None = 1000, **config: Any) -> None:
        self.run = TrainingRun.create(name, root=root, seed=3)
        self.run.write_config({"algorithm": "q-learning", "env": {"id": "FrozenLake-v1"}, **config})
        self.run.describe("Tabular", max_steps)
        self.steps = self.episodes = 0
        self.clock = 1_700_000_000.0

    @property
    def path(self) -> Path:
        return self.run.path

    def stamp(self) -> dict[str, Any]:
        return {
            "env_steps": self.steps,
            "updates": self.steps // 2,
            "episodes": self.episodes,
            "wall_time": self.clock,
        }

    def episodes_of(self, returns: Iterable[float], **extras: float) -> None:
        for value in returns:
            self.steps += LENGTH
            self.episodes += 1
            self.clock += 1.0
            self.run.log_train_episode(EpisodeRecord(value, LENGTH, EpisodeStatus.TERMINATED, extras), self.stamp())
        self.write_out()

    def evaluation_of(self, returns: Iterable[float]) -> None:
        for value in returns:
            self.run.log_eval_episode(EpisodeRecord(value, LENGTH, EpisodeStatus.TERMINATED), self.stamp())
        self.write_out()

    def metrics_of(self, **means: float | None) -> None:
        summaries = {
            name.replace("__", "/"): {"mean": mean, "min": mean, "max": mean, "last": mean, "count": 1}
            for name, mean in means.items()
        }
        self.run.log("metrics").append({**self.stamp(), "metrics": summaries})
        self.write_out()

    def write_out(self) -> None:
        for log in ("train_episodes", "eval_episodes", "metrics"):
            self.run.log(log).write_out()

    def end(self, status: str = "finished", reason: str | None = "max_steps") -> None:
        self.run.update_metadata(
            status=status, stop_reason=reason, total_steps=self.steps, total_episodes=self.episodes
        )
        self.run.close()

    def crash(self) -> None:
        """Let go of the lock without a word, as a killed process does."""
        self.run.close()


def written(root: Path, name: str = "lake", *, episodes: int = 60) -> Writer:
    """A live run with something of everything."""
    writer = Writer(root, name, max_steps=20 * episodes)
    half = [number / episodes for number in range(episodes // 2)]
    for values in (half, [value + 0.5 for value in half]):
        writer.episodes_of(values, epsilon=0.1)
        writer.metrics_of(agent__loss=1.0 / writer.steps, time__steps_per_sec=10.0, train__depth=3.0)
        writer.evaluation_of([0.5, 1.0])
    return writer


def train_until_stopped(root: Path) -> None:
    """Train a table until somebody asks for a stop; say where."""
    env = gym.make("FrozenLake-v1")
    agent = Tabular(env.observation_space, env.action_space, seed=0)
    with TrainingSession.open(
        "lake", agent, root=root, max_steps=10**8, checkpoint_every=1000, metrics_every=100
    ) as session:
        assert session.run is not None
        print(session.run.path, flush=True)
        stream = session.stream()
        while not session.is_done:
            action = stream.begin(stream.reset(env))
            while action is not None:
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, float(reward), terminated, truncated)
                time.sleep(0.001)


if __name__ == "__main__":
    train_until_stopped(Path(sys.argv[1]))
