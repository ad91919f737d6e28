"""How well the agents learn with their presets: final weights, greedy, 50 episodes that no training has seen.

    python benchmarks/learning.py                       # what is missing of the report, two seeds at a time
    python benchmarks/learning.py --table               # only the table of the results so far
    python benchmarks/learning.py --seeds 0-19 --results tuning.jsonl --only dqn:CartPole-v1:50000

Presets are chosen on seeds 0 to 99 and reported, once, on the seeds of `MARKS`. Every result is appended to the file of
results and what stands there already is not run again. `best` is the highest of the evaluations on the way, each of 20
episodes. LunarLander needs `pip install gymnasium[box2d]`.

Some presets are reported beside Stable-Baselines3, which is trained with the settings of RL Zoo, on the same seeds and
for the same steps: `--only sb3:dqn:MountainCar-v0:120000`. It is installed below `.peers`.
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

from venvs import python_of

RESULTS = Path(__file__).parent / "results" / "learning.jsonl"
FINAL_EPISODES, EVAL_EPISODES = 50, 20
FINAL_SEEDS, EVAL_SEEDS = 1_000_000, 2_000_000
Result = dict[str, Any]
OURS, THEIRS = "", "sb3:"
"""What the name of a training begins with."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


class AtLeast(NamedTuple):
    """A number of seeds must have this final return."""

    seeds: int
    final: float

    def __str__(self) -> str:
        return f"{self.seeds} seeds >= {self.final:g}"

    def is_reached(self, results: list[Result]) -> bool:
        return sum(result["final"] >= self.final for result in results) >= self.seeds


class Mean(NamedTuple):
    """The mean of the final returns of all seeds."""

    final: float

    def __str__(self) -> str:
        return f"mean >= {self.final:g}"

    def is_reached(self, results: list[Result]) -> bool:
        return statistics.mean(result["final"] for result in results) >= self.final


class Worst(NamedTuple):
    """The final return of every seed."""

    final: float

    def __str__(self) -> str:
        return f"worst >= {self.final:g}"

    def is_reached(self, results: list[Result]) -> bool:
        return min(result["final"] for result in results) >= self.final


class Holds(NamedTuple):
    """A number of seeds must reach a return in an evaluation, and from then on have a least one in all of them."""

    seeds: int
    reached: float
    least: float

    def __str__(self) -> str:
        return f"{self.seeds} seeds never below {self.least:g} after their first {self.reached:g}"

    def is_reached(self, results: list[Result]) -> bool:
        lows = [lowest_after(result, self.reached) for result in results]
        return sum(low is not None and low >= self.least for low in lows) >= self.seeds


class Mark(NamedTuple):
    """What an algorithm should reach on an environment."""

    algorithm: str
    env_id: str
    steps: int
    goals: tuple[AtLeast | Mean | Worst | Holds, ...]
    seeds: range = range(100, 105)
    """Those of the report."""
    evaluations: int = 20
    beside: bool = False
    """Whether Stable-Baselines3 is trained too, with the same seeds and steps, and there is no other goal."""

    @property
    def name(self) -> str:
        return f"{self.algorithm}:{self.env_id}:{self.steps}"

    def results(self, there: list[Result], side: str = OURS) -> list[Result]:
        """Those of the report, by seed."""
        name = f"{side}{self.name}"
        mine = [result for result in there if name_of(result) == name and result["seed"] in self.seeds]
        return sorted(mine, key=lambda result: result["seed"])


MARKS = [
    Mark("dqn", "CartPole-v1", 50_000, (Mean(490), AtLeast(18, 475)), range(1000, 1020), evaluations=10),
    Mark("ppo", "CartPole-v1", 100_000, (Mean(490), AtLeast(8, 500)), range(1000, 1010)),
    Mark("ppo", "CartPole-v1", 1_000_000, (Holds(9, 500, 400),), range(1000, 1010), evaluations=40),
    Mark("dqn", "Acrobot-v1", 100_000, (Mean(-100),)),
    Mark("ppo", "Acrobot-v1", 200_000, (Mean(-100),)),
    Mark("sac", "Pendulum-v1", 20_000, (Mean(-200),)),
    Mark("td3", "Pendulum-v1", 20_000, (Mean(-200),)),
    Mark("sac", "MountainCarContinuous-v0", 30_000, (Worst(90),)),
    Mark("td3", "MountainCarContinuous-v0", 50_000, (Worst(90),)),
    Mark("dqn", "MountainCar-v0", 120_000, (), range(1000, 1005), evaluations=12, beside=True),
    Mark("ppo", "BipedalWalker-v3", 2_000_000, (), range(1000, 1005), evaluations=10, beside=True),
    Mark("sac", "Hopper-v5", 200_000, (), range(1000, 1003), evaluations=10, beside=True),
    Mark("dqn", "MinAtar/Breakout-v1", 1_000_000, (), range(1000, 1003), evaluations=10, beside=True),
    Mark("dqn", "MinAtar/SpaceInvaders-v1", 1_000_000, (), range(1000, 1003), evaluations=10, beside=True),
    Mark("dqn", "LunarLander-v3", 250_000, (Mean(180),)),
    Mark("dqn", "LunarLander-v3", 500_000, (Mean(200), Worst(150)), range(1000, 1005), evaluations=10),
    Mark("ppo", "LunarLander-v3", 1_000_000, (Worst(200),), range(1000, 1010), evaluations=10),
    Mark("iqn", "CartPole-v1", 50_000, (Mean(490),), range(1000, 1005), evaluations=10),
    Mark("qr-dqn", "CartPole-v1", 50_000, (Mean(490),), range(1000, 1005), evaluations=10),
    Mark("iqn", "LunarLander-v3", 250_000, (Mean(200), Worst(150)), range(1000, 1005), evaluations=10),
    Mark("qr-dqn", "LunarLander-v3", 250_000, (Mean(200), Worst(150)), range(1000, 1005), evaluations=10),
]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qr-dqn": ("dqn", {"atoms": 1, "quantiles": 50, "max_grad_norm": None}),
}
"""Algorithms that are settings of another one, on top of its preset."""


