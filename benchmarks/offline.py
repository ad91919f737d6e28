"""Agents that learn from data, beside those of d3rlpy: the same data, settings, updates and episodes.

    python benchmarks/offline.py --make pendulum-medium      # one data set, in --data
    python benchmarks/offline.py                             # trainings that are missing, two at a time
    python benchmarks/offline.py --only pendulum rekindle:   # or halfcheetah, or rekindle:iql:pendulum-medium:0
    python benchmarks/offline.py --speed                     # CPU time an update, both sides in turn
    python benchmarks/offline.py --table                     # only the tables of the results so far

The data are made by our SAC from written seeds: `random` acts uniformly; `expert` is the agent at the end of its
training, which explores; `medium` is the agent whose evaluation was nearest to a third of the way from one to the
other; `medium-replay` is everything that the training has seen, from its first step to its last. Their digests are in
the file of data, and one that differs is reported. Data and unfinished trainings are kept in --data, and what is there
is not made again.

The score of a training is the mean return of 20 greedy episodes with the final weights, with seeds that no training
has seen. It is shown as a percentage: 0 for the random data, 100 for the expert's. d3rlpy is installed below `.peers`;
ours needs the extras `agents`, `data` and `mujoco`.
"""

# Neither Gymnasium nor the peer is typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from learning import EVAL_SEEDS, append_each, read, seeds_of
from venvs import ROOT, python_of

RESULTS = Path(__file__).parent / "results" / "offline.jsonl"
DIGESTS = Path(__file__).parent / "results" / "offline_data.json"
PROGRAMS = Path(__file__).parent / "programs"
SIDES = ("rekindle", "d3rlpy")
ALGORITHMS = ("iql", "awac", "bc", "td3_bc")
LEVELS = ("random", "medium", "medium-replay", "expert")
SPEED_MARKS = {"iql": 4, "awac": 3.7, "bc": 7}
"""How many times the CPU time of our updates those of d3rlpy should take."""
SPEED_UPDATES = 3_000
"""So many that the start and the end of our training, with a run on disk, do not count."""


class World(NamedTuple):
    """An environment, and the training that its data are from."""

    env_id: str
    steps: int
    every: int
    """Env steps between evaluations, which are also the steps that `medium` may be from."""
    episodes: int
    """Of each data set but `medium-replay`."""
    updates: int
    """Of a training from data."""
    seeds: range
    compared: dict[str, tuple[str, ...]]
    """The agents that are trained on the data of a level."""
    settings: dict[str, Any]
    seed: int = 0


WORLDS = {
    "pendulum": World(
        "Pendulum-v1",
        steps=20_000,
        every=500,
        episodes=1_000,
        updates=10_000,
        seeds=range(5),
        compared={"medium": ALGORITHMS, "medium-replay": ALGORITHMS, "expert": ("bc",)},
        settings={"hidden_sizes": [64, 64], "learning_rate": 1e-3, "warmup_steps": 500},
    ),
    "halfcheetah": World(
        "HalfCheetah-v5",
        steps=300_000,
        every=10_000,
        episodes=200,
        updates=50_000,
        seeds=range(3),
        compared={"medium": ALGORITHMS, "medium-replay": ALGORITHMS},
        settings={"hidden_sizes": [256, 256], "warmup_steps": 10_000, "capacity": 400_000},
    ),
}


# Data


def make(name: str, data: Path) -> Path:
    """Make a data set unless it is there; returns its directory."""
    world_name, _, level = name.partition("-")
    if world_name not in WORLDS or level not in LEVELS:
        raise SystemExit(f"{name}: there is no such data set; there are {', '.join(WORLDS)}, each {', '.join(LEVELS)}")
    world, target = WORLDS[world_name], data / name
    if not target.exists():
        if level == "random":
            record_random(world, target)
        elif level == "medium-replay":
            return trained(world_name, data)
        else:
            step = world.steps if level == "expert" else medium_step(world_name, data)
            run = trained(world_name, data)
            rekindle("record", world.env_id, "--from", f"{run}@{step}", "--episodes", world.episodes, "-o", target)
    return target


