"""Rollouts for on-policy agents, and the advantages of their actions."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.agent import State, StreamSlots
from rekindle.checks import refuses_misfits
from rekindle.errors import InputError, StateError
from rekindle.experience import Array, EpisodeStatus, Observations, Transitions
from rekindle.replay.columns import ObservationColumns, fitted, space_column
from rekindle.replay.layout import same_rows
from rekindle.replay.links import NONE, RowNumbers
from rekindle.replay.rows import Rows
from rekindle.spaces import ArraySpec

__all__ = ["Advantages", "Rollout", "Steps"]

_NUMBER = ArraySpec(np.dtype(np.int64))
_REWARD = ArraySpec(np.dtype(np.float64))
_STATUS = ArraySpec(np.dtype(np.uint8))
_CONTINUING, _TERMINATED = int(EpisodeStatus.CONTINUING), int(EpisodeStatus.TERMINATED)


class Advantages(NamedTuple):
    """The advantage of each action over the policy, and its return: the target of the value function."""

    advantages: NDArray[np.float32]
    returns: NDArray[np.float32]


class Steps(msgspec.Struct, frozen=True, eq=False):
    """The transitions of a rollout in the order they were collected, with streams and episodes mixed."""

    observations: Observations
    actions: Array
    rewards: NDArray[np.float64]
    statuses: NDArray[np.uint8]
    versions: NDArray[np.int64]
    """The version of the policy that chose each action."""
    following: RowNumbers
    """The step that follows each step, or -1."""
    last_steps: RowNumbers
    """The steps without a following step: the episode or the rollout ended."""
    last_observations: Observations
    """The next observation of each of these."""

    def advantages(
        self,
        values: ArrayLike,
        last_values: ArrayLike,
        *,
        gamma: float,
        gae_lambda: float,
        rewards: NDArray[np.float64] | None = None,
    ) -> Advantages:
        """Generalised advantage estimates, from the values of `observations` and of `last_observations`.

        The value after a termination is 0. Later rewards only count within the same episode. `rewards` replaces the raw
        rewards, if given.
        """
        value: NDArray[np.float64] = np.asarray(values, np.float64)
        after = value.take(self.following, mode="clip")
        after[self.last_steps] = np.asarray(last_values, np.float64)
        after[self.statuses == _TERMINATED] = 0.0
        errors = (self.rewards if rewards is None else rewards) + gamma * after - value
        estimates: list[float] = errors.tolist()
        following: list[int] = self.following.tolist()
        decay = gamma * gae_lambda
        for step in range(len(estimates) - 1, -1, -1):
            if following[step] != NONE:
                estimates[step] += decay * estimates[following[step]]
        advantages: NDArray[np.float64] = np.array(estimates, np.float64)
        return Advantages(advantages.astype(np.float32), (advantages + value).astype(np.float32))


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `state`."""

    steps: dict[str, Any]
    last_steps: list[_Count]
    last_observations: dict[str, Any]
    heads: list[tuple[_Count, _Count]]


