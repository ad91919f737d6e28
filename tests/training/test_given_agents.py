"""An agent that is given to the trainer must be one for the spaces of the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from rekindle import verify
from rekindle.agents import DQN, SAC, Tabular, load
from rekindle.errors import ConfigError
from rekindle.training import Trainer

LINE = Box(-1, 1, (3,), np.float32)
WIDE = Box(-9, 9, (3,), np.float32)
BYTES = Box(0, 255, (3,), np.uint8)


class Line(gymnasium.Env[Any, Any]):
    """Ten steps of random numbers."""

    def __init__(self, observations: Any = LINE, actions: Any = None) -> None:
        self.observation_space, self.action_space = observations, actions or Discrete(2)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self.observation_space.sample(), 1.0, self._steps == 10, False, {}


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (LINE, Discrete(3), r"other actions than .*Discrete\(3\), not Discrete\(2\)"),
        (LINE, Discrete(2, start=1), r"other actions than .*Discrete\(2, start=1\), not Discrete\(2\)"),
        (BYTES, Discrete(2), "other observations than .*uint8"),
        (Box(-1, 1, (4,), np.float32), Discrete(2), r"other observations than .*\(4,\)"),
        (Dict({"x": LINE}), Discrete(2), "other observations than"),
    ],
)
@pytest.mark.parametrize("is_function", [False, True])
def test_an_agent_for_other_spaces_is_refused(
    observations: Any, actions: Any, message: str, *, is_function: bool
) -> None:
    agent = DQN(observations, actions, seed=0, capacity=100)
    with pytest.raises(ConfigError, match=message):
        Trainer(Line, (lambda *spaces: agent) if is_function else agent, steps=100)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trained_on", "env"),
    [(LINE, WIDE), (Dict({"x": LINE, "y": Discrete(3)}), Dict({"x": WIDE, "y": Discrete(3)})), (Tuple([LINE]),) * 2],
)
def test_bounds_of_observations_may_differ(trained_on: Any, env: Any) -> None:
    agent = DQN(trained_on, Discrete(2), seed=0, capacity=100)
    assert Trainer(lambda: Line(env), agent, steps=20, eval_episodes=1).train().status == "finished"


def test_a_saved_agent_fits_the_environment_that_it_was_trained_on(tmp_path: Path) -> None:
    env = gymnasium.make("Pendulum-v1")
    SAC(env.observation_space, env.action_space, seed=0).save(tmp_path / "agent.mpk")
    Trainer(env, load(tmp_path / "agent.mpk"), steps=100)


@pytest.mark.parametrize(("kind", "name"), [(DQN, "dqn"), (Tabular, "tabular")])
def test_a_class_of_an_agent_is_answered_with_its_name(kind: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"the agent is the class {kind.__name__}: pass its name, '{name}'"):
        Trainer("FrozenLake-v1", kind)


def test_the_agent_of_a_resumed_trainer_is_trained_before_it_is_trained_further(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_every": 500, "eval_episodes": 5, "root": tmp_path}
    settings["agent_settings"] = {"epsilon_steps": 500, "replay_updates": 2}
    straight = Trainer("FrozenLake-v1", "tabular", steps=2_000, name="straight", **settings).train()
    trainer = Trainer("FrozenLake-v1", "tabular", steps=1_500, name="lake", **settings)
    trainer.train()
    resumed = Trainer.resume(tmp_path / "lake", steps=2_000)
    assert resumed.agent.env_steps == 1_500
    assert str(resumed.agent.state()) == str(trainer.agent.state())
    assert str(resumed.eval(5)) == str(trainer.eval(5))
    assert verify(resumed.train().path or "").digests == verify(straight.path or "").digests
