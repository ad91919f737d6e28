"""While the session is opened, which may compile an agent for many seconds, the server answers everyone else."""

import contextlib
import sys
import textwrap
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from hosting import ACTIONS, STATES, Hosted, ServerProcess, session_of, wait_for
from raw_socket import BINARY, CONTINUATION, Raw, frame

from rekindle import TrainingSession
from rekindle.client import Client
from rekindle.errors import ConfigError, RunLocked
from rekindle.run.finding import find_run
from rekindle.run.reader import RunReader
from rekindle.server import ServerOptions
from rekindle.wire.space_trees import space_as_tree

PLACES, MOVES = gym.spaces.Discrete(STATES), gym.spaces.Discrete(ACTIONS)
SPACES = {"observation_space": space_as_tree(PLACES), "action_space": space_as_tree(MOVES)}
HELLO: dict[str, Any] = {"type": "hello", "versions": [1, 1]}
BEGIN = {"type": "begin", "seq": 1, "observations": np.array([3], np.int32).tobytes()}


class Opener:
    """Opens a session, like one whose agent compiles until the test lets it end."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.calls = 0
        self.fault: Exception | None = None
        """Raised once."""

    def __call__(self, observation_space: Any, action_space: Any) -> TrainingSession:
        self.calls += 1
        self.has_begun.set()
        assert self.may_end.wait(60)
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        if action_space != MOVES:
            raise ConfigError("the agent takes other actions")
        return session_of(self._root)


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


@pytest.fixture
def server(opener: Opener) -> Generator[Hosted]:
    running = Hosted(lambda: opener, ServerOptions(port=0, hello_seconds=1.0, max_message=4096))
    yield running
    opener.may_end.set()
    running.stop()


def status_of(server: Hosted, path: str) -> int:
    with Raw(server.port, path=path) as page:
        return page.status


def greeted(server: Hosted) -> int:
    """The number of clients that wait for the session."""
    return server.call(lambda: sum(one._waiting_hello is not None for one in server.server.connections))


def names(server: Hosted) -> list[str]:
    return server.call(lambda: [client.name for client in server.desk.clients.by_number.values()])


def test_pages_and_handshakes_are_answered_and_clients_wait_for_their_welcome(server: Hosted, opener: Opener) -> None:
    with Raw(server.port) as first, Raw(server.port) as second:
        first.say({**HELLO, **SPACES, "client": "first"})
        assert opener.has_begun.wait(20)
        assert status_of(server, "/healthz") == 200
        assert status_of(server, "/metrics") == 200
        second.say({**HELLO, "client": "second"}, is_json=True)
        wait_for(lambda: greeted(server) == 2)
        with Raw(server.port) as silent:  # its deadline is later than those of the two that wait
            assert silent.ended() == ("rate", 1008)
        assert server.server.session is None
        opener.may_end.set()
        assert first.heard()["client"] == "first"
        assert second.heard()["client"] == "second"
        first.say(BEGIN)
        assert first.heard()["type"] == "actions"
        assert names(server) == ["first", "second"]
        assert opener.calls == 1


def test_a_client_need_not_wait_before_it_sends_its_first_request(server: Hosted, opener: Opener) -> None:
    with Raw(server.port) as raw:
        begin = msgspec.msgpack.encode(BEGIN)
        raw.say({**HELLO, **SPACES})
        raw.send(frame(begin[:9], BINARY, fin=False) + frame(begin[9:], CONTINUATION))
        raw.say({"type": "stats", "ref": 7})
        assert opener.has_begun.wait(20)
        wait_for(lambda: server.call(lambda: all(len(one._early) == 2 for one in server.server.connections)))
        assert server.call(lambda: all(one._deadline is None for one in server.server.connections))
        opener.may_end.set()
        assert raw.heard()["type"] == "welcome"
        answers = {message["type"]: message for message in (raw.heard(), raw.heard())}
        assert answers["actions"]["seq"] == 1
        assert answers["stats"]["ref"] == 7


def test_messages_before_the_welcome_are_limited_and_checked(server: Hosted, opener: Opener) -> None:
    with Raw(server.port) as flood, Raw(server.port) as wrong:
        flood.say({**HELLO, **SPACES})
        assert opener.has_begun.wait(20)
        wrong.say(HELLO)
        wrong.say({"type": "sing"})
        assert wrong.ended() == ("bad_message", 1007)
        flood.send(frame(msgspec.msgpack.encode(BEGIN)) * 200)
        assert flood.ended() == ("rate", 1008)


def test_a_client_that_leaves_before_its_welcome_is_not_admitted(server: Hosted, opener: Opener) -> None:
    with Raw(server.port) as second:
        with Raw(server.port) as first:
            first.say({**HELLO, **SPACES, "client": "first"})
            assert opener.has_begun.wait(20)
            second.say({**HELLO, "client": "second"})
            wait_for(lambda: greeted(server) == 2)
        wait_for(lambda: greeted(server) == 1)
        opener.may_end.set()
        assert second.heard()["client"] == "second"
    assert names(server) == ["second"]


def test_if_the_spaces_of_a_client_are_refused_those_of_the_next_count(server: Hosted, opener: Opener) -> None:
    with Raw(server.port) as wrong, Raw(server.port) as silent, Raw(server.port) as right, Raw(server.port) as last:
        wrong.say({**HELLO, **SPACES, "action_space": space_as_tree(gym.spaces.Discrete(ACTIONS + 1))})
        assert opener.has_begun.wait(20)
        for count, (raw, spaces) in enumerate(((silent, {}), (right, SPACES), (last, {})), start=2):
            raw.say({**HELLO, **spaces})
            wait_for(lambda count=count: greeted(server) == count)
        opener.may_end.set()
        assert wrong.ended() == ("spaces", 4406)
        assert silent.ended() == ("spaces", 4406)
        assert right.heard()["type"] == "welcome"
        assert last.heard()["type"] == "welcome"
    assert opener.calls == 2


@pytest.mark.parametrize("error", [RunLocked("the run is in use"), OSError("the disk is gone")])
def test_a_session_that_cannot_be_opened_ends_the_server_for_everyone(error: Exception) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def refuse(observation_space: Any, action_space: Any) -> TrainingSession:
        has_begun.set()
        assert may_end.wait(60)
        raise error

    server = Hosted(lambda: refuse, ServerOptions(port=0))
    with Raw(server.port) as first, Raw(server.port) as second:
        first.say({**HELLO, **SPACES})
        assert has_begun.wait(20)
        second.say(HELLO)
        wait_for(lambda: greeted(server) == 2)
        may_end.set()
        assert first.ended() == ("internal", 1011)
        assert second.ended() == ("internal", 1011)
    wait_for(lambda: not server._thread.is_alive())
    assert server.error is error


def test_an_error_of_the_agent_is_logged_and_the_next_client_tries_again(
    server: Hosted, opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    opener.fault = ZeroDivisionError("a fault of the agent")
    with Raw(server.port) as first, Raw(server.port) as second:
        first.say({**HELLO, **SPACES})
        assert opener.has_begun.wait(20)
        second.say({**HELLO, **SPACES})
        wait_for(lambda: greeted(server) == 2)
        opener.may_end.set()
        assert first.ended() == ("internal", 1011)
        assert second.heard()["type"] == "welcome"
    assert "a fault of the agent" in caplog.text


def test_a_stop_tells_clients_at_once_and_closes_the_session_when_it_is_open(server: Hosted, opener: Opener) -> None:
    with Raw(server.port) as raw:
        raw.say({**HELLO, **SPACES})
        assert opener.has_begun.wait(20)
        server.call(lambda: server.server.stop("SIGTERM"))
        assert raw.ended() == ("leaving", 1001)
    assert server._thread.is_alive()
    opener.may_end.set()
    wait_for(lambda: not server._thread.is_alive())
    session = server.server.session
    assert session is not None
    assert session.run is not None
    assert session.stop_reason == "SIGTERM"
    assert session.run.metadata.status == "stopped"
    assert server.error is None


# As processes, with an agent whose warm-up waits for a file

AGENT = """
    import time
    from pathlib import Path

    from rekindle.agents import Tabular
    from rekindle.signal_stack import has_signal_stack


    class Compiled(Tabular):
        def warm_up(self):
            Path("compiling").touch()
            while not Path("compiled").exists():
                time.sleep(0.01)

        def act(self, *arguments):
            Path("signal-stack").write_text(str(has_signal_stack()))
            return super().act(*arguments)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow_agent.py").write_text(textwrap.dedent(AGENT), encoding="utf-8")
    return tmp_path


