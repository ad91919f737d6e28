"""`rekindle serve` says at once what cannot work."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

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
