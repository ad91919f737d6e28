"""Operating a server: stopping it, playing only, TLS, power cuts, many short streams, no more descriptors."""

import asyncio
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from hosting import ACTIONS, STATES, Hosted, RandomAgent, ServerProcess, hosted, session_of, wait_for
from raw_socket import PING, Raw, frame, opened
from tests.session.journal_hosts import copied
from tests.toys import ToyAgent

from rekindle import TrainingSession
from rekindle.checkpoint.input_segments import segments
from rekindle.cli import served_run
from rekindle.client import AsyncClient, Client
from rekindle.errors import ConfigError, InputError, RunLocked, ServerError, StreamsLost
from rekindle.run.finding import find_run
from rekindle.run.reader import RunReader
from rekindle.server import ServerOptions, SessionServer
from rekindle.wire.space_trees import space_as_tree

SPACES: dict[str, Any] = {
    "observation_space": gym.spaces.Discrete(STATES),
    "action_space": gym.spaces.Discrete(ACTIONS),
}


def serving(root: Path, *more: str) -> ServerProcess:
    return ServerProcess("serve", "tabular", "--runs", root, "--name", "served", "--port", "0", *more)


@pytest.mark.slow
def test_a_server_drains_on_sigterm_plays_afterwards_and_is_continued(tmp_path: Path) -> None:
    server = serving(tmp_path, "--learner", "inline")
    server.start()
    with Client(server.address, client="arena", **SPACES) as client:
        client.begin(1)
        action = client.step(2, 0.5)
        with Raw(int(server.address.rpartition(":")[2].partition("/")[0])) as raw:
            raw.hello()
            assert server.terminate() == 0
            assert raw.ended() == ("leaving", 1001)
        run = find_run(tmp_path / "served")
        assert RunReader(run).metadata.status == "stopped"
        assert RunReader(run).metadata.total_steps == 1
        player = serving(tmp_path, "--play", "--checkpoint", "latest")
        player.start()
        with Client(player.address) as other:
            assert other.act(3) in range(ACTIONS)
            with pytest.raises(InputError, match="mode"):
                other.begin(1)
        assert player.terminate() == 0
        port = server.address.rpartition(":")[2].partition("/")[0]
        again = ServerProcess(
            "serve", "tabular", "--learner", "inline", "--runs", tmp_path, "--name", "served", "--port", port
        )
        again.start()
        assert client.step(3, 0.5, terminated=True, action=action) is None
        assert client.reconnects == 1
        assert client.stats()["steps"] == 2
        assert again.terminate() == 0
    assert RunReader(run).metadata.exact


def test_serve_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    def outcome(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "rekindle", "serve", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    code, error = outcome("tabular", "--host", "0.0.0.0")
    assert code == 2
    assert "token" in error
    (tmp_path / "spaces.json").write_text('{"observation_space": {"type": "Sphere"}}')
    code, error = outcome("tabular", "--spaces", "spaces.json")
    assert code == 2
    assert "spaces.json: observation_space" in error


def test_what_a_power_cut_took_is_told_to_the_client(tmp_path: Path) -> None:
    with hosted(tmp_path / "live") as server, Client(server.address, client="arena") as client:
        client.begin(1)
        client.step(2, 1.0)
        server.call(lambda: server.server.session and server.server.session.flush())
        copied(tmp_path / "live", tmp_path / "cut")  # what the disk had
        client.step(3, 1.0)
        client.step(4, 1.0)
        server.stop()
        after = Hosted(lambda: session_of(tmp_path / "cut"), ServerOptions(port=server.port))
        try:
            with pytest.raises(StreamsLost, match="power cut"):
                client.step(5, 1.0)
            assert client.begin(1) in range(ACTIONS)
            session = after.server.session
            assert session is not None
            assert not after.call(lambda: session.run and session.run.metadata.exact)
        finally:
            after.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    more = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run([*words.split(), *more], check=True, capture_output=True)
    return cert, key


def test_clients_connect_with_tls(tmp_path: Path, certificate: tuple[str, str]) -> None:
    context = ssl.create_default_context(cafile=certificate[0])
    with hosted(tmp_path, tls_cert=certificate[0], tls_key=certificate[1]) as server:
        assert server.address.startswith("wss://")
        with Client(server.address, tls=context) as client:
            assert client.begin(1) in range(ACTIONS)


def test_a_certificate_that_is_not_trusted_is_an_error_at_once(tmp_path: Path, certificate: tuple[str, str]) -> None:
    async def connect(address: str) -> None:
        await AsyncClient(address).connect()

    with hosted(tmp_path, tls_cert=certificate[0], tls_key=certificate[1]) as server:
        for attempt in (Client, lambda address: asyncio.run(connect(address))):
            with pytest.raises(ServerError, match="is not trusted: self-signed certificate"):
                attempt(server.address)


def test_a_tls_handshake_has_a_deadline(tmp_path: Path, certificate: tuple[str, str]) -> None:
    with (
        hosted(tmp_path, tls_cert=certificate[0], tls_key=certificate[1], hello_seconds=0.1) as server,
        opened(server.port, seconds=20.0) as silent,
    ):
        assert silent.recv(1) == b""  # before that, the socket would time out


def test_the_first_client_says_what_the_spaces_are(tmp_path: Path) -> None:
    def made(observation_space: Any, action_space: Any) -> TrainingSession:
        agent = RandomAgent(observation_space, action_space)
        return TrainingSession.open("first", agent, root=tmp_path, journal=True, signals=False)

    server = Hosted(lambda: made, ServerOptions(port=0))
    try:
        with Raw(server.port) as raw:
            raw.say({"type": "hello", "versions": [1, 1]})
            assert raw.ended() == ("spaces", 4406)
        box = gym.spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, np.inf]), dtype=np.float64)
        with Client(server.address, observation_space=box, action_space=box) as client:
            assert client.begin(np.zeros(2)).shape == (2,)
        with Client(server.address) as client:
            assert client.welcome.observation_space["low"] == [-1.0, None]
    finally:
        server.stop()


