"""A server for Godot games that is killed: what it had answered is in the run, and games connect again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Discrete
from tests.server.godot_games import FakeGame, NotingAgent, obs

from rekindle.run.reader import RunReader
from rekindle.training import replay_run

SERVER = """
import sys
from rekindle import TrainingSession
from rekindle.server.godot import GodotServer
from tests.server.godot_games import NotingAgent

def open_session(observation_space, action_space):
    agent = NotingAgent(observation_space, action_space)
    return TrainingSession.open("game", agent, root=sys.argv[1], journal=True, journal_keep="all", checkpoint_every=10)

server = GodotServer(open_session, port=0)
print(server.port, flush=True)
server.serve()
print(server.session.total_steps, server.session.episodes, server.session.resumed.replayed, flush=True)
"""


def start(root: Path) -> tuple[subprocess.Popen[str], FakeGame]:
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(root)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    return server, FakeGame(int(server.stdout.readline()))


def test_a_killed_server_goes_on_with_every_step_that_it_had_answered(tmp_path: Path) -> None:
    server, game = start(tmp_path)
    game.join(2)
    game.reset(obs(0, 0), obs(1, 0))
    for step in range(1, 14):
        game.step([obs(0, step), obs(1, step)], [1, 1], [False, step == 5])
    os.kill(server.pid, signal.SIGKILL)
    server.communicate()
    assert game.receive() is None
    game.close()

    server, game = start(tmp_path)
    game.join(2)
    game.reset(obs(5, 5), obs(6, 6))
    game.step([obs(5, 6), obs(6, 7)], [1, 1], [False, False])
    server.terminate()
    assert game.receive() == {"type": "close"}
    said, _ = server.communicate()
    game.close()
    # 26 steps before the kill and 2 after it; one episode that was done, two that the kill and two that the stop cut.
    steps, episodes, replayed = map(int, said.split())
    assert (steps, episodes) == (28, 5)
    assert replayed > 0, "the last steps were only in the journal"
    resume = RunReader(tmp_path / "game").metadata.resumes[-1]
    assert resume.grade == "approximate"
    assert server.returncode == 0
    replayed_run = replay_run(tmp_path / "game", agent=NotingAgent(Box(-np.inf, np.inf, (2,)), Discrete(3)))
    assert replayed_run.ok, "all that the games reported, in both processes, leads to the same run"
