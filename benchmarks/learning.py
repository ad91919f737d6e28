"""How well the agents learn with their presets: final weights, greedy, 50 episodes that no training has seen.

    python benchmarks/learning.py                       # what is missing of the report, two seeds at a time
    python benchmarks/learning.py --table               # only the table of what is there
    python benchmarks/learning.py --seeds 0-4 --results tuning.jsonl --only dqn:CartPole-v1

Presets are tuned on seeds 0 to 4 and reported on 100 to 104, once. Every result is appended to the file of results and
what stands there already is not run again. `best` is the highest of 20 evaluations of 20 episodes on the way.
LunarLander needs `pip install gymnasium[box2d]`.
"""

# Gymnasium's environments are not typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results" / "learning.jsonl"
REPORTED = range(100, 105)
FINAL_EPISODES, EVAL_EPISODES, EVALUATIONS = 50, 20, 20
FINAL_SEEDS, EVAL_SEEDS = 1_000_000, 2_000_000
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


class Mark(NamedTuple):
    """What an algorithm should reach on an environment."""

    algorithm: str
    env_id: str
    mean: float
    steps: int
    perfect: int = 0
    """How many seeds must reach 500."""
    is_for_each: bool = False
    """Whether every seed must reach the mean."""

    def is_reached(self, results: list[dict[str, Any]]) -> bool:
        finals = [result["final"] for result in results]
        is_perfect = sum(final == 500 for final in finals) >= self.perfect
        if self.is_for_each and min(finals) < self.mean:
            return False
        return is_perfect and len(finals) == len(REPORTED) and statistics.mean(finals) >= self.mean


MARKS = [
    Mark("dqn", "CartPole-v1", 490, 50_000, perfect=4),
    Mark("ppo", "CartPole-v1", 490, 100_000, perfect=4),
    Mark("dqn", "Acrobot-v1", -100, 100_000),
    Mark("ppo", "Acrobot-v1", -100, 200_000),
    Mark("sac", "Pendulum-v1", -200, 20_000),
    Mark("td3", "Pendulum-v1", -200, 20_000),
    Mark("sac", "MountainCarContinuous-v0", 90, 30_000, is_for_each=True),
    Mark("td3", "MountainCarContinuous-v0", 90, 50_000, is_for_each=True),
    Mark("dqn", "LunarLander-v3", 180, 250_000),
    Mark("ppo", "LunarLander-v3", 200, 500_000),
]


