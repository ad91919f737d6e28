"""Kill learners, actors and nodes at random moments, resume elsewhere, and compare digests, for docs/how-to/scale.md.

    python benchmarks/actor_campaign.py                         # what is missing
    python benchmarks/actor_campaign.py --minutes 4             # begin no step after so long
    python benchmarks/actor_campaign.py --only "PPO on CartPole" --steps actors,stopped
    python benchmarks/actor_campaign.py --table                 # only the table of the results so far

Every case is a small training with 4 actors of 2 environments. It is trained once without disturbance, `here`; all
other trainings of the case must end with the same digests. Each step has a deadline: a training that hangs is a
failure. Results are appended to a file, and results that exist are not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
from learning import RESULTS, read

from rekindle import verify

Place = dict[str, Any]
HERE: Place = {"actors_on": "here"}
RAY: Place = {"actors_on": "ray", "workers": 2}
PLACES: dict[str, Place] = {
    "here": HERE,
    "1 process": {"workers": 1},
    "2 processes": {"workers": 2},
    "4 processes": {"workers": 4},
    "Ray": RAY,
}
SAC = {"warmup_steps": 300, "update_every": 8, "hidden_sizes": [32], "batch_size": 64}
PPO = {"rollout_steps": 512, "minibatch_size": 64, "epochs": 4}
TRAININGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "PPO on CartPole": ("ppo", "CartPole-v1", PPO),
    "DQN on CartPole": ("dqn", "CartPole-v1", {"warmup_steps": 300, "update_every": 8}),
    "SAC on Pendulum": ("sac", "Pendulum-v1", SAC),
    "PPO on BipedalWalker": ("ppo", "BipedalWalker-v3", PPO),
    "SAC on BipedalWalker": ("sac", "BipedalWalker-v3", SAC),
    "PPO on Pendulum": ("ppo", "Pendulum-v1", PPO),
}
STEPS = 5_120
ROUND = 4 * 2 * 8
ROUNDS = STEPS // ROUND
DEADLINE = 400.0
"""Seconds that one life of a training may take; on a busy machine a life of 10 s takes a minute."""
LEARNERS, ACTORS = 4, 50
"""How many are killed in a training."""

PROGRAM = """
import os, sys, time, msgspec
from rekindle import Trainer
env, agent, options, progress, pause = msgspec.json.decode(sys.argv[1])
file = os.open(progress, os.O_RDWR | os.O_CREAT)
done = -1
for step in Trainer(env, agent, **options).steps():
    if step.total_steps // 64 != done:
        done = step.total_steps // 64
        os.pwrite(file, done.to_bytes(8, "little"), 0)
        time.sleep(pause)