def trained(world_name: str, data: Path) -> Path:
    """The run of our SAC, with all its data; continued if it is unfinished."""
    from rekindle import RunReader

    world, root = WORLDS[world_name], data / f"{world_name}-training"
    runs = sorted((root / "sac" / "v1").glob("2*"))
    if not runs or RunReader(runs[-1]).metadata.status != "finished":
        every = ("--checkpoint-every", world.every, "--eval-every", world.every, "--keep-checkpoints", 1_000)
        rekindle(
            *("train", "sac", world.env_id, "--preset", "none", "--steps", world.steps, "--seed", world.seed, *every),
            *(*option_words(world.settings), "--name", "sac", "--runs", root, "--resume", "auto", "--keep-data"),
        )
        runs = sorted((root / "sac" / "v1").glob("2*"))
    return runs[-1]


def option_words(settings: dict[str, Any]) -> list[Any]:
    """Settings of an agent as words of a command; True is an option without a value."""
    words: list[Any] = []
    for name, value in settings.items():
        words += [f"--agent.{name.replace('_', '-')}", *(value if isinstance(value, list) else [value])]
        if value is True:
            del words[-1]
    return words


def medium_step(world_name: str, data: Path) -> int:
    """The step of the evaluation that is nearest to a third of the way from random to the last one."""
    from rekindle import RunReader

    run = RunReader(trained(world_name, data))
    means: dict[int, list[float]] = {}
    for row in run.eval_episodes():
        means.setdefault(row["env_steps"], []).append(row["total_reward"])
    worst = statistics.mean(returns_of(make(f"{world_name}-random", data)))
    scores = {step: statistics.mean(values) for step, values in sorted(means.items())}
    third = worst + (list(scores.values())[-1] - worst) / 3
    return min(scores, key=lambda step: abs(scores[step] - third))


def record_random(world: World, target: Path) -> None:
    import numpy as np

    from rekindle.data.recording import record
    from rekindle.envs import EnvFactory

    factory = EnvFactory(world.env_id)
    space: Any = factory().action_space
    rng = np.random.default_rng(world.seed)

    def act(_: Any) -> Any:
        return rng.uniform(space.low, space.high).astype(space.dtype)[None]

    record(
        factory,
        act,
        target,
        episodes=world.episodes,
        seed=world.seed,
        max_steps=1_000,
    )


def rekindle(*words: Any) -> None:
    subprocess.run([sys.executable, "-m", "rekindle", *map(str, words)], check=True, stdout=sys.stderr)


def returns_of(path: Path) -> list[float]:
    from rekindle.data import Dataset

    return Dataset.open(path, cache=path.parent / "cache").returns.tolist()


def describe(name: str, data: Path, digests: Path) -> dict[str, Any]:
    """The digest of a data set and what is in it; says whether the digest is the one that is written down."""
    from rekindle.data import Dataset

    dataset = Dataset.open(make(name, data), cache=data / "cache")
    found: dict[str, Any] = {
        "digest": dataset.digest,
        "transitions": len(dataset),
        "episodes": dataset.num_episodes,
        "mean_return": round(statistics.mean(dataset.returns.tolist()), 1),
    }
    known: dict[str, Any] = json.loads(digests.read_text()) if digests.exists() else {}
    if name not in known:
        digests.write_text(json.dumps({**known, name: found}, indent=2, sort_keys=True) + "\n")
    elif known[name]["digest"] != found["digest"]:
        print(f"{name}: its digest is {found['digest'][:8]}, not {known[name]['digest'][:8]}", file=sys.stderr)
    return found


# Trainings


def settings_of(algorithm: str, returns: Sequence[float]) -> dict[str, Any]:
    """The settings of both sides, by our names."""
    settings: dict[str, Any] = {"batch_size": 256, "learning_rate": 3e-4, "gamma": 0.99, "hidden_sizes": [256, 256]}
    if algorithm in ("iql", "awac"):
        settings["reward_scale"] = 1_000 / (max(returns) - min(returns))
    return settings


