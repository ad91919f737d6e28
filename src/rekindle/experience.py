"""Transitions, single and in batches; the status of an episode; conversion between host types and arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, Protocol, cast, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.errors import ConfigError, InputError

__all__ = [
    "ActMode",
    "ActionMapper",
    "Array",
    "AttributeEncoder",
    "ClipMapper",
    "DictEncoder",
    "EnumMapper",
    "EpisodeStatus",
    "Experience",
    "ObservationEncoder",
    "Observations",
    "Transitions",
]


Array = NDArray[Any]
"""Any numpy array."""

Observations = Array | Mapping[str, Array]
"""One array, or named arrays for a Dict space; a batch has a leading axis."""


class EpisodeStatus(IntEnum):
    """The status of an episode after a transition; stored as is, never reduced to one `done` flag."""

    CONTINUING = 0
    TERMINATED = 1
    """The task ended: there is no future value."""
    TRUNCATED = 2
    """Cut short, for example by a time limit: bootstrap from the value of the last observation."""

    @classmethod
    def of(cls, terminated: bool, truncated: bool) -> EpisodeStatus:
        """The status for Gymnasium's two flags; both at once is TERMINATED."""
        return _TERMINATED if terminated else _TRUNCATED if truncated else _CONTINUING

    @classmethod
    def of_many(cls, terminated: ArrayLike, truncated: ArrayLike) -> NDArray[np.uint8]:
        """The statuses for arrays of Gymnasium's two flags, as `Transitions` take them; both at once is TERMINATED.

        >>> EpisodeStatus.of_many([False, True, True, False], [False, False, True, True])
        array([0, 1, 1, 2], dtype=uint8)
        """
        ended, cut_short = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        if ended.shape != cut_short.shape:
            raise InputError(f"terminated has the shape {ended.shape}, truncated {cut_short.shape}")
        return np.where(ended, _TERMINATED, np.where(cut_short, _TRUNCATED, _CONTINUING)).astype(np.uint8)

    @property
    def is_done(self) -> bool:
        """Whether the episode is over, for either reason."""
        return self != 0

    @property
    def label(self) -> str:
        """The name in logs: `continuing`, `terminated`, `truncated`."""
        return _LABELS[self]


_CONTINUING, _TERMINATED, _TRUNCATED = EpisodeStatus
_LABELS = tuple(status.name.lower() for status in EpisodeStatus)


class ActMode(Enum):
    """Whether an action may explore."""

    EXPLORE = "explore"
    EXPLOIT = "exploit"
    """Greedy and deterministic: draws no random numbers."""


class Experience(msgspec.Struct, frozen=True, eq=False):
    """One transition of one stream.

    `action` is what `act` returned, and `next_observation` is the true next observation, never the one after a
    reset.
    """

    observation: Any
    action: Any
    reward: float
    next_observation: Any
    status: EpisodeStatus = EpisodeStatus.CONTINUING

    @property
    def bootstrap_mask(self) -> float:
        """1.0 if the target bootstraps from `next_observation`, 0.0 after a termination."""
        return 0.0 if self.status == EpisodeStatus.TERMINATED else 1.0


class Transitions(msgspec.Struct, frozen=True, eq=False):
    """Many transitions as arrays with a leading axis; observations may be named arrays (a Dict space)."""

    observations: Observations
    actions: Array
    rewards: NDArray[np.float64]
    next_observations: Observations
    statuses: NDArray[np.uint8]

    @classmethod
    def of(cls, experiences: Iterable[Experience]) -> Transitions:
        """Stack experiences; all must have the same shapes."""
        items = list(experiences)
        if not items:
            raise InputError("Transitions.of needs at least one experience, got none")
        return cls(
            observations=stack([item.observation for item in items]),
            actions=np.stack([np.asarray(item.action) for item in items]),
            rewards=np.array([item.reward for item in items], np.float64),
            next_observations=stack([item.next_observation for item in items]),
            statuses=np.array([item.status for item in items], np.uint8),
        )

    def experiences(self) -> list[Experience]:
        """The same transitions as a list; arrays are views."""
        return [
            Experience(
                observation=row(self.observations, index),
                action=self.actions[index],
                reward=float(self.rewards[index]),
                next_observation=row(self.next_observations, index),
                status=EpisodeStatus(int(self.statuses[index])),
            )
            for index in range(len(self))
        ]

    @property
    def bootstrap_mask(self) -> NDArray[np.float32]:
        """1.0 if the target bootstraps from the next observation, 0.0 after a termination."""
        return (self.statuses != EpisodeStatus.TERMINATED).astype(np.float32)

    def part(self, rows: slice) -> Transitions:
        """A slice of the transitions; arrays are views."""
        return Transitions(
            row(self.observations, rows),
            self.actions[rows],
            self.rewards[rows],
            row(self.next_observations, rows),
            self.statuses[rows],
        )

    def copy(self) -> Transitions:
        """A copy with its own arrays."""
        return Transitions(
            _copied(self.observations),
            self.actions.copy(),
            self.rewards.copy(),
            _copied(self.next_observations),
            self.statuses.copy(),
        )

    def __len__(self) -> int:
        """The number of transitions."""
        return len(self.rewards)


