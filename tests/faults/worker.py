"""A short, whole, deterministic training, as a user's script would be: what the fault tests kill and starve.

Run as a script, or call `train` after a fork. Whatever the session acknowledges is appended to a file outside the
run, so that a test can hold the disk against it:

    config              the config was written
    pausing             a long pause begins
    checkpoint <step>   that checkpoint is durable
    resumed <step>      this process went on from that checkpoint
    warned <text>       the session reported something that training survives
    finished            the session closed without an error
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import rekindle
from rekindle.agent import State
from rekindle.errors import StorageError
from rekindle.events import CheckpointSaved, Event, Warned
from rekindle.rng import generator_from_state, generator_state
from rekindle.spaces import ArraySpec

NAME = "walk"
STEPS = 120
CONFIG = {"env": "Walk", "agent": "Learner"}
CELLS = 7

# Fault injection wraps the functions of `os` while a training runs; acknowledging is no part of the training.
_open, _write, _close = os.open, os.write, os.close


class Walk:
    """A line of cells: reach the right end within 13 moves; the floor is slippery."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._cell = self._moves = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._rng = np.random.default_rng(seed)
        self._cell, self._moves = int(self._rng.integers(CELLS - 1)), 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        move = 1 if int(action) == 1 else -1
        if self._rng.random() < 0.3:
            move = -move
        self._cell = min(max(self._cell + move, 0), CELLS - 1)
        self._moves += 1
        reached = self._cell == CELLS - 1
        reward = 1.0 if reached else -0.1 * float(self._rng.random())
        return self._observation(), reward, reached, not reached and self._moves >= 13, {}

    def _observation(self) -> Any:
        return np.array([self._cell, self._moves], np.float32)


class Ring:
    """A replay buffer of the newest rows."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.first = self.end = 0
        self.columns = {
            "observations": ArraySpec(np.dtype("<f4"), (2,)),
            "actions": ArraySpec(np.dtype("<i8")),
            "rewards": ArraySpec(np.dtype("<f8")),
            "next_observations": ArraySpec(np.dtype("<f4"), (2,)),
            "statuses": ArraySpec(np.dtype("|u1")),
        }
        self._arrays = {
            name: np.zeros((capacity, *column.shape), column.dtype) for name, column in self.columns.items()
        }

    def append(self, rows: Mapping[str, Any]) -> None:
        for index in range(len(rows["actions"])):
            for name, array in self._arrays.items():
                array[self.end % self._capacity] = rows[name][index]
            self.end += 1
        self.first = max(self.first, self.end - self._capacity)

    def read(self, first: int, end: int) -> dict[str, Any]:
        places = np.arange(first, end) % self._capacity
        return {name: array[places] for name, array in self._arrays.items()}

    def restore(self, first: int, columns: Mapping[str, Any]) -> None:
        self.first = first
        self.end = first + len(columns["actions"])
        places = np.arange(self.first, self.end) % self._capacity
        for name, array in self._arrays.items():
            array[places] = columns[name]


class Learner:
    """Tabular Q-learning from a replay buffer: everything about it must survive for the digests to agree."""

    def __init__(self, seed: int) -> None:
        self.env_steps = self.updates = 0
        self._q = np.zeros((CELLS, 2))
        self._rng = np.random.default_rng(seed)
        self._memory = Ring(40)

    def act(self, observations: Any, mode: rekindle.ActMode, streams: Any) -> Any:
        greedy = np.argmax(self._q[observations[:, 0].astype(int)], axis=1)
        if mode is rekindle.ActMode.EXPLOIT:
            return greedy
        explores = self._rng.random(len(greedy)) < 0.4
        return np.where(explores, self._rng.integers(2, size=len(greedy)), greedy)

    def observe(self, transitions: rekindle.Transitions, streams: Any) -> None:
        self._memory.append({name: getattr(transitions, name) for name in self._memory.columns})
        self.env_steps += len(transitions)

    def updates_due(self) -> int:
        return max(self.env_steps - 10 - self.updates, 0)

    def update(self, n: int) -> dict[str, float]:
        losses: list[float] = []
        for _ in range(n):
            number = int(self._rng.integers(self._memory.first, self._memory.end))
            row = {name: column[0] for name, column in self._memory.read(number, number + 1).items()}
            cell, after = int(row["observations"][0]), int(row["next_observations"][0])
            bootstrap = 0.0 if row["statuses"] == rekindle.EpisodeStatus.TERMINATED else 0.9 * self._q[after].max()
            error = row["rewards"] + bootstrap - self._q[cell, row["actions"]]
            self._q[cell, row["actions"]] += 0.2 * error
            losses.append(float(error**2))
        self.updates += n
        return {"loss": sum(losses) / n}

    def replay(self) -> Ring:
        return self._memory

    def state(self) -> State:
        return {
            "weights": {"q": self._q.copy()},
            "rng": generator_state(self._rng),
            "env_steps": self.env_steps,
            "updates": self.updates,
        }

    def load_state(self, state: State) -> None:
        self._q = np.array(state["weights"]["q"])
        self._rng = generator_from_state(state["rng"])
        self.env_steps, self.updates = state["env_steps"], state["updates"]


class Diary:
    """An object of the host's that joins the checkpoint: it remembers how every episode began."""

    def __init__(self) -> None:
        self.cells: list[int] = []

    def state(self) -> State:
        return {"cells": np.array(self.cells, np.int64)}

    def load_state(self, state: State) -> None:
        self.cells = state["cells"].tolist()


