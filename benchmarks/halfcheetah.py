"""SAC on HalfCheetah beside that of Stable-Baselines3: the same settings, steps, evaluations and seeds of episodes.

    python benchmarks/halfcheetah.py                         # what is missing, two trainings at a time
    python benchmarks/halfcheetah.py --only rekindle:100     # or sb3:101
    python benchmarks/halfcheetah.py --table                 # only the table and the plot of the results so far

Ours is what `rekindle train sac HalfCheetah-v5` runs, with its checkpoints and logs; the settings are the defaults of
Stable-Baselines3, with a warm-up of 10 000 steps on both sides. Every result is appended to the file of results, and
what stands there already is not run again. `final` are 20 episodes with the final weights, greedy, with seeds that no
training has seen; on the way there are ten evaluations of ten episodes. Stable-Baselines3 is installed below
`.peers`; ours needs the extras `agents`, `mujoco` and `plot`.
"""

# The peer is not installed here, and neither Gymnasium nor matplotlib is typed.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learning import EVAL_SEEDS, FINAL_SEEDS, append_each, command_line, play, read, seeds_of
from venvs import ROOT, python_of

RESULTS = Path(__file__).parent / "results" / "halfcheetah.jsonl"
PLOT = ROOT / "docs" / "images" / "halfcheetah.svg"
ENV, STEPS, WARMUP = "HalfCheetah-v5", 100_000, 10_000
EVALUATIONS, EVAL_EPISODES, FINAL_EPISODES = 10, 10, 20
SIDES = {"rekindle": "rekindle", "sb3": "Stable-Baselines3"}
SETTINGS: dict[str, Any] = {"learning_rate": 3e-4, "gamma": 0.99, "tau": 0.005, "batch_size": 256}

Tell = Callable[[int, list[float]], None]
"""What is called with env steps and the returns of an evaluation."""
Play = Callable[[int, int], list[float]]
"""From the seed of the first episode and a number of episodes to their returns, with the final weights."""


def train_rekindle(seed: int, steps: int, tell: Tell) -> Play:
    import gymnasium as gym

    from rekindle.experience import EpisodeStatus
    from rekindle.stats import EpisodeRecord
    from rekindle.training import Evaluation, Trainer
    from rekindle.training.evaluation import greedy

    env = gym.make(ENV)

    class SameSeeds:
        """Plays the episodes that the other side plays too."""

        def evaluate(self, act: Callable[[Any], Any], episodes: int) -> Evaluation:
            returns = play(env, lambda observation: act(observation[None])[0], EVAL_SEEDS, episodes)
            tell(trainer.agent.env_steps, returns)
            records = [EpisodeRecord(value, 1000, EpisodeStatus.TRUNCATED, {}) for value in returns]
            return Evaluation(statistics.mean(returns), records)

        def close(self) -> None:
            pass

    with tempfile.TemporaryDirectory() as root:
        trainer = Trainer.from_preset(
            ENV,
            "sac",
            steps=steps,
            seed=seed,
            name="halfcheetah",
            root=root,
            agent_settings={**SETTINGS, "warmup_steps": WARMUP, "hidden_sizes": (256, 256), "capacity": 1_000_000},
            eval_every=steps // EVALUATIONS,
            eval_episodes=EVAL_EPISODES,
            evaluator=SameSeeds(),
        )
        trainer.train()
    act = greedy(trainer.agent)
    return lambda first_seed, episodes: play(env, lambda seen: act(seen[None])[0], first_seed, episodes)


