"""Clients learn that the training is over, and do not wait for a server that will not come back."""

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hosting import ACTIONS, STATES, Hosted, hosted, session_of, wait_for
from node import CLIENT, run_node
from raw_socket import Raw

from rekindle.client import AsyncClient, Client, GymClient
from rekindle.errors import ServerError
from rekindle.events import Event, MetricsFlushed
from rekindle.server import ServerOptions, SessionServer, serve
from rekindle.wire.messages import Begin

LIMIT = {"max_steps": 2}


def reach_the_limit(server: Hosted) -> None:
    """Make the last steps as another client, and wait until the server is gone."""
    with Client(server.address) as client:
        client.begin(1)
        assert client.step(2, 1.0) in range(ACTIONS)
        assert client.step(3, 1.0) is None
        assert client.stop == "max_steps"
    wait_for(lambda: not server._thread.is_alive())


class Waiting(gym.Env[Any, Any]):
    """An environment whose first step takes as long as the training."""

    observation_space = gym.spaces.Discrete(STATES)
    action_space = gym.spaces.Discrete(ACTIONS)

    def __init__(self, server: Hosted) -> None:
        self._server = server

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reach_the_limit(self._server)
        return 1, 1.0, False, False, {}


def test_a_client_between_two_requests_is_told_that_the_training_is_over(tmp_path: Path) -> None:
    with hosted(tmp_path, session=LIMIT) as server, Client(server.address, patience=15) as slow:
        slow.begin(1)
        reach_the_limit(server)
        assert slow.step(2, 1.0) is None
        assert slow.stop == "max_steps"


def test_requests_that_are_not_single_steps_say_that_the_training_is_over(tmp_path: Path) -> None:
    with hosted(tmp_path, session=LIMIT) as server, Client(server.address, patience=15) as slow:
        reach_the_limit(server)
        with pytest.raises(ServerError, match="the training is over: max_steps"):
            slow.begin(1)


def test_an_asyncio_client_is_told_too(tmp_path: Path) -> None:
    async def play(server: Hosted) -> str | None:
        async with AsyncClient(server.address, patience=15) as slow:
            await slow.begin(1)
            await asyncio.to_thread(reach_the_limit, server)
            assert await slow.step(2, 1.0) is None
            return slow.stop

    with hosted(tmp_path, session=LIMIT) as server:
        assert asyncio.run(play(server)) == "max_steps"


def test_a_gym_client_with_slow_environments_returns(tmp_path: Path) -> None:
    with hosted(tmp_path, session=LIMIT) as server:
        assert GymClient(server.address, Waiting(server), patience=15).run().returns == []


def test_rekindle_js_is_told_too(tmp_path: Path) -> None:
    script = tmp_path / "slow.mjs"
    script.write_text(
        f"""
        const {{ Client }} = await import({str(CLIENT)!r});
        const slow = await Client.connect(process.argv[2]);
        const fast = await Client.connect(process.argv[2]);
        await slow.begin([1]);
        await fast.begin([1]);
        for (const observations of [[2], [3]]) await fast.step({{ observations, rewards: [1], statuses: [0] }});
        while (slow.state !== "closed") await new Promise((resolve) => setTimeout(resolve, 20));
        const error = await slow.step({{ observations: [2], rewards: [1], statuses: [0] }}).catch((failed) => failed);
        console.log(error.code, slow.stop);
        """
    )
    with hosted(tmp_path, session=LIMIT) as server:
        assert run_node(script, server.address) == "stopped max_steps\n"


def test_clients_wait_for_a_server_that_was_only_stopped(tmp_path: Path) -> None:
    with hosted(tmp_path) as server, Raw(server.port) as raw:
        raw.hello(client="arena")

        def ask_and_stop() -> None:
            request = Begin(seq=1, observations=np.array([1], "<i4").tobytes())
            server.desk.submit(server.desk.clients.by_name["arena"], request, is_json=False)
            server.server.stop("SIGTERM")

        server.call(ask_and_stop)
        answer, error = raw.heard(), raw.heard()
        assert (answer["seq"], "stop" in answer) == (1, False)
        assert (error["code"], "stop" in error) == ("leaving", False)


def test_a_run_whose_server_failed_is_failed_and_the_next_server_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback of the session raises after the second step."""

    def fail(event: Event) -> None:
        if isinstance(event, MetricsFlushed) and event.stamp.env_steps == 2:
            raise ValueError("no plot")

    def play() -> None:
        is_ready.wait(20)
        with Client(addresses[0], client="a", patience=20, answer_seconds=20) as client:
            client.begin(1)
            answered.extend([client.step(place, 1.0) for place in (2, 3, 4)])

    def announce(address: str) -> None:
        addresses.append(address)
        is_ready.set()

    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)  # for a process that only serves
    addresses: list[str] = []
    answered: list[int] = []
    is_ready, player = threading.Event(), threading.Thread(target=play)
    session = session_of(tmp_path, metrics_every=1, callbacks=[fail])
    player.start()
    with pytest.raises(ValueError, match="no plot"):
        serve(SessionServer(session, ServerOptions(port=0)), announce=announce)
    assert session.run is not None
    assert (session.run.metadata.status, session.run.metadata.stop_reason) == ("failed", "ValueError: no plot")
    again = session_of(tmp_path, max_steps=3)
    serve(SessionServer(again, ServerOptions(port=int(addresses[0].split(":")[2].split("/")[0]))), announce=print)
    player.join(20)
    assert (len(answered), again.total_steps) == (3, 3)
