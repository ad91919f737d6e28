"""`rekindle sweep`, and studies in `show`, `resume`, `compare` and `train --like`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle.errors import Interrupted
from rekindle.run.reader import RunReader

Rekindle = Callable[..., Any]

SHORT = ("--steps", 200, "--eval-every", 50, "--eval-episodes", 2, "--checkpoint-every", 100, "--probe-steps", 30)
LAKE = ("sweep", "tabular", "FrozenLake-v1", "--env.arguments", "is_slippery", "false", "--name", "lake", *SHORT)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a study of four trials in `runs/lake`."""
    from rekindle.cli import main

    path = tmp_path_factory.mktemp("sweeps")
    words = [str(word) for word in (*LAKE, "--trials", 4, "--jobs", 2, "--json", "--runs", path / "runs")]
    assert main(words) == 0
    return path


@pytest.fixture
def here(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(root)
    return root


def test_a_study_is_shown_in_full(here: Path, rekindle: Rekindle) -> None:
    shown = rekindle("show", "runs/lake", "--json").json
    assert (shown["path"], shown["status"]) == ("runs/lake", "finished")
    assert [trial["number"] for trial in shown["trials"]] == [0, 1, 2, 3]
    assert shown["best"]["value"] == max(trial["value"] or 0 for trial in shown["trials"])
    assert shown["settings"]["env"]["arguments"] == {"is_slippery": False}
    printed = rekindle("show", "runs/lake").flat
    assert "4 of 4: 4 complete, 0 pruned, 0 failed" in printed
    assert f"Best: trial {shown['best']['number']}" in printed
    assert "rekindle train --like runs/lake@best" in printed


def test_a_sweep_whose_output_nobody_reads_anymore_goes_on(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_text: str) -> int:
        raise BrokenPipeError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.stderr, "write", fail)  # as in `rekindle sweep ... 2>&1 | tee log` when tee has been killed
    assert rekindle(*LAKE, "--trials", 2, "--seeds", "0").code == 0
    monkeypatch.undo()
    shown = rekindle("show", tmp_path / "runs/lake", "--json").json
    assert (shown["status"], len(shown["trials"])) == ("finished", 2)


def test_the_same_command_again_trains_nothing_and_more_trials_go_on(here: Path, rekindle: Rekindle) -> None:
    def started() -> list[str]:
        return sorted(RunReader(path.parent).metadata.started_at for path in here.glob("runs/lake/*/*/metadata.json"))

    before = started()
    outcome = rekindle(*LAKE, "--trials", 4)
    assert outcome.code == 0
    assert outcome.err.count("\n") == 4
    assert "[4/4] trial 3: " in outcome.err
    assert started() == before
    assert rekindle(*LAKE, "--trials", 4, "--measure", "best").code == 2
    assert rekindle("resume", "runs/lake", "--jobs", 2).code == 0
    assert started() == before


@pytest.mark.parametrize(
    ("options", "is_said"),
    [(("--eval-every", 200), True), (("--eval-every", 200, "--prune", "none"), False), (("--eval-every", 100), False)],
)
def test_a_sweep_that_cannot_prune_says_so(
    options: tuple[Any, ...], is_said: bool, tmp_path: Path, rekindle: Rekindle
) -> None:
    outcome = rekindle(*LAKE, *options, "--trials", 1, "--seeds", 0, "--runs", tmp_path)
    assert outcome.code == 0
    said = "no trial will be pruned, because none is evaluated in the first 50% of its steps; lower --eval-every"
    assert (said in outcome.err) is is_said


