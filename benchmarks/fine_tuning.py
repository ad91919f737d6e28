"""Data as a start: IQL that continues with an environment, and SAC that learns from the data of an earlier run.

    python benchmarks/fine_tuning.py                          # trainings that are missing, two at a time
    python benchmarks/fine_tuning.py --only tuned:pendulum    # or tuned:halfcheetah, fuel:halfcheetah
    python benchmarks/fine_tuning.py --table                  # only the tables of the results so far

`tuned`: IQL learns from `medium` of `benchmarks/offline.py`, with the settings there, and then continues in the
environment, with half of each batch from the data. It is evaluated before its first step and at intervals. The mean of
three evaluations in a row should never be more than 10 below the first evaluation, and the last mean above it.

`fuel`: SAC learns with half of each batch from the data of the training that `benchmarks/offline.py` made, of 300,000
steps. It should reach, within 50,000 steps, the score that this training had after 100,000.

Evaluations are of 20 greedy episodes. Scores are shown as percentages: 0 for the random data, 100 for the expert's.
Data and unfinished trainings are kept in --data, and what exists is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learning import append_each, read, seeds_of
from offline import DIGESTS, WORLDS, describe, make, option_words, returns_of, scaled, settings_of, trained
from venvs import ROOT

RESULTS = Path(__file__).parent / "results" / "fine_tuning.jsonl"
SHARE = 0.5
"""Of each batch that is from the data."""
STEPS = {"tuned:pendulum": 10_000, "tuned:halfcheetah": 50_000, "fuel:halfcheetah": 50_000}
"""Env steps of each training."""
EVALUATIONS = 10
MOST_BELOW = 10
"""How far the mean of three evaluations may be below the start."""
FUEL_STEP = 100_000
"""The step of the earlier run whose score is to be reached."""
FUEL_SETTINGS = {"warmup_steps": 1_000, "layer_norm": True, "updates_each": 2}
"""What differs from the settings of the earlier run: what `docs/how-to/learn-from-data.md` recommends, in small."""


def cells(only: str | None, seeds: range | None) -> list[str]:
    """The names of all trainings, as `kind:world:seed`."""
    return [
        f"{kind}:{seed}"
        for kind in STEPS
        for seed in seeds or WORLDS[kind.partition(":")[2]].seeds
        if only is None or kind.startswith(only)
    ]


def train(name: str, data: Path) -> dict[str, Any]:
    """One training, continued if it is unfinished, and its evaluations."""
    from rekindle import RunReader

    kind, world_name, seed = name.split(":")
    world, steps = WORLDS[world_name], STEPS[f"{kind}:{world_name}"]
    every = ("--eval-every", steps // EVALUATIONS, "--checkpoint-every", steps // EVALUATIONS, "--seed", seed)
    runs = ("--runs", data / kind, "--resume", "auto")
    mixed = ("--steps", steps, "--data-share", SHARE, *every, *runs)
    if kind == "tuned":
        source = make(f"{world_name}-medium", data)
        words = option_words(settings_of("iql", returns_of(source)))
        before, after = f"{world_name}-{seed}-before", f"{world_name}-{seed}-after"
        offline = ("--steps", world.updates, "--eval-episodes", 0, "--seed", seed, *runs)
        rekindle("train", "iql", world.env_id, "--data", source, "--name", before, *offline, *words, data=data)
        online = ("--from", data / kind / before, "--data", source, "--name", after, *mixed)
        rekindle("train", "iql", world.env_id, *online, *words, data=data)
        found = RunReader(data / kind / after)
    else:
        source, after = trained(world_name, data), f"{world_name}-{seed}"
        words = ("--preset", "none", *option_words({**world.settings, **FUEL_SETTINGS}))
        rekindle("train", "sac", world.env_id, "--data", source, "--name", after, *mixed, *words, data=data)
        found = RunReader(data / kind / after)
    answer: dict[str, Any] = {"kind": kind, "world": world_name, "seed": int(seed), "steps": steps}
    answer["evaluations"] = evaluations(found)
    if kind == "fuel":
        answer["mark"] = dict(evaluations(RunReader(source)))[FUEL_STEP]
    return answer


def evaluations(run: Any) -> list[tuple[int, float]]:
    """The mean return of every evaluation, by step; the one at the end is not counted twice."""
    means: dict[int, list[float]] = {}
    for row in run.eval_episodes():
        means.setdefault(row["env_steps"], []).append(row["total_reward"])
    return [(step, round(statistics.mean(values), 2)) for step, values in sorted(means.items())]


def rekindle(*words: Any, data: Path) -> None:
    environment = {**os.environ, "REKINDLE_CACHE": str(data / "cache")}
    command = [sys.executable, "-m", "rekindle", *map(str, words), "--ui", "none"]
    subprocess.run(command, check=True, stdout=sys.stderr, env=environment)


# Tables


def running_means(scores: Sequence[float], count: int = 3) -> list[float]:
    return [statistics.mean(scores[first : first + count]) for first in range(len(scores) - count + 1)]


def tuned_table(results: list[dict[str, Any]], known: dict[str, Any]) -> str:
    """Every evaluation of what continued in an environment, and whether it fell."""
    lines = [
        "| environment | seed | before the first step | every evaluation after it | lowest mean of three "
        "| last mean of three | never 10 below, and above at the end |",
        "|---|---:|---:|---|---:|---:|---|",
    ]
    for result in sorted(results, key=lambda result: (result["world"], result["seed"])):
        if result["kind"] != "tuned":
            continue
        scores = [scaled(score, result["world"], known) for _, score in result["evaluations"]]
        means, first = running_means(scores[1:]), scores[0]
        reached = "yes" if min(means) >= first - MOST_BELOW and means[-1] > first else "no"
        shown = ", ".join(f"{score:.0f}" for score in scores[1:])
        lines.append(
            f"| {WORLDS[result['world']].env_id} | {result['seed']} | {first:.1f} | {shown} | {min(means):.1f} "
            f"| {means[-1]:.1f} | {reached} |"
        )
    return "\n".join(lines)


def fuel_table(results: list[dict[str, Any]]) -> str:
    """How soon trainings with the data of an earlier run reach its score."""
    lines = [
        f"| environment | seed | the earlier run after {FUEL_STEP:,} steps | reached after | every evaluation |",
        "|---|---:|---:|---:|---|",
    ]
    for result in sorted(results, key=lambda result: (result["world"], result["seed"])):
        if result["kind"] != "fuel":
            continue
        step = next((step for step, score in result["evaluations"] if score >= result["mark"]), None)
        shown = ", ".join(f"{score:.0f}" for _, score in result["evaluations"])
        lines.append(
            f"| {WORLDS[result['world']].env_id} | {result['seed']} | {result['mark']:.0f} "
            f"| {'never' if step is None else f'{step:,}'} | {shown} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / ".cache" / "offline", help="the directory of the data")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--digests", type=Path, default=DIGESTS)
    parser.add_argument("--only", help="kind, or kind:environment")
    parser.add_argument("--seeds", help="first-last; those of the report if not given")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--table", action="store_true", help="show the results so far, and run nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(options.one, options.data)))
        return
    if not options.table:
        options.data.mkdir(parents=True, exist_ok=True)
        there = {f"{found['kind']}:{found['world']}:{found['seed']}" for found in read(options.results)}
        seeds = None if options.seeds is None else seeds_of(options.seeds)
        missing = [name for name in cells(options.only, seeds) if name not in there]
        for world_name in sorted({name.split(":")[1] for name in missing}):
            for level in ("random", "medium", "expert"):
                describe(f"{world_name}-{level}", options.data, options.digests)
        command = [sys.executable, __file__, "--data", str(options.data), "--one"]
        append_each(options.results, ([*command, name] for name in missing), options.jobs)
    found, known = read(options.results), json.loads(options.digests.read_text())
    print(tuned_table(found, known), fuel_table(found), sep="\n\n")


if __name__ == "__main__":
    main()
