"""What a client can ask of a server."""

import re
import urllib.error
import urllib.request
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hosting import ACTIONS, STATES, Hosted, RandomAgent, hosted, wait_for
from raw_socket import Raw

from rekindle import TrainingSession
from rekindle.checkpoint.input_segments import next_record, segments
from rekindle.client import Client
from rekindle.errors import ConfigError, InputError, ServerError
from rekindle.server import ServerOptions, SessionServer


@pytest.fixture
def server(tmp_path: Path) -> Generator[Hosted]:
    with hosted(tmp_path) as running:
        yield running


def page(server: Hosted, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_client_plays_episodes_in_streams_of_its_own(server: Hosted) -> None:
    with Client(server.address, client="arena") as client:
        assert client.begin(3) in range(ACTIONS)
        assert client.step(4, 1.0) in range(ACTIONS)
        assert client.step(5, 2.0, terminated=True) is None
        actions = client.begin_many(np.array([1, 2]), ["boss", 7])
        assert all(action in range(ACTIONS) for action in actions)
        client.step_many(np.array([2, 3]), [0.5, 0.5], [0, 2], ["boss", 7], extras={1: {"hits": 2.0}})
        client.abandon("boss")
        client.close_streams("boss", 7)
        stats = client.stats()
        assert (stats["steps"], stats["episodes"], stats["streams"]) == (4, 3, 1)


def test_step_and_begin_fit_into_one_request(server: Hosted) -> None:
    with Client(server.address) as client:
        client.begin_many(np.array([1, 2, 3]), [0, 1, 2])
        step = (np.array([4, 5]), [1.0, 1.0], [1, 0], [0, 1])
        actions = client.batch(close=[2], step=step, begin=(np.array([6, 7]), [0, 9]))
        assert len(actions) == 4
        assert client.stats()["streams"] == 3


def test_what_was_executed_is_what_is_learned(server: Hosted) -> None:
    with Client(server.address) as client:
        client.begin(1)
        client.step(2, 1.0, terminated=True, action=2)
        client.begin(1)
        with pytest.raises(InputError, match="outside"):
            client.step(2, 1.0, action=ACTIONS)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda client: client.step(1, 1.0, stream=5), "no open episode"),
        (lambda client: client.step(STATES, 1.0), "outside of its space"),
        (lambda client: client.step(1, float("nan")), "NaN"),
        (lambda client: client.step(1, -1e39), "too large"),
        (lambda client: client.step_many(np.arange(1), [1e16], [0], [0]), "too large"),
        (lambda client: client.abandon(77), "no stream 77"),
        (lambda client: client.begin_many(np.array([1, 1]), [3, 3]), "twice"),
        (lambda client: client.begin(1, stream="12"), "only digits"),
        (lambda client: client.step_many(np.array([1]), [1.0], [3], [0]), "0, 1 or 2"),
        (lambda client: client.step_many(np.array([1]), [1.0], [256], [0]), "cannot become uint8 without loss"),
        (lambda client: client.step(1.7, 1.0), "without loss"),
        (lambda client: client.step(2**32, 1.0), "without loss"),
        (lambda client: client.step(1, 1.0, action=1.7), "actions is float64, which cannot become int32"),
        (lambda client: client.step(1, "1"), "rewards is <U1, not numbers"),
        (lambda client: client.begin(1, stream=-1), "integers from 0"),
        (lambda client: client.begin(1, stream="x" * 65), "texts of 1 to 64 characters"),
        (lambda client: client.step(1, 1.0, extras={"hits": "many"}), "'hits' is not a number"),
        (lambda client: client.batch(close=[0], begin=(np.array([1]), [0])), "closed and used"),
        (lambda client: client.batch(step=(np.array([1]), [1.0], [0], [0]), begin=(np.array([1]), [0])), "continues"),
    ],
)
def test_a_wrong_request_is_refused_and_leaves_no_trace(server: Hosted, call: Any, match: str) -> None:
    with Client(server.address, client="wrong") as client, Client(server.address, client="right") as other:
        client.begin(1)
        other.begin(2)
        with pytest.raises(InputError, match=match):
            call(client)
        assert client.step(3, 1.0) in range(ACTIONS)
        assert other.step(4, 1.0) in range(ACTIONS)
        assert client.stats()["steps"] == 2
        assert client.reconnects == 0


def test_streams_and_extras_may_be_numbers_of_numpy(server: Hosted) -> None:
    streams: Any = np.arange(2)
    extras: Any = {np.int64(1): {"hits": np.float32(1.5), "won": np.True_}}
    with Client(server.address) as client:
        client.begin_many(streams, streams)
        client.step_many(streams, [1.0, 1.0], [1, 1], streams, extras=extras)
        client.batch(close=streams[:1], abandon=streams[1:])
        client.begin(1, stream=streams[1])
        assert client.stats()["streams"] == 1


def test_all_episodes_of_a_request_may_end_and_begin_at_once(tmp_path: Path) -> None:
    streams, rows = [0, 1, 2], np.arange(3)
    with hosted(tmp_path, tick_rows=3) as server, Client(server.address) as client:
        client.begin_many(rows, streams)
        ended = rows, [1.0] * 3, [2] * 3, streams
        assert len(client.batch(step=ended, begin=(rows, streams))) == 6
        with pytest.raises(InputError, match="4 streams in a request: use at most 3"):
            client.begin_many(np.arange(4), [0, 1, 2, 3])


