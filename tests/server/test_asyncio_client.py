"""The asyncio client goes on through faults and restarts, as the blocking one does."""

import asyncio
from pathlib import Path

from fault_proxy import FaultProxy
from hosting import ACTIONS, STATES, Hosted, hosted, session_of

from rekindle.client import AsyncClient, Client
from rekindle.server import ServerOptions


def test_every_step_counts_once_through_a_faulty_network(tmp_path: Path) -> None:
    async def play(address: str) -> int:
        async with AsyncClient(address, client="async") as client:
            await client.begin(1)
            for number in range(150):
                assert await client.step(number % STATES, 1.0) in range(ACTIONS)
            return client.reconnects

    with hosted(tmp_path) as server:
        proxy = FaultProxy(server.port, seed=3, cut=0.05, delay=0.02, double=0.1)
        reconnects = asyncio.run(play(proxy.address))
        proxy.stop()
        assert reconnects > 0
        assert server.call(lambda: server.server.stats(0).steps) == 150


def test_both_clients_go_on_with_a_server_that_was_started_again(tmp_path: Path) -> None:
    async def play(first: Hosted) -> Hosted:
        async with AsyncClient(first.address, client="async") as client:
            await client.begin(1)
            await client.step(2, 1.0)
            first.stop()
            again = Hosted(lambda: session_of(tmp_path, journal_sync=0.0), ServerOptions(port=first.port))
            assert await client.step(3, 1.0) in range(ACTIONS)
            assert client.reconnects == 1
            return again

    with hosted(tmp_path, session={"journal_sync": 0.0}) as first, Client(first.address, client="blocking") as client:
        client.begin(1)
        again = asyncio.run(play(first))
        try:
            assert client.step(2, 1.0) in range(ACTIONS)
            assert client.stats()["steps"] == 3
            assert client.reconnects == 1
        finally:
            again.stop()
