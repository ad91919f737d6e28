"""What a session costs over a socket, beside a bare echo server of the same library.

    python benchmarks/server.py [--seconds 3] [--rounds 3] [--clients 64] [--learning] [--json FILE]

Each server is a process of its own, and one more process has all clients, which send their next request when the answer
is here. Rounds of both servers alternate. CPU is that of the server's process, which the kernel counts; latencies are
those that clients see. The agent does nothing, observations are 17 floats, and the input journal is on.

With --learning, a DQN learns in the background of the server, and the latency of `step` stands beside that of a plain
JSON loop over TCP with one thread a game, as Godot RL Agents has it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, cast

import gymnasium as gym
import msgspec
import numpy as np
import picows
import uvloop

from rekindle import TrainingSession
from rekindle.client import AsyncClient
from rekindle.server import ServerOptions, SessionServer
from rekindle.wire.messages import Actions, Begin, Hello, Limits, Step, StreamKey, Welcome
from rekindle.wire.rows import PartFormat

FLOATS = 17


class Nothing:
    """An agent that does nothing."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (FLOATS,), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        self.env_steps = self.updates = 0
        self._actions = np.zeros(4096, np.int64)

    def act(self, observations: Any, mode: Any, streams: Any) -> Any:
        del observations, mode
        return self._actions[: len(streams)]

    def observe(self, transitions: Any, streams: Any) -> None:
        del streams
        self.env_steps += len(transitions)

    def updates_due(self) -> int:
        return 0

    def update(self, n: int) -> dict[str, float]:
        del n
        return {}

    def state(self) -> dict[str, Any]:
        return {"env_steps": self.env_steps}

    def load_state(self, state: Any) -> None:
        self.env_steps = state["env_steps"]


def serve_session(pipe: Connection, is_learning: bool) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as root:
            agent: Any = Nothing()
            if is_learning:
                from rekindle.agents import DQN

                agent = DQN(agent.observation_space, agent.action_space, seed=0, warmup_steps=500)
            learner = "background" if is_learning else "inline"
            session = TrainingSession.open(
                "bench", agent, root=root, journal=True, signals=False, checkpoint_every=None, learner=learner
            )
            server = SessionServer(session, ServerOptions(port=0))
            await server.start()
            pipe.send(server.port)
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
            await server.__aexit__()
            session.close()

    uvloop.run(main())


class Echo(picows.WSListener):
    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type == picows.WSMsgType.BINARY:
            transport.send(picows.WSMsgType.BINARY, frame.get_payload_as_bytes())


def _echo(_request: picows.WSUpgradeRequest) -> Echo:
    return Echo()