def name_of(result: Result) -> str:
    side = f"{result['side']}:" if "side" in result else OURS
    return f"{side}{result['algorithm']}:{result['env']}:{result['steps']}"


def lowest_after(result: Result, reached: float) -> float | None:
    """The lowest evaluation from the first that reached a return, or None if none did."""
    scores = [score for _, score in result["evaluations"]]
    first = next((index for index, score in enumerate(scores) if score >= reached), None)
    return None if first is None else min(scores[first:])


def train_sb3(mark: Mark, seed: int, tell: Callable[[str], None]) -> Result:
    """One training of Stable-Baselines3 with RL Zoo's settings, evaluated as ours is."""
    from programs import sb3_learning

    test_env = sb3_learning.make_env(mark.env_id)
    evaluations: list[list[float]] = []
    returns: list[list[float]] = []

    def look(step: int, act: Callable[[Any], Any]) -> None:
        evaluations.append([step, statistics.mean(play(test_env, act, EVAL_SEEDS, EVAL_EPISODES))])
        tell(f"{step} steps: {evaluations[-1][1]:.1f}")

    started = time.process_time()
    act = sb3_learning.train(
        mark.algorithm,
        mark.env_id,
        mark.steps,
        seed,
        look_every=mark.steps // mark.evaluations,
        look=look,
        on_episode=lambda step, total: returns.append([step, total]),
    )
    final = play(test_env, act, FINAL_SEEDS, FINAL_EPISODES)
    cpu_seconds = time.process_time() - started
    return {"side": "sb3", **result_of(mark, seed, final, evaluations, returns, cpu_seconds)}


