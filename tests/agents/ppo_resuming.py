"""A training that is cut in two, for one stream or several; run by test_ppo_resume.py in processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from resuming import Track

from rekindle.agents import PPO, Linear
from rekindle.session import TrainingSession

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


def train(root: Path, kind: str, agent: PPO, *, is_image: bool, until: int) -> None:
    """Go on with a run until it has so many steps."""
    worlds = [Track("ppo", is_stacked=False, is_image=is_image) for _ in range(1 if kind == "one" else 3)]
    with TrainingSession.open(kind, agent, root=root, seed=5, max_steps=STEPS, metrics_every=20) as session:
        streams = [session.stream(index) for index in range(len(worlds))]
        actions = [stream.begin(stream.reset(world)) for stream, world in zip(streams, worlds, strict=True)]
        while session.total_steps < until:
            # The stream whose turn it is follows from the step alone, so that a resume takes the same one.
            turn = session.total_steps % len(worlds)
            observation, reward, terminated, truncated, _ = worlds[turn].step(actions[turn])
            actions[turn] = streams[turn].step(observation, reward, terminated, truncated)
            if actions[turn] is None and not session.is_done:
                actions[turn] = streams[turn].begin(streams[turn].reset(worlds[turn]))
        if not session.is_done:
            is_learning = agent.state()["learning"] is not None
            assert is_learning == (kind == "gradual")
            session.stop("cut")
    assert session.resumed is None or session.resumed.grade == "exact", session.resumed


def main(root: Path, network: str, part: str) -> None:
    """Train whole, or the first part, or the rest."""
    is_image = network == "cnn"
    for kind, cut in CUTS.items():
        agent = make(kind, is_image=is_image)
        if part == "first":
            fresh = agent.state()
            train(root / "whole", kind, agent, is_image=is_image, until=STEPS)
            agent.load_state(fresh)  # not another agent, which would compile everything again
            train(root / "cut", kind, agent, is_image=is_image, until=cut)
        else:
            train(root / "cut", kind, agent, is_image=is_image, until=STEPS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
