"""`rekindle data` shows, checks and exports data sets; `rekindle record` plays new ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rekindle import Trainer
from rekindle.data import Dataset

Rekindle = Callable[..., Any]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    options: dict[str, Any] = {"steps": 400, "keep_data": True, "eval_episodes": 0, "eval_every": None}
    Trainer("FrozenLake-v1", "tabular", name="lake", root=root, **options).train()
    return root / "lake"


def write_npz(path: Path, **changes: Any) -> Path:
    fields: dict[str, Any] = {
        "observations": np.arange(12, dtype=np.float32).reshape(6, 2),
        "actions": np.array([0, 1, 0, 1, 0, 1]),
        "rewards": np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        "terminals": np.array([0, 0, 1, 0, 0, 0], bool),
        "timeouts": np.array([0, 0, 0, 0, 0, 1], bool),
        "next_observations": np.arange(2, 14, dtype=np.float32).reshape(6, 2),
    }
    fields |= changes
    np.savez(path, **{name: value for name, value in fields.items() if value is not None})
    return path


def test_show_prints_statistics_spaces_digest_and_a_histogram(tmp_path: Path, rekindle: Rekindle) -> None:
    path = write_npz(tmp_path / "set.npz")
    outcome = rekindle("data", "show", path)
    assert (outcome.code, outcome.err) == (0, "")
    assert "transitions 6," in outcome.flat
    assert "episodes 2: 1 terminated, 1 truncated" in outcome.flat
    assert "actions Discrete(2) (inferred from the data)" in outcome.flat
    assert Dataset.open(path).digest in outcome.flat
    assert "6.00 to 6.90 ████████████████████████████████████████ 1" in outcome.flat


def test_returns_that_differ_by_rounding_only_are_one_interval(tmp_path: Path, rekindle: Rekindle) -> None:
    path = write_npz(tmp_path / "set.npz", rewards=np.array([0.1, 0.2, 0.3, 0.3, 0.2, 0.1]))
    assert np.ptp(Dataset.open(path).returns) > 0
    assert rekindle("data", "show", path, "--json").json["histogram"]["counts"] == [2]


def test_show_prints_json(tmp_path: Path, rekindle: Rekindle) -> None:
    found = rekindle("data", "show", write_npz(tmp_path / "set.npz"), "--json").json
    assert (found["format"], found["ok"], found["statistics"]["transitions"]) == ("npz", True, 6)
    assert found["statistics"]["returns"]["mean"] == 10.5
    assert sum(found["histogram"]["counts"]) == 2


def test_check_says_what_is_wrong_and_where(tmp_path: Path, rekindle: Rekindle) -> None:
    good, bad = write_npz(tmp_path / "good.npz"), write_npz(tmp_path / "bad.npz", timeouts=None)
    assert rekindle("data", "check", good).code == 0
    outcome = rekindle("data", "check", bad)
    assert outcome.code == 1
    assert f"{bad}: timeouts is missing" in outcome.err
    assert "Traceback" not in outcome.err
    outcome = rekindle("data", "check", bad, "--json")
    assert (outcome.code, outcome.json["ok"]) == (1, False)
    assert "timeouts is missing" in outcome.json["problem"]
    assert "pass --timeout-after N (in Python, timeout_after=N)" in outcome.json["problem"]
    assert rekindle("data", "check", bad, "--timeout-after", 3).code == 0


def test_a_training_opens_data_with_the_same_options(tmp_path: Path, rekindle: Rekindle) -> None:
    pytest.importorskip("jax")
    bad = write_npz(tmp_path / "bad.npz", timeouts=None)
    words = ("train", "bc", "--data", bad, "--runs", tmp_path / "runs", "--agent.batch-size", 4, "--ui", "none")
    outcome = rekindle(*words)
    assert (outcome.code, "pass --timeout-after N" in outcome.err) == (1, True)
    told = rekindle(*words, "--steps", 50, "--timeout-after", 3, "--json")
    assert told.code == 0, told.err
    assert rekindle("resume", told.json["path"], "--steps", 100, "--json").json["updates"] == 100
    outcome = rekindle("train", "tabular", "FrozenLake-v1", "--timeout-after", 3, "--runs", tmp_path / "other")
    assert (outcome.code, "timeout_after is for data" in outcome.err) == (2, True)


def test_export_writes_both_forms_with_the_same_digest(tmp_path: Path, rekindle: Rekindle) -> None:
    path = write_npz(tmp_path / "set.npz")
    digest = Dataset.open(path).digest
    for output in (tmp_path / "set-v0", tmp_path / "again.npz"):
        assert rekindle("data", "export", path, "-o", output).code == 0
        assert rekindle("data", "show", output, "--json").json["digest"] == digest
    assert rekindle("data", "export", path).code == 2
    assert rekindle("data", "show", path, "-o", tmp_path / "x").code == 2
    assert rekindle("data", "export", path, "-o", tmp_path / "set-v0").code == 2


def test_a_kept_run_is_shown(run: Path, rekindle: Rekindle) -> None:
    found = rekindle("data", "show", run, "--json").json
    assert (found["format"], found["statistics"]["transitions"]) == ("run", 400)
    assert found["observation_space"] == "Discrete(16)"
    assert found["inferred"] == []


def test_record_gives_the_same_digest_for_the_same_seed_and_another_for_another(
    run: Path, tmp_path: Path, rekindle: Rekindle
) -> None:
    digests: list[str] = []
    for number, options in enumerate([["--seed", 3], ["--seed", 3], ["--seed", 4], ["--seed", 3, "--greedy"]]):
        output = tmp_path / f"set-v{number}"
        command = ["record", "FrozenLake-v1", "--from", run, "--episodes", 5, "-o", output, *options]
        outcome = rekindle(*command, "--json")
        assert outcome.code == 0
        assert outcome.json["statistics"]["episodes"] == 5
        digests.append(outcome.json["digest"])
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    outcome = rekindle("record", "FrozenLake-v1", "--from", f"{run}@400", "--episodes", 2, "-o", tmp_path / "last")
    assert outcome.code == 0
    assert "of the agent at step 400" in outcome.flat


def test_record_refuses_what_cannot_be_right(run: Path, tmp_path: Path, rekindle: Rekindle) -> None:
    output = tmp_path / "set"
    for arguments, message in (
        (["CartPole-v1", "--from", run], "but the agent was trained on Discrete(16)"),
        (["FrozenLake-v1", "--from", run, "--episodes", 0], "episodes is 0: use at least 1"),
        (["FrozenLake-v1", "--from", f"{run}@77"], "has no checkpoint 77"),
        (["FrozenLake-v1", "--from", tmp_path], "there is no run"),
    ):
        outcome = rekindle("record", *arguments, "-o", output)
        assert outcome.code in (1, 2)
        assert message in outcome.err
        assert not output.exists()


@pytest.mark.slow
def test_an_interrupted_recording_leaves_nothing(run: Path, tmp_path: Path) -> None:
    command = [
        "record",
        "FrozenLake-v1",
        "--from",
        str(run),
        "--episodes",
        "10000000",
        "-o",
        str(tmp_path / "set" / "a"),
    ]
    process = subprocess.Popen([sys.executable, "-m", "rekindle", *command], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any((tmp_path / "set").glob(".a*/data/main_data.hdf5")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped while episodes were recorded: nothing is kept" in errors
    assert list((tmp_path / "set").iterdir()) == []