"""

TOKEN = secrets.token_hex(32)
AGENTS = re.compile("ray::(Dashboard|RuntimeEnv)Agent")


class Failure(Exception):
    """A training that failed, or did not end."""


class Training:
    """A training in another process, whose number of rounds can be watched."""

    def __init__(self, case: str, pipeline: int, root: Path, place: Place, pause: float = 0.0) -> None:
        """`pause` is how many seconds the learner sleeps in every round, so that there is time to disturb it."""
        agent, env, settings = TRAININGS[case]
        options = {
            "steps": STEPS,
            "name": "t",
            "root": str(root),
            "actors": 4,
            "envs_each": 2,
            "round_steps": 8,
            "pipeline": pipeline,
            "checkpoint_every": 500,
            "eval_every": 2_000,
            "eval_episodes": 2,
            "metrics_every": 500,
            "agent_settings": settings,
            **place,
        }
        self._progress = root.with_suffix(".round")
        self._progress.unlink(missing_ok=True)
        given = msgspec.json.encode([env, agent, options, str(self._progress), pause]).decode()
        self._errors = root.with_suffix(".errors").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, given], stderr=self._errors, start_new_session=True
        )
        self._deadline = time.monotonic() + DEADLINE

    @property
    def rounds(self) -> int:
        """Rounds that the agent has learned from; -1 before the first."""
        try:
            return int.from_bytes(self._progress.read_bytes(), "little")
        except FileNotFoundError:
            return -1

    def wait(self, condition: Callable[[], bool] = lambda: False) -> bool:
        """Wait for a condition, or for the end; returns whether the training goes on."""
        while self._process.poll() is None:
            if condition():
                return True
            if time.monotonic() > self._deadline:
                self.kill()
                raise Failure(f"no end after {DEADLINE:g} s, in round {self.rounds}")
            time.sleep(0.002)
        if self._process.returncode:
            self._errors.seek(0)
            raise Failure(self._errors.read().decode()[-2_000:])
        return False

    def sleep(self, seconds: float) -> None:
        """Let it train on for a while."""
        end = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > end)

    def kill(self) -> None:
        """End the learner, and wait for the end of all processes that it started."""
        # Ray's own agents look for their raylet only now and then.
        children = [child for child in descendants(self._process.pid) if not AGENTS.match(name_of(child))]
        self._process.kill()
        self._process.wait()
        end = time.monotonic() + 60
        while left := [child for child in children if is_alive(child)]:
            if time.monotonic() > end:
                raise Failure(f"processes that outlive the learner: {[name_of(child) for child in left]}")
            time.sleep(0.01)

    def workers(self) -> list[int]:
        """The processes that play: its children, or with Ray those that have our class."""
        found = list(descendants(self._process.pid))
        on_ray = [process for process in found if name_of(process).startswith("ray::RayStage")]
        return on_ray or [process for process in found if "rekindle.actors.worker" in name_of(process)]


def descendants(process: int) -> Iterator[int]:
    """Children, their children, and so on."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def name_of(process: int) -> str:
    """Its command line."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def is_alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def digests(root: Path) -> dict[str, str | None]:
    """Of the whole run, which must be undamaged and exact."""
    found = verify(root / "t")
    if not found.ok or found.grade != "exact":
        raise Failure(f"{found.grade}, {found.problems}")
    return found.digests


# Steps: each trains to the end in a directory, and returns what it has done


def undisturbed(place: Place) -> Callable[..., str]:
    def step(case: str, pipeline: int, root: Path, chance: random.Random) -> str:  # noqa: ARG001
        Training(case, pipeline, root, place).wait()
        return ""

    return step


def learners(case: str, pipeline: int, root: Path, chance: random.Random) -> str:
    """Kill the learner while it starts, and at random moments; resume on another placement each time."""
    for _ in range(5):  # a training that ends too early shows nothing
        lives = killed_learners(case, pipeline, root, chance)
        if len(lives) == LEARNERS + 1:
            return f"{LEARNERS} killed learners: {', '.join(lives)}"
        shutil.rmtree(root)
    raise Failure(f"the training ended before {LEARNERS} learners were killed, five times")


def killed_learners(case: str, pipeline: int, root: Path, chance: random.Random) -> list[str]:
    """Where the learners have trained; the last one to the end."""
    lives: list[str] = []
    goals = [-1, *sorted(chance.sample(range(2, ROUNDS - 2), LEARNERS - 1)), ROUNDS + 1]
    for goal in goals:
        lives.append(chance.choice([name for name in PLACES if name != (lives or [""])[-1]]))
        training = Training(case, pipeline, root, PLACES[lives[-1]], pause=0.05)
        if goal < 0:
            training.sleep(chance.uniform(0.0, 4.0))
        if not training.wait(lambda goal=goal, training=training: training.rounds >= goal):
            break
        training.sleep(chance.uniform(0.0, 0.05))
        training.kill()
    return lives


def actors(case: str, pipeline: int, root: Path, chance: random.Random) -> str:
    """Kill processes of actors at random moments, also while they start, but none three times in a round."""
    training = Training(case, pipeline, root, PLACES["4 processes"], pause=0.1)
    return f"{killed_actors(training, ACTORS, chance)} killed actors"


def killed_actors(training: Training, count: int, chance: random.Random) -> int:
    kills: dict[int, int] = {}

    def recent() -> int:
        """Kills in the newest two rounds: actors are at most one round ahead of what can be seen here."""
        return kills.get(training.rounds, 0) + kills.get(training.rounds - 1, 0)

    while sum(kills.values()) < count:
        if not training.wait(lambda: training.rounds >= 0 and recent() < 2):
            raise Failure(f"the training ended after {sum(kills.values())} kills")
        # After a kill in this round a process is being started, which takes longer.
        training.sleep(chance.uniform(0.0, 0.6 if kills.get(training.rounds) else 0.12))
        now, workers = training.rounds, training.workers()
        if workers and recent() < 2:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
                kills[now] = kills.get(now, 0) + 1
    training.wait()
    return sum(kills.values())


def stopped(case: str, pipeline: int, root: Path, chance: random.Random) -> str:
    """Stop an actor for ever, so that it is started again, and one for 10 s, which is waited for."""
    training = Training(case, pipeline, root, {"workers": 2, "actor_patience": 15}, pause=0.05)
    moments = sorted(chance.sample(range(2, ROUNDS - 2), 2))
    for moment, seconds in zip(moments, (None, 10.0), strict=True):
        if not training.wait(lambda moment=moment: training.rounds >= moment):
            raise Failure("the training ended before two actors were stopped")
        victim = chance.choice(training.workers())
        os.kill(victim, signal.SIGSTOP)
        if seconds is not None:
            training.sleep(seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)
    training.wait()
    return "2 stopped actors"


def ray_workers(case: str, pipeline: int, root: Path, chance: random.Random) -> str:
    """Kill processes of Ray actors."""
    training = Training(case, pipeline, root, RAY, pause=0.1)
    return f"{killed_actors(training, 3, chance)} killed Ray actors"


def raylet(case: str, pipeline: int, root: Path, chance: random.Random) -> str:
    """Kill the raylet of a node, in a cluster with three nodes; another node joins."""
    with cluster(nodes=3) as (made, nodes):
        training = Training(case, pipeline, root, {**RAY, "ray_address": made.address}, pause=0.05)
        goal = chance.randrange(2, ROUNDS - 10)
        training.wait(lambda: training.rounds >= goal)
        raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
        os.kill(next(each for each in raylets if has_actor(each)), signal.SIGKILL)
        made.add_node(num_cpus=1)
        training.wait()
    return "1 killed raylet"


def has_actor(raylet: int) -> bool:
    """Whether a Ray actor of a training runs on a node."""
    return any(name_of(process).startswith("ray::RayStage") for process in descendants(raylet))


def head(case: str, pipeline: int, root: Path, chance: random.Random) -> str:
    """Kill the head of a cluster: the training fails within the timeout, and is resumed elsewhere."""
    with cluster(nodes=1) as (made, _):
        place = {"actors_on": "ray", "workers": 1, "ray_address": made.address}
        training = Training(case, pipeline, root, place, pause=0.05)
        goal = chance.randrange(2, ROUNDS - 10)
        training.wait(lambda: training.rounds >= goal)
    failed = ""
    try:
        training.wait()
    except Failure as failure:
        said = str(failure).strip().splitlines()
        failed = said[-1][:200] if said else "ended without a message"  # Ray ends its driver if the head is gone
    if not failed or "no end after" in failed:
        raise Failure(f"the training without a head did not fail: {failed}")
    Training(case, pipeline, root, PLACES["2 processes"]).wait()
    return "head killed, resumed on 2 processes"


@contextlib.contextmanager
def cluster(*, nodes: int) -> Generator[tuple[Any, list[Any]]]:
    """A Ray cluster of a head without processors, and nodes with one each."""
    # For the cluster and the training; Ray reads the token only once in a process.
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    kind: Any = importlib.import_module("ray.cluster_utils").Cluster
    made = kind(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield made, [made.add_node(num_cpus=1) for _ in range(nodes)]
    finally:
        made.shutdown()


STEP_KINDS: dict[str, Callable[..., str]] = {
    **{name: undisturbed(place) for name, place in PLACES.items()},
    "learners": learners,
    "actors": actors,
    "stopped": stopped,
    "ray_workers": ray_workers,
    "raylet": raylet,
    "head": head,
}


def run(case: str, pipeline: int, kind: str, expected: dict[str, Any] | None) -> dict[str, Any]:
    """One step; its result has the digests, and whether they are those of the training here."""
    began = time.monotonic()
    done = digest = failure = None
    directory = Path(tempfile.mkdtemp(prefix="campaign"))
    try:
        done = STEP_KINDS[kind](case, pipeline, directory / "run", random.Random(f"{case} {pipeline} {kind}"))
        digest = digests(directory / "run")
    except Failure as error:
        failure = str(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "case": case,
        "pipeline": pipeline,
        "step": kind,
        "done": done,
        "same": digest is not None and digest == (expected or digest),
        "digests": digest,
        "failure": failure,
        "seconds": round(time.monotonic() - began, 1),
    }


def table(there: list[dict[str, Any]]) -> str:
    """What each step of each case has given, as Markdown."""
    found = {(result["case"], result["pipeline"], result["step"]): result for result in there}
    kinds = [kind for kind in STEP_KINDS if kind != "here"]
    lines = [f"| training | pipeline | {' | '.join(kind.replace('_', ' ') for kind in kinds)} |"]
    lines.append("|---" * (len(kinds) + 2) + "|")
    for case in TRAININGS:
        for pipeline in (0, 1):
            row = [found.get((case, pipeline, kind)) for kind in kinds]
            if any(row):
                shown = ["" if each is None else "same" if each["same"] else "**OTHER**" for each in row]
                lines.append(f"| {case} | {pipeline} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS.with_name("actor_campaign.jsonl"))
    parser.add_argument("--only", help="the name of a training")
    parser.add_argument("--steps", default=",".join(STEP_KINDS), help="some of the steps")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no step after so many minutes")
    parser.add_argument("--table", action="store_true", help="show the results so far, and run nothing")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    kinds = ["here", *(kind for kind in options.steps.split(",") if kind != "here")]
    cases = [(case, pipeline) for case in TRAININGS for pipeline in (0, 1) if options.only in (None, case)]
    for case, pipeline in [] if options.table else cases:
        for kind in kinds:
            there = {(each["case"], each["pipeline"], each["step"]): each for each in read(options.results)}
            if (case, pipeline, kind) in there or time.monotonic() > until:
                continue
            base = there.get((case, pipeline, "here"))
            result = run(case, pipeline, kind, None if base is None else base["digests"])
            with options.results.open("ab") as results:
                results.write(msgspec.json.encode(result) + b"\n")
            verdict = "same" if result["same"] else f"OTHER: {result['failure'] or result['digests']}"
            print(f"{case}, pipeline {pipeline}, {kind}: {verdict} ({result['seconds']:.0f} s)", flush=True)
    print(table(read(options.results)))


if __name__ == "__main__":
    main()
