"""Kill learners and actors at random moments, resume elsewhere, and compare digests, for docs/how-to/scale.md.

    python benchmarks/actor_campaign.py [ROUNDS]

Every algorithm and pipeline is trained once without disturbance, here. Then it is trained on 1, 2 and 4 processes, and
once more with a learner that is killed at random moments and resumed on another placement each time, while its actors
are killed too. All must end with the same digests.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from rekindle import verify
from rekindle.checkpoint.store import list_steps
from rekindle.run.finding import find_runs

PLACES: list[dict[str, Any]] = [
    {"actors_on": "here"},
    {"workers": 1},
    {"workers": 2},
    {"workers": 4},
]
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "PPO on CartPole": ("ppo", "CartPole-v1", {"rollout_steps": 512, "minibatch_size": 64}),
    "DQN on CartPole": ("dqn", "CartPole-v1", {"warmup_steps": 300, "update_every": 4}),
    "SAC on Pendulum": ("sac", "Pendulum-v1", {"warmup_steps": 300, "update_every": 8, "hidden_sizes": [32]}),
    "SAC on BipedalWalker": ("sac", "BipedalWalker-v3", {"warmup_steps": 300, "update_every": 8, "hidden_sizes": [32]}),
}
STEPS = 4_000
KILLS = 4

PROGRAM = """
import sys, msgspec
from rekindle import Trainer
env, agent, options = msgspec.json.decode(sys.argv[1])
Trainer(env, agent, **options).train()
"""


def start(case: str, pipeline: int, root: Path, place: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a training, or go on with it."""
    agent, env, settings = CASES[case]
    options = {
        "steps": STEPS,
        "name": "t",
        "root": str(root),
        "actors": 4,
        "envs_each": 2,
        "round_steps": 32,
        "pipeline": pipeline,
        "checkpoint_every": 500,
        "eval_every": 2_000,
        "eval_episodes": 2,
        "metrics_every": 500,
        "agent_settings": settings,
        **place,
    }
    command = [sys.executable, "-c", PROGRAM, msgspec.json.encode([env, agent, options]).decode()]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def digests(root: Path) -> dict[str, str | None]:
    found = verify(root / "t")
    assert found.ok, found.problems
    assert found.grade == "exact"
    return found.digests


def workers_of(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task/{process}/children")
    try:
        return [int(child) for child in children.read_text().split()]
    except FileNotFoundError:
        return []


def newest(root: Path) -> int:
    runs = find_runs(root)
    return max(list_steps(runs[-1] / "checkpoints"), default=0) if runs else 0


def disturbed(case: str, pipeline: int, root: Path, chance: random.Random) -> tuple[int, int]:
    """Kill learners and actors until the training ends; returns how many of both."""
    learners = actors = 0
    while True:
        process = start(case, pipeline, root, chance.choice(PLACES))
        goal = newest(root) + chance.randrange(1, 1_500)
        is_killed = learners < KILLS
        while process.poll() is None:
            time.sleep(chance.uniform(0.05, 0.5))
            workers = workers_of(process.pid)
            if workers and chance.random() < 0.3 and newest(root):
                try:
                    os.kill(chance.choice(workers), signal.SIGKILL)
                    actors += 1
                except ProcessLookupError:
                    pass
            if is_killed and newest(root) >= goal:
                process.kill()
                learners += 1
        process.wait()
        if process.returncode == 0:
            return learners, actors
        assert process.returncode == -signal.SIGKILL or is_killed, f"it failed with {process.returncode}"


def main(rounds: int) -> None:
    """Print a line for each case."""
    for number in range(rounds):
        for case in CASES:
            for pipeline in (0, 1):
                chance = random.Random(f"{number} {case} {pipeline}")
                with tempfile.TemporaryDirectory() as directory:
                    places = [*PLACES]
                    for index, place in enumerate(places):
                        assert start(case, pipeline, Path(directory) / str(index), place).wait() == 0
                    expected = digests(Path(directory) / "0")
                    same = all(digests(Path(directory) / str(index)) == expected for index in range(1, len(places)))
                    learners, actors = disturbed(case, pipeline, Path(directory) / "killed", chance)
                    is_exact = digests(Path(directory) / "killed") == expected
                print(
                    f"{case}, pipeline {pipeline}: {'same' if same else 'OTHER'} digests on {len(places)} placements; "
                    f"{'same' if is_exact else 'OTHER'} after {learners} killed learners and {actors} killed actors",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
