"""Rollouts for on-policy agents, and the advantages of their actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.agent import State, StreamSlots
from rekindle.checks import are_distinct, is_rising, refuses_misfits
from rekindle.errors import InputError, StateError
from rekindle.experience import Array, EpisodeStatus, Observations, Transitions
from rekindle.replay.columns import ObservationColumns, fitted, space_column
from rekindle.replay.layout import same_rows
from rekindle.replay.links import NONE, RowNumbers
from rekindle.replay.rows import Rows
from rekindle.spaces import ArraySpec, rows_at

__all__ = ["Advantages", "Rollout", "Steps"]

_NUMBER = ArraySpec(np.dtype(np.int64))
_REWARD = ArraySpec(np.dtype(np.float64))
_STATUS = ArraySpec(np.dtype(np.uint8))
_ROWS_IN_A_BLOCK = 16
"""With fewer steps in a block, it is faster to process steps one by one."""
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
        advantages = self._discounted(errors, gamma * gae_lambda)
        return Advantages(advantages.astype(np.float32), (advantages + value).astype(np.float32))

    def _discounted(self, errors: NDArray[np.float64], decay: float) -> NDArray[np.float64]:
        """The discounted sum of the errors from each step to the end of its episode."""
        blocks = self._blocks(len(errors) // _ROWS_IN_A_BLOCK)
        if blocks is None:
            sums: list[float] = errors.tolist()
            following: list[int] = self.following.tolist()
            for step in range(len(sums) - 1, -1, -1):
                if following[step] != NONE:
                    sums[step] += decay * sums[following[step]]
            return np.array(sums, np.float64)
        results = np.append(errors, 0.0)  # a step without a following one adds the 0 at index NONE, the last
        for block in blocks:
            results[block] += decay * results.take(self.following[block], mode="wrap")
        return results[:-1]

    def _blocks(self, most: int) -> list[slice] | None:
        """The steps cut into blocks, the last block first; None if there would be more than `most`.

        No step follows another step of its block. With several environments, a block has one step of each.
        """
        previous: RowNumbers = np.full(len(self.following), NONE)
        linked = (self.following != NONE).nonzero()[0]
        previous[self.following[linked]] = linked
        newest_previous: list[int] = np.maximum.accumulate(previous).tolist()
        blocks: list[slice] = []
        end = len(newest_previous)
        while end and len(blocks) < most:
            start = newest_previous[end - 1] + 1
            blocks.append(slice(start, end))
            end = start
        return None if end else blocks


class _LastSteps(NamedTuple):
    """Steps without a following step, and their next observations by column."""

    steps: RowNumbers
    observations: list[Array]

    def some(self, places: NDArray[np.int64]) -> _LastSteps:
        """The steps at these indices."""
        return _LastSteps(self.steps[places], [part.take(places, axis=0) for part in self.observations])

    @staticmethod
    def joined(parts: Sequence[_LastSteps]) -> _LastSteps:
        """All steps of several parts, in order."""
        every = _LastSteps(
            np.concatenate([part.steps for part in parts]),
            [np.concatenate(columns) for columns in zip(*(part.observations for part in parts), strict=True)],
        )
        return every.some(np.argsort(every.steps))


class _Tails:
    """The last step of each stream in a rollout, as arrays with an entry for each stream."""

    def __init__(self, seen: ObservationColumns) -> None:
        self._step: RowNumbers = np.full(0, NONE, np.int64)
        """`NONE` for a stream without a step."""
        self._is_open = np.zeros(0, np.bool_)
        """Whether its episode continues, so that the next step of the stream may follow."""
        self._after = [np.zeros((0, *spec.shape), spec.dtype) for spec in seen.columns.values()]
        """The observation after the step, by column."""
        self._admitted = 0, b""
        """The last streams that were admitted; the same ones usually come again."""
        self._places: StreamSlots | slice = slice(0)
        """Their entries; a slice if they follow each other, which is faster."""

    def admits(self, streams: StreamSlots) -> bool:
        """Whether no stream occurs twice; if so, makes room for all of them."""
        name = len(streams), streams.tobytes()
        if name != self._admitted:
            rises = is_rising(streams)
            if not (rises or are_distinct(streams)):
                return False
            end = int(streams[-1] if rises else np.maximum.reduce(streams, initial=-1)) + 1
            self._make_room(end)
            first = end - len(streams)
            is_range = rises and first >= 0 and streams[0] == first
            self._admitted, self._places = name, slice(first, end) if is_range else streams.copy()
        return True

    def follow(
        self, first: int, before: list[Array], after: list[Array], statuses: Array
    ) -> tuple[RowNumbers, _LastSteps | None]:
        """Add a step to each of the streams that were admitted last, numbered from `first` on.

        Returns the step that each of them follows, or `NONE`; and the steps that will never have a following step, or
        None if there are none.
        """
        places = self._places
        steps, there = self._step[places], [rows_at(part, places) for part in self._after]
        # A step after the end of an episode follows none, whatever its observation.
        following = self._is_open[places].nonzero()[0]
        if len(following) == len(steps):
            same = same_rows(before, there)
        else:
            same = same_rows(*([part.take(following, axis=0) for part in parts] for parts in (before, there)))
        if same is not True:
            following = following[same]
        if len(following) == len(steps):
            previous, left = steps.copy(), None
        else:
            previous = np.empty_like(steps)
            previous.fill(NONE)  # faster than np.full
            previous[following] = steps[following]
            left = _LastSteps(steps, there).some((previous != steps).nonzero()[0])
        self._step[places], self._is_open[places] = np.arange(first, first + len(steps)), statuses == _CONTINUING
        for part, others in zip(self._after, after, strict=True):
            part[places] = others
        return previous, left

    def put(self, streams: StreamSlots, steps: _LastSteps) -> None:
        """Set the last steps of streams whose episodes continue."""
        self._make_room(int(streams.max(initial=-1)) + 1)
        self._step[streams], self._is_open[streams] = steps.steps, True
        for part, others in zip(self._after, steps.observations, strict=True):
            part[streams] = others

    def cut(self, streams: StreamSlots) -> None:
        """End the episodes of these streams: no step follows their last steps."""
        self._make_room(int(streams.max(initial=-1)) + 1)
        self._is_open[streams] = False

    def heads(self) -> list[tuple[int, int]]:
        """Each stream whose episode continues, and its last step."""
        streams = np.flatnonzero(self._is_open)
        return list(zip(streams.tolist(), self._step[streams].tolist(), strict=True))

    def last_steps(self) -> _LastSteps:
        """The last step of each stream that has one."""
        return _LastSteps(self._step, self._after).some((self._step != NONE).nonzero()[0])

    def _make_room(self, streams: int) -> None:
        """Grow the arrays to at least `streams` entries."""
        if streams > len(self._step):
            more = max(streams - len(self._step), len(self._step))
            self._step = np.append(self._step, np.full(more, NONE, np.int64))
            self._is_open = np.append(self._is_open, np.zeros(more, np.bool_))
            self._after = [
                np.append(part, np.zeros((more, *part.shape[1:]), part.dtype), axis=0) for part in self._after
            ]


_Count = Annotated[int, msgspec.Meta(ge=0)]
_Slot = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `state`."""

    steps: dict[str, Any]
    last_steps: list[_Count]
    last_observations: dict[str, Any]
    heads: list[tuple[_Slot, _Count]]


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
        self._tails = _Tails(self._seen)
        self._left: list[_LastSteps] = []
        """Steps without a following step that are not the last of their stream."""

    def __len__(self) -> int:
        """The number of collected transitions."""
        return len(self._rows)

    def append(self, transitions: Transitions, streams: StreamSlots, versions: NDArray[np.int64]) -> None:
        """Collect copies of transitions; those of one stream must be in order.

        A transition is linked to the previous one of its stream only if its observation is bit-identical to the next
        observation of that one.
        """
        count = len(transitions)
        if streams.shape != (count,):
            raise InputError(f"there are {count} transitions, but the streams have the shape {streams.shape}")
        if not self._tails.admits(streams):
            for row in range(count):
                rows = slice(row, row + 1)
                self.append(transitions.part(rows), streams[rows], versions[rows])
            return
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
        end = len(self._rows)
        previous, left = self._tails.follow(end, before, after, statuses)
        if left is not None:
            self._left.append(left)
        self._grow(end + count)
        self._rows.append([*columns, previous], count)

    def cut(self, streams: StreamSlots) -> None:
        """End the episodes of these streams: nothing is linked to their last transitions."""
        self._tails.cut(streams)

    def clear(self) -> None:
        """Remove all transitions; later ones are not linked to them."""
        self._rows.clear(0)
        self._tails, self._left = _Tails(self._seen), []

    def steps(self) -> Steps:
        """All collected transitions; the arrays are views, valid until the rollout changes."""
        rows = {name: values[: len(self)] for name, values in self._rows.slots.items()}
        following: RowNumbers = np.full(len(self), NONE, np.int64)
        previous: RowNumbers = rows["previous"]
        linked = np.flatnonzero(previous != NONE)
        following[previous[linked]] = linked
        last = self._last_steps()
        return Steps(
            observations=self._seen.observations([rows[name] for name in self._seen.columns]),
            actions=rows["action"],
            rewards=rows["reward"],
            statuses=rows["status"],
            versions=rows["version"],
            following=following,
            last_steps=last.steps,
            last_observations=self._seen.observations(last.observations),
        )

    def _grow(self, count: int) -> None:
        if count > self._rows.capacity:
            rows = Rows(max(count, 2 * self._rows.capacity), self._rows.columns)
            rows.restore(0, self._rows.read(0, self._rows.end))
            self._rows = rows

    def _last_steps(self) -> _LastSteps:
        """All steps without a following step, in order."""
        return _LastSteps.joined([*self._left, self._tails.last_steps()])

    # State

    def state(self) -> State:
        """All collected transitions."""
        last = self._last_steps()
        return {
            "steps": self._rows.read(0, len(self)),
            "last_steps": last.steps.tolist(),
            "last_observations": dict(zip(self._seen.columns, last.observations, strict=True)),
            "heads": [list(head) for head in self._tails.heads()],
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
        every = _LastSteps(np.array(saved.last_steps, np.int64), list(last.read(0, len(last)).values()))
        streams, heads = np.array(saved.heads, np.int64).reshape(-1, 2).T
        is_head = np.isin(every.steps, heads)
        self._tails, self._left = _Tails(self._seen), [every.some((~is_head).nonzero()[0])]
        self._tails.put(streams, every.some(np.searchsorted(every.steps, heads)))
