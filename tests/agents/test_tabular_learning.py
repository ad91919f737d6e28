"""The tabular agent solves the tasks it is meant for, driven by a session."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from rekindle import TrainingSession
from rekindle.agents import Tabular

TAXI = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)
EVALUATIONS = 100


def trained(env: gymnasium.Env[Any, Any], steps: int, **config: Any) -> Tabular:
    agent = Tabular(env.observation_space, env.action_space, seed=0, **config)
    with TrainingSession(agent, max_steps=steps, seed=0, signals=False) as session:
        stream = session.stream()
        while not session.is_done:
            action = stream.begin(stream.reset(env))
            while action is not None and not session.is_done:
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, float(reward), terminated, truncated)
    return agent


def greedy_return(agent: Tabular, env: gymnasium.Env[Any, Any], episodes: int = EVALUATIONS) -> float:
    policy, total = agent.policy(), 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=1_000_000 + episode)
        is_over = False
        while not is_over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(np.array([observation]))[0])
            total += float(reward)
            is_over = terminated or truncated
    return total / episodes


@pytest.mark.slow
@pytest.mark.parametrize(("method", "learning_rate"), [("q_learning", 0.5), ("sarsa", 0.1), ("expected_sarsa", 0.5)])
def test_every_method_crosses_the_frozen_lake(method: str, learning_rate: float) -> None:
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    agent = trained(env, 10_000, method=method, learning_rate=learning_rate, epsilon_steps=8_000)
    assert greedy_return(agent, env, episodes=1) == 1.0


@pytest.mark.slow
def test_q_learning_crosses_the_slippery_lake_nearly_as_often_as_can_be() -> None:
    env = gymnasium.make("FrozenLake-v1", is_slippery=True)
    agent = trained(env, 50_000, learning_rate=0.05, epsilon_end=0.1, epsilon_steps=25_000)
    assert greedy_return(agent, env, episodes=200) >= 0.65  # the best possible is about 0.74


@pytest.mark.slow
def test_q_learning_walks_along_the_cliff() -> None:
    env = gymnasium.make("CliffWalking-v1", max_episode_steps=200)
    agent = trained(env, 15_000, method="q_learning", learning_rate=0.5, epsilon_end=0.1)
    assert greedy_return(agent, env, episodes=1) == -13


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sarsa", "expected_sarsa"])
def test_the_others_keep_away_from_the_cliff_because_they_know_that_they_stumble(method: str) -> None:
    env = gymnasium.make("CliffWalking-v1", max_episode_steps=200)
    agent = trained(env, 20_000, method=method, learning_rate=0.5, epsilon_end=0.1)
    assert -21 <= greedy_return(agent, env, episodes=1) <= -15


@pytest.mark.slow
def test_replay_learns_to_drive_a_taxi_in_thirty_thousand_steps() -> None:
    env = gymnasium.make(TAXI)
    agent = trained(env, 30_000, learning_rate=1.0, epsilon_steps=20_000, capacity=30_000, replay_updates=10)
    assert greedy_return(agent, env) >= 7
