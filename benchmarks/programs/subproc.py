"""Steps per second of Stable-Baselines3 with a SubprocVecEnv: of PPO, or of the environments alone; prints JSON."""

# Runs in an environment of its own: see benchmarks/venvs.py.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import timed_worlds
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv


class Clock(BaseCallback):
    """Counts steps after so many seconds, until so many more have passed."""

    def __init__(self, skip: float, seconds: float) -> None:
        super().__init__()
        self._skip, self._seconds = skip, seconds
        self._began = self._first = 0.0
        self.rate = 0.0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        # Between two rollouts, so that as much was learned as was played.
        now, steps = time.perf_counter(), self.num_timesteps
        self._began = self._began or now
        if not self._first and now - self._began > self._skip:
            self._first, self._steps = now, steps
        elif self._first and now - self._first > self._seconds:
            self.rate = (steps - self._steps) / (now - self._first)

    def _on_rollout_end(self) -> None:
        if self.rate:
            raise KeyboardInterrupt


def make(name: str) -> Any:
    return gymnasium.make(name) if name.endswith("-v1") else getattr(timed_worlds, name)()


def learning(given: dict[str, Any], envs: Any) -> float:
    clock = Clock(given["skip"], given["seconds"])
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=given["rollout_steps"] // given["envs"],
        batch_size=given["minibatch_size"],
        n_epochs=given["epochs"],
        policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.Tanh},
        device="cpu",
    )
    with contextlib.suppress(KeyboardInterrupt):
        model.learn(10**9, callback=clock)
    return clock.rate


def idle(given: dict[str, Any], envs: Any) -> float:
    envs.reset()
    actions = np.zeros(given["envs"], np.int64)
    for _ in range(20):
        envs.step(actions)
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < given["seconds"]:
        envs.step(actions)
        steps += given["envs"]
    return steps / (time.perf_counter() - began)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    vector = SubprocVecEnv([lambda: make(given["env"])] * given["envs"], start_method="spawn")
    rate = (learning if given["learns"] else idle)(given, vector)
    vector.close()
    print(json.dumps({"rate": rate}))
