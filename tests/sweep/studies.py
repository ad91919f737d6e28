"""A small study of the tabular agent; as a program, the process that runs it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

from rekindle.envs import Determinism, EnvSettings
from rekindle.run.finding import find_runs
from rekindle.storage.logs import read_rows
from rekindle.sweep import StudySettings, built_in_space, parse_space, run_study
from rekindle.training import TrainerSettings
from rekindle.verification import verify


class Roundabout(gymnasium.Env[Any, Any]):
    """Places in a circle, with a reward for each action at each place; some settings learn it, and others do not."""

    observation_space = Discrete(12)
    action_space = Discrete(4)
    rewards = np.random.default_rng(7).random((12, 4)) ** 2

    def __init__(self, fault: str = "none") -> None:
        self._fault = fault

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._steps = int(self.np_random.integers(12)), 0
        return self._place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(self.rewards[self._place, action])
        if self._fault == "raise":
            raise RuntimeError("the engine broke down")
        if self._fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        self._place = (self._place + int(action) + int(self.np_random.integers(1, 3))) % 12
        self._steps += 1
        return self._place, reward, False, self._steps == 10, {}


def small_study(trials: int = 8, **settings: Any) -> StudySettings:
    """A study whose runs take a fraction of a second, and some of whose trials are pruned."""
    training: dict[str, Any] = {
        "seed": 1,
        "steps": 160,
        "eval_every": 40,
        "eval_episodes": 2,
        "eval_envs": 1,
        "checkpoint_every": 40,
        "keep_checkpoints": 1,
        "metrics_every": 80,
        "determinism": Determinism.REPEATS,
    }
    own = {name: settings.pop(name) for name in list(settings) if name in TrainerSettings.__struct_fields__}
    return StudySettings(
        **{
            "algorithm": "tabular",
            "env": EnvSettings(id="studies:Roundabout"),
            "training": TrainerSettings(**{**training, **own}),
            "space": built_in_space("tabular"),
            "trials": trials,
            "ahead": 2,
            **settings,
        }
    )


def cartpole_study(trials: int) -> StudySettings:
    """A study of DQN on CartPole, long enough that it learns in some trials."""
    return StudySettings(
        algorithm="dqn",
        env=EnvSettings(id="CartPole-v1"),
        training=TrainerSettings(
            steps=1_500,
            eval_every=500,
            eval_episodes=3,
            eval_max_steps=200,
            checkpoint_every=500,
            keep_checkpoints=1,
            determinism=Determinism.REPEATS,
        ),
        agent={"warmup_steps": 200, "capacity": 5_000, "hidden_sizes": [32], "update_every": 4},
        space=parse_space(
            """
            [agent]
            learning_rate = { low = 1e-4, high = 1e-2, log = true }
            batch_size = { choice = [16, 64] }
            n_step = { choice = [1, 3] }
            """
        ),
        trials=trials,
        prune_at=(0.4,),
    )


def results(study: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The log without times, and the digests of every run."""
    rows = read_rows(study / "trials.jsonl")
    for row in rows:
        row.pop("wall_time")
    runs = find_runs(study)
    assert len({run.parent for run in runs}) == len(runs)
    return rows, {run.parent.name: verify(run).digests for run in runs}


if __name__ == "__main__":
    sys.modules["studies"] = sys.modules["__main__"]
    path, kind, trials, jobs = sys.argv[1:]
    run_study(path, (cartpole_study if kind == "cartpole" else small_study)(int(trials)), jobs=int(jobs))
