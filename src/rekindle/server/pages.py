"""Plain HTTP on the port of the server: access checks, `/healthz`, `/metrics`, and static files."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib import resources
from typing import NamedTuple
from urllib.parse import urlsplit

from rekindle.server.counting import Counters
from rekindle.server.options import ServerOptions

__all__ = ["Answer", "Page", "Pages", "allowed", "is_token"]

_TEXT = "text/plain; charset=utf-8"
_JAVASCRIPT = "text/javascript; charset=utf-8"


class Page(NamedTuple):
    """A static file."""

    content: bytes
    content_type: str


class Answer(NamedTuple):
    """The answer to a plain HTTP request."""

    status: int
    body: bytes
    content_type: str = _TEXT


def is_token(given: str | None, expected: str) -> bool:
    """Compare a token in constant time."""
    return hmac.compare_digest((given or "").encode("utf-8", "surrogatepass"), expected.encode())


def allowed(headers: Mapping[str, str], options: ServerOptions) -> bool:
    """Whether the Host and Origin of a request are allowed.

    A web site can point its own name to this machine (DNS rebinding): its requests have that name as their Host. Pages
    of other sites have another Origin; programs other than browsers have none.
    """
    host = headers.get("host", "")
    name = _name(f"//{host}")
    if name not in ("localhost", options.host.lower(), *map(str.lower, options.hosts)) and not _is_address(name):
        return False
    origin = headers.get("origin")
    if origin is None or origin in options.origins:
        return True
    return origin in (f"http://{host}", f"https://{host}")


def _name(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Pages:
    """Answers plain HTTP requests."""

    def __init__(
        self,
        options: ServerOptions,
        metrics: Callable[[], str],
        is_healthy: Callable[[], bool],
        files: Mapping[str, Page],
    ) -> None:
        self._options, self._metrics, self._is_healthy, self._files = options, metrics, is_healthy, files

    def answer(self, path: str, headers: Mapping[str, str]) -> Answer:
        """The answer to a GET request."""
        path = path.partition("?")[0]
        if path == "/healthz":
            return Answer(200, b"ok\n") if self._is_healthy() else Answer(503, b"stopping\n")
        if path == "/metrics":
            token = self._options.token
            if token is not None and not is_token(headers.get("authorization", "").removeprefix("Bearer "), token):
                return Answer(HTTPStatus.UNAUTHORIZED, b"a token is needed: Authorization: Bearer TOKEN\n")
            return Answer(200, self._metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
        if path == "/client.js":
            return Answer(200, resources.files("rekindle.client").joinpath("rekindle.js").read_bytes(), _JAVASCRIPT)
        page = self._files.get("/index.html" if path == "/" else path)
        if page is not None:
            return Answer(200, page.content, page.content_type)
        return Answer(404, b"not found\n")


def metrics_text(counters: Counters, gauges: Mapping[str, float]) -> str:
    """The metrics in the text format of Prometheus."""
    lines: list[str] = []

    def add(name: str, kind: str, help_: str, values: Mapping[str, float]) -> None:
        lines.extend((f"# HELP rekindle_{name} {help_}", f"# TYPE rekindle_{name} {kind}"))
        lines.extend(f"rekindle_{name}{labels} {value:.10g}" for labels, value in values.items())

    add("requests_total", "counter", "Processed requests.", {"": counters.requests})
    add("steps_total", "counter", "Transitions in processed requests.", {"": counters.steps})
    add("ticks_total", "counter", "Batches of processed requests.", {"": counters.ticks})
    add("repeated_total", "counter", "Requests that were received again.", {"": counters.repeated})
    add("connections_total", "counter", "All connections so far.", {"": counters.accepted})
    add("connections", "gauge", "Open connections.", {"": counters.connections})
    add(
        "errors_total",
        "counter",
        "Errors sent, by code.",
        {f'{{code="{code}"}}': count for code, count in sorted(counters.refused.items())},
    )
    shares = {f'{{quantile="{share:g}"}}': counters.percentile(share) for share in (0.5, 0.9, 0.99)}
    add("latency_seconds", "gauge", "Seconds from the arrival of a request to its answer, for recent requests.", shares)
    for name, value in gauges.items():
        add(name, "gauge", name.replace("_", " ").capitalize() + ".", {"": value})
    return "\n".join(lines) + "\n"