def test_the_server_says_why_it_has_no_session_for_a_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def made(observation_space: Any, action_space: Any) -> TrainingSession:
        raise ConfigError("dqn takes Discrete actions")

    server = Hosted(lambda: made, ServerOptions(port=0))
    try:
        for _ in range(3):
            with pytest.raises(ServerError, match="dqn takes Discrete actions"):
                Client(server.address, **SPACES)
    finally:
        server.stop()
    assert caplog.messages == ["no session for the spaces of a client: dqn takes Discrete actions"]


def test_a_session_that_cannot_be_opened_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    def made(observation_space: Any, action_space: Any) -> TrainingSession:
        raise RunLocked("the run is in use")

    server = Hosted(lambda: made, ServerOptions(port=0))
    with Raw(server.port) as raw:
        raw.say({"type": "hello", "versions": [1, 1], **{name: space_as_tree(space) for name, space in SPACES.items()}})
        assert raw.ended() == ("internal", 1011)
    wait_for(lambda: server.error is not None)
    assert isinstance(server.error, RunLocked)


def test_an_agent_without_spaces_is_refused(tmp_path: Path) -> None:
    session = TrainingSession.open("toy", ToyAgent(), root=tmp_path, journal=True, signals=False)
    with session, pytest.raises(ConfigError, match="observation_space"):
        SessionServer(session)


def test_a_message_that_reveals_a_fault_of_ours_is_told_in_the_log_and_disturbs_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hosted(tmp_path) as server, Client(server.address) as bystander, Raw(server.port) as raw:
        bystander.begin(1)
        raw.hello()
        server.call(lambda: setattr(server.server, "stats", lambda _ref: 1 / 0))
        raw.say({"type": "stats", "ref": 1})
        assert raw.ended() == ("internal", 1011)
        assert bystander.step(2, 1.0) in range(ACTIONS)
    assert "could not be processed" in caplog.text


def churn(server: Hosted, streams: int, group: int) -> None:
    """Begin and close many streams, a group at a time; some clients vanish without a word."""
    left, clients = streams, 0
    while left > 0:
        client = Client(server.address)
        clients += 1
        for _ in range(8):
            names = list(range(left + 8 * group, left + 9 * group))
            client.begin_many(np.arange(group) % STATES, names)
            client.step_many(np.arange(group) % STATES, [1.0] * group, [0] * group, names)
            client.close_streams(*names)
            left -= group
        if clients % 2:
            client.leave()
        else:
            client.close()


def newest_checkpoint(root: Path) -> int:
    return max(file.stat().st_size for file in (find_run(root / "served") / "checkpoints").glob("step_*.mpk"))


