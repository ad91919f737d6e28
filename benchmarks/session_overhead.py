"""What a session costs its host, in CPU time, against the budgets we hold ourselves to.

The agent does nothing, so that what is left is the session: validation, counting, logging, checkpoints. Repeats
are interleaved and the least of each case is shown, as other work on the machine only ever adds.

    python benchmarks/session_overhead.py
"""

from __future__ import annotations

import gc
import logging
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from rekindle import ActMode, EpisodeStatus, Experience, State, TrainingRun, TrainingSession, Transitions
from rekindle.agent import Metrics, StreamSlots
from rekindle.checkpoint import encode
from rekindle.experience import Array, Observations
from rekindle.spaces import ArraySpec
from rekindle.storage.files import write_atomic

OBSERVATION_SIZE = 17
STEPS = 20_000
REPEATS = 7


class IdleAgent:
    """Acts with zeros and forgets everything."""

    def __init__(self) -> None:
        self.env_steps = 0
        self.updates = 0
        self._actions = np.zeros(256, np.int64)

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:  # noqa: ARG002
        return self._actions[: len(streams)]

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:  # noqa: ARG002
        self.env_steps += len(transitions)

    def updates_due(self) -> int:
        return 0

    def update(self, n: int) -> Metrics:  # noqa: ARG002
        return {}

    def state(self) -> State:
        return {"env_steps": self.env_steps, "updates": self.updates}

    def load_state(self, state: State) -> None:
        self.env_steps, self.updates = state["env_steps"], state["updates"]


class Memory:
    """A replay buffer of rows as of a 17-dimensional environment, appended to without being written."""

    def __init__(self, capacity: int) -> None:
        wide = ArraySpec(np.dtype(np.float32), (OBSERVATION_SIZE,))
        self.columns: Mapping[str, ArraySpec] = {
            "observation": wide,
            "next_observation": wide,
            "action": ArraySpec(np.dtype(np.float32), (6,)),
            "reward": ArraySpec(np.dtype(np.float32)),
            "status": ArraySpec(np.dtype(np.uint8)),
        }
        self._capacity = capacity
        self._arrays = {name: np.ones((capacity, *column.shape), column.dtype) for name, column in self.columns.items()}
        self.end = 0
        self.copy_time = 0.0
        """Seconds spent in `read`."""

    @property
    def first(self) -> int:
        return max(0, self.end - self._capacity)

    def read(self, first: int, end: int) -> dict[str, Array]:
        started = time.perf_counter()
        start, count = first % self._capacity, end - first
        head = min(count, self._capacity - start)
        rows = {
            name: np.concatenate([array[start : start + head], array[: count - head]])
            for name, array in self._arrays.items()
        }
        self.copy_time += time.perf_counter() - started
        return rows

    def restore(self, first: int, columns: Mapping[str, Array]) -> None:
        raise NotImplementedError


class RememberingAgent(IdleAgent):
    """An idle agent with a replay buffer to journal."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.memory = Memory(capacity)

    def replay(self) -> Memory:
        return self.memory

    def add_rows(self, count: int) -> None:
        self.memory.end += count


class Figure(msgspec.Struct, frozen=True):
    what: str
    unit: str
    value: float
    budget: float


def least_cpu(cases: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Run every case in turn, several times over, and keep the least of each."""
    results: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(REPEATS):
        for name, case in cases.items():
            gc.collect()
            results[name].append(case())
    return {name: min(values) for name, values in results.items()}


def new_session(root: Path, agent: Any = None, **options: Any) -> TrainingSession:
    run = TrainingRun.create("overhead", "v1", root=root)
    return TrainingSession(agent or IdleAgent(), run=run, checkpoint_every=None, **options)


def act_and_observe(root: Path, **options: Any) -> float:
    session = new_session(root, **options)
    observations = list(np.random.default_rng(0).random((STEPS + 1, OBSERVATION_SIZE), np.float32))
    started = time.process_time()
    for index in range(STEPS):
        action = session.act(observations[index])
        session.observe(Experience(observations[index], action, 1.0, observations[index + 1]))
    cost = time.process_time() - started
    session.close()
    return cost / STEPS * 1e6


def stream_step(root: Path, **options: Any) -> float:
    session = new_session(root, **options)
    observations = list(np.random.default_rng(0).random((STEPS + 1, OBSERVATION_SIZE), np.float32))
    stream = session.stream()
    stream.begin(observations[0])
    started = time.process_time()
    for index in range(STEPS):
        stream.step(observations[index + 1], 1.0)
    cost = time.process_time() - started
    session.close()
    return cost / STEPS * 1e6


def batches(root: Path, size: int = 64, **options: Any) -> float:
    session = new_session(root, **options)
    count = STEPS // size
    observations = np.random.default_rng(0).random((count + 1, size, OBSERVATION_SIZE), np.float32)
    actions, rewards = np.zeros(size, np.int64), np.ones(size)
    statuses = np.zeros(size, np.uint8)
    started = time.process_time()
    for index in range(count):
        session.observe_many(Transitions(observations[index], actions, rewards, observations[index + 1], statuses))
    cost = time.process_time() - started
    session.close()
    return cost / (count * size) * 1e6


