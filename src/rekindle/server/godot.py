"""Train Godot games: a server with the protocol of Godot RL Agents for one training session."""

from __future__ import annotations

import contextlib
import logging
import selectors
import time
from collections.abc import Callable, Generator
from typing import Any, Literal

from rekindle.checks import checked_choice, checked_count, required_count
from rekindle.errors import ConfigError, InputError
from rekindle.interrupt import Interrupter
from rekindle.server.godot_game import Connection, Game, Reply
from rekindle.server.godot_play import EndRules, GodotCounts, Play
from rekindle.server.godot_spaces import EnvInfo, read_env_info
from rekindle.server.godot_wire import CLOSE, RESET, encode_frame, read_message
from rekindle.server.listening import listening
from rekindle.session.session import TrainingSession
from rekindle.text import compact, decimal, whole

__all__ = ["DEFAULT_PORT", "GodotServer", "OpenSession", "serve_godot"]

logger = logging.getLogger("rekindle.server")

DEFAULT_PORT = 11008
"""The port that games with the plugin connect to, unless they are started with `--port=`."""
_HOST = "127.0.0.1"
"""Games connect to this address only. Their protocol has no authentication, so other machines must not connect."""
_TICK = 0.1
"""Seconds between checks whether to stop."""
_JOIN_SECONDS = 60.0
"""Seconds after which a connection is closed if the game has not described itself."""
_CLOSING_SECONDS = 2.0
"""Seconds for games to receive the message that the training ended."""

OpenSession = Callable[[Any, Any], TrainingSession]
"""Opens the session for the observation space and the action space of the first game."""


