"""What being watched costs a training: its own CPU time for an env step, with and without somebody watching.

A training with a quick agent and a quick environment, which logs as much as any, is watched by a real `rekindle
dashboard`, with the list of runs and the page of this run open in two connections, and by a real `rekindle watch` on a
pseudo-terminal. Stretches of equal length are trained with the two at work and with the two suspended, in turn, by one
process, so that nothing else differs. Counted is the CPU time of the process that trains, user and system, all of
its threads. What the watchers use themselves is counted apart, as a share of one processor, and so is what they need to
start; with two of them at work on two processors, a training also shares caches and clock rate with them.

    python benchmarks/watching.py               # about 20 minutes
    python benchmarks/watching.py --pairs 10    # the share of a processor that the watchers use; a minute
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import gymnasium as gym
from dashboard_server import Server, cpu_seconds, serving
from rich.console import Console
from rich.progress import track

from rekindle import TrainingSession
from rekindle.agents import Tabular

STEPS = 20_000
"""Of each stretch."""
PAIRS = 300
"""Of stretches, one watched and one not: so many that the noise of a machine is smaller than the budget."""
BUDGET = 1.0
"""Per cent of the training."""
TERMINAL_BUDGET = 5.0
"""Per cent of a processor."""


def train(root: Path) -> None:
    """Train a stretch for each line of input, and print the CPU time that it took."""
    env = gym.make("FrozenLake-v1")
    agent = Tabular(env.observation_space, env.action_space, seed=0)
    with TrainingSession.open("lake", agent, root=root, checkpoint_every=5_000) as session:
        assert session.run is not None
        print(session.run.path, flush=True)
        stream = session.stream()
        for _ in sys.stdin:
            end = session.total_steps + STEPS
            start = time.process_time()
            while session.total_steps < end:
                action = stream.begin(stream.reset(env))
                while action is not None:
                    observation, reward, terminated, truncated, _ = env.step(action)
                    action = stream.step(observation, float(reward), terminated, truncated)
            print(time.process_time() - start, flush=True)


class Training:
    """A process that trains on demand."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.path = Path(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stretch(self) -> float:
        """Train on; seconds of its CPU time."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def terminal(path: Path) -> Generator[int]:
    """`rekindle watch` on a pseudo-terminal that is read and thrown away; yields its process."""
    screen, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "rekindle", "watch", str(path)],
        stdin=end,
        stdout=end,
        stderr=end,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(end)
    is_shown = threading.Event()

    def read() -> None:
        seen = b""
        while True:
            try:
                data = os.read(screen, 2**16)
            except OSError:  # the other end is closed
                return
            seen = (seen + data)[-(2**17) :]
            if b"lake/v1" in seen:
                is_shown.set()

    reader = threading.Thread(target=read)
    reader.start()
    is_shown.wait()
    yield process.pid
    process.kill()
    process.wait()
    reader.join()
    os.close(screen)


def follow(server: Server, address: str, **query: str) -> None:
    """Open a page of the dashboard, and take what it is sent, until the server ends."""

    def read() -> None:
        with server.events(address, **query) as events:
            for _ in events:
                pass

    threading.Thread(target=read, daemon=True).start()


def main(pairs: int) -> None:
    console = Console(width=120, highlight=False)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        training = Training(root)
        training.stretch()
        with serving(root) as server, terminal(training.path) as view:
            follow(server, "/api/list")
            follow(server, "/api/watch", id=training.path.relative_to(root).as_posix())
            training.stretch()
            watchers = {"rekindle dashboard": server.process, "rekindle watch": view}
            for name, process in watchers.items():
                console.print(f"{name}: {cpu_seconds(process):.2f} s of CPU time to start")
            costs: dict[bool, list[float]] = {True: [], False: []}
            used = dict.fromkeys(watchers, 0.0)
            watched = 0.0
            for pair in track(range(pairs), "pairs of stretches", console=Console(stderr=True)):
                for is_watched in (True, False) if pair % 2 else (False, True):
                    for process in watchers.values():
                        os.kill(process, signal.SIGCONT if is_watched else signal.SIGSTOP)
                    before, start = {name: cpu_seconds(process) for name, process in watchers.items()}, time.monotonic()
                    costs[is_watched].append(training.stretch() / STEPS)
                    watched += is_watched * (time.monotonic() - start)
                    for name, process in watchers.items():
                        used[name] += is_watched * (cpu_seconds(process) - before[name])
            for process in watchers.values():
                os.kill(process, signal.SIGCONT)
        training.close()
    alone, seen = (statistics.median(costs[is_watched]) for is_watched in (False, True))
    ratios = [100 * (one / other - 1) for one, other in zip(costs[True], costs[False], strict=True)]
    cost, error = statistics.median(ratios), 1.25 * statistics.stdev(ratios) / pairs**0.5
    console.print(f"an env step takes {1e6 * alone:.2f} us of CPU time alone and {1e6 * seen:.2f} us watched")
    verdict = "within" if cost <= BUDGET else "OVER"
    console.print(
        f"being watched costs the training {cost:+.2f} % (standard error {error:.2f}), budget {BUDGET:g} %: {verdict}"
    )
    for name, seconds in used.items():
        share = 100 * seconds / watched
        limit = f", budget {TERMINAL_BUDGET:g} %: {'within' if share <= TERMINAL_BUDGET else 'OVER'}"
        console.print(f"{name} uses {share:.1f} % of a processor meanwhile{limit if name == 'rekindle watch' else ''}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure what watching a training costs.")
    parser.add_argument("root", type=Path, nargs="?", help="train below this directory on demand")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of stretches, one watched and one not")
    chosen = parser.parse_args()
    if chosen.root is not None:
        train(chosen.root)
    else:
        main(chosen.pairs)
