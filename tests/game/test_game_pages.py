from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Generator

import pytest

from rekindle.game.pages import Game, PageServer


class Calls:
    def __init__(self) -> None:
        self.kills = 0
        self.has_policy = False

    def kill(self) -> int | None:
        self.kills += 1
        return 123

    def policy(self) -> bytes:
        if not self.has_policy:
            raise LookupError("there is no policy yet")
        return b"policy"


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def pages(calls: Calls) -> Generator[PageServer]:
    server = PageServer(0)
    server.game = Game(
        session="ws://127.0.0.1:1/session",
        settings={"seed": 5},
        state=lambda: {"pid": 7},
        kill=calls.kill,
        policy=calls.policy,
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(pages: PageServer, method: str, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", pages.server_port, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, {name.lower(): value for name, value in answer.getheaders()}


def test_the_page_and_all_that_it_imports_are_served(pages: PageServer) -> None:
    for path, start in (
        ("/", b"<!doctype html>"),
        ("/main.js", b"/**"),
        ("/client.js", b"/**"),
        ("/style.css", b":root"),
    ):
        status, body, headers = ask(pages, "GET", path)
        assert status == 200
        assert body.startswith(start)
        assert "ws://127.0.0.1:1;" in headers["content-security-policy"]
    settings = json.loads(ask(pages, "GET", "/game.json")[1])
    assert settings == {"session": "ws://127.0.0.1:1/session", "key": pages.game.key, "seed": 5, "pid": 7}
    assert ask(pages, "GET", "/../pages.py")[0] == 404


def test_a_policy_is_served_when_there_is_one(pages: PageServer, calls: Calls) -> None:
    assert ask(pages, "GET", "/policy.mpk")[:2] == (404, b"there is no policy yet\n")
    calls.has_policy = True
    assert ask(pages, "GET", "/policy.mpk")[:2] == (200, b"policy")


def test_only_the_page_itself_can_kill_the_server(pages: PageServer, calls: Calls) -> None:
    key = pages.game.key
    assert ask(pages, "POST", "/kill")[0] == 403
    assert ask(pages, "POST", "/kill", x_rekindle_key="wrong")[0] == 403
    assert ask(pages, "POST", "/kill", x_rekindle_key=key, origin="http://evil.example")[0] == 403
    assert ask(pages, "POST", "/kill", x_rekindle_key=key, host="evil.example")[0] == 403
    assert ask(pages, "GET", "/game.json", host=f"evil.example:{pages.server_port}")[0] == 403
    assert ask(pages, "GET", "/kill", x_rekindle_key=key)[0] == 404
    assert calls.kills == 0
    origin = f"http://localhost:{pages.server_port}"
    assert ask(pages, "POST", "/kill", x_rekindle_key=key, origin=origin)[:2] == (200, b'{"pid": 123}')
    assert calls.kills == 1