def train(mark: Mark, seed: int, tell: Callable[[str], None]) -> Result:
    """One training in a plain loop, and what came of it."""
    import numpy as np

    from rekindle import EpisodeStatus, TrainingSession, Transitions, agents
    from rekindle.agents.presets import find_preset
    from rekindle.envs import EnvFactory
    from rekindle.rng import episode_seed

    algorithm, changes = VARIANTS.get(mark.algorithm, (mark.algorithm, {}))
    preset = find_preset(algorithm, mark.env_id)
    if preset is None:
        raise SystemExit(f"there is no preset of {mark.algorithm} for {mark.env_id}")
    factory = EnvFactory(mark.env_id, **preset.env)
    envs = [factory() for _ in range(preset.num_envs)]
    make, settings = getattr(agents, algorithm.upper()), {**preset.settings(mark.steps), **changes}
    agent = make(envs[0].observation_space, envs[0].action_space, seed=seed, **settings)
    test_env = factory(training=False)

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

        session.every(mark.steps // mark.evaluations, look)
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
    return result_of(mark, seed, final, evaluations, returns, time.process_time() - started)


def result_of(
    mark: Mark,
    seed: int,
    final: list[float],
    evaluations: list[list[float]],
    returns: list[list[float]],
    cpu_seconds: float,
) -> Result:
    """What is kept of a training."""
    return {
        "algorithm": mark.algorithm,
        "env": mark.env_id,
        "steps": mark.steps,
        "seed": seed,
        "final": round(statistics.mean(final), 2),
        "final_std": round(statistics.stdev(final), 2),
        "best": round(max(score for _, score in evaluations), 2),
        "cpu_seconds": round(cpu_seconds, 1),
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


def read(path: Path) -> list[Result]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(there: list[Result]) -> str:
    """What was reached, as Markdown."""
    lines = [
        "| agent | environment | steps | mark | mean | every seed: final (best) | CPU a seed | reached |",
        "|---|---|---:|---|---:|---|---:|---|",
    ]
    for mark in MARKS:
        results = mark.results(there)
        if not results or not mark.goals:
            continue
        seeds = ", ".join(f"{result['final']:g} ({result['best']:g})" for result in results)
        mean = statistics.mean(result["final"] for result in results)
        cpu = statistics.mean(result["cpu_seconds"] for result in results)
        is_reached = all(goal.is_reached(results) for goal in mark.goals)
        reached = "seeds missing" if len(results) < len(mark.seeds) else "yes" if is_reached else "no"
        lines.append(
            f"| {mark.algorithm.upper()} | {mark.env_id} | {mark.steps:,} | {' and '.join(map(str, mark.goals))} "
            f"| {mean:.1f} | {seeds} | {cpu:.0f} s | {reached} |"
        )
    return "\n".join(lines)


def beside_table(there: list[Result]) -> str:
    """Our presets and Stable-Baselines3 with the settings of RL Zoo, on the same seeds and steps, as Markdown."""
    lines = [
        "| agent | environment | steps | side | mean | every seed: final (best) | CPU a seed | missing |",
        "|---|---|---:|---|---:|---|---:|---|",
    ]
    for mark in MARKS:
        if mark.goals:
            continue
        for side, title in ((OURS, "rekindle"), (THEIRS, "Stable-Baselines3"))[: 2 if mark.beside else 1]:
            results = mark.results(there, side)
            seeds = ", ".join(f"{result['final']:g} ({result['best']:g})" for result in results)
            missing = [seed for seed in mark.seeds if seed not in {result["seed"] for result in results}]
            mean = f"{statistics.mean(result['final'] for result in results):.1f}" if results else ""
            cpu = f"{statistics.mean(result['cpu_seconds'] for result in results):.0f} s" if results else ""
            named = "all" if len(missing) == len(mark.seeds) else ", ".join(f"seed {seed}" for seed in missing)
            of = f"{mark.algorithm.upper()} | {mark.env_id} | {mark.steps:,}"
            lines.append(f"| {of} | {title} | {mean} | {seeds} | {cpu} | {named} |")
    return "\n".join(lines)


def held_table(there: list[Result]) -> str:
    """Whether trainings kept what they had reached, as Markdown."""
    lines = [
        "| agent | environment | steps | seed | first at | lowest after | final |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for mark in MARKS:
        for goal in mark.goals:
            if not isinstance(goal, Holds):
                continue
            for result in mark.results(there):
                low = lowest_after(result, goal.reached)
                first = next((step for step, score in result["evaluations"] if score >= goal.reached), None)
                lines.append(
                    f"| {mark.algorithm.upper()} | {mark.env_id} | {mark.steps:,} | {result['seed']} "
                    f"| {'never' if first is None else f'{first:,}'} | {'' if low is None else f'{low:g}'} "
                    f"| {result['final']:g} |"
                )
    return "\n".join(lines)


def command_line(text: str | None, results: Path, *, seeds: str | None, only: str) -> argparse.ArgumentParser:
    """The options of a script that appends what each training gives, and does not run again what is there."""
    parser = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument(
        "--seeds", default=seeds, help="first-last" if seeds else "first-last; those of the report if not given"
    )
    parser.add_argument("--only", help=only)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--table", action="store_true", help="show the results so far, and run nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    options = command_line(__doc__, RESULTS, seeds=None, only="algorithm:environment:steps").parse_args()
    if options.one:
        name, _, seed = options.one.rpartition(":")
        mark = next(mark for mark in MARKS if mark.name == name.removeprefix(THEIRS))
        run = train_sb3 if name.startswith(THEIRS) else train
        print(json.dumps(run(mark, int(seed), lambda text: print(f"{options.one} {text}", file=sys.stderr))))
        return
    if not options.table:
        seeds = None if options.seeds is None else seeds_of(options.seeds)
        run_missing(options.results, seeds, options.only, options.jobs)
    print(table(read(options.results)))
    print(held_table(read(options.results)))
    print(beside_table(read(options.results)))


def run_missing(path: Path, seeds: range | None, only: str | None, jobs: int) -> None:
    """Run what has no result yet, each training in a process with one thread."""
    there = {f"{name_of(result)}:{result['seed']}" for result in read(path)}
    names = [f"{side}{mark.name}" for mark in MARKS for side in ([OURS, THEIRS] if mark.beside else [OURS])]
    wanted = {
        name: seeds or mark.seeds
        for mark in MARKS
        for name in names
        if only in (None, name) and name.removeprefix(THEIRS) == mark.name
    }
    missing = [f"{name}:{seed}" for name, own in wanted.items() for seed in own if f"{name}:{seed}" not in there]
    append_each(path, ([interpreter_of(name), __file__, "--one", name] for name in missing), jobs)


def interpreter_of(name: str) -> str:
    """Ours, or that of Stable-Baselines3, which is installed below `.peers` if it is not there yet."""
    return str(python_of("sb3")) if name.startswith(THEIRS) else sys.executable


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
