"""`rekindle check` tells what is wrong with an environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rekindle = Callable[..., Any]

ODD = """
import gymnasium, numpy as np

class Odd(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.full(2, np.nan, np.float32), 0.0, False, False, {}

gymnasium.register("Odd-v0", entry_point=Odd)
"""


def test_a_good_environment_passes(rekindle: Rekindle) -> None:
    outcome = rekindle("check", "FrozenLake-v1")
    assert outcome.code == 0
    assert "an open episode is replayed exactly" in outcome.flat
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_findings_are_there_as_json(rekindle: Rekindle) -> None:
    findings = rekindle("check", "FrozenLake-v1", "--json").json
    assert {finding["level"] for finding in findings} == {"good"}


@pytest.mark.parametrize("arguments", [("odd_env:Odd",), ("Odd-v0", "--env-module", "odd_env")])
def test_an_environment_in_the_working_directory_is_found_and_its_fault_too(
    rekindle: Rekindle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "odd_env.py").write_text(ODD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    outcome = rekindle("check", *arguments)
    assert outcome.code == 1
    assert "error step an observation of step holds NaN or infinity, which training refuses" in outcome.flat


def test_an_unknown_environment_is_told_in_one_line_with_near_matches(rekindle: Rekindle) -> None:
    outcome = rekindle("check", "CartPol-v1")
    assert (outcome.code, outcome.out) == (2, "")
    assert "Did you mean: `CartPole`" in outcome.err
    assert len(outcome.err.splitlines()) == 1