def stack(observations: Sequence[Any]) -> Observations:
    """Stack observations on a new leading axis; named arrays are stacked by name."""
    first = observations[0]
    if isinstance(first, Mapping):
        names = cast("Mapping[str, Any]", first)
        return {name: np.stack([np.asarray(item[name]) for item in observations]) for name in names}
    return np.stack([np.asarray(item) for item in observations])


def _copied(observations: Observations) -> Observations:
    if isinstance(observations, np.ndarray):
        return observations.copy()
    return {name: array.copy() for name, array in observations.items()}


def row(observations: Observations, index: int | slice) -> Any:
    """One observation of a batch, or a slice of it."""
    if isinstance(observations, Mapping):
        return {name: array[index] for name, array in observations.items()}
    return observations[index]


@runtime_checkable
class ObservationEncoder(Protocol):
    """Converts an observation of the host (an object, a dict, an enum) to the array that the agent sees."""

    def encode(self, observation: Any) -> Any:
        """The observation as an array, a number, or named arrays."""
        ...


@runtime_checkable
class ActionMapper(Protocol):
    """Converts an agent's action to one that the host executes, and back."""

    def to_host(self, action: Any) -> Any:
        """The host's action for an action of the agent."""
        ...

    def to_agent(self, action: Any) -> ArrayLike:
        """The agent's action for an action that the host executed."""
        ...


class AttributeEncoder:
    """Concatenates named attributes of a host object to one float32 vector.

    >>> from types import SimpleNamespace
    >>> AttributeEncoder("x", "velocity").encode(SimpleNamespace(x=1.0, velocity=[2.0, 3.0]))
    array([1., 2., 3.], dtype=float32)
    """

    def __init__(self, *names: str) -> None:
        if not names:
            raise ConfigError("AttributeEncoder needs at least one attribute name")
        self._names = names

    def encode(self, observation: Any) -> Array:
        """The attributes, flattened and concatenated in the given order."""
        return _concatenate(observation, self._names, getattr)


class DictEncoder:
    """Concatenates the values of a dict observation to one float32 vector.

    >>> DictEncoder("speed", "wheel").encode({"wheel": [1, 2], "speed": 3})
    array([3., 1., 2.], dtype=float32)
    """

    def __init__(self, *keys: str) -> None:
        if not keys:
            raise ConfigError("DictEncoder needs at least one key")
        self._keys = keys

    def encode(self, observation: Mapping[str, Any]) -> Array:
        """The values, flattened and concatenated in the order of the given keys."""
        return _concatenate(observation, self._keys, lambda source, key: source[key])


def _concatenate(source: Any, names: tuple[str, ...], get: Callable[[Any, str], Any]) -> Array:
    parts: list[Array] = []
    for name in names:
        try:
            value = get(source, name)
        except (AttributeError, KeyError):
            raise InputError(f"the observation {source!r:.120} has no {name!r}") from None
        parts.append(np.asarray(value, np.float32).ravel())
    return np.concatenate(parts)


class EnumMapper:
    """Maps a discrete action to a member of the host's enum, in order of definition.

    >>> from enum import Enum
    >>> Move = Enum("Move", "LEFT RIGHT")
    >>> mapper = EnumMapper(Move)
    >>> mapper.to_host(1), int(mapper.to_agent(Move.LEFT))
    (<Move.RIGHT: 2>, 0)
    """

    def __init__(self, members: type[Enum]) -> None:
        self._members = list(members)
        self._index = {member: np.int64(index) for index, member in enumerate(self._members)}

    def to_host(self, action: Any) -> Enum:
        """The member with this index."""
        index = int(action)
        if not 0 <= index < len(self._members):
            raise InputError(f"action {index} is not an index of {self._members}")
        return self._members[index]

    def to_agent(self, action: Any) -> np.int64:
        """The index of this member."""
        if action not in self._index:
            raise InputError(f"{action!r} is not one of {self._members}")
        return self._index[action]


class ClipMapper:
    """Clips an agent's continuous action to the bounds that the host can execute.

    >>> ClipMapper(-1.0, 1.0).to_host(np.float32([0.5, 3.0]))
    array([0.5, 1. ], dtype=float32)
    """

    def __init__(self, low: ArrayLike, high: ArrayLike) -> None:
        if np.any(np.asarray(low) > np.asarray(high)):
            raise ConfigError(f"ClipMapper: low {low!r} is above high {high!r}")
        self._low, self._high = low, high

    def to_host(self, action: Any) -> Array:
        """The action, clipped to the bounds."""
        return np.clip(action, self._low, self._high)

    def to_agent(self, action: Any) -> Array:
        """The executed action, unchanged."""
        return np.asarray(action)
