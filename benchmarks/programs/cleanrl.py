"""Trainings as a single file of PyTorch has them, in the manner of CleanRL, for `benchmarks/peers.py`.

    python cleanrl.py CASE

Vector environments with statistics of episodes, the memory of Stable-Baselines3, eager PyTorch; no TensorBoard.
"""

# Neither PyTorch nor Gymnasium's vector environments are fully typed.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.buffers import ReplayBuffer
from timing import CASES, Case, Stopwatch, keep_to_one_processor
from torch import Tensor, nn
from torch.nn.functional import mse_loss, smooth_l1_loss

GAMMA = 0.99


def make_envs(case: Case) -> Any:
    def make() -> gym.Env[Any, Any]:
        return gym.wrappers.RecordEpisodeStatistics(gym.make(case.env_id))

    return SyncVectorEnv([make] * case.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def final_observations(observations: Any, truncated: Any, infos: dict[str, Any]) -> Any:
    """What was observed last, where an environment has reset itself since."""
    last = observations.copy()
    for row in np.flatnonzero(truncated):
        last[row] = infos["final_obs"][row]
    return last


def make_memory(capacity: int, envs: Any) -> ReplayBuffer:
    envs.single_observation_space.dtype = np.float32  # as CleanRL has it
    spaces = (envs.single_observation_space, envs.single_action_space)
    return ReplayBuffer(capacity, *spaces, "cpu", handle_timeout_termination=False)


def dense(sizes: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


# DQN


def dqn(case: Case, watch: Stopwatch) -> None:
    envs = make_envs(case)
    network = dense((envs.single_observation_space.shape[0], 120, 84, envs.single_action_space.n), nn.ReLU)
    target = copy.deepcopy(network)
    optimiser = torch.optim.Adam(network.parameters(), lr=2.5e-4)
    memory = make_memory(100_000, envs)
    observations, _ = envs.reset(seed=0)
    for step in range(1, case.steps + 1):
        epsilon = max(0.05, 1 - 0.95 * step / 2_000)
        if np.random.random() < epsilon:
            actions = envs.action_space.sample()
        else:
            with torch.no_grad():
                actions = network(torch.as_tensor(observations)).argmax(1).numpy()
        following, rewards, terminated, truncated, infos = envs.step(actions)
        ended = terminated | truncated
        memory.add(observations, final_observations(following, ended, infos), actions, rewards, terminated, [infos])
        observations = following
        if step > case.warmup and step % 4 == 0:
            batch = memory.sample(128)
            with torch.no_grad():
                best = target(batch.next_observations).max(1).values
                goal = batch.rewards.flatten() + GAMMA * best * (1 - batch.dones.flatten())
            loss = smooth_l1_loss(network(batch.observations).gather(1, batch.actions)[:, 0], goal)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            optimiser.step()
        if step % 1_000 == 0:
            target.load_state_dict(network.state_dict())
        watch.look(step)


# SAC


class Actor(nn.Module):
    def __init__(self, observation: int, low: Any, high: Any) -> None:
        super().__init__()
        self.body = nn.Sequential(dense((observation, 256, 256), nn.ReLU), nn.ReLU())
        self.mean, self.log_std = nn.Linear(256, len(low)), nn.Linear(256, len(low))
        self.scale = torch.as_tensor((high - low) / 2, dtype=torch.float32)
        self.centre = torch.as_tensor((high + low) / 2, dtype=torch.float32)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(observations)
        log_std = self.log_std(features).clamp(-20, 2)
        normal = torch.distributions.Normal(self.mean(features), log_std.exp())
        drawn = normal.rsample()
        squashed = torch.tanh(drawn)
        log_prob = normal.log_prob(drawn) - torch.log(self.scale * (1 - squashed.pow(2)) + 1e-6)
        return squashed * self.scale + self.centre, log_prob.sum(1)


def sac(case: Case, watch: Stopwatch) -> None:
    envs = make_envs(case)
    space, size = envs.single_action_space, envs.single_observation_space.shape[0]
    actor = Actor(size, space.low, space.high)
    critics = nn.ModuleList(dense((size + space.shape[0], 256, 256, 1), nn.ReLU) for _ in range(2))
    targets = copy.deepcopy(critics)
    log_temperature = torch.zeros(1, requires_grad=True)
    for_actor, for_critics, for_temperature = (
        torch.optim.Adam(parameters, lr=3e-4)
        for parameters in (actor.parameters(), critics.parameters(), [log_temperature])
    )
    memory = make_memory(1_000_000, envs)

    def values(networks: nn.ModuleList, observations: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat([observations, actions], 1)
        return torch.stack([network(inputs)[:, 0] for network in networks])

    observations, _ = envs.reset(seed=0)
    for step in range(1, case.steps + 1):
        if step <= case.warmup:
            actions = envs.action_space.sample()
        else:
            with torch.no_grad():
                actions = actor(torch.as_tensor(observations, dtype=torch.float32))[0].numpy()
        following, rewards, terminated, truncated, infos = envs.step(actions)
        ended = terminated | truncated
        memory.add(observations, final_observations(following, ended, infos), actions, rewards, terminated, [infos])
        observations = following
        if step > case.warmup:
            batch = memory.sample(256)
            seen, after, action = batch.observations, batch.next_observations, batch.actions
            temperature = log_temperature.exp().detach()
            with torch.no_grad():
                chosen, log_prob = actor(after)
                worth = values(targets, after, chosen).min(0).values - temperature * log_prob
                goal = batch.rewards.flatten() + GAMMA * (1 - batch.dones.flatten()) * worth
            first, second = values(critics, seen, action)
            loss = mse_loss(first, goal) + mse_loss(second, goal)
            for_critics.zero_grad()
            loss.backward()
            for_critics.step()
            chosen, log_prob = actor(seen)
            loss = (temperature * log_prob - values(critics, seen, chosen).min(0).values).mean()
            for_actor.zero_grad()
            loss.backward()
            for_actor.step()
            loss = (-log_temperature.exp() * (log_prob.detach() - space.shape[0])).mean()
            for_temperature.zero_grad()
            loss.backward()
            for_temperature.step()
            with torch.no_grad():
                for old, new in zip(targets.parameters(), critics.parameters(), strict=True):
                    old.lerp_(new, 0.005)
        watch.look(step)


# PPO


class ActorCritic(nn.Module):
    def __init__(self, observation: int, actions: int) -> None:
        super().__init__()
        self.actor = dense((observation, 64, 64, actions), nn.Tanh)
        self.critic = dense((observation, 64, 64, 1), nn.Tanh)

    def forward(self, observations: Tensor, actions: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        chances = torch.distributions.Categorical(logits=self.actor(observations))
        chosen = chances.sample() if actions is None else actions
        return chosen, chances.log_prob(chosen), chances.entropy(), self.critic(observations)[:, 0]


def ppo(case: Case, watch: Stopwatch) -> None:
    envs = make_envs(case)
    rows, length, minibatch = case.num_envs, 128, 256
    network = ActorCritic(envs.single_observation_space.shape[0], envs.single_action_space.n)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-4, eps=1e-5)
    seen = torch.zeros(length, rows, *envs.single_observation_space.shape)
    actions, log_probs, rewards, ends, values = (torch.zeros(length, rows) for _ in range(5))
    following, _ = envs.reset(seed=0)
    observation, end, step = torch.as_tensor(following), torch.zeros(rows), 0
    while step < case.steps:
        for index in range(length):
            step += rows
            seen[index], ends[index] = observation, end
            with torch.no_grad():
                action, log_probs[index], _, values[index] = network(observation)
            actions[index] = action
            following, reward, terminated, truncated, _ = envs.step(action.numpy())
            rewards[index] = torch.as_tensor(reward)
            observation, end = torch.as_tensor(following), torch.as_tensor(terminated | truncated).float()
            watch.look(step)
        with torch.no_grad():
            value, goes_on, advantage = network(observation)[3], 1 - end, torch.zeros(rows)
            advantages = torch.zeros(length, rows)
            for index in reversed(range(length)):
                error = rewards[index] + GAMMA * value * goes_on - values[index]
                advantages[index] = advantage = error + GAMMA * 0.95 * goes_on * advantage
                value, goes_on = values[index], 1 - ends[index]
            returns = advantages + values
        columns = [column.flatten(0, 1) for column in (seen, actions.long(), log_probs, advantages, returns)]
        for _ in range(4):
            order = np.random.permutation(length * rows)
            for start in range(0, length * rows, minibatch):
                batch = [column[order[start : start + minibatch]] for column in columns]
                before, action, old_log_prob, advantage, goal = batch
                _, log_prob, entropy, value = network(before, action)
                ratio = (log_prob - old_log_prob).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                gain = torch.min(advantage * ratio, advantage * ratio.clamp(0.8, 1.2)).mean()
                loss = 0.5 * mse_loss(value, goal) - gain - 0.0 * entropy.mean()
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 0.5)
                optimiser.step()


def main() -> None:
    case = CASES[sys.argv[1]]
    keep_to_one_processor()
    watch = Stopwatch(case.first)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    {"dqn": dqn, "ppo": ppo, "sac": sac}[case.algorithm](case, watch)
    watch.report(case.steps)


if __name__ == "__main__":
    main()
