"""A loop that calls `learn` before each step is resumed exactly, wherever its checkpoints are."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import Corridor, ReplayAgent

from rekindle import TrainingSession, verify


def train(root: Path, *, steps: int) -> None:
    with TrainingSession.open(
        "run", ReplayAgent(0), root=root, checkpoint_every=4, learner="manual", max_steps=40, signals=False
    ) as session:
        stream, env = session.stream(), Corridor()
        while not session.is_done and session.total_steps < steps:
            action = stream.begin(stream.reset(env))
            while action is not None and session.total_steps < steps:
                if session.total_steps % 4 == 0:
                    session.learn()
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, reward, terminated, truncated)
        if steps < 40:
            session.flush()
            raise KeyboardInterrupt  # leaves a checkpoint of this step


@pytest.mark.parametrize("steps", [4, 8, 11, 12])
def test_a_cut_right_after_a_checkpoint_loses_no_update(tmp_path: Path, steps: int) -> None:
    train(tmp_path / "whole", steps=40)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", steps=steps)
    train(tmp_path / "cut", steps=40)
    whole, cut = (verify(tmp_path / name / "run") for name in ("whole", "cut"))
    assert (cut.grade, cut.digests) == ("exact", whole.digests)
