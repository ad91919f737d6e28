"""Who may ask: only this machine's own pages, whatever a web site that is open in the same browser tries."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Guard", "Token", "is_loopback"]

_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def is_loopback(host: str) -> bool:
    """Whether a host can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Answers only requests that name this server by an address or by its own name.

    A web site can have its own name point here (DNS rebinding), and the browser would take it for the same origin; but
    then the request carries that name.
    """

    def __init__(self, app: ASGIApp, *, host: str) -> None:
        self._app = app
        self._host = host.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with headers that keep the pages to themselves, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not self._is_known(Headers(scope=scope).get("host", "")):
            refusal = PlainTextResponse("This is not the name of the dashboard: use its address.\n", status_code=421)
            await refusal(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _is_known(self, header: str) -> bool:
        try:
            name = urlsplit(f"//{header}").hostname or ""
            if name in ("localhost", self._host):
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class Token:
    """What a request that changes a run must carry; new with every server."""

    def __init__(self) -> None:
        self.text = secrets.token_urlsafe(24)

    def refusal(self, request: Request) -> str | None:
        """Why a request may not change anything; None if it may.

        A page of another origin can send requests, but can neither read the token nor hide where it comes from.
        """
        origin = request.headers.get("origin", "")
        is_same_origin = (
            origin.startswith(("http://", "https://"))
            and urlsplit(origin).netloc == request.headers.get("host")
            and request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
        )
        if not is_same_origin:
            return "requests that change a run must come from the dashboard's own pages"
        if not hmac.compare_digest(request.headers.get("x-rekindle-token", "").encode(), self.text.encode()):
            return "the token is missing or is not that of this server: open the link that rekindle dashboard printed"
        return None
