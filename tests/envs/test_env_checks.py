"""What an environment gets wrong is found out, and told so that its author knows what to do."""

from __future__ import annotations

from typing import Any

import env_worlds
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from rekindle.envs import Determinism, EnvFactory, Finding, check_env, probe
from rekindle.envs.determinism import LEAST_PROBE_STEPS
from rekindle.errors import ConfigError, EnvError


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("CartPole-v1", Determinism.REPEATS),
        ("FrozenLake-v1", Determinism.REPEATS),
        (env_worlds.Path, Determinism.REPEATS),
        (env_worlds.Unseeded, Determinism.REPEATS),
        (env_worlds.Leaky, Determinism.LEAKS),
        (env_worlds.Moody, Determinism.RANDOM),
        (env_worlds.Masked, Determinism.REPEATS),
        (lambda: env_worlds.Masked(MultiDiscrete([4, 2])), Determinism.REPEATS),
        (lambda: env_worlds.Masked(MultiBinary(3)), Determinism.REPEATS),
        (lambda: env_worlds.Masked(seeded=False), Determinism.RANDOM),
        (env_worlds.Both, Determinism.REPEATS),
        (lambda: env_worlds.MaskedParts(by_part=False), Determinism.REPEATS),
        (lambda: env_worlds.MaskedParts(by_part=True), Determinism.REPEATS),
        (env_worlds.DrawsFromItsActions, Determinism.RANDOM),
    ],
)
def test_what_it_takes_to_repeat_an_episode_is_found_out(source: object, found: Determinism) -> None:
    assert probe(EnvFactory(source)) is found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "source", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Acrobot-v1", env_worlds.Path, env_worlds.Masked]
)
def test_a_good_environment_has_nothing_to_complain_of(source: object) -> None:
    findings = check_env(source)
    assert {finding.level for finding in findings} == {"good"}
    looked_at = {finding.what for finding in findings}
    assert looked_at == {"spaces", "step", "seeding", "determinism", "replay"}


@pytest.mark.parametrize(
    ("how", "level", "message"),
    [
        ("raises", "error", "step raised ZeroDivisionError: by nothing"),
        ("shape", "error", "an observation has the shape (1,), expected (2,)"),
        ("nan", "error", "an observation of step holds NaN or infinity"),
        ("reward", "error", "the reward inf is not finite"),
        ("outside", "warning", "an observation lies outside the space Box"),
        ("four values", "error", "step returned ("),
        ("flag", "error", "terminated is 'no', which is not a bool"),
    ],
)
def test_what_goes_wrong_in_a_step_is_told(how: str, level: str, message: str) -> None:
    (finding,) = [
        finding
        for finding in check_env(lambda: env_worlds.Broken(how=how))
        if finding.what == "step" and message in finding.message
    ]
    assert finding.level == level


@pytest.mark.parametrize(
    ("source", "what", "message"),
    [
        (env_worlds.Unseeded, "seeding", "every seed gave the same episode"),
        (env_worlds.Leaky, "determinism", "earlier episodes affect later ones"),
        (env_worlds.Moody, "determinism", "something random is not seeded"),
        (env_worlds.Moody, "replay", "a resume is approximate"),
    ],
)
def test_what_stands_in_the_way_of_an_exact_resume_is_told(source: object, what: str, message: str) -> None:
    assert any(finding.what == what and message in finding.message for finding in check_env(source))


def test_episodes_that_never_end_are_told_unless_there_is_a_limit() -> None:
    endless = EnvFactory(lambda: env_worlds.Broken(how="mended"))
    assert any("no episode ended within" in finding.message for finding in check_env(endless))
    limited = EnvFactory(endless, max_episode_steps=1_000)
    assert not any("no episode ended within" in finding.message for finding in check_env(limited))


def test_odd_spaces_are_told() -> None:
    class Odd(env_worlds.Path):
        def __init__(self) -> None:
            super().__init__(named=True)
            self.action_space = Box(-float("inf"), float("inf"), (1,))
            self.observation_space = Dict({"place": Box(-9, 9, (2,)), "level": Box(0, 9, (), dtype=np.float64)})

    messages = [finding.message for finding in check_env(Odd) if finding.level == "warning"]
    assert any("the action space is unbounded" in message for message in messages)
    assert any("the observation space's part 'level' is float64" in message for message in messages)


def test_actions_that_only_agents_of_your_own_take_are_told() -> None:
    class Odd(env_worlds.Path):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Box(0, 1, (), np.int32)

    messages = [finding.message for finding in check_env(Odd) if finding.level == "warning"]
    assert any("the action space is a Box of int32" in message for message in messages)


@pytest.mark.parametrize("empty", [Dict({}), Tuple([])])
def test_spaces_without_a_part_are_an_error(empty: Any) -> None:
    class Odd(env_worlds.Path):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = self.action_space = empty

        def _observation(self) -> Any:
            return empty.sample()

        def step(self, action: Any) -> Any:
            assert action == empty.sample()
            return super().step(0)

    messages = [finding.message for finding in check_env(Odd) if finding.level == "error"]
    assert [message.partition(":")[0] for message in messages] == [
        f"no agent supports the action space {empty!r}",
        f"{empty!r} has no part to learn from",
    ]


