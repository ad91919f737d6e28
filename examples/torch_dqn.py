"""Double DQN in PyTorch, as an agent of your own; rekindle itself does not depend on PyTorch.

Kill it at any time, also with kill -9, and start it again: it continues, and ends with the same result, bit for bit, as
a run that was never interrupted. Network, target network and optimiser are saved as plain arrays, in files that run no
code when they are loaded.

pip install .[torch]
python examples/torch_dqn.py --steps 20000
"""

# PyTorch's own types are partial.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import copy
from typing import Any, cast

import gymnasium
import msgspec
import numpy as np
import torch
from torch import nn

from rekindle import ActMode, State, StatsTracker, TrainingSession, Transitions
from rekindle.agent import Metrics, StreamSlots
from rekindle.experience import Array, Observations
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer
from rekindle.policy.policy import NetworkPolicy
from rekindle.replay import Memory
from rekindle.rng import generator_from_state, generator_state
from rekindle.stats import RollingMean, TotalReward

# Convert the state_dict of a module or an optimiser to a tree that a checkpoint can hold, and back


def tree_of(value: Any) -> Any:
    """Tensors become arrays of their own, and the numbers of an optimiser's parameters text."""
    match value:
        case torch.Tensor():
            return value.detach().cpu().numpy().copy()
        case dict():
            return {str(key): tree_of(item) for key, item in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [tree_of(item) for item in cast("list[Any]", value)]
        case _:
            return value


def state_dict_of(tree: Any) -> Any:
    """What `load_state_dict` takes; all tensors are copies."""
    match tree:
        case np.ndarray():
            return torch.tensor(tree)
        case dict():
            items = cast("dict[str, Any]", tree).items()
            return {int(key) if key.isdecimal() else key: state_dict_of(item) for key, item in items}
        case list():
            return [state_dict_of(item) for item in cast("list[Any]", tree)]
        case _:
            return tree


# The agent


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    hidden: int = 128
    learning_rate: float = 5e-4
    gamma: float = 0.98
    n_step: int = 3
    capacity: int = 50_000
    warmup_steps: int = 1_000
    batch_size: int = 64
    update_every: int = 2  # env steps
    target_update_every: int = 250  # updates
    epsilon_end: float = 0.05
    epsilon_steps: int = 5_000
    max_grad_norm: float = 10.0


class TorchDQN:
    """Learns the values of discrete actions from remembered transitions."""

    def __init__(self, observation_space: Any, action_space: Any, *, seed: int, **settings: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.settings = Settings(**settings)
        self.env_steps = 0
        self.updates = 0
        self._skipped = 0
        self._memory = Memory(self.settings.capacity, observation_space, action_space)
        # torch draws the initial weights. All later random numbers come from these generators, which are in the state.
        self._exploring, self._sampling = np.random.default_rng(seed).spawn(2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = self._new_network()
        self._use(network, copy.deepcopy(network), self._new_optimiser(network))

    def _new_network(self) -> nn.Sequential:
        (inputs,), hidden, actions = self.observation_space.shape, self.settings.hidden, int(self.action_space.n)
        return nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, actions)
        )

    def _new_optimiser(self, network: nn.Sequential) -> torch.optim.Adam:
        return torch.optim.Adam(network.parameters(), lr=self.settings.learning_rate)

    def _use(self, network: nn.Sequential, target: nn.Sequential, optimiser: torch.optim.Adam) -> None:
        self._network, self._target, self._optimiser = network, target, optimiser
        self._acting = self._policy_on(network)

    # Acting: with numpy, on the memory of torch's own weights, which the optimiser changes in place

    @property
    def epsilon(self) -> float:
        done = min(1.0, self.env_steps / self.settings.epsilon_steps)
        return 1 + (self.settings.epsilon_end - 1) * done

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:  # noqa: ARG002
        rng = self._exploring if mode is ActMode.EXPLORE else None
        head = msgspec.structs.replace(self._acting.head, exploration=self.epsilon)
        return head.choose(self._acting.output(observations), None, rng)

    def policy(self) -> NetworkPolicy:
        return self._policy_on(copy.deepcopy(self._network))

    def _policy_on(self, network: nn.Sequential) -> NetworkPolicy:
        layers: list[Layer] = []
        for module in network:
            if isinstance(module, nn.Linear):
                weight, bias = module.weight.detach().numpy(), module.bias.detach().numpy()
                layers.append(Layer("dense", {"weight": weight.T, "bias": bias}))
            else:
                layers.append(Layer("activation", name="relu"))
        space = self.action_space
        head = ActionHead("greedy", space.dtype.str, [], [int(space.n)], [int(space.start)], exploration=self.epsilon)
        return NetworkPolicy(Encoding.of(self.observation_space), layers, head, algorithm="torch_dqn")

    # Replay buffer

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        self._memory.append(transitions, streams)
        self.env_steps += len(transitions)

    def cut(self, streams: StreamSlots) -> None:
        self._memory.cut(streams)

    def replay(self) -> Memory:
        return self._memory

    # Learning

    def updates_due(self) -> int:
        owed = (self.env_steps - self.settings.warmup_steps) // self.settings.update_every
        return max(0, owed - self.updates - self._skipped)

    def skip_updates(self, n: int) -> None:
        self._skipped += n

    def update(self, n: int) -> Metrics:
        losses = np.array([self._update() for _ in range(n)])
        return {"loss": losses, "epsilon": self.epsilon}

    def _update(self) -> float:
        settings = self.settings
        batch = self._memory.sample(self._sampling, settings.batch_size, n_step=settings.n_step, gamma=settings.gamma)
        rewards, discounts = torch.from_numpy(batch.rewards), torch.from_numpy(batch.discounts)
        seen, following = torch.from_numpy(batch.observations), torch.from_numpy(batch.next_observations)
        taken = torch.from_numpy(batch.actions - self.action_space.start)[:, None]
        with torch.no_grad():  # the network selects the next action, the target network evaluates it
            best = self._network(following).argmax(1, keepdim=True)
            goals = rewards + discounts * self._target(following).gather(1, best)[:, 0]
        loss = nn.functional.smooth_l1_loss(self._network(seen).gather(1, taken)[:, 0], goals)
        self._optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._network.parameters(), settings.max_grad_norm)
        self._optimiser.step()
        self.updates += 1
        if self.updates % settings.target_update_every == 0:
            self._target.load_state_dict(self._network.state_dict())
        return loss.item()

    # Saving and loading

    def state(self) -> State:
        return {
            "weights": tree_of(self._network.state_dict()),
            "target": tree_of(self._target.state_dict()),
            "optimiser": tree_of(self._optimiser.state_dict()),
            "memory": self._memory.state(),
            "env_steps": self.env_steps,
            "updates": self.updates,
            "skipped": self._skipped,
            "exploring": generator_state(self._exploring),
            "sampling": generator_state(self._sampling),
        }

    def load_state(self, state: State) -> None:
        # Load into new objects: if the state does not fit, torch raises, and this agent is unchanged.
        network, target = self._new_network(), self._new_network()
        optimiser = self._new_optimiser(network)
        network.load_state_dict(state_dict_of(state["weights"]))
        target.load_state_dict(state_dict_of(state["target"]))
        optimiser.load_state_dict(state_dict_of(state["optimiser"]))
        exploring, sampling = generator_from_state(state["exploring"]), generator_from_state(state["sampling"])
        self._memory.load_state(state["memory"])
        self._use(network, target, optimiser)
        self._exploring, self._sampling = exploring, sampling
        self.env_steps, self.updates, self._skipped = state["env_steps"], state["updates"], state["skipped"]


