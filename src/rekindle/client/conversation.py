"""The client side of the protocol, without a socket: request numbers, resends and arrays.

Both clients, blocking and asyncio, use a `Conversation` to encode requests and to interpret answers.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from rekindle.checks import checked_extras
from rekindle.errors import ConfigError, InputError, RekindleError, ServerError, StreamsLost
from rekindle.nesting import Nesting
from rekindle.spaces import REWARDS, STATUSES
from rekindle.wire.messages import (
    VERSION,
    Abandon,
    Act,
    Actions,
    Batch,
    Begin,
    Close,
    ErrorMessage,
    Hello,
    Starts,
    StatsReply,
    StatsRequest,
    Step,
    Steps,
    StreamKey,
    Welcome,
    decode_reply,
    encode,
)
from rekindle.wire.rows import RowFormat, WireError
from rekindle.wire.space_trees import space_as_tree

__all__ = ["Conversation", "OpenEpisode", "Retry", "pauses", "reason_of"]

_RETRIED = {"leaving", "full", "internal", "rate", "taken"}
"""Errors after which another attempt may succeed."""
_REQUEST_ERRORS = {"stream", "value", "mode"}


class Retry(RekindleError):
    """The connection failed; a new connection may succeed."""


class OpenEpisode(NamedTuple):
    """An episode that was open when a client connected."""

    length: int
    """The number of its steps so far."""
    total_reward: float
    action: Any
    """The last action, whose outcome was not reported yet."""


def pauses() -> Iterator[float]:
    """Seconds to wait before each attempt to reconnect: at most 1, so that clients are back soon."""
    longest = 0.05
    while True:
        yield longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients out; not a secret
        longest = min(2 * longest, 1.0)


def reason_of(error: Exception) -> str:
    """Why an attempt failed; asyncio's timeouts have no text."""
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)


