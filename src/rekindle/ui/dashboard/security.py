"""Access control: requests need the token of the printed link, and must come from the dashboard's own pages."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Guard", "Token"]

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
_ADVICE = "open the link that rekindle dashboard printed"


class Token:
    """The token that every request for runs needs, in a cookie or a header; new for every server."""

    def __init__(self) -> None:
        self.text = secrets.token_urlsafe(24)

    def is_in(self, request: Request) -> bool:
        """Whether a request has the token."""
        given = (request.cookies.get(_cookie_name(request)), request.headers.get("x-rekindle-token"))
        return any(self.is_equal(text) for text in given if text is not None)

    def is_equal(self, text: str) -> bool:
        """Whether a text is the token, compared in constant time."""
        return hmac.compare_digest(text.encode(), self.text.encode())

    def cookie(self, request: Request) -> str:
        """The header that makes the browser send the token from now on."""
        return f"{_cookie_name(request)}={self.text}; Path=/; HttpOnly; SameSite=Strict"


def _cookie_name(request: Request) -> str:
    # A browser sends the cookies of a host to all of its ports, so two dashboards need two names.
    return f"rekindle-{_split(request.headers.get('host', ''))[1]}"


def _split(host: str) -> tuple[str, int]:
    """Name and port of a Host header; the name is empty if the header is invalid."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname or "", parts.port or 80
    except ValueError:
        return "", 80


class Guard:
    """Accepts only requests that name this server, come from its own pages, and have the token if they ask for runs.

    A web site can let its own name point to this server (DNS rebinding), which is the same origin for the browser; but
    then the request has that name. Pages and scripts contain nothing of a run, and need no token.
    """

    def __init__(self, app: ASGIApp, *, host: str, token: Token) -> None:
        self._app = app
        self._host = host.lower()
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add headers that isolate the pages; or refuse the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._answer(Request(scope)) or self._app
        await answer(scope, receive, send_guarded)

    def _answer(self, request: Request) -> Response | None:
        """A response instead of that of the application, if any."""
        path, link = request.scope["path"], request.query_params.get("token")
        if not self._is_known(request):
            refusal = 421, "This is not the name of the dashboard: use its address."
        elif not _is_own(request):
            refusal = 403, "Another site may not ask for this."
        elif path == "/" and link is not None:
            if self._token.is_equal(link):
                # Redirect without the token, so that it stays neither in the address bar nor in the history.
                return RedirectResponse("/", status_code=303, headers={"set-cookie": self._token.cookie(request)})
            refusal = 403, f"This is not the token of this server: {_ADVICE}."
        elif path != "/" and not path.startswith("/static/") and not self._token.is_in(request):
            refusal = 401, f"The token of this server is missing: {_ADVICE}."
        elif request.method not in ("GET", "HEAD") and not _is_of_own_origin(request):
            refusal = 403, "Only the dashboard's own pages may change a run."
        else:
            return None
        code, reason = refusal
        return PlainTextResponse(f"{reason}\n", status_code=code)

    def _is_known(self, request: Request) -> bool:
        name, _ = _split(request.headers.get("host", ""))
        try:
            return name in ("localhost", self._host) or bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def _is_own(request: Request) -> bool:
    """Whether the request comes from our own pages, or follows a link to the start page.

    Another port of this machine counts as another site: anyone may listen there, and the browser sends it our cookies.
    """
    if request.headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    is_followed = request.headers.get("sec-fetch-mode") == "navigate"
    is_page = request.headers.get("sec-fetch-dest", "document") == "document"  # not a frame in another page
    return is_followed and is_page and request.method == "GET" and request.scope["path"] == "/"


def _is_of_own_origin(request: Request) -> bool:
    origin = request.headers.get("origin", "")
    try:
        return origin.startswith(("http://", "https://")) and urlsplit(origin).netloc == request.headers.get("host")
    except ValueError:
        return False
