"""One connected Godot game: its socket, and the last observations and actions of its agents."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import InputError
from rekindle.experience import Array
from rekindle.server.godot_spaces import GameSpaces, GodotObservations
from rekindle.server.godot_wire import HELLO, Frames

__all__ = ["Connection", "Game", "LAST_OBSERVATION", "Reply"]

LAST_OBSERVATION = "terminal_observation"
"""The key in the info of an agent with the last observation of its episode, if the game sends it (the name is that of
Stable-Baselines3)."""
_PIECE = 1 << 18
"""The most bytes to read at once."""


class Connection:
    """A socket that never blocks."""

    def __init__(self, peer: socket.socket, max_message: int) -> None:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = peer
        self.since = time.monotonic()
        self.game: Game | None = None
        """The game, once it has described itself."""
        self.stage: Literal["joining", "resetting", "playing"] = "joining"
        """What the next message of the game contains: its description, first observations, or outcomes of actions."""
        self._frames = Frames(max_message)
        self._outgoing = bytearray(HELLO)

    @property
    def name(self) -> str:
        """The name of the connection in messages."""
        return "a new connection" if self.game is None else f"game {self.game.number}"

    @property
    def has_outgoing(self) -> bool:
        """Whether there are unsent bytes."""
        return bool(self._outgoing)

    def send(self, frame: bytes) -> None:
        """Send a frame, now or when the socket is ready."""
        self._outgoing += frame
        self.flush()

    def flush(self) -> None:
        """Send as many of the unsent bytes as the socket accepts; raises `EOFError` if the game has disconnected."""
        while self._outgoing:
            try:
                sent = self.socket.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError as error:
                raise EOFError(str(error)) from None
            del self._outgoing[:sent]

    def receive(self) -> bytes | None:
        """The next frame if it is complete, otherwise None.

        Raises `InputError` for a bad frame, and `EOFError` if the game has disconnected.
        """
        try:
            data = self.socket.recv(_PIECE)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError(str(error)) from None
        if not data:
            raise EOFError("in the middle of a message" if len(self._frames) else "")
        return self._frames.feed(data)


class Reply(NamedTuple):
    """The reply of a game: observations and, unless it was reset, the outcomes of actions."""

    observations: GodotObservations
    rewards: NDArray[np.float64]
    """NaN where the game sent no number."""
    dones: NDArray[np.bool_]
    infos: Sequence[dict[str, Any]]
    lasts: dict[int, GodotObservations]
    """The last observation of each agent whose episode is done, if the game sent it."""


class Game:
    """The agents of one game; each is a stream of the session."""

    def __init__(self, number: int, spaces: GameSpaces, agents: int) -> None:
        self.number, self.spaces, self.agents = number, spaces, agents
        self.streams = [f"game{number}/{agent}" for agent in range(agents)]
        """The names of the streams in the session."""
        self.observations: GodotObservations = {}
        """The last observations."""
        self.actions: dict[str, Array] = spaces.idle_actions(agents)
        """The last actions."""
        self.is_open = np.zeros(agents, np.bool_)
        """Which agents have an open episode."""
        self.lengths = np.zeros(agents, np.int64)
        """The lengths of the open episodes, in steps."""
        self.totals = np.zeros(agents)
        """The returns of the open episodes so far; only used without learning."""

    def names(self, rows: NDArray[np.intp]) -> list[str]:
        """The streams of some agents."""
        return [self.streams[row] for row in rows.tolist()]

    def read(self, message: dict[str, Any], *, is_reset: bool) -> Reply:
        """Check a reply of the game; raises `InputError`."""
        rows = self._column(message, "obs")
        observations = self.spaces.read_observations(rows)
        infos = self._infos(message)
        if is_reset:
            return Reply(observations, np.zeros(self.agents), np.zeros(self.agents, np.bool_), infos, {})
        rewards, dones = self._column(message, "reward"), self._column(message, "done")
        try:
            numbers = np.asarray(rewards, np.float64)
        except (TypeError, ValueError, OverflowError):
            numbers = None
        if numbers is None or numbers.shape != (self.agents,):
            raise InputError(f"the rewards are {rewards!r:.80}, expected numbers")
        if not all(done in (0, 1) for done in dones):
            raise InputError(f"done is {dones!r:.80}, expected true or false for each agent")
        lasts = {agent: self._last(infos[agent]) for agent, done in enumerate(dones) if done}
        known = {agent: last for agent, last in lasts.items() if last is not None}
        return Reply(observations, numbers, np.array(dones, np.bool_), infos, known)

    def _last(self, info: dict[str, Any]) -> GodotObservations | None:
        given = info.get(LAST_OBSERVATION)
        if given is None:
            return None
        last = self.spaces.read_last_observation(given)
        return last if self.spaces.finite(last, 1)[0] else None

    def _column(self, message: dict[str, Any], field: str) -> list[Any]:
        values = message.get(field)
        if not isinstance(values, list) or len(cast("list[Any]", values)) != self.agents:
            raise InputError(f"{field!r} has no value for each of the {self.agents} agents: {values!r:.80}")
        return cast("list[Any]", values)

    def _infos(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """The info of each agent; older plugins send none."""
        if message.get("info") is None:
            return [{}] * self.agents
        infos = self._column(message, "info")
        return [cast("dict[str, Any]", info) if isinstance(info, dict) else {} for info in infos]
