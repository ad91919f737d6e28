"""`rekindle train --data`: from a data set to a trained agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rekindle import RunReader

pytest.importorskip("jax")

Rekindle = Callable[..., Any]
MEDIUM = "rekindle:pendulum-medium"
TINY = ("--agent.hidden-sizes", 4, "--agent.batch-size", 8, "--agent.capacity", 100, "--ui", "none")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_run_from_data_is_trained_shown_exported_and_resumed(rekindle: Rekindle, here: Path) -> None:
    outcome = rekindle("train", "bc", "--data", MEDIUM, "--steps", 100, "--metrics-every", 50, *TINY)
    assert outcome.code == 0, outcome.err
    assert "finished (max_steps): 100 updates in" in outcome.flat
    run = "runs/bc-rekindle-pendulum-medium"
    assert RunReader(run).read_config()["data"] == MEDIUM
    assert "updates 100" in rekindle("show", run).flat
    assert "100 updates" in rekindle("watch", run).flat
    assert rekindle("export", run, "-o", "policy.mpk").code == 0
    assert "has no environment" in rekindle("eval", run).err
    assert "200 transitions" in rekindle("record", "Pendulum-v1", "--from", run, "--episodes", 1, "-o", "played").flat
    wrong = rekindle("record", "CartPole-v1", "--from", run, "--episodes", 1, "-o", "wrong")
    assert (wrong.code, wrong.err.count("\n"), Path("wrong").exists()) == (1, 1, False)
    outcome = rekindle("resume", run, "--steps", 150, "--ui", "none", "--json")
    assert (outcome.json["updates"], outcome.json["env_steps"]) == (150, 0)
    np.savez(here / "other.npz", observations=np.zeros((3, 3), np.float32), actions=np.ones((3, 1), np.float32))
    refused = rekindle("resume", run, "--steps", 200, "--ui", "none", "--data", "other.npz")
    assert (refused.code, refused.err.count("\n")) == (1, 1)


def test_the_table_of_several_seeds_counts_updates(rekindle: Rekindle) -> None:
    outcome = rekindle("train", "bc", "--data", MEDIUM, "--steps", 50, "--seeds", "0-1", *TINY)
    assert outcome.code == 0, outcome.err
    assert "seed status updates episodes" in outcome.flat
    assert "0 finished 50 " in outcome.flat


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("iql", "Pendulum-v1"), "iql learns from data: pass --data PATH"),
        (("bc",), "nothing to learn from: pass an environment (ENV), or data (--data PATH"),
        (("sac", "Pendulum-v1", "--data-share", 0.5), "there is no data: pass --data PATH"),
        (("bc", "--data", "nowhere.npz"), "nowhere.npz does not exist"),
        (("bc", "--data", "rekindle:chess"), "there is no data set rekindle:chess"),
        (("dqn", "--data", MEDIUM), "dqn takes Discrete actions"),
    ],
)
def test_what_cannot_be_trained_is_one_line(rekindle: Rekindle, arguments: tuple[object, ...], message: str) -> None:
    outcome = rekindle("train", *arguments, *TINY)
    assert outcome.code != 0
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert not Path("runs").exists()
