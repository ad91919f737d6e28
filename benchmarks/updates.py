"""What an update costs in CPU time, on one core, against the same update in plain PyTorch; and what acting costs.

    python benchmarks/updates.py --torch PATH/TO/python

`--torch` names an interpreter with torch 2.13.0, by default the one that runs this; a venv of its own will do:

    python -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.13.0 numpy

Without torch only our own figures are shown. Both sides draw their batches from a memory of 100 000 transitions (5 000
of images). They take turns, as other work on the machine only ever adds: times are the least of all turns, ratios the
median over pairs.

Both are kept to one core by the affinity of the process, and CPU time is that of all its threads; beyond that JAX is
told `--xla_cpu_multi_thread_eigen=false` in `XLA_FLAGS`, and PyTorch `torch.set_num_threads(1)`. The library itself
sets none of these.
"""

# PyTorch need not be installed, and JAX's types are partial.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import reference_updates
from reference_updates import (
    CONTINUOUS,
    DQN_SHAPE,
    IMAGE,
    IMAGE_SHAPE,
    IMAGES,
    MEMORY,
    PPO_IMAGE_SHAPE,
    PPO_SHAPE,
    SIZES,
    one_thread,
)

REPEATS = 9
TITLES = {
    "dqn": "double DQN, 128x128, batch 128",
    "images": "double DQN, Nature CNN, batch 32",
    "ppo": "PPO, 64x64, minibatch 64",
    "ppo-images": "PPO, Nature CNN, minibatch 256",
    "sac": "SAC, 256x256, batch 256",
    "td3": "TD3, 400x300, batch 256",
}
LEAST: dict[str, dict[int, float | None]] = {
    "dqn": {64: 4.5, 8: None, 1: 2.8},
    "images": {1: 1.2},
    "ppo": {64: 15, 8: None, 1: None},
    "ppo-images": {1: 1.2},
    "sac": {64: 1.8, 8: None, 1: None},
    "td3": {64: None, 8: None, 1: None},
}
"""By updates in a dispatch, how many times as quick as PyTorch we want to be."""
UPDATES = {"dqn": 256, "images": 8, "ppo": 320, "ppo-images": 16, "sac": 64, "td3": 64}
"""Updates timed in a turn."""


class Timer:
    """Another process that times updates: it gets a line of JSON for each request, and answers with one."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, *request: Any) -> float:
        """Seconds of CPU time an update."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# Ours


def make(name: str) -> Any:
    """An agent that is ready to learn; one with a memory has it full."""
    agent = fresh(name)
    agent.warm_up()
    if not name.startswith("ppo"):
        rows = IMAGES if name == "images" else MEMORY
        watch(agent, lambda: agent.env_steps == rows)
    return agent


def fresh(name: str, **more: Any) -> Any:
    """A new agent, with more settings."""
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    from rekindle import agents

    shapes = {"dqn": DQN_SHAPE, "images": IMAGE_SHAPE, "ppo": PPO_SHAPE, "ppo-images": PPO_IMAGE_SHAPE}
    shape, is_images = shapes.get(name, CONTINUOUS), name.endswith("images")
    memory = IMAGES if is_images else MEMORY
    space = Box(0, 255, IMAGE, np.uint8) if is_images else Box(-10, 10, (shape["observations"],), np.float32)
    if "actions" in shape:
        actions, hidden = Discrete(shape["actions"]), (shape["hidden"],) * (1 if is_images else 2)
    else:
        actions, hidden = Box(-1, 1, (shape["dimensions"],), np.float32), SIZES[name]
    if name.startswith("ppo"):
        settings = {
            "rollout_steps": shape["rollout"],
            "minibatch_size": shape["batch"],
            "epochs": shape["epochs"],
            "entropy_coef": 0.01,
        }
    else:
        settings = {"batch_size": shape["batch"], "capacity": memory}
    algorithm = "DQN" if name == "images" else name.removesuffix("-images").upper()
    return getattr(agents, algorithm)(space, actions, seed=0, hidden_sizes=hidden, **settings, **more)


