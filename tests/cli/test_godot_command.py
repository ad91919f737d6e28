"""`rekindle serve --godot` says where games connect, and how the training goes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.server.godot_games import FakeGame, NotingAgent, obs

from rekindle import TrainingSession
from rekindle.cli.godot import serve_games


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
