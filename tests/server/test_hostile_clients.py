"""Clients that are malformed, slow, greedy or dishonest: each gets an error, and touches nobody else."""

import random
import struct
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hosting import ACTIONS, Hosted, hosted, wait_for
from raw_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Raw, frame, opened, seconds_until_closed, upgrade

from rekindle.client import Client
from rekindle.errors import InputError, ServerError, StreamsLost

OBSERVATION = np.array([3], np.int32).tobytes()
SHORT: dict[str, Any] = {"hello_seconds": 1.0, "message_seconds": 0.7, "ping_seconds": 0.5}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Hosted]:
    with hosted(tmp_path_factory.mktemp("hostile"), max_message=4096, rate=50.0) as running:
        yield running


@pytest.fixture
def bystander(server: Hosted) -> Generator[Client]:
    """A client that must not notice anything."""
    with Client(server.address) as client:
        client.begin(1)
        yield client
        assert client.step(2, 1.0) in range(ACTIONS)
        assert client.reconnects == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"{}",
        b"\x80",
        b"\x93\x01\x02",
        msgspec.msgpack.encode({"type": "sing", "seq": 1}),
        msgspec.msgpack.encode({"seq": 1}),
        msgspec.msgpack.encode({"type": "step", "seq": 1}),
        msgspec.msgpack.encode({"type": "step", "seq": -1, "observations": b"", "rewards": b"", "statuses": b""}),
        msgspec.msgpack.encode({"type": "step", "seq": 2**53, "observations": b"", "rewards": b"", "statuses": b""}),
        msgspec.msgpack.encode({"type": "begin", "seq": 1, "observations": [[1]]}),
        msgspec.msgpack.encode({"type": "begin", "seq": 1, "observations": OBSERVATION, "streams": [2**31]}),
        msgspec.msgpack.encode({"type": "begin", "seq": 1, "observations": OBSERVATION, "streams": ["x" * 65]}),
        b"\x91" * 3000,
        b"\x81\xa1a" * 1000,
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
    ],
    ids=range(18),
)
def test_a_message_that_is_none_ends_the_connection_with_an_error(
    server: Hosted, bystander: Client, data: bytes
) -> None:
    for is_admitted in (False, True):
        with Raw(server.port) as raw:
            if is_admitted:
                assert raw.hello()["type"] == "welcome"
            raw.send(frame(data))
            assert raw.ended() == ("bad_message", 1007)


@pytest.mark.parametrize("text", ["[" * 4000, '{"a":' * 600, "\xff", "nul", '{"type": "hello"', '{"type": NaN}', "7"])
def test_a_text_that_is_no_message_ends_the_connection_with_an_error(server: Hosted, text: str) -> None:
    with Raw(server.port) as raw:
        raw.send(frame(text.encode("latin-1"), TEXT))
        assert raw.ended() == ("bad_message", 1007)


def test_the_first_message_is_hello_and_comes_once(server: Hosted) -> None:
    with Raw(server.port) as raw:
        raw.say({"type": "begin", "seq": 1, "observations": OBSERVATION})
        assert raw.ended() == ("bad_message", 1007)
    with Raw(server.port) as raw:
        raw.hello()
        raw.say({"type": "hello", "versions": [1, 1]})
        assert raw.ended() == ("bad_message", 1007)
    with Raw(server.port) as raw:
        raw.say({"type": "hello", "versions": [2, 9]})
        assert raw.ended() == ("version", 1002)


def test_encodings_are_not_mixed(server: Hosted) -> None:
    with Raw(server.port) as raw:
        raw.hello()
        raw.say({"type": "stats", "ref": 1}, is_json=True)
        assert raw.ended() == ("bad_message", 1007)