class GodotServer:
    """Trains the agents of all games that connect; each agent of a game is a stream of one session.

    The first game defines the spaces; later games must have the same. A game that leaves or sends an invalid message is
    disconnected, its open episodes are closed as truncated, and the other games continue.
    """

    def __init__(
        self,
        open_session: OpenSession,
        *,
        port: int = DEFAULT_PORT,
        rules: EndRules = EndRules(),  # noqa: B008 - it is frozen
        play: bool = False,
        max_games: int = 64,
        max_agents: int = 1024,
        max_message: int = 1 << 24,
        interrupter: Interrupter | None = None,
        report: Callable[[str], object] | None = None,
        report_seconds: float = 10.0,
    ) -> None:
        """Listen on the port.

        Args:
            open_session: opens the session when the first game has sent its spaces.
            port: the port to listen on; 0 for any free port.
            rules: whether `done` means terminated or truncated, if a game does not say it.
            play: act greedily, without learning.
            max_games: the most games at the same time.
            max_agents: the most agents of all games together.
            max_message: the most bytes in one message of a game.
            interrupter: stops the server; pass that of the session.
            report: called with a line about the training every `report_seconds`.
            report_seconds: seconds between reports.
        """
        self._open_session, self._rules, self._learns = open_session, rules, not play
        self._max_games = required_count("max_games", max_games, 1)
        self._max_agents = required_count("max_agents", max_agents, 1)
        self._max_message = required_count("max_message", max_message, 1)
        self.interrupter = interrupter or Interrupter()
        """Stops the server."""
        self._report, self._report_seconds = report, report_seconds
        self._next_report, self._reported = time.monotonic() + report_seconds, ""
        self._logged, self._requests = time.monotonic(), 0
        """The time of the last log of metrics, and the number of replies since then."""
        self._connections: list[Connection] = []
        self._play: Play | None = None
        self._selector = selectors.DefaultSelector()
        try:
            self._listener = listening(_HOST, required_count("port", port, 0, 2**16 - 1))
        except ConfigError:
            self._selector.close()
            raise
        self.port = int(self._listener.getsockname()[1])
        """The port that games connect to."""
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def session(self) -> TrainingSession | None:
        """The session; None until the first game has connected."""
        return None if self._play is None else self._play.session

    @property
    def counts(self) -> GodotCounts:
        """Counts of the outcomes that games reported since the server started, and of missing information."""
        return GodotCounts() if self._play is None else self._play.counts

    @property
    def games(self) -> list[Game]:
        """The games that are connected."""
        return [connection.game for connection in self._connections if connection.game is not None]

    # The loop

    def serve(self) -> None:
        """Serve games until the session is done, then close them and the session."""
        with contextlib.ExitStack() as undo:
            undo.callback(self._close_sockets)
            if self._report is not None:
                self._report(f"waiting for games on port {self.port}")
            while not self._is_done:
                self._serve_once(undo)
            if self._play is not None:
                for game in self.games:
                    self._play.leave(game)
                self._play.warn_of_missing()
            self._dismiss()

    @property
    def _is_done(self) -> bool:
        return self.interrupter.is_stopped or (self.session is not None and self.session.is_done)

    def _serve_once(self, undo: contextlib.ExitStack) -> None:
        replies: list[tuple[Connection, Game, Reply]] = []
        for key, events in self._selector.select(_TICK):
            if key.data is None:
                self._accept()
                continue
            message = self._exchange(key.data, events)
            if isinstance(message, EnvInfo):
                self._join(key.data, message, undo)
            elif message is not None:
                replies.append((key.data, *message))
        if replies:
            self._answer(sorted(replies, key=lambda reply: reply[1].number))
        self._requests += len(replies)
        now = time.monotonic()
        if now - self._logged >= 1.0:
            self._drop_silent()
            self._log(now - self._logged)
            self._logged, self._requests = now, 0
        if self._report is not None and now >= self._next_report:
            self._next_report = now + self._report_seconds
            if (line := self.status) != self._reported:
                self._report(line)
                self._reported = line

    def _exchange(self, connection: Connection, events: int) -> EnvInfo | tuple[Game, Reply] | None:
        """Send and receive on a connection that is ready; returns a message if it is complete."""
        with self._dropped_on_error(connection):
            if events & selectors.EVENT_WRITE:
                self._send(connection, b"")
            frame = connection.receive() if events & selectors.EVENT_READ else None
            if frame is None:
                return None
            game = connection.game
            if game is None:
                left = self._max_agents - sum(game.agents for game in self.games)
                return read_env_info(read_message(frame, "env_info"), max_agents=left)
            kind = "reset" if connection.stage == "resetting" else "step"
            return game, game.read(read_message(frame, kind), is_reset=kind == "reset")
        return None

    def _answer(self, replies: list[tuple[Connection, Game, Reply]]) -> None:
        play = self._play
        if play is None:
            return
        play.take([(game, reply) for _, game, reply in replies])
        play.warn_of_missing()
        if play.session.is_done:
            return
        play.act([game for _, game, _ in replies])
        for connection, game, _ in replies:
            connection.stage = "playing"
            with self._dropped_on_error(connection):
                actions = game.spaces.to_game(game.actions)
                self._send(connection, encode_frame({"type": "action", "action": actions}))

    def _log(self, seconds: float) -> None:
        """Log metrics of the server; they are under `time/`, because they depend on the clock."""
        play = self._play
        if play is None or play.session.run is None or not self._learns or not self._requests:
            return
        numbers = {
            "clients": len(self.games),
            "streams": sum(game.agents for game in self.games),
            "requests_per_second": self._requests / seconds,
            "unclear_ends": play.counts.unclear_ends,
            "no_last_observation": play.counts.no_last_observation,
            "cut_transitions": play.counts.cut_transitions,
            "bad_values": play.counts.bad_values,
        }
        for name, value in numbers.items():
            play.session.log(f"time/server_{name}", float(value))

    # Connections

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:  # it is gone already, or too few descriptors are left for the files of the run
            return
        if len(self._connections) >= self._max_games:
            logger.warning("a game was refused: %d games are connected (max_games)", len(self._connections))
            peer.close()
            return
        connection = Connection(peer, self._max_message)
        self._connections.append(connection)
        self._selector.register(peer, selectors.EVENT_READ, connection)
        with self._dropped_on_error(connection):
            self._send(connection, b"")

    def _join(self, connection: Connection, info: EnvInfo, undo: contextlib.ExitStack) -> None:
        play = self._play
        if play is None:
            session = self._open_session(info.spaces.observation_space, info.spaces.action_space)
            play = self._play = Play(undo.enter_context(session), info.spaces, self._rules, learns=self._learns)
        elif not play.spaces.is_like(info.spaces):
            self._drop(connection, "disconnected: its spaces differ from those of the first game", logging.WARNING)
            return
        if len(info.policies) > 1:
            play.session.warn(f"the agents want the policies {', '.join(info.policies)}; all of them train one")
        taken = {game.number for game in self.games}
        number = next(number for number in range(self._max_games) if number not in taken)
        game = Game(number, play.spaces, info.agents)
        play.join(game)
        connection.game, connection.stage = game, "resetting"
        logger.info("game %d joined, with %d agents", number, info.agents)
        with self._dropped_on_error(connection):
            self._send(connection, RESET)

    def _send(self, connection: Connection, frame: bytes) -> None:
        connection.send(frame)
        waits = selectors.EVENT_WRITE if connection.has_outgoing else 0
        self._selector.modify(connection.socket, selectors.EVENT_READ | waits, connection)

    @contextlib.contextmanager
    def _dropped_on_error(self, connection: Connection) -> Generator[None]:
        try:
            yield
        except InputError as error:
            self._drop(connection, f"disconnected: {error}", logging.WARNING)
        except EOFError as error:
            self._drop(connection, f"left {error}".strip(), logging.INFO)

    def _drop(self, connection: Connection, why: str, level: int) -> None:
        logger.log(level, "%s %s", connection.name, why)
        self._connections.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.game is not None and self._play is not None:
            self._play.leave(connection.game)

    def _drop_silent(self) -> None:
        limit = time.monotonic() - _JOIN_SECONDS
        for connection in [one for one in self._connections if one.game is None and one.since < limit]:
            self._drop(connection, f"disconnected: it said nothing for {_JOIN_SECONDS:.0f} seconds", logging.WARNING)

    # The end

    def _dismiss(self) -> None:
        """Tell the games that the training ended."""
        end = time.monotonic() + _CLOSING_SECONDS
        for connection in self._connections:
            with contextlib.suppress(EOFError):
                connection.send(CLOSE)
        while any(one.has_outgoing for one in self._connections) and time.monotonic() < end:
            time.sleep(0.01)
            for connection in self._connections:
                with contextlib.suppress(EOFError):
                    connection.flush()

    def _close_sockets(self) -> None:
        self._selector.close()
        self._listener.close()
        for connection in self._connections:
            connection.socket.close()

    @property
    def status(self) -> str:
        """A line about the training: games, agents, steps, mean return, and missing information."""
        games, session = self.games, self.session
        agents = sum(game.agents for game in games)
        parts = [f"{_counted(len(games), 'game')}, {_counted(agents, 'agent')}"]
        if self._play is not None and not self._learns:
            returns = self._play.returns
            parts.append(f"the last {_counted(len(returns), 'episode')}")
            parts += [f"return {decimal(sum(returns) / len(returns))}"] if returns else []
        elif session is not None:
            parts += [f"step {whole(session.total_steps)}", f"{compact(round(session.steps_per_sec))} steps/s"]
            if (returns := session.store.latest("episode/return")) is not None:
                parts.append(f"return {decimal(returns)}")
        parts += [f"{whole(count)} {what}" for what, count in self.counts.missing.items()]
        return "  ".join(parts)


def _counted(count: int, what: str) -> str:
    return f"{whole(count)} {what}" if count == 1 else f"{whole(count)} {what}s"


def serve_godot(
    open_session: OpenSession,
    *,
    port: int = DEFAULT_PORT,
    done: Literal["terminated", "truncated"] | None = None,
    time_limit: int | None = None,
    play: bool = False,
    interrupter: Interrupter | None = None,
    report: Callable[[str], object] | None = None,
) -> GodotServer:
    """Train Godot games until the session is done; returns the stopped server.

    `done` and `time_limit` define whether an episode was terminated or truncated if a game does not say it: see
    `EndRules`. With `play`, the agent acts greedily and does not learn.
    """
    if done is not None:
        checked_choice("done", done, ("terminated", "truncated"))
    rules = EndRules(done, checked_count("time_limit", time_limit, 1))
    server = GodotServer(open_session, port=port, rules=rules, play=play, interrupter=interrupter, report=report)
    server.serve()
    return server
