"""What an environment returns besides observations: a clear error that names it, or it is ignored."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from rekindle.errors import EnvError
from rekindle.training import Trainer


class Short(gymnasium.Env[Any, Any]):
    """Episodes of three steps."""

    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, info: Any, terminated: Any, reward: Any = 1.0) -> None:
        self._info, self._terminated, self._reward = info, terminated, reward

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, Any, Any, bool, Any]:
        self._steps += 1
        return self._steps, self._reward, self._terminated if self._steps == 3 else False, False, self._info


def trained(info: Any, terminated: Any = True, reward: Any = 1.0, **options: Any) -> Trainer:
    given = {"steps": 9, "eval_every": None, "eval_episodes": 1, "determinism": "repeats", "signals": False, **options}
    trainer = Trainer(lambda: Short(info, terminated, reward), "tabular", **given)
    trainer.train()
    return trainer


@pytest.mark.parametrize("num_envs", [1, 2])
def test_only_numbers_with_a_name_become_extras(num_envs: int) -> None:
    info = {"goal": np.float32(2), 5: 3, ("a", "b"): 1.0, "_hidden": 1, "text": "x", "array": np.zeros(2), "none": None}
    trainer = trained(info, num_envs=num_envs)
    assert trainer.report is not None
    assert "episode/goal" in trainer.report.metrics


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("info", [None, [1], 3])
def test_an_info_that_is_no_dict_is_an_error_of_the_environment(num_envs: int, info: Any) -> None:
    with pytest.raises(EnvError, match=r"env \d, failed in step: the info is .*, which is not a dict"):
        trained(info, num_envs=num_envs, eval_episodes=0)


def test_so_it_is_in_an_evaluation() -> None:
    with pytest.raises(EnvError, match=r"\(evaluation\), env 0, failed in step: the info is None"):
        trained(None, steps=2)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_end_that_is_neither_true_nor_false_is_an_error_of_the_environment(num_envs: int) -> None:
    with pytest.raises(EnvError, match=r"env \d, failed in step: ValueError: The truth value"):
        trained({}, np.array([True, False]), num_envs=num_envs, eval_episodes=0)


def test_a_reward_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(EnvError, match=r"failed in step: .*the reward 1000.* is not a number"):
        trained({}, reward=10**400)
