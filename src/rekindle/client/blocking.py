"""A client that waits for each answer."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import msgspec

from rekindle.client.base import BaseClient, numbers_of
from rekindle.client.conversation import Conversation, Retry, pauses
from rekindle.client.socket_protocol import SocketProtocol
from rekindle.errors import InputError, ServerError, StreamsLost
from rekindle.experience import EpisodeStatus
from rekindle.wire.messages import Actions, Bye, StatsReply, StreamKey

__all__ = ["Client"]

_CHUNK = 1 << 16


class Client(BaseClient):
    """A client of a session server.

    Each call waits for its answer; calls of several threads wait for each other. If the connection is lost, or the
    server is killed and started again, the client reconnects and sends its request again, and gets the same answer as
    without the interruption.

    >>> with Client("ws://127.0.0.1:7654/session") as client:  # doctest: +SKIP
    ...     action = client.begin(observation)
    ...     action = client.step(observation, reward)
    """

    def __init__(
        self,
        address: str = "ws://127.0.0.1:7654/session",
        *,
        client: str | None = None,
        token: str | None = None,
        mode: str = "train",
        observation_space: Any = None,
        action_space: Any = None,
        secret_file: str | Path | None = None,
        patience: float = 60.0,
        answer_seconds: float = 30.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect to a server; raises `ServerError`.

        Args:
            address: the address of the server, `ws://` or `wss://`.
            client: the name of this client; by default, the server chooses one.
            token: the token of the server, if it requires one.
            mode: `train`, or `play` to request greedy actions only.
            observation_space: the space of your observations. The server checks it, or uses it if it has no spaces yet.
            action_space: the space of your actions, in the same way.
            secret_file: a file for the secret of this client, so that it can continue after your program restarts.
            patience: seconds to keep trying to reach the server before a call raises `ServerError`.
            answer_seconds: seconds to wait for an answer before reconnecting.
            tls: the TLS context for `wss://`; None for the default one.
        """
        talk = Conversation(
            client=client,
            token=token,
            mode=mode,
            observation_space=observation_space,
            action_space=action_space,
            secret_file=secret_file,
        )
        super().__init__(address, talk, patience=patience, answer_seconds=answer_seconds, tls=tls)
        self._socket: socket.socket | None = None
        self._turn = threading.Lock()
        self._connected(None, starts_anew=True)

    # Public methods

    def begin(self, observation: Any, *, stream: StreamKey = 0) -> Any:
        """Start an episode at its first observation; returns the first action."""
        return self.begin_many(self._one(observation), [stream])[0]

    def step(
        self,
        observation: Any,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        *,
        stream: StreamKey = 0,
        action: Any = None,
        extras: Mapping[str, float] | None = None,
    ) -> Any:
        """Report the outcome of the last action; returns the next action, or None if the episode or the session ended.

        If the session ended, `stop` says why.

        Args:
            observation: the observation after the action; at the end of an episode, its true last observation.
            reward: the reward of the action.
            terminated: whether the episode ended in a terminal state.
            truncated: whether the episode was cut short, for example by a time limit.
            stream: the stream.
            action: the executed action, if it differs from the action that was returned.
            extras: numbers for the record of an episode that ends.
        """
        status = EpisodeStatus.of(terminated, truncated)
        executed = None if action is None else self._one(action, is_action=True)
        more = None if extras is None else {0: extras}
        try:
            found = self.step_many(self._one(observation), [reward], [status], [stream], actions=executed, extras=more)
        except ServerError:
            if self.stop is None:
                raise
            return None
        return None if status.is_done or self.stop is not None else found[0]

    def begin_many(self, observations: Any, streams: Sequence[StreamKey]) -> list[Any]:
        """Start an episode in each stream; the arrays of observations have a leading axis. Returns the actions."""
        return self.batch(begin=(observations, streams))

    def step_many(
        self,
        observations: Any,
        rewards: Sequence[float],
        statuses: Sequence[EpisodeStatus | int],
        streams: Sequence[StreamKey],
        *,
        actions: Any = None,
        extras: Mapping[int, Mapping[str, float]] | None = None,
    ) -> list[Any]:
        """Report the outcome of the last action of each stream; returns an action for each.

        Ignore the action of a stream whose episode ended. The keys of `extras` are indices of `streams`.
        """
        return self.batch(step=(observations, rewards, statuses, streams, actions, extras))

    def batch(
        self,
        *,
        close: Sequence[StreamKey] = (),
        abandon: Sequence[StreamKey] = (),
        step: tuple[Any, ...] | None = None,
        begin: tuple[Any, Sequence[StreamKey]] | None = None,
    ) -> list[Any]:
        """Close, abandon, step and begin streams in one request, in this order.

        `step` has the arguments of `step_many`, and `begin` those of `begin_many`. Returns the actions of `step`, then
        those of `begin`.
        """
        answer = self._ask(lambda: self._talk.batch(close=close, abandon=abandon, step=step, begin=begin))
        rows = (0 if step is None else len(step[3])) + (0 if begin is None else len(begin[1]))
        return self._talk.actions(cast("Actions", answer), rows)

    def abandon(self, *streams: StreamKey) -> None:
        """Truncate the open episodes of streams at their last transitions."""
        self.batch(abandon=streams or (0,))

    def close_streams(self, *streams: StreamKey) -> None:
        """Truncate the open episodes of streams, and forget the streams."""
        self.batch(close=streams)

    def act(self, observation: Any) -> Any:
        """The greedy action for an observation; nothing is learned."""
        return self.act_many(self._one(observation), 1)[0]

    def act_many(self, observations: Any, rows: int) -> list[Any]:
        """The greedy action for each of several observations."""
        answer = self._ask(lambda: self._talk.act(observations, rows))
        return self._talk.actions(cast("Actions", answer), rows)

    def stats(self) -> dict[str, Any]:
        """Statistics of the training: steps, episodes, updates, clients, streams, and the latest metrics."""
        return numbers_of(cast("StatsReply", self._ask(self._talk.stats)))

    def leave(self) -> None:
        """Tell the server that this client will not come back, and disconnect."""
        if self._protocol is not None:
            with contextlib.suppress(OSError, Retry):
                self._send(msgspec.msgpack.encode(Bye()))
        self._talk.forget()
        self.close()

    def close(self) -> None:
        """Disconnect; the server keeps the streams for a while."""
        socket_, self._socket, self._protocol = self._socket, None, None
        if socket_ is not None:
            with contextlib.suppress(OSError):
                socket_.shutdown(socket.SHUT_RDWR)
            socket_.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    # Requests over connections

    def _one(self, value: Any, *, is_action: bool = False) -> Any:
        return self._talk.one_row(value, is_action=is_action)

    def _ask(self, message: Callable[[], bytes]) -> Actions | StatsReply:
        with self._turn:  # one request at a time is on its way
            return self._asked(message)

    def _asked(self, message: Callable[[], bytes]) -> Actions | StatsReply:
        if self._protocol is None:
            self._connected(None)
        data, attempts = message(), pauses()
        until = time.monotonic() + self._patience
        while True:
            try:
                if self._protocol is None:
                    self._connected(data, until=until)
                else:
                    self._send(data)
                return self._answer()
            except InputError:
                self._talk.refused()
                raise
            except (OSError, Retry) as error:
                self.close()
                if self.stop is not None:
                    raise self._talk.ended() from None
                self._check_patience(error, until, f"no answer from {self._address.text}")
                time.sleep(next(attempts))
            except BaseException:  # after reconnecting, the server reports which requests were processed
                self.close()
                raise

    def _connected(self, waiting: bytes | None, *, until: float | None = None, starts_anew: bool = False) -> None:
        """Connect, send `hello`, and send the unanswered request again.

        If the server has forgotten this client, it becomes a new client with `starts_anew`; otherwise `StreamsLost` is
        raised.
        """
        attempts, until = pauses(), time.monotonic() + self._patience if until is None else until
        while True:
            try:
                self._open()
                self._send(self._talk.hello())
                self._talk.welcomed(self._receive(), is_waiting=waiting is not None)
                self.reconnects += 1
                if waiting is not None:
                    self._send(waiting)
                return
            except StreamsLost:
                self.close()
                if not starts_anew:
                    raise
            except (OSError, Retry) as error:
                self.close()
                self._check_patience(error, until, f"{self._address.text} cannot be reached")
                time.sleep(next(attempts))
            except BaseException:
                self.close()
                raise

    def _open(self) -> None:
        address = self._address
        opened = socket.create_connection((address.host, address.port), timeout=self._answer_seconds)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if (context := self._context()) is not None:
                opened = context.wrap_socket(opened, server_hostname=address.host)
            self._socket, self._protocol = opened, SocketProtocol(address)
            while not self._protocol.is_open:
                self._flush()
                self._protocol.feed(opened.recv(_CHUNK))
        except BaseException:
            self._socket = self._protocol = None
            opened.close()
            raise

    def _answer(self) -> Actions | StatsReply:
        while True:
            found = self._talk.answered(self._receive())
            if found is not None:
                return found

    def _send(self, data: bytes) -> None:
        if self._protocol is None:
            raise Retry("the connection is closed")
        self._protocol.send(data)
        self._flush()

    def _flush(self) -> None:
        if self._protocol is not None and self._socket is not None:
            # Reading reports that the connection has ended, after the last message of the server.
            with contextlib.suppress(ConnectionError):
                for data in self._protocol.outgoing():
                    self._socket.sendall(data)

    def _receive(self) -> bytes:
        protocol, socket_ = self._protocol, self._socket
        if protocol is None or socket_ is None:
            raise Retry("the connection is closed")
        while (message := protocol.next_message()) is None:
            protocol.feed(socket_.recv(_CHUNK))
            self._flush()
        return message
