"""How well agents learn from images: PPO on CarRacing with four stacked colour frames, and DQN on Pong.

    python benchmarks/image_learning.py car-racing           # train, or go on with an interrupted training
    python benchmarks/image_learning.py pong --so-far        # only append the curve of an unfinished run
    python benchmarks/image_learning.py --table              # only the tables of the results so far

CarRacing has the discrete action space of five actions, and 12 channels of 96 x 96 pixels. Pong has the usual
preprocessing, and settings from the preset. A training is a run below `--runs`: a kill costs the steps since its last
checkpoint. Every evaluation is of five episodes with the greedy policy. At the end, the learning curve is appended to
the file of results. It needs the extras `agents`, `box2d` and `atari`.
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

RESULTS = Path(__file__).parent / "results" / "image_learning.jsonl"
STEPS = {"car-racing": 100_000, "pong": 1_000_000}
EVALUATIONS = {"car-racing": 10, "pong": 20}
ENVS = {"car-racing": "CarRacing-v3", "pong": "ALE/Pong-v5"}
CAR_RACING: dict[str, Any] = {
    "learning_rate": Linear(3e-4, 0.0, STEPS["car-racing"]),
    "rollout_steps": 1_024,
    "minibatch_size": 128,
    "epochs": 4,
    "entropy_coef": 0.01,
    "normalise_rewards": True,
}


def train(case: str, seed: int, root: Path) -> None:
    """Train, or go on with the training of this seed."""
    options: dict[str, Any] = {
        "steps": STEPS[case],
        "seed": seed,
        "name": f"{case}/seed-{seed}",
        "root": root,
        "checkpoint_every": STEPS[case] // 20,
        "eval_every": STEPS[case] // EVALUATIONS[case],
        "eval_episodes": 5,
    }
    if case == "pong":
        Trainer.from_preset(ENVS[case], "dqn", **options).train()
    else:
        env = EnvFactory(ENVS[case], arguments={"continuous": False}, frame_stack=4)
        Trainer(env, "ppo", num_envs=8, agent_settings=CAR_RACING, **options).train()


def result(case: str, seed: int, root: Path) -> dict[str, Any]:
    """The learning curve of a run, finished or not."""
    reader = RunReader(root / case / f"seed-{seed}")
    evaluations: dict[int, list[float]] = {}
    for episode in reader.eval_episodes():
        evaluations.setdefault(episode["total_steps_at_eval"], []).append(episode["total_reward"])
    returns = [[episode["env_steps"], episode["total_reward"]] for episode in reader.train_episodes()]
    return {
        "algorithm": "dqn" if case == "pong" else "ppo",
        "env": ENVS[case],
        "steps": reader.metadata.total_steps,
        "seed": seed,
        "evaluations": [[step, round(statistics.mean(scores), 1)] for step, scores in evaluations.items()],
        "returns": thinned(returns, STEPS[case]),
    }


def table(results: list[dict[str, Any]]) -> str:
    """The evaluations of every seed of each environment, as Markdown."""
    return "\n\n".join(_table([found for found in results if found["env"] == env]) for env in _envs(results))


def _envs(results: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(found["env"] for found in results))


def _table(results: list[dict[str, Any]]) -> str:
    steps = sorted({step for found in results for step, _ in found["evaluations"]})
    lines = ["| env steps | " + " | ".join(f"{step:,}" for step in steps) + " |", "|---" + "|---:" * len(steps) + "|"]
    for found in results:
        scores = dict(found["evaluations"])
        shown = " | ".join(f"{scores[step]:.0f}" if step in scores else "" for step in steps)
        lines.append(f"| return, seed {found['seed']} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", nargs="?", choices=[*STEPS])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the run is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--so-far", action="store_true", help="append the curve of an unfinished run")
    parser.add_argument("--table", action="store_true", help="show the results so far, and run nothing")
    options = parser.parse_args()
    if not options.table:
        if options.case is None:
            parser.error(f"give one of {', '.join(STEPS)}, or --table")
        if not options.so_far:
            train(options.case, options.seed, options.runs)
        with options.results.open("a") as results:
            results.write(json.dumps(result(options.case, options.seed, options.runs)) + "\n")
    print(table(read(options.results)))


if __name__ == "__main__":
    main()
