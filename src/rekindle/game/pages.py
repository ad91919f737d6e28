"""The web server of the page: files, the policy, and the button that kills the learning process.

It is a process of its own, so that the page and the button are still there when the learning process is not.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, cast

__all__ = ["Game", "PageServer"]

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Game:
    """What the page can ask for."""

    def __init__(
        self,
        *,
        session: str,
        settings: dict[str, Any],
        state: Callable[[], dict[str, Any]],
        kill: Callable[[], int | None],
        policy: Callable[[], bytes],
    ) -> None:
        """Describe a game.

        Args:
            session: the address of the session server.
            settings: what else the page must know, as JSON.
            state: how the learning process is, as JSON.
            kill: kill it; returns its pid, or None if it was not running.
            policy: the bytes of the newest policy; raises `LookupError` if there is none yet.
        """
        self.session, self.settings = session, settings
        self.state, self.kill, self.policy = state, kill, policy
        self.key = secrets.token_urlsafe(16)
        """What a request to kill must have: other web sites cannot know it."""


def _page_files() -> dict[str, tuple[bytes, str]]:
    """Content and type of each file by its path."""
    static = resources.files("rekindle.game") / "static"
    files = {f"/{file.name}": file for file in static.iterdir()}
    files["/client.js"] = resources.files("rekindle.client") / "rekindle.js"
    files["/"] = files["/index.html"]
    return {path: (file.read_bytes(), _TYPES[file.name.rpartition(".")[2]]) for path, file in files.items()}


class PageServer(ThreadingHTTPServer):
    """Serves the page of `game`, on this machine alone."""

    daemon_threads = True
    game: Game

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.files = _page_files()
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _pages(self) -> PageServer:
        return cast("PageServer", self.server)

    def do_GET(self) -> None:
        """Answer with a file, or with how the game is."""
        if not self._is_allowed():
            return
        path, game = self.path.partition("?")[0], self._pages.game
        if path in self._pages.files:
            self._answer(HTTPStatus.OK, *self._pages.files[path])
        elif path == "/game.json":
            self._answer_json({"session": game.session, "key": game.key, **game.settings, **game.state()})
        elif path == "/policy.mpk":
            try:
                self._answer(HTTPStatus.OK, game.policy(), "application/octet-stream")
            except LookupError as error:
                self._answer(HTTPStatus.NOT_FOUND, f"{error.args[0]}\n".encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"not found\n")

    def do_POST(self) -> None:
        """Kill the learning process."""
        if not self._is_allowed():
            return
        if self.path != "/kill":
            self._answer(HTTPStatus.NOT_FOUND, b"not found\n")
        elif not hmac.compare_digest(self.headers.get("x-rekindle-key", "").encode(), self._pages.game.key.encode()):
            self._answer(HTTPStatus.FORBIDDEN, b"only the page of the game may do this\n")
        else:
            self._answer_json({"pid": self._pages.game.kill()})

    def _is_allowed(self) -> bool:
        """Refuse requests under another name (DNS rebinding), and those of other web sites."""
        origin = self.headers.get("origin")
        own = {f"http://{host}" for host in self._pages.hosts}
        if self.headers.get("host", "").lower() in self._pages.hosts and (origin is None or origin in own):
            return True
        self._answer(HTTPStatus.FORBIDDEN, b"this is not the address of the game\n")
        return False

    def _answer_json(self, answer: dict[str, Any]) -> None:
        self._answer(HTTPStatus.OK, json.dumps(answer).encode(), "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain") -> None:
        self.send_response(status)
        text = content_type.startswith("text/")
        self.send_header("Content-Type", f"{content_type}; charset=utf-8" if text else content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", self._security_policy())
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def _security_policy(self) -> str:
        """Only our own files, and connections to the session server."""
        return (
            f"default-src 'self'; connect-src 'self' {self._pages.game.session.removesuffix('/session')}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
        )

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by http.server
        """Print nothing for each request."""