def test_json_clients_get_json(server: Hosted) -> None:
    with Raw(server.port) as raw:
        raw.say({"type": "hello", "versions": [1, 1]}, is_json=True)
        assert raw.heard()["observation"] == {"": {"dtype": "int32", "shape": []}}
        raw.say({"type": "begin", "seq": 1, "observations": [3]}, is_json=True)
        answer = raw.heard()
        assert answer["actions"][0] in range(ACTIONS)
        for bad in ([3.5], [[3]], ["3"], 3, [True, False], [2**40]):
            raw.say({"type": "begin", "seq": 2, "observations": bad}, is_json=True)
            assert raw.heard()["code"] in ("value", "bad_message")
            if bad == 3:
                return


def test_frames_that_break_the_rules_of_websockets_end_the_connection(server: Hosted, bystander: Client) -> None:
    hello = msgspec.msgpack.encode({"type": "hello", "versions": [1, 1]})
    for data in (
        frame(hello, reserved=4),  # compressed, which was never agreed on
        frame(hello, masked=False),
        frame(b"", CONTINUATION),
        frame(hello, 5),
        frame(hello, BINARY, fin=False) + frame(hello, BINARY),
    ):
        with Raw(server.port) as raw:
            raw.send(data)
            code = raw.ended()[1]
            assert code in (1002, 1003, 1007, 1011, None), data[:4]


def test_a_message_that_is_too_large_is_not_read(server: Hosted, bystander: Client) -> None:
    with Raw(server.port) as raw:
        raw.send(b"\x82\xff" + struct.pack(">Q", 1 << 40) + b"\0\0\0\0")
        assert raw.ended()[1] in (1009, None)
    with Raw(server.port) as raw:
        raw.hello()
        raw.send(frame(b"x" * 3000, BINARY, fin=False) + frame(b"x" * 3000, CONTINUATION))
        assert raw.ended() == ("too_large", 1009)


def test_fragments_become_one_message(server: Hosted) -> None:
    data = msgspec.msgpack.encode({"type": "hello", "versions": [1, 1]})
    with Raw(server.port) as raw:
        raw.send(frame(data[:5], BINARY, fin=False))
        raw.send(frame(b"ping", 9))
        raw.send(frame(data[5:9], CONTINUATION, fin=False) + frame(data[9:], CONTINUATION))
        assert raw.heard()["type"] == "welcome"


def test_slow_clients_are_cut_off_at_the_deadline(tmp_path: Path) -> None:
    with hosted(tmp_path, **SHORT) as server:
        be_slow(server)


def be_slow(server: Hosted) -> None:
    with opened(server.port) as handshake:  # never ends its handshake
        handshake.sendall(upgrade(server.port)[:40])
        assert seconds_until_closed(handshake) < 9
    with Raw(server.port) as silent:  # never says hello
        assert silent.ended() == ("rate", 1008)
    with Raw(server.port) as dripping:  # sends fragments, and answers pings
        dripping.hello()
        dripping.send(frame(b"\x82", BINARY, fin=False))
        for _ in range(40):
            time.sleep(0.05)
            try:
                dripping.send(frame(b"\xa4", CONTINUATION, fin=False) + frame(b"", 10))
            except OSError:
                break
        assert dripping.ended()[1] in (1008, None)
    with Raw(server.port) as half:  # a frame that never ends, so that no ping can be answered
        half.hello()
        half.send(frame(b"x" * 100)[:50])
        assert seconds_until_closed(half.socket) < 9


def test_a_ping_is_answered_with_its_payload(server: Hosted) -> None:
    with Raw(server.port) as raw:
        raw.send(frame(b"here?", PING))
        assert raw.next() == (PONG, b"here?")


@pytest.mark.parametrize(("sent", "answered"), [(b"", 1000), (struct.pack(">H", 4999), 4999)])
def test_a_close_is_answered_with_a_code_that_clients_accept(server: Hosted, sent: bytes, answered: int) -> None:
    with Raw(server.port) as raw:
        raw.hello()
        raw.send(frame(sent, CLOSE))
        assert raw.ended() == (None, answered)


