"""Options of `train` that would have no effect are refused, and short forms mean what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle import RunReader
from rekindle.agents.presets import find_preset
from rekindle.cli.commands import train_command
from rekindle.envs.factory import latest_version

Rekindle = Callable[..., Any]
LAKE = ("train", "tabular", "FrozenLake-v1")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--seed 3 --seeds 0-1", "--seed would have no effect: --seeds names the seeds"),
        ("--seed=3 --seeds 0-1", "--seed would have no effect"),
        ("--jobs 2", "--jobs would have no effect"),
        ("--with-optimiser", "--with-optimiser would have no effect"),
        ("--with_optimiser", "add --from PATH"),
        ("--workers 2", "add --vectorization async"),
        ("--seeds 0-1 --ui tui", "the terminal UI shows one run"),
        ("--ui plain --stay", "--stay would have no effect"),
        ("--patience 3 --eval-episodes 0", "--patience would have no effect"),
        ("--target-score 1 --eval-episodes 0", "--eval-episodes 0 turns them off"),
        ("--name a/b --seeds 0-1", "name 'a/b' cannot be a directory"),
        ("--version ..", "version '..' cannot be a directory"),
    ],
)
def test_an_option_that_cannot_work_is_refused_in_one_line(
    rekindle: Rekindle, here: Path, options: str, message: str
) -> None:
    outcome = rekindle(*LAKE, *options.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_an_id_without_a_version_is_the_newest_one(rekindle: Rekindle) -> None:
    outcome = rekindle(
        "train", "tabular", "FrozenLake", "--steps", "1e2", "--eval-episodes", 0, "--ui", "none", "--json"
    )
    assert outcome.code == 0, outcome.err
    reader = RunReader(outcome.json["path"])
    assert reader.path.parent.parent.name == "tabular-FrozenLake-v1"
    config: Any = reader.read_config()
    assert (config["env"]["id"], config["steps"]) == ("FrozenLake-v1", 100)


@pytest.mark.parametrize(("given", "meant"), [("CartPole", "CartPole-v1"), ("a:CartPole", "a:CartPole"), ("X", "X")])
def test_versions_are_those_of_the_registry(given: str, meant: str) -> None:
    assert latest_version(given) == meant


def test_an_id_without_a_version_has_the_preset_of_the_newest_one() -> None:
    preset = find_preset("dqn", "CartPole-v1")
    assert preset is not None
    pytest.importorskip("jax")
    command: Any = train_command(["dqn", "CartPole"])
    assert command.__kwdefaults__["training"].steps == preset.steps


@pytest.mark.parametrize(("text", "steps"), [("1e2", 100), ("1_00", 100), ("1.5E2", 150)])
def test_a_number_of_steps_may_have_an_exponent(rekindle: Rekindle, text: str, steps: int) -> None:
    outcome = rekindle(*LAKE, "--steps", text, "--eval-episodes", 0, "--ui", "none", "--json")
    assert outcome.json["env_steps"] == steps


@pytest.mark.parametrize("text", ["1e-3", "1.5", "nan", "1e400", "many", "1e99999999999"])
def test_a_number_of_steps_is_whole(rekindle: Rekindle, text: str) -> None:
    outcome = rekindle(*LAKE, "--steps", text)
    assert outcome.code == 2
    assert "whole number" in " ".join(outcome.err.replace("│", "").split())


def test_an_error_of_the_system_is_told_without_its_number(rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object, **options: object) -> int:
        raise OSError(30, "Read-only file system", "/mnt/here")

    monkeypatch.setattr("rekindle.cli.runs.list_runs", refuse)
    outcome = rekindle("runs")
    assert outcome.code == 1
    assert outcome.err == "rekindle: /mnt/here: Read-only file system\n"
