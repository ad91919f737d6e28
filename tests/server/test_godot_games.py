"""The example game trains: with a conversation that was recorded, and with a real Godot if there is one."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.server.godot_games import CONVERSATION, NotingAgent, Served, example_game, served

from rekindle import TrainingSession
from rekindle.run.reader import RunReader
from rekindle.server.godot import GodotServer

GODOT = os.environ.get("GODOT")
needs_godot = pytest.mark.skipif(not GODOT, reason="the variable GODOT does not name a Godot 4 that can be started")
TERMINATED, TRUNCATED = 1, 2


def test_a_recorded_conversation_trains_as_it_did_live() -> None:
    lines = [json.loads(line) for line in CONVERSATION.read_text().splitlines()]
    replies: list[dict[str, Any]] = []
    with served() as made:
        game = made.game()
        for line in lines[:-1]:  # the last is the end, which the server sends when it stops
            if "game" in line:
                replies.append(line["game"])
                game.send(line["game"])
            else:
                asked = game.receive()
                assert asked is not None
                if asked["type"] != "action":
                    assert asked == line["server"]
                else:
                    assert [set(action) for action in asked["action"]] == [{"gear", "steer"}] * 2
        assert game.receive() is not None
        made.stop()
        assert game.receive() == lines[-1]["server"]

    steps = [reply for reply in replies if reply["type"] == "step"]
    expected: list[tuple[int, list[float], float, list[float], int]] = []
    before = next(reply for reply in replies if reply["type"] == "reset")["obs"]
    for reply in steps:
        for agent in range(2):
            info, done = reply["info"][agent], reply["done"][agent]
            after = info["terminal_observation"] if done else reply["obs"][agent]
            status = 0 if not done else TRUNCATED if info["TimeLimit.truncated"] else TERMINATED
            expected.append((agent, before[agent]["obs"], reply["reward"][agent], after["obs"], status))
        before = reply["obs"]
    assert len(made.taken) == len(expected)
    for (stream, observation, _, reward, following, status), wanted in zip(made.taken, expected, strict=True):
        assert (stream, reward, status) == (wanted[0], wanted[2], wanted[4])
        assert observation.tolist() == pytest.approx(wanted[1])
        assert following.tolist() == pytest.approx(wanted[3])
    counts = made.server.counts
    assert counts.truncated == 1
    assert counts.terminated >= 3
    assert counts.missing == {}


@needs_godot
def test_two_real_games_train_and_are_closed_at_the_end(tmp_path: Path) -> None:
    agents: list[NotingAgent] = []

    def open_session(observation_space: Any, action_space: Any) -> TrainingSession:
        agents.append(NotingAgent(observation_space, action_space))
        return TrainingSession.open(
            "flags", agents[0], root=tmp_path, max_steps=600, journal=True, metrics_every=100, signals=False
        )

    server = GodotServer(open_session, port=0)
    serving = threading.Thread(target=server.serve)
    serving.start()
    assert GODOT is not None
    with example_game(GODOT, server.port, bots=2) as one, example_game(GODOT, server.port, bots=3) as other:
        serving.join(60)
        assert (one.wait(30), other.wait(30)) == (0, 0)
    assert server.counts.terminated > 0
    assert server.counts.missing == {}
    assert len({stream for stream, *_ in agents[0].taken}) == 5
    assert RunReader(tmp_path / "flags").metadata.status == "finished"


@needs_godot
def test_a_real_game_waits_for_a_server_that_starts_again() -> None:
    """The example game reconnects; a game with the plugin would quit."""
    assert GODOT is not None
    first = Served()
    first.start()
    with example_game(GODOT, first.server.port, bots=2) as game:
        while not first.agents or len(first.taken) < 20:
            threading.Event().wait(0.02)
        first.agents[0].fails = True
        first.wait()
        assert str(first.error) == "the agent fails"
        with served(port=first.server.port, session={"max_steps": 100}) as second:
            second.wait()
        assert game.wait(30) == 0
    assert len(second.taken) == 100
