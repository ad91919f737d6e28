"""`rekindle serve ALGO --godot` trains games, goes on after a kill, and plays."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.server.godot_games import CHOICE, FakeGame

from rekindle.cli.entry import run

ROOMS = {"room": {"size": 4, "space": "discrete"}}


def started(*options: str, program: Sequence[str] = ("-m", "rekindle")) -> tuple[subprocess.Popen[str], int]:
    """The command, and the port that it says."""
    command = [sys.executable, *program, "serve", "tabular", "--godot", "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("waiting for games on port "):
            return process, int(line.split()[-1])
    raise AssertionError("it ended before it said where games connect")


def outcome(*rooms: int, dones: tuple[bool, ...] | None = None) -> dict[str, Any]:
    done = [False] * len(rooms) if dones is None else list(dones)
    return {"type": "step", "obs": [{"room": room} for room in rooms], "reward": [1] * len(rooms), "done": done}


def test_a_run_of_games_goes_on_after_a_kill(tmp_path: Path) -> None:
    options = ("--name", "rooms", "--runs", str(tmp_path), "--steps", "8")
    server, port = started(*options, "--time-limit", "50")
    game = FakeGame(port)
    game.join(2, ROOMS, CHOICE)
    game.reset({"room": 0}, {"room": 1})
    for room in (1, 2):
        assert game.ask(outcome(room, room)) is not None
    server.kill()
    server.communicate()
    game.close()

    server, port = started(*options, "--time-limit", "50")
    game = FakeGame(port)
    game.join(2, ROOMS, CHOICE)
    game.reset({"room": 0}, {"room": 1})
    assert game.ask(outcome(1, 1)) is not None
    assert game.ask(outcome(2, 2, dones=(True, False))) == {"type": "close"}
    game.close()
    said = server.communicate()[1]
    assert "continued at step 4" in said
    assert "stopped (max_steps) at 8 steps" in said
    assert server.returncode == 0


def test_a_policy_plays_its_own_game_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first: list[Any] = []

    def play(rooms: int) -> None:
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                game = FakeGame(port)
                break
        if game.join(2, {"room": {"size": rooms, "space": "discrete"}}, CHOICE) is not None:
            first.append(game.reset({"room": 0}, {"room": 0}))
            if game.ask(outcome(1, 1)) != {"type": "close"}:
                os.kill(os.getpid(), signal.SIGTERM)
        game.close()

    command = ["serve", "tabular", "--godot", "--runs", str(tmp_path), "--port", str(port)]
    watch = ["--play", "--checkpoint", "latest"]
    for options, rooms, code in ((["--steps", "2"], 4, 0), (watch, 4, 0), (watch, 5, 2)):
        playing = threading.Thread(target=play, args=[rooms])
        playing.start()
        assert run([*command, *options]) == code
        playing.join(30)
    _, played = first
    assert played[0] == played[1], "it plays greedily"
    said = "the run was trained with the observation space Discrete(4), but this game has Discrete(5)"
    assert said in capsys.readouterr().err


def test_options_without_an_effect_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "tabular", "--godot", "--host", "0.0.0.0"]) == 2
    assert "--host would have no effect" in capsys.readouterr().err
    assert run(["serve", "tabular", "--time-limit", "5"]) == 2
    assert "--time-limit would have no effect" in capsys.readouterr().err


def test_without_descriptors_new_games_are_refused_and_the_training_lives(tmp_path: Path) -> None:
    script = tmp_path / "limited.py"
    script.write_text(
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))\n"
        "from rekindle.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n",
        encoding="utf-8",
    )
    server, port = started("--runs", str(tmp_path), "--checkpoint-every", "5", program=[str(script)])
    game = FakeGame(port)
    game.join(1, ROOMS, CHOICE)
    game.reset({"room": 0})
    many = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
    for number in range(40):
        assert game.ask(outcome(number % 4, dones=(number % 10 == 9,))) is not None
    for one in many:
        one.close()
    game.close()
    server.terminate()
    said = server.communicate(timeout=60)[1]
    assert "at 40 steps" in said
    assert "Too many open files" not in said
