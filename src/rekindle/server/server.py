"""Serve a session to programs in any language: clients connect, request actions, and report the outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import ssl
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from rekindle.errors import ConfigError, MissingExtra, RekindleError
from rekindle.server.counting import Counters
from rekindle.server.desk import Desk
from rekindle.server.listening import listening, raise_descriptor_limit
from rekindle.server.opening import Opening, Ready
from rekindle.server.options import ServerOptions
from rekindle.server.pages import Page, Pages, allowed, metrics_text
from rekindle.server.refusals import Refusal
from rekindle.session.session import TrainingSession
from rekindle.signal_stack import use_signal_stack
from rekindle.text import install_command
from rekindle.wire.messages import Hello, StatsReply

try:
    import picows
    from picows import WSListener, WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener

    from rekindle.server.connection import ClientConnection
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] == "rekindle":
        raise
    raise MissingExtra(f"the server needs {missing.name}: {install_command('server')}", name=missing.name) from None

__all__ = ["SessionServer", "serve", "tls_context"]

logger = logging.getLogger("rekindle")

_SessionFactory = Callable[[Any, Any], TrainingSession]
_SPARE_CONNECTIONS = 64
"""Connections beyond `max_clients`, for those that have not sent `hello` yet."""
_SWITCH_SECONDS = 0.0005
_LATENCIES = (("p50", 0.5), ("p99", 0.99))
_LEARNING = ("agent/", "train/")
"""The metrics that `stats` reports: those of the agent's updates, and those of the host."""


