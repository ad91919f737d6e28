"""Clients in Node: each request of rekindle.js is processed exactly once, under `kill -9` and faults of the network."""

import subprocess
from pathlib import Path

import pytest
from exactly_once import HERE, STATES, check, kill_under_load, serving, started_clients
from fault_proxy import FaultProxy
from node import CLIENT, node
from test_exactly_once import free_port


def started_in_node(address: str, root: Path, numbers: range, requests: int) -> list[subprocess.Popen[str]]:
    script = str(HERE / "load_client.mjs")
    commands = [
        [node(), script, CLIENT, address, f"client-{number}", root / f"client-{number}.log", number, requests, STATES]
        for number in numbers
    ]
    return [
        subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]


def campaign(root: Path, *, python: int, in_node: int, requests: int, kills: int, seed: int) -> None:
    """Clients behind a network that cuts, delays, doubles and reorders, and a server that is killed."""
    port = free_port()
    server = serving(root, port)
    server.start()
    proxy = FaultProxy(port, seed=seed, cut=0.01, delay=0.01, double=0.05)
    processes = started_clients(proxy.address, root, python, requests)
    processes += started_in_node(proxy.address, root, range(python, python + in_node), requests)
    try:
        kill_under_load(server, root, requests * len(processes), kills, seed)
        outcomes = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        proxy.stop()
        code = server.terminate()
    assert [process.returncode for process in processes] == [0] * (python + in_node), [text for _, text in outcomes]
    assert code == 0
    assert min(proxy.cuts, proxy.doubles) > 0
    check(root, python + in_node, requests)


@pytest.mark.slow
def test_clients_in_node_go_on_through_a_kill_and_a_faulty_network_and_nothing_is_lost_or_done_twice(
    tmp_path: Path,
) -> None:
    campaign(tmp_path, python=0, in_node=3, requests=300, kills=1, seed=0)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_clients_in_python_and_node_go_on_through_many_kills(tmp_path: Path) -> None:
    campaign(tmp_path, python=32, in_node=32, requests=300, kills=20, seed=0)
