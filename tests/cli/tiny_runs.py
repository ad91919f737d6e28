"""A tiny agent, and runs made with it; as a program, a session that trains until somebody stops it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from rekindle import ActMode, EpisodeRecord, EpisodeStatus, Experience, State, TrainingRun, TrainingSession, Transitions

EPISODE = 5
"""Steps in an episode."""


class Averager:
    """Learns the mean reward, and always does the same: enough to be trained, saved and restored."""

    def __init__(self) -> None:
        self.env_steps = self.updates = 0
        self.mean = np.zeros(4)

    def act(self, observations: Any, mode: ActMode, streams: Any) -> Any:
        return np.zeros(len(observations), np.int64)

    def observe(self, transitions: Transitions, streams: Any) -> None:
        self.env_steps += len(transitions)
        self.mean = self.mean + 0.1 * (transitions.rewards[-1] - self.mean)

    def updates_due(self) -> int:
        return self.env_steps - self.updates

    def update(self, n: int) -> dict[str, float]:
        self.updates += n
        return {"loss": float(1 - self.mean[0])}

    def state(self) -> State:
        return {"weights": {"mean": self.mean.copy()}, "env_steps": self.env_steps, "updates": self.updates}

    def load_state(self, state: State) -> None:
        self.mean = np.array(state["weights"]["mean"])
        self.env_steps, self.updates = state["env_steps"], state["updates"]


def play_episode(session: TrainingSession, *, reward: float = 1.0) -> None:
    """One episode in a world that counts its steps."""
    for step in range(EPISODE):
        observation = np.full(2, step, np.float32)
        is_last = step == EPISODE - 1
        status = EpisodeStatus.TERMINATED if is_last else EpisodeStatus.CONTINUING
        session.observe(Experience(observation, session.act(observation), reward, observation + 1, status))
    session.on_episode(extras={"speed": 0.5})


def evaluate(session: TrainingSession, *returns: float) -> None:
    """Log an evaluation of these returns."""
    for value in returns:
        session.on_eval_episode(EpisodeRecord(value, EPISODE, EpisodeStatus.TERMINATED))
    session.maybe_save_best(sum(returns) / len(returns))


def open_session(run: TrainingRun, **options: Any) -> TrainingSession:
    """A session that logs and checkpoints often enough for a short test."""
    return TrainingSession(
        Averager(), run=run, **{"checkpoint_every": 10, "metrics_every": 10, "signals": False, **options}
    )


def make_run(
    root: Path, name: str = "tiny", version: str = "v1", *, episodes: int = 4, reward: float = 1.0, **config: Any
) -> Path:
    """A finished run of so many episodes; each gives five times the reward."""
    run = TrainingRun.create(name, version, root=root)
    run.write_config({"algorithm": "averager", **config})
    with open_session(run) as session:
        for _ in range(episodes):
            play_episode(session, reward=reward)
        session.stop("enough", complete=True)
    return run.path


def train_until_stopped(root: Path) -> None:
    """Go on with the newest unfinished run, or start one, and train until somebody asks for a stop."""
    with TrainingSession.open("tiny", Averager(), root=root, checkpoint_every=10, metrics_every=10) as session:
        assert session.run is not None
        resumed = "nothing" if session.resumed is None else f"step {session.resumed.step}, {session.resumed.grade}"
        print(f"training {session.run.path} from {resumed}", flush=True)
        while not session.is_done:
            play_episode(session)
            time.sleep(0.01)


if __name__ == "__main__":
    train_until_stopped(Path(sys.argv[1]))