def test_the_settings_of_a_trial_are_trained_again(here: Path, rekindle: Rekindle) -> None:
    trials = rekindle("show", "runs/lake", "--json").json["trials"]
    report = rekindle("train", "--like", "runs/lake@2", "--seed", 9, "--ui", "none", "--json", "--name", "two").json
    config = RunReader(Path(report["path"])).read_config()
    chosen = trials[2]["settings"]
    assert config["agent"]["learning_rate"] == chosen["agent.learning_rate"]
    assert config["agent"]["epsilon_steps"] == round(chosen["agent.epsilon_steps"] * 200)
    assert (config["seed"], config["steps"], config["preset"]) == (9, 200, "runs/lake@2")
    assert config["env"]["arguments"] == {"is_slippery": False}
    # The same seed gives the same run as in the study.
    again = rekindle("train", "--like", "runs/lake@2", "--seed", 1, "--ui", "none", "--json", "--name", "same").json
    equal = rekindle("compare", again["path"], "runs/lake/trial-0002-seed1", "--digests", "--json").json["equal"]
    assert equal == dict.fromkeys(("weights", "state", "logs"), True)
    outcome = rekindle("train", "--like", "runs/lake", "--seeds", "5", "--ui", "none", "--json", "--agent.gamma", 0.5)
    assert [run["report"]["status"] for run in outcome.json] == ["finished"]
    assert RunReader(Path(outcome.json[0]["report"]["path"])).read_config()["agent"]["gamma"] == 0.5


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("train", "--like", "runs/lake@99"), 2, "has no trial '99'"),
        (("train", "--like", "runs"), 1, "there is no study at runs"),
        (("train", "dqn", "CartPole-v1", "--like", "runs/lake@1"), 2, "is a study of tabular, not of dqn"),
        (("sweep", "tabular", "FrozenLake-v1", "--jobs", 0), 2, "jobs is 0: use at least 1"),
        (("sweep", "tabular", "FrozenLake-v1", "--seeds", "x"), 2, "seeds 'x'"),
        (("sweep", "tabular", "FrozenLake-v1", "--space", "no.toml"), 1, "cannot read no.toml"),
        (("sweep", "tabular", "FrozenLake-v1", "--name", "a/../b", "--trials", 1), 2, "cannot be a directory"),
        (("sweep", "tabular", "FrozenLak-v1", "--name", "x"), 2, "FrozenLak-v1"),
        (("sweep", "sac", "CartPole-v1", "--name", "x"), 2, "sac takes Box actions"),
        (("sweep", "nope", "FrozenLake-v1"), 2, "there is no algorithm 'nope'"),
        (("resume", "runs/lake/trial-0000-seed0", "--jobs", 2), 2, "--jobs is for studies"),
        (("resume", "runs/lake", "--steps", 900), 2, "--steps is for runs"),
        (("resume", "runs/lake", "--strict"), 2, "--strict is for runs"),
    ],
)
def test_wrong_usage_is_one_line(
    here: Path, rekindle: Rekindle, words: tuple[object, ...], code: int, message: str
) -> None:
    outcome = rekindle(*words)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (code, "", 1)
    assert message in outcome.err


def test_modules_that_only_a_study_names_are_not_imported(here: Path, rekindle: Rekindle, tmp_path: Path) -> None:
    text = (here / "runs/lake/study.json").read_text().replace('"FrozenLake-v1"', '"planted:Env"')
    study = tmp_path / "planted"
    study.mkdir()
    (study / "study.json").write_text(text)
    (study / "trials.jsonl").write_bytes((here / "runs/lake/trials.jsonl").read_bytes())
    for words in (("train", "--like", f"{study}@best"), ("resume", study)):
        outcome = rekindle(*words)
        assert (outcome.code, outcome.out) == (2, "")
        assert "names the module planted, which is imported only if you name it too" in outcome.err
    shown = rekindle("show", study)
    assert shown.code == 0
    assert "@best --seeds 100-104 --env-module planted" in shown.flat
    (study / "trials.jsonl").write_bytes(b"")
    assert f"resume {study} --env-module planted" in rekindle("show", study).flat


@pytest.mark.parametrize(
    "change",
    [
        {"space": {"agent.gamma": 3}},
        {"space": {"agent.gamma": {"low": "x", "high": 1}}},
        {"space": {}},
        {"trials": -1},
        {"training": None},
        {"seeds": "01"},
        {"nobody": 1},
    ],
)
def test_a_hostile_study_is_one_clear_error(
    here: Path, rekindle: Rekindle, tmp_path: Path, change: dict[str, Any]
) -> None:
    study = tmp_path / "bad"
    study.mkdir()
    fields = json.loads((here / "runs/lake/study.json").read_text())
    (study / "study.json").write_text(json.dumps(fields | change))
    (study / "trials.jsonl").write_bytes((here / "runs/lake/trials.jsonl").read_bytes())
    for words in (("show", study), ("resume", study), ("train", "--like", study)):
        outcome = rekindle(*words)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
        assert "is not the description of a study" in outcome.err


