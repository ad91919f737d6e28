from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import pytest

from rekindle.errors import ConfigError, MissingExtra, RekindleError
from rekindle.game import hosting


def test_a_port_that_is_taken_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: .*; use another --port"):
            hosting.play(tmp_path, port=port, announce=print)
    assert list(tmp_path.iterdir()) == []


def test_each_game_is_a_new_run_unless_the_newest_is_resumed(tmp_path: Path) -> None:
    def version(*, resume: bool) -> str:
        return hosting._version(tmp_path, resume=resume)

    assert version(resume=False) == version(resume=True) == "v1"
    (tmp_path / "game/v1").mkdir(parents=True)
    (tmp_path / "game/v2").mkdir()
    assert version(resume=False) == "v3"
    assert version(resume=True) == "v2"


def test_a_missing_library_is_an_error_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="the game needs equinox: pip install"):
        hosting.play(Path("runs"), port=0, announce=print)


def test_a_server_that_cannot_be_started_again_ends_the_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('ready', flush=True); sys.exit('the disk is full')"
    monkeypatch.setattr(hosting, "serve_command", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setattr(hosting, "_check_extras", lambda: None)
    stop = threading.Event()
    timer = threading.Timer(20.0, stop.set)
    timer.start()
    with pytest.raises(RekindleError, match="the disk is full"):
        hosting.play(tmp_path, port=0, announce=print, stop=stop)
    timer.cancel()
