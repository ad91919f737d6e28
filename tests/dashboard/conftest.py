"""Dashboards and trainings that end with the test."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from processes import Client, Process, Training

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page, Request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        launched = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Generator[Callable[..., Page]]:
    """Open pages that may ask nobody but the dashboard, and must not complain."""
    pages: list[tuple[Page, list[str]]] = []

    def start(client: Client, place: str = "", *, tolerant: bool = False, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        page = context.new_page()
        page.set_default_timeout(30_000)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))

        def on_dialog(dialog: Dialog) -> None:
            wrong.append(dialog.message)
            dialog.dismiss()

        def on_request(request: Request) -> None:
            if urlsplit(request.url).netloc != f"127.0.0.1:{client.port}":
                wrong.append(request.url)

        page.on("dialog", on_dialog)
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("request", on_request)
        page.goto(client.address + place)
        pages.append((page, [] if tolerant else wrong))
        return page

    yield start
    for page, wrong in pages:
        page.context.close()
        assert wrong == []