def train_sb3(seed: int, steps: int, tell: Tell) -> Play:
    import gymnasium as gym
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(1)
    env = gym.make(ENV)
    model = SAC("MlpPolicy", ENV, seed=seed, learning_starts=WARMUP, device="cpu", **SETTINGS)

    def evaluate(first_seed: int, episodes: int) -> list[float]:
        return play(env, lambda seen: model.predict(seen, deterministic=True)[0], first_seed, episodes)

    def look(*_: Any) -> bool:
        if model.num_timesteps % (steps // EVALUATIONS) == 0:
            tell(model.num_timesteps, evaluate(EVAL_SEEDS, EVAL_EPISODES))
        return True

    model.learn(steps, callback=look)
    return evaluate


def train(side: str, seed: int, steps: int) -> dict[str, Any]:
    """One training, and what came of it."""
    evaluations: list[list[float]] = []

    def tell(step: int, returns: list[float]) -> None:
        evaluations.append([step, round(statistics.mean(returns), 1)])
        print(f"{side}:{seed} {step} steps: {evaluations[-1][1]}", file=sys.stderr, flush=True)

    started = time.process_time()
    final = {"rekindle": train_rekindle, "sb3": train_sb3}[side](seed, steps, tell)
    cpu_seconds = time.process_time() - started
    returns = final(FINAL_SEEDS, FINAL_EPISODES)
    return {
        "side": side,
        "steps": steps,
        "seed": seed,
        "final": round(statistics.mean(returns), 1),
        "final_std": round(statistics.stdev(returns), 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "evaluations": evaluations,
    }


def standard_error(ours: list[float], theirs: list[float]) -> float:
    """Of the difference of two means."""
    return math.sqrt(statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs))


def table(results: list[dict[str, Any]]) -> str:
    """What was reached, as Markdown."""
    lines = ["| SAC of | mean of the seeds | every seed: final | CPU a seed |", "|---|---:|---|---:|"]
    finals: dict[str, list[float]] = {}
    for side, title in SIDES.items():
        its = sorted((result for result in results if result["side"] == side), key=lambda result: result["seed"])
        finals[side] = [result["final"] for result in its]
        if its:
            seeds = ", ".join(f"{value:.0f}" for value in finals[side])
            cpu = statistics.mean(result["cpu_seconds"] for result in its)
            lines.append(f"| {title} | {statistics.mean(finals[side]):.0f} | {seeds} | {cpu / 60:.1f} min |")
    ours, theirs = finals["rekindle"], finals["sb3"]
    if min(len(ours), len(theirs)) >= 2:
        difference, error = statistics.mean(ours) - statistics.mean(theirs), standard_error(ours, theirs)
        lines += ["", f"The difference of the means is {difference:+.0f}, its standard error {error:.0f}."]
    return "\n".join(lines)


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Each seed's curve, and the mean of each side."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "rekindle", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (side, title), colour in zip(SIDES.items(), ("tab:orange", "tab:blue"), strict=True):
        curves = [result["evaluations"] for result in results if result["side"] == side]
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), color=colour, alpha=0.3, linewidth=1)
        if curves:
            steps = [step for step, _ in curves[0]]
            means = [statistics.mean(score for _, score in points) for points in zip(*curves, strict=True)]
            axes.plot(steps, means, color=colour, linewidth=2, label=f"{title}, {len(curves)} seeds")
    axes.set(xlabel="env steps", ylabel="mean return of 10 episodes", title=f"SAC on {ENV}")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = command_line(__doc__, RESULTS, seeds="100-102", only="rekindle:SEED or sb3:SEED")
    parser.add_argument("--plot", type=Path, default=PLOT)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    if options.one:
        side, _, seed = options.one.partition(":")
        print(json.dumps(train(side, int(seed), options.steps)))
        return
    if not options.table:
        there = {f"{result['side']}:{result['seed']}" for result in results_of(options.results, options.steps)}
        wanted = [options.only] if options.only else [f"{s}:{seed}" for seed in seeds_of(options.seeds) for s in SIDES]
        commands = [
            [
                sys.executable if name.startswith("rekindle:") else str(python_of("sb3")),
                __file__,
                "--one",
                name,
                "--steps",
                str(options.steps),
            ]
            for name in wanted
            if name not in there
        ]
        append_each(options.results, commands, options.jobs)
    results = results_of(options.results, options.steps)
    print(table(results))
    if results:
        plot(results, options.plot)


def results_of(path: Path, steps: int) -> list[dict[str, Any]]:
    return [result for result in read(path) if result["steps"] == steps]


if __name__ == "__main__":
    main()
