"""`rekindle diagnose`: which update, layer and row failed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rekindle = Callable[..., Any]
TRAIN = ("--steps", 300, "--checkpoint-every", 50, "--eval-episodes", 0, "--name", "lake", "--ui", "none")
NAMED = ("--env-module", "nan_lake")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_failed_run_is_diagnosed(rekindle: Rekindle) -> None:
    assert rekindle("train", "tabular", "nan_lake:NanLake", "--env.arguments", "step", 12, *TRAIN).code == 1
    outcome = rekindle("diagnose", "runs/lake", *NAMED)
    assert outcome.code == 0
    assert "environment (reward)" in outcome.out
    assert "the reward nan is not finite" in outcome.flat
    found = rekindle("diagnose", "runs/lake", "--json", *NAMED).json
    assert found["is_reproduced"]
    assert (found["fault"]["kind"], found["fault"]["row"]) == ("refused", 0)
    assert found["fault"]["env_steps"] == found["to_step"] + 1
    outcome = rekindle("diagnose", "runs/lake")
    assert (outcome.code, outcome.out) == (2, "")
    assert "which is imported only if you name it too" in outcome.err


def test_a_run_in_which_nothing_went_wrong_is_said_to_be_so(rekindle: Rekindle) -> None:
    assert rekindle("train", "tabular", "FrozenLake-v1", *TRAIN).code == 0
    outcome = rekindle("diagnose", "runs/lake")
    assert outcome.code == 2
    assert "has not failed (it is finished)" in outcome.err
    outcome = rekindle("diagnose", "runs/lake", "--step", 230)
    assert outcome.code == 1
    assert "nothing went wrong up to step 230" in outcome.err
    assert "from the checkpoint of step 200 to step 230" in outcome.flat
    outcome = rekindle("diagnose", "runs/lake", "--step", -5)
    assert (outcome.code, "step is -5: use a whole number of at least 1" in outcome.err) == (2, True)