def test_images_are_told() -> None:
    messages = [finding.message for finding in check_env(env_worlds.Camera) if finding.level == "good"]
    assert "the observation space's part 'picture' is an image of 7 x 9 pixels and 1 channel" in messages


def test_bytes_that_are_not_uint8_are_told() -> None:
    class Odd(env_worlds.Path):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = Box(0, 255, (2,), np.float32)

    messages = [finding.message for finding in check_env(Odd) if finding.level == "warning"]
    assert "the observation space has numbers up to 255: only uint8 is scaled to 0..1" in messages


def test_observations_with_nothing_but_a_mask_are_an_error() -> None:
    class Odd(env_worlds.Masked):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = Dict({"action_mask": MultiBinary(6)})

        def _observation(self) -> dict[str, Any]:
            return {"action_mask": super()._observation()["action_mask"]}

    messages = [finding.message for finding in check_env(Odd) if finding.level == "error"]
    assert any("has no part to learn from" in message for message in messages)


def test_actions_that_no_agent_takes_are_an_error() -> None:
    class Odd(env_worlds.Path):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Dict({"move": self.action_space, "say": Text(3)})

        def step(self, action: dict[str, int]) -> env_worlds.Answer:
            return super().step(action["move"])

    assert any("no agent supports the action space" in finding.message for finding in check_env(Odd))


def test_composite_actions_are_fine() -> None:
    for source in (env_worlds.Both, lambda: env_worlds.MaskedParts(by_part=True)):
        assert not [finding for finding in check_env(source) if finding.level == "error"]


def test_an_environment_that_cannot_be_made_raises() -> None:
    with pytest.raises(ConfigError, match="Did you mean"):
        check_env("CartPol-v1")


class TestActionMasks:
    def test_one_that_allows_nothing_is_an_error(self) -> None:
        class Stuck(env_worlds.Masked):
            def _observation(self) -> dict[str, Any]:
                return {**super()._observation(), "action_mask": np.zeros(6, np.int8)}

        assert Finding("error", "step", "the action_mask allows no action") in check_env(Stuck)
        with pytest.raises(EnvError, match=r"env 0, failed in step: the action_mask allows no action"):
            probe(EnvFactory(Stuck))

    def test_one_for_other_actions_is_an_error(self) -> None:
        class Odd(env_worlds.Masked):
            def __init__(self) -> None:
                super().__init__()
                self.action_space = Discrete(5)

        message = "the action_mask has 6 numbers, but there are 5 actions"
        assert Finding("error", "step", message) in check_env(Odd)


class TestWhatItTakes:
    @pytest.mark.parametrize(
        ("leaks", "repeats", "found"),
        [
            (False, True, Determinism.REPEATS),
            (True, True, Determinism.LEAKS),
            (False, False, Determinism.RANDOM),
        ],
    )
    @pytest.mark.parametrize("steps", [None, LEAST_PROBE_STEPS, 3_000])
    def test_is_three_instances_and_so_many_steps(
        self, *, leaks: bool, repeats: bool, found: Determinism, steps: int | None
    ) -> None:
        factory = EnvFactory(lambda: env_worlds.Counted(leaks=leaks, repeats=repeats))
        options: dict[str, Any] = {} if steps is None else {"steps": steps}
        for look in (probe, check_env):
            env_worlds.Counted.instances = env_worlds.Counted.steps_in_all = 0
            look(factory, **options)
            assert env_worlds.Counted.instances <= 3
            assert 0.4 * (steps or 600) < env_worlds.Counted.steps_in_all <= (steps or 600)
        assert probe(factory, **options) is found

    def test_more_steps_find_more(self) -> None:
        class Late(env_worlds.Counted):
            def step(self, action: Any) -> env_worlds.Answer:
                observation, *answer = super().step(action)
                return (observation if self._count < 300 else env_worlds.Counted.steps_in_all, *answer)  # type: ignore[return-value]

        assert probe(EnvFactory(Late)) is Determinism.REPEATS
        assert probe(EnvFactory(Late), steps=3_000) is Determinism.RANDOM

    def test_fewer_steps_than_it_takes_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="probe_steps is 29: use a whole number of at least 30"):
            probe(EnvFactory("CartPole-v1"), steps=29)


def test_what_fails_only_when_it_is_repeated_is_told() -> None:
    class Tired(env_worlds.Path):
        made = 0

        def __init__(self) -> None:
            super().__init__()
            Tired.made += 1

        def step(self, action: Any) -> env_worlds.Answer:
            if Tired.made > 1:
                raise RuntimeError("no more")
            return super().step(action)

    assert "failed in step: RuntimeError: no more" in check_env(Tired)[-1].message


class NoInfo(env_worlds.Path):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(3, np.float32)


class NoSeed(env_worlds.Path):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class FourResults(env_worlds.Path):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (NoInfo, r"failed in reset: ValueError.*must return \(observation, info\)"),
        (NoSeed, r"failed in reset: TypeError.*'seed'; reset\(\*, seed=None, options=None\) must"),
        (FourResults, r"failed in step: ValueError.*must return \(observation, reward, terminated, truncated, info\)"),
    ],
)
def test_the_interface_of_old_gym_is_answered_with_that_of_gymnasium(env: type[env_worlds.Path], message: str) -> None:
    with pytest.raises(EnvError, match=message) as raised:
        probe(EnvFactory(env))
    assert ".py:" not in str(raised.value)
