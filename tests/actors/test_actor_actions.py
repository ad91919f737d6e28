"""Actions of policies that compute with other numbers than the action space has."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from perilous import Linear, digests, trainer

from rekindle.experience import ActMode, Array

pytestmark = pytest.mark.timeout(120)


class Moved(gymnasium.Env[Any, Any]):
    """Adds up its actions to the last bit."""

    observation_space, action_space = Box(-np.inf, np.inf, (2,), np.float64), Box(-9, 9, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self._at = np.zeros(2)
        return self._at.copy(), {}

    def step(self, action: Any) -> Any:
        self._at += [float(action[0]), 1]
        return self._at.copy(), float(action[0]), bool(self._at[1] >= 17), False, {}


class Doubles:
    """A policy of float64."""

    def act(self, observations: Any, mode: ActMode = ActMode.EXPLOIT, rng: Any = None) -> Array:
        rows = len(observations)
        return np.full((rows, 1), 0.1) if rng is None or mode is ActMode.EXPLOIT else rng.normal(size=(rows, 1))

    def state(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Doubles:
        del state
        return cls()


class Agent(Linear):
    def policy(self) -> Any:
        return Doubles()


@pytest.mark.parametrize("placement", ["here", "processes"])
def test_an_environment_gets_the_numbers_that_a_replay_repeats(tmp_path: Path, placement: str) -> None:
    options: dict[str, Any] = {"env": Moved, "agent": "test_actor_actions:Agent", "steps": 400, "eval_episodes": 0}
    trainer(tmp_path / "whole", tmp_path / "perils", **options, actors_on="here").train()
    cut = trainer(tmp_path / "cut", tmp_path / "perils", **options, actors_on=placement)
    for _ in itertools.islice(cut.steps(), 130):
        pass
    trainer(tmp_path / "cut", tmp_path / "perils", **options, actors_on=placement).train()
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")
