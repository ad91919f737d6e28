"""Options that other libraries call differently: the error has the option here, in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Rekindle = Callable[..., Any]


@pytest.mark.parametrize(
    ("algorithm", "option", "message"),
    [
        ("dqn", "--agent.buffer-size", "--agent.buffer-size is called --agent.capacity here"),
        ("dqn", "--agent.buffer_size", "--agent.buffer_size is called --agent.capacity here"),
        ("dqn", "--buffer-size", "--buffer-size is called --agent.capacity here"),
        ("dqn", "--agent.gradient-steps", "--agent.gradient-steps is called --agent.updates-each here"),
        ("ppo", "--agent.clip-range", "--agent.clip-range is called --agent.clip here"),
        ("ppo", "--agent.n-steps", "called --agent.rollout-steps here: it counts the transitions of all environments"),
        ("dqn", "--total-timesteps", "--total-timesteps is called --steps here"),
        ("dqn", "--log-dir", "--log-dir is called --runs here"),
        ("dqn", "--env-kwargs", "--env-kwargs is called --env.arguments here"),
        ("dqn", "--exp_name", "--exp_name is called --name here"),
        ("dqn", "--agent.n-envs", "--agent.n-envs is called --num-envs here"),
        ("dqn", "--learning-rate", "there is no option --learning-rate; use --agent.learning-rate"),
        ("dqn", "--agent.num-envs", "there is no option --agent.num-envs; use --num-envs"),
        ("dqn", "--max-episode-steps", "there is no option --max-episode-steps; use --env.max-episode-steps"),
    ],
)
@pytest.mark.parametrize("form", ["{} 1", "{}=1"])
def test_an_option_of_another_library_is_told_by_its_name_here(
    rekindle: Rekindle, algorithm: str, option: str, message: str, form: str
) -> None:
    outcome = rekindle("train", algorithm, "CartPole-v1", *form.format(option).split())
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize("words", ["--algo ppo --env CartPole-v1", "ppo --env=CartPole-v1", "--env-id X --algo ppo"])
def test_the_algorithm_and_the_environment_are_no_options(rekindle: Rekindle, words: str) -> None:
    outcome = rekindle("train", *words.split())
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "are the first two arguments, as in rekindle train ppo CartPole-v1" in outcome.err


def test_every_option_that_there_is_passes(rekindle: Rekindle) -> None:
    every = ["--runs", "r", "--resume", "no", "--from", "x", "--env-module", "m", "--env.arguments", "a", "1", "--json"]
    every += ["--agent.frame-stack", "4", "--env.frame_stack", "4", "--with-optimiser", "--ui", "none", "--stay"]
    assert rekindle("train", "dqn", "CartPole-v1", *every, "--help").code == 0
