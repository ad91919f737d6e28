"""Every request is processed exactly once, under `kill -9` of the server and faults of the network."""

import socket
from pathlib import Path

import pytest
from exactly_once import check, kill_now_and_then, serving, started_clients


def campaign(root: Path, *, clients: int, requests: int, kills: int, seed: int) -> None:
    server = serving(root, free_port())
    server.start()
    processes = started_clients(server.address, root, clients, requests)
    try:
        done = kill_now_and_then(server, processes, kills, seed)
        outcomes = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        code = server.terminate()
    assert [process.returncode for process in processes] == [0] * clients, [errors for _, errors in outcomes]
    assert code == 0
    assert done == kills, "the clients were done before the last kill"
    check(root, clients, requests)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_clients_go_on_through_kills_of_the_server_and_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    campaign(tmp_path, clients=3, requests=1500, kills=2, seed=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2))
def test_many_clients_go_on_through_many_kills(tmp_path: Path, seed: int) -> None:
    campaign(tmp_path, clients=32, requests=1500, kills=20, seed=seed)
