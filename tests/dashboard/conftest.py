"""Dashboards and trainings that end with the test."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from processes import Client, Process, Training


@pytest.fixture
def serve() -> Generator[Callable[..., Client]]:
    """Start dashboards in this process; they end with the test."""
    pytest.importorskip("uvicorn", reason="needs rekindle[dashboard]")
    from rekindle.ui.dashboard import Dashboard
    from rekindle.ui.dashboard.server import Server, listen

    running: list[tuple[Server, threading.Thread]] = []

    def start(root: Path) -> Client:
        listener = listen("127.0.0.1", 0)
        dashboard = Dashboard(root)
        server = Server(dashboard)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        running.append((server, thread))
        return Client(listener.getsockname()[1], dashboard.token.text)

    yield start
    for server, thread in running:
        server.handle_exit(signal.SIGINT, None)
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def serve_process() -> Generator[Callable[..., Process]]:
    """Start dashboards in processes of their own; they end with the test."""
    pytest.importorskip("uvicorn", reason="needs rekindle[dashboard]")
    servers: list[Process] = []

    def start(root: Path, *arguments: str, **options: Any) -> Process:
        servers.append(Process(root, *arguments, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def train() -> Generator[Callable[..., Training]]:
    """Start trainings; they end with the test."""
    trainings: list[Training] = []

    def start(root: Path, *, pause: float = 0.01, checkpoint_every: int = 50) -> Training:
        trainings.append(Training(root, pause=pause, checkpoint_every=checkpoint_every))
        return trainings[-1]

    yield start
    for training in trainings:
        training.kill()
