"""PPO on many environments in one process, beside rejax, whose environments are compiled together with its training.

    python benchmarks/many_envs.py                 # what is missing of five repeats, and the table
    python benchmarks/many_envs.py --repeats 9 --only 64
    python benchmarks/many_envs.py --table         # only the table of the results so far

CartPole-v1 with 64 and 1 024 environments, 128 steps of each in a rollout, 4 epochs of 4 minibatches, hidden layers of
64 and 64 units with tanh for policy and value each, Adam at 3e-4, entropy coefficient 0.01, values clipped at 0.2.
Rollout and minibatch have the same number of rows on both sides:

| rekindle | rejax |
|---|---|
| `rollout_steps` (128 times the environments) | `num_envs` times `num_steps` (128) |
| `minibatch_size` (a quarter of that) | `num_minibatches` (4) |
| `epochs` | `num_epochs` |
| `hidden_sizes`, tanh | `agent_kwargs` |
| `entropy_coef`, `clip`, `clip_value` | `ent_coef`, `clip_eps`, which is also the limit of values |

What is counted is the CPU time of the program, with all threads, for each env step after compilation. On our side that
is what `rekindle train` does without evaluations: Gymnasium's vector environment (`--vectorization native`), a run on
disk, logs, progress and checkpoints as often as by default, from the end of the first rollout to the last checkpoint.
rejax makes no checkpoints, logs nothing and here does not evaluate; its whole training is one compiled function. Both
have one processor and one thread, and take turns.

Every result is appended to the file of results, and what stands there already is not run again. Times in the table are
the least of the repeats, as other work on the machine only adds; ratios are the median over the repeats.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from learning import Result, read
from turns import take_turns
from venvs import python_of

RESULTS = Path(__file__).parent / "results" / "many_envs.jsonl"
PROGRAMS = Path(__file__).parent / "programs"
SIDES = {"rekindle": "vectors.py", "rejax": "rejax_vectors.py"}
ROLLOUTS = {64: 41, 1024: 6}
"""By number of environments: how many rollouts a training has."""
MOST = {64: 1.2, 1024: 1.0}
"""How many times the CPU time of rejax we may take."""


def command_of(num_envs: int, side: str) -> list[str]:
    python = sys.executable if side == "rekindle" else str(python_of("rejax"))
    return [python, str(PROGRAMS / SIDES[side]), str(num_envs), str(ROLLOUTS[num_envs])]


def missing(results: Iterable[Result], repeats: int, only: int | None) -> Iterator[tuple[int, int, str]]:
    """Repeat, environments and side of what has no result yet, in turn."""
    there = {(result["repeat"], result["num_envs"], result["side"]) for result in results}
    for repeat in range(repeats):
        for num_envs in ROLLOUTS:
            for side in SIDES:
                if only in (None, num_envs) and (repeat, num_envs, side) not in there:
                    yield repeat, num_envs, side


def run(path: Path, repeats: int, only: int | None) -> None:
    """Run what is missing, one program at a time."""
    turns = missing(read(path), repeats, only)
    take_turns(
        path,
        (
            ({"repeat": repeat, "num_envs": num_envs, "side": side}, command_of(num_envs, side))
            for repeat, num_envs, side in turns
        ),
    )


def times(results: Iterable[Result], num_envs: int, side: str) -> dict[int, float]:
    """By repeat: microseconds a step."""
    return {
        result["repeat"]: result["cpu_us"]
        for result in results
        if (result["num_envs"], result["side"]) == (num_envs, side)
    }


def table(results: list[Result]) -> str:
    """What was measured, as Markdown."""
    lines = [
        "| environments | rekindle, CPU µs an env step | rejax | ratio | limit | kept |",
        "|---:|---:|---:|---:|---:|---|",
    ]
    for num_envs, most in MOST.items():
        ours, theirs = (times(results, num_envs, side) for side in SIDES)
        if not ours.keys() & theirs.keys():
            continue
        share = statistics.median(ours[repeat] / theirs[repeat] for repeat in ours.keys() & theirs.keys())
        kept = "yes" if share <= most else "no"
        least = f"{min(ours.values()):.1f} | {min(theirs.values()):.1f}"
        lines.append(f"| {num_envs:,} | {least} | {share:.2f} | {most:.1f} | {kept} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", type=int, choices=list(ROLLOUTS))
    parser.add_argument("--table", action="store_true", help="show the results so far, and run nothing")
    options = parser.parse_args()
    if not options.table:
        run(options.results, options.repeats, options.only)
    print(table(read(options.results)))


if __name__ == "__main__":
    main()
