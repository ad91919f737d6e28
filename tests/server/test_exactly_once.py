"""Every request is processed exactly once, under `kill -9` of the server and faults of the network."""

import socket
from pathlib import Path

import pytest
from exactly_once import check, kill_under_load, serving, started_clients
from fault_proxy import FaultProxy


def campaign(
    root: Path, *, clients: int, requests: int, kills: int, seed: int, faults: dict[str, float] | None = None
) -> FaultProxy | None:
    port = free_port()
    server = serving(root, port)
    server.start()
    proxy = None if faults is None else FaultProxy(port, seed=seed, **faults)
    processes = started_clients(server.address if proxy is None else proxy.address, root, clients, requests)
    try:
        kill_under_load(server, root, requests * clients, kills, seed)
        outcomes = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        if proxy is not None:
            proxy.stop()
        code = server.terminate()
    assert [process.returncode for process in processes] == [0] * clients, [errors for _, errors in outcomes]
    assert code == 0
    check(root, clients, requests)
    return proxy


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_clients_go_on_through_kills_of_the_server_and_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    campaign(tmp_path, clients=3, requests=800, kills=2, seed=0)


@pytest.mark.slow
def test_clients_go_on_through_faults_of_the_network(tmp_path: Path) -> None:
    faults = {"cut": 0.02, "delay": 0.02, "double": 0.1}
    proxy = campaign(tmp_path, clients=2, requests=300, kills=0, seed=0, faults=faults)
    assert proxy is not None
    assert min(proxy.cuts, proxy.delays, proxy.doubles, proxy.stalls) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2))
def test_many_clients_go_on_through_many_kills(tmp_path: Path, seed: int) -> None:
    campaign(tmp_path, clients=32, requests=1500, kills=20, seed=seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2))
def test_many_clients_go_on_through_faults_of_the_network_and_kills(tmp_path: Path, seed: int) -> None:
    faults = {"cut": 0.01, "delay": 0.05, "double": 0.1}
    campaign(tmp_path, clients=16, requests=600, kills=6, seed=seed, faults=faults)
