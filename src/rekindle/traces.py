"""The trace of an open episode, with which it can be replayed: its seed, its actions, and a hash of the outcome."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from rekindle.agent import State
from rekindle.errors import InputError, Interrupted, StateError
from rekindle.experience import Array
from rekindle.spaces import ArraySpec

__all__ = ["EpisodeTrace", "ResettableEnv", "bytes_of_each", "frozen_options", "replay"]


_MOST_UNHASHED = 1 << 16
"""Bytes of observations that a trace collects before it hashes them."""


_MOST_ACTIONS = 1 << 17
"""The most steps of an episode in a checkpoint, so that its size is bounded."""


class EpisodeTrace:
    """The trace of an open episode, with which it can be replayed: its seed, its actions, and a hash of the outcome.

    Most episodes end before the hash is needed, so it is computed lazily.
    """

    def __init__(self, seed: int, options: dict[str, Any] | None) -> None:
        self.seed = seed
        self.options = options
        self.actions: list[Array] = []
        self._chain = b""
        self._unhashed: list[tuple[bytes, float]] = []
        self._room = _MOST_UNHASHED

    def start(self, observation: Sequence[Array]) -> None:
        """Add the first observation."""
        self._note(_bytes_of(observation), 0.0)

    def add(self, action: Array, reward: float, next_observation: Sequence[Array] | bytes) -> None:
        """Add a transition; the next observation may be given as the bytes of its arrays."""
        # A number cannot change; an array can be a view of a buffer that does.
        self.actions.append(action if isinstance(action, np.generic) else np.array(action))
        data = next_observation if isinstance(next_observation, bytes) else _bytes_of(next_observation)
        self._note(data, reward)

    @property
    def is_full(self) -> bool:
        """Whether the episode is too long to replay."""
        return len(self.actions) >= _MOST_ACTIONS

    def _note(self, data: bytes, reward: float) -> None:
        self._unhashed.append((data, reward))
        self._room -= len(data)
        if self._room < 0:
            self._hash()

    @property
    def chain(self) -> bytes:
        """The hash of the outcome."""
        self._hash()
        return self._chain

    def _hash(self) -> None:
        for data, reward in self._unhashed:
            digest = hashlib.blake2b(self._chain, digest_size=16)
            digest.update(data)
            digest.update(struct.pack("<d", reward))
            self._chain = digest.digest()
        self._unhashed.clear()
        self._room = _MOST_UNHASHED

    def state(self) -> State:
        """The state for a checkpoint."""
        return {
            "seed": self.seed,
            "options": self.options,
            "actions": np.stack(self.actions) if self.actions else None,
            "chain": self.chain.hex(),
        }

    @classmethod
    def of_state(cls, state: State, layout: ArraySpec | None) -> EpisodeTrace:
        """Restore a saved state; `layout` is that of an action. Raises `StateError`."""
        seed, options, actions, chain = (state[name] for name in ("seed", "options", "actions", "chain"))
        if type(seed) is not int or seed < 0 or not isinstance(options, dict | None) or type(chain) is not str:
            raise StateError(f"traces: seed {seed!r:.40}, options {options!r:.40}, chain {chain!r:.40}")
        trace = cls(seed, cast("dict[str, Any] | None", options))
        if actions is not None:
            if layout is None or type(actions) is not np.ndarray:
                raise StateError(f"traces: {actions!r:.40} are not actions")
            trace.actions = list(layout.conform(actions, "traces: the actions", rows=len(actions)))
        trace._chain = bytes.fromhex(chain)
        return trace


def frozen_options(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """A copy of the options of a reset, for the environment and for a replay; raises `InputError`."""
    return None if options is None else _frozen(options, "options")


def _frozen(value: Any, name: str) -> Any:  # noqa: PLR0911 - one for each kind
    """A copy that the host cannot change; tuples become lists, and numpy numbers become Python numbers."""
    match value:
        case None | bool() | str():
            return value if type(value) is not np.str_ else str(value)
        case np.generic():
            return _frozen(value.item(), name)
        case int() if -(2**63) <= value < 2**64:
            return int(value)
        case float():
            return float(value)
        case np.ndarray() if cast("Array", value).dtype.kind in "biuf":
            return cast("Array", value).copy()
        case list() | tuple():
            return [_frozen(item, f"{name}[{index}]") for index, item in enumerate(cast("Sequence[Any]", value))]
        case dict():
            items = cast("dict[Any, Any]", value).items()
            if wrong := [key for key, _ in items if not isinstance(key, str)]:
                raise InputError(f"{name}: the key {wrong[0]!r:.80} is not a str")
            return {str(key): _frozen(item, f"{name}[{key!r}]") for key, item in items}
        case _:
            raise InputError(
                f"{name} is {value!r:.80}, which a checkpoint cannot hold: use numbers, str, bool, None, arrays, "
                "and lists or dicts of those"
            )


def bytes_of_each(arrays: Sequence[Array], rows: int) -> list[bytes]:
    """The bytes of each observation of a batch."""
    parts: list[list[bytes]] = []
    if not arrays:
        return [b""] * rows
    for array in arrays:
        data, width = array.tobytes(), array.nbytes // rows
        parts.append([data[row * width : (row + 1) * width] for row in range(rows)])
    return parts[0] if len(parts) == 1 else [b"".join(each) for each in zip(*parts, strict=True)]


def _bytes_of(observation: Sequence[Array]) -> bytes:
    return b"".join([array.tobytes() for array in observation]) if len(observation) != 1 else observation[0].tobytes()


class ResettableEnv(Protocol):
    """The methods of an environment that `Stream.reset` calls: Gymnasium's `reset` and `step`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        ...

    def step(self, action: Any, /) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        ...


def replay(
    env: ResettableEnv,
    known: EpisodeTrace,
    *,
    arrays_of: Callable[[Any], Sequence[Array]],
    to_host: Callable[[Array], Any],
    is_stopped: Callable[[], bool],
) -> tuple[Any, dict[str, Any]] | None:
    """Repeat an episode's actions; returns the last observation and info, or None if the outcome differs.

    Raises `Interrupted` if a stop is requested in the meantime.
    """
    trace = EpisodeTrace(known.seed, known.options)
    observation, info = env.reset(seed=trace.seed, options=trace.options)
    trace.start(arrays_of(observation))
    for number, action in enumerate(known.actions):
        if is_stopped():
            raise Interrupted(f"stopped while an episode was being replayed, at step {number} of {len(known.actions)}")
        observation, reward, terminated, truncated, info = env.step(to_host(action))
        trace.add(action, float(reward), arrays_of(observation))
        if terminated or truncated:
            return None
    return (observation, info) if trace.chain == known.chain else None
