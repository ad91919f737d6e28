"""What an update costs in CPU time, on one thread, against the same update in plain PyTorch; and what acting costs.

    python benchmarks/updates.py --torch PATH/TO/python

`--torch` names an interpreter with torch 2.13.0, by default the one that runs this; a venv of its own will do:

    python -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.13.0 numpy

Without torch only our own figures are shown. Both sides take turns, as other work on the machine only ever adds: times
are the least of all turns, ratios the median over pairs.

DQN: both draw their batches from a memory of 100 000 transitions. PPO: both learn from a rollout of 2048 transitions in
10 epochs; ours is timed from the full rollout on, with its log-probabilities, values and advantages, the reference from
the minibatch on.

Both are kept to one thread by the affinity of the process; beyond that JAX by `--xla_cpu_multi_thread_eigen=false` in
`XLA_FLAGS` and by `jax_cpu_enable_async_dispatch=False`, which runs a computation on the thread that asks for it, and
PyTorch by `torch.set_num_threads(1)`. The library itself sets none of these.
"""

# PyTorch need not be installed, and JAX's types are partial.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

REPEATS = 9
MEMORY = 100_000
DQN_SHAPE = {"observations": 4, "actions": 2, "hidden": 128, "batch": 128}
PPO_SHAPE = {"observations": 4, "actions": 2, "hidden": 64, "batch": 64, "rollout": 2048, "epochs": 10}


def one_thread() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    os.environ["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "false"
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"


# The reference: what one writes down in PyTorch, run by another interpreter


def torch_dqn() -> Callable[[], None]:
    import numpy as np
    import torch
    from torch import nn

    shape, rng = DQN_SHAPE, np.random.default_rng(0)

    def make() -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(shape["observations"], shape["hidden"]),
            nn.ReLU(),
            nn.Linear(shape["hidden"], shape["hidden"]),
            nn.ReLU(),
            nn.Linear(shape["hidden"], shape["actions"]),
        )

    network, target = make(), make()
    target.load_state_dict(network.state_dict())
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-4)
    seen = rng.normal(size=(MEMORY, shape["observations"])).astype(np.float32)
    following = rng.normal(size=(MEMORY, shape["observations"])).astype(np.float32)
    actions = rng.integers(shape["actions"], size=(MEMORY, 1))
    rewards = rng.normal(size=MEMORY).astype(np.float32)
    discounts = np.full(MEMORY, 0.99, np.float32)
    count = 0

    def update() -> None:
        nonlocal count
        rows = rng.integers(MEMORY, size=shape["batch"])
        before, action, reward, after, discount = (
            torch.from_numpy(column[rows]) for column in (seen, actions, rewards, following, discounts)
        )
        with torch.no_grad():
            best = network(after).argmax(1, keepdim=True)
            goal = reward + discount * target(after).gather(1, best)[:, 0]
        loss = nn.functional.smooth_l1_loss(network(before).gather(1, action)[:, 0], goal)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimiser.step()
        count += 1
        if count % 1000 == 0:
            target.load_state_dict(network.state_dict())

    return update


def torch_ppo() -> Callable[[], None]:
    import numpy as np
    import torch
    from torch import nn

    shape, rng = PPO_SHAPE, np.random.default_rng(0)

    def make(outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(shape["observations"], shape["hidden"]),
            nn.Tanh(),
            nn.Linear(shape["hidden"], shape["hidden"]),
            nn.Tanh(),
            nn.Linear(shape["hidden"], outputs),
        )

    policy, value = make(shape["actions"]), make(1)
    parameters = [*policy.parameters(), *value.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)
    rollout = shape["rollout"]
    seen = torch.from_numpy(rng.normal(size=(rollout, shape["observations"])).astype(np.float32))
    actions = torch.from_numpy(rng.integers(shape["actions"], size=rollout))
    advantages, returns = (torch.from_numpy(rng.normal(size=rollout).astype(np.float32)) for _ in range(2))
    with torch.no_grad():
        old_log_probs = torch.distributions.Categorical(logits=policy(seen)).log_prob(actions)
    left: list[Any] = []

    def update() -> None:
        if not left:
            left.extend(torch.from_numpy(rng.permutation(rollout)).split(shape["batch"]))
        rows = left.pop()
        chosen = torch.distributions.Categorical(logits=policy(seen[rows]))
        ratios = (chosen.log_prob(actions[rows]) - old_log_probs[rows]).exp()
        advantage = advantages[rows]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = -torch.min(ratios * advantage, ratios.clamp(0.8, 1.2) * advantage).mean()
        value_loss = nn.functional.mse_loss(value(seen[rows])[:, 0], returns[rows])
        loss = policy_loss + 0.5 * value_loss - 0.01 * chosen.entropy().mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimiser.step()

    return update


def serve_torch() -> None:
    """Time updates when asked to: a name and a count a line, seconds of CPU time an update back."""
    one_thread()
    import torch

    torch.set_num_threads(1)
    updates = {"dqn": torch_dqn(), "ppo": torch_ppo()}
    for line in sys.stdin:
        name, count = json.loads(line)
        started = time.process_time()
        for _ in range(count):
            updates[name]()
        print(json.dumps((time.process_time() - started) / count), flush=True)


class Torch:
    """The other interpreter."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, __file__, "--serve-torch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, name: str, count: int) -> float:
        """Seconds of CPU time an update."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, count]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# Ours


