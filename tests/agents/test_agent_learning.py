"""Agents learn tasks that nobody wrote for them."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from probes import Corridor

from rekindle.agents import DQN, PPO, SAC
from rekindle.agents.presets import find_preset
from rekindle.run.reader import RunReader
from rekindle.session.session import TrainingSession
from rekindle.training import Trainer

EPISODES = 20


def greedy_return(agent: DQN | PPO | SAC, env: gym.Env[Any, Any], *, after: int) -> float:
    """Train for this many steps, then act greedily in episodes that the training has not seen."""
    with TrainingSession(agent, seed=0, max_steps=after) as session:
        stream = session.stream()
        while not session.is_done:
            action = stream.begin(stream.reset(env))
            while action is not None:
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, float(reward), terminated, truncated)
    policy, returns = agent.policy(), np.zeros(EPISODES)
    for episode in range(EPISODES):
        (observation, _), is_done = env.reset(seed=10_000 + episode), False
        while not is_done:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            returns[episode] += float(reward)
            is_done = terminated or truncated
    return float(returns.mean())


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_dqn_balances_a_pole_with_its_preset() -> None:
    env, preset = gym.make("CartPole-v1"), find_preset("dqn", "CartPole-v1")
    assert preset is not None
    agent = DQN(env.observation_space, env.action_space, seed=0, **preset.settings())
    assert greedy_return(agent, env, after=preset.steps) >= 450


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_sac_swings_a_pendulum_up_and_holds_it() -> None:
    env = gym.make("Pendulum-v1")
    settings = {"hidden_sizes": (64, 64), "learning_rate": 1e-3, "warmup_steps": 100, "capacity": 16_000}
    agent = SAC(env.observation_space, env.action_space, seed=0, **settings)
    assert greedy_return(agent, env, after=8_000) >= -200


@pytest.mark.parametrize(
    ("kind", "steps", "sizes"),
    [
        pytest.param(PPO, 6_144, {"size": 2, "side": 7}, marks=pytest.mark.slow),
        pytest.param(DQN, 12_000, {"size": 2, "side": 7}, marks=pytest.mark.exhaustive),
        pytest.param(PPO, 20_480, {}, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)]),
        pytest.param(DQN, 25_000, {}, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)]),
    ],
)
def test_pictures_beside_vectors_are_learned_from_with_the_default_settings(
    kind: type[DQN | PPO], steps: int, sizes: dict[str, int]
) -> None:
    env = Corridor(**sizes)
    agent = kind(env.observation_space, env.action_space, seed=0)
    agent.warm_up = lambda: None  # compile what is needed, and not what could be
    assert greedy_return(agent, env, after=steps) == pytest.approx(env.best)


@pytest.mark.exhaustive
def test_ppo_keeps_the_pole_up_in_a_run_of_ten_times_its_steps(tmp_path: Path) -> None:
    preset = find_preset("ppo", "CartPole-v1")
    assert preset is not None
    # The first fifth of that run, in which the learning rate stays high.
    settings = preset.settings(10 * preset.steps)
    evaluations = {"eval_every": 10_000, "eval_episodes": 10}
    Trainer.from_preset(
        "CartPole-v1", "ppo", name="long", root=tmp_path, steps=200_000, agent_settings=settings, **evaluations
    ).train()
    returns: dict[int, list[float]] = defaultdict(list)
    for row in RunReader(tmp_path / "long").eval_episodes():
        returns[row["total_steps_at_eval"]].append(row["total_reward"])
    scores = [float(np.mean(returns[step])) for step in sorted(returns)]
    assert len(scores) >= 20
    assert 500 in scores
    assert min(scores[scores.index(500) :]) >= 400
