"""A training that is cut in two, for one stream or several; run by test_agent_resume.py in processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from resuming import Track, train_part

from rekindle.agents import PPO, Linear

STEPS = 110
CUTS = {"one": 37, "several": 53, "gradual": 59}
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


def make(kind: str, *, is_image: bool) -> PPO:
    """An agent for a kind of loop."""
    world = Track("ppo", is_stacked=False, is_image=is_image)
    settings = {**SETTINGS, "normalise_observations": not is_image, "target_kl": 0.05 if kind == "several" else None}
    agent = (Gradual if kind == "gradual" else PPO)(world.observation_space, world.action_space, seed=3, **settings)
    agent.warm_up = lambda: None  # compile what is needed, and not what could be
    return agent


def main(root: Path, network: str, part: str) -> None:
    """Train with every kind of loop."""
    is_image = network == "cnn"
    for kind, cut in CUTS.items():
        worlds = [Track("ppo", is_stacked=False, is_image=is_image) for _ in range(1 if kind == "one" else 3)]
        agent = make(kind, is_image=is_image)

        def at_cut(agent: PPO = agent, kind: str = kind) -> None:
            is_learning = agent.state()["learning"] is not None
            assert is_learning == (kind == "gradual")

        train_part(root, kind, part, agent, cut=cut, worlds=worlds, steps=STEPS, at_cut=at_cut)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