class Rollout:
    """Collects transitions of any number of streams until it is cleared; grows as needed.

    An observation is stored once: the next observation of a step is stored separately only until another step starts
    from it.
    """

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self._seen = ObservationColumns.of(observation_space)
        self._action = space_column(action_space, "action")
        self._rows = Rows(
            64,
            {
                **self._seen.columns,
                "action": self._action,
                "reward": _REWARD,
                "status": _STATUS,
                "version": _NUMBER,
                "previous": _NUMBER,
            },
        )
        self._last: dict[int, tuple[list[Array], int]] = {}
        """The next observations of steps without a following step: columns, and the row in them."""
        self._heads: dict[int, int] = {}
        """The last step of each stream while its episode continues."""
        self._newest = [np.zeros((0, *spec.shape), spec.dtype) for spec in self._seen.columns.values()]
        """By column, the next observation of the last step of each stream."""
        self._is_newest_known = np.zeros(0, np.bool_)
        """For which streams `_newest` holds it."""

    def __len__(self) -> int:
        """The number of collected transitions."""
        return len(self._rows)

    def append(self, transitions: Transitions, streams: StreamSlots, versions: NDArray[np.int64]) -> None:
        """Collect copies of transitions; those of one stream must be in order.

        A transition is linked to the previous one of its stream only if it starts from the same bits where that ended.
        """
        count = len(transitions)
        if streams.shape != (count,):
            raise InputError(f"there are {count} transitions, but the streams have the shape {streams.shape}")
        before = self._seen.fitted(transitions.observations, "observation", count)
        after = self._seen.fitted(transitions.next_observations, "next_observation", count)
        statuses = fitted(transitions.statuses, _STATUS, "status", count)
        columns = [
            *before,
            fitted(transitions.actions, self._action, "action", count),
            fitted(transitions.rewards, _REWARD, "reward", count),
            statuses,
            fitted(versions, _NUMBER, "version", count),
        ]
        slots: list[int] = streams.tolist()
        after = [part.copy() for part in after]
        goes_on = self._go_on(streams, slots, before)
        heads, last, end = self._heads, self._last, len(self._rows)
        previous: list[int] = []
        for index, (stream, status) in enumerate(zip(slots, statuses.tolist(), strict=True)):
            head = heads.pop(stream, NONE)
            if head != NONE and (self._leads_to(head, before, index) if goes_on is None else goes_on[index]):
                del last[head]
            else:
                head = NONE
            previous.append(head)
            last[end + index] = (after, index)
            if status == _CONTINUING:
                heads[stream] = end + index
        for newest, part in zip(self._newest, after, strict=True):
            newest[streams] = part
        self._is_newest_known[streams] = True
        self._grow(end + count)
        self._rows.append([*columns, np.array(previous, np.int64)], count)

    def cut(self, streams: StreamSlots) -> None:
        """End the episodes of these streams: nothing is linked to their last transitions."""
        for stream in streams.tolist():
            self._heads.pop(stream, None)

    def clear(self) -> None:
        """Remove all transitions; later ones are not linked to them."""
        self._rows.clear(0)
        self._last, self._heads = {}, {}

    def steps(self) -> Steps:
        """All collected transitions; the arrays are views, valid until the rollout changes."""
        rows = {name: values[: len(self)] for name, values in self._rows.slots.items()}
        following: RowNumbers = np.full(len(self), NONE, np.int64)
        previous: RowNumbers = rows["previous"]
        linked = np.flatnonzero(previous != NONE)
        following[previous[linked]] = linked
        return Steps(
            observations=self._seen.observations([rows[name] for name in self._seen.columns]),
            actions=rows["action"],
            rewards=rows["reward"],
            statuses=rows["status"],
            versions=rows["version"],
            following=following,
            last_steps=np.array(sorted(self._last), np.int64),
            last_observations=self._seen.observations(list(self._last_observations().values())),
        )

    def _go_on(self, streams: StreamSlots, slots: list[int], observations: list[Array]) -> list[bool] | None:
        """Whether each of these is, to the bit, where its stream stood; None if that is to be asked of each by itself.

        All together are several times as fast.
        """
        self._make_room(max(slots, default=0) + 1)
        if len(slots) == 1 or len(set(slots)) < len(slots) or not self._is_newest_known[streams].all():
            return None
        same = same_rows(observations, [newest[streams] for newest in self._newest])
        return [True] * len(slots) if same is True else same.tolist()

    def _make_room(self, streams: int) -> None:
        """Let `_newest` have a row for each of so many streams."""
        if streams > len(self._newest[0]):
            room = (max(streams, 2 * len(self._newest[0])),)
            old = self._newest
            self._newest = [np.zeros(room + part.shape[1:], part.dtype) for part in old]
            for part, before in zip(self._newest, old, strict=True):
                part[: len(before)] = before
            self._is_newest_known = np.append(
                self._is_newest_known, np.zeros(room[0] - len(self._is_newest_known), np.bool_)
            )

    def _leads_to(self, step: int, observations: list[Array], index: int) -> bool:
        """Whether the next observation of a step is one of these, to the bit."""
        columns, row = self._last[step]
        return _same([column[row] for column in columns], [part[index] for part in observations])

    def _grow(self, count: int) -> None:
        if count > self._rows.capacity:
            rows = Rows(max(count, 2 * self._rows.capacity), self._rows.columns)
            rows.restore(0, self._rows.read(0, self._rows.end))
            self._rows = rows

    def _last_observations(self) -> dict[str, Array]:
        """By column, the next observations of the steps without a following step, in the order of the steps."""
        ordered = [self._last[step] for step in sorted(self._last)]
        return {
            name: np.array([columns[index][row] for columns, row in ordered], spec.dtype).reshape(-1, *spec.shape)
            for index, (name, spec) in enumerate(self._seen.columns.items())
        }

    # State

    def state(self) -> State:
        """All collected transitions."""
        return {
            "steps": self._rows.read(0, len(self)),
            "last_steps": sorted(self._last),
            "last_observations": self._last_observations(),
            "heads": [list(head) for head in sorted(self._heads.items())],
        }

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Restore a saved state."""
        try:
            saved = msgspec.convert(state, _Saved)
        except msgspec.ValidationError as error:
            raise StateError(f"not the state of a rollout: {error}") from None
        count = np.size(saved.steps.get("reward", 0))
        rows = Rows(max(count, self._rows.capacity), self._rows.columns)
        rows.restore(0, saved.steps)
        last = Rows(max(len(saved.last_steps), 1), self._seen.columns)
        last.restore(0, saved.last_observations)
        previous: RowNumbers = rows.slots["previous"][:count]
        numbers = np.arange(count)
        followed = previous[previous != NONE]
        sound = (
            bool(((previous >= NONE) & (previous < numbers)).all())
            and saved.last_steps == sorted(set(numbers.tolist()) - set(followed.tolist()))
            and len(set(followed.tolist())) == len(followed)
            and len(last) == len(saved.last_steps)
            and {step for _, step in saved.heads} <= set(saved.last_steps)
        )
        if not sound:
            raise StateError("not the state of a rollout: its steps are not linked as a rollout links them")
        self._rows = rows
        self._last = {step: (list(last.slots.values()), row) for row, step in enumerate(saved.last_steps)}
        self._heads = dict(saved.heads)
        self._is_newest_known[:] = False


def _same(some: list[Array], others: list[Array]) -> bool:
    """Whether these are equal to the bit."""
    return all(one.tobytes() == other.tobytes() for one, other in zip(some, others, strict=True))
