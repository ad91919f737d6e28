"""What actors gain, and what their transport costs.

    python benchmarks/actors.py [sleep compute transport dqn peers]

Cases are interleaved and repeated; a ratio is the median of the ratios of each repeat. Starting processes and compiling
are not measured. The agent does nothing where the environment is measured.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from rekindle import Trainer
from rekindle.actors import ActorProcesses, Cast, Order, RoundShape
from rekindle.actors.policies import packed_policy
from rekindle.actors.rounds import first_start, next_starts
from rekindle.agent import PortablePolicy
from rekindle.agents import DQN
from rekindle.envs import Determinism, EnvFactory

REPEATS = 3
Case = Callable[[], float]


def rates(training: Trainer, *, skip: float, seconds: float) -> float:
    """Env steps per second of wall time, from the moment at which so many seconds have passed since the first step."""
    began = first = 0.0
    steps_at_first = 0
    for step in training.steps():
        now = time.perf_counter()
        if not began:
            began = now
        if not first and now - began > skip:
            first, steps_at_first = now, step.total_steps
        if first and now - first > seconds:
            return (step.total_steps - steps_at_first) / (now - first)
    raise AssertionError("the training ended too early")


def idle(env: str, *, workers: int, actors: int = 4, round_steps: int = 32, seconds: float = 4.0) -> float:
    """Env steps per second of an agent that does nothing."""
    training = Trainer(
        f"actor_worlds:{env}",
        "actor_worlds:IdleAgent",
        actors=actors,
        round_steps=round_steps,
        workers=workers,
        determinism="repeats",
        eval_episodes=0,
        checkpoint_every=None,
    )
    return rates(training, skip=0.5, seconds=seconds)


def transport(round_transitions: int) -> float:
    """Microseconds of the learner's CPU time a transition: to send a policy, and to receive a round."""
    factory = EnvFactory("CartPole-v1")
    env = factory()
    actors, steps = 4, round_transitions // 8
    shape = RoundShape.of(env.observation_space, env.action_space, actors=actors, envs_each=2, steps=steps)
    agent = DQN(env.observation_space, env.action_space, seed=0)
    crew = ActorProcesses(Cast(factory, shape, 0, Determinism.REPEATS), workers=2)
    try:
        starts = [first_start(0, actor, 2) for actor in range(actors)]
        spent: list[float] = []
        for number in range(30):
            policy = cast("PortablePolicy", agent.policy())
            before = time.process_time()
            crew.start(Order(number, 0, packed_policy(policy), None, starts))
            spent.append(time.process_time() - before)
            time.sleep(0.15)  # let them play: waiting would be counted as polling
            before = time.process_time()
            arrays, ends = crew.collect()
            starts = next_starts(starts, arrays, ends, shape)
            spent[-1] += time.process_time() - before
    finally:
        crew.close()
    return min(spent[5:]) * 1e6 / shape.transitions  # other work on the machine only ever adds


def lander(**options: Any) -> float:
    """Env steps per second of DQN on LunarLander."""
    training = Trainer(
        "LunarLander-v3",
        "dqn",
        agent_settings={"warmup_steps": 500, "update_every": 4, "updates_each": 1},
        determinism="repeats",
        eval_episodes=0,
        **options,
    )
    return rates(training, skip=3.0, seconds=8.0)


def subproc(env: str, count: int, seconds: float = 4.0) -> float:
    """Env steps per second of Stable-Baselines3's SubprocVecEnv, with actions that are always 0."""
    import numpy as np
    from actor_worlds import Computing, Sleeping
    from stable_baselines3.common.vec_env import SubprocVecEnv

    made: Any = {"Sleeping": Sleeping, "Computing": Computing}[env]
    envs: Any = SubprocVecEnv([made] * count, start_method="spawn")
    try:
        envs.reset()
        actions = np.zeros(count, np.int64)
        for _ in range(20):
            envs.step(actions)
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            envs.step(actions)
            steps += count
        return steps / (time.perf_counter() - began)
    finally:
        envs.close()


def compared(cases: dict[str, Case], *, base: str) -> Iterator[tuple[str, float, float]]:
    """Each case with its median, and the median of its ratios to the base."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(REPEATS):
        for name, case in cases.items():
            found[name].append(case())
    for name, values in found.items():
        ratios = [value / other for value, other in zip(values, found[base], strict=True)]
        yield name, statistics.median(values), statistics.median(ratios)


def main(wanted: list[str]) -> None:
    """Print one table for each group of cases."""
    console = Console()
    groups: dict[str, tuple[str, str, dict[str, Case]]] = {
        "sleep": (
            "an environment that waits 5 ms",
            "1 process",
            {"1 process": lambda: idle("Sleeping", workers=1), "4 processes": lambda: idle("Sleeping", workers=4)},
        ),
        "compute": (
            "an environment that computes 1 ms",
            "1 process",
            {"1 process": lambda: idle("Computing", workers=1), "2 processes": lambda: idle("Computing", workers=2)},
        ),
        "dqn": (
            "DQN on LunarLander, 8 environments",
            "Synchronous",
            {
                "Synchronous": lambda: lander(num_envs=8),
                "2 processes, pipeline 1": lambda: lander(actors=4, envs_each=2, round_steps=32, workers=2),
            },
        ),
    }
    if importlib.util.find_spec("stable_baselines3") is not None:
        groups["peers"] = (
            "beside Stable-Baselines3, 4 environments that wait 5 ms",
            "SubprocVecEnv",
            {
                "SubprocVecEnv": lambda: subproc("Sleeping", 4),
                "4 processes": lambda: idle("Sleeping", workers=4),
            },
        )
    console.print(f"{os.cpu_count()} processors")
    for name, (title, base, cases) in groups.items():
        if wanted and name not in wanted:
            continue
        table = Table(title=title)
        for column in ("", "steps/s", f"x {base}"):
            table.add_column(column, justify="left" if not column else "right")
        for case, rate, ratio in compared(cases, base=base):
            table.add_row(case, f"{rate:,.0f}", f"{ratio:.2f}")
        console.print(table)
    if not wanted or "transport" in wanted:
        for transitions in (1024, 4096):
            console.print(f"transport, rounds of {transitions}: {transport(transitions):.2f} us of CPU a transition")


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    main(sys.argv[1:])
