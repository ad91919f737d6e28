from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hosting import Hosted, RandomAgent, hosted
from node import CLIENT, run_node
from scripted_server import SECRET, ScriptedServer

from rekindle import TrainingSession
from rekindle.server import ServerOptions

HERE = Path(__file__).parent
VECTORS = HERE.parents[1] / "docs/protocol-vectors.json"


def steps_of_node(server: ScriptedServer, steps: int, encoding: str = "msgpack") -> dict[str, Any]:
    return json.loads(run_node(HERE / "steps.mjs", CLIENT, f"ws://127.0.0.1:{server.port}/session", steps, encoding))


def first_numbers(server: ScriptedServer) -> list[float]:
    return [float(np.frombuffer(message["observations"], np.float32)[0]) for message in server.processed]


def test_rekindle_js_encodes_and_decodes_every_test_vector() -> None:
    assert int(run_node(HERE / "vectors.mjs", CLIENT, VECTORS)) == len(json.loads(VECTORS.read_text()))


def test_rekindle_js_resends_after_cuts_and_every_step_is_processed_once() -> None:
    faults = ["", "cut before", "", "cut after", "", "cut after", "cut before", "", "twice", "leave", "cut before", ""]
    with ScriptedServer(faults) as server:
        result = steps_of_node(server, 8)
    assert result["log"] == [[index, index + 1, (index + 1) % 3] for index in range(8)]
    assert first_numbers(server) == list(range(8))
    assert result["reconnections"] == 6
    assert [hello.get("secret") for hello in server.hellos] == [None, *[SECRET] * 6]
    assert result["state"] == result["late"] == "closed"


def test_rekindle_js_speaks_json_too() -> None:
    with ScriptedServer(["", "cut after"]) as server:
        result = steps_of_node(server, 3, "json")
    assert result["log"] == [[0, 1, 1], [1, 2, 2], [2, 3, 0]]
    assert [message["observations"] for message in server.processed] == [[[0, 0]], [[1, -1]], [[2, -2]]]
    assert [message.get("rewards") for message in server.processed] == [None, [0.5], [1]]


def test_rekindle_js_uses_the_number_of_a_refused_request_again() -> None:
    with ScriptedServer(["", "refuse", "refuse", ""]) as server:
        result = steps_of_node(server, 4)
    assert result["log"] == [[0, 1, 1], [1, "value"], [2, "value"], [3, 2, 2]]


@pytest.mark.parametrize(("fault", "code"), [("gone", "gone"), ("behind", "behind")])
def test_rekindle_js_reports_lost_episodes_and_continues(fault: str, code: str) -> None:
    with ScriptedServer(["", "", fault, ""]) as server:
        result = steps_of_node(server, 4)
    last = 1 if fault == "gone" else 2  # the number after that of the welcome
    assert result["log"] == [[0, 1, 1], [1, 2, 2], [2, code], [3, last, last % 3]]


def test_rekindle_js_connects_again_if_stats_are_not_answered(tmp_path: Path) -> None:
    script = tmp_path / "stats.mjs"
    script.write_text(
        f"""
        const {{ Client }} = await import({str(CLIENT)!r});
        const client = await Client.connect(process.argv[2], {{ timeout: 1000 }});
        const asking = setInterval(() => client.stats().catch(() => {{}}), 100);
        const {{ steps }} = await client.stats(); // later questions, and the answers to them, do not extend its time
        clearInterval(asking);
        console.log(steps, client.reconnections);
        client.close();
        """
    )
    with ScriptedServer([]) as server:
        server.unanswered_stats = 1
        assert run_node(script, f"ws://127.0.0.1:{server.port}/session") == "0 1\n"


def test_rekindle_js_connects_again_at_once_if_a_connection_fails_without_a_close_event(tmp_path: Path) -> None:
    """As in Node 22."""
    script = tmp_path / "refused.mjs"
    script.write_text(
        f"""
        const {{ Client }} = await import({str(CLIENT)!r});
        let failures = 0;
        class Refused extends EventTarget {{
          constructor() {{
            super();
            queueMicrotask(() => this.onerror?.({{ message: "refused" }}));
          }}
          close() {{}}
        }}
        function Socket(address) {{
          failures += 1;
          return failures < 4 ? new Refused() : new WebSocket(address);
        }}
        const options = {{ WebSocket: Socket, timeout: 60_000 }};
        const client = await Client.connect(process.argv[2], options);
        console.log((await client.stats()).steps, failures);
        client.close();
        failures = -1000;
        const hasty = Client.connect(process.argv[2], {{ ...options, patience: 100 }});
        await hasty.catch((error) => console.log(error.message));
        """
    )
    with ScriptedServer([]) as server:
        address = f"ws://127.0.0.1:{server.port}/session"
        told = f"there is no server at {address}: the connection failed: refused"
        assert run_node(script, address, timeout=20) == f"0 4\n{told}\n"


def test_rekindle_js_sends_a_request_that_waits_as_it_was(tmp_path: Path) -> None:
    script = tmp_path / "reuse.mjs"
    script.write_text(
        f"""
        const {{ Client }} = await import({str(CLIENT)!r});
        const client = await Client.connect(process.argv[2]);
        const observations = new Float32Array([1, 1]);
        const answers = [client.begin(observations)];
        for (const number of [2, 3]) {{
          observations.fill(number);
          answers.push(client.step({{ observations, rewards: [0], statuses: [0] }}));
        }}
        observations.fill(9);
        await Promise.all(answers);
        client.bye();
        """
    )
    with ScriptedServer([]) as server:
        run_node(script, f"ws://127.0.0.1:{server.port}/session")
        assert first_numbers(server) == [1, 2, 3]


def composite_session(root: Path) -> TrainingSession:
    sight = gym.spaces.Dict(
        {"eye": gym.spaces.Box(0, 255, (2, 2), np.uint8), "speed": gym.spaces.Box(-1, 1, (1,), np.float32)}
    )
    moves = gym.spaces.Dict({"move": gym.spaces.Discrete(2), "turn": gym.spaces.Box(-1, 1, (1,), np.float32)})
    agent = RandomAgent(sight, moves)
    return TrainingSession.open("served", agent, root=root, journal=True, signals=False)


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_rekindle_js_does_everything_of_the_protocol_with_a_real_server(tmp_path: Path, encoding: str) -> None:
    server = Hosted(lambda: composite_session(tmp_path), ServerOptions(port=0, token="open sesame"))
    try:
        assert run_node(HERE / "conversation.mjs", CLIENT, server.address, encoding) == "done\n"
    finally:
        server.stop()


def test_a_server_offers_rekindle_js_to_pages_that_may_connect(tmp_path: Path) -> None:
    with hosted(tmp_path, origins=("https://game.example",)) as server:
        for origin, status in (("https://game.example", 200), ("https://other.example", 403)):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.request("GET", "/client.js", headers={"Origin": origin})
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            assert answer.status == status
            if status == 200:
                assert body == CLIENT.read_bytes()
                assert answer.headers["Access-Control-Allow-Origin"] == origin
                assert answer.headers["Content-Type"].startswith("text/javascript")