class Conversation:
    """The state of a client that is kept across connections."""

    def __init__(
        self,
        *,
        client: str | None,
        token: str | None,
        mode: str,
        observation_space: Any,
        action_space: Any,
        secret_file: str | Path | None,
    ) -> None:
        if mode not in ("train", "play"):
            raise ConfigError(f"mode is {mode!r}: use train or play")
        self._client, self._token, self._mode = client, token, mode
        self._spaces = [_space(observation_space), _space(action_space)]
        self._secret: str | None = None
        self._secret_file = None if secret_file is None else Path(secret_file)
        self._seq: int = 0
        """The number of the last request."""
        self._answered: int = 0
        self._ref = 0
        self.tick = 0
        """The tick that processed the last request."""
        self.welcome: Welcome | None = None
        self.stop: str | None = None
        """Why the session ended; None while it continues."""
        self._observation: RowFormat | None = None
        self._action: RowFormat | None = None
        self._nestings: list[Nesting | None] = [None, None]
        self._read_secret()

    def _read_secret(self) -> None:
        if self._secret_file is None or not self._secret_file.exists():
            return
        try:
            saved = json.loads(self._secret_file.read_text(encoding="utf-8"))
            name, secret = str(saved["client"]), str(saved["secret"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self._secret_file} does not contain the secret of a client: {error}") from None
        if self._client not in (None, name):
            raise ConfigError(f"{self._secret_file} has the secret of client {name}, not of {self._client}")
        self._client, self._secret = name, secret

    def _write_secret(self) -> None:
        if self._secret_file is None:
            return
        temporary = self._secret_file.with_name(f".{self._secret_file.name}.tmp")
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump({"client": self._client, "secret": self._secret}, file)
            os.replace(temporary, self._secret_file)
        except OSError as error:  # not a fault of the connection: another attempt would not help
            raise ConfigError(f"secret_file {self._secret_file} cannot be written: {error.strerror or error}") from None

    # Connections

    def hello(self) -> bytes:
        """The first message of a connection."""
        message = Hello(
            versions=(VERSION, VERSION),
            client=self._client,
            secret=self._secret,
            last=self._answered,
            token=self._token,
            mode=self._mode,
            observation_space=self._spaces[0],
            action_space=self._spaces[1],
        )
        return encode(message, is_json=False)

    def welcomed(self, data: bytes, *, is_waiting: bool) -> None:
        """Process the answer to `hello`; raises `Retry`, `StreamsLost` or `ServerError`.

        With `is_waiting`, there is an unanswered request that will be sent again.
        """
        message = _read(data)
        if isinstance(message, ErrorMessage):
            raise self._error(message)
        if not isinstance(message, Welcome):
            raise ServerError(f"the server answered hello with {type(message).__name__}")
        self.welcome, self.stop = message, message.stop
        self._client = message.client or self._client
        if message.secret not in (None, self._secret):  # None in mode play: the secret for training stays
            self._secret = message.secret
            self._write_secret()
        self._observation, self._action = RowFormat.read(message.observation), RowFormat.read(message.action)
        self._nestings = [_nesting(tree) for tree in (message.observation_space, message.action_space)]
        if message.is_behind or not is_waiting:
            self._seq = self._answered = message.last
        if message.is_behind:
            raise StreamsLost("the server lost its newest answers in a power cut, and has closed the open episodes")

    @property
    def open_episodes(self) -> dict[StreamKey, OpenEpisode]:
        """The episodes that were open when the client connected, by stream."""
        if self.welcome is None:
            return {}
        return {
            one.stream: OpenEpisode(one.length, one.reward, self._actions(one.action, 1)[0])
            for one in self.welcome.streams
        }

    # Requests

    def batch(
        self,
        *,
        close: Sequence[StreamKey],
        abandon: Sequence[StreamKey],
        step: tuple[Any, ...] | None,
        begin: tuple[Any, Sequence[StreamKey]] | None,
    ) -> bytes:
        """Encode a request with the next number, from the arguments of `step_many` and `begin_many`."""
        closed, abandoned = _streams(close), _streams(abandon)
        steps, starts = None if step is None else self._steps(*step), None if begin is None else self._starts(*begin)
        seq, kinds = self._seq + 1, (bool(closed), bool(abandoned), steps is not None, starts is not None)
        message: Any
        if kinds == (False, False, True, False) and steps is not None:
            message = Step(seq=seq, **msgspec.structs.asdict(steps))
        elif kinds == (False, False, False, True) and starts is not None:
            message = Begin(seq=seq, **msgspec.structs.asdict(starts))
        elif kinds == (True, False, False, False):
            message = Close(seq=seq, streams=closed)
        elif kinds == (False, True, False, False):
            message = Abandon(seq=seq, streams=abandoned)
        else:
            message = Batch(seq=seq, close=closed, abandon=abandoned, step=steps, begin=starts)
        data = encode(message, is_json=False)
        if self.welcome is not None and len(data) > self.welcome.limits.message:
            raise InputError(
                f"the message has {len(data)} bytes; the server accepts at most {self.welcome.limits.message}"
            )
        self._seq = seq
        return data

    def act(self, observations: Any, rows: int) -> bytes:
        """Encode a request for greedy actions."""
        self._ref += 1
        return encode(Act(ref=self._ref, observations=self._observations(observations, rows)), is_json=False)

    def stats(self) -> bytes:
        """Encode a request for statistics of the training."""
        self._ref += 1
        return encode(StatsRequest(ref=self._ref), is_json=False)

    def _steps(
        self,
        observations: Any,
        rewards: Any,
        statuses: Any,
        streams: Sequence[StreamKey],
        actions: Any = None,
        extras: Mapping[int, Mapping[str, float]] | None = None,
    ) -> Steps[Any]:
        names = _streams(streams)
        rows = len(names)
        return Steps(
            observations=self._observations(observations, rows),
            rewards=REWARDS.conform(rewards, "rewards", rows=rows).astype("<f8", copy=False).tobytes(),
            statuses=_statuses(statuses, rows),
            streams=names,
            actions=None if actions is None else self._rows(1, self._action, actions, rows, "actions"),
            extras=None if not extras else {str(row): checked_extras(numbers) for row, numbers in extras.items()},
        )

    def _starts(self, observations: Any, streams: Sequence[StreamKey]) -> Starts[Any]:
        names = _streams(streams)
        return Starts(observations=self._observations(observations, len(names)), streams=names)

    def _observations(self, observations: Any, rows: int) -> Any:
        return self._rows(0, self._observation, observations, rows, "observations")

    def one_row(self, value: Any, *, is_action: bool = False) -> Any:
        """A single observation or action as a batch of one; raises `InputError`."""
        nesting = self._nestings[1 if is_action else 0]
        if nesting is None:
            return np.asarray(value)[None]
        what = "action" if is_action else "observation"
        return nesting.build([np.asarray(part)[None] for part in nesting.leaves(value, what)])

    def _rows(self, place: int, form: RowFormat | None, value: Any, rows: int, what: str) -> Any:
        if form is None:
            raise ServerError("the client is not connected")
        nesting = self._nestings[place]
        parts = [value] if nesting is None else nesting.leaves(value, what)
        return form.sent(form.conformed(parts, what, rows=rows), is_json=False)

    # Answers

    def answered(self, data: bytes) -> Actions | StatsReply | None:
        """The answer to the unanswered request; None if the message is not its answer.

        Raises `Retry`, `InputError`, `StreamsLost` or `ServerError`.
        """
        message = _read(data)
        if isinstance(message, Actions):
            if message.seq is None:
                return message if message.ref == self._ref else None
            if message.seq != self._seq:
                return None
            self._answered, self.tick = message.seq, message.tick or 0
            self.stop = message.stop
            return message
        if isinstance(message, ErrorMessage):
            if message.code in _REQUEST_ERRORS and message.seq not in (None, self._seq):
                return None
            raise self._error(message)
        return message if isinstance(message, StatsReply) and message.ref == self._ref else None

    def refused(self) -> None:
        """Use the number of the last request again, because the server refused it."""
        self._seq = self._answered

    def _error(self, message: ErrorMessage) -> RekindleError:
        if message.stop is not None:
            self.stop = message.stop
            return self.ended()
        text = f"{message.message} ({message.code})"
        if message.code in _REQUEST_ERRORS:
            return InputError(text)
        if message.code == "gone":
            self.forget()
            return StreamsLost(text)
        return Retry(text) if message.code in _RETRIED else ServerError(text)

    def ended(self) -> ServerError:
        """The error of a request that was not processed because the training is over."""
        return ServerError(f"the training is over: {self.stop}")

    def forget(self) -> None:
        """Become a new client with the next connection."""
        self._secret, self.welcome = None, None
        self._seq = self._answered = 0

    def actions(self, message: Actions, rows: int) -> list[Any]:
        """The action of each row, in the structure of the space."""
        return [] if message.actions is None else self._actions(message.actions, rows)

    def _actions(self, value: Any, rows: int) -> list[Any]:
        form, nesting = cast("RowFormat", self._action), self._nestings[1]
        arrays = form.received(value, rows)
        if nesting is None:
            array = arrays[0]
            return array.tolist() if array.ndim == 1 else list(array)
        return [nesting.build([array[row] for array in arrays]) for row in range(rows)]


def _space(space: Any) -> dict[str, Any] | None:
    if space is None or isinstance(space, dict):
        return cast("dict[str, Any] | None", space)
    return space_as_tree(space)


def _read(data: bytes) -> Any:
    try:
        return decode_reply(data)
    except WireError as error:
        raise ServerError(str(error)) from None


def _statuses(values: Any, rows: int) -> bytes:
    if type(values) is list and len(cast("list[Any]", values)) == rows:  # faster than with numpy
        try:
            return bytes(cast("list[int]", values))
        except (ValueError, TypeError):
            pass  # the error below says what is wrong
    return STATUSES.conform(values, "statuses", rows=rows).tobytes()


class _Named(msgspec.Struct):
    streams: list[StreamKey]


def _streams(streams: Sequence[StreamKey]) -> list[StreamKey]:
    """The names of streams for a message, which has no integers of numpy; raises `InputError`."""
    if not len(streams):
        return []
    plain: list[Any] = [stream.item() if isinstance(stream, np.generic) else stream for stream in streams]
    try:
        return msgspec.convert({"streams": plain}, _Named).streams
    except msgspec.ValidationError as error:
        text = "use integers from 0, or texts of 1 to 64 characters"
        raise InputError(f"streams are {plain!r:.80}: {text} ({error})") from None


def _nesting(tree: Mapping[str, Any]) -> Nesting | None:
    shape = _tree(tree)
    return None if shape is None else Nesting(shape)


def _tree(space: Mapping[str, Any]) -> Any:
    match space.get("type"):
        case "Dict":
            return {key: _tree(part) for key, part in space["subspaces"].items()}
        case "Tuple":
            return tuple(_tree(part) for part in space["subspaces"])
        case _:
            return None
