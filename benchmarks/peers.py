"""The speed of whole trainings beside Stable-Baselines3, SBX and scripts in the manner of CleanRL.

    python benchmarks/peers.py                     # what is missing of three repeats, and the table
    python benchmarks/peers.py --repeats 5 --only dqn
    python benchmarks/peers.py --table             # only the table of the results so far

What is counted is the CPU time of the program, with all threads and child processes, for each env step, from the first
env step after warm-up and compilation to the end of the training. On our side that is what `rekindle train` does, with
a run on disk, logs, progress, checkpoints as often as by default, five episodes of evaluation every 25 000 steps (by
default there are more; none on Atari), and the last evaluation and checkpoint; the peers log to nowhere and neither
evaluate nor save.
All programs have one processor and one thread, and take turns. Hyper-parameters
are the same: they stand in `benchmarks/programs`. The peers are installed below `.peers`.

Every result is appended to the file of results, and what stands there already is not run again. Times in the table are
the least of the repeats, as other work on the machine only adds; ratios are the median over the repeats.

`overhead` compares, on DQN, a run with its logs, events, windows of metrics and progress to a session that has none
of them; both without checkpoints and evaluations on the way. Its last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from learning import read
from programs.timing import CASES
from turns import take_turns
from venvs import python_of

RESULTS = Path(__file__).parent / "results" / "peers.jsonl"
PROGRAMS = Path(__file__).parent / "programs"
SIDES = {"rekindle": "rekindle", "sb3": "Stable-Baselines3", "sbx": "SBX", "cleanrl": "CleanRL-style"}
PEERS = [side for side in SIDES if side != "rekindle"]
MARKS = {
    "dqn": {"sb3": 4.0, "fastest": 3.0},
    "ppo": {"sb3": 3.0, "sbx": 2.5},
    "pendulum": {"sb3": 2.2, "sbx": 1.2},
    "halfcheetah": {"sb3": 1.8},
    "dqn-pong": {"sb3": 1.2},
    "ppo-pong": {"sb3": 1.2},
}
"""How many times as quick as a peer, or as the quickest of them, we want to be."""
OVERHEAD = {"on": "--recorded", "off": "--bare"}
MOST_OVERHEAD = 0.1

Result = dict[str, Any]


def command_of(case: str, side: str) -> list[str]:
    if case == "overhead":
        return [sys.executable, str(PROGRAMS / "ours.py"), "dqn", OVERHEAD[side]]
    if side == "rekindle":
        return [sys.executable, str(PROGRAMS / "ours.py"), case]
    if side == "cleanrl":
        return [str(python_of("sb3")), str(PROGRAMS / "cleanrl.py"), case]
    return [str(python_of(side)), str(PROGRAMS / "baselines.py"), side, case]


def missing(
    results: Iterable[Result], repeats: int, only: str | None, peers: Collection[str]
) -> Iterator[tuple[int, str, str]]:
    """Repeat, case and side of what has no result yet, in turn."""
    there = {(result["repeat"], result["case"], result["side"]) for result in results}
    for repeat in range(repeats):
        for case in (*CASES, "overhead"):
            beside = [] if case == "overhead" else [peer for peer in CASES[case].peers if peer in peers]
            for side in OVERHEAD if case == "overhead" else ("rekindle", *beside):
                if only in (None, case) and (repeat, case, side) not in there:
                    yield repeat, case, side


def run(path: Path, repeats: int, only: str | None, peers: Collection[str]) -> None:
    """Run what is missing, one program at a time."""
    turns = missing(read(path), repeats, only, peers)
    take_turns(
        path, (({"repeat": repeat, "case": case, "side": side}, command_of(case, side)) for repeat, case, side in turns)
    )


def times(results: Iterable[Result], case: str) -> dict[str, dict[int, float]]:
    """By side and repeat: microseconds a step."""
    found: dict[str, dict[int, float]] = {}
    for result in results:
        if result["case"] == case:
            found.setdefault(result["side"], {})[result["repeat"]] = result["cpu_us"]
    return found


def ratio(theirs: dict[int, float], ours: dict[int, float]) -> float:
    """How many times the CPU time of ours theirs is: the median over repeats that both have."""
    return statistics.median(theirs[repeat] / ours[repeat] for repeat in theirs.keys() & ours.keys())


def table(results: list[Result]) -> str:
    """The results as Markdown, with a column for each peer that was measured."""
    peers = [peer for peer in PEERS if any(result["side"] == peer for result in results)]
    lines = [
        f"| CPU µs an env step | rekindle | {' | '.join(SIDES[peer] for peer in peers)} | wanted | reached |",
        f"|---|{'---:|' * (1 + len(peers))}---|---|",
    ]
    for case, known in CASES.items():
        found = times(results, case)
        ratios = {peer: ratio(found[peer], found["rekindle"]) for peer in known.peers if peer in found}
        if not ratios:
            continue
        cells = [
            f"{min(found[peer].values()):,.0f} ({ratios[peer]:.1f} times ours)" if peer in ratios else ""
            for peer in peers
        ]
        if len(ratios) == len(known.peers):
            ratios["fastest"] = min(ratios.values())
        marks = {name: mark for name, mark in MARKS[case].items() if name in ratios}
        wanted = ", ".join(f"{SIDES.get(name, 'the fastest')} {mark:g}" for name, mark in marks.items())
        reached = "yes" if all(ratios[name] >= mark for name, mark in marks.items()) else "no"
        ours = min(found["rekindle"].values())
        lines.append(f"| {known.title} | {ours:,.0f} | {' | '.join(cells)} | {wanted} | {reached} |")
    return "\n".join(lines)


def overhead(results: list[Result]) -> Result | None:
    """What logs, events, windows and progress cost of the CPU time of the DQN run; None if it is not measured."""
    found = times(results, "overhead")
    if set(found) != set(OVERHEAD):
        return None
    share = 1 - 1 / ratio(found["on"], found["off"])
    return {
        "off_us": min(found["off"].values()),
        "on_us": min(found["on"].values()),
        "share": round(share, 3),
        "most": MOST_OVERHEAD,
        "reached": share <= MOST_OVERHEAD,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=[*CASES, "overhead"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--table", action="store_true", help="show the results so far, and run nothing")
    options = parser.parse_args()
    if not options.table:
        run(options.results, options.repeats, options.only, options.peers)
    results = read(options.results)
    print(table(results))
    if (found := overhead(results)) is not None:
        print(json.dumps({"overhead": found}))


if __name__ == "__main__":
    main()