class SessionServer:
    """Serves a session to clients with the protocol in `docs/protocol.md`.

    The session must have a journal, so that clients can continue after the server is killed and started again. Do not
    use the session yourself while it is served.
    """

    def __init__(
        self,
        session: TrainingSession | _SessionFactory,
        options: ServerOptions | None = None,
        *,
        files: Mapping[str, Page] | None = None,
        play: bool = False,
    ) -> None:
        """Serve a session, or a session that is created with the spaces of the first client.

        Args:
            session: the session; or a function that takes an observation space and an action space and returns it. The
                function is called on another thread, so that the server keeps answering.
            options: the address, who may connect, and limits.
            files: static files to serve over HTTP, by path.
            play: answer only `act`, without learning.
        """
        self.options = ServerOptions() if options is None else options
        self.counters = Counters()
        self.connections: set[ClientConnection] = set()
        self.is_leaving = False
        self.failure: BaseException | None = None
        """The error that stopped the server."""
        self.address = ""
        """The address for clients, once the server has started, such as `ws://127.0.0.1:7654/session`."""
        self._is_playing = play
        self._is_stopped = False
        self._stop_reason: str | None = None
        """Why the server was stopped before it had a session."""
        self._logged_requests = 0
        self._desk: Desk | None = None
        self._pages = Pages(self.options, self._metrics, lambda: not self.is_leaving, files or {})
        self._leaving = asyncio.Event()
        self._server: Any = None
        self._housekeeper: asyncio.Task[None] | None = None
        self._opening: Opening | None = None
        if isinstance(session, TrainingSession):
            self._desk = self._desk_of(session)
        else:
            make = session
            self._opening = Opening(
                lambda observed, acted: self._desk_of(make(observed, acted)),
                most_numbers=self.options.max_message,
                opened=self._use,
                failed=self._fail,
            )

    @property
    def session(self) -> TrainingSession | None:
        """The session; None until the first client has sent its spaces."""
        return None if self._desk is None else self._desk.session

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self._server.sockets[0].getsockname()[1])

    def _desk_of(self, session: TrainingSession) -> Desk:
        return Desk(session, self.options, self.counters, failed=self._fail)

    def _use(self, desk: Desk) -> None:
        self._desk = desk
        if self._stop_reason is not None:
            desk.session.stop(self._stop_reason)

    # For connections

    def desk_for(self, hello: Hello, ready: Ready) -> Desk | None:
        """The desk that processes the requests of a client; raises `Refusal`.

        None while the session is being opened: `ready` is called afterwards.
        """
        if self._desk is None and self._opening is not None:
            self._opening.wait(hello, ready)
        return self._desk

    @property
    def ended(self) -> str | None:
        """Why the training is over; None if it continues, or may continue after a restart of the server."""
        return None if self.session is None or self._is_stopped else self.session.stop_reason

    def learns(self) -> bool:
        """Whether numbered requests are processed too, not only `act`."""
        return not self._is_playing

    def stats(self, ref: int) -> StatsReply:
        """Statistics of the training."""
        desk, session = self._desk, self.session
        learning: dict[str, float | None] = {}
        mean: float | None = None
        if session is not None:
            store = session.store
            learning = {name: store.latest(name) for name in store.names if name.startswith(_LEARNING)}
            mean = store.latest("episode/return")
        return StatsReply(
            ref=ref,
            steps=0 if session is None else session.total_steps,
            episodes=0 if session is None else session.episodes,
            updates=0 if session is None else session.updates,
            clients=self._clients,
            streams=0 if desk is None else desk.streams,
            steps_per_second=self.counters.steps_per_second,
            learning=learning,
            mean_return=mean if mean is not None and math.isfinite(mean) else None,
        )

    @property
    def _clients(self) -> int:
        desk = self._desk
        return 0 if desk is None else sum([one.connection is not None for one in desk.clients.by_number.values()])

    def _metrics(self) -> str:
        stats = self.stats(0)
        gauges = {
            "clients": stats.clients,
            "streams": stats.streams,
            "env_steps": stats.steps,
            "episodes": stats.episodes,
            "updates": stats.updates,
            "requests_per_second": self.counters.requests_per_second,
            "steps_per_second": stats.steps_per_second,
            **({} if stats.mean_return is None else {"episode_return": stats.mean_return}),
        }
        return metrics_text(self.counters, gauges)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        self._leave()

    # Start and stop

    async def start(self) -> None:
        """Start to listen; raises `ConfigError` if that is not possible."""
        use_signal_stack()  # a session that is opened on another thread cannot do this for the thread that serves it
        options = self.options
        tls, opened = tls_context(options), listening(options.host, options.port)
        try:
            self._server = await cast("Any", picows).ws_create_server(
                self._route,
                sock=opened,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else options.hello_seconds,
                websocket_handshake_timeout=options.hello_seconds,
                enable_auto_ping=True,
                auto_ping_idle_timeout=options.ping_seconds,
                auto_ping_reply_timeout=options.ping_seconds,
                enable_auto_pong=False,
                max_frame_size=options.max_message,
                logger_name=_quiet_logger(),
                use_aiofastnet=True,  # it accepts with the methods of the socket, which asyncio's own servers may not
            )
        except BaseException:
            opened.close()
            raise
        scheme = "ws" if options.tls_cert is None else "wss"
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.address = f"{scheme}://{host}:{self.port}/session"
        self._housekeeper = asyncio.create_task(self._keep_house())

    def _route(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        headers = {name.lower(): value for name, value in request.headers.items()}
        path = request.path.decode("latin-1")
        if not allowed(headers, self.options):
            return _http(403, b"this Host or Origin may not connect (--allow-host, --origin)\n")
        if path.partition("?")[0] == "/session":
            if self.is_leaving or len(self.connections) >= self.options.max_clients + _SPARE_CONNECTIONS:
                return _http(503, b"no more connections\n")
            return ClientConnection(self)
        answer = self._pages.answer(path, headers)
        return _http(answer.status, answer.body, answer.content_type, origin=headers.get("origin"))

    async def _keep_house(self) -> None:
        """Once a second, forget idle clients, log metrics, and check whether the session ended."""
        while True:
            await asyncio.sleep(1.0)
            self.counters.measure()
            desk = self._desk
            if desk is None or self.is_leaving:
                continue
            try:
                desk.forget_idle()
                self._log(desk.session)
            except (RekindleError, OSError) as error:
                self._fail(error)
            if desk.session.is_done:
                self._leave()

    def _log(self, session: TrainingSession) -> None:
        """Log metrics of the server; they are under `time/`, because they differ between identical trainings."""
        counters = self.counters
        if session.run is None or self._is_playing or counters.requests == self._logged_requests:
            return  # each metric is a record of the journal, and without steps there is no checkpoint that removes it
        self._logged_requests = counters.requests
        numbers = {
            "clients": float(self._clients),
            "streams": float(0 if self._desk is None else self._desk.streams),
            "requests_per_second": counters.requests_per_second,
            **{f"latency_{name}_ms": 1e3 * counters.percentile(share) for name, share in _LATENCIES},
        }
        for name, value in numbers.items():
            session.log(f"time/server_{name}", value)

    def stop(self, reason: str = "stopped") -> None:
        """Make `run` answer the queued requests, save a checkpoint and return; safe in a signal handler of the loop.

        The training can be continued, so clients are not told that it is over: they wait for the next server.
        """
        self._is_stopped = self.ended is None
        if self._desk is not None:
            with contextlib.suppress(Refusal):  # a tick failed, which is in self.failure
                self._desk.close()  # before the session stops, because answers after that say so
        if self.session is not None:
            self.session.stop(reason)
        else:
            self._stop_reason = reason
        self._leave()

    def _leave(self) -> None:
        self.is_leaving = True
        self._leaving.set()

    async def run(self) -> None:
        """Serve until the session ends or `stop` is called; raises the error that stopped the server, if any."""
        await self._leaving.wait()
        await self._drain()
        if self.failure is not None:
            raise self.failure

    async def _drain(self) -> None:
        """Stop accepting connections, answer the queued requests, and close the connections.

        If the session is being opened, wait for it, so that it can be closed. Clients are told before that.
        """
        self.is_leaving = True
        if self._server is not None:
            self._server.close()
        if self._housekeeper is not None:
            self._housekeeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._housekeeper
        if self._desk is not None and self.failure is None:
            with contextlib.suppress(Refusal):  # a tick failed, which is in self.failure
                self._desk.close()
        code, text = ("leaving", "the server stops") if self.failure is None else ("internal", "the server failed")
        for connection in list(self.connections):
            connection.refuse(code, text)
        for _ in range(20):
            if not self.connections:
                break
            await asyncio.sleep(0.05)
        for connection in list(self.connections):
            connection.abort()
        if self._opening is not None:
            await self._opening.settle()

    async def __aenter__(self) -> SessionServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._drain()


def _http(
    status: int, body: bytes, content_type: str = "text/plain; charset=utf-8", *, origin: str | None = None
) -> WSUpgradeResponseWithListener:
    headers = {"Content-Type": content_type, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    if origin is not None:  # an allowed origin
        headers["Access-Control-Allow-Origin"] = origin
    if status < 300:
        response = WSUpgradeResponse.create_ok_response(body, extra_headers=headers)
    else:
        response = WSUpgradeResponse.create_error_response(status, body, extra_headers=headers)
    return WSUpgradeResponseWithListener(response, None)


def _quiet_logger() -> logging.Logger:
    """A logger that drops errors of clients: they are counted and answered, and must not fill the server's log."""
    quiet = logging.getLogger("rekindle.socket")
    quiet.propagate = False
    if not quiet.handlers:
        quiet.addHandler(logging.NullHandler())
    return quiet


def tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    """The TLS context of a server, None without TLS; raises `ConfigError` if the certificate cannot be used."""
    if options.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificate {options.tls_cert} or its key cannot be used: {error}") from None
    return context


def serve(server: SessionServer, *, announce: Callable[[str], object]) -> None:
    """Run a server until SIGINT or SIGTERM, or until its session ends, and close the session.

    Raises the error that stopped the server, if any; the session is then closed without a checkpoint of a broken agent.
    """
    import uvloop

    raise_descriptor_limit()
    # A learner on another thread yields to a request after 0.5 ms instead of Python's default of 5 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()  # a collection that visits what was imported takes 0.1 s, and no request is answered meanwhile

    def handle(number: int) -> None:
        if server.is_leaving:  # the second signal ends the process at once
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        server.stop(signal.Signals(number).name)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, handle, number)
        await server.start()
        announce(server.address)
        await server.run()

    try:
        uvloop.run(main())
    except BaseException as error:
        if server.session is not None:
            server.session.__exit__(type(error), error, error.__traceback__)
        raise
    finally:
        gc.unfreeze()
    if server.session is not None:
        server.session.close()