def serve_echo(pipe: Connection, _: bool) -> None:
    async def main() -> None:
        create = cast("Any", picows).ws_create_server
        server = await create(_echo, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    uvloop.run(main())


def serve_json(pipe: Connection, _: bool) -> None:
    """A loop as Godot RL Agents has it: JSON with a length, one blocking thread for each game."""

    def talk(game: socket.socket) -> None:
        with game:
            while head := game.recv(4):
                size, data = struct.unpack("<I", head)[0], b""
                while len(data) < size:
                    data += game.recv(size - len(data))
                json.loads(data)
                answer = json.dumps({"type": "action", "action": [{"move": 0}]}).encode()
                game.sendall(struct.pack("<I", len(answer)) + answer)

    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    pipe.send(listener.getsockname()[1])

    def accept() -> None:
        while True:
            game, _ = listener.accept()
            game.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=talk, args=(game,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    pipe.recv()


class Player(picows.WSListener):
    """A client that sends its next request when the answer is here."""

    def __init__(self, number: int, streams: int, is_echo: bool) -> None:
        self.number, self.is_echo = number, is_echo
        self.streams: list[StreamKey] = list(range(streams))
        self.requests = self.seq = 0
        self.latencies: list[float] = []
        self.is_over = False
        self.observations = np.random.default_rng(number).random((streams, FLOATS)).astype(np.float32).tobytes()
        self.rewards, self.statuses = np.ones(streams).tobytes(), bytes(streams)
        self.named = self.streams if streams > 1 else None

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.transport = transport
        if self.is_echo:
            self.step()
        else:
            self.send(Hello(versions=(1, 1), client=f"player-{self.number}"))

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        del transport
        if frame.msg_type != picows.WSMsgType.BINARY or self.is_over:
            return
        self.requests += 1
        if self.seq > 1 or self.is_echo:
            self.latencies.append(time.perf_counter() - self.sent)
            self.step()
        elif self.seq == 0:
            self.seq = 1
            self.send(Begin(seq=1, observations=self.observations, streams=self.named))
        else:
            self.step()

    def step(self) -> None:
        self.seq += 1
        self.send(
            Step(
                seq=self.seq,
                observations=self.observations,
                rewards=self.rewards,
                statuses=self.statuses,
                streams=self.named,
            )
        )

    def send(self, message: Any) -> None:
        self.sent = time.perf_counter()
        self.transport.send(picows.WSMsgType.BINARY, msgspec.msgpack.encode(message))


class Measured(NamedTuple):
    requests: int
    seconds: float
    server_cpu: float
    client_cpu: float
    latencies: list[float]


class EchoedClient(AsyncClient):
    """The client that is shipped, against the echo server: it does the same work for each request."""

    async def _connected(self, waiting: bytes | None, **_: Any) -> None:
        del waiting
        await self._open()
        box, discrete = PartFormat("float32", (FLOATS,)), PartFormat("int32")
        welcome = Welcome(
            version=1,
            server="",
            run="",
            agent="",
            client="",
            incarnation=1,
            secret=None,
            last=0,
            is_behind=False,
            streams=[],
            observation_space={},
            action_space={},
            observation={"": box},
            action={"": discrete},
            limits=Limits(message=1 << 20, streams=1, rate=1),
        )
        self._talk.welcomed(msgspec.msgpack.encode(welcome), is_waiting=False)

    async def _answer(self) -> Actions:
        message = msgspec.msgpack.decode(await self._receive())
        reply = Actions(seq=message["seq"], tick=1, actions=b"\0\0\0\0")
        return cast("Actions", self._talk.answered(msgspec.msgpack.encode(reply)))


async def play_for_real(port: int, pid: int, clients: int, streams: int, seconds: float, is_echo: bool) -> Measured:
    """As `play`, with the asyncio client of rekindle."""
    del streams
    kind = EchoedClient if is_echo else AsyncClient
    players = [kind(f"ws://127.0.0.1:{port}/session", client=f"player-{number}") for number in range(clients)]
    latencies: list[float] = []
    is_over = False

    async def run(player: AsyncClient) -> None:
        observation = np.random.default_rng(0).random(FLOATS).astype(np.float32)
        await player.begin(observation)
        while not is_over:
            started = time.perf_counter()
            await player.step(observation, 1.0)
            latencies.append(time.perf_counter() - started)

    tasks = [asyncio.create_task(run(player)) for player in players]
    await asyncio.sleep(0.5)
    latencies.clear()
    cpu, started, ours = cpu_of(pid), time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    made, passed, used = len(latencies), time.perf_counter() - started, cpu_of(pid) - cpu
    ours, is_over = time.process_time() - ours, True
    await asyncio.gather(*tasks)
    for player in players:
        await player.close()
    return Measured(made, passed, used, ours, latencies)


async def play(port: int, pid: int, clients: int, streams: int, seconds: float, is_echo: bool) -> Measured:
    players = [Player(number, streams, is_echo) for number in range(clients)]
    connect = cast("Any", picows).ws_connect
    for player in players:
        await connect(lambda player=player: player, f"ws://127.0.0.1:{port}/session")
    await asyncio.sleep(0.3)
    for player in players:
        player.latencies.clear()
    requests, cpu, started = sum(player.requests for player in players), cpu_of(pid), time.perf_counter()
    ours = time.process_time()
    await asyncio.sleep(seconds)
    passed, used = time.perf_counter() - started, cpu_of(pid) - cpu
    ours = time.process_time() - ours
    made = sum(player.requests for player in players) - requests
    latencies = [latency for player in players for latency in player.latencies]
    for player in players:
        player.is_over = True
        player.transport.disconnect(graceful=False)
    await asyncio.sleep(0.05)
    return Measured(made, passed, used, ours, latencies)


def cpu_of(pid: int) -> float:
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        main = int(file.read().split()[0])
    threads = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        if int(thread) != pid:
            try:
                with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                    threads += int(file.read().split()[0])
            except FileNotFoundError:
                continue
    return (main + threads) / 1e9


def measure(
    target: Callable[[Connection, bool], None],
    clients: int,
    streams: int,
    seconds: float,
    *,
    is_learning: bool = False,
    is_real: bool = False,
) -> Measured:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, is_learning))
    process.start()
    try:
        port = ours.recv()
        pid = process.pid or 0
        player = play_for_real if is_real else play
        return uvloop.run(player(port, pid, clients, streams, seconds, target is serve_echo))
    finally:
        ours.send(None)
        process.join(10)
        process.kill()
        process.join()


