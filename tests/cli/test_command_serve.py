"""`rekindle serve` says at once what cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

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
