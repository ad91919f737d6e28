"""What data sets cost: converting one, opening it from the cache, memory, sampling, and keeping the data of a session.

The data are those of HalfCheetah: 17 float64 per observation, 6 float32 per action, episodes of 1000 steps.

    python benchmarks/data.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from rekindle import EpisodeStatus, Experience, TrainingRun, TrainingSession
from rekindle.data import Dataset
from rekindle.data.hdf5 import load_h5py

TRANSITIONS = 1_000_000
EPISODE = 1000
STEPS = 20_000


class Figure(msgspec.Struct, frozen=True):
    what: str
    value: str
    budget: str = ""


def write_d4rl(path: Path) -> None:
    rng = np.random.default_rng(0)
    timeouts = np.zeros(TRANSITIONS, np.bool_)
    timeouts[EPISODE - 1 :: EPISODE] = True
    observations = rng.random((TRANSITIONS + TRANSITIONS // EPISODE, 17))
    is_last = np.arange(len(observations)) % (EPISODE + 1) == EPISODE
    is_first = np.arange(len(observations)) % (EPISODE + 1) == 0
    with load_h5py().File(path, "w") as file:
        arrays: dict[str, Any] = {
            "observations": observations[~is_last],
            "next_observations": observations[~is_first],
            "actions": rng.uniform(-1, 1, (TRANSITIONS, 6)).astype(np.float32),
            "rewards": rng.random(TRANSITIONS),
            "terminals": np.zeros(TRANSITIONS, np.bool_),
            "timeouts": timeouts,
        }
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


OPEN = """
import json, sys, time
import numpy as np
from rekindle.data import Dataset

def kilobytes(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

before, start = kilobytes("VmRSS"), time.perf_counter()
dataset = Dataset.open(sys.argv[1], cache=sys.argv[2])
opened = time.perf_counter() - start
memory = kilobytes("VmHWM") - before
batches, start = dataset.batches(256), time.perf_counter()
next(batches)
for _ in range(2000):
    next(batches)
sampled = (time.perf_counter() - start) / 2001
touched = kilobytes("VmHWM") - before
print(json.dumps([opened, memory, sampled, touched, dataset.nbytes, len(dataset)]))
"""


def opening(path: Path, cache: Path) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(path), str(cache)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


class Still:
    """An agent that costs nothing."""

    def __init__(self) -> None:
        self.env_steps = self.updates = 0

    def act(self, observations: Any, mode: Any, streams: Any) -> Any:  # noqa: ARG002 - the protocol
        return np.zeros((len(observations), 6), np.float32)

    def observe(self, transitions: Any, streams: Any) -> None:  # noqa: ARG002
        self.env_steps += len(transitions)

    def updates_due(self) -> int:
        return 0

    def update(self, n: int) -> dict[str, float]:  # noqa: ARG002
        return {}

    def state(self) -> dict[str, Any]:
        return {"env_steps": self.env_steps}

    def load_state(self, state: dict[str, Any]) -> None:
        self.env_steps = state["env_steps"]


def session_step(directory: Path, *, keep_data: bool) -> float:
    """The CPU seconds of a step of a session."""
    run = TrainingRun.create("kept", root=directory / str(keep_data))
    rows = np.random.default_rng(0).random((EPISODE + 1, 17)).astype(np.float32)
    action = np.zeros(6, np.float32)
    with TrainingSession(Still(), run=run, checkpoint_every=None, metrics_every=None, keep_data=keep_data) as session:
        start = time.process_time()
        for step in range(STEPS):
            at = step % EPISODE
            status = EpisodeStatus.TRUNCATED if at == EPISODE - 1 else EpisodeStatus.CONTINUING
            session.observe(Experience(rows[at], action, 1.0, rows[at + 1], status))
            if status.is_done:
                session.on_episode()
        return (time.process_time() - start) / STEPS


def main() -> None:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path, cache = directory / "set.hdf5", directory / "cache"
        write_d4rl(path)
        start = time.perf_counter()
        Dataset.open(path, cache=cache)
        figures.append(Figure("convert 1 000 000 transitions of D4RL's HDF5", f"{time.perf_counter() - start:.1f} s"))
        results = [opening(path, cache) for _ in range(3)]
        opened, memory, sampled, touched, nbytes, _ = (min(column) for column in zip(*results, strict=True))
        size = nbytes / 1024
        figures += [
            Figure("open them from the cache", f"{opened:.2f} s", "2 s"),
            Figure("memory after opening, of their size", f"{memory / size:.2f}", "1.3"),
            Figure("memory after 2000 batches, of their size", f"{touched / size:.2f}", "1.3"),
            Figure("sample a batch of 256", f"{1e6 * sampled:.0f} us"),
        ]
        plain, kept = (
            min(session_step(directory / str(repeat), keep_data=keeps) for repeat in range(3))
            for keeps in (False, True)
        )
        figures.append(Figure("a step with keep_data, beyond one without", f"{1e6 * (kept - plain):.1f} us CPU"))
    table = Table("what", "measured", "budget")
    for figure in figures:
        table.add_row(figure.what, figure.value, figure.budget)
    Console().print(table)


if __name__ == "__main__":
    main()
