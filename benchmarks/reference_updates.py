"""The updates of `benchmarks/updates.py` as one writes them down in PyTorch, run by an interpreter that has it."""

# PyTorch need not be installed.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

MEMORY, IMAGES = 100_000, 5_000
"""Transitions in memory; the latter where they are images."""
DQN_SHAPE = {"observations": 4, "actions": 2, "hidden": 128, "batch": 128}
IMAGE = (4, 84, 84)
IMAGE_SHAPE = {"actions": 6, "hidden": 512, "batch": 32}
PPO_SHAPE = {"observations": 4, "actions": 2, "hidden": 64, "batch": 64, "rollout": 2048, "epochs": 10}
CONTINUOUS = {"observations": 17, "dimensions": 6, "batch": 256}
PPO_IMAGE_SHAPE = {"actions": 6, "hidden": 512, "batch": 256, "rollout": 1024, "epochs": 4}
SIZES = {"sac": (256, 256), "td3": (400, 300)}


def one_thread() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"


def serve() -> None:
    """Time updates when asked to: a name and a count a line, seconds of CPU time an update back."""
    one_thread()
    import torch

    torch.set_num_threads(1)
    make = {
        "dqn": torch_dqn,
        "images": torch_images,
        "ppo": torch_ppo,
        "ppo-images": torch_ppo_images,
        "sac": torch_sac,
        "td3": torch_td3,
    }
    updates: dict[str, Callable[[], None]] = {}
    for line in sys.stdin:
        name, count = json.loads(line)
        updates[name] = updates[name] if name in updates else make[name]()
        started = time.process_time()
        for _ in range(count):
            updates[name]()
        print(json.dumps((time.process_time() - started) / count), flush=True)


def torch_dqn() -> Callable[[], None]:
    import numpy as np
    from torch import nn

    shape, rng = DQN_SHAPE, np.random.default_rng(0)
    network = nn.Sequential(
        nn.Linear(shape["observations"], shape["hidden"]),
        nn.ReLU(),
        nn.Linear(shape["hidden"], shape["hidden"]),
        nn.ReLU(),
        nn.Linear(shape["hidden"], shape["actions"]),
    )
    seen, following = (rng.normal(size=(MEMORY, shape["observations"])).astype(np.float32) for _ in range(2))
    return double_dqn(network, seen, following, actions=shape["actions"], batch=shape["batch"])


def torch_images() -> Callable[[], None]:
    import numpy as np
    from torch import nn

    shape, rng = IMAGE_SHAPE, np.random.default_rng(0)
    network = nn.Sequential(*nature_layers(shape["hidden"]), nn.Linear(shape["hidden"], shape["actions"]))
    seen, following = (rng.integers(0, 256, (IMAGES, *IMAGE), np.uint8) for _ in range(2))
    return double_dqn(network, seen, following, actions=shape["actions"], batch=shape["batch"])


def nature_layers(hidden: int) -> list[Any]:
    from torch import nn

    return [
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, hidden),
        nn.ReLU(),
    ]


def double_dqn(network: Any, seen: Any, following: Any, *, actions: int, batch: int) -> Callable[[], None]:
    import numpy as np
    import torch
    from torch import nn

    rng, size = np.random.default_rng(0), len(seen)
    target = copy.deepcopy(network)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-4)
    chosen = rng.integers(actions, size=(size, 1))
    rewards = rng.normal(size=size).astype(np.float32)
    discounts = np.full(size, 0.99, np.float32)
    count = 0

    def update() -> None:
        nonlocal count
        rows = rng.integers(size, size=batch)
        before, action, reward, after, discount = (
            torch.from_numpy(column[rows]) for column in (seen, chosen, rewards, following, discounts)
        )
        if before.dtype == torch.uint8:
            before, after = before.float() / 255, after.float() / 255
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
    seen = rng.normal(size=(shape["rollout"], shape["observations"])).astype(np.float32)
    parameters = [*policy.parameters(), *value.parameters()]
    return clipped_updates(lambda seen: (policy(seen), value(seen)), parameters, torch.from_numpy(seen), shape)


def torch_ppo_images() -> Callable[[], None]:
    import numpy as np
    import torch
    from torch import nn

    shape, rng = PPO_IMAGE_SHAPE, np.random.default_rng(0)
    body = nn.Sequential(*nature_layers(shape["hidden"]))
    policy, value = nn.Linear(shape["hidden"], shape["actions"]), nn.Linear(shape["hidden"], 1)

    def outputs(seen: Any) -> tuple[Any, Any]:
        features = body(seen.float() / 255)
        return policy(features), value(features)

    seen = torch.from_numpy(rng.integers(0, 256, (shape["rollout"], *IMAGE), np.uint8))
    parameters = [*body.parameters(), *policy.parameters(), *value.parameters()]
    return clipped_updates(outputs, parameters, seen, shape)


def clipped_updates(
    outputs: Callable[[Any], tuple[Any, Any]], parameters: list[Any], seen: Any, shape: dict[str, int]
) -> Callable[[], None]:
    """Updates of PPO; `outputs` gives logits and values."""
    import numpy as np
    import torch
    from torch import nn

    rng, rollout = np.random.default_rng(1), shape["rollout"]
    optimiser = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)
    actions = torch.from_numpy(rng.integers(shape["actions"], size=rollout))
    advantages, returns = (torch.from_numpy(rng.normal(size=rollout).astype(np.float32)) for _ in range(2))
    with torch.no_grad():
        old_log_probs = torch.distributions.Categorical(logits=outputs(seen)[0]).log_prob(actions)
    left: list[Any] = []

    def update() -> None:
        if not left:
            left.extend(torch.from_numpy(rng.permutation(rollout)).split(shape["batch"]))
        rows = left.pop()
        logits, values = outputs(seen[rows])
        chosen = torch.distributions.Categorical(logits=logits)
        ratios = (chosen.log_prob(actions[rows]) - old_log_probs[rows]).exp()
        advantage = advantages[rows]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = -torch.min(ratios * advantage, ratios.clamp(0.8, 1.2) * advantage).mean()
        value_loss = nn.functional.mse_loss(values[:, 0], returns[rows])
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


if __name__ == "__main__":
    serve()