def make_dqn() -> Any:
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    from rekindle import Transitions
    from rekindle.agents import DQN

    shape, rng = DQN_SHAPE, np.random.default_rng(0)
    agent = DQN(
        Box(-10, 10, (shape["observations"],), np.float32),
        Discrete(shape["actions"]),
        seed=0,
        hidden_sizes=(shape["hidden"], shape["hidden"]),
        batch_size=shape["batch"],
        capacity=MEMORY,
    )
    agent.warm_up()
    streams = np.arange(100)
    seen = rng.normal(size=(100, shape["observations"])).astype(np.float32)
    for _ in range(MEMORY // 100):
        following = rng.normal(size=seen.shape).astype(np.float32)
        actions, rewards = rng.integers(shape["actions"], size=100), rng.normal(size=100)
        agent.observe(Transitions(seen, actions, rewards, following, np.zeros(100, np.uint8)), streams)
        seen = following
    return agent


def make_ppo() -> Any:
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    from rekindle.agents import PPO

    shape = PPO_SHAPE
    agent = PPO(
        Box(-10, 10, (shape["observations"],), np.float32),
        Discrete(shape["actions"]),
        seed=0,
        hidden_sizes=(shape["hidden"], shape["hidden"]),
        minibatch_size=shape["batch"],
        rollout_steps=shape["rollout"],
        epochs=shape["epochs"],
        entropy_coef=0.01,
    )
    agent.warm_up()
    return agent


def fill(agent: Any) -> None:
    """Give an agent that learns from rollouts another one."""
    import numpy as np

    from rekindle import ActMode, Transitions

    shape, rng, streams = PPO_SHAPE, np.random.default_rng(0), np.arange(64)
    seen = rng.normal(size=(64, shape["observations"])).astype(np.float32)
    while not agent.updates_due():
        following = rng.normal(size=seen.shape).astype(np.float32)
        actions = agent.act(seen, ActMode.EXPLORE, streams)
        agent.observe(Transitions(seen, actions, rng.normal(size=64), following, np.zeros(64, np.uint8)), streams)
        seen = following


def seconds_per_update(agent: Any, each: int, total: int) -> float:
    """CPU time of an update, with so many of them in a dispatch; everything from drawing the batch on."""
    started = time.process_time()
    metrics: dict[str, Any] = {}
    for _ in range(total // each):
        metrics = agent.update(each)
    float(metrics["loss"].__array__()[-1])  # wait for the last
    return (time.process_time() - started) / total


def microseconds_to_act(agent: Any, mode: Any, calls: int = 2_000) -> float:
    import numpy as np

    observation, stream = np.zeros((1, *agent.observation_space.shape), np.float32), np.zeros(1, np.int64)
    started = time.process_time()
    for _ in range(calls):
        agent.act(observation, mode, stream)
    return (time.process_time() - started) / calls * 1e6


def has_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Time updates and actions.")
    parser.add_argument("--torch", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--serve-torch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_torch:
        serve_torch()
        return
    one_thread()
    from rich.console import Console
    from rich.table import Table

    from rekindle import ActMode

    torch = Torch(arguments.torch) if has_torch(arguments.torch) else None
    console = Console()
    sections = {
        "dqn": ("double DQN, 128x128, batch 128", make_dqn, {64: 4.5, 8: None, 1: 2.8}),
        "ppo": ("PPO, 64x64, minibatch 64", make_ppo, {64: 15, 8: None, 1: None}),
    }
    for name, (title, make, sizes) in sections.items():
        agent = make()
        ours, theirs, ratios = measure(name, agent, list(sizes), torch)
        table = Table(title, "µs an update", "times as quick as torch", "at least")
        if theirs:
            table.add_row("torch, eager", f"{min(theirs) * 1e6:.0f}", "1", "")
        for size, least in sizes.items():
            ratio = f"{statistics.median(ratios[size]):.1f}" if ratios[size] else "torch is not installed"
            label = f"{size} in a dispatch" if size > 1 else "one in a dispatch"
            table.add_row(label, f"{min(ours[size]) * 1e6:.0f}", ratio, f"{least}" if least else "")
        console.print(table)
        table = Table(f"acting on one observation, {title}", "µs", "at most")
        for mode in ActMode:
            microseconds = min(microseconds_to_act(agent, mode) for _ in range(REPEATS))
            table.add_row(mode.value, f"{microseconds:.1f}", "15")
        console.print(table)
    if torch is not None:
        torch.close()


Times = dict[int, list[float]]


def measure(name: str, agent: Any, sizes: list[int], torch: Torch | None) -> tuple[Times, list[float], Times]:
    """Seconds an update for each number in a dispatch; those of torch; and how many times as quick ours are."""
    ours: Times = {size: [] for size in sizes}
    ratios: Times = {size: [] for size in sizes}
    theirs: list[float] = []
    for repeat in range(REPEATS + 1):
        for size in sizes:
            if name == "ppo":
                fill(agent)
            seconds = seconds_per_update(agent, size, agent.updates_due() if name == "ppo" else 256)
            reference = None if torch is None else torch(name, 200)
            if repeat:  # the first is for warming up
                ours[size].append(seconds)
                if reference is not None:
                    theirs.append(reference)
                    ratios[size].append(reference / seconds)
    return ours, theirs, ratios


if __name__ == "__main__":
    main()