def train(mark: Mark, seed: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """One training in a plain loop, and what came of it."""
    import gymnasium as gym
    import numpy as np

    from rekindle import EpisodeStatus, TrainingSession, Transitions, agents
    from rekindle.agents.presets import find_preset
    from rekindle.rng import episode_seed

    preset = find_preset(mark.algorithm, mark.env_id)
    if preset is None:
        raise SystemExit(f"there is no preset of {mark.algorithm} for {mark.env_id}")
    envs = [gym.make(mark.env_id) for _ in range(preset.num_envs)]
    make = getattr(agents, mark.algorithm.upper())
    agent = make(envs[0].observation_space, envs[0].action_space, seed=seed, **preset.settings(mark.steps))
    test_env = gym.make(mark.env_id)

    def evaluate(first_seed: int, episodes: int) -> list[float]:
        policy = agent.policy()
        return play(test_env, lambda observation: policy.act(observation[None])[0], first_seed, episodes)

    evaluations: list[list[float]] = []
    episodes = [0] * len(envs)
    observations = [env.reset(seed=episode_seed(seed, stream, 0))[0] for stream, env in enumerate(envs)]
    returns: list[list[float]] = []
    started = time.process_time()
    with TrainingSession(agent, seed=seed, max_steps=mark.steps, signals=False) as session:

        def look() -> None:
            scores = evaluate(EVAL_SEEDS, EVAL_EPISODES)
            evaluations.append([session.total_steps, statistics.mean(scores)])
            tell(f"{session.total_steps} steps: {evaluations[-1][1]:.1f}")

        session.every(mark.steps // EVALUATIONS, look)
        while not session.is_done:
            before = np.stack(observations)
            actions = session.act_many(before)
            after, rewards, statuses = [], [], []
            for env, action in zip(envs, actions, strict=True):
                observation, reward, terminated, truncated, _ = env.step(action)
                after.append(observation)
                rewards.append(float(reward))
                statuses.append(int(EpisodeStatus.of(terminated, truncated)))
            ended = session.observe_many(
                Transitions(before, actions, np.array(rewards), np.stack(after), np.array(statuses, np.uint8))
            )
            observations = after
            for stream in ended:
                record = session.on_episode(stream=stream)
                returns.append([session.total_steps, record.total_reward])
                episodes[int(stream)] += 1
                seed_now = episode_seed(seed, stream, episodes[int(stream)])
                observations[int(stream)] = envs[int(stream)].reset(seed=seed_now)[0]
    final = evaluate(FINAL_SEEDS, FINAL_EPISODES)
    return {
        "algorithm": mark.algorithm,
        "env": mark.env_id,
        "steps": mark.steps,
        "seed": seed,
        "final": round(statistics.mean(final), 2),
        "final_std": round(statistics.stdev(final), 2),
        "best": round(max(score for _, score in evaluations), 2),
        "cpu_seconds": round(time.process_time() - started, 1),
        "evaluations": [[step, round(score, 2)] for step, score in evaluations],
        "returns": thinned(returns, mark.steps),
    }


def play(env: Any, act: Callable[[Any], Any], first_seed: int, episodes: int) -> list[float]:
    """The return of each of so many episodes."""
    returns: list[float] = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=first_seed + episode)
        total, is_over = 0.0, False
        while not is_over:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, is_over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def thinned(returns: list[list[float]], steps: int, points: int = 50) -> list[list[float]]:
    """The mean return of the episodes that ended in each of so many parts of the training."""
    parts: dict[int, list[float]] = {}
    for step, value in returns:
        parts.setdefault(min(points - 1, int((step - 1) * points / steps)), []).append(value)
    return [[(part + 1) * steps // points, round(statistics.mean(values), 2)] for part, values in sorted(parts.items())]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(there: list[dict[str, Any]]) -> str:
    """What was reached, as Markdown."""
    lines = [
        "| agent | environment | steps | mark | mean | every seed: final (best) | CPU a seed | reached |",
        "|---|---|---:|---|---:|---|---:|---|",
    ]
    for mark in MARKS:
        results = [
            result
            for result in there
            if (result["algorithm"], result["env"], result["steps"]) == (mark.algorithm, mark.env_id, mark.steps)
        ]
        if not results:
            continue
        results.sort(key=lambda result: result["seed"])
        seeds = ", ".join(f"{result['final']:g} ({result['best']:g})" for result in results)
        mean = statistics.mean(result["final"] for result in results)
        cpu = statistics.mean(result["cpu_seconds"] for result in results)
        reached = "yes" if mark.is_reached(results) else "no" if len(results) >= len(REPORTED) else "seeds missing"
        goal = f">= {mark.mean:g}" + (f" and {mark.perfect} of {len(REPORTED)} at 500" if mark.perfect else "")
        goal += " for each seed" if mark.is_for_each else ""
        lines.append(
            f"| {mark.algorithm.upper()} | {mark.env_id} | {mark.steps:,} | {goal} | {mean:.1f} | {seeds} "
            f"| {cpu:.0f} s | {reached} |"
        )
    return "\n".join(lines)


def command_line(text: str | None, results: Path, *, seeds: str, only: str) -> argparse.ArgumentParser:
    """The options of a script that appends what each training gives, and does not run again what is there."""
    parser = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--seeds", default=seeds, help="first-last")
    parser.add_argument("--only", help=only)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--table", action="store_true", help="show what is there, and run nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    reported = f"{REPORTED[0]}-{REPORTED[-1]}"
    options = command_line(__doc__, RESULTS, seeds=reported, only="algorithm:environment").parse_args()
    if options.one:
        algorithm, env_id, seed = options.one.split(":")
        mark = next(mark for mark in MARKS if (mark.algorithm, mark.env_id) == (algorithm, env_id))
        print(json.dumps(train(mark, int(seed), lambda text: print(f"{options.one} {text}", file=sys.stderr))))
        return
    if not options.table:
        run_missing(options.results, seeds_of(options.seeds), options.only, options.jobs)
    print(table(read(options.results)))


def run_missing(path: Path, seeds: range, only: str | None, jobs: int) -> None:
    """Run what has no result yet, each training in a process with one thread."""
    there = {(result["algorithm"], result["env"], result["steps"], result["seed"]) for result in read(path)}
    missing = [
        f"{mark.algorithm}:{mark.env_id}:{seed}"
        for mark in MARKS
        for seed in seeds
        if only in (None, f"{mark.algorithm}:{mark.env_id}")
        and (mark.algorithm, mark.env_id, mark.steps, seed) not in there
    ]
    append_each(path, ([sys.executable, __file__, "--one", name] for name in missing), jobs)


def seeds_of(text: str) -> range:
    """From first to last."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def append_each(path: Path, commands: Iterable[list[str]], jobs: int) -> None:
    """Run commands, some at a time and each with one thread, and append what it prints as soon as it is done."""

    def run(command: list[str]) -> None:
        environment = {**os.environ, **ONE_THREAD}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as results:
            results.write(done.stdout)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, commands))


if __name__ == "__main__":
    main()
