"""What environments print in worker processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import env_worlds
import pytest
from perilous import trainer

from rekindle.actors.printing import Printing
from rekindle.errors import EnvError

pytestmark = pytest.mark.timeout(180)


class Chatty(env_worlds.Path):
    """The walk; says hello."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        print("hello from an actor", flush=False)
        return super().reset(seed=seed, options=options)


class Wordy(env_worlds.Path):
    """The walk; says something in two parts."""

    def step(self, action: Any) -> Any:
        sys.stdout.write("first ")
        sys.stderr.write("part ")
        time.sleep(0.002)
        sys.stdout.write("second\n")
        sys.stderr.write("of it\n")
        return super().step(action)


class Unwilling(env_worlds.Path):
    """The walk; can be reset three times."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        if self.resets > 3:
            raise RuntimeError("the simulator is gone")
        return super().reset(seed=seed, options=options)


def test_words_go_where_this_process_prints_at_the_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    printing = Printing()
    os.write(printing.stdout, b"before\n")
    os.write(printing.stderr, b"a problem\n")
    out = err = ""
    while "before" not in out or "problem" not in err:
        said = capfd.readouterr()
        out, err = out + said.out, err + said.err
    with open(tmp_path / "file", "wb") as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            os.write(printing.stdout, b"behind a terminal UI\n")
            printing.close()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
    assert (tmp_path / "file").read_text() == "behind a terminal UI\n"
    assert (out, err) == ("before\n", "a problem\n")


def test_the_end_does_not_wait_for_a_process_that_was_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.actors.printing._PATIENCE", 0.1)
    printing = Printing()
    kept = os.dup(printing.stdout)
    before = set(os.listdir("/proc/self/fd"))
    printing.close()
    os.close(kept)
    assert len(before) - len(os.listdir("/proc/self/fd")) == 7, "a descriptor was left open"


def test_an_environment_may_print(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer(tmp_path, tmp_path / "perils", env=Chatty, steps=80, eval_every=None).train()
    assert "hello from an actor\n" in capfd.readouterr().out


def test_lines_of_several_workers_are_not_mixed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # as in many containers
    trainer(tmp_path, tmp_path / "perils", env=Wordy, steps=80, eval_episodes=0).train()
    said = capfd.readouterr()
    assert {"first second"} == set(said.out.splitlines())
    assert {"part of it"} == set(said.err.splitlines()) - {""}


def test_an_environment_that_cannot_be_reset_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"Unwilling, env \d, failed in reset: RuntimeError: the simulator is gone"):
        trainer(tmp_path, tmp_path / "perils", env=Unwilling, eval_every=None).train()