def measure_json(clients: int, seconds: float) -> list[float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_json, args=(theirs, False))
    process.start()
    port = ours.recv()
    latencies: list[float] = []
    until = time.perf_counter() + seconds
    message = json.dumps({"type": "step", "obs": [{"obs": [0.5] * FLOATS}], "reward": [1.0], "done": [False]}).encode()

    def game() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (started := time.perf_counter()) < until:
                connection.sendall(struct.pack("<I", len(message)) + message)
                size, data = struct.unpack("<I", connection.recv(4))[0], b""
                while len(data) < size:
                    data += connection.recv(size - len(data))
                latencies.append(time.perf_counter() - started)

    threads = [threading.Thread(target=game) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ours.send(None)
    process.join(5)
    process.kill()
    return latencies


def percentile(values: list[float], share: float) -> float:
    return 1e6 * sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--learning", action="store_true")
    parser.add_argument("--json", dest="file")
    given = parser.parse_args()
    cases = [("echo", serve_echo, given.clients, 1), ("session", serve_session, given.clients, 1)]
    cases += [("session", serve_session, given.clients, 16), ("session", serve_session, 4, 16)]
    cases += [("echo", serve_echo, 1, 1), ("session", serve_session, 1, 1)]
    results: dict[str, list[Measured]] = {}
    for _ in range(given.rounds):
        for name, target, clients, streams in cases:
            found = measure(target, clients, streams, given.seconds)
            results.setdefault(f"{name}, {clients} clients, {streams} streams", []).append(found)
        for name, target in (("echo", serve_echo), ("session", serve_session)):
            found = measure(target, given.clients, 1, given.seconds, is_real=True)
            results.setdefault(f"{name}, {given.clients} AsyncClients, 1 streams", []).append(found)
    rows: dict[str, dict[str, float]] = {}
    for name, rounds in results.items():
        streams = int(name.split(", ")[2].split()[0])
        rows[name] = {
            "requests/s": statistics.median(one.requests / one.seconds for one in rounds),
            "server CPU us/request": statistics.median(1e6 * one.server_cpu / one.requests for one in rounds),
            "server CPU us/step": statistics.median(1e6 * one.server_cpu / one.requests / streams for one in rounds),
            "clients' CPU us/request": statistics.median(1e6 * one.client_cpu / one.requests for one in rounds),
            "p50 us": statistics.median(percentile(one.latencies, 0.5) for one in rounds),
            "p99 us": statistics.median(percentile(one.latencies, 0.99) for one in rounds),
        }
    for name, row in rows.items():
        print(f"{name:32}" + "".join(f"{key} {value:9.1f}   " for key, value in row.items()))
    echo, session = (
        rows[f"echo, {given.clients} clients, 1 streams"],
        rows[f"session, {given.clients} clients, 1 streams"],
    )
    above = session["server CPU us/request"] - echo["server CPU us/request"]
    shares = [session["requests/s"] / echo["requests/s"]]
    names = [f"{name}, {given.clients} AsyncClients, 1 streams" for name in ("session", "echo")]
    shares.append(rows[names[0]]["requests/s"] / rows[names[1]]["requests/s"])
    batched = rows[f"session, {given.clients} clients, 16 streams"]["server CPU us/step"]
    print(f"one stream a request: {above:.1f} us of CPU above echo")
    print(
        f"throughput: {shares[1]:.2f} times that of echo with AsyncClient, {shares[0]:.2f} with clients that do nothing"
    )
    print(f"16 streams a request: {batched:.1f} us of CPU a step")
    if given.learning:
        learning = measure(serve_session, 4, 1, given.seconds, is_learning=True).latencies
        plain = measure_json(4, given.seconds)
        for name, found in (("DQN learning in the background", learning), ("JSON loop with a thread a game", plain)):
            rows[name] = {"p50 us": percentile(found, 0.5), "p99 us": percentile(found, 0.99)}
            print(f"{name:32}" + "".join(f"{key} {value:9.1f}   " for key, value in rows[name].items()))
    if given.file:
        with open(given.file, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
