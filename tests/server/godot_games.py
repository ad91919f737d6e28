"""Games that speak the protocol of Godot RL Agents, with and without Godot, and an agent that notes what it is told."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rekindle.agent import State
from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.rng import generator_from_state, generator_state
from rekindle.server.godot import GodotServer
from rekindle.session.session import TrainingSession
from rekindle.spaces import ActionStructure, SpaceParts

EXAMPLE = Path(__file__).parents[2] / "examples" / "godot"
CONVERSATION = Path(__file__).with_name("godot_conversation.jsonl")
"""Written by `python -m tests.server.godot_games GODOT`."""
GOOD = [
    json.dumps(line["game"]).encode()
    for line in map(json.loads, CONVERSATION.read_text().splitlines()[:20])
    if "game" in line
]
"""Messages of a game, as text."""
LINE = {"obs": {"size": [2], "space": "box"}}
CHOICE = {"move": {"size": 3, "action_type": "discrete"}}
COMPOSITE = {"steer": {"size": 2, "action_type": "continuous"}, "gear": {"size": 3, "action_type": "discrete"}}


class NotingAgent:
    """Acts at random, and keeps every transition."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.env_steps = self.updates = 0
        self.taken: list[tuple[int, Any, Any, float, Any, int]] = []
        """Stream, observation, action, reward, next observation, status."""
        self.fails = False
        self._rng = np.random.default_rng(0)
        self._structure, self._shape = ActionStructure.of(action_space), action_space.shape
        self._parts = [part.space for part in SpaceParts.of(action_space).parts.values()]

    def act(self, observations: Observations, mode: ActMode, streams: Array) -> Array:
        if self.fails:
            raise RuntimeError("the agent fails")
        rows = [np.concatenate([self._drawn(part) for part in self._parts]) for _ in streams]
        return np.stack(rows) if self._structure is not None else np.stack(rows).reshape(len(rows), *self._shape)

    def _drawn(self, space: Any) -> Array:
        if isinstance(space, gym.spaces.Discrete):
            return self._rng.integers(space.n, size=1)
        return self._rng.uniform(-1, 1, space.shape).astype(np.float32)

    def observe(self, transitions: Transitions, streams: Array) -> None:
        self.env_steps += len(transitions)
        for stream, item in zip(streams.tolist(), transitions.copy().experiences(), strict=True):
            status = int(item.status)
            self.taken.append((stream, item.observation, item.action, item.reward, item.next_observation, status))

    def updates_due(self) -> int:
        return 0

    def update(self, n: int) -> dict[str, Any]:
        return {}

    def state(self) -> State:
        return {"weights": np.zeros(1), "env_steps": self.env_steps, "rng": generator_state(self._rng)}

    def load_state(self, state: State) -> None:
        self.env_steps, self._rng = int(state["env_steps"]), generator_from_state(state["rng"])


