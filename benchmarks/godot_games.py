"""Train a Godot game for some minutes, and compare the returns with those of a random policy.

The game is a directory with a Godot project that uses Godot RL Agents, or `examples/godot`:

    python benchmarks/godot_games.py GODOT GAME --minutes 10 --time-limit 125
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from rekindle import TrainingSession
from rekindle.agent import State
from rekindle.agents import PPO
from rekindle.envs.actions import RandomActions
from rekindle.events import EpisodeEnded, Event
from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.interrupt import Interrupter
from rekindle.server import GodotServer
from rekindle.server.godot_play import EndRules


class RandomAgent:
    """Draws actions uniformly, and learns nothing."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.env_steps = self.updates = 0
        self._actions = RandomActions(action_space)
        self._actions.seed(0)

    def act(self, observations: Observations, mode: ActMode, streams: Array) -> Array:  # noqa: ARG002
        return np.stack([np.asarray(self._actions.draw(None)) for _ in streams])

    def observe(self, transitions: Transitions, streams: Array) -> None:  # noqa: ARG002
        self.env_steps += len(transitions)

    def updates_due(self) -> int:
        return 0

    def update(self, n: int) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def state(self) -> State:
        return {"weights": np.zeros(1)}

    def load_state(self, state: State) -> None:
        pass


class Returns:
    """The returns and lengths of all episodes."""

    def __init__(self) -> None:
        self.returns: list[float] = []
        self.lengths: list[int] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, EpisodeEnded):
            self.returns.append(event.record.total_reward)
            self.lengths.append(event.record.length)

    def text(self, part: slice) -> str:
        if not self.returns:
            return "0 episodes"
        returns, lengths = np.array(self.returns[part]), np.array(self.lengths[part])
        error = returns.std() / max(1, len(returns)) ** 0.5
        return f"{len(returns)} episodes: return {returns.mean():.2f} +- {error:.2f}, length {lengths.mean():.1f}"


def play(options: argparse.Namespace, policy: str, minutes: float) -> None:
    heard, interrupter, seed = Returns(), Interrupter(), options.seed

    def open_session(observation_space: Any, action_space: Any) -> TrainingSession:
        if policy == "random":
            agent: Any = RandomAgent(observation_space, action_space)
        else:
            agent = PPO(observation_space, action_space, seed=seed, normalise_rewards=True, entropy_coef=0.001)
        timer = threading.Timer(60 * minutes, interrupter.stop, ["the time is up"], {"complete": True})
        timer.daemon = True
        timer.start()
        name = f"{Path(options.game).name}-{policy}"
        return TrainingSession.open(
            name, agent, root=options.runs, seed=seed, callbacks=[heard], interrupter=interrupter, journal=True
        )

    server = GodotServer(
        open_session,
        port=0,
        rules=EndRules(time_limit=options.time_limit),
        interrupter=interrupter,
        report=lambda line: print(f"  {line}", flush=True),
        report_seconds=30.0,
    )
    # With these options a game computes as fast as it can; its physics is that of 60 frames a second.
    fast = ["--headless", "--fixed-fps", "2000", f"--speedup={options.speedup}", f"--env_seed={seed}"]
    command = [options.godot, "--path", options.game, *fast, f"--port={server.port}"]
    games = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(options.games)
    ]
    started = time.monotonic()
    try:
        server.serve()
    finally:
        for game in games:
            game.terminate()
            game.wait()
    seconds = time.monotonic() - started
    session = server.session
    assert session is not None
    print(f"{policy}: {session.total_steps:,} steps, {session.total_steps / seconds:.0f} a second")
    print(f"  all of {heard.text(slice(None))}")
    print(f"  the last {heard.text(slice(-200, None))}")
    print(f"  missing: {server.counts.missing}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("godot", help="the command that starts Godot 4")
    parser.add_argument("game", help="the directory of the game")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--random-minutes", type=float, default=1.0)
    parser.add_argument("--games", type=int, default=1, help="how many of them at once")
    parser.add_argument("--time-limit", type=int, default=None)
    parser.add_argument("--speedup", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", default=tempfile.gettempdir(), help="where to put the runs")
    options = parser.parse_args()
    play(options, "random", options.random_minutes)
    play(options, "ppo", options.minutes)


if __name__ == "__main__":
    main()