def watch(agent: Any, is_enough: Callable[[], bool]) -> None:
    """Let an agent observe random transitions."""
    import numpy as np

    from rekindle import ActMode, Transitions

    rng, streams, space = np.random.default_rng(0), np.arange(50), agent.observation_space

    def draw() -> Any:
        shape = (50, *space.shape)
        return rng.integers(0, 256, shape, np.uint8) if space.dtype == np.uint8 else rng.normal(size=shape).astype("f4")

    seen = draw()
    while not is_enough():
        following = draw()
        actions = agent.act(seen, ActMode.EXPLORE, streams)
        agent.observe(Transitions(seen, actions, rng.normal(size=50), following, np.zeros(50, np.uint8)), streams)
        seen = following


def seconds_per_update(agent: Any, each: int, total: int) -> float:
    """CPU time of an update, with so many of them in a dispatch; everything from drawing the batch on."""
    started = time.process_time()
    metrics: dict[str, Any] = {}
    for _ in range(total // each):
        metrics = agent.update(each)
    float(metrics["loss"].__array__()[-1])  # wait for the last
    return (time.process_time() - started) / total


def microseconds_to_act(agent: Any, mode: Any, calls: int) -> float:
    import numpy as np

    space, stream = agent.observation_space, np.zeros(1, np.int64)
    observation = np.zeros((1, *space.shape), space.dtype)
    started = time.process_time()
    for _ in range(calls):
        agent.act(observation, mode, stream)
    return (time.process_time() - started) / calls * 1e6


def has_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Time updates and actions.")
    parser.add_argument("--torch", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--only", nargs="*", choices=list(LEAST), help="agents to time, by default all")
    arguments = parser.parse_args()
    one_thread()
    from rich.console import Console
    from rich.table import Table

    from rekindle import ActMode

    console = Console()
    torch = Timer([arguments.torch, reference_updates.__file__]) if has_torch(arguments.torch) else None
    for name in arguments.only or LEAST:
        agent, sizes, total = make(name), LEAST[name], UPDATES[name]
        ours: dict[int, list[float]] = {size: [] for size in sizes}
        ratios: dict[int, list[float]] = {size: [] for size in sizes}
        theirs: list[float] = []
        for repeat in range(REPEATS + 1):
            for size in sizes:
                if name.startswith("ppo"):
                    watch(agent, lambda: agent.updates_due() > 0)  # noqa: B023 - it is called at once
                seconds = seconds_per_update(agent, size, total)
                reference = None if torch is None else torch(name, total)
                if repeat:  # the first is for warming up
                    ours[size].append(seconds)
                    if reference is not None:
                        theirs.append(reference)
                        ratios[size].append(reference / seconds)
        calls = 200 if name.endswith("images") else 2_000
        actors = {mode.value: (agent, mode) for mode in ActMode}
        for noise in ("ou", "pink") if name in SIZES else ():
            actors[f"explore, noise={noise}"] = fresh(name, noise=noise, warmup_steps=0), ActMode.EXPLORE
        acting = {
            what: min(microseconds_to_act(*actor, calls) for _ in range(REPEATS)) for what, actor in actors.items()
        }

        table = Table(TITLES[name], "µs an update", "times as quick as torch", "at least")
        if theirs:
            table.add_row("torch, eager", f"{min(theirs) * 1e6:.0f}", "1", "")
        for size, least in sizes.items():
            ratio = f"{statistics.median(ratios[size]):.1f}" if ratios[size] else "torch is not installed"
            label = f"{size} in a dispatch" if size > 1 else "one in a dispatch"
            table.add_row(label, f"{min(ours[size]) * 1e6:.0f}", ratio, f"{least}" if least else "")
        console.print(table)
        table = Table("acting on one observation", "µs", "at most")
        for what, microseconds in acting.items():
            table.add_row(what, f"{microseconds:.1f}", "" if name.endswith("images") else "15")
        console.print(table)
    if torch is not None:
        torch.close()


if __name__ == "__main__":
    main()