@pytest.mark.parametrize("settings", [{}, {"agent.gamma": [1]}, {"agent.learning_rate": "x"}, {"x": {}}])
def test_trials_with_strange_settings_are_shown(
    here: Path, rekindle: Rekindle, tmp_path: Path, settings: dict[str, Any]
) -> None:
    study = tmp_path / "odd"
    study.mkdir()
    (study / "study.json").write_bytes((here / "runs/lake/study.json").read_bytes())
    rows: list[dict[str, Any]] = []
    for trial in range(9):
        rows.append({"row": 2 * trial, "event": "asked", "trial": trial, "settings": settings})
        rows.append({"row": 2 * trial + 1, "event": "ended", "trial": trial, "status": "complete", "value": 1.0})
    (study / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert rekindle("show", study).code == 0
    assert len(rekindle("show", study, "--json").json["trials"]) == 9


def test_the_built_in_space_is_printed_as_a_file_to_begin_with(rekindle: Rekindle, tmp_path: Path) -> None:
    printed = rekindle("sweep", "ppo", "--print-space").out
    assert "agent.learning_rate = { low = 0.00003, high = 0.003, log = true }" in printed


@pytest.mark.parametrize("way", ["signal", "command"])
def test_a_signal_or_rekindle_stop_stops_a_sweep_with_checkpoints(tmp_path: Path, rekindle: Rekindle, way: str) -> None:
    command = [sys.executable, "-P", "-m", "rekindle", *map(str, LAKE), "--trials", "50", "--runs", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "lake/trials.jsonl"
    while process.poll() is None and not (log.exists() and log.read_bytes().count(b'"ended"') > 1):
        time.sleep(0.02)
    if way == "signal":
        os.kill(process.pid, signal.SIGINT)
    else:
        assert rekindle("stop", tmp_path / "lake", "--wait", 60, "--json").json["status"] == "stopped"
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert ("stopped (SIGINT) after" if way == "signal" else "stopped (rekindle stop) after") in errors
    assert "continue with rekindle resume" in errors
    statuses = {RunReader(path.parent).status for path in (tmp_path / "lake").glob("*/*/metadata.json")}
    assert statuses <= {"finished", "stopped"}
    if way == "signal":
        shown = rekindle("show", tmp_path / "lake").flat
        assert f"Continue it rekindle resume {tmp_path / 'lake'}" in shown
        assert " running " not in shown


def test_a_sweep_that_was_stopped_before_its_study_was_made_names_none(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("stopped before the training began (SIGINT)")

    monkeypatch.setattr("rekindle.cli.study.run_study", stopped)
    outcome = rekindle("sweep", "tabular", "FrozenLake-v1", "--runs", tmp_path)
    assert (outcome.code, "rekindle resume" in outcome.err) == (130, False)


def test_a_setting_of_the_command_is_not_varied(tmp_path: Path, rekindle: Rekindle) -> None:
    words = ("sweep", "tabular", "FrozenLake-v1", "--trials", 2, "--seeds", 0, *SHORT, "--runs", tmp_path)
    study = rekindle(*words, "--agent.gamma", 0.5, "--json").json
    assert "agent.gamma" not in study["settings"]["space"]
    assert study["settings"]["agent"]["gamma"] == 0.5
    assert "agent.learning_rate" in study["settings"]["space"]


def test_a_setting_of_the_command_that_the_file_varies_is_refused(tmp_path: Path, rekindle: Rekindle) -> None:
    space = tmp_path / "space.toml"
    space.write_text("agent.gamma = { choice = [0.9, 0.99] }")
    words = ("sweep", "tabular", "FrozenLake-v1", "--space", space, "--runs", tmp_path / "runs")
    refused = rekindle(*words, "--agent.gamma", 0.5)
    assert refused.code == 2
    assert f"--agent.gamma sets what {space} varies: leave out the option" in refused.err
    assert not (tmp_path / "runs").exists()


def test_an_argument_of_the_environment_that_the_file_varies_is_refused(tmp_path: Path, rekindle: Rekindle) -> None:
    space = tmp_path / "space.toml"
    space.write_text("env.arguments.is_slippery = { choice = [true, false] }")
    words = ("sweep", "tabular", "FrozenLake-v1", "--space", space, "--runs", tmp_path / "runs")
    refused = rekindle(*words, "--env.arguments", "is_slippery", "false")
    assert (refused.code, "env.arguments" in refused.err, "leave out the option" in refused.err) == (2, True, True)
