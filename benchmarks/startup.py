"""How long a training takes from its command to its first env step, with and without compiled code that was kept.

Each case is measured three ways, in turn: without the cache of compiled code, with an empty one, and with one that a
start before has filled. Wall time is what you wait for; CPU time is that of the process with all of its threads, which
a busy machine does not change as much.

    python benchmarks/startup.py --repeats 5    # about 3 minutes
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

CASES = {"dqn": "CartPole-v1", "sac": "Pendulum-v1", "ppo": "CartPole-v1"}
BUDGETED = ("dqn", "sac")
BUDGET = 0.5
WAYS = ("no cache", "first start", "second start")


class Spent(NamedTuple):
    """Seconds to the first env step."""

    wall: float
    cpu: float


def first_step(algorithm: str) -> None:
    """Train as `rekindle train` does with its preset, up to the first env step."""
    from rekindle import Trainer

    trainer = Trainer.from_preset(CASES[algorithm], algorithm)
    for _ in trainer.steps():
        print(json.dumps(time.process_time()), flush=True)
        os._exit(0)


def measured(algorithm: str, cache: str) -> Spent:
    """One start, with a directory for compiled code, or `off`."""
    with tempfile.TemporaryDirectory() as directory:
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, __file__, "--one", algorithm],
            cwd=directory,
            env={**os.environ, "REKINDLE_COMPILED": cache},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return Spent(time.perf_counter() - begin, json.loads(done.stdout))


def round_of(algorithm: str) -> dict[str, Spent]:
    """The three ways once."""
    with tempfile.TemporaryDirectory() as cache:
        return {
            "no cache": measured(algorithm, "off"),
            "first start": measured(algorithm, cache),
            "second start": measured(algorithm, cache),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the time from a command to its first env step.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", choices=CASES, help="make one start in this process")
    chosen = parser.parse_args()
    if chosen.one is not None:
        first_step(chosen.one)
        return
    table = Table("agent", "environment", *WAYS, "second / first", "budget")
    for algorithm, env in CASES.items():
        measured(algorithm, "off")  # the disk has read every module once
        rounds = [round_of(algorithm) for _ in range(chosen.repeats)]
        least = {way: Spent(*map(min, zip(*(one[way] for one in rounds), strict=True))) for way in WAYS}
        cells = [f"{spent.wall:.1f} s ({spent.cpu:.1f})" for spent in least.values()]
        ratios = [after / before for after, before in zip(least["second start"], least["first start"], strict=True)]
        verdict = f"{BUDGET:g}: {'within' if ratios[0] <= BUDGET else 'OVER'}" if algorithm in BUDGETED else ""
        table.add_row(algorithm, env, *cells, f"{ratios[0]:.2f} ({ratios[1]:.2f})", verdict)
    console = Console(width=120)
    console.print(table)
    console.print("wall time, and CPU time in brackets: the minimum of the repeats")


if __name__ == "__main__":
    main()
