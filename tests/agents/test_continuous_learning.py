"""SAC learns a task that nobody wrote for it."""

import gymnasium as gym
import numpy as np
import pytest

from rekindle.agents import SAC
from rekindle.session import TrainingSession

STEPS, EPISODES = 8_000, 20


@pytest.mark.slow
def test_sac_swings_a_pendulum_up_and_holds_it() -> None:
    env = gym.make("Pendulum-v1")
    settings = {"hidden_sizes": (64, 64), "learning_rate": 1e-3, "warmup_steps": 100, "capacity": 2 * STEPS}
    agent = SAC(env.observation_space, env.action_space, seed=0, **settings)
    with TrainingSession(agent, seed=0, max_steps=STEPS) as session:
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
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation[None])[0])
            returns[episode] += float(reward)
            is_done = terminated or truncated
    assert returns.mean() >= -200
