"""`rekindle replay` makes a run again from its input journal, and tells by its exit code whether it is the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces
from tiny_runs import open_session, play_episode

from rekindle import TrainingRun, TrainingSession, verify
from rekindle.agents import Tabular
from rekindle.run.finding import find_runs
from rekindle.training import replaying

Rekindle = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    agent = Tabular(spaces.Discrete(4), spaces.Discrete(2), seed=3)
    options: dict[str, Any] = {"journal": True, "journal_keep": "all", "checkpoint_every": 10, "signals": False}
    with TrainingSession.open("line", agent, root=tmp_path, **options) as session:
        stream = session.stream()
        stream.begin(0)
        for step in range(25):
            stream.step(step % 4, float(step % 3))
    assert session.run is not None
    return session.run.path


def test_a_run_that_is_the_same_again(run: Path, tmp_path: Path, rekindle: Rekindle) -> None:
    outcome = rekindle("replay", run, "-o", tmp_path / "again")
    assert (outcome.code, outcome.err) == (0, "")
    assert "replay the same calls 27 new run" in outcome.flat
    assert "25 27 equal equal equal" in outcome.flat
    assert verify(tmp_path / "again").digests == verify(run).digests
    shown = rekindle("replay", run, "--json").json
    assert (shown["ok"], shown["output"], shown["first_difference"]) == (True, None, None)
    assert [one["step"] for one in shown["checkpoints"]] == [10, 20, 25]


def test_a_run_that_differs(run: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Tabular.update

    def other(self: Tabular, n: int) -> Any:
        self._table[0, 0] += 1e-3 * (self.env_steps == 15)  # pyright: ignore[reportPrivateUsage]
        return update(self, n)

    monkeypatch.setattr(Tabular, "update", other)
    outcome = rekindle("replay", run)
    assert outcome.code == 1
    assert "the first checkpoint that differs is step 20" in outcome.err
    assert "replay differs" in outcome.flat
    assert not rekindle("replay", run, "--json").json["ok"]


def test_an_agent_of_your_own_must_be_named(tmp_path: Path, rekindle: Rekindle) -> None:
    made = TrainingRun.create("tiny", root=tmp_path)
    with open_session(made, journal=True, journal_keep="all") as session:
        play_episode(session)
    outcome = rekindle("replay", made.path)
    assert outcome.code == 2
    assert "tiny_runs:Averager, which is not part of rekindle" in outcome.err
    unfit = rekindle("replay", made.path, "--agent", "tiny_runs:Averager")
    assert unfit.code == 2
    assert "could not be created as Averager(observation_space, action_space, seed=seed, **settings)" in unfit.err


def test_ctrl_c_leaves_no_run(run: Path, tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = replaying._Comparison.checkpoint  # pyright: ignore[reportPrivateUsage]

    def interrupted(self: Any, number: int) -> None:
        checkpoint(self, number)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(replaying._Comparison, "checkpoint", interrupted)  # pyright: ignore[reportPrivateUsage]
    outcome = rekindle("replay", run, "-o", tmp_path / "again")
    assert outcome.code == 130
    assert find_runs(tmp_path) == [run]
    assert not list(tmp_path.glob(".again*"))
