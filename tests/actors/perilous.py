"""An environment that does to its process what a test asks for, once, and the trainings that survive it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import env_worlds
import numpy as np
from toys import ToyAgent

import rekindle
from rekindle import Trainer
from rekindle.envs import EnvFactory
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer
from rekindle.policy.policy import NetworkPolicy


class Perilous(env_worlds.Path):
    """The walk; a file such as `kill`, `hang` or `raise` in the directory is taken by the first step that sees it."""

    def __init__(self, *, directory: str, limit: int = 12) -> None:
        super().__init__(limit=limit)
        self._directory = Path(directory)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        for peril in os.listdir(self._directory):
            try:
                os.unlink(self._directory / peril)
            except FileNotFoundError:  # another took it
                continue
            _suffer(peril.partition("-")[0])
        # What a test process has imported itself says nothing.
        libraries = (
            0.0
            if "pytest" in sys.modules
            else float(sum(name in sys.modules for name in ("jax", "jaxlib", "optax", "equinox", "torch")))
        )
        return observation, reward, terminated, truncated, {**info, "libraries": libraries}


def _suffer(peril: str) -> None:
    match peril:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            time.sleep(3600)
        case "exit":
            os._exit(3)
        case "leave":
            sys.exit(3)
        case _:
            raise ZeroDivisionError("by nothing")


class Deadly(env_worlds.Path):
    """Kills its process in the third step."""

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        if self._steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


class Linear(ToyAgent):
    """Its weights depend on everything that it has seen, and so does its policy."""

    def __init__(self, observation_space: Any, action_space: Any, *, seed: int) -> None:
        super().__init__(seed, steps_per_update=8)
        self.observation_space, self.action_space = observation_space, action_space

    def policy(self) -> NetworkPolicy:
        weight = np.zeros((2, 2), np.float32)
        weight[:, 1] = self._weights[:2]
        layer = Layer("dense", {"weight": weight, "bias": np.zeros(2, np.float32)})
        head = ActionHead("softmax", "<i8", [], [2], [0], exploration=float(1 + abs(self._weights[2])))
        return NetworkPolicy(Encoding.of(self.observation_space), [layer], head, algorithm="linear")


def trainer(root: Path, perils: Path, **options: Any) -> Trainer:
    """A training of 30 rounds with 4 actors."""
    perils.mkdir(exist_ok=True)
    known: dict[str, Any] = {
        "steps": 30 * 4 * 2 * 5,
        "name": "t",
        "root": root,
        "actors": 4,
        "envs_each": 2,
        "round_steps": 5,
        "workers": 2,
        "determinism": "repeats",
        "eval_every": 300,
        "eval_episodes": 2,
        "metrics_every": 200,
        "checkpoint_every": 250,
        "seed": 5,
    }
    env = EnvFactory(Perilous, arguments={"directory": str(perils)})
    agent = options.pop("agent", "perilous:Linear")
    return Trainer(options.pop("env", env), agent, **{**known, **options})


def digests(root: Path) -> dict[str, str | None]:
    """Of the run of `trainer`."""
    found = rekindle.verify(root / "t")
    assert found.ok
    assert found.grade == "exact"
    return found.digests


__all__ = ["Deadly", "Linear", "Perilous", "digests", "trainer"]
