"""Every command that plays episodes or learns can be stopped, wherever it is, and says so while it stops."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.cli.stopping import stopped_by_signals, was_signalled
from rekindle.ui.feed import RunFeed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FAR = "1000000000"
DEADLINE = 120.0
"""Seconds that a busy machine may take for what takes one."""
TRAIN = ("train", "tabular", "env_worlds:Endless", "--name", "t", "--seed", "3", "--checkpoint-every", "1000")
WORLDS = str(Path(__file__).parents[1] / "envs")
REPEATS = ("--determinism", "repeats")


class Command:
    """A command in a process of its own, with an environment that says when it has made so many steps."""

    def __init__(self, root: Path, *words: str, mark: int, hold: bool = False) -> None:
        self.mark, self.hold = root / "mark", root / "hold"
        self.mark.unlink(missing_ok=True)
        self._errors = root / "errors"
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [WORLDS, os.environ.get("PYTHONPATH")])),
            "ENDLESS_MARK": f"{mark}:{self.mark}",
            **({"ENDLESS_HOLD": str(self.hold)} if hold else {}),
        }
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rekindle", *words], stdout=errors, stderr=errors, env=variables, cwd=root
            )

    @property
    def said(self) -> str:
        return self._errors.read_text()

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.01)

    def until_marked(self) -> Command:
        self.until(self.mark.exists)
        return self

    def end(self) -> int:
        try:
            return self.process.wait(DEADLINE)
        finally:
            self.process.kill()


def stopped(root: Path) -> rekindle.RunReader:
    reader = rekindle.RunReader(root / "runs" / "t")
    assert reader.status == "stopped"
    assert rekindle.verify(reader.path).problems == []
    return reader


def send(how: str, command: Command, root: Path) -> str:
    """Ask a command to stop; returns the reason it will give."""
    if how == "rekindle stop":
        done = subprocess.run(
            [sys.executable, "-m", "rekindle", "stop", "runs/t", "--wait", str(DEADLINE)], cwd=root, check=False
        )
        assert done.returncode == 0
        return how
    command.process.send_signal(getattr(signal, how))
    return how


def code_of(how: str) -> int:
    """The exit code of a training that was stopped in this way."""
    return 0 if how == "rekindle stop" else 130


class TestTrain:
    @pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "rekindle stop"])
    @pytest.mark.parametrize("when", ["on the way", "at the end"])
    def test_in_an_evaluation_without_an_end(self, tmp_path: Path, how: str, when: str) -> None:
        steps = ("--steps", "100", "--eval-every", "60" if when == "on the way" else "None", "--eval-max-steps", FAR)
        command = Command(tmp_path, *TRAIN, *REPEATS, *steps, mark=2_000).until_marked()
        reason = send(how, command, tmp_path)
        assert command.end() == code_of(how), command.said
        reader = stopped(tmp_path)
        assert reader.metadata.stop_reason == reason
        assert reader.metadata.total_steps == (60 if when == "on the way" else 100)
        assert reader.eval_episodes() == []

    def test_a_time_limit_ends_an_evaluation_without_an_end(self, tmp_path: Path) -> None:
        steps = ("--steps", "100", "--eval-max-steps", FAR, "--time-limit", "5")
        command = Command(tmp_path, *TRAIN, *REPEATS, *steps, mark=2_000)
        assert command.end() == 0, command.said
        assert stopped(tmp_path).metadata.stop_reason == "the time limit of 5 s is over"

    def test_by_default_an_evaluation_has_an_end(self, tmp_path: Path) -> None:
        steps = ("--steps", "100", "--eval-episodes", "1")
        command = Command(tmp_path, *TRAIN, *REPEATS, *steps, mark=2_000)
        assert command.end() == 0, command.said
        (row,) = rekindle.RunReader(tmp_path / "runs" / "t").eval_episodes()
        assert (row["length"], row["status"], row["final"]) == (10_000, "truncated", True)

    @pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
    def test_while_it_finds_out_about_the_environment_and_then_goes_on(self, tmp_path: Path, how: str) -> None:
        command = Command(tmp_path, *TRAIN, "--steps", "100", "--eval-episodes", "0", mark=3, hold=True).until_marked()
        send(how, command, tmp_path)
        command.hold.touch()
        assert command.end() == 130, command.said
        reader = stopped(tmp_path)
        assert (reader.metadata.stop_reason, reader.metadata.total_steps) == (how, 0)
        assert reader.read_config()["determinism"] is None
        command.hold.unlink()
        # Now there is a run, so that it can be asked to stop in the same place.
        resume = ("resume", "runs/t", "--env-module", "env_worlds")
        again = Command(tmp_path, *resume, mark=3, hold=True).until_marked()
        reader.request_stop("enough")
        again.until(lambda: "stopping (enough)" in again.said)
        again.hold.touch()
        assert again.end() == 0, again.said
        assert (reader.metadata.stop_reason, reader.metadata.total_steps) == ("enough", 0)
        resumed = Command(tmp_path, *resume, mark=3)
        assert resumed.end() == 0, resumed.said
        assert (reader.status, reader.metadata.total_steps) == ("finished", 100)
        assert reader.read_config()["determinism"] == "repeats"

    def test_while_it_replays_an_open_episode(self, tmp_path: Path) -> None:
        steps = ("--steps", "500", "--eval-episodes", "0")
        first = Command(tmp_path, *TRAIN, *REPEATS, *steps, mark=300, hold=True).until_marked()
        send("SIGTERM", first, tmp_path)
        first.hold.touch()
        assert first.end() == 130, first.said
        first.hold.unlink()
        before = stopped(tmp_path).metadata.total_steps
        resumed = Command(tmp_path, "resume", "runs/t", "--env-module", "env_worlds", mark=100, hold=True)
        send("SIGTERM", resumed.until_marked(), tmp_path)
        resumed.hold.touch()
        assert resumed.end() == 130, resumed.said
        assert stopped(tmp_path).metadata.total_steps == before

    @pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "rekindle stop"])
    def test_in_the_updates_of_a_rollout(self, tmp_path: Path, how: str) -> None:
        pytest.importorskip("jax")
        words = ("train", "ppo", "env_worlds:Endless", "--name", "t", *REPEATS, "--steps", "1000")
        endless = ("--agent.rollout-steps", "64", "--agent.minibatch-size", "1", "--agent.epochs", "100000")
        command = Command(tmp_path, *words, *endless, "--preset", "none", "--agent.hidden-sizes", "8", mark=64)
        reason = send(how, command.until_marked(), tmp_path)
        assert command.end() == code_of(how), command.said
        reader = stopped(tmp_path)
        assert (reader.metadata.stop_reason, reader.metadata.total_steps) == (reason, 64)

    def test_when_its_terminal_is_closed(self, tmp_path: Path) -> None:
        words = ("train", "tabular", "FrozenLake-v1", "--name", "t", "--steps", "None", "--metrics-every", "100")
        screen, terminal = pty.openpty()
        process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "rekindle", *words, "--ui", "plain"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=tmp_path,
        )
        os.close(terminal)
        written = b""
        while b"step 200" not in written:
            written += os.read(screen, 2**16)
        os.close(screen)
        assert process.wait(DEADLINE) in (1, 130), "1 if its last words could not be printed"
        assert stopped(tmp_path).metadata.stop_reason == "SIGHUP"

    @pytest.mark.parametrize("ui", ["plain", "none"])
    def test_a_stop_that_takes_time_is_told_at_once(self, tmp_path: Path, ui: str) -> None:
        steps = ("--steps", "100", "--eval-every", "60", "--ui", ui)
        command = Command(tmp_path, *TRAIN, *REPEATS, *steps, mark=200, hold=True).until_marked()
        feed = RunFeed(tmp_path / "runs" / "t")
        feed.poll()
        assert feed.shown_status == "running"
        send("SIGINT", command, tmp_path)
        command.until(lambda: (feed.poll(), feed.shown_status)[1] == "stopping")
        assert ("stopping (SIGINT)" in command.said) == (ui == "plain")
        command.hold.touch()
        assert command.end() == 130, command.said
        feed.poll()
        assert feed.shown_status == "stopped"


@pytest.mark.parametrize("command", ["train", "resume", "fork", "sweep", "serve"])
def test_a_command_that_trains_knows_that_a_signal_stopped_it(command: str) -> None:
    with stopped_by_signals([command]):
        assert not was_signalled()
        signal.raise_signal(signal.SIGTERM)
        assert was_signalled()
    assert not was_signalled()


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    steps = ("--steps", "30", "--eval-episodes", "0")
    command = Command(tmp_path, *TRAIN, *REPEATS, *steps, mark=1_000)
    assert command.end() == 0, command.said
    return tmp_path


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
class TestOtherCommands:
    def test_eval(self, trained: Path, how: str) -> None:
        words = ("eval", "runs/t", "--env-module", "env_worlds", "--max-steps", FAR)
        command = Command(trained, *words, mark=2_000).until_marked()
        send(how, command, trained)
        assert command.end() == 130
        assert command.said.splitlines()[-1] == "rekindle: stopped in an evaluation"

    def test_eval_with_video(self, trained: Path, how: str) -> None:
        pytest.importorskip("PIL")
        words = ("eval", "runs/t", "--env-module", "env_worlds", "--max-steps", "5000", "--episodes", "1")
        # The evaluation itself makes 5 000 steps; what follows is filmed.
        command = Command(trained, *words, "--video", "films", mark=4_000, hold=True).until_marked()
        command.mark.unlink()
        command.hold.touch()
        command.until_marked()
        send(how, command, trained)
        assert command.end() == 130
        assert list((trained / "films").iterdir()) == []

    def test_check(self, tmp_path: Path, how: str) -> None:
        command = Command(tmp_path, "check", "env_worlds:Endless", mark=150, hold=True).until_marked()
        send(how, command, tmp_path)
        command.hold.touch()
        assert command.end() == 130
        assert command.said.startswith("rekindle: stopped while env_worlds:Endless was ")
