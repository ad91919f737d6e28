"""Dashboards that run, and trainings to look at."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import logged_runs


class Client:
    """Asks a dashboard, with its token unless told otherwise."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token
        self.address = f"http://127.0.0.1:{port}/?token={token}"
        """The link that brings the token to a browser."""

    @property
    def cookie(self) -> str:
        return f"rekindle-{self.port}={self.token}"

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, /, **query: Any
    ) -> tuple[int, dict[str, str], bytes]:
        """An answer: its status, its headers and its body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            target = f"{path}?{urlencode(query, doseq=True)}" if query else path
            connection.request(method, target, headers={"X-Rekindle-Token": self.token, **(headers or {})})
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def json(self, path: str, **query: Any) -> Any:
        status, _, body = self.request("GET", path, **query)
        assert status == 200, body
        return json.loads(body)

    @contextmanager
    def events(self, path: str, **query: Any) -> Generator[Iterator[Any]]:
        """The messages of an event stream, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", f"{path}?{urlencode(query, doseq=True)}", headers={"Cookie": self.cookie})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield (json.loads(line[6:]) for line in response if line.startswith(b"data: "))
        finally:
            connection.close()


def kill(process: subprocess.Popen[str]) -> None:
    """End a process in any case, once or again."""
    process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


class Process(Client):
    """A dashboard as a user starts it."""

    def __init__(self, root: Path, *arguments: str, descriptors: int | None = None) -> None:
        command = [sys.executable, "-m", "rekindle", "dashboard", str(root), "--port", "0", *arguments]
        if descriptors is not None:
            command = ["prlimit", f"--nofile={descriptors}", *command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        parts = urlsplit(address)
        super().__init__(parts.port or 0, parse_qs(parts.query)["token"][0])
        self.address = address

    def end(self) -> tuple[int, str]:
        """Ctrl-C; the exit code, and what was said on standard error."""
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err

    def kill(self) -> None:
        kill(self.process)


class Training:
    """A process that trains until it is stopped or killed."""

    def __init__(self, root: Path, *, pause: float, checkpoint_every: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, logged_runs.__file__, str(root), str(pause), str(checkpoint_every)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.path = Path(self.process.stdout.readline().strip())
        self.id = self.path.relative_to(root).as_posix()

    def kill(self) -> None:
        kill(self.process)


def wait_until(condition: Callable[[], Any], *, seconds: float = 100.0) -> Any:
    """What a condition gives as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return found


def file_bytes(path: Path) -> dict[str, bytes]:
    """Every file of a run, by name."""
    return {
        name: (Path(directory) / name).read_bytes() for directory, _, names in os.walk(path) for name in sorted(names)
    }
