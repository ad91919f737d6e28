"""`rekindle stop` asks a live run of any process to checkpoint and stop."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from tiny_runs import make_run, open_session, play_episode

from rekindle import TrainingRun

Rekindle = Callable[..., Any]


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "rekindle", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def training(root: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A process that trains until it is asked to stop, and the line with which it began."""
    process = subprocess.Popen(
        [sys.executable, tiny_runs.__file__, str(root)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def steps_of(path: Path) -> int:
    return json.loads(command("runs", path, "--json").stdout)[0]["steps"]


@pytest.mark.slow
def test_a_run_of_another_process_stops_with_a_checkpoint_and_resumes_from_it(tmp_path: Path) -> None:
    with training(tmp_path) as (process, line):
        assert line.endswith("from nothing\n")
        before = steps_of(tmp_path)
        deadline = time.monotonic() + 60
        while steps_of(tmp_path) <= before and time.monotonic() < deadline:
            pass
        stopped = command("stop", tmp_path / "tiny", "--wait", 100, "--json")
        assert (stopped.returncode, stopped.stderr) == (0, "")
        answer = json.loads(stopped.stdout)
        assert (answer["asked"], answer["live"], answer["status"]) == (True, False, "stopped")
        assert answer["steps"] > before
        assert process.wait(100) == 0
    shown = json.loads(command("show", tmp_path / "tiny", "--json").stdout)
    assert shown["summary"]["stop_reason"] == "rekindle stop"
    assert [entry["step"] for entry in shown["checkpoints"] if entry["latest"]] == [answer["steps"]]
    assert command("verify", tmp_path / "tiny").returncode == 0
    with training(tmp_path) as (process, line):
        assert line.endswith(f"from step {answer['steps']}, exact\n")
        assert command("stop", tmp_path / "tiny", "--wait", 100).stdout.split()[1:3] == ["stopped", "at"]
        assert process.wait(100) == 0


def test_a_session_in_this_process_is_asked_too(tmp_path: Path, rekindle: Rekindle) -> None:
    run = TrainingRun.create("tiny", root=tmp_path)
    with open_session(run, max_steps=10**9) as session:
        assert rekindle("stop", run.path) == (0, f"{run.path} was asked to checkpoint and stop\n", "")
        deadline = time.monotonic() + 60
        while not session.is_done and time.monotonic() < deadline:
            play_episode(session)
        assert session.stop_reason == "rekindle stop"


def test_a_run_that_is_not_live_is_told_and_left_alone(tmp_path: Path, rekindle: Rekindle) -> None:
    path = make_run(tmp_path)
    outcome = rekindle("stop", path, "--json")
    assert outcome.code == 1
    assert outcome.json == {"path": str(path), "asked": False, "live": False, "status": "finished", "steps": 20}
    assert outcome.err == f"rekindle: {path} is not live (finished): there is nothing to stop\n"
    assert list((path / "control").iterdir()) == []


def test_the_live_runs_of_a_name_are_named_when_its_newest_is_not_live(tmp_path: Path, rekindle: Rekindle) -> None:
    run = TrainingRun.create("tiny", "v1", root=tmp_path)
    with open_session(run):
        TrainingRun.create("tiny", "v2", root=tmp_path).close()  # crashed
        outcome = rekindle("stop", tmp_path / "tiny")
        assert outcome.code == 1
        assert f"live runs: {run.path}" in outcome.err


def test_a_run_that_does_not_stop_in_time_is_told(tmp_path: Path, rekindle: Rekindle) -> None:
    run = TrainingRun.create("tiny", root=tmp_path)
    with open_session(run):
        outcome = rekindle("stop", run.path, "--wait", 0.2, "--json")
        assert outcome.code == 1
        assert (outcome.json["asked"], outcome.json["live"]) == (True, True)
        assert "still live after 0.2 s" in outcome.err


def test_a_run_that_ends_badly_while_it_is_waited_for_is_told(tmp_path: Path, rekindle: Rekindle) -> None:
    run = TrainingRun.create("tiny", root=tmp_path)
    timer = threading.Timer(0.3, run.close)  # lets go of the lock without a word, as a killed process does
    timer.start()
    outcome = rekindle("stop", run.path, "--wait", 100)
    timer.join()
    assert outcome.code == 1
    assert "was asked to stop, but crashed" in outcome.err


def test_a_path_that_is_no_run_is_told_in_one_line(tmp_path: Path, rekindle: Rekindle) -> None:
    outcome = rekindle("stop", tmp_path / "nowhere", "--json")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)


def test_a_name_directory_means_its_newest_run_that_has_not_finished(tmp_path: Path, rekindle: Rekindle) -> None:
    live = TrainingRun.create("tiny", "v1", root=tmp_path)
    make_run(tmp_path, version="v2")
    try:
        answer = rekindle("stop", tmp_path / "tiny", "--json").json
        assert (answer["path"], answer["asked"]) == (str(live.path), True)
    finally:
        live.close()