def bounded(root: Path, streams: int, *, group: int = 64) -> None:
    with hosted(root, idle=1.0, max_clients=64, session={"journal_limit": 1 << 22, "checkpoint_every": 2000}) as server:
        churn(server, streams // 10, group)
        table = server.call(lambda: len(server.desk._ticks._table.ids))
        server.call(lambda: server.server.session and server.server.session.checkpoint(wait=True))
        size = newest_checkpoint(root)
        churn(server, streams, group)
        wait_for(lambda: server.call(lambda: len(server.desk.clients.by_number) <= 1))
        assert server.call(lambda: server.desk.streams) == 0
        assert server.call(lambda: len(server.desk._ticks._table.ids)) == table
        server.call(lambda: server.server.session and server.server.session.checkpoint(wait=True))
        assert newest_checkpoint(root) < size + 65_536


def test_many_short_streams_leave_nothing_behind(tmp_path: Path) -> None:
    bounded(tmp_path, 4_000)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_a_million_short_streams_leave_nothing_behind(tmp_path: Path) -> None:
    bounded(tmp_path, 1_000_000, group=1000)


def test_without_descriptors_new_clients_wait_and_the_training_lives(tmp_path: Path) -> None:
    program = """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
        from rekindle.cli import main
        sys.exit(main(sys.argv[1:]))
    """
    script = tmp_path / "limited.py"
    script.write_text(textwrap.dedent(program), encoding="utf-8")
    spaces = tmp_path / "spaces.json"
    spaces.write_text(
        json.dumps(
            {"observation_space": {"type": "Discrete", "n": STATES}, "action_space": {"type": "Discrete", "n": 3}}
        )
    )
    server = ServerProcess(
        "serve", "tabular", "--learner", "inline", "--runs", tmp_path, "--port", "0", "--spaces", spaces, script=script
    )
    server.start()
    port = int(server.address.rpartition(":")[2].partition("/")[0])
    with Client(server.address) as client:
        client.begin(1)
        many = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        time.sleep(0.3)
        assert client.step(2, 1.0) in range(ACTIONS)
        for one in many:
            one.close()
        with Client(server.address, patience=20.0) as later:
            assert later.begin(1) in range(ACTIONS)
        assert client.step(3, 1.0) in range(ACTIONS)
    assert server.terminate() == 0


@pytest.mark.parametrize(
    "asked",
    [frame(msgspec.msgpack.encode({"type": "stats", "ref": 1})), frame(b"x" * 125, PING)],
    ids=["stats", "ping"],
)
def test_a_client_that_never_reads_is_cut_off(tmp_path: Path, asked: bytes) -> None:
    with hosted(tmp_path, rate=1e6) as server, Client(server.address) as bystander:
        bystander.begin(1)
        with Raw(server.port) as raw:
            raw.hello()
            wish = asked * 200
            raw.socket.settimeout(0.5)
            sent = 0
            try:
                while sent < 2_000:
                    raw.send(wish)
                    sent += 1
            except (TimeoutError, OSError):
                pass
            assert bystander.step(2, 1.0) in range(ACTIONS)
            wait_for(lambda: server.call(lambda: server.server.counters.connections) == 1)


def test_numbers_for_the_dashboard_are_in_the_metrics_of_the_run(tmp_path: Path) -> None:
    with hosted(tmp_path, session={"metrics_every": 50}) as server, Client(server.address) as client:
        client.begin(1)
        until = time.monotonic() + 20
        names: set[str] = set()
        while "time/server_latency_p99_ms" not in names and time.monotonic() < until:
            for _ in range(50):
                client.step(2, 1.0)
            text = (find_run(tmp_path / "served") / "metrics.jsonl").read_text(encoding="utf-8")
            names = set(re.findall(r"time/server_\w+", text))
        assert {"time/server_clients", "time/server_streams", "time/server_requests_per_second"} <= names


def test_requests_without_steps_do_not_let_the_journal_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_run, "_JOURNAL_LIMIT", 5_000)
    run = served_run.ServedRun(
        algorithm="tabular",
        name="served",
        version="v1",
        root=tmp_path,
        seed=0,
        steps=None,
        play=None,
        session={"checkpoint_every": 1_000, "keep_checkpoints": 3, "metrics_every": 1_000},
        agent=None,
    )
    server = Hosted(lambda: run.open(*SPACES.values()), ServerOptions(port=0))
    with Client(server.address) as client:
        for _ in range(200):
            client.begin(1)
            client.abandon()
    session = server.server.session
    assert session is not None
    server.call(session.flush)
    firsts = [segment.first for segment in segments(next(tmp_path.rglob("inputs")))]
    server.stop()
    assert session.total_steps == 0
    assert min(firsts) > 200


def test_a_client_is_not_cut_off_because_the_server_was_busy(tmp_path: Path) -> None:
    import uvloop

    class OnUvloop(Hosted):  # it runs timers before it reads, and asyncio the other way round
        def _work(self) -> None:
            uvloop.run(self._main())

    server = OnUvloop(lambda: session_of(tmp_path), ServerOptions(port=0, hello_seconds=1))
    connected, busy, said = threading.Event(), threading.Event(), threading.Event()

    async def be_busy() -> None:
        while not connected.is_set():
            await asyncio.sleep(0)
        busy.set()
        said.wait(60)
        time.sleep(1.5)

    try:
        asyncio.run_coroutine_threadsafe(be_busy(), server._loop)
        with Raw(server.port) as client:
            connected.set()
            assert busy.wait(60)
            client.say({"type": "hello", "versions": [1, 1]})
            said.set()
            assert client.heard()["type"] == "welcome"
        with Raw(server.port) as silent:
            assert silent.ended() == ("rate", 1008)
    finally:
        server.stop()
