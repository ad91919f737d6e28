"""A dashboard as users start it, for benchmarks: a process of its own, with the CPU time that it uses."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(process: int) -> float:
    """What the operating system has counted, user and system."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Server:
    def __init__(self, process: int, port: int, token: str) -> None:
        self.process = process
        self.port = port
        self.headers = {"X-Rekindle-Token": token}

    @contextmanager
    def events(self, path: str, **query: str) -> Generator[Iterator[Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", f"{path}?{urlencode(query)}", headers=self.headers)
        response = connection.getresponse()
        yield (json.loads(line[6:]) for line in response if line.startswith(b"data: "))
        connection.close()

    def cost(self, work: Callable[[], object]) -> float:
        """CPU seconds of the server while something is asked of it."""
        before = cpu_seconds(self.process)
        work()
        return cpu_seconds(self.process) - before


@contextmanager
def serving(root: Path) -> Generator[Server]:
    command = [sys.executable, "-m", "rekindle", "dashboard", str(root), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    address: str = process.stdout.readline().strip()
    link = urlsplit(address)
    assert link.port is not None
    try:
        yield Server(process.pid, link.port, parse_qs(link.query)["token"][0])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        process.stdout.close()
