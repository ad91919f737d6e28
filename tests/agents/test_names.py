"""Settings that other libraries call differently: the error has the name here."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.spaces import Box, Discrete

from rekindle.agents import (
    AWAC,
    BC,
    DQN,
    IQL,
    IQN,
    PPO,
    SAC,
    TD3,
    AWACConfig,
    BCConfig,
    DQNConfig,
    IQLConfig,
    IQNConfig,
    PPOConfig,
    SACConfig,
    Tabular,
    TabularConfig,
    TD3Config,
)
from rekindle.agents.names import NAMES, advice_on
from rekindle.errors import ConfigError
from rekindle.training import TrainerSettings
from rekindle.training.config import ARGUMENTS

OBSERVATIONS, DISCRETE, CONTINUOUS = Box(-1, 1, (3,)), Discrete(2), Box(-1, 1, (1,))


@pytest.mark.parametrize(
    ("agent", "actions", "name", "advice"),
    [
        (PPO, DISCRETE, "n_steps", "`rollout_steps` here: it counts the transitions of all environments together"),
        (PPO, DISCRETE, "batch_size", "`minibatch_size`"),
        (PPO, DISCRETE, "n_epochs", "`epochs`"),
        (PPO, DISCRETE, "clip_range", "`clip`"),
        (PPO, DISCRETE, "clip_coef", "`clip`"),
        (PPO, DISCRETE, "clip_range_vf", "`clip_value`"),
        (PPO, DISCRETE, "ent_coef", "`entropy_coef`"),
        (PPO, DISCRETE, "lambda_", "`gae_lambda`"),
        (DQN, DISCRETE, "buffer_size", "`capacity`"),
        (DQN, DISCRETE, "learning_starts", "`warmup_steps`"),
        (DQN, DISCRETE, "train_freq", "`update_every`"),
        (DQN, DISCRETE, "gradient_steps", "`updates_each`"),
        (DQN, DISCRETE, "target_network_frequency", "`target_update_every` here: it counts updates"),
        (DQN, DISCRETE, "exploration_fraction", "`epsilon_steps` here: a fraction"),
        (DQN, DISCRETE, "n_steps", "`n_step`"),
        (SAC, CONTINUOUS, "ent_coef", "`temperature`"),
        (SAC, CONTINUOUS, "qf_learning_rate", "`learning_rate` here: actor and critics share it"),
        (TD3, CONTINUOUS, "action_noise", "`exploration_noise`"),
        (SAC, CONTINUOUS, "action_noise", "`noise`"),
        (TD3, CONTINUOUS, "policy_frequency", "`policy_delay`"),
        (DQN, DISCRETE, "n_quantiles", "`quantiles`"),
        (IQN, DISCRETE, "num_tau_samples", "`quantiles`"),
        (IQN, DISCRETE, "n_greedy_quantiles", "`policy_quantiles`"),
        (IQL, CONTINUOUS, "weight_temp", "`advantage_scale`"),
        (IQL, CONTINUOUS, "iql_tau", "`expectile`"),
        (AWAC, CONTINUOUS, "lam", "`advantage_scale` here: it is 1 / lambda"),
        (BC, CONTINUOUS, "policy_type", "`loss`"),
    ],
)
def test_an_agent_says_what_a_setting_is_called(agent: Any, actions: Any, name: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=f"has no setting '{name}'; `{name}` is called {advice}"):
        agent(OBSERVATIONS, actions, seed=0, **{name: 1})


def test_one_that_nobody_has_is_answered_with_those_that_are_near_or_with_all() -> None:
    with pytest.raises(ConfigError, match="'capacty'; did you mean capacity"):
        DQN(OBSERVATIONS, DISCRETE, seed=0, capacty=1)
    with pytest.raises(ConfigError, match="'colour'; there are learning_rate, gamma"):
        DQN(OBSERVATIONS, DISCRETE, seed=0, colour=1)
    with pytest.raises(ConfigError, match="'use_sde'; there is no state-dependent exploration"):
        PPO(OBSERVATIONS, DISCRETE, seed=0, use_sde=True)
    with pytest.raises(ConfigError, match="'lr'; `lr` is called `learning_rate` here"):
        Tabular(DISCRETE, DISCRETE, seed=0, lr=0.1)


def test_the_table_leads_to_settings_that_there_are() -> None:
    kinds = (
        *(AWACConfig, BCConfig, DQNConfig, IQLConfig, IQNConfig, PPOConfig, SACConfig, TD3Config, TabularConfig),
        TrainerSettings,
    )
    known = {name for kind in kinds for name in kind.__struct_fields__} | {*ARGUMENTS, "env", "arguments", "runs"}
    for name, (ours, _) in NAMES.items():
        assert ours
        assert set(ours) <= known, name
        assert name not in ours[:1]


def test_names_that_a_config_has_are_not_translated() -> None:
    assert advice_on("batch_size", ["capacity"]) == "there are capacity"
