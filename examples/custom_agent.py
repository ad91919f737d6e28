"""An agent of your own: the cross-entropy method balances a pole with five numbers.

There is no base class and no registry: a session drives any object with these methods.

python examples/custom_agent.py
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np

from rekindle import ActMode, EpisodeStatus, State, TrainingSession, Transitions
from rekindle.agent import Metrics, StreamSlots
from rekindle.experience import Array, Observations
from rekindle.rng import generator_from_state, generator_state


class CrossEntropy:
    """Tries a population of linear policies, an episode each, and draws the next around the best of them."""

    def __init__(self, *, seed: int, population: int = 16, elites: int = 4) -> None:
        self.env_steps = 0
        self.updates = 0
        self._elites = elites
        self._rng = np.random.default_rng(seed)
        self._mean: Array = np.zeros(5)
        self._spread: Array = np.ones(5)
        self._population: Array = self._rng.normal(self._mean, self._spread, (population, 5))
        self._returns: Array = np.zeros(population)
        self._current = 0  # the policy whose episode this is

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:  # noqa: ARG002
        weights = self._mean if mode is ActMode.EXPLOIT else self._population[self._current]
        return (np.asarray(observations) @ weights[:4] + weights[4] > 0).astype(np.int64)

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:  # noqa: ARG002
        self.env_steps += len(transitions)
        self._returns[self._current] += transitions.rewards.sum()
        self._current += int((transitions.statuses != EpisodeStatus.CONTINUING).sum())

    def updates_due(self) -> int:
        return int(self._current == len(self._population))

    def update(self, n: int) -> Metrics:
        best = self._population[np.argsort(-self._returns, kind="stable")[: self._elites]]
        metrics = {"population_return": float(self._returns.mean())}
        self._mean, self._spread = best.mean(axis=0), best.std(axis=0) + 0.5  # not less: it must not settle too early
        self._population = self._rng.normal(self._mean, self._spread, self._population.shape)
        self._returns = np.zeros(len(self._population))
        self._current = 0
        self.updates += n
        return metrics

    def state(self) -> State:
        return {
            "weights": {"mean": self._mean.copy()},
            "spread": self._spread.copy(),
            "population": self._population.copy(),
            "returns": self._returns.copy(),
            "current": self._current,
            "env_steps": self.env_steps,
            "updates": self.updates,
            "rng": generator_state(self._rng),
        }

    def load_state(self, state: State) -> None:
        self._mean, self._spread = state["weights"]["mean"].copy(), state["spread"].copy()
        self._population, self._returns = state["population"].copy(), state["returns"].copy()
        self._current, self.env_steps, self.updates = state["current"], state["env_steps"], state["updates"]
        self._rng = generator_from_state(state["rng"])


def greedy_return(agent: CrossEntropy, env: gymnasium.Env[Any, Any], episodes: int = 10) -> float:
    total = 0.0
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        is_over = False
        while not is_over:
            action = agent.act(observation[None], ActMode.EXPLOIT, np.zeros(1, np.int64))[0]
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            is_over = terminated or truncated
    return total / episodes


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an agent of your own on CartPole.")
    parser.add_argument("--runs", default="runs", help="where runs are kept")
    parser.add_argument("--steps", type=int, default=30_000, help="env steps in all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    env: gymnasium.Env[Any, Any] = gymnasium.make("CartPole-v1")
    agent = CrossEntropy(seed=args.seed)
    print(f"before: {greedy_return(agent, env):.0f} steps upright, of 500")
    with TrainingSession.open(
        "custom_agent", agent, root=args.runs, seed=args.seed, max_steps=args.steps, checkpoint_every=2_000
    ) as session:
        stream = session.stream()
        while not session.is_done:
            action = stream.begin(stream.reset(env))
            while action is not None:
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, float(reward), terminated, truncated)
    print(f"after:  {greedy_return(agent, env):.0f} steps upright, of 500, having trained for {agent.env_steps}")


if __name__ == "__main__":
    main()
