"""Trainings of the command line, killed at random instants and started again, end as if nothing had happened."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rekindle.checkpoint.store import list_steps
from rekindle.run.finding import find_runs
from rekindle.training import ALGORITHMS


class World(NamedTuple):
    env: str
    actions: str
    options: tuple[str, ...] = ()
    needs: str | None = None
    table: bool = False
    """Whether its observations are few enough for a table."""


WORLDS = {
    "cartpole": World("CartPole-v1", "Discrete"),
    "lake": World("FrozenLake-v1", "Discrete", table=True),
    "pendulum": World("Pendulum-v1", "Box"),
    "lander": World("LunarLander-v3", "Discrete", needs="Box2D"),
    "continuous lander": World("LunarLander-v3", "Box", ("--env.arguments", "continuous", "true"), "Box2D"),
    "walker": World("BipedalWalker-v3", "Box", (), "Box2D"),
    "composite": World("env_worlds:Both", "Dict"),
    "camera": World("env_worlds:Camera", "Discrete"),
    "cheetah": World("HalfCheetah-v5", "Box", (), "mujoco"),
}
VECTORS = {
    "one": (),
    "four": ("--num-envs", "4"),
    "workers": ("--num-envs", "2", "--vectorization", "async", "--workers", "2"),
}
SETTINGS = {
    "tabular": ("--agent.capacity", "300", "--agent.replay-updates", "2"),
    "dqn": (
        *("--agent.hidden-sizes", "16", "--agent.capacity", "400", "--agent.warmup-steps", "200"),
        *("--agent.update-every", "4", "--agent.epsilon-steps", "900", "--agent.n-step", "2"),
    ),
    "ppo": (
        *("--agent.hidden-sizes", "16", "--agent.rollout-steps", "100", "--agent.minibatch-size", "50"),
        *("--agent.epochs", "2", "--agent.normalise-observations", "--agent.normalise-rewards"),
    ),
    "sac": (
        *("--agent.hidden-sizes", "16", "--agent.capacity", "400", "--agent.warmup-steps", "200"),
        *("--agent.update-every", "4", "--agent.batch-size", "32", "--agent.normalise-observations"),
    ),
    "td3": (
        *("--agent.hidden-sizes", "16", "--agent.capacity", "400", "--agent.warmup-steps", "200"),
        *("--agent.update-every", "4", "--agent.batch-size", "32", "--agent.n-step", "2"),
        *("--agent.noise", "ou"),
    ),
    "iqn": (
        *("--agent.hidden-sizes", "16", "--agent.capacity", "400", "--agent.warmup-steps", "200"),
        *("--agent.update-every", "4", "--agent.epsilon-steps", "900", "--agent.quantiles", "4"),
    ),
}
STEPS = 1_200
TRAINING = (
    *("--preset", "none", "--steps", str(STEPS), "--seed", "11", "--checkpoint-every", "150", "--metrics-every", "130"),
    *("--eval-every", "400", "--eval-episodes", "2", "--env.max-episode-steps", "60"),
)
QUICK = {
    ("tabular", "lake", "workers"),
    ("ppo", "composite", "four"),
    ("dqn", "camera", "four"),
    ("sac", "walker", "one"),
}
"""Every kind of vector, and every algorithm that is not made of the parts of others; `make test-all` has the rest."""


def cases() -> Iterator[Any]:
    for algorithm, known in ALGORITHMS.items():
        if algorithm in ("bc", "awac", "iql"):  # they learn from data: see test_offline_trainings.py
            continue
        for name, world in WORLDS.items():
            if world.actions not in known.actions or (algorithm == "tabular" and not world.table):
                continue
            for vector in VECTORS:
                is_quick = (algorithm, name, vector) in QUICK
                marks = [pytest.mark.slow if is_quick else pytest.mark.exhaustive, pytest.mark.timeout(600)]
                if world.needs is not None and importlib.util.find_spec(world.needs) is None:
                    marks.append(pytest.mark.skip(reason=f"{world.needs} is not installed"))
                yield pytest.param(algorithm, world, vector, marks=marks, id=f"{algorithm}-{name}-{vector}")


class Training:
    """One run, and the command that starts it or goes on with it."""

    def __init__(self, root: Path, algorithm: str, world: World, vector: str = "one") -> None:
        self._root = root
        root.mkdir()
        self._command = [
            *(sys.executable, "-m", "rekindle", "train", algorithm, world.env, *TRAINING, *world.options),
            *(*VECTORS[vector], *SETTINGS.get(algorithm, ()), "--resume", "auto", "--name", "run", "--runs", str(root)),
            *("--ui", "none", "--json"),
        ]
        # What compiles less is quicker to start; it is the same for all. What is compiled is kept where no other test
        # looks for it, as a kill may leave half of it.
        self._environment = {
            **os.environ,
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
            "JAX_COMPILATION_CACHE_DIR": str(root.parent / "compiled"),
        }
        places = (str(Path(__file__).parents[1] / "envs"), os.environ.get("PYTHONPATH"))
        self._environment["PYTHONPATH"] = os.pathsep.join(place for place in places if place)

    def start(self, **variables: str) -> subprocess.Popen[str]:
        environment = {**self._environment, **variables}
        return subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def finish(self) -> None:
        process = self.start()
        _, errors = process.communicate()
        assert process.returncode == 0, errors

    @property
    def newest(self) -> int:
        """The step of the newest checkpoint."""
        runs = find_runs(self._root)
        return max(list_steps(runs[-1] / "checkpoints"), default=0) if runs else 0

    def kill(self, *, after: int, pause: float) -> bool:
        """Start, wait for a checkpoint of more than this many steps, and a little, then kill; False if it had ended."""
        process = self.start()
        while self.newest <= after and process.poll() is None:
            time.sleep(0.005)
        time.sleep(pause)
        process.kill()
        _, errors = process.communicate()
        assert process.returncode in (0, -9), errors
        return process.returncode == -9

    def verify(self) -> dict[str, Any]:
        command = [sys.executable, "-m", "rekindle", "verify", str(self._root / "run"), "--json"]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(("algorithm", "world", "vector"), list(cases()))
def test_killed_at_random_instants_it_ends_as_if_it_had_not_been(
    tmp_path: Path, algorithm: str, world: World, vector: str
) -> None:
    whole, killed = (Training(tmp_path / name, algorithm, world, vector) for name in ("whole", "killed"))
    whole.finish()
    instants = random.Random(f"{algorithm} {world.env} {vector}")
    kills = 0
    for after in (0, instants.randrange(150, 600)):
        kills += killed.kill(after=after, pause=instants.uniform(0, 0.05))
    # And once more in the middle of going on, whenever that is.
    kills += killed.kill(after=-1, pause=instants.uniform(0, 1.5))
    assert kills >= 1, "it was too quick to be killed"
    killed.finish()
    found, expected = killed.verify(), whole.verify()
    assert found["ok"]
    assert found["grade"] == expected["grade"] == "exact"
    assert found["digests"] == expected["digests"]


@pytest.mark.slow
def test_killed_in_the_middle_of_a_resume_twice_it_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    deadly = World("env_worlds:Deadly", "Discrete", ("--determinism", "repeats", "--checkpoint-every", "130"))
    whole, killed = (Training(tmp_path / name, "tabular", deadly) for name in ("whole", "killed"))
    whole.finish()
    checkpoints: list[int] = []
    # First on the way, when the checkpoint of step 260 is durable or the next one too; then while the 20 or 30 steps
    # of the open episode are repeated.
    for step in (400, 7, 15):
        process = killed.start(DEADLY_STEP=str(step))
        _, errors = process.communicate()
        assert process.returncode == -9, errors
        checkpoints.append(killed.newest)
    assert checkpoints in ([260] * 3, [390] * 3)
    killed.finish()
    found, expected = killed.verify(), whole.verify()
    assert (found["grade"], found["digests"]) == ("exact", expected["digests"])
