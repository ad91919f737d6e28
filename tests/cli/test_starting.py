"""A slow command says what it does before it imports anything that takes long."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rekindle.cli import main
from rekindle.stages import StageLine

FIRST_OUTPUT = """
import json, os, sys

class First:
    encoding = "utf-8"

    def __init__(self, is_terminal):
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        ours = [name for name in sys.modules if name.startswith("rekindle")]
        others = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"rekindle"}
        os.write(1, json.dumps([text, len(ours), sorted(others - known)]).encode())
        os._exit(0)

    def fileno(self):
        raise OSError

known = {name.partition(".")[0] for name in sys.modules}  # what site imports
sys.argv = ["rekindle", *json.loads(sys.argv[1])]
sys.stderr = First(json.loads(sys.argv.pop()))
sys.stdout = sys.stderr
from rekindle.cli import main
main()
"""


@pytest.mark.parametrize("is_terminal", [False, True], ids=["plain", "terminal"])
@pytest.mark.parametrize(
    "command",
    ["train dqn CartPole-v1", "train ppo CartPole-v1 --ui plain", "train sac Pendulum-v1", "sweep dqn X", "serve dqn"],
)
def test_the_first_line_comes_before_every_import_that_takes_long(command: str, is_terminal: bool) -> None:
    words = [*command.split(), json.dumps(is_terminal)]
    program = [sys.executable, "-c", FIRST_OUTPUT, json.dumps(words)]
    environment = {"PYTHONPATH": str(Path(sys.modules["rekindle"].__file__ or "").parents[1]), "TERM": "xterm"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    text, ours, others = json.loads(done.stdout)
    assert text == ("\r\x1b[Kimporting\r" if is_terminal else "importing\n")
    assert others == []
    assert ours <= 12


def lines_of(arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["rekindle", *arguments.split()])
    main()
    return capsys.readouterr().err.splitlines()


def test_a_training_says_what_it_does_until_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = lines_of("train tabular FrozenLake-v1 --steps 100 --preset none", monkeypatch, capsys)
    assert shown[:4] == [
        "importing",
        "creating FrozenLake-v1",
        "creating the agent tabular",
        "probing FrozenLake-v1: can an episode be repeated?",
    ]
    silent = lines_of("train tabular FrozenLake-v1 --steps 100 --preset none --ui none", monkeypatch, capsys)
    assert [line for line in silent if not line.startswith("rekindle: ")] == []
    assert lines_of("train --help", monkeypatch, capsys) == []
    assert lines_of("runs", monkeypatch, capsys) == []


def test_a_sweep_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rekindle.cli.study.run_study", lambda *_, **__: None)
    monkeypatch.setattr("rekindle.cli.study.show_study", lambda *_, **__: 0)
    shown = lines_of("sweep tabular FrozenLake-v1 --trials 3 --jobs 2", monkeypatch, capsys)
    assert shown == ["importing", "training 3 trials with 2 seeds each, 2 at a time"]
    alone = lines_of("sweep tabular FrozenLake-v1 --trials 1 --seeds 4", monkeypatch, capsys)
    assert alone == ["importing", "training 1 trial with 1 seed each, 1 at a time"]
    without_env = lines_of("sweep tabular", monkeypatch, capsys)
    assert without_env[:-1] == ["importing"]
    assert "there is nothing to learn from: pass an environment" in without_env[-1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_stage_replaces_the_last_one_and_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    screen = Terminal()
    show = StageLine(screen)
    for text in ("importing", "creating \x1b[2Jevil", "", ""):
        show(text)
    assert screen.getvalue() == "\r\x1b[Kimporting\r\r\x1b[Kcreating \\x1b[2Jevil\r\r\x1b[K\r"
