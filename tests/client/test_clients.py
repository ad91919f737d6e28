"""The clients: blocking, asyncio, and for Gymnasium environments."""

import asyncio
import contextlib
import functools
import itertools
import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from hosting import ACTIONS, STATES, Hosted, RandomAgent, hosted

from rekindle import TrainingSession
from rekindle.client import AsyncClient, Client, GymClient
from rekindle.client.conversation import pauses
from rekindle.errors import ConfigError, InputError, ServerError
from rekindle.experience import Array, Transitions
from rekindle.server import ServerOptions


class Counting(gym.Env[Any, Any]):
    """Counts up; an episode ends at the end of the space, and is truncated after 20 steps."""

    observation_space = gym.spaces.Discrete(STATES)
    action_space = gym.spaces.Discrete(ACTIONS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.place, self.steps = min(STATES - 1, self.place + int(action == 1)), self.steps + 1
        return self.place, 1.0, self.place == STATES - 1, self.steps >= 20, {}


def test_a_gym_client_drives_environments_against_a_server(tmp_path: Path) -> None:
    with hosted(tmp_path) as server:
        played = GymClient(server.address, [Counting(), Counting(), Counting()], seed=0).run(600)
        assert played.steps == 600
        assert len(played.returns) > 10
        with Client(server.address) as client:
            stats = client.stats()
            assert stats["steps"] == 600
            assert stats["episodes"] == len(played.returns)
        greedy = GymClient(server.address, Counting(), mode="play").run(episodes=2)
        assert len(greedy.returns) == 2
        with Client(server.address) as client:
            assert client.stats()["steps"] == 600


class Reusing(gym.Env[Any, Any]):
    """Counts to 3 in one array, which it returns each time."""

    observation_space = gym.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(ACTIONS)

    def __init__(self) -> None:
        self._place = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place[:] = 0
        return self._place, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place += 1
        return self._place, 1.0, False, self._place[0] == 3, {}


class Noting(RandomAgent):
    """Notes the observations that actions led to."""

    def observe(self, transitions: Transitions, streams: Array) -> None:
        super().observe(transitions, streams)
        self.reached = [*getattr(self, "reached", []), *np.ravel(cast("Array", transitions.next_observations)).tolist()]


def test_a_gym_client_reports_true_last_observations_of_environments_that_reuse_arrays(tmp_path: Path) -> None:
    agent = Noting(Reusing.observation_space, Reusing.action_space)
    session = functools.partial(TrainingSession.open, "x", agent, root=tmp_path, journal=True, signals=False)
    server = Hosted(session, ServerOptions(port=0))
    try:
        GymClient(server.address, Reusing()).run(6)
    finally:
        server.stop()
    assert agent.reached == [1, 2, 3, 1, 2, 3]


def test_the_asyncio_client_does_the_same(tmp_path: Path) -> None:
    async def play(address: str, name: str) -> int:
        async with AsyncClient(address, client=name) as client:
            action = await client.begin(1)
            for place in range(20):
                action = await client.step(place % STATES, 1.0)
                assert action in range(ACTIONS)
            with pytest.raises(InputError, match="no open episode"):
                await client.step(1, 1.0, stream=3)
            assert await client.step(1, 1.0, truncated=True) is None
            assert await client.act(1) in range(ACTIONS)
            await client.leave()
            return client.reconnects

    async def all_of_them(address: str) -> list[int]:
        return await asyncio.gather(*(play(address, f"client-{number}") for number in range(5)))

    with hosted(tmp_path) as server:
        assert asyncio.run(all_of_them(server.address)) == [0] * 5
        assert server.call(lambda: server.server.stats(0).steps) == 105
        assert server.call(lambda: server.server.stats(0).streams) == 0


def test_composite_spaces_and_images_travel_in_their_structure(tmp_path: Path) -> None:
    observation_space = gym.spaces.Dict(
        {
            "eye": gym.spaces.Box(0, 255, (4, 4), np.uint8),
            "body": gym.spaces.Tuple([gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(4)]),
        }
    )
    action_space = gym.spaces.Dict({"move": gym.spaces.Discrete(3), "turn": gym.spaces.Box(-1, 1, (2,), np.float32)})

    def made() -> TrainingSession:
        agent = RandomAgent(observation_space, action_space)
        return TrainingSession.open("composite", agent, root=tmp_path, journal=True, signals=False)

    observation_space.seed(0)
    server = Hosted(made, ServerOptions(port=0))
    try:
        with Client(server.address, observation_space=observation_space, action_space=action_space) as client:
            action = client.begin(observation_space.sample())
            for _ in range(20):
                assert set(action) == {"move", "turn"}
                assert action["move"] in range(3)
                assert action["turn"].shape == (2,)
                action = client.step(observation_space.sample(), 1.0)
            client.step(observation_space.sample(), 0.5, action={"move": 2, "turn": np.zeros(2, np.float32)})
            with pytest.raises(InputError):
                client.step(observation_space.sample(), 0.5, action={"move": 3, "turn": np.zeros(2, np.float32)})
            with pytest.raises(InputError, match="shape"):
                client.begin({"eye": np.zeros((3, 3), np.uint8), "body": (np.zeros(3, np.float32), 1)})
            assert client.stats()["steps"] == 21
    finally:
        server.stop()


def test_threads_can_share_a_client(tmp_path: Path) -> None:
    def play(client: Client, stream: int) -> None:
        client.begin(0, stream=stream)
        for number in range(40):
            assert client.step(number % STATES, 1.0, stream=stream) in range(ACTIONS)
        assert client.act(1) in range(ACTIONS)

    with hosted(tmp_path) as server, Client(server.address) as client:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda stream: play(client, stream), range(4)))
        assert (client.stats()["steps"], client.reconnects) == (160, 0)


