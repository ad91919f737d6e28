"""What an update costs in CPU time, on one core, against the same update in plain PyTorch; and what acting costs.

    python benchmarks/updates.py --torch PATH/TO/python

`--torch` names an interpreter with torch 2.13.0, by default the one that runs this; a venv of its own will do:

    python -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.13.0 numpy

Without torch only our own figures are shown. Both sides draw their batches from a memory of 100 000 transitions. They
take turns, as other work on the machine only ever adds: times are the least of all turns, ratios the median over pairs.

Both are kept to one core by the affinity of the process, and CPU time is that of all its threads; beyond that JAX is
told `--xla_cpu_multi_thread_eigen=false` in `XLA_FLAGS`, and PyTorch `torch.set_num_threads(1)`. The library itself
sets none of these.
"""

# PyTorch need not be installed, and JAX's types are partial.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false

from __future__ import annotations

import argparse
import copy
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
CONTINUOUS = {"observations": 17, "dimensions": 6, "batch": 256}
SIZES = {"sac": (256, 256), "td3": (400, 300)}
TITLES = {
    "dqn": "double DQN, 128x128, batch 128",
    "ppo": "PPO, 64x64, minibatch 64",
    "sac": "SAC, 256x256, batch 256",
    "td3": "TD3, 400x300, batch 256",
}
LEAST: dict[str, dict[int, float | None]] = {
    "dqn": {64: 4.5, 8: None, 1: 2.8},
    "ppo": {64: 15, 8: None, 1: None},
    "sac": {64: 1.8, 8: None, 1: None},
    "td3": {64: None, 8: None, 1: None},
}
"""By updates in a dispatch, how many times as quick as PyTorch we want to be."""
UPDATES = {"dqn": 256, "ppo": 320, "sac": 64, "td3": 64}
"""Updates timed in a turn."""


def one_thread() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"


# The reference: what one writes down in PyTorch, run by another interpreter


def serve_torch() -> None:
    """Time updates when asked to: a name and a count a line, seconds of CPU time an update back."""
    one_thread()
    import torch

    torch.set_num_threads(1)
    updates = {"dqn": torch_dqn(), "ppo": torch_ppo(), "sac": torch_sac(), "td3": torch_td3()}
    for line in sys.stdin:
        name, count = json.loads(line)
        started = time.process_time()
        for _ in range(count):
            updates[name]()
        print(json.dumps((time.process_time() - started) / count), flush=True)


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


class TorchParts:
    """What SAC and TD3 have in common: a memory, networks, critics and their targets."""

    def __init__(self, name: str) -> None:
        import numpy as np
        import torch

        self._hidden, self._rng = SIZES[name], np.random.default_rng(0)
        self.size, self.dimensions = CONTINUOUS["observations"], CONTINUOUS["dimensions"]
        self._columns = [
            self._rng.normal(size=(MEMORY, self.size)).astype(np.float32),
            self._rng.uniform(-1, 1, (MEMORY, self.dimensions)).astype(np.float32),
            self._rng.normal(size=(MEMORY, 1)).astype(np.float32),
            self._rng.normal(size=(MEMORY, self.size)).astype(np.float32),
            np.full((MEMORY, 1), 0.99, np.float32),
        ]
        self.critics = [self.mlp(self.size + self.dimensions, 1) for _ in range(2)]
        self.targets = copy.deepcopy(self.critics)
        parameters = [parameter for critic in self.critics for parameter in critic.parameters()]
        self.critic_optimiser = torch.optim.Adam(parameters, lr=3e-4)

    def mlp(self, inputs: int, outputs: int) -> Any:
        from torch import nn

        first, second = self._hidden
        return nn.Sequential(
            nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, outputs)
        )

    def draw(self) -> list[Any]:
        import torch

        rows = self._rng.integers(MEMORY, size=CONTINUOUS["batch"])
        return [torch.from_numpy(column[rows]) for column in self._columns]

    def fit(self, both: Any, goal: Any) -> None:
        """An update of the critics."""
        from torch import nn

        first, second = (nn.functional.mse_loss(critic(both), goal) for critic in self.critics)
        self.critic_optimiser.zero_grad()
        (first + second).backward()
        self.critic_optimiser.step()

    def follow(self, targets: list[Any], networks: list[Any]) -> None:
        import torch

        with torch.no_grad():
            for target, network in zip(targets, networks, strict=True):
                for old, new in zip(target.parameters(), network.parameters(), strict=True):
                    old.mul_(1 - 0.005).add_(new, alpha=0.005)