# The training


def greedy_return(policy: NetworkPolicy, env: gymnasium.Env[Any, Any], episodes: int = 10) -> float:
    total = 0.0
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        is_over = False
        while not is_over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total += float(reward)
            is_over = terminated or truncated
    return total / episodes


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a DQN in PyTorch on CartPole; started again, go on.")
    parser.add_argument("--runs", default="runs", help="where runs are kept")
    parser.add_argument("--steps", type=int, default=20_000, help="env steps in all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # Sums in another order differ in their last bits. One thread is also the fastest for networks this small.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    env: gymnasium.Env[Any, Any] = gymnasium.make("CartPole-v1")
    agent = TorchDQN(env.observation_space, env.action_space, seed=args.seed)
    with TrainingSession.open(
        "torch_dqn",
        agent,
        root=args.runs,
        seed=args.seed,
        max_steps=args.steps,
        checkpoint_every=500,
        stats=StatsTracker.empty().add("return", TotalReward(), RollingMean(20)),
    ) as session:
        if session.resumed is not None:
            print(f"going on from step {session.resumed.step} ({session.resumed.grade})", flush=True)

        def report() -> None:
            mean = session.stats_summary()["return"]
            print(f"{session.total_steps:>7} steps  {mean:>5.0f} upright, mean of 20 episodes", flush=True)

        session.every(1_000, report)
        stream = session.stream()
        while not session.is_done:
            action = stream.begin(stream.reset(env))
            while action is not None:
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, float(reward), terminated, truncated)
    print(f"greedy: {greedy_return(agent.policy(), env):.0f} steps upright, of 500")


if __name__ == "__main__":
    main()
