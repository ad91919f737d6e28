"""The server: one port, on the loopback interface unless another host is given, until Ctrl-C."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from rekindle.errors import ConfigError
from rekindle.ui.dashboard.app import Dashboard
from rekindle.ui.dashboard.connections import BACKLOG, BoundedProtocol

__all__ = ["Server", "listen", "serve"]

_GRACE = 2
"""Seconds that requests get to end; an open event stream would never end."""


class Server(uvicorn.Server):
    """Serves a dashboard on a socket; ends its event streams when it ends."""

    def __init__(self, dashboard: Dashboard) -> None:
        config = uvicorn.Config(
            dashboard.app,
            backlog=BACKLOG,
            http=BoundedProtocol,
            # The only event loop that never accepts more connections at once than the backlog.
            loop="asyncio",
            log_level="error",  # with a warning for each bad request, anyone could fill the disk
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
            ws="none",
        )
        super().__init__(config)
        self._dashboard = dashboard

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C."""
        self._dashboard.is_closing.set()
        super().handle_exit(sig, frame)


def serve(root: Path, *, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve the runs below a directory until Ctrl-C; calls `announce` with the address once it can be opened."""
    with listen(host, port) as listener:
        dashboard = Dashboard(root, host=host)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/"
        announce(f"{address}?token={dashboard.token.text}")
        # The server has already shut down properly: Ctrl-C is the normal way to end it.
        with contextlib.suppress(KeyboardInterrupt):
            Server(dashboard).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 means any free port."""
    if not 0 <= port < 2**16:
        raise ConfigError(f"port {port} is invalid: use 0 (any free port) to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from None
    return listener