class Acknowledgements:
    """Appends to a file outside the run, with one plain write a line."""

    def __init__(self, path: str | Path) -> None:
        self._descriptor = _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def add(self, line: str) -> None:
        _write(self._descriptor, line.replace("\n", " ").encode() + b"\n")

    def take(self, event: Event) -> None:
        """A callback for the session."""
        if isinstance(event, CheckpointSaved):
            self.add(f"checkpoint {event.stamp.env_steps}")
        elif isinstance(event, Warned):
            self.warn(event.message)

    def warn(self, message: object) -> None:
        """Warnings are many and long: a limit on the size of files may well strike here, and that is no fault."""
        with contextlib.suppress(OSError):
            self.add(f"warned {message}")

    def close(self) -> None:
        _close(self._descriptor)


def train(
    root: str | Path,
    acknowledged: str | Path,
    *,
    steps: int = STEPS,
    pause: float = 0.0,
    die_at: int | None = None,
    budget: float | None = None,
    final_score: float | None = None,
    configured: bool = False,
) -> None:
    """Start the training, or go on with it.

    `die_at` is a step at which it kills itself. With a budget, in milliseconds, it learns as much as fits after each
    step: with a large one that is as much as without, but the run counts as one that is not exact. With a final score,
    the agent of the very end is the best one. `configured` makes the run with its config, as a trainer does.
    """
    told = Acknowledgements(acknowledged)
    try:
        options: dict[str, Any] = {
            "seed": 7,
            "max_steps": steps,
            "checkpoint_every": 20,
            "metrics_every": 17,  # so that the last window is half-filled when the session closes
            "keep_checkpoints": 2,
            "callbacks": [told.take],
            "learner": "inline" if budget is None else "manual",
        }
        if configured:
            run = rekindle.TrainingRun.create_or_resume(NAME, root=root, seed=7, config=CONFIG)
            session = rekindle.TrainingSession(Learner(seed=3), run=run, **options)
        else:
            session = rekindle.TrainingSession.open(NAME, Learner(seed=3), root=root, **options)
        if budget is not None:
            session.every(1, lambda: _learn(session, budget))
        if final_score is not None:
            session.at_end(lambda: session.maybe_save_best(final_score))
        with session:
            _drive(session, told, pause, die_at)
        told.add("finished")
    finally:
        told.close()


def _drive(session: rekindle.TrainingSession, told: Acknowledgements, pause: float, die_at: int | None) -> None:
    run = session.run
    assert run is not None
    if session.resumed is not None:
        told.add(f"resumed {session.resumed.step}")
    if not run.read_config():
        run.write_config(CONFIG)
        told.add("config")
    diary = Diary()
    session.attach("diary", diary)
    session.every(25, lambda: _evaluate(session))
    env, stream = Walk(), session.stream()
    while not session.is_done:
        continues = stream.is_open
        observation = stream.reset(env)
        if not continues:
            diary.cells.append(int(observation[0]))
        action = stream.begin(observation)
        while action is not None and not session.is_done:
            if session.total_steps == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            observation, reward, terminated, truncated, _ = env.step(action)
            # Before the step, which may take a checkpoint: what is logged after it would be of the next step.
            session.log("cell", float(observation[0]))
            action = stream.step(observation, reward, terminated, truncated)
            if session.total_steps == 70:
                _checkpoint_now(session, told)
            if pause:
                if pause > 1:
                    told.add("pausing")
                time.sleep(pause)


def _learn(session: rekindle.TrainingSession, budget: float) -> None:
    session.learn(milliseconds=budget)


def _checkpoint_now(session: rekindle.TrainingSession, told: Acknowledgements) -> None:
    try:
        session.checkpoint(wait=True)
    except StorageError as error:
        told.warn(error)
    else:
        told.add(f"checkpoint {session.total_steps}")


def _evaluate(session: rekindle.TrainingSession) -> None:
    env, total = Walk(), 0.0
    observation, _ = env.reset(seed=session.total_steps)
    length, over, reached = 0, False, False
    while not over:
        action = session.act(observation, rekindle.ActMode.EXPLOIT)
        observation, reward, reached, truncated, _ = env.step(action)
        total, length, over = total + reward, length + 1, reached or truncated
    session.on_eval_episode(rekindle.EpisodeRecord(total, length, rekindle.EpisodeStatus.of(reached, not reached)))
    # Later is better: so there are several best agents, and the earlier ones are pruned.
    session.maybe_save_best(total + session.total_steps / 10)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("acknowledged")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    try:
        train(options.root, options.acknowledged, steps=options.steps, pause=options.pause)
    except rekindle.RekindleError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