def serving(port: int) -> ServerProcess:
    return ServerProcess("serve", "slow_agent:Compiled", "--name", "served", "--learner", "inline", "--port", str(port))


@contextlib.contextmanager
def compiling(here: Path) -> Generator[tuple[ServerProcess, Raw]]:
    """A server that compiles for its first client, and this client."""
    server = serving(0)
    server.start()
    try:
        with Raw(port_of(server)) as raw:
            raw.say({**HELLO, **SPACES})
            wait_for((here / "compiling").exists)
            with Raw(port_of(server), path="/healthz") as page:
                assert page.status == 200
            yield server, raw
    finally:
        server.kill()


def port_of(server: ServerProcess) -> int:
    return int(server.address.rpartition(":")[2].partition("/")[0])


def check_continued(here: Path, port: int) -> None:
    """The same run is served again."""
    run = find_run(here / "runs" / "served")
    again = serving(port)
    again.start()
    with Client(again.address, observation_space=PLACES, action_space=MOVES) as client:
        client.begin(1)
        assert client.step(2, 1.0) in range(ACTIONS)
    assert again.terminate() == 0
    assert find_run(here / "runs" / "served") == run
    metadata = RunReader(run).metadata
    assert (metadata.status, metadata.total_steps, metadata.exact) == ("stopped", 1, True)


@pytest.mark.slow
def test_sigterm_while_an_agent_compiles_ends_the_server_with_a_run_that_is_continued(here: Path) -> None:
    with compiling(here) as (server, raw):
        assert server.process is not None
        server.process.terminate()
        assert raw.ended() == ("leaving", 1001)
        (here / "compiled").touch()
        assert server.process.wait(60) == 0
    assert RunReader(find_run(here / "runs" / "served")).metadata.status == "stopped"
    check_continued(here, port_of(server))


@pytest.mark.slow
def test_kill_9_while_an_agent_compiles_leaves_a_run_that_is_continued(here: Path) -> None:
    with compiling(here) as (server, _):
        server.kill()
    (here / "compiled").touch()
    check_continued(here, port_of(server))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a stack for signals is used on Linux only")
def test_signals_have_a_stack_of_their_own_although_the_session_was_opened_elsewhere(here: Path) -> None:
    with compiling(here) as (server, raw):
        (here / "compiled").touch()
        assert raw.heard()["type"] == "welcome"
        raw.say(BEGIN)
        assert raw.heard()["type"] == "actions"
        assert server.terminate() == 0
    assert (here / "signal-stack").read_text() == "True"