def test_a_flood_of_messages_ends_the_connection(server: Hosted, bystander: Client) -> None:
    with Raw(server.port) as raw:
        raw.hello()
        flood = frame(msgspec.msgpack.encode({"type": "stats", "ref": 1})) * 500
        raw.send(flood)
        assert raw.ended() == ("rate", 1008)
    with Raw(server.port) as raw:
        raw.hello()
        raw.send(frame(b"", PING) * 500)
        assert raw.ended() == ("rate", 1008)
    with Raw(server.port) as raw:
        raw.hello()
        raw.send(frame(msgspec.msgpack.encode({"type": "step", "seq": 1, "observations": OBSERVATION})) * 10)
        assert raw.ended() == ("bad_message", 1007)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 101),
        ({"Host": "localhost:1234"}, 101),
        ({"Host": "[::1]:80"}, 101),
        ({"Host": "evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
    ],
)
def test_a_foreign_host_or_origin_is_refused(server: Hosted, headers: dict[str, str], status: int) -> None:
    with Raw(server.port, **headers) as raw:
        assert raw.status == status
    with Raw(server.port, **headers, path="/metrics") as raw:
        assert raw.status == (200 if status == 101 else 403)


def test_pages_of_the_server_itself_and_named_origins_may_connect(tmp_path: Path) -> None:
    with hosted(tmp_path, origins=("https://game.example",), hosts=("proxy.example",)) as server:
        own = f"http://127.0.0.1:{server.port}"
        for headers in ({"Origin": own}, {"Origin": "https://game.example"}, {"Host": "proxy.example"}):
            with Raw(server.port, **headers) as raw:
                assert raw.status == 101, headers


def test_without_the_token_nobody_gets_in(tmp_path: Path) -> None:
    with hosted(tmp_path, token="open sesame") as server:
        for token in (None, "", "open sesam", "open sesame!", "\ud800"):
            fields = {} if token is None else {"token": token}
            with Raw(server.port) as raw:
                if token == "\ud800":
                    raw.send(frame(b'{"type": "hello", "versions": [1, 1], "token": "\\ud800"}', TEXT))
                    assert raw.ended()[1] in (1007, 4401)
                else:
                    raw.say({"type": "hello", "versions": [1, 1], **fields})
                    assert raw.ended() == ("token", 4401)
        with pytest.raises(ServerError, match="token"):
            Client(server.address, token="wrong")
        with Client(server.address, token="open sesame") as client:
            assert client.begin(1) in range(ACTIONS)
        with Raw(server.port, path="/metrics") as raw:
            assert raw.status == 401
        with Raw(server.port, path="/metrics", Authorization="Bearer open sesame") as raw:
            assert raw.status == 200


def test_a_name_without_its_secret_is_not_enough(server: Hosted) -> None:
    with Client(server.address, client="owner") as owner:
        action = owner.begin(1)
        with Raw(server.port) as thief:
            thief.say({"type": "hello", "versions": [1, 1], "client": "owner"})
            assert thief.ended() == ("taken", 4409)
        with Raw(server.port) as thief:
            thief.say({"type": "hello", "versions": [1, 1], "client": "owner", "secret": "0" * 32})
            assert thief.ended() == ("gone", 4410)
        assert owner.step(2, 1.0) in range(ACTIONS)
        assert action in range(ACTIONS)
        assert owner.reconnects == 0


def test_streams_of_other_clients_cannot_be_reached(server: Hosted) -> None:
    with Client(server.address, client="mine") as mine, Raw(server.port) as raw:
        mine.begin(1, stream="boss")
        raw.hello(client="theirs")
        step = {"observations": OBSERVATION, "rewards": struct.pack("<d", 9), "statuses": b"\1"}
        for number, stream in enumerate(("boss", "mine/boss", "../mine/boss"), start=1):
            raw.say({"type": "step", "seq": 1, "streams": [stream], **step})
            assert raw.heard()["code"] == "stream", number
            raw.say({"type": "close", "seq": 1, "streams": [stream]})
            assert raw.heard()["code"] == "stream"
        assert mine.step(2, 1.0, stream="boss") in range(ACTIONS)


