"""A training that is cut in two, for one stream or several; run by test_agent_resume.py in processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary, Tuple
from resuming import Track, train_part, world_of

from rekindle.agents import PPO, Linear

STEPS = 110
CUTS = {"one": 37, "several": 53, "gradual": 59, "composite": 41}
"""By kind of loop, where it is cut: in the middle of a rollout, or of the updates on one."""
SETTINGS: dict[str, Any] = {
    "hidden_sizes": (8,),
    "rollout_steps": 18,
    "minibatch_size": 8,
    "epochs": 3,
    "learning_rate": Linear(0.01, 0.0, 100),
    "normalise_rewards": True,
}


class Gradual(PPO):
    """Makes one update a step, so that checkpoints fall between the updates on a rollout."""

    def updates_due(self) -> int:
        return min(1, super().updates_due())


class Both(Track):
    """The walk with composite actions, seen through a Tuple in a Dict."""

    def __init__(self) -> None:
        super().__init__("ppo", is_stacked=False, is_image=False)
        self.push = self.action_space
        self.observation_space: Any = Dict({"seen": Tuple([self.observation_space, Discrete(12)])})
        self.action_space: Any = Tuple([Dict({"push": self.push, "brake": Discrete(2, start=1)}), MultiBinary(2)])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        move, flags = action
        return super().step(np.sum(move["push"]) / move["brake"] + 0.1 * flags[0])

    def _observation(self) -> Any:
        return {"seen": (super()._observation(), self._steps)}


def worlds_of(kind: str, network: str) -> list[Any]:
    """The worlds of a kind of loop."""
    if kind == "composite":
        return [Both(), Both()]
    return [world_of("ppo", "rollout", network) for _ in range(1 if kind == "one" else 3)]


def kinds(network: str) -> list[str]:
    """The kinds of loop for a network."""
    return [kind for kind in CUTS if kind != "composite" or network == "mlp"]


def make(kind: str, network: str) -> PPO:
    """An agent for a kind of loop."""
    world = worlds_of(kind, network)[0]
    is_normal, target_kl = network != "cnn", 0.05 if kind == "several" else None
    settings = {**SETTINGS, "normalise_observations": is_normal, "target_kl": target_kl}
    agent = (Gradual if kind == "gradual" else PPO)(world.observation_space, world.action_space, seed=3, **settings)
    agent.warm_up = lambda: None  # compile what is needed, and not what could be
    return agent


def main(root: Path, network: str, part: str) -> None:
    """Train with every kind of loop."""
    for kind in kinds(network):
        cut, worlds = CUTS[kind], worlds_of(kind, network)
        agent = make(kind, network)

        def at_cut(agent: PPO = agent, kind: str = kind) -> None:
            is_learning = agent.state()["learning"] is not None
            assert is_learning == (kind == "gradual")

        train_part(root, kind, part, agent, cut=cut, worlds=worlds, steps=STEPS, at_cut=at_cut)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
