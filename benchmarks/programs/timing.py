"""What every program of `benchmarks/peers.py` is asked to do, and how it is timed."""

from __future__ import annotations

import json
import os
import resource
import time
from typing import NamedTuple


class Case(NamedTuple):
    """A training; settings that are the same in all cases stand in the programs."""

    title: str
    algorithm: str
    env_id: str
    warmup: int
    """Env steps before the first update."""
    first: int
    """Env steps before the clock starts: everything has been compiled and has learned by then."""
    steps: int
    """Env steps in all."""
    num_envs: int = 1
    is_atari: bool = False
    """With the usual preprocessing: 4 frames a step, 84 x 84 gray, 4 frames stacked, the sign of rewards."""
    peers: tuple[str, ...] = ("sb3", "sbx", "cleanrl")


CASES = {
    "dqn": Case("DQN, CartPole-v1", "dqn", "CartPole-v1", warmup=1_000, first=2_000, steps=32_000),
    "ppo": Case("PPO, CartPole-v1", "ppo", "CartPole-v1", warmup=0, first=8_192, steps=73_728, num_envs=8),
    "pendulum": Case("SAC, Pendulum-v1", "sac", "Pendulum-v1", warmup=500, first=1_000, steps=3_000),
    "halfcheetah": Case("SAC, HalfCheetah-v5", "sac", "HalfCheetah-v5", warmup=500, first=1_000, steps=3_000),
    "dqn-pong": Case(
        "DQN, ALE/Pong-v5", "dqn", "ALE/Pong-v5", warmup=500, first=600, steps=2_600, is_atari=True, peers=("sb3",)
    ),
    "ppo-pong": Case(
        "PPO, ALE/Pong-v5",
        "ppo",
        "ALE/Pong-v5",
        warmup=0,
        first=1_024,
        steps=4_096,
        num_envs=8,
        is_atari=True,
        peers=("sb3",),
    ),
}


def keep_to_one_processor() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def cpu_seconds() -> float:
    """CPU time of this process, all of its threads, and of child processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Stopwatch:
    """Starts with the first step after so many."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._started: tuple[int, float] | None = None

    def look(self, env_steps: int) -> None:
        """Say how many env steps there were."""
        if self._started is None and env_steps > self._first:
            self._started = (env_steps, cpu_seconds())

    def report(self, env_steps: int) -> None:
        """Print the CPU time of an env step since the start, in microseconds."""
        if self._started is None:
            raise SystemExit(f"the clock never started: there were {env_steps} of {self._first} steps")
        first, started = self._started
        print(json.dumps({"cpu_us": round(1e6 * (cpu_seconds() - started) / (env_steps - first), 2)}))
