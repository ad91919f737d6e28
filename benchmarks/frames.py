"""What a session adds to the frames of a game, while its learner computes all the time.

    python benchmarks/frames.py [--seconds 40] [--journal] [--busy 0]

The game and the slow learner are those of `examples/game_loop.py`: 50 characters, 60 frames a second. Every second the
game changes between frames with the session and frames without it (the same policy and the same game, and nothing is
reported), so that both have the same learner, the same cold caches and the same machine beside them. For each frame:

    wall       from its beginning to its end
    processor  what the thread of the game computed
    core       how long the thread was ready to run and had no core, as Linux counts it
    other      the rest: waiting for the interpreter lock or a disk, or the hypervisor ran something else

`--busy 2` starts two processes that compute all the time. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle import ActMode, TrainingSession

EXAMPLE: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "game_loop.py"))
FRAMES_A_TURN, CHARACTERS = 60, 50
KINDS = ("without the session", "with the session")
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


class Clocks:
    """Wall time, processor time and time without a core of the current thread, in milliseconds."""

    def __init__(self) -> None:
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def read(self) -> tuple[float, float, float]:
        waited = int(os.pread(self._schedstat, 64, 0).split()[1]) / 1e6
        return 1e3 * time.perf_counter(), 1e3 * time.thread_time(), waited


def stolen() -> float:
    """Seconds in which the hypervisor ran something else, on all cores."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]) / os.sysconf("SC_CLK_TCK")


def frame_without(game: Any, policy: Any, rng: np.random.Generator) -> None:
    _, statuses = game.advance(policy.act(game.positions, ActMode.EXPLORE, rng))
    if ended := statuses.nonzero()[0].tolist():
        game.respawn(ended)


def measured(seconds: int, *, journal: bool) -> dict[str, NDArray[np.float64]]:
    """For each kind of frames, a row of clocks for each frame."""
    agent, clocks, rng = EXAMPLE["SlowLearner"](seed=0), Clocks(), np.random.default_rng(0)
    games = [EXAMPLE["Game"](CHARACTERS, seed=0) for _ in KINDS]
    rows: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in KINDS}
    with (
        tempfile.TemporaryDirectory() as root,
        TrainingSession.open(
            "frames", agent, root=root, learner="background", checkpoint_every=20_000, journal=journal
        ) as session,
    ):
        policy = agent.policy()
        EXAMPLE["play_frame"](games[1], session)  # opens the journal
        gc.freeze()
        next_frame = time.perf_counter()
        for number in range(seconds * FRAMES_A_TURN):
            turn = number // FRAMES_A_TURN % 2
            before = clocks.read()
            if turn:
                EXAMPLE["play_frame"](games[1], session)
            else:
                frame_without(games[0], policy, rng)
            after = clocks.read()
            rows[KINDS[turn]].append(tuple(b - a for a, b in zip(before, after, strict=True)))
            next_frame += 1 / 60
            time.sleep(max(0.0, next_frame - time.perf_counter()))
    return {kind: np.array(found) for kind, found in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--journal", action="store_true")
    parser.add_argument("--busy", type=int, default=0)
    arguments = parser.parse_args()
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(arguments.busy)]
    try:
        before = stolen()
        found = measured(arguments.seconds, journal=arguments.journal)
        steal = stolen() - before
    finally:
        for process in spinning:
            process.kill()
    results: dict[str, Any] = {"stolen_seconds": steal}
    for kind, rows in found.items():
        wall, processor, core = rows.T
        print(f"{kind}, {len(rows)} frames, ms:")
        for name, values in (
            ("wall", wall),
            ("processor", processor),
            ("core", core),
            ("other", wall - processor - core),
        ):
            p50, p99, most = np.percentile(values, [50, 99, 100]).round(3).tolist()
            print(f"  {name:<10} p50 {p50:7.3f}   p99 {p99:7.3f}   max {most:7.3f}")
            results[f"{kind}/{name}"] = {"p50": p50, "p99": p99, "max": most}
    print(f"the hypervisor took {steal:.2f} s")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
