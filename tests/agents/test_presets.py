"""Presets: every one is valid, and the one that fits is found."""

from __future__ import annotations

import pytest

from rekindle.agents import DQNConfig, IQNConfig, Linear, PPOConfig, SACConfig, TD3Config
from rekindle.agents.presets import find_preset, presets
from rekindle.agents.settings import make_config
from rekindle.envs import EnvWrapping

CONFIGS = {"dqn": DQNConfig, "iqn": IQNConfig, "ppo": PPOConfig, "sac": SACConfig, "td3": TD3Config}
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
        ("dqn", "ALE/Breakout-v5", "atari"),
        ("dqn", "MinAtar/Seaquest-v1", "minatar"),
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


@pytest.mark.parametrize(("algorithm", "pattern"), EVERY)
@pytest.mark.parametrize("share", [0.02, 0.4, 1, 10])
def test_every_preset_learns_in_a_run_of_any_length(algorithm: str, pattern: str, share: float) -> None:
    preset = presets()[algorithm][pattern]
    steps = round(preset.steps * share)
    config = make_config(CONFIGS[algorithm], preset.settings(steps))
    assert getattr(config, "warmup_steps", 0) <= steps // 2
    assert getattr(config, "epsilon_steps", 0) <= steps
    rollout_steps = getattr(config, "rollout_steps", 8 * preset.num_envs)
    assert 8 * rollout_steps <= steps or algorithm != "ppo"
    assert rollout_steps % preset.num_envs == 0
    if share >= 1:
        assert preset.settings(steps).keys() == preset.settings().keys()
        for name in ("warmup_steps", "rollout_steps", "minibatch_size"):
            assert preset.settings(steps).get(name) == preset.settings().get(name)


def test_warm_up_and_epsilon_are_in_proportion_to_the_run() -> None:
    preset = presets()["dqn"]["LunarLander-v3"]
    assert {name: preset.settings(25_000)[name] for name in ("warmup_steps", "epsilon_steps")} == {
        "warmup_steps": 500,
        "epsilon_steps": 5_000,
    }
    assert (
        preset.settings(2_500)["warmup_steps"] == preset.settings()["batch_size"]
    )  # and not fewer than an update needs
    assert preset.settings(500_000)["epsilon_steps"] == 100_000


def test_a_preset_as_it_stands_is_not_changed() -> None:
    for known in presets().values():
        for preset in known.values():
            assert preset.settings(preset.steps) == preset.settings()
