"""A client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
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

__all__ = ["AsyncClient"]

_CHUNK = 1 << 16


class AsyncClient(BaseClient):
    """A client of a session server for asyncio: the methods of `Client`, to be awaited one at a time.

    >>> async with AsyncClient("ws://127.0.0.1:7654/session") as client:  # doctest: +SKIP
    ...     action = await client.begin(observation)
    ...     action = await client.step(observation, reward)
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
        """The arguments are those of `Client`. Call `connect`, or use `async with`."""
        talk = Conversation(
            client=client,
            token=token,
            mode=mode,
            observation_space=observation_space,
            action_space=action_space,
            secret_file=secret_file,
        )
        super().__init__(address, talk, patience=patience, answer_seconds=answer_seconds, tls=tls)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    # Public methods

    async def connect(self) -> None:
        """Connect; raises `ServerError`."""
        async with self._turn:
            if self._protocol is None:
                await self._connected(None, starts_anew=self._talk.welcome is None)

    async def begin(self, observation: Any, *, stream: StreamKey = 0) -> Any:
        """Start an episode at its first observation; returns the first action."""
        await self.connect()
        return (await self.begin_many(self._talk.one_row(observation), [stream]))[0]

    async def step(
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
        """Report the outcome of the last action; returns the next action, or None if the episode or session ended."""
        await self.connect()
        status = EpisodeStatus.of(terminated, truncated)
        executed = None if action is None else self._talk.one_row(action, is_action=True)
        more = None if extras is None else {0: extras}
        row = self._talk.one_row(observation)
        try:
            found = await self.step_many(row, [reward], [status], [stream], actions=executed, extras=more)
        except ServerError:
            if self.stop is None:
                raise
            return None
        return None if status.is_done or self.stop is not None else found[0]

    async def begin_many(self, observations: Any, streams: Sequence[StreamKey]) -> list[Any]:
        """Start an episode in each stream; the arrays of observations have a leading axis. Returns the actions."""
        return await self.batch(begin=(observations, streams))

    async def step_many(
        self,
        observations: Any,
        rewards: Sequence[float],
        statuses: Sequence[EpisodeStatus | int],
        streams: Sequence[StreamKey],
        *,
        actions: Any = None,
        extras: Mapping[int, Mapping[str, float]] | None = None,
    ) -> list[Any]:
        """Report the outcome of the last action of each stream; returns an action for each."""
        return await self.batch(step=(observations, rewards, statuses, streams, actions, extras))

    async def batch(
        self,
        *,
        close: Sequence[StreamKey] = (),
        abandon: Sequence[StreamKey] = (),
        step: tuple[Any, ...] | None = None,
        begin: tuple[Any, Sequence[StreamKey]] | None = None,
    ) -> list[Any]:
        """Close, abandon, step and begin streams in one request, in this order.

        Returns the actions of `step`, then those of `begin`.
        """
        answer = await self._ask(lambda: self._talk.batch(close=close, abandon=abandon, step=step, begin=begin))
        rows = (0 if step is None else len(step[3])) + (0 if begin is None else len(begin[1]))
        return self._talk.actions(cast("Actions", answer), rows)

    async def abandon(self, *streams: StreamKey) -> None:
        """Truncate the open episodes of streams at their last transitions."""
        await self.batch(abandon=streams or (0,))

    async def close_streams(self, *streams: StreamKey) -> None:
        """Truncate the open episodes of streams, and forget the streams."""
        await self.batch(close=streams)

    async def act(self, observation: Any) -> Any:
        """The greedy action for an observation; nothing is learned."""
        await self.connect()
        return (await self.act_many(self._talk.one_row(observation), 1))[0]

    async def act_many(self, observations: Any, rows: int) -> list[Any]:
        """The greedy action for each of several observations."""
        answer = await self._ask(lambda: self._talk.act(observations, rows))
        return self._talk.actions(cast("Actions", answer), rows)

    async def stats(self) -> dict[str, Any]:
        """Statistics of the training: steps, episodes, updates, clients, streams, and the latest metrics."""
        return numbers_of(cast("StatsReply", await self._ask(self._talk.stats)))

    async def leave(self) -> None:
        """Tell the server that this client will not come back, and disconnect."""
        if self._protocol is not None:
            with contextlib.suppress(OSError, Retry):
                await self._send(msgspec.msgpack.encode(Bye()))
        self._talk.forget()
        await self.close()

    async def close(self) -> None:
        """Disconnect; the server keeps the streams for a while."""
        streams, self._streams, self._protocol = self._streams, None, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError):
                await asyncio.wait_for(streams[1].wait_closed(), 1.0)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    # Requests over connections

    async def _ask(self, message: Callable[[], bytes]) -> Actions | StatsReply:
        async with self._turn:
            if self._protocol is None:
                await self._connected(None)
            data, attempts = message(), pauses()
            until = time.monotonic() + self._patience
            while True:
                try:
                    if self._protocol is None:
                        await self._connected(data, until=until)
                    else:
                        await self._send(data)
                    return await self._answer()
                except InputError:
                    self._talk.refused()
                    raise
                except (OSError, Retry) as error:
                    await self.close()
                    if self.stop is not None:
                        raise self._talk.ended() from None
                    self._check_patience(error, until, f"no answer from {self._address.text}")
                    await asyncio.sleep(next(attempts))
                except BaseException:  # after reconnecting, the server reports which requests were processed
                    await self.close()
                    raise

    async def _connected(self, waiting: bytes | None, *, until: float | None = None, starts_anew: bool = False) -> None:
        """Connect, send `hello`, and send the unanswered request again.

        If the server has forgotten this client, it becomes a new client with `starts_anew`; otherwise `StreamsLost` is
        raised.
        """
        attempts, until = pauses(), time.monotonic() + self._patience if until is None else until
        while True:
            try:
                await asyncio.wait_for(self._open(), self._answer_seconds)
                await self._send(self._talk.hello())
                self._talk.welcomed(await self._receive(), is_waiting=waiting is not None)
                self.reconnects += 1
                if waiting is not None:
                    await self._send(waiting)
                return
            except StreamsLost:
                await self.close()
                if not starts_anew:
                    raise
            except (OSError, Retry) as error:
                await self.close()
                self._check_patience(error, until, f"{self._address.text} cannot be reached")
                await asyncio.sleep(next(attempts))
            except BaseException:
                await self.close()
                raise

    async def _open(self) -> None:
        address = self._address
        self._streams = await asyncio.open_connection(address.host, address.port, ssl=self._context())
        self._protocol = SocketProtocol(address)
        while not self._protocol.is_open:
            await self._flush()
            self._protocol.feed(await self._streams[0].read(_CHUNK))

    async def _answer(self) -> Actions | StatsReply:
        while True:
            found = self._talk.answered(await self._receive())
            if found is not None:
                return found

    async def _send(self, data: bytes) -> None:
        if self._protocol is None:
            raise Retry("the connection is closed")
        self._protocol.send(data)
        await self._flush()

    async def _flush(self) -> None:
        if self._protocol is not None and self._streams is not None:
            # Reading reports that the connection has ended, after the last message of the server.
            with contextlib.suppress(ConnectionError):
                for data in self._protocol.outgoing():
                    self._streams[1].write(data)
                await self._streams[1].drain()

    async def _receive(self) -> bytes:
        protocol, streams = self._protocol, self._streams
        if protocol is None or streams is None:
            raise Retry("the connection is closed")
        while (message := protocol.next_message()) is None:
            protocol.feed(await asyncio.wait_for(streams[0].read(_CHUNK), self._answer_seconds))
            await self._flush()
        return message
