"""What it takes to replay an open episode: its seed, its actions, and a hash of the outcome."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np

from rekindle.agent import State
from rekindle.errors import StateError
from rekindle.experience import Array
from rekindle.spaces import ArrayLayout

__all__ = ["EpisodeTrace", "ResettableEnv", "bytes_of_each"]


_MOST_UNHASHED = 1 << 16
"""Bytes of observations that a trace keeps before it hashes them."""


class EpisodeTrace:
    """What it takes to live an open episode again: its seed, its actions, and a hash of what came of them.

    Most episodes end before anybody asks for the hash, so that it is computed late.
    """

    def __init__(self, seed: int, options: dict[str, Any] | None) -> None:
        self.seed = seed
        self.options = options
        self.actions: list[Array] = []
        self._chain = b""
        self._unhashed: list[tuple[bytes, float]] = []
        self._room = _MOST_UNHASHED

    def start(self, observation: Sequence[Array]) -> None:
        """Note the first observation."""
        self._note(_bytes_of(observation), 0.0)

    def add(self, action: Array, reward: float, next_observation: Sequence[Array] | bytes) -> None:
        """Note a transition; that it led to may be given as the bytes of its arrays."""
        # A number cannot change; an array can be a view of what will.
        self.actions.append(action if isinstance(action, np.generic) else np.array(action))
        data = next_observation if isinstance(next_observation, bytes) else _bytes_of(next_observation)
        self._note(data, reward)

    def _note(self, data: bytes, reward: float) -> None:
        self._unhashed.append((data, reward))
        self._room -= len(data)
        if self._room < 0:
            self._hash()

    @property
    def chain(self) -> bytes:
        """The hash."""
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
        """As saved."""
        return {
            "seed": self.seed,
            "options": self.options,
            "actions": np.stack(self.actions) if self.actions else None,
            "chain": self.chain.hex(),
        }

    @classmethod
    def of_state(cls, state: State, layout: ArrayLayout | None) -> EpisodeTrace:
        """As loaded; `layout` is that of an action. Raises `StateError`."""
        seed, options, actions, chain = (state[name] for name in ("seed", "options", "actions", "chain"))
        if type(seed) is not int or seed < 0 or not isinstance(options, dict | None) or type(chain) is not str:
            raise StateError(f"traces: seed {seed!r:.40}, options {options!r:.40}, chain {chain!r:.40}")
        trace = cls(seed, cast("dict[str, Any] | None", options))
        if actions is not None:
            if layout is None or type(actions) is not np.ndarray:
                raise StateError(f"traces: {actions!r:.40} are no actions")
            trace.actions = list(layout.conform(actions, "traces: the actions", rows=len(actions)))
        trace._chain = bytes.fromhex(chain)
        return trace


def bytes_of_each(arrays: Sequence[Array], rows: int) -> list[bytes]:
    """The bytes of each observation of a batch."""
    parts: list[list[bytes]] = []
    for array in arrays:
        data, width = array.tobytes(), array.nbytes // rows
        parts.append([data[row * width : (row + 1) * width] for row in range(rows)])
    return parts[0] if len(parts) == 1 else [b"".join(each) for each in zip(*parts, strict=True)]


def _bytes_of(observation: Sequence[Array]) -> bytes:
    return b"".join([array.tobytes() for array in observation]) if len(observation) > 1 else observation[0].tobytes()


class ResettableEnv(Protocol):
    """What `Stream.reset` needs of an environment: Gymnasium's two methods."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        ...

    def step(self, action: Any, /) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        ...