def test_names_of_extras_cannot_grow_without_end(server: Hosted) -> None:
    with Client(server.address) as client:
        client.begin(1)
        for number in range(8):
            client.step(2, 1.0, extras={f"name-{number}-{place}": 1.0 for place in range(8)})
        with pytest.raises(InputError, match="64 names"):
            client.step(2, 1.0, extras={"one more": 1.0})


def test_spaces_that_take_gigabytes_are_refused_before_they_are_made(server: Hosted) -> None:
    huge = {"type": "Box", "dtype": "float64", "shape": [10_000, 10_000], "low": 0, "high": 1}
    for space in (huge, {"type": "MultiBinary", "n": 10**9}, {"type": "Dict", "subspaces": {"a": huge}}):
        with Raw(server.port) as raw:
            raw.say({"type": "hello", "versions": [1, 1], "observation_space": space})
            assert raw.ended() == ("spaces", 4406)


def test_the_newest_connection_of_a_secret_wins(server: Hosted) -> None:
    with Raw(server.port) as first, Raw(server.port) as second:
        welcome = first.hello(client="twice")
        first.say({"type": "begin", "seq": 1, "observations": OBSERVATION})
        answer = first.heard()
        again = second.hello(client="twice", secret=welcome["secret"], last=1)
        assert first.ended() == ("replaced", 4408)
        assert (again["last"], again["incarnation"]) == (1, 1)
        assert again["streams"][0]["action"] == answer["actions"]
        second.say({"type": "begin", "seq": 1, "observations": OBSERVATION})
        assert second.heard() == answer


def test_a_new_incarnation_truncates_the_streams_of_the_old_one(server: Hosted) -> None:
    with Raw(server.port) as raw:
        secret = raw.hello(client="again")["secret"]
        raw.say({"type": "begin", "seq": 1, "observations": OBSERVATION})
        raw.heard()
    wait_for(lambda: server.call(lambda: server.desk.clients.by_name["again"].connection is None))
    with Raw(server.port) as raw:
        welcome = raw.hello(client="again")
        assert (welcome["incarnation"], welcome["last"], welcome["streams"]) == (2, 0, [])
    with Raw(server.port) as raw:
        raw.say({"type": "hello", "versions": [1, 1], "client": "again", "secret": secret})
        assert raw.ended() == ("gone", 4410)


def test_numbers_that_cannot_be_right_end_the_connection(server: Hosted) -> None:
    begin = {"type": "begin", "observations": OBSERVATION}
    for number in (0, 2, 7):
        with Raw(server.port) as raw:
            raw.hello()
            raw.say({**begin, "seq": number})
            if number == 0:
                raw.say({**begin, "seq": 1})
                assert raw.heard()["seq"] in (0, 1)
            else:
                assert raw.ended() == ("sequence", 4412)


def test_old_and_doubled_requests_are_processed_once(server: Hosted) -> None:
    with Raw(server.port) as raw:
        raw.hello()
        begin = frame(msgspec.msgpack.encode({"type": "begin", "seq": 1, "observations": OBSERVATION}))
        raw.send(begin * 3)
        first = raw.heard()
        step = {
            "type": "step",
            "seq": 2,
            "observations": OBSERVATION,
            "rewards": struct.pack("<d", 1),
            "statuses": b"\0",
        }
        before = server.call(lambda: server.server.stats(0).steps)
        raw.say(step)
        raw.send(begin)
        raw.say(step)
        answers = [raw.heard() for _ in range(2)]
        while answers[0]["seq"] == 1:  # the answers to the doubled begin
            assert answers.pop(0) == first
            answers.append(raw.heard())
        assert answers[0] == answers[1]
        assert server.call(lambda: server.server.stats(0).steps) == before + 1


