"""Run directories written row by row; as a program, a training that writes until it is stopped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rekindle import ActMode, EpisodeRecord, EpisodeStatus, Experience, State, TrainingRun, TrainingSession, Transitions

START = 1_790_000_000.0


def episode(number: int, *, reward: float | None = None, **fields: Any) -> dict[str, Any]:
    """A row of an episode log, ten steps after the one before it."""
    return {
        "env_steps": 10 * (number + 1),
        "updates": number,
        "episodes": number + 1,
        "wall_time": START + number,
        "total_reward": float(number) if reward is None else reward,
        "length": 10,
        "status": "terminated",
        "extras": {"epsilon": 0.5},
        **fields,
    }


def evaluation(number: int, *rewards: float) -> list[dict[str, Any]]:
    """The rows of one evaluation."""
    return [episode(number, reward=reward, total_steps_at_eval=10 * (number + 1)) for reward in rewards]


def window(number: int, **means: float) -> dict[str, Any]:
    """A row of the metrics log."""
    row = episode(number)
    stamp = {name: row[name] for name in ("env_steps", "updates", "episodes", "wall_time")}
    metrics = {
        name.replace("__", "/"): {"mean": mean, "min": mean - 1, "max": mean + 1, "last": mean, "count": 10}
        for name, mean in means.items()
    }
    return {**stamp, "metrics": metrics}


def write_run(
    root: Path,
    name: str = "lake",
    version: str = "v1",
    *,
    episodes: int = 20,
    reward: Callable[[int], float] = float,
    status: str = "finished",
    config: dict[str, Any] | None = None,
    seed: int = 0,
) -> Path:
    """A run that nobody writes, with so many episodes, an evaluation after each tenth, and metrics."""
    run = TrainingRun.create(name, version, root=root, seed=seed)
    for number in range(episodes):
        run.log("train_episodes").append({**episode(number, reward=reward(number)), "stream": 0})
        run.log("metrics").append(window(number, agent__loss=1 / (number + 1), episode__return=reward(number)))
        if number % 10 == 9:
            for row in evaluation(number, reward(number), reward(number) + 2):
                run.log("eval_episodes").append(row)
    if config is not None:
        run.write_config(config)
    run.update_metadata(status=status, total_steps=10 * episodes, total_episodes=episodes)
    run.close()
    return run.path


class Walker:
    """Learns nothing, slowly: enough for a session to log, checkpoint and resume."""

    def __init__(self) -> None:
        self.env_steps = self.updates = 0

    def act(self, observations: Any, mode: ActMode, streams: Any) -> Any:
        return np.zeros(len(observations), np.int64)

    def observe(self, transitions: Transitions, streams: Any) -> None:
        self.env_steps += len(transitions)

    def updates_due(self) -> int:
        return self.env_steps - self.updates

    def update(self, n: int) -> dict[str, float]:
        self.updates += n
        return {"loss": 1 / self.updates}

    def state(self) -> State:
        return {"env_steps": self.env_steps, "updates": self.updates}

    def load_state(self, state: State) -> None:
        self.env_steps, self.updates = state["env_steps"], state["updates"]


def train(root: Path, *, pause: float, checkpoint_every: int) -> None:
    """Go on with the newest unfinished run, or start one, and train until somebody asks for a stop."""
    with TrainingSession.open(
        "walk", Walker(), root=root, checkpoint_every=checkpoint_every, metrics_every=10
    ) as session:
        assert session.run is not None
        print(session.run.path, flush=True)
        while not session.is_done:
            for step in range(5):
                status = EpisodeStatus.TERMINATED if step == 4 else EpisodeStatus.CONTINUING
                at = np.full(2, step, np.float32)
                session.observe(Experience(at, session.act(at), 1.0, at + 1, status))
            session.on_episode()
            if session.episodes % 20 == 0:
                session.on_eval_episode(EpisodeRecord(5.0, 5, EpisodeStatus.TERMINATED))
            time.sleep(pause)


if __name__ == "__main__":
    train(Path(sys.argv[1]), pause=float(sys.argv[2]), checkpoint_every=int(sys.argv[3]))
