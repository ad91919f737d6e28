"""What being watched costs a training, in its own CPU time, and what the watcher uses.

The same training is run alone and with `rekindle watch` attached on a pseudo-terminal, in turn; the least of each
case is compared, as other work on the machine only ever adds.

    python benchmarks/watching.py
"""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import gymnasium as gym
from rich.console import Console

from rekindle import TrainingSession
from rekindle.agents import Tabular

STEPS = 60_000
REPEATS = 5
BUDGET = 0.01


def train(root: Path) -> None:
    """Train, in a process of its own, and print the path of the run and then the CPU time it took."""
    env = gym.make("FrozenLake-v1")
    agent = Tabular(env.observation_space, env.action_space, seed=0)
    with TrainingSession.open("lake", agent, root=root, max_steps=STEPS, metrics_every=1000) as session:
        assert session.run is not None
        print(session.run.path, flush=True)
        sys.stdin.readline()
        stream = session.stream()
        start = time.process_time()
        while not session.is_done:
            action = stream.begin(stream.reset(env))
            while action is not None:
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, float(reward), terminated, truncated)
        print(time.process_time() - start, flush=True)


class Watcher:
    """`rekindle watch` on a pseudo-terminal that nobody looks at."""

    def __init__(self, path: str) -> None:
        self._screen, terminal = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rekindle", "watch", path],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(terminal)
        self._is_shown = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._is_shown.wait()

    def _read(self) -> None:
        seen = b""
        while True:
            try:
                data = os.read(self._screen, 2**16)
            except OSError:  # the other end is closed
                return
            seen = (seen + data)[-(2**17) :]
            if b"lake/v1" in seen:
                self._is_shown.set()

    def close(self) -> float:
        """Wait until it ends with the run; the CPU time that it used."""
        _, _, usage = os.wait4(self._process.pid, 0)
        self._reader.join()
        os.close(self._screen)
        return usage.ru_utime + usage.ru_stime


def measure(*, is_watched: bool) -> tuple[float, float]:
    """The CPU time of one training, and that of its watcher a second."""
    root = tempfile.mkdtemp(prefix="rekindle-watching-")
    process = subprocess.Popen(
        [sys.executable, __file__, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    path = process.stdout.readline().strip()
    watcher = Watcher(path) if is_watched else None
    start = time.perf_counter()
    process.stdin.write("\n")
    process.stdin.flush()
    used = float(process.stdout.readline())
    took = time.perf_counter() - start
    process.communicate()
    watching = watcher.close() / took if watcher else 0.0
    shutil.rmtree(root)
    return used, watching


def main() -> None:
    alone: list[float] = []
    watched: list[float] = []
    watching: list[float] = []
    for _ in range(REPEATS):
        alone.append(measure(is_watched=False)[0])
        used, share = measure(is_watched=True)
        watched.append(used)
        watching.append(share)
    cost = min(watched) / min(alone) - 1
    verdict = "within" if cost <= BUDGET else "OVER"
    console = Console(width=120, highlight=False)
    console.print(f"{STEPS:,} steps alone: {min(alone):.3f} s of CPU time; watched: {min(watched):.3f} s")
    console.print(f"watching costs the training {cost:+.2%}, budget {BUDGET:.0%}: {verdict}")
    console.print(f"the watcher, its start included, uses {min(watching):.0%} of a core")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
    else:
        main()