def cells(only: Sequence[str], seeds: range | None) -> list[str]:
    """The names of all trainings, as `side:algorithm:data:seed`, of which each part that is asked for is in the name.

    Seed by seed, so that what is there when it is interrupted has as many seeds in every row.
    """
    names = [
        f"{side}:{algorithm}:{world_name}-{level}:{seed}"
        for world_name, world in WORLDS.items()
        for seed in seeds or world.seeds
        for level, algorithms in world.compared.items()
        for algorithm in algorithms
        for side in SIDES
    ]
    return [name for name in names if all(part in name for part in only)]


def command_of(name: str, data: Path, *, updates: int | None = None) -> list[str]:
    """The command that makes one training."""
    side, algorithm, source, seed = name.split(":")
    world = WORLDS[source.partition("-")[0]]
    request = {
        "side": side,
        "algorithm": algorithm,
        "data": source,
        "seed": int(seed),
        "env": world.env_id,
        "file": str(npz_of(source, data)),
        "updates": world.updates if updates is None else updates,
        "settings": settings_of(algorithm, returns_of(make(source, data))),
        "first_seed": EVAL_SEEDS,
        "episodes": 20 if updates is None else 0,
    }
    python = sys.executable if side == "rekindle" else str(python_of("d3rlpy"))
    return [python, str(PROGRAMS / f"offline_{side}.py"), json.dumps(request)]


def npz_of(name: str, data: Path) -> Path:
    """The data set as one file, which both sides read."""
    from rekindle.data import Dataset, export_npz

    path = data / f"{name}.npz"
    if not path.exists():
        export_npz(Dataset.open(make(name, data), cache=data / "cache"), path)
    return path


def train_missing(options: argparse.Namespace) -> None:
    there = {name_of(result) for result in read(options.results)}
    seeds = None if options.seeds is None else seeds_of(options.seeds)
    missing = [name for name in cells(options.only, seeds) if name not in there]
    for source in sorted({name.split(":")[2] for name in missing}):
        describe(source, options.data, options.digests)
    append_each(options.results, (command_of(name, options.data) for name in missing), options.jobs)


def name_of(result: dict[str, Any]) -> str:
    return f"{result['side']}:{result['algorithm']}:{result['data']}:{result['seed']}"


# Tables


def scaled(value: float, world_name: str, known: dict[str, Any]) -> float:
    """A return as a percentage of the way from random to expert."""
    low, high = (known[f"{world_name}-{level}"]["mean_return"] for level in ("random", "expert"))
    return 100 * (value - low) / (high - low)


def table(results: list[dict[str, Any]], known: dict[str, Any]) -> str:
    """Every score, and how the sides differ."""
    lines = [
        "| data | agent | rekindle: mean (every seed) | d3rlpy: mean (every seed) | difference | in standard errors |",
        "|---|---|---:|---:|---:|---:|",
    ]
    ratios: list[float] = []
    for source in sorted({result["data"] for result in results}):
        for algorithm in ALGORITHMS:
            sides = [
                [
                    scaled(result["final"], source.partition("-")[0], known)
                    for result in sorted(results, key=lambda result: result["seed"])
                    if (result["side"], result["algorithm"], result["data"]) == (side, algorithm, source)
                ]
                for side in SIDES
            ]
            shown = [shown_scores(side) if side else "" for side in sides]
            if min(map(len, sides)) < 2:
                lines += [f"| {source} | {algorithm} | {shown[0]} | {shown[1]} | | |"] * any(shown)
                continue
            difference = statistics.mean(sides[0]) - statistics.mean(sides[1])
            error = math.sqrt(sum(statistics.variance(side) / len(side) for side in sides))
            ratios.append(difference / error)
            compared = f"{difference:+.1f} | {ratios[-1]:+.1f}"
            lines.append(f"| {source} | {algorithm} | {shown[0]} | {shown[1]} | {compared} |")
    if ratios:
        lines += ["", f"The mean over {len(ratios)} rows is {statistics.mean(ratios):+.2f} standard errors."]
    return "\n".join(lines)


