"""`rekindle watch` off a terminal: a line now and then, and the summary at the end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_runs
from tiny_runs import evaluate, make_run, open_session, play_episode

from rekindle import TrainingRun
from rekindle.errors import MissingExtra
from rekindle.ui import companion
from rekindle.ui.watching import is_terminal, watch

Rekindle = Callable[..., Any]


def test_a_finished_run_gets_its_summary(tmp_path: Path, rekindle: Rekindle) -> None:
    make_run(tmp_path)
    outcome = rekindle("watch", tmp_path / "tiny")
    assert (outcome.code, outcome.err) == (0, "")
    assert "finished, enough" in outcome.flat
    assert "20 steps, 20 updates, 4 episodes" in outcome.flat
    assert "return train 5.00 5.00 5.00 5 5.00 5" in outcome.flat
    assert "running" not in outcome.out


def test_a_live_run_gets_lines_until_it_ends(tmp_path: Path, rekindle: Rekindle) -> None:
    run = TrainingRun.create("tiny", root=tmp_path)
    session = open_session(run, max_steps=40)
    for _ in range(4):
        play_episode(session)
    evaluate(session, 3.0, 5.0)
    session.flush()

    def finish() -> None:
        for _ in range(4):
            play_episode(session)
        session.close()

    ending = threading.Timer(0.7, finish)
    ending.start()
    outcome = rekindle("watch", run.path, "--interval", "0.1")
    ending.join()
    assert outcome.code == 0
    first = outcome.out.splitlines()[0]
    assert first.startswith("running: step 20/40 50%")
    assert "20 updates, 4 episodes, train return 5.00, eval return 4.00, loss " in first
    assert "finished, max_steps" in outcome.flat


def test_a_run_that_crashes_is_watched_to_its_end(tmp_path: Path, rekindle: Rekindle) -> None:
    run = TrainingRun.create("tiny", root=tmp_path)
    crash = threading.Timer(0.3, run.close)
    crash.start()
    outcome = rekindle("watch", run.path, "--plain", "--interval", "0.1")
    crash.join()
    assert outcome.code == 0
    assert "running: step 0, 0 updates, 0 episodes" in outcome.out
    assert "crashed" in outcome.out


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf"])
def test_an_interval_that_is_none_is_told(tmp_path: Path, rekindle: Rekindle, interval: str) -> None:
    outcome = rekindle("watch", make_run(tmp_path), f"--interval={interval}")
    assert (outcome.code, outcome.out) == (2, "")
    assert "use a number of seconds above 0" in outcome.err


def test_hostile_text_in_a_run_cannot_move_the_cursor(tmp_path: Path, rekindle: Rekindle) -> None:
    path = make_run(tmp_path)
    row = '{"row": 0, "env_steps": 5, "metrics": {"agent/\\u001b[2J": {"mean": 1}}}\n'
    (path / "metrics.jsonl").write_text(row)
    outcome = rekindle("watch", path)
    assert "\x1b" not in outcome.out
    assert "\\x1b[2J agent" in outcome.flat


def test_a_path_that_is_no_run_is_told_in_one_line(tmp_path: Path, rekindle: Rekindle) -> None:
    outcome = rekindle("watch", tmp_path / "nowhere")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)


def test_without_textual_a_terminal_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run(tmp_path)
    monkeypatch.setitem(sys.modules, "rekindle.ui.app", None)
    monkeypatch.setitem(sys.modules, "textual", None)
    with pytest.raises(MissingExtra, match=r'pip install "rekindle-rl\[ui\]"'):
        watch(path, plain=False)


@pytest.mark.parametrize("elsewhere", [None, "stdin", "stdout", "stderr"])
def test_a_terminal_is_one_at_every_end(monkeypatch: pytest.MonkeyPatch, elsewhere: str | None) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for end in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, end, SimpleNamespace(isatty=lambda end=end: end != elsewhere))
    assert is_terminal() is (elsewhere is None)


def test_a_training_that_is_to_be_shown_needs_a_terminal(tmp_path: Path, rekindle: Rekindle) -> None:
    outcome = rekindle("train", "tabular", "FrozenLake-v1", "--runs", tmp_path, "--ui", "tui")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "needs a terminal" in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ui", "terminal", "shown"), [("auto", True, True), ("auto", False, False), ("plain", True, False)]
)
def test_a_training_is_shown_where_there_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch, ui: str, *, terminal: bool, shown: bool
) -> None:
    pytest.importorskip("textual")
    monkeypatch.setattr(companion, "is_terminal", lambda: terminal)
    monkeypatch.setattr(companion, "_is_in_foreground", lambda: True)
    assert companion.is_shown(ui) is shown
    monkeypatch.setattr(companion, "_is_in_foreground", lambda: False)
    assert not companion.is_shown(ui)


def test_without_textual_a_training_prints_lines_unless_it_must_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companion, "is_terminal", lambda: True)
    monkeypatch.setattr(companion, "_is_in_foreground", lambda: True)
    monkeypatch.setitem(sys.modules, "rekindle.ui.app", None)
    monkeypatch.setattr(companion, "find_spec", lambda _: None)
    assert not companion.is_shown("auto")
    with pytest.raises(MissingExtra, match=r'pip install "rekindle-rl\[ui\]"'):
        companion.is_shown("tui")


@pytest.mark.slow
def test_lines_of_a_training_in_another_process_go_on_until_it_is_stopped(tmp_path: Path) -> None:
    training = subprocess.Popen(
        [sys.executable, tiny_runs.__file__, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert training.stdout is not None
    with training.stdout as said:
        said.readline()
        watching = subprocess.Popen(
            [sys.executable, "-m", "rekindle", "watch", str(tmp_path / "tiny"), "--interval", "0.2"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        with watching.stdout as lines:
            steps = [int(lines.readline().split("step ")[1].split(",")[0]) for _ in range(2)]
            assert (
                subprocess.run(
                    [sys.executable, "-m", "rekindle", "stop", str(tmp_path / "tiny")], capture_output=True, check=False
                ).returncode
                == 0
            )
            rest = lines.read()
        assert watching.wait(30) == 0
        assert training.wait(30) == 0
    assert steps[0] < steps[1]
    assert "stopped, rekindle stop" in rest
