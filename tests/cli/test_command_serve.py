"""`rekindle serve` says at once what cannot work."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rekindle import RunReader
from rekindle.cli import main


@pytest.mark.parametrize("options", [[], ["--godot"]], ids=["clients", "godot"])
def test_an_unknown_algorithm_is_an_error_before_anybody_connects(
    options: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "dqnn", *options]) == 2
    assert "there is no algorithm 'dqnn'; did you mean dqn" in capsys.readouterr().err


def test_a_signal_while_the_session_is_opened_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvloop", reason="needs rekindle[server]")
    from rekindle.cli.served_run import ServedRun

    opened = ServedRun.open

    def interrupted(self: ServedRun, *spaces: Any, **options: Any) -> Any:
        session = opened(self, *spaces, **options)
        signal.raise_signal(signal.SIGINT)
        return session

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ServedRun, "open", interrupted)
    spaces = Path("spaces.json")
    spaces.write_text(
        '{"observation_space": {"type": "Discrete", "n": 3}, "action_space": {"type": "Discrete", "n": 2}}'
    )
    assert main(["serve", "tabular", "--spaces", str(spaces), "--learner", "inline", "--port", "0"]) == 0
    assert "stopped (stopped before it served)" in capsys.readouterr().err
    assert RunReader("runs/tabular-served").status == "stopped"


def test_other_spaces_than_those_of_the_run_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvloop", reason="needs rekindle[server]")
    from rekindle.cli.served_run import ServedRun

    monkeypatch.chdir(tmp_path)
    text = '{"observation_space": {"type": "Discrete", "n": %d}, "action_space": {"type": "Discrete", "n": 2}}'
    for states in (3, 4):
        Path(f"{states}.json").write_text(text % states)
    run = ServedRun(
        algorithm="tabular",
        name="tabular-served",
        version="v1",
        root=Path("runs"),
        seed=0,
        steps=None,
        play=None,
        session={"checkpoint_every": 1_000, "keep_checkpoints": 3, "metrics_every": 1_000},
        agent=None,
    )
    run.open(gym.spaces.Discrete(3), gym.spaces.Discrete(2)).close()
    assert main(["serve", "tabular", "--spaces", "4.json", "--port", "0"]) == 2
    assert "4.json has other spaces than the run that is continued" in capsys.readouterr().err
