"""What an update costs now, against the same update in another checkout of this repository.

    git worktree add /tmp/before COMMIT
    python benchmarks/updates_before.py /tmp/before --pairs 15

Both sides run the agents of `benchmarks/updates.py`, each in a process of its own on one core, and take turns: a pair
is one turn of each. The ratio is the median over pairs of the CPU time now by that in the other checkout, so 1.03 is
3 % slower.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

from reference_updates import one_thread
from updates import TITLES, UPDATES, Timer, make, seconds_per_update, watch

AGENTS = ("dqn", "ppo", "sac", "td3")
MOST = 1.03
ROUNDS = 4
"""Turns' worth of updates that are timed in a turn, so that it takes a few tenths of a second."""


def serve() -> None:
    """Time updates when asked to, as a `Timer` does: by the name of an agent."""
    one_thread()
    agents = {name: make(name) for name in AGENTS}
    for line in sys.stdin:
        (name,) = json.loads(line)
        agent, seconds = agents[name], 0.0
        for _ in range(ROUNDS):
            if name == "ppo":
                watch(agent, lambda: agent.updates_due() > 0)  # noqa: B023 - it is called at once
            seconds += seconds_per_update(agent, min(64, UPDATES[name]), UPDATES[name])
        print(json.dumps(seconds / ROUNDS), flush=True)


def timer(checkout: Path) -> Timer:
    """Times the updates of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    return Timer([sys.executable, __file__, "--serve"], environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, nargs="?", help="the other checkout")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    if options.checkout is None:
        parser.error("name the other checkout")
    before, now = timer(options.checkout.resolve()), timer(Path(__file__).resolve().parent.parent)
    print("| update | before, µs | now, µs | now / before | at most | kept |\n|---|---:|---:|---:|---:|---|")
    for name in AGENTS:
        times: list[tuple[float, float]] = []
        for pair in range(options.pairs + 1):
            sides = (before, now) if pair % 2 else (now, before)
            found = {side: side(name) for side in sides}
            times.append((found[before], found[now]))
        del times[0]  # it is for warming up
        ratio = statistics.median(ours / theirs for theirs, ours in times)
        least = [1e6 * min(side) for side in zip(*times, strict=True)]
        kept = "yes" if ratio <= MOST else "no"
        print(f"| {TITLES[name]} | {least[0]:.0f} | {least[1]:.0f} | {ratio:.3f} | {MOST} | {kept} |", flush=True)
    before.close()
    now.close()


if __name__ == "__main__":
    main()
