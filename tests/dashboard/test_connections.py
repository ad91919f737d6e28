"""Clients that send nothing, or half, or read nothing, or are too many: the dashboard still answers the others."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from logged_runs import write_run
from processes import Client, Process, wait_until

pytest.importorskip("starlette", reason="needs rekindle[dashboard]")

import uvicorn
from uvicorn.server import ServerState

from rekindle.ui.dashboard import connections

Serve = Callable[[Path], Client]
ServeProcess = Callable[..., Process]

needs_prlimit = pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")


def connect(client: Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.port), timeout=60)


@needs_prlimit
@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "], ids=["nothing", "half"])
def test_more_connections_than_descriptors_leave_room_for_requests(
    tmp_path: Path, serve_process: ServeProcess, sent: bytes
) -> None:
    write_run(tmp_path, "lake")
    server = serve_process(tmp_path, descriptors=128)
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(server)).sendall(sent)
        assert server.json("/api/about")["root"] == str(tmp_path)
        with server.events("/api/list") as events:
            assert next(events)["count"] == 1
        assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < 128
        code, err = server.end()
    assert code == 0
    assert err.count("\n") == 2, err


@needs_prlimit
def test_event_streams_are_limited_and_their_places_are_given_back(tmp_path: Path, serve_process: ServeProcess) -> None:
    server = serve_process(tmp_path, descriptors=128)
    with ExitStack() as stack:
        streams = [stack.enter_context(server.events("/api/list")) for _ in range(8)]
        for events in streams:
            next(events)
        status, headers, body = server.request("GET", "/api/list")
        assert (status, headers["retry-after"]) == (503, "5")
        assert b"The dashboard is open 8 times" in body
        assert server.request("GET", "/api/about")[0] == 200
    path = write_run(tmp_path)  # what the server has to tell lets it notice that they are gone

    def is_there_room() -> bool:
        (path / "metadata.json").touch()
        connection = connect(server)
        with connection:
            connection.sendall(f"GET /api/list HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n".encode())
            connection.sendall(f"Cookie: {server.cookie}\r\n\r\n".encode())
            return connection.recv(12) == b"HTTP/1.1 200"

    wait_until(is_there_room)


HALVES = {
    "nothing": b"",
    "half a line": b"GET / HT",
    "half the headers": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "a request and half the next": b"GET /static/icon.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP/1.1\r\nHo",
    "half a body": b"POST /api/stop HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nhalf",
}


@pytest.mark.parametrize("sent", HALVES.values(), ids=HALVES)
def test_a_request_that_does_not_arrive_whole_is_hung_up_on(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    with connect(serve(tmp_path)) as connection:
        connection.sendall(sent)
        try:
            while connection.recv(2**16):
                pass
        except ConnectionResetError:
            return


def test_a_request_that_drips_is_hung_up_on(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    with connect(serve(tmp_path)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")

        def drip() -> None:
            for _ in range(1000):
                connection.sendall(b"a")
                time.sleep(0.03)

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            drip()


def test_a_stream_is_not_hung_up_on_while_there_is_nothing_to_tell(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.0)
    server = serve(tmp_path)
    with server.events("/api/list") as events:
        assert next(events)["count"] == 0
        server.request("GET", "/static/main.js")
        time.sleep(1.5)  # longer than a request may take to arrive
        write_run(tmp_path)
        assert len(next(events)["runs"]) == 1


class Transport(asyncio.Transport):
    """Knows whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = asyncio.Event()

    def abort(self) -> None:
        self.aborted.set()

    def is_closing(self) -> bool:
        return self.aborted.is_set()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def application(scope: object, receive: object, send: object) -> None:
    pass


def test_a_client_that_reads_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 0.05)

    async def stall(*, reads_again: bool) -> bool:
        transport = Transport()
        protocol = connections.BoundedProtocol(uvicorn.Config(application, log_config=None), ServerState(), {})
        protocol.connection_made(transport)
        protocol.pause_writing()
        if reads_again:
            protocol.resume_writing()
        try:
            await asyncio.wait_for(transport.aborted.wait(), 0.5 if reads_again else 30)
        except TimeoutError:
            return False
        finally:
            protocol.connection_lost(ConnectionResetError())
        return True

    assert asyncio.run(stall(reads_again=False))
    assert not asyncio.run(stall(reads_again=True))
