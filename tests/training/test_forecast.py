"""A training that would learn nothing, or whose schedules would not come to their end, says so at its start."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import env_worlds
import pytest
from gymnasium.spaces import Box, Discrete
from toys import ToyAgent

from rekindle.agents import DQN, Linear, Tabular, rainbow
from rekindle.errors import ConfigError
from rekindle.events import Warned
from rekindle.run.reader import RunReader
from rekindle.training import Trainer
from rekindle.training.forecast import foreseen

SMALL: dict[str, Any] = {"hidden_sizes": (4,)}


def make(algorithm: str, steps: int | None, *, num_envs: int = 1, env: Any = None, **settings: Any) -> Trainer:
    source = env or ("Pendulum-v1" if algorithm in ("sac", "td3") else "CartPole-v1")
    settings = settings if algorithm == "tabular" else {**SMALL, **settings}
    return Trainer(source, algorithm, steps=steps, num_envs=num_envs, agent_settings=settings, eval_episodes=0)


def warnings_of(trainer: Trainer) -> list[str]:
    return list(foreseen(trainer.agent, trainer.config))


def free(actors: int, **options: Any) -> Trainer:
    settings = {**SMALL, "rollout_steps": 2048}
    return Trainer("CartPole-v1", "ppo", actors=actors, free=True, agent_settings=settings, **options)


@pytest.mark.parametrize(("actors", "round_steps"), [(8, 64), (32, 16), (640, 1)])
def test_free_actors_play_no_longer_with_a_policy_than_ppo_can_learn_from_it(actors: int, round_steps: int) -> None:
    trainer = free(actors, steps=None)
    assert trainer.config.round_steps == round_steps
    assert not warnings_of(trainer)


@pytest.mark.parametrize(
    ("options", "advice"),
    [({"actors": 32, "round_steps": 64}, "use --round-steps 21 or less"), ({"actors": 1024}, "use a longer rollout")],
)
def test_free_actors_whose_transitions_become_too_old(options: dict[str, Any], advice: str) -> None:
    (warning,) = warnings_of(free(**options))
    assert "are left out, and counted in stale_steps" in warning
    assert advice in warning


@pytest.mark.parametrize(
    ("algorithm", "steps", "settings", "message"),
    [
        ("dqn", 5_000, {}, "warmup_steps is 10000, and the training makes 5000 env steps: too few for an update; "),
        ("sac", 10_000, {}, "warmup_steps is 10000, and the training makes 10000 env steps"),
        ("td3", 8_000, {}, "lower --agent.warmup-steps"),
        ("dqn", 50, {"warmup_steps": 10, "update_every": 64}, "update_every is 64, and the training makes 50"),
        ("ppo", 1_500, {}, "rollout_steps is 2048, and the training makes 1500 env steps: too few for an update"),
    ],
)
def test_one_that_makes_no_update(algorithm: str, steps: int, settings: dict[str, Any], message: str) -> None:
    (warning,) = warnings_of(make(algorithm, steps, **settings))
    assert message in warning


@pytest.mark.parametrize(
    ("algorithm", "steps", "settings", "message"),
    [
        (
            "dqn",
            20_000,
            {},
            "epsilon goes from 1 to 0.05 in 50000 env steps, and the training ends after 20000, at 0.62",
        ),
        ("dqn", 20_000, {}, "use fewer steps, such as --agent.epsilon-steps 50% (in Python epsilon_steps=0.5)"),
        ("ppo", 4_096, {"clip": Linear(0.2, 0.0, 8_192)}, "clip goes from 0.2 to 0 in 8192 env steps"),
        ("ppo", 4_096, {"clip": Linear(0.2, 0.0, 8_192)}, "ends after 4096, at 0.1: use a shorter schedule, such as"),
        ("ppo", 4_096, {"clip": Linear(0.2, 0.0, 8_192)}, "--agent.clip 0.2:0:100% (in Python Linear(0.2, 0, 1.0))"),
        ("dqn", 60_000, {"prioritised": True, "priority_beta": Linear(0.4, 1.0, 70_000)}, "priority_beta goes from"),
        ("dqn", 60_000, {"exploration": "softmax", "temperature": Linear(1, 0, 70_000)}, "temperature goes from"),
    ],
)
def test_schedules_that_do_not_come_to_their_end(
    algorithm: str, steps: int, settings: dict[str, Any], message: str
) -> None:
    (warning,) = warnings_of(make(algorithm, steps, **settings))
    assert message in warning


def test_epsilon_beside_noisy_layers_has_no_effect() -> None:
    assert warnings_of(make("dqn", 20_000, noisy=True)) == []
    (warning,) = warnings_of(make("dqn", 20_000, noisy=True, epsilon_start=0.5))
    assert "epsilon_start and epsilon_end have no effect" in warning


def test_tabular_schedules_too() -> None:
    (warning,) = warnings_of(make("tabular", 5_000, env="FrozenLake-v1"))
    assert "epsilon goes from 1 to 0.05 in 10000 env steps" in warning


@pytest.mark.parametrize(
    ("algorithm", "steps", "settings"),
    [
        ("dqn", 50_000, {}),
        ("dqn", None, {}),
        ("dqn", 20, {"warmup_steps": 19, "epsilon_steps": 20}),
        ("dqn", 20, {"warmup_steps": 0.5, "epsilon_steps": 1.0, "learning_rate": Linear(1e-3, 0.0, 1.0)}),
        ("dqn", 50_000, {"priority_beta": Linear(0.4, 1.0, 70_000), "temperature": Linear(1, 0, 70_000)}),
        ("dqn", 20_000, {"epsilon_start": 0.1, "epsilon_end": 0.1}),
        ("dqn", 1_000_000, rainbow(v_min=0, v_max=9)),
        ("ppo", 2_048, {}),
        ("sac", 10_001, {}),
    ],
)
def test_others_are_not_warned_of(algorithm: str, steps: int | None, settings: dict[str, Any]) -> None:
    assert warnings_of(make(algorithm, steps, **settings)) == []


def test_the_last_round_of_several_environments_counts_whole() -> None:
    settings: dict[str, Any] = {"rollout_steps": 40, "minibatch_size": 8}
    assert warnings_of(make("ppo", 33, num_envs=8, **settings)) == []
    assert len(warnings_of(make("ppo", 32, num_envs=8, **settings))) == 1


def test_agents_of_ones_own_mean_what_they_want() -> None:
    agent = ToyAgent(seed=0)
    agent.config = type("Config", (), {"warmup_steps": 10**6})()  # type: ignore[attr-defined]
    assert warnings_of(Trainer(env_worlds.Path, agent, steps=10)) == []


def test_it_is_a_warning_like_any_other_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"steps": 30, "name": "t", "root": tmp_path, "eval_episodes": 0, "agent_settings": SMALL}
    heard: list[str] = []
    trainer = Trainer(env_worlds.Path, "dqn", **options)
    trainer.on(Warned, lambda event: heard.append(event.message))
    with caplog.at_level(logging.WARNING, "rekindle"):
        for step in trainer.steps():
            if step.total_steps == 10:
                break
    message = "warmup_steps is 10000, and the training makes 30 env steps: too few for an update; lower "
    assert heard == [f"{message}--agent.warmup-steps"]
    assert heard[0] in caplog.messages
    Trainer(env_worlds.Path, "dqn", **options).train()
    assert [row["message"] for row in RunReader(tmp_path / "t").warnings()] == heard


@pytest.mark.parametrize(("num_envs", "is_refused"), [(16, False), (17, True), (64, True)])
def test_more_environments_than_a_rollout_has_steps_are_refused(num_envs: int, is_refused: bool) -> None:
    settings: dict[str, Any] = {"rollout_steps": 16, "minibatch_size": 16, "epochs": 1}
    if is_refused:
        with pytest.raises(
            ConfigError, match=rf"num_envs is {num_envs}, and rollout_steps 16 .*: use at least {num_envs}"
        ):
            make("ppo", 64, num_envs=num_envs, **settings)
    else:
        trainer = make("ppo", 64, num_envs=num_envs, **settings)
        trainer.train()
        assert trainer.agent.stale_steps == 0  # type: ignore[attr-defined]
        assert trainer.agent.updates == 4


class TestFractions:
    def test_they_are_env_steps_once_there_is_a_trainer(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {
            **SMALL,
            "warmup_steps": 0.1,
            "epsilon_steps": 0.5,
            "learning_rate": Linear(1e-3, 0.0, 1.0),
            "temperature": {"start": 1.0, "end": 0.0, "steps": 0.25},
        }
        options: dict[str, Any] = {"name": "t", "root": tmp_path, "eval_episodes": 0}
        trainer = Trainer(env_worlds.Path, "dqn", steps=200, agent_settings=settings, **options)
        agent: Any = trainer.agent
        assert (agent.config.warmup_steps, agent.config.epsilon_steps) == (20, 100)
        assert agent.config.learning_rate == Linear(1e-3, 0.0, 200)
        trainer.train()
        stored = RunReader(tmp_path / "t").read_config()["agent"]
        assert (stored["warmup_steps"], stored["epsilon_steps"]) == (20, 100)
        assert (stored["learning_rate"]["steps"], stored["temperature"]["steps"]) == (200, 50)
        resumed = Trainer.resume(tmp_path / "t", steps=400, modules=["env_worlds"])
        assert resumed.config.agent == stored

    def test_they_need_an_end(self) -> None:
        with pytest.raises(
            ConfigError, match=r"epsilon_steps is 0.5, a fraction of a training without an end: set steps"
        ):
            make("dqn", None, epsilon_steps=0.5)

    @pytest.mark.parametrize("value", [1.5, -0.5, 8_000.0, float("nan")])
    def test_they_are_from_0_to_1(self, value: float) -> None:
        with pytest.raises(ConfigError, match=r"warmup_steps is .*: use a whole number of env steps, or a fraction"):
            make("dqn", 100, warmup_steps=value)
        with pytest.raises(ConfigError, match=r"learning_rate is|learning_rate` - .* is not a schedule"):
            make("dqn", 100, learning_rate={"start": 1.0, "end": 0.0, "steps": value + 0.1})

    def test_an_agent_alone_refuses_them(self) -> None:
        spaces = (Box(-1, 1, (3,)), Discrete(2))
        for settings in ({"warmup_steps": 0.5}, {"learning_rate": Linear(1e-3, 0.0, 0.5)}):
            with pytest.raises(ConfigError, match="a fraction of a training: use env steps, or a Trainer with steps"):
                DQN(*spaces, seed=0, **settings)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"epsilon_steps is 0.5, a fraction of a training"):
            Tabular(Discrete(2), Discrete(2), seed=0, epsilon_steps=0.5)
        with pytest.raises(ConfigError, match=r"call over\(steps\) first"):
            Linear(1e-3, 0.0, 0.5).at(3)
        assert Linear(1.0, 0.0, 0.5).over(100) == Linear(1.0, 0.0, 50)
        assert Linear(1.0, 0.0, 1e6) == Linear(1.0, 0.0, 1_000_000)
