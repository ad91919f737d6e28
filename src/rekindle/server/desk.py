"""Processes the messages of clients: admits clients, checks request numbers, and batches requests into ticks.

It does not use sockets: connections pass messages to it, and it passes answers to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rekindle.errors import ConfigError, DataError
from rekindle.experience import Array
from rekindle.server.clients import Client, Clients, Connection, client_and_stream, new_secret
from rekindle.server.counting import Counters
from rekindle.server.options import ServerOptions
from rekindle.server.refusals import Refusal
from rekindle.server.requests import (
    ActionRows,
    Request,
    RequestReader,
    bad_requests,
    complete,
    entry_of,
    gathered,
)
from rekindle.session.session import TrainingSession
from rekindle.session.ticks import Tick
from rekindle.version import __version__
from rekindle.wire.messages import VERSION, Hello, Limits, StreamStanding, Welcome
from rekindle.wire.rows import RowFormat, WireError
from rekindle.wire.space_trees import read_space_tree, space_as_tree

__all__ = ["Desk"]


class Desk:
    """Processes the requests of all clients of one session."""

    def __init__(
        self,
        session: TrainingSession,
        options: ServerOptions,
        counters: Counters,
        *,
        failed: Callable[[BaseException], None],
    ) -> None:
        """`failed` is called if a tick raises: the session is broken then, and no request can be answered."""
        agent: Any = session.agent
        self.session, self._options, self._counters, self._failed = session, options, counters, failed
        self._spaces = _spaces(agent)
        self.observation, self.actions = RowFormat.of_space(self._spaces[0]), ActionRows(self._spaces[1])
        self.clients = Clients(self.actions.kept)
        self._ticks = session.serve(self.clients)
        if session.run is not None and not self._ticks.has_journal:
            raise ConfigError("a served session needs journal=True, so that clients can continue after a restart")
        self._reader = RequestReader(self.observation, self.actions, self._ticks)
        self._trees = tuple(space_as_tree(space) for space in self._spaces)
        self._waiting: list[Request] = []
        self.stop_reason: str | None = None
        """Why the session ended with the last tick; None if it continues."""
        self._is_closed = False
        rollout = getattr(getattr(agent, "config", None), "rollout_steps", None)
        self._tick_rows = min(options.tick_rows, rollout) if isinstance(rollout, int) else options.tick_rows
        self._find_streams()

    def _find_streams(self) -> None:
        """Find the streams of each client after a restart."""
        now = time.monotonic()
        for name in self._ticks.streams():
            found = client_and_stream(name)
            client = None if found is None else self.clients.by_name.get(found[0])
            if found is not None and client is not None:
                client.streams[found[1]] = self._ticks.slot(name)
        for client in self.clients.by_number.values():
            client.seen = now

    @property
    def streams(self) -> int:
        """The number of streams of all clients."""
        return sum([len(client.streams) for client in self.clients.by_number.values()])

    # Clients

    def admit(self, hello: Hello, connection: Connection, *, is_json: bool) -> tuple[Client, Welcome]:
        """Admit a new client, or one that reconnects; raises `Refusal`."""
        self.flush()
        self.check_spaces(hello)
        if hello.secret is not None:
            client, secret = self._found(hello), hello.secret
            if client.connection is not None:
                client.connection.refuse("replaced", "a newer connection with your secret took over")
        else:
            secret = new_secret()
            client = self._admitted(hello.client or self._unused_name(), secret)
        is_behind = hello.secret is not None and hello.last > client.last  # without a secret, it starts anew
        if is_behind:
            self._skip_to(client, hello.last)
        client.connection, client.seen = connection, time.monotonic()
        return client, self._welcome(client, secret, is_behind=is_behind, is_json=is_json)

    def check_spaces(self, hello: Hello) -> None:
        """Raise `Refusal` if the spaces of a client differ from those of the session."""
        pairs = zip(("observation_space", "action_space"), self._spaces, strict=True)
        for name, space in pairs:
            tree = getattr(hello, name)
            if tree is None:
                continue
            try:
                given = read_space_tree(tree, name=name, most_numbers=self._options.max_message)
            except DataError as error:
                raise Refusal("spaces", str(error)) from None
            if given != space:
                raise Refusal("spaces", f"your {name} is {given!s:.200}, the server's is {space!s:.200}")

    def _found(self, hello: Hello) -> Client:
        secret = hello.secret or ""
        if hello.client is not None:
            client = self.clients.by_name.get(hello.client)
            if client is not None and client.has(secret):
                return client
        else:
            for client in self.clients.by_number.values():
                if client.has(secret):
                    return client
        raise Refusal("gone", "no client has that secret: it was forgotten or replaced. Connect without a secret")

    def _unused_name(self) -> str:
        while (name := f"client-{new_secret()[:12]}") in self.clients.by_name:
            pass
        return name

    def _admitted(self, name: str, secret: str) -> Client:
        before = self.clients.by_name.get(name)
        if before is not None and before.connection is not None:
            raise Refusal("taken", f"a client {name!r} is connected: use another name, or its secret")
        if before is None and len(self.clients.by_number) >= self._options.max_clients:
            self._make_room()
        slots = [] if before is None else list(before.streams.values())
        self._make(Tick(close=np.array(slots, np.int64)), self.clients.admission_note(name, secret))
        return self.clients.by_name[name]

    def _make_room(self) -> None:
        """Forget the disconnected client without streams that was connected least recently.

        Raises `Refusal` if there is none.
        """
        away = [one for one in self.clients.by_number.values() if one.connection is None and not one.streams]
        if not away:
            raise Refusal("full", f"there are {self._options.max_clients} clients already (--max-clients)")
        self.forget(min(away, key=lambda client: client.seen))

    def forget(self, client: Client) -> None:
        """Close the streams of a client, and forget it."""
        self.flush()
        slots = np.array(list(client.streams.values()), np.int64)
        client.streams.clear()
        self._make(Tick(close=slots), self.clients.forgetting_note(client))

    def _skip_to(self, client: Client, last: int) -> None:
        slots = np.array(list(client.streams.values()), np.int64)
        self._make(Tick(abandon=slots), self.clients.skipping_note(client, last))
        self.session.mark_inexact(f"client {client.name}: answers to its last requests were lost; its episodes ended")

    def forget_idle(self) -> None:
        """Forget clients that have not been connected for too long."""
        due = time.monotonic() - self._options.idle
        for client in [*self.clients.by_number.values()]:
            if client.connection is None and client.seen < due:
                self.forget(client)

    def disconnected(self, client: Client, connection: Connection) -> None:
        """Note that a connection of a client was closed."""
        if client.connection is connection:
            client.connection, client.seen = None, time.monotonic()

    def _welcome(self, client: Client, secret: str | None, *, is_behind: bool, is_json: bool) -> Welcome:
        standing: list[StreamStanding] = []
        for stream, slot in client.streams.items():
            if self._ticks.is_open(slot):
                length, reward, action = self._ticks.standing(slot)
                sent = self.actions.sent(action, is_json=is_json)
                standing.append(StreamStanding(stream=stream, length=length, reward=reward, action=sent))
        return self.welcome(client.name, client.incarnation, secret, client.last, standing, is_behind=is_behind)

    def welcome(
        self,
        name: str,
        incarnation: int,
        secret: str | None,
        last: int,
        standing: list[StreamStanding],
        *,
        is_behind: bool = False,
    ) -> Welcome:
        """The answer to `hello`."""
        options, session = self._options, self.session
        return Welcome(
            version=VERSION,
            server=f"rekindle {__version__}",
            run="" if session.run is None else session.run.metadata.name,
            agent=type(session.agent).__name__,
            client=name,
            incarnation=incarnation,
            secret=secret,
            last=last,
            is_behind=is_behind,
            streams=standing,
            observation_space=self._trees[0],
            action_space=self._trees[1],
            observation=self.observation.description,
            action=self.actions.format.description,
            limits=Limits(message=options.max_message, streams=options.max_streams, rate=options.rate),
            stop=session.stop_reason,
        )

    # Requests

    def submit(self, client: Client, message: Any, *, is_json: bool) -> bool:
        """Accept a numbered request; returns whether it is a new one. Raises `Refusal`."""
        seq = message.seq
        if seq != client.last + 1 or client.waiting:
            self._repeated(client, seq)
            return False
        arrived = time.perf_counter()
        self.take(self._reader.read(client, message, arrived, is_json=is_json))
        return True

    def take(self, request: Request) -> None:
        """Queue a request for the next tick; raises `Refusal`."""
        client = request.client
        if (most := max(len(request.steps), len(request.begins))) > self._tick_rows:
            raise Refusal("stream", f"{most} streams in a request: use at most {self._tick_rows}")
        if request.begins:
            new = sum([stream not in client.streams for stream in request.begins])
            if new and self.streams + new > self._options.max_streams:
                raise Refusal("stream", f"there are {self._options.max_streams} streams already (--max-streams)")
        client.waiting = request.seq
        self._waiting.append(request)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._flush_soon)

    def _repeated(self, client: Client, seq: int) -> None:
        if seq == client.waiting or seq < client.last:
            self._counters.repeated += 1  # the answer comes with the tick, or was received
        elif seq == client.last and client.connection is not None:
            self._counters.repeated += 1
            client.connection.answer(client)
        else:
            raise Refusal("sequence", f"the request has the number {seq}, but the last one was {client.last}")

    def _flush_soon(self) -> None:
        with contextlib.suppress(Refusal):  # a tick failed, and the server was told so
            self.flush()

    def flush(self) -> None:
        """Process all queued requests."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) > 1:
            waiting.sort(key=_number)
        while waiting and not self._is_closed:
            rows = count = 0
            for request in waiting:
                if count and rows + request.rows > self._tick_rows:
                    break
                rows, count = rows + request.rows, count + 1
            self._process(waiting[:count])
            del waiting[:count]

    def _process(self, requests: list[Request]) -> None:
        tick = gathered(requests, self.observation)
        bad = bad_requests(requests, tick, self.observation)
        if bad:
            for place in reversed(bad):
                request = requests.pop(place)
                request.client.waiting = 0
                if request.client.connection is not None:
                    text = "an observation or reward is NaN, infinite, too large or outside of its space"
                    request.client.connection.refuse("value", text, seq=request.seq)
            if not requests:
                return
            tick = gathered(requests, self.observation)
        complete(tick, requests, self._ticks)
        try:
            self._make(tick, self.clients.requests_note([entry_of(request) for request in requests]))
        finally:
            for request in requests:
                request.client.waiting = 0
        self.stop_reason = self.session.stop_reason
        for request in requests:
            client = request.client
            if client.connection is not None:
                client.connection.answer(client)
        self._counters.processed(requests)

    def _make(self, tick: Tick, note: bytes) -> None:
        try:
            self._ticks.make(tick, note)
        except BaseException as error:
            self._is_closed = True
            self._failed(error)
            raise Refusal("internal", "the server failed; it may be started again") from error

    # Requests without a number

    def act(self, value: Any, *, is_json: bool) -> Array:
        """Greedy actions for rows of observations; raises `Refusal`."""
        try:
            rows = self.observation.count(value, is_json=is_json)
            arrays = self.observation.received(value, rows, is_json=is_json)
        except WireError as error:
            raise Refusal("value", str(error)) from None
        if not rows or self.observation.bad_rows(arrays) is not None:
            raise Refusal("value", "there are no rows, or a value is NaN, infinite or outside of its space")
        return self._ticks.act(arrays)

    def close(self) -> None:
        """Process the queued requests, and no later ones."""
        self.flush()
        self._is_closed = True


def _spaces(agent: Any) -> tuple[Any, Any]:
    spaces = getattr(agent, "observation_space", None), getattr(agent, "action_space", None)
    if None in spaces:
        raise ConfigError(f"to be served, {type(agent).__name__} needs observation_space and action_space")
    return spaces


def _number(request: Request) -> int:
    return request.client.number
