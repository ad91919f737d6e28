"""Presets: every one is valid, and the one that fits is found."""

from __future__ import annotations

import pytest

from rekindle.agents import DQNConfig, Linear, PPOConfig, SACConfig, TD3Config
from rekindle.agents.presets import find_preset, presets
from rekindle.agents.settings import make_config
from rekindle.envs import EnvWrapping

CONFIGS = {"dqn": DQNConfig, "ppo": PPOConfig, "sac": SACConfig, "td3": TD3Config}
EVERY = [(algorithm, pattern) for algorithm, found in presets().items() for pattern in found]


@pytest.mark.parametrize(("algorithm", "pattern"), EVERY)
def test_every_preset_is_one_that_its_agent_accepts(algorithm: str, pattern: str) -> None:
    preset = presets()[algorithm][pattern]
    assert preset.steps > 0
    assert preset.num_envs > 0
    config = make_config(CONFIGS[algorithm], preset.settings())
    assert getattr(config, "warmup_steps", 0) < preset.steps
    assert getattr(config, "rollout_steps", 0) < preset.steps
    assert EnvWrapping(**preset.env).frame_stack == getattr(config, "frame_stack", None) or algorithm == "ppo"


def test_a_schedule_spans_the_run_that_it_is_for() -> None:
    preset = find_preset("dqn", "CartPole-v1")
    assert preset is not None
    rate = preset.settings(1_000)["learning_rate"]
    assert isinstance(rate, Linear)
    assert (rate.at(0) > 0, rate.at(1_000), rate.steps) == (True, 0.0, 1_000)
    assert preset.settings()["learning_rate"].steps == preset.steps


@pytest.mark.parametrize(
    ("algorithm", "env", "name"),
    [
        ("dqn", "CartPole-v1", "CartPole-v1"),
        ("dqn", "ALE/Pong-v5", "atari"),
        ("ppo", "HalfCheetah-v5", "mujoco"),
        ("sac", "InvertedDoublePendulum-v4", "mujoco"),
        ("td3", "HumanoidStandup-v5", "mujoco"),
    ],
)
def test_families_are_found_by_patterns(algorithm: str, env: str, name: str) -> None:
    preset = find_preset(algorithm, env)
    assert preset is not None
    assert preset.name == name


def test_there_is_none_for_what_nobody_tuned() -> None:
    assert find_preset("dqn", "NoSuchWorld-v0") is None
    assert find_preset("nothing", "CartPole-v1") is None