def torch_sac() -> Callable[[], None]:
    import numpy as np
    import torch
    from torch import nn

    parts = TorchParts("sac")
    critics, targets, size, dimensions = parts.critics, parts.targets, parts.size, parts.dimensions
    actor = parts.mlp(size, 2 * dimensions)
    actor_optimiser = torch.optim.Adam(actor.parameters(), lr=3e-4)
    log_temperature = torch.zeros(1, requires_grad=True)
    temperature_optimiser = torch.optim.Adam([log_temperature], lr=3e-4)

    def act(seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = actor(seen).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        before = normal.rsample()
        slope = 2 * (np.log(2) - before - nn.functional.softplus(-2 * before))
        return torch.tanh(before), (normal.log_prob(before) - slope).sum(1, keepdim=True)

    def update() -> None:
        before, action, reward, after, discount = parts.draw()
        temperature = log_temperature.exp().detach()
        with torch.no_grad():
            following, log_prob = act(after)
            both = torch.cat([after, following], 1)
            future = torch.minimum(targets[0](both), targets[1](both)) - temperature * log_prob
            goal = reward + discount * future
        parts.fit(torch.cat([before, action], 1), goal)

        chosen, log_prob = act(before)
        both = torch.cat([before, chosen], 1)
        loss = (temperature * log_prob - torch.minimum(critics[0](both), critics[1](both))).mean()
        actor_optimiser.zero_grad()
        loss.backward()
        actor_optimiser.step()

        loss = -(log_temperature * (log_prob.detach() - dimensions)).mean()
        temperature_optimiser.zero_grad()
        loss.backward()
        temperature_optimiser.step()
        parts.follow(targets, critics)

    return update


def torch_td3() -> Callable[[], None]:
    import torch
    from torch import nn

    parts = TorchParts("td3")
    critics, targets, size, dimensions = parts.critics, parts.targets, parts.size, parts.dimensions
    actor = nn.Sequential(parts.mlp(size, dimensions), nn.Tanh())
    target_actor = copy.deepcopy(actor)
    actor_optimiser = torch.optim.Adam(actor.parameters(), lr=1e-3)
    count = 0

    def update() -> None:
        nonlocal count
        before, action, reward, after, discount = parts.draw()
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5)
            both = torch.cat([after, (target_actor(after) + noise).clamp(-1, 1)], 1)
            goal = reward + discount * torch.minimum(targets[0](both), targets[1](both))
        parts.fit(torch.cat([before, action], 1), goal)
        count += 1
        if count % 2 == 0:
            loss = -critics[0](torch.cat([before, actor(before)], 1)).mean()
            actor_optimiser.zero_grad()
            loss.backward()
            actor_optimiser.step()
            parts.follow([*targets, target_actor], [*critics, actor])

    return update


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


def make(name: str) -> Any:
    """An agent that is ready to learn; one with a memory has it full."""
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    from rekindle import agents

    shape = {"dqn": DQN_SHAPE, "ppo": PPO_SHAPE}.get(name, CONTINUOUS)
    space = Box(-10, 10, (shape["observations"],), np.float32)
    if "actions" in shape:
        actions, hidden = Discrete(shape["actions"]), (shape["hidden"], shape["hidden"])
    else:
        actions, hidden = Box(-1, 1, (shape["dimensions"],), np.float32), SIZES[name]
    if name == "ppo":
        settings = {
            "rollout_steps": shape["rollout"],
            "minibatch_size": shape["batch"],
            "epochs": shape["epochs"],
            "entropy_coef": 0.01,
        }
    else:
        settings = {"batch_size": shape["batch"], "capacity": MEMORY}
    agent = getattr(agents, name.upper())(space, actions, seed=0, hidden_sizes=hidden, **settings)
    agent.warm_up()
    if name != "ppo":
        watch(agent, lambda: agent.env_steps == MEMORY)
    return agent


def watch(agent: Any, is_enough: Callable[[], bool]) -> None:
    """Let an agent observe random transitions."""
    import numpy as np

    from rekindle import ActMode, Transitions

    rng, streams = np.random.default_rng(0), np.arange(50)
    seen = rng.normal(size=(50, *agent.observation_space.shape)).astype(np.float32)
    while not is_enough():
        following = rng.normal(size=seen.shape).astype(np.float32)
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
    parser.add_argument("--only", nargs="*", choices=list(LEAST), help="agents to time, by default all")
    parser.add_argument("--serve-torch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_torch:
        serve_torch()
        return
    one_thread()
    from rich.console import Console
    from rich.table import Table

    from rekindle import ActMode

    console = Console()
    torch = Torch(arguments.torch) if has_torch(arguments.torch) else None
    for name in arguments.only or LEAST:
        agent, sizes, total = make(name), LEAST[name], UPDATES[name]
        ours: dict[int, list[float]] = {size: [] for size in sizes}
        ratios: dict[int, list[float]] = {size: [] for size in sizes}
        theirs: list[float] = []
        for repeat in range(REPEATS + 1):
            for size in sizes:
                if name == "ppo":
                    watch(agent, lambda: agent.updates_due() > 0)  # noqa: B023 - it is called at once
                seconds = seconds_per_update(agent, size, total)
                reference = None if torch is None else torch(name, total)
                if repeat:  # the first is for warming up
                    ours[size].append(seconds)
                    if reference is not None:
                        theirs.append(reference)
                        ratios[size].append(reference / seconds)
        acting = {mode: min(microseconds_to_act(agent, mode) for _ in range(REPEATS)) for mode in ActMode}

        table = Table(TITLES[name], "µs an update", "times as quick as torch", "at least")
        if theirs:
            table.add_row("torch, eager", f"{min(theirs) * 1e6:.0f}", "1", "")
        for size, least in sizes.items():
            ratio = f"{statistics.median(ratios[size]):.1f}" if ratios[size] else "torch is not installed"
            label = f"{size} in a dispatch" if size > 1 else "one in a dispatch"
            table.add_row(label, f"{min(ours[size]) * 1e6:.0f}", ratio, f"{least}" if least else "")
        console.print(table)
        table = Table("acting on one observation", "µs", "at most")
        for mode, microseconds in acting.items():
            table.add_row(mode.value, f"{microseconds:.1f}", "15")
        console.print(table)
    if torch is not None:
        torch.close()


if __name__ == "__main__":
    main()