def test_a_secret_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with hosted(tmp_path) as server, pytest.raises(ConfigError, match=r"secret\.json cannot be written: No such"):
        Client(server.address, secret_file=tmp_path / "missing" / "secret.json")


def test_a_client_that_was_restarted_goes_on_with_its_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    with hosted(tmp_path) as server:
        with Client(server.address, client="arena", secret_file=secret) as client:
            client.begin(1)
            action = client.step(2, 0.5)
        assert secret.stat().st_mode & 0o777 == 0o600
        with Client(server.address, secret_file=secret) as again:
            open_episode = again.open_episodes[0]
            assert (open_episode.length, open_episode.total_reward, open_episode.action) == (1, 0.5, action)
            again.step(3, 1.0, terminated=True)
            assert again.stats()["episodes"] == 1
        with pytest.raises(ConfigError, match="arena"):
            Client(server.address, client="other", secret_file=secret)


def test_a_client_that_played_meanwhile_goes_on_with_its_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    with hosted(tmp_path) as server:
        with Client(server.address, client="arena", secret_file=secret) as client:
            client.begin(1)
            client.step(2, 0.5)
        with Client(server.address, secret_file=secret, mode="play") as player:
            player.act(3)
        with Client(server.address, secret_file=secret) as again:
            assert again.open_episodes[0].length == 1


def test_a_server_that_cannot_be_reached_is_one_clear_error() -> None:
    with pytest.raises(ServerError, match="cannot be reached"):
        Client("ws://127.0.0.1:1/session", patience=0.1)
    with pytest.raises(ConfigError, match="ws://"):
        Client("http://127.0.0.1:1")


def test_a_client_tries_at_least_every_second_to_connect_again() -> None:
    waits = list(itertools.islice(pauses(), 30))
    assert max(waits) <= 1.0
    assert waits[0] <= 0.05


@contextlib.contextmanager
def answering(text: bytes | None) -> Iterator[str]:
    """The address of a server that sends the same to everybody; with None, nothing."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if text is None:
                is_over.wait(10.0)
            else:
                self.request.recv(4096)
                self.request.sendall(text)

    is_over = threading.Event()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"ws://127.0.0.1:{server.server_address[1]}/session"
        finally:
            is_over.set()
            server.shutdown()


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\n<html/>", "answered 404: <html/>"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\n<html/>", "answered, but not as a WebSocket server: .*HTTP/1.0"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "answered, but not as a WebSocket server: .*SSH-2.0"),
        (None, "timed out"),
    ],
    ids=["not found", "an old proxy", "another protocol", "silence"],
)
def test_a_server_of_another_kind_is_told(sent: bytes | None, told: str) -> None:
    async def connect(address: str) -> None:
        await AsyncClient(address, patience=0.1, answer_seconds=0.2).connect()

    with answering(sent) as address:
        with pytest.raises(ServerError, match=told):
            Client(address, patience=0.1, answer_seconds=0.2)
        with pytest.raises(ServerError, match=told):
            asyncio.run(connect(address))
