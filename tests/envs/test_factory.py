"""Environments from ids and functions, with what is put around them, and clear words where that fails."""

from __future__ import annotations

from typing import Any

import env_worlds
import gymnasium
import numpy as np
import pytest
from gymnasium import Wrapper
from gymnasium.envs import registration
from gymnasium.spaces import Box, Text, Tuple

from rekindle.envs import EnvFactory, EnvSettings
from rekindle.envs.factory import required_modules
from rekindle.envs.pickling import pickled_by_value, unpickled
from rekindle.errors import ConfigError, MissingExtra


class TestSources:
    @pytest.mark.parametrize(
        "source",
        ["rekindle-tests/Path-v0", "env_worlds:Path", "env_worlds:rekindle-tests/Path-v0", env_worlds.Path],
    )
    def test_an_environment_comes_from_an_id_a_module_or_a_function(self, source: object) -> None:
        assert isinstance(EnvFactory(source)().unwrapped, env_worlds.Path)  # type: ignore[arg-type]

    def test_a_function_that_can_be_imported_has_settings_and_a_lambda_has_none(self) -> None:
        assert EnvFactory(env_worlds.Path).settings == EnvSettings(id="env_worlds:Path")
        factory = EnvFactory(lambda: env_worlds.Path(limit=3))
        assert factory.settings is None
        assert "lambda" in factory.name

    def test_settings_make_the_same_environment_again(self) -> None:
        factory = EnvFactory("FrozenLake-v1", arguments={"is_slippery": False}, max_episode_steps=5)
        assert factory.settings is not None
        env = EnvFactory(factory.settings)()
        env.reset(seed=0)
        assert [env.step(0)[3] for _ in range(5)] == [False] * 4 + [True]

    def test_the_modules_that_settings_make_us_import_are_known(self) -> None:
        assert required_modules(EnvSettings(id="CartPole-v1")) == []
        assert required_modules(EnvSettings(id="a.b:c", modules=("d",))) == ["d", "a.b"]


class TestWrappers:
    def test_frames_are_stacked_on_a_leading_axis(self) -> None:
        env = EnvFactory(env_worlds.Path, frame_stack=3)()
        first, _ = env.reset(seed=0)
        second = env.step(0)[0]
        assert first.shape == (3, 2)
        assert (first == first[0]).all()
        assert (second[:2] == first[1:]).all()

    @pytest.mark.parametrize("named", [False, True])
    def test_stacked_frames_keep_what_was_in_an_array_that_the_environment_uses_again(self, named: bool) -> None:
        class Same(env_worlds.Path):
            def __init__(self) -> None:
                super().__init__(named=named)
                self._shown: Any = None

            def _observation(self) -> Any:
                new = super()._observation()
                if self._shown is None:
                    self._shown = new
                kept, given = (self._shown["place"], new["place"]) if named else (self._shown, new)
                kept[:] = given
                return self._shown

        def stacked(source: Any) -> list[bytes]:
            env = EnvFactory(source, frame_stack=3)()
            seen = [env.reset(seed=0)[0], *(env.step(0)[0] for _ in range(3))]
            return [(each["place"] if named else each).tobytes() for each in seen]

        assert stacked(Same) == stacked(lambda: env_worlds.Path(named=named))

    def test_the_sign_of_rewards_is_for_training_only(self) -> None:
        factory = EnvFactory("Pendulum-v1", sign_rewards=True)
        rewards = []
        for training in (True, False):
            env = factory(training=training)
            env.reset(seed=0)
            rewards.append(env.step(np.zeros(1, np.float32))[1])
        assert rewards[0] == -1.0
        assert rewards[1] < -0.01
        assert rewards[1] != -1.0

    def test_actions_are_rescaled_and_clipped(self) -> None:
        space = EnvFactory("Pendulum-v1", rescale_actions=True)().action_space
        assert isinstance(space, Box)
        assert (space.low, space.high) == (-1, 1)
        env, plain = EnvFactory("Pendulum-v1", clip_actions=True)(), EnvFactory("Pendulum-v1")()
        for each in (env, plain):
            each.reset(seed=0)
        assert (env.step(np.full(1, 9, np.float32))[0] == plain.step(np.full(1, 2, np.float32))[0]).all()

    @pytest.mark.parametrize("source", ["CartPole-v1", env_worlds.Path])
    def test_a_time_limit_truncates(self, source: str) -> None:
        env = EnvFactory(source, max_episode_steps=2)()
        env.reset(seed=0)
        assert not env.step(0)[3]
        assert env.step(1)[3]


