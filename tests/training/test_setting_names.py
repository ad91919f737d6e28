"""Settings that other libraries call differently, or that are given in the wrong place."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from rekindle.errors import ConfigError
from rekindle.training import Trainer
from rekindle.training.config import ARGUMENTS, TrainerSettings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"total_timesteps": 9}, "a trainer has no setting total_timesteps; `total_timesteps` is called `steps` here"),
        ({"n_envs": 9}, "`n_envs` is called `num_envs` here"),
        ({"learning_rate": 1.0}, "`learning_rate` is a setting of the agent: give it in agent_settings"),
        ({"buffer_size": 9}, "`buffer_size` is called `capacity` here, and is a setting of the agent"),
        ({"callback": print}, r"no setting callback; add callbacks with trainer.on\(Event, function\)"),
        ({"progress_bar": True}, r"pass progress to trainer.train\(\)"),
        ({"log_dir": "here"}, "`log_dir` is called `root` here"),
        ({"tag": "good"}, "no setting tag; did you mean tags"),
        ({"agent_kwargs": {}}, "`agent_kwargs` is called `agent_settings` here"),
        ({"env_kwargs": {}}, "`env_kwargs` is called `arguments` here, and is a setting of the environment"),
        ({"modules": ["mine"]}, "`modules` is a setting of the environment: use EnvFactory"),
        ({"frame_skip": 9}, "a trainer has no setting frame_skip"),
        ({"max_episode_steps": 9}, "is a setting of the environment: use EnvFactory"),
        ({"agent_settings": {"num_envs": 4}}, "`num_envs` is a setting of the trainer"),
        ({"agent_settings": {"n_envs": 4}}, "`n_envs` is called `num_envs` here, and is a setting of the trainer"),
        ({"agent_settings": {"buffer_size": 4}}, "DQNConfig has no setting 'buffer_size'; `buffer_size` is called"),
    ],
)
def test_a_trainer_says_what_a_setting_is_called_and_whose_it_is(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer("CartPole-v1", "dqn", **settings)


def test_messages_know_all_arguments_of_a_trainer() -> None:
    parameters = inspect.signature(Trainer).parameters.values()
    keywords = {parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
    assert {*ARGUMENTS} == keywords - {*TrainerSettings.__struct_fields__}


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (("dqn", "CartPole-v1"), {}, r"dqn is an algorithm, and no environment: use Trainer\(ENV, ALGO\)"),
        (("CartPole-v1", "dqn"), {"name": 5}, "the name of a run is a str such as 'cartpole', not 5"),
        (("CartPole-v1", "dqn"), {"steps": "9", "agent_settings": {"epsilon_steps": 0.5}}, "steps is '9': use a whole"),
        (
            ("CartPole-v1", "dqn"),
            {"agent_settings": {"learning_rate": lambda left: left * 1e-3}},
            r"learning_rate is a function, .*; a schedule is .* such as Linear\(1e-3, 0.0, 1.0\)",
        ),
    ],
)
def test_a_trainer_says_what_it_takes_instead(
    arguments: tuple[Any, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(*arguments, **settings)