def episodes(root: Path, size: int = 64) -> float:
    """The record, the statistics and the line of an episode; the steps themselves are not timed."""
    session = new_session(root)
    observations, actions = np.zeros((size, OBSERVATION_SIZE), np.float32), np.zeros(size, np.int64)
    ended = np.full(size, EpisodeStatus.TERMINATED, np.uint8)
    last = Transitions(observations, actions, np.ones(size), observations, ended)
    extras = {"success": 1.0}
    cost = 0.0
    for _ in range(STEPS // size):
        session.observe_many(last)
        started = time.process_time()
        for stream in range(size):
            session.on_episode(extras=extras, stream=stream)
        cost += time.process_time() - started
    session.close()
    return cost / (STEPS // size * size) * 1e6


def journal_bytes(root: Path) -> float:
    """The bytes of the input journal for one step of a stream."""
    session = new_session(root, journal=True)
    assert session.run is not None
    stream, observation = session.stream(), np.zeros(OBSERVATION_SIZE, np.float32)
    stream.begin(observation)
    for _ in range(STEPS):
        stream.step(observation, 1.0)
    directory = session.run.path / "inputs"
    session.close()
    return sum(path.stat().st_size for path in directory.glob("*.journal")) / STEPS


class CheckpointCosts(msgspec.Struct, frozen=True):
    """Milliseconds: CPU time of a checkpoint by capacity and of a full dump; wall time of the stall and its copy."""

    checkpoint: dict[int, float]
    dump: float
    stall: float
    copy: float


def checkpoint_costs(root: Path) -> CheckpointCosts:
    """Take checkpoints after 10 000 new rows each, in memories of two capacities in turn."""
    agents = {capacity: RememberingAgent(capacity) for capacity in (10_000, 1_000_000)}
    sessions = {
        capacity: new_session(root, agent, keep_checkpoints=2, metrics_every=None) for capacity, agent in agents.items()
    }
    for capacity, agent in agents.items():
        agent.add_rows(capacity)
        sessions[capacity].checkpoint(wait=True)
    cpu: dict[int, list[float]] = {capacity: [] for capacity in agents}
    stalls: list[float] = []
    copies: list[float] = []
    for _ in range(REPEATS * 2):
        for capacity, agent in agents.items():
            agent.add_rows(10_000)
            gc.collect()
            agent.memory.copy_time = 0.0
            started, wall = time.process_time(), time.perf_counter()
            sessions[capacity].checkpoint()
            stalls.append((time.perf_counter() - wall) * 1e3)
            sessions[capacity].flush()
            cpu[capacity].append((time.process_time() - started) * 1e3)
            copies.append(agent.memory.copy_time * 1e3)
    dumps: list[float] = []
    memory = agents[1_000_000].memory
    for _ in range(3):
        gc.collect()
        started = time.process_time()
        write_atomic(root / "dump.mpk", *encode({"columns": memory.read(memory.first, memory.end)}))
        dumps.append((time.process_time() - started) * 1e3)
    for session in sessions.values():
        session.close()
    return CheckpointCosts(
        checkpoint={capacity: min(values) for capacity, values in cpu.items()},
        dump=min(dumps),
        stall=statistics.median(stalls),
        copy=statistics.median(copies),
    )


def main() -> None:
    logging.disable(logging.WARNING)
    root = Path(tempfile.mkdtemp(prefix="rekindle-overhead-"))
    try:
        cases: dict[str, Callable[[], float]] = {
            "act + observe": lambda: act_and_observe(root),
            "stream.step": lambda: stream_step(root),
            "observe_many, batch of 64, each": lambda: batches(root),
            "one episode logged": lambda: episodes(root),
            "act + observe, journal": lambda: act_and_observe(root, journal=True),
            "stream.step, journal": lambda: stream_step(root, journal=True),
            "observe_many, journal": lambda: batches(root, journal=True),
        }
        least = least_cpu(cases)
        step_bytes = journal_bytes(root)
        costs = checkpoint_costs(root)
    finally:
        shutil.rmtree(root)
    journal = {
        "act + observe": least["act + observe, journal"] - least["act + observe"],
        "stream.step": least["stream.step, journal"] - least["stream.step"],
        "observe_many": least["observe_many, journal"] - least["observe_many, batch of 64, each"],
    }
    small, large = costs.checkpoint[10_000], costs.checkpoint[1_000_000]
    figures = [
        Figure("act + observe, one step", "us", least["act + observe"], 10.0),
        Figure("stream.step, one step", "us", least["stream.step"], 15.0),
        Figure("observe_many, batch of 64, each transition", "us", least["observe_many, batch of 64, each"], 1.5),
        Figure("one episode logged", "us", least["one episode logged"], 15.0),
        Figure("the input journal beyond that: act + observe", "us", journal["act + observe"], 10.0),
        Figure("the same: stream.step", "us", journal["stream.step"], 5.0),
        Figure("the same: observe_many, each transition", "us", journal["observe_many"], 1.0),
        Figure("checkpoint of 10 000 new rows / full dump of 1 000 000", "ratio", large / costs.dump, 0.1),
        Figure("the same, capacity 1 000 000 / capacity 10 000", "ratio", max(large / small, small / large), 1.2),
        Figure("training stalls at a checkpoint, beyond the copy (wall)", "ms", costs.stall - costs.copy, 0.5),
    ]
    table = Table(title=f"Session overhead, CPU time, {OBSERVATION_SIZE} float32 observations, run attached")
    for heading in ("", "figure", "budget", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for figure in figures:
        verdict = "within" if figure.value <= figure.budget else "OVER"
        table.add_row(figure.what, f"{figure.value:.2f} {figure.unit}", f"{figure.budget:g} {figure.unit}", verdict)
    console = Console(width=120)
    console.print(table)
    console.print(f"the input journal takes {step_bytes:.0f} bytes for a step of a stream")
    console.print(
        f"checkpoint of 10 000 new rows: {large:.1f} ms CPU (capacity 1 000 000), {small:.1f} ms (10 000); "
        f"full dump of 1 000 000: {costs.dump:.0f} ms; stall {costs.stall:.2f} ms, {costs.copy:.2f} ms of it the copy"
    )


if __name__ == "__main__":
    main()
