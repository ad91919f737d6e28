"""Settings that other libraries call differently, or that are given in the wrong place."""

from __future__ import annotations

from typing import Any

import pytest

from rekindle.errors import ConfigError
from rekindle.training import Trainer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"total_timesteps": 9}, "a trainer has no setting total_timesteps; `total_timesteps` is called `steps` here"),
        ({"n_envs": 9}, "`n_envs` is called `num_envs` here"),
        ({"learning_rate": 1.0}, "`learning_rate` is a setting of the agent: give it in agent_settings"),
        ({"buffer_size": 9}, "`buffer_size` is called `capacity` here, and is a setting of the agent"),
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
