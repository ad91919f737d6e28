"""`rekindle serve --godot` says where games connect, and how the training goes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.server.godot_games import FakeGame, NotingAgent, obs

from rekindle import TrainingSession
from rekindle.cli.godot import serve_games
from rekindle.run.reader import RunReader


def test_the_command_says_where_games_connect_and_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    codes: list[int] = []

    def open_session(observation_space: Any, action_space: Any) -> TrainingSession:
        return TrainingSession(NotingAgent(observation_space, action_space), max_steps=2, signals=False)

    serving = threading.Thread(target=lambda: codes.append(serve_games(open_session, port=0)))
    serving.start()
    while not said:
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("waiting for games on port ")]
    game = FakeGame(int(said[0].rpartition(" ")[2]))
    game.join(2)
    game.reset(obs(0, 0), obs(1, 1))
    assert game.ask({"type": "step", "obs": [obs(0, 1), obs(1, 2)], "reward": [1, 1], "done": [False, False]}) == {
        "type": "close"
    }
    serving.join(30)
    game.close()
    assert codes == [0]
    assert capsys.readouterr().out == "max_steps: 2 steps, 2 episodes, 0 updates\n"


@pytest.mark.slow
def test_serve_with_godot_trains_a_run_and_stops_with_a_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rekindle", "serve", "ppo", "--godot", "--port", "0", "--learner", "inline"]
    command += ["--runs", str(tmp_path), "--name", "game"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("waiting for games on port "), line
    game = FakeGame(int(line.rpartition(" ")[2]))
    game.join(2)
    game.reset(obs(0, 0), obs(1, 1))
    game.ask({"type": "step", "obs": [obs(0, 1), obs(1, 2)], "reward": [1, 1], "done": [False, False]})
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    game.close()
    assert process.returncode == 0, errors
    assert out == "SIGTERM: 2 steps, 2 episodes, 0 updates\n"
    assert RunReader(tmp_path / "game").metadata.status == "stopped"
