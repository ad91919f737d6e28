"""What remembering and sampling cost, in CPU time, against the budgets we hold ourselves to.

The memories are full, so that every append overwrites, and far larger than the caches of the machine. Repeats are
interleaved and the least of each case is shown, as other work on the machine only ever adds.

    python benchmarks/replay.py
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
from gymnasium.spaces import Box, Discrete
from rich.console import Console
from rich.table import Table

from rekindle import Transitions
from rekindle.replay import Memory, PrioritizedMemory

OBSERVATION_SIZE = 17
ACTION_SIZE = 6
CAPACITY = 1_000_000
STREAMS = 64
EPISODE = 1000
BATCH = 256
CALLS = 1000
REPEATS = 9


class Figure(msgspec.Struct, frozen=True):
    what: str
    value: float
    budget: float | None = None


class Walk:
    """Endless streams of 17 numbers: batches of one step each, as a vector of environments gives them."""

    def __init__(self, streams: int) -> None:
        rng = np.random.default_rng(0)
        self.streams = np.arange(streams)
        observations = rng.random((EPISODE + 1, streams, OBSERVATION_SIZE), np.float32)
        actions = rng.random((streams, ACTION_SIZE), np.float32)
        rewards, going_on, ended = np.ones(streams), np.zeros(streams, np.uint8), np.ones(streams, np.uint8)
        episode = [
            Transitions(observations[step], actions, rewards, observations[step + 1], going_on)
            for step in range(EPISODE)
        ]
        episode[-1] = Transitions(observations[-2], actions, rewards, observations[-1], ended)
        self.batches = itertools.cycle(episode)


def fill(memory: Memory | PrioritizedMemory) -> None:
    walk = Walk(STREAMS)
    while memory.end < CAPACITY + STREAMS:
        memory.append(next(walk.batches), walk.streams)


def vectors() -> Memory:
    observations, actions = Box(-1, 1, (OBSERVATION_SIZE,)), Box(-1, 1, (ACTION_SIZE,))
    return Memory(CAPACITY, observations, actions)


def frames() -> Memory:
    """20 000 stacks of 4 frames, episode by episode."""
    memory = Memory(20_000, Box(0, 255, (4, 84, 84), np.uint8), Discrete(18), frame_stack=4)
    rng = np.random.default_rng(0)
    shown = rng.integers(0, 256, (504, 84, 84), np.uint8)
    stream = np.zeros(1, np.int64)
    while memory.end < 20_000 + 504:
        for step in range(500):
            stacks = shown[None, step : step + 4], shown[None, step + 1 : step + 5]
            status = np.array([step == 499], np.uint8)
            memory.append(Transitions(stacks[0], np.zeros(1, np.int64), np.ones(1), stacks[1], status), stream)
    return memory


def least_cpu(cases: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds of a call: every case in turn, several times over, and the least of each."""
    results: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(REPEATS):
        for name, case in cases.items():
            gc.collect()
            started = time.process_time()
            for _ in range(CALLS):
                case()
            results[name].append((time.process_time() - started) / CALLS * 1e6)
    return {name: min(values) for name, values in results.items()}


def main() -> None:
    memory, prioritized, stacked = vectors(), PrioritizedMemory(vectors(), alpha=0.6), frames()
    fill(memory)
    fill(prioritized)
    rng = np.random.default_rng(0)
    errors = rng.random(BATCH)
    single, several = Walk(1), Walk(STREAMS)

    def draw_and_update() -> None:
        batch, _ = prioritized.sample(rng, BATCH, beta=0.4)
        prioritized.update(batch.rows, errors)

    least = least_cpu(
        {
            "sample": lambda: memory.sample(rng, BATCH),
            "sample 3": lambda: memory.sample(rng, BATCH, n_step=3),
            "prioritized": draw_and_update,
            "append": lambda: memory.append(next(single.batches), single.streams),
            "append several": lambda: memory.append(next(several.batches), several.streams),
            "append prioritized": lambda: prioritized.append(next(single.batches), single.streams),
        }
    )
    stacks = least_cpu({"sample": lambda: stacked.sample(rng, 32)})
    figures = [
        Figure(f"sample {BATCH}", least["sample"], 45),
        Figure(f"sample {BATCH}, windows of 3 steps", least["sample 3"]),
        Figure(f"sample {BATCH} by priority and update their priorities", least["prioritized"], 300),
        Figure("append one transition", least["append"], 15),
        Figure(f"append {STREAMS} transitions, each", least["append several"] / STREAMS),
        Figure("append one transition with its priority", least["append prioritized"]),
        Figure("sample 32 stacks of 4 frames of 84 x 84", stacks["sample"]),
    ]
    title = f"Replay, CPU time, {CAPACITY:_} transitions of {OBSERVATION_SIZE} float32".replace("_", " ")
    table = Table(title=title)
    for heading in ("", "figure", "budget", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for figure in figures:
        budget = "" if figure.budget is None else f"{figure.budget:g} us"
        verdict = "" if figure.budget is None else "within" if figure.value <= figure.budget else "OVER"
        table.add_row(figure.what, f"{figure.value:.2f} us", budget, verdict)
    console = Console(width=120)
    console.print(table)
    console.print(
        f"bytes a row: {memory.nbytes / memory.capacity:.0f}, of which {(OBSERVATION_SIZE + ACTION_SIZE) * 4} are the "
        f"observation and the action; {prioritized.nbytes / memory.capacity:.0f} with priorities; "
        f"{stacked.nbytes / stacked.capacity:.0f} with a frame of {84 * 84}"
    )


if __name__ == "__main__":
    main()