def test_clients_that_are_away_are_forgotten_and_get_gone(tmp_path: Path) -> None:
    with hosted(tmp_path, idle=0.5) as server, Client(server.address, client="idle") as client:
        client.begin(1)
        client.step(2, 1.0)
        client.close()
        wait_for(lambda: server.call(lambda: not server.desk.clients.by_name))
        assert server.call(lambda: (server.server.stats(0).episodes, server.desk.streams)) == (1, 0)
        with pytest.raises(StreamsLost):
            client.step(3, 1.0)
        assert client.begin(3) in range(ACTIONS)


def test_more_clients_than_allowed_are_told_to_come_back(tmp_path: Path) -> None:
    with hosted(tmp_path, max_clients=2) as server:
        with Client(server.address) as one, Client(server.address) as two:
            one.begin(1)
            two.begin(1)
            with Raw(server.port) as raw:
                raw.say({"type": "hello", "versions": [1, 1]})
                assert raw.ended() == ("full", 1013)
            two.close_streams(0)
        wait_for(lambda: server.call(lambda: server.server.counters.connections == 0))
        with Client(server.address) as three:  # in the place of the one that has no streams
            assert three.begin(1) in range(ACTIONS)


def fuzzed(rng: random.Random) -> bytes:
    """A frame that is almost right, or not at all."""
    kinds = ["hello", "begin", "step", "abandon", "close", "batch", "act", "stats", "sing", ""]
    values: list[Any] = [
        None,
        0,
        1,
        -1,
        2**63,
        1.5,
        float("nan"),
        "",
        "0",
        "x" * 100,
        b"",
        OBSERVATION,
        [],
        [0],
        [[0]],
        {},
    ]
    fields = [
        "seq",
        "ref",
        "streams",
        "observations",
        "rewards",
        "statuses",
        "actions",
        "extras",
        "step",
        "begin",
        "close",
    ]
    message = {name: rng.choice(values) for name in rng.sample(fields, rng.randrange(len(fields)))}
    data: Any = {"type": rng.choice(kinds), **message}
    is_json = rng.random() < 0.3
    try:
        raw = msgspec.json.encode(data) if is_json else msgspec.msgpack.encode(data)
    except (ValueError, OverflowError, TypeError):
        raw = b"\xc0"
    if rng.random() < 0.4:
        changed = bytearray(raw)
        for _ in range(rng.randrange(1, 4)):
            if changed:
                changed[rng.randrange(len(changed))] = rng.randrange(256)
        raw = bytes(changed[: rng.randrange(len(changed) + 1)]) if rng.random() < 0.3 else bytes(changed)
    if rng.random() < 0.1:
        raw = rng.randbytes(rng.randrange(200))
    return frame(raw, TEXT if is_json else BINARY, fin=rng.random() < 0.97, reserved=rng.choice([0] * 20 + [4, 2, 1]))


def fuzz(server: Hosted, frames: int, seed: int) -> None:
    rng = random.Random(seed)
    sent = 0
    while sent < frames:
        with Raw(server.port) as raw:
            raw.socket.settimeout(20)
            if rng.random() < 0.8:
                raw.hello()
            try:
                for _ in range(rng.randrange(1, 30)):
                    raw.send(fuzzed(rng))
                    sent += 1
            except OSError:  # it was closed
                continue


def test_malformed_frames_disturb_nobody(server: Hosted, bystander: Client) -> None:
    fuzz(server, 1500, seed=0)
    assert server.error is None


@pytest.mark.exhaustive
def test_a_hundred_thousand_malformed_frames_disturb_nobody(tmp_path: Path) -> None:
    with hosted(tmp_path, max_message=4096, rate=1e6, hello_seconds=2.0) as server, Client(server.address) as bystander:
        bystander.begin(1)
        before = memory_of_this_process()
        for seed in range(10):
            fuzz(server, 10_000, seed)
            assert bystander.step(2, 1.0) in range(ACTIONS)
        assert bystander.reconnects == 0
        assert server.error is None
        assert memory_of_this_process() - before < 100e6


def memory_of_this_process() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096.0
