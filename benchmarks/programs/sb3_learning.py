"""A training of Stable-Baselines3 with the settings of RL Zoo, or of a paper, for `benchmarks/learning.py`."""

# The peer is not installed here.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize

__all__ = ["ZOO", "make_env", "train"]


class Zoo(NamedTuple):
    """What RL Zoo says about an environment."""

    settings: dict[str, Any]
    num_envs: int = 1
    normalises: bool = False
    """Observations and rewards."""


class MinAtarFeatures(BaseFeaturesExtractor):
    """The network of the MinAtar paper, without its last layer."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, 128)
        rows, columns, channels = observation_space.shape
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(channels, 16, 3),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(16 * (rows - 2) * (columns - 2), 128),
            torch.nn.ReLU(),
        )

    def forward(self, observations: Any) -> Any:
        return self.layers(observations.permute(0, 3, 1, 2))


MINATAR: dict[str, Any] = {
    "learning_rate": 2.5e-4,
    "batch_size": 32,
    "buffer_size": 100_000,
    "learning_starts": 5_000,
    "gamma": 0.99,
    "target_update_interval": 1_000,
    "train_freq": 1,
    "gradient_steps": 1,
    "exploration_fraction": 0.1,
    "exploration_final_eps": 0.1,
    "policy_kwargs": {
        "features_extractor_class": MinAtarFeatures,
        "net_arch": [],
        "optimizer_class": torch.optim.RMSprop,
        "optimizer_kwargs": {"alpha": 0.95, "centered": True, "eps": 0.01, "momentum": 0.95},
    },
}
"""The settings of the MinAtar paper (Young 2019)."""

ZOO = {
    ("dqn", "MountainCar-v0"): Zoo(
        {
            "learning_rate": 4e-3,
            "batch_size": 128,
            "buffer_size": 10_000,
            "learning_starts": 1_000,
            "gamma": 0.98,
            "target_update_interval": 600,
            "train_freq": 16,
            "gradient_steps": 8,
            "exploration_fraction": 0.2,
            "exploration_final_eps": 0.07,
            "policy_kwargs": {"net_arch": [256, 256]},
        }
    ),
    ("ppo", "BipedalWalker-v3"): Zoo(
        {
            "learning_rate": 3e-4,
            "n_steps": 2_048,
            "batch_size": 64,
            "n_epochs": 10,
            "gamma": 0.999,
            "gae_lambda": 0.95,
            "clip_range": 0.18,
            "ent_coef": 0.0,
        },
        num_envs=32,
        normalises=True,
    ),
    ("sac", "Hopper-v5"): Zoo({"learning_starts": 10_000}),
    ("dqn", "MinAtar/Breakout-v1"): Zoo(MINATAR),
    ("dqn", "MinAtar/SpaceInvaders-v1"): Zoo(MINATAR),
}
"""By algorithm and environment. RL Zoo has its settings of Hopper-v5 for Hopper-v3, and none for MinAtar."""

LONGEST = 10_000
"""Steps of an episode of MinAtar, which has no limit of its own; our preset has the same."""

Act = Callable[[Any], Any]
"""From one observation to the greedy action."""


def make_env(env_id: str) -> Any:
    """One environment."""
    if not env_id.startswith("MinAtar/"):
        return gymnasium.make(env_id)
    if env_id not in gymnasium.registry:
        from minatar.gym import register_envs

        register_envs()
    return gymnasium.make(env_id, max_episode_steps=LONGEST)


def train(
    algorithm: str,
    env_id: str,
    steps: int,
    seed: int,
    *,
    look_every: int,
    look: Callable[[int, Act], None],
    on_episode: Callable[[int, float], None],
) -> Act:
    """Train, and call `look` every so many env steps, and `on_episode` with the return of each episode."""
    torch.set_num_threads(1)
    zoo = ZOO[algorithm, env_id]
    envs: Any = make_vec_env(lambda: make_env(env_id), zoo.num_envs, seed=seed)
    normalised = VecNormalize(envs, gamma=zoo.settings["gamma"]) if zoo.normalises else None
    make = getattr(stable_baselines3, algorithm.upper())
    model = make("MlpPolicy", normalised or envs, seed=seed, device="cpu", **zoo.settings)

    def act(observation: Any) -> Any:
        seen = observation if normalised is None else normalised.normalize_obs(observation)
        return model.predict(seen, deterministic=True)[0]

    looked = 0

    def after_step(known: dict[str, Any], _: Any) -> bool:
        nonlocal looked
        for info in known["infos"]:
            if "episode" in info:
                on_episode(model.num_timesteps, float(info["episode"]["r"]))
        if model.num_timesteps // look_every > looked:
            looked = model.num_timesteps // look_every
            look(model.num_timesteps, act)
        return True

    model.learn(steps, callback=after_step)
    return act
