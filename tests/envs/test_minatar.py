"""MinAtar: found by its ids, its episodes repeat, and its preset trains, resumes and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.envs import EnvFactory
from rekindle.envs.determinism import Determinism, probe
from rekindle.training import Trainer

pytest.importorskip("minatar")

GAME = "MinAtar/Breakout-v1"


def moves(env: Any, actions: list[int]) -> list[bytes]:
    """What an episode shows, from its reset on."""
    return [env.reset(seed=5)[0].tobytes(), *(env.step(action)[0].tobytes() for action in actions)]


def test_an_episode_does_not_depend_on_the_action_that_ended_the_one_before() -> None:
    factory = EnvFactory(GAME, arguments={"sticky_action_prob": 1.0})  # every step repeats the action before it
    env = factory()
    first = moves(env, [1, 1, 1])
    env.get_wrapper_attr("game").last_action = 3
    assert moves(env, [1, 1, 1]) == first
    env.close()
    assert probe(factory) is Determinism.REPEATS


def test_frames_are_pictures() -> None:
    env = EnvFactory(GAME, arguments={"render_mode": "rgb_array"})()
    env.reset(seed=0)
    frame: Any = env.render()
    assert (frame.dtype, frame.shape) == (np.uint8, (160, 160, 3))
    assert frame.max() > 100
    env.close()


@pytest.mark.slow
def test_a_training_with_the_preset_resumes_exactly_and_needs_no_permission_for_our_network(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    options: dict[str, Any] = {"root": tmp_path, "steps": 2_000, "eval_episodes": 0, "checkpoint_every": 500}
    Trainer.from_preset(GAME, "dqn", name="whole", **options).train()
    for step in Trainer.from_preset(GAME, "dqn", name="cut", **options).steps():
        if step.total_steps >= 1_200:
            break
    report = Trainer.resume(tmp_path / "cut").train()
    assert report.updates > 100
    assert rekindle.verify(tmp_path / "cut").digests == rekindle.verify(tmp_path / "whole").digests
