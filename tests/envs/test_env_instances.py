"""An environment that a user has created stands for others like it."""

from __future__ import annotations

import threading
from pathlib import Path as FilePath
from typing import Any

import env_worlds
import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import ClipReward, TransformReward
from toys import ToyAgent

from rekindle import RunReader
from rekindle.envs import EnvFactory
from rekindle.errors import ConfigError
from rekindle.training import Trainer

OPTIONS: dict[str, Any] = {"steps": 120, "eval_episodes": 2, "eval_every": 60, "metrics_every": 60}


class TestRegistered:
    def test_one_that_gymnasium_made_is_an_id_with_arguments(self) -> None:
        env = gymnasium.make("FrozenLake-v1", is_slippery=False, max_episode_steps=7)
        settings = EnvFactory(env).settings
        assert settings is not None
        assert (settings.id, settings.arguments, settings.max_episode_steps) == (
            "FrozenLake-v1",
            {"is_slippery": False},
            7,
        )

    def test_its_run_is_resumed_without_it(self, tmp_path: FilePath) -> None:
        env = gymnasium.make("FrozenLake-v1", is_slippery=False)
        Trainer(env, "tabular", name="lake", root=tmp_path, **OPTIONS).train()
        config: Any = RunReader(tmp_path / "lake").read_config()
        assert config["env"]["arguments"] == {"is_slippery": False}
        assert Trainer.resume(tmp_path / "lake", steps=200).train().env_steps == 200

    def test_wrappers_that_remember_their_arguments_are_made_again(self) -> None:
        factory = EnvFactory(ClipReward(gymnasium.make("FrozenLake-v1"), 0.0, 0.5))
        assert factory.settings is None
        made = factory()
        assert isinstance(made, ClipReward)
        assert made is not factory()

    def test_arguments_that_a_config_cannot_store_are_kept(self) -> None:
        env = gymnasium.make("FrozenLake-v1", desc=np.array([["S", "F"], ["F", "G"]]))
        factory = EnvFactory(env)
        assert factory.settings is None
        assert factory().observation_space == gymnasium.spaces.Discrete(4)


class TestCopied:
    def test_one_of_an_own_class_is_copied_for_each_use(self) -> None:
        env = env_worlds.Path()
        factory = EnvFactory(env)
        assert factory.name == "<Path>"
        assert factory.settings is None
        copies = [factory() for _ in range(3)]
        assert len({id(made) for made in [env, *copies]}) == 4
        observations = [made.reset(seed=3)[0] for made in copies]
        np.testing.assert_array_equal(observations[0], observations[1])

    def test_using_it_later_changes_nothing(self, tmp_path: FilePath) -> None:
        def trained(name: str, *, uses: bool) -> list[Any]:
            env = TransformReward(env_worlds.Path(), lambda reward: float(reward) + 1)
            trainer = Trainer(env, ToyAgent(), name=name, root=tmp_path, **OPTIONS)
            if uses:
                env.reset(seed=99)
                env.step(0)
            trainer.train()
            return [row["total_reward"] for row in RunReader(tmp_path / name).train_episodes()]

        assert trained("used", uses=True) == trained("alone", uses=False)

    def test_several_are_trained_on_and_evaluated(self, tmp_path: FilePath) -> None:
        report = Trainer(env_worlds.Path(), ToyAgent(), name="t", root=tmp_path, num_envs=2, **OPTIONS).train()
        assert report.status == "finished"
        assert "eval/return" in report.metrics

    def test_one_that_cannot_be_copied_is_refused(self) -> None:
        env: Any = env_worlds.Path()
        env.lock = threading.Lock()
        with pytest.raises(ConfigError, match=r"<Path> cannot be copied .*: pass a function that creates it"):
            EnvFactory(env)

    def test_a_vector_environment_is_refused(self) -> None:
        env: Any = gymnasium.make_vec("CartPole-v1", 2)
        with pytest.raises(ConfigError, match="is a vector environment: pass a function that creates one environment"):
            EnvFactory(env)
        env.close()


def test_a_trainer_without_steps_ends(tmp_path: FilePath) -> None:
    assert Trainer("FrozenLake-v1", "tabular").config.steps == 100_000
    assert Trainer("FrozenLake-v1", "tabular", steps=None).config.steps is None
