"""PPO on CarRacing with four stacked colour frames: how well an agent learns from 12 channels of 96 x 96 pixels.

    python benchmarks/car_racing.py                          # train, or go on with an interrupted training
    python benchmarks/car_racing.py --table                  # only the table of what is there

The action space is the discrete one of five actions. A training is a run below `--runs`: a kill costs the steps since
its last checkpoint, at most 5 000. Every evaluation is of five episodes with the greedy policy. At the end, the
learning curve is appended to the file of results; with `--so-far`, the curve of an unfinished run is. It needs the
extras `agents` and `box2d`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from learning import read, thinned

from rekindle.agents import Linear
from rekindle.envs import EnvFactory
from rekindle.run.reader import RunReader
from rekindle.training import Trainer

RESULTS = Path(__file__).parent / "results" / "car_racing.jsonl"
ENV, STEPS, NUM_ENVS = "CarRacing-v3", 100_000, 8
SETTINGS: dict[str, Any] = {
    "learning_rate": Linear(3e-4, 0.0, STEPS),
    "rollout_steps": 1_024,
    "minibatch_size": 128,
    "epochs": 4,
    "entropy_coef": 0.01,
    "normalise_rewards": True,
}


def train(seed: int, root: Path) -> None:
    """Train, or go on with the training of this seed."""
    Trainer(
        EnvFactory(ENV, arguments={"continuous": False}, frame_stack=4),
        "ppo",
        steps=STEPS,
        seed=seed,
        name=f"car-racing/seed-{seed}",
        root=root,
        num_envs=NUM_ENVS,
        agent_settings=SETTINGS,
        checkpoint_every=5_000,
        eval_every=STEPS // 10,
        eval_episodes=5,
    ).train()


def result(seed: int, root: Path) -> dict[str, Any]:
    """The learning curve of a run, finished or not."""
    reader = RunReader(root / "car-racing" / f"seed-{seed}")
    evaluations: dict[int, list[float]] = {}
    for episode in reader.eval_episodes():
        evaluations.setdefault(episode["total_steps_at_eval"], []).append(episode["total_reward"])
    returns = [[episode["env_steps"], episode["total_reward"]] for episode in reader.train_episodes()]
    return {
        "algorithm": "ppo",
        "env": ENV,
        "steps": reader.metadata.total_steps,
        "seed": seed,
        "evaluations": [[step, round(statistics.mean(scores), 1)] for step, scores in evaluations.items()],
        "returns": thinned(returns, STEPS),
    }


def table(results: list[dict[str, Any]]) -> str:
    """The evaluations of every seed, as Markdown."""
    steps = sorted({step for found in results for step, _ in found["evaluations"]})
    lines = ["| env steps | " + " | ".join(f"{step:,}" for step in steps) + " |", "|---" + "|---:" * len(steps) + "|"]
    for found in results:
        scores = dict(found["evaluations"])
        shown = " | ".join(f"{scores[step]:.0f}" if step in scores else "" for step in steps)
        lines.append(f"| return, seed {found['seed']} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the run is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--so-far", action="store_true", help="append the curve of an unfinished run")
    parser.add_argument("--table", action="store_true", help="show what is there, and run nothing")
    options = parser.parse_args()
    if not options.table:
        if not options.so_far:
            train(options.seed, options.runs)
        with options.results.open("a") as results:
            results.write(json.dumps(result(options.seed, options.runs)) + "\n")
    print(table(read(options.results)))


if __name__ == "__main__":
    main()