def order_table(results: list[dict[str, Any]], known: dict[str, Any]) -> str:
    """Whether our agents rank as they should: IQL above BC on medium-replay, BC near the expert on its data, and IQL's
    values of first observations not above the best return in the data at the end of the training."""
    lines = ["| data | wanted | found | every seed | reached |", "|---|---|---:|---|---|"]
    ours = [result for result in results if result["side"] == "rekindle"]
    for source in sorted({result["data"] for result in ours}):
        world_name, _, level = source.partition("-")
        scores = {
            algorithm: [
                scaled(result["final"], world_name, known)
                for result in ours
                if (result["algorithm"], result["data"]) == (algorithm, source)
            ]
            for algorithm in ("iql", "bc")
        }
        if level == "medium-replay" and all(scores.values()):
            lead = statistics.mean(scores["iql"]) - statistics.mean(scores["bc"])
            each = f"IQL {shown_scores(scores['iql'])}, BC {shown_scores(scores['bc'])}"
            lines.append(f"| {source} | IQL above BC | {lead:+.1f} | {each} | {yes(lead > 0)} |")
        if level == "expert" and scores["bc"]:
            mean = statistics.mean(scores["bc"])
            lines.append(f"| {source} | BC >= 95 | {mean:.1f} | {shown_scores(scores['bc'])} | {yes(mean >= 95)} |")
        last = [result["start_values"][-1] for result in ours if result["data"] == source and "start_values" in result]
        if last:
            limit = min(result.get("largest_return", math.inf) for result in ours if result["data"] == source)
            each, wanted = ", ".join(f"{value:.1f}" for value in last), f"IQL's value of first states <= {limit:.1f}"
            lines.append(f"| {source} | {wanted} | {max(last):.1f} | {each} | {yes(max(last) <= limit)} |")
    return "\n".join(lines)


def yes(is_reached: bool) -> str:
    return "yes" if is_reached else "no"


def shown_scores(scores: list[float]) -> str:
    return f"{statistics.mean(scores):.1f} ({', '.join(f'{score:.0f}' for score in scores)})"


def measure_speed(options: argparse.Namespace) -> None:
    """CPU time an update of both sides, in turn, each in a process with one thread."""
    for repeat in range(options.repeats):
        names = [f"{side}:{algorithm}:pendulum-medium:{repeat}" for algorithm in SPEED_MARKS for side in SIDES]
        append_each(options.speed_results, [command_of(name, options.data, updates=SPEED_UPDATES) for name in names], 1)


def speed_table(results: list[dict[str, Any]]) -> str:
    """The median CPU time of an update, and how many times as long d3rlpy takes."""
    lines = ["| agent | rekindle | d3rlpy | ratio | wanted |", "|---|---:|---:|---:|---:|"]
    for algorithm, wanted in SPEED_MARKS.items():
        ours, theirs = (
            statistics.median(
                1e3 * result["cpu_seconds"] / result["updates"]
                for result in results
                if (result["side"], result["algorithm"]) == (side, algorithm)
            )
            for side in SIDES
        )
        lines.append(f"| {algorithm} | {ours:.2f} ms | {theirs:.2f} ms | {theirs / ours:.1f} | {wanted} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / ".cache" / "offline", help="the directory of the data")
    parser.add_argument("--make", metavar="NAME", help="make one data set, and print what is in it")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--speed-results", type=Path, default=RESULTS.with_name("offline_speed.jsonl"))
    parser.add_argument("--digests", type=Path, default=DIGESTS)
    parser.add_argument("--only", nargs="+", default=(), help="parts of side:algorithm:data:seed")
    parser.add_argument("--seeds", help="first-last; those of the report if not given")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--speed", action="store_true", help="measure the CPU time of updates")
    parser.add_argument("--repeats", type=int, default=3, help="with --speed")
    parser.add_argument("--table", action="store_true", help="show the results so far, and run nothing")
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    if options.make:
        print(json.dumps({options.make: describe(options.make, options.data, options.digests)}, indent=2))
        return
    if options.speed:
        if not options.table:
            measure_speed(options)
        print(speed_table(read(options.speed_results)))
        return
    if not options.table:
        train_missing(options)
    found, known = read(options.results), json.loads(options.digests.read_text())
    print(table(found, known), order_table(found, known), sep="\n\n")


if __name__ == "__main__":
    main()
