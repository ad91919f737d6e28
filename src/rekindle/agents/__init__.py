"""Agents that learn, each in a module that reads from top to bottom.

Those that learn with JAX are imported when they are asked for: `pip install "rekindle-rl[agents]"`.
"""

from __future__ import annotations

import importlib
import typing

from rekindle import errors, text
from rekindle.agents.tabular import Tabular, TabularConfig, TabularPolicy

if typing.TYPE_CHECKING:
    from rekindle.agents.awac import AWAC, AWACConfig
    from rekindle.agents.bc import BC, BCConfig
    from rekindle.agents.dqn import DQN, DQNConfig, rainbow
    from rekindle.agents.iql import IQL, IQLConfig
    from rekindle.agents.iqn import IQN, IQNConfig
    from rekindle.agents.own_networks import equinox_layers
    from rekindle.agents.ppo import PPO, PPOConfig
    from rekindle.agents.sac import SAC, SACConfig
    from rekindle.agents.saving import load
    from rekindle.agents.settings import Linear
    from rekindle.agents.td3 import TD3, TD3Config, td3_bc

__all__ = [
    "AWAC",
    "AWACConfig",
    "BC",
    "BCConfig",
    "DQN",
    "DQNConfig",
    "IQL",
    "IQLConfig",
    "IQN",
    "IQNConfig",
    "Linear",
    "PPO",
    "PPOConfig",
    "SAC",
    "SACConfig",
    "TD3",
    "TD3Config",
    "Tabular",
    "TabularConfig",
    "TabularPolicy",
    "equinox_layers",
    "load",
    "rainbow",
    "td3_bc",
]

_HOMES = {
    "AWAC": "awac",
    "AWACConfig": "awac",
    "BC": "bc",
    "BCConfig": "bc",
    "DQN": "dqn",
    "DQNConfig": "dqn",
    "IQL": "iql",
    "IQLConfig": "iql",
    "IQN": "iqn",
    "IQNConfig": "iqn",
    "Linear": "settings",
    "PPO": "ppo",
    "PPOConfig": "ppo",
    "SAC": "sac",
    "SACConfig": "sac",
    "TD3": "td3",
    "TD3Config": "td3",
    "equinox_layers": "own_networks",
    "load": "saving",
    "rainbow": "dqn",
    "td3_bc": "td3",
}
"""Where to find what is imported late."""


def __getattr__(name: str) -> typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "rekindle":
            raise
        raise errors.MissingExtra(
            f"{name.removesuffix('Config')} needs {error.name}: {text.install_command('agents')}", name=error.name
        ) from None
    return getattr(module, name)