def test_a_request_may_have_no_streams(server: Hosted) -> None:
    with Client(server.address) as client:
        assert client.step_many([], [], [], []) == []


def test_act_learns_nothing(server: Hosted) -> None:
    with Client(server.address, mode="play") as client:
        assert all(action in range(ACTIONS) for action in client.act_many(np.arange(5), 5))
        with pytest.raises(InputError, match="mode"):
            client.begin(1)
        assert client.stats()["steps"] == 0


def test_other_spaces_are_refused(server: Hosted) -> None:
    right = gym.spaces.Discrete(STATES)
    with Client(server.address, observation_space=right, action_space=gym.spaces.Discrete(ACTIONS)):
        pass
    with pytest.raises(ServerError, match="spaces"):
        Client(server.address, observation_space=gym.spaces.Discrete(STATES + 1))
    with pytest.raises(ServerError, match="not a space"):
        Client(server.address, observation_space={"type": "Sphere"})


def test_health_and_metrics_are_pages(server: Hosted) -> None:
    with Client(server.address) as client:
        client.begin(1)
        client.step(2, 1.0)
        assert page(server, "/healthz") == (200, "ok\n")
        status, text = page(server, "/metrics")
    assert status == 200
    assert "rekindle_requests_total 2\n" in text
    assert "rekindle_clients 1\n" in text
    assert 'rekindle_latency_seconds{quantile="0.99"}' in text
    assert page(server, "/secret")[0] == 404


def test_an_open_address_needs_a_token() -> None:
    with pytest.raises(ConfigError, match="token"):
        ServerOptions(host="0.0.0.0")
    assert ServerOptions(host="0.0.0.0", token="x").token == "x"
    with pytest.raises(ConfigError, match="at most 512"):  # no client could send it
        ServerOptions(token="x" * 513)


@pytest.mark.parametrize("origin", ["https://example.org/", "example.org", "https://Example.org", "*"])
def test_origins_that_no_page_has_are_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"origin {origin!r}")):
        ServerOptions(origins=(origin,))


@pytest.mark.parametrize("name", ["https://example.org", "example.org:8443"])
def test_host_names_have_no_scheme_and_no_port(name: str) -> None:
    with pytest.raises(ConfigError, match="not a host name"):
        ServerOptions(hosts=(name,))
    origins = ("null", "file://", "http://[::1]:8000", "chrome-extension://abc")
    assert ServerOptions(hosts=("example.org", "::1"), origins=origins).origins == origins


def test_a_session_without_a_journal_is_refused(tmp_path: Path) -> None:
    from hosting import session_of

    with session_of(tmp_path, journal=False) as session, pytest.raises(ConfigError, match="journal"):
        SessionServer(session, ServerOptions(port=0))


def test_the_last_answer_of_a_client_that_starts_anew_counts_for_nothing(server: Hosted) -> None:
    with Raw(server.port) as raw:
        welcome = raw.hello(client="arena", last=7)
        assert (welcome["last"], welcome["is_behind"]) == (0, False)


def test_an_idle_server_adds_nothing_to_its_journal(tmp_path: Path) -> None:
    def records() -> int:
        (segment,) = segments(next(tmp_path.rglob("inputs")))
        return next_record(segment)[0]

    with hosted(tmp_path) as server, Client(server.address) as client:
        client.begin(1)
        session = server.server.session
        assert session is not None
        notes = partial(server.server._log, session)  # the server does this once a second
        server.call(notes)
        before = records()
        client.stats()
        for _ in range(3):
            server.call(notes)
        assert records() == before
        client.abandon()
        server.call(notes)
        assert records() > before + 1


def test_stats_and_metrics_say_how_the_training_is_going(server: Hosted) -> None:
    with Client(server.address) as client:
        assert (client.stats()["learning"], client.stats()["return"]) == ({}, None)
        for _ in range(60):  # a metric window is 100 steps
            client.begin(1)
            client.step(2, 0.5)
            client.step(3, 1.0, terminated=True)
        wait_for(lambda: client.stats()["return"] == 1.5)
        learning = client.stats()["learning"]
        assert learning
        assert all(name.startswith("agent/") and isinstance(value, float) for name, value in learning.items())
    assert "rekindle_episode_return 1.5\n" in page(server, "/metrics")[1]


def test_a_number_that_is_infinite_for_the_agent_is_refused(tmp_path: Path) -> None:
    wide = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def made() -> TrainingSession:
        agent = RandomAgent(wide, gym.spaces.Discrete(2))
        return TrainingSession.open("wide", agent, root=tmp_path, journal=True, signals=False)

    server = Hosted(made, ServerOptions(port=0))
    try:
        with Client(server.address) as client:
            client.begin(np.array([1e30, -1e30]))
            with pytest.raises(InputError, match="too large"):
                client.step(np.array([0.0, 1e39]), 1.0)
            assert client.step(np.array([0.0, 1.0]), 1.0) in range(2)
    finally:
        server.stop()