class TestRefusals:
    @pytest.mark.parametrize(
        ("source", "settings", "message"),
        [
            ("CartPol-v1", {}, "CartPol-v1: .*Did you mean: `CartPole`"),
            ("CartPole-v77", {}, "CartPole-v77: .*version"),
            ("env_worlds:no_env", {}, "not an environment.*which is not a gymnasium.Env"),
            ("env_worlds:nothing", {}, "env_worlds:nothing"),
            ("env_worlds:Path", {"arguments": {"width": 3}}, "could not be created: TypeError.*width"),
            ("env_worlds:Path", {"limits": 3}, "no setting limits; there are max_episode_steps"),
            ("env_worlds:Path", {"frame_stack": 0}, "frame_stack is 0: use a whole number of at least 1"),
            ("env_worlds.py:Path", {}, "env_worlds.py is a file: use the name of its module, as env_worlds:Path$"),
            ("./envs/worlds.py", {}, "its module, as worlds:Name in the directory ./envs"),
            ("env_worlds:Path", {"modules": ("a.py",)}, "a.py is a file: use the name of its module, as a$"),
            ("", {}, "env is empty"),
            (3, {}, "3 does not create environments"),
        ],
    )
    def test_what_cannot_be_made_is_named(self, source: object, settings: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            EnvFactory(source, **settings)()  # type: ignore[arg-type]

    def test_a_missing_module_is_named(self) -> None:
        with pytest.raises(MissingExtra, match="no_such_module"):
            EnvFactory("no_such_module:Env")()

    def test_an_observation_space_that_no_agent_sees_is_refused(self) -> None:
        class Odd(env_worlds.Path):
            def __init__(self) -> None:
                super().__init__()
                self.observation_space = Tuple([Box(0, 1, (2,)), Text(3)])

        with pytest.raises(ConfigError, match=r"the observation space Tuple.* is not supported"):
            EnvFactory(Odd)()

    @pytest.mark.parametrize("missing", ["observation_space", "action_space"])
    def test_an_environment_without_a_space_is_refused(self, missing: str) -> None:
        class Bare(env_worlds.Path):
            def __init__(self) -> None:
                super().__init__()
                delattr(self, missing)

        with pytest.raises(ConfigError, match=rf"Bare.* has no {missing}: set self.{missing} in its __init__"):
            EnvFactory(Bare)()


def test_a_vector_environment_of_its_own_is_made_where_there_is_one() -> None:
    assert type(EnvFactory("CartPole-v1").make_vector(3)).__name__ == "CartPoleVectorEnv"
    with pytest.raises(ConfigError, match="no vector environment of its own: use sync or async"):
        EnvFactory("Pendulum-v1").make_vector(3)
    with pytest.raises(ConfigError, match="frame_stack cannot wrap"):
        EnvFactory("CartPole-v1", frame_stack=4).make_vector(3)


def test_an_environment_of_gymnasium_keeps_its_time_limit_and_does_not_look_for_a_reset_at_every_step() -> None:
    env, kinds = EnvFactory("CartPole-v1", max_episode_steps=3)(), list[str]()
    env.reset(seed=0)
    ends = [env.step(action)[3] for action in (0, 1, 0)]
    while isinstance(env, Wrapper):
        kinds.append(type(env).__name__)
        env = env.env
    assert (kinds, ends) == (["TimeLimit"], [False, False, True])


def test_another_process_knows_an_id_that_the_script_has_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "registry", registry := dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", registry)
    gymnasium.register("Pool-v0", entry_point=lambda **_: env_worlds.Path(limit=4))
    sent = pickled_by_value(EnvFactory("Pool"), "nothing else")
    del registry["Pool-v0"]
    with pytest.raises(ConfigError, match=r"registers it, name that module: --env-module, or modules= in Python"):
        EnvFactory("Pool-v0")()
    assert isinstance(unpickled(sent)().unwrapped, env_worlds.Path)