class FakeGame:
    """A game whose every message is written by a test."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rwb")

    def receive(self) -> dict[str, Any] | None:
        """The next message of the server; None if it has closed the connection."""
        try:
            header = self._file.read(4)
            if len(header) < 4:
                return None
            return json.loads(self._file.read(int.from_bytes(header, "little")))
        except ConnectionError:
            return None

    def send(self, message: Any) -> None:
        self.send_text(json.dumps(message).encode())

    def send_text(self, text: bytes) -> None:
        self._file.write(len(text).to_bytes(4, "little") + text)
        self._file.flush()

    def ask(self, message: Any) -> dict[str, Any] | None:
        """Send a message, and return the answer."""
        self.send(message)
        return self.receive()

    def join(
        self, agents: int = 1, observation: Any = LINE, action: Any = CHOICE, *, names: Sequence[str] | None = None
    ) -> dict[str, Any] | None:
        """Say what the game is, as an older plugin does or as a newer one (with `names`); returns the next request."""
        assert self.receive() == {"type": "handshake", "major_version": "0", "minor_version": "7"}
        assert self.receive() == {"type": "env_info"}
        message: dict[str, Any] = {
            "type": "env_info",
            "n_agents": agents,
            "observation_space": observation,
            "action_space": action,
        }
        return self.ask(message if names is None else {**message, "agent_policy_names": list(names)})

    def reset(self, *observations: Any) -> list[dict[str, Any]]:
        """Send first observations; returns actions."""
        return self._actions({"type": "reset", "obs": list(observations)})

    def step(
        self, observations: Sequence[Any], rewards: Sequence[Any], dones: Sequence[Any], infos: Any = None
    ) -> list[dict[str, Any]]:
        """Send the outcome of the last actions; returns the next ones."""
        message = {"type": "step", "obs": list(observations), "reward": list(rewards), "done": list(dones)}
        return self._actions(message if infos is None else {**message, "info": list(infos)})

    def _actions(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        reply = self.ask(message)
        assert reply is not None, "the server has closed the connection"
        assert reply["type"] == "action"
        return reply["action"]

    def close(self) -> None:
        self._file.close()
        self.socket.close()


class Served:
    """A server on a thread of its own."""

    def __init__(self, **options: Any) -> None:
        session = options.pop("session", {})
        self.agents: list[NotingAgent] = []

        def open_session(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> TrainingSession:
            agent = NotingAgent(observation_space, action_space)
            self.agents.append(agent)
            return TrainingSession(agent, signals=False, **session)

        self.server = GodotServer(options.pop("open_session", open_session), port=options.pop("port", 0), **options)
        self.games: list[FakeGame] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        try:
            self.server.serve()
        except BaseException as error:
            self.error = error

    @property
    def taken(self) -> list[tuple[int, Any, Any, float, Any, int]]:
        return self.agents[0].taken

    def game(self) -> FakeGame:
        """A new game that has connected."""
        self.games.append(FakeGame(self.server.port))
        return self.games[-1]

    def wait(self) -> None:
        """Wait until the server ends by itself."""
        self._thread.join(60)

    def stop(self) -> None:
        """Stop the server as a signal does, and wait for it."""
        self.server.interrupter.stop("the test is over")
        self._thread.join(30)
        assert not self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()


@contextlib.contextmanager
def served(**options: Any) -> Generator[Served]:
    """A server that is stopped at the end of the test; an error of it is raised then."""
    made = Served(**options)
    made.start()
    try:
        yield made
    finally:
        for game in made.games:
            game.close()
        made.stop()
    if made.error is not None:
        raise made.error


@contextlib.contextmanager
def example_game(godot: str, port: int, *, bots: int) -> Generator[subprocess.Popen[bytes]]:
    """The game in `examples/godot`, as fast as it can, connected to a port."""
    command = [godot, "--headless", "--fixed-fps", "60", "--path", str(EXAMPLE), f"--port={port}", f"--bots={bots}"]
    game = subprocess.Popen([*command, "--env_seed=1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield game
    finally:
        game.kill()
        game.wait()


def record(godot: str, steps: int) -> list[dict[str, Any]]:
    """A conversation with the example game: bot 0 stands still, bot 1 drives straight ahead."""
    said: list[dict[str, Any]] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        example_game(godot, listener.getsockname()[1], bots=2) as game,
    ):
        with listener.accept()[0] as peer, peer.makefile("rwb") as file:

            def ask(message: dict[str, Any], *, is_answered: bool = True) -> None:
                text = json.dumps(message).encode()
                file.write(len(text).to_bytes(4, "little") + text)
                file.flush()
                said.append({"server": message})
                if is_answered:
                    size = int.from_bytes(file.read(4), "little")
                    said.append({"game": json.loads(file.read(size))})

            ask({"type": "handshake", "major_version": "0", "minor_version": "7"}, is_answered=False)
            ask({"type": "env_info"})
            ask({"type": "reset"})
            for _ in range(steps):
                ask({"type": "action", "action": [{"gear": 0, "steer": [0.0]}, {"gear": 2, "steer": [0.1]}]})
            ask({"type": "close"}, is_answered=False)
        game.wait(30)
    return said


def mutated(rng: random.Random) -> bytes:
    """A message with random bytes, cut off, repeated, or made from parts of others."""
    text = bytearray(rng.choice(GOOD))
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(text) + 1)
        match rng.randrange(5):
            case 0:
                text[place:place] = bytes(rng.randrange(256) for _ in range(rng.randrange(8)))
            case 1:
                del text[place : place + rng.randrange(40)]
            case 2:
                text[place:place] = rng.choice([b"[" * 2000, b"1e999", b"nan", b"null", b'"', b"-", b"{}", b"9" * 400])
            case 3:
                other = rng.choice(GOOD)
                start = rng.randrange(len(other))
                text[place:place] = other[start : start + rng.randrange(60)]
            case _:
                text[place : place + 1] = rng.choice([b"0", b"[", b"]", b"{", b"}", b",", b":", b"\x00", b"\xff"])
    return bytes(text)


def obs(*numbers: float) -> dict[str, Any]:
    """An observation of a game with one part."""
    return {"obs": list(numbers)}


if __name__ == "__main__":
    CONVERSATION.write_text("".join(json.dumps(line) + "\n" for line in record(sys.argv[1], 103)))
