"""How a replay buffer stores transitions in rows: its columns, and the rows of new transitions."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ConfigError, InputError
from rekindle.experience import Array, EpisodeStatus, Transitions
from rekindle.replay.columns import ObservationColumns, fitted, space_column
from rekindle.replay.links import NO_STEP, NONE, RowNumbers
from rekindle.spaces import ArraySpec

__all__ = ["FittedTransitions", "MemoryLayout", "NewRows", "same_rows"]

_NUMBER = ArraySpec(np.dtype(np.int64))
_REWARD = ArraySpec(np.dtype(np.float32))
_LARGEST_REWARD = float(np.finfo(np.float32).max)
_STATUS = ArraySpec(np.dtype(np.uint8))
_ONE_NUMBER = ((1,), (1,), _STATUS.dtype)
"""The shapes of one reward and one status, and the dtype of the latter."""


class FittedTransitions(NamedTuple):
    """Transitions whose arrays have the dtypes and shapes of the columns."""

    observations: list[Array]
    actions: Array
    rewards: Array
    next_observations: list[Array]
    statuses: Array

    def only(self, index: int) -> FittedTransitions:
        """One of them."""
        rows = slice(index, index + 1)
        return FittedTransitions(
            [part[rows] for part in self.observations],
            self.actions[rows],
            self.rewards[rows],
            [part[rows] for part in self.next_observations],
            self.statuses[rows],
        )


class NewRows(NamedTuple):
    """Rows to append: one for the step of each transition, and those of observations that are not stored yet."""

    columns: list[Array]
    steps: list[int]
    """The row of each step."""
    previous: list[int]
    """The row that each step starts from."""


class MemoryLayout:
    """The columns of a replay buffer.

    With `frame_stack=k` an observation has the shape `(k, ...)`, oldest frame first, and a row stores its newest frame.
    """

    def __init__(self, observation_space: Any, action_space: Any, frame_stack: int | None) -> None:
        self.seen = ObservationColumns.of(observation_space)
        """The columns of a whole observation."""
        self.stack = _checked_stack(frame_stack, self.seen)
        """How many frames an observation has; 1 without `frame_stack`."""
        self._action = space_column(action_space, "action")
        self._stored = self.seen.columns
        links = {"previous": _NUMBER}
        if self.stack > 1:
            self._stored = {name: ArraySpec(spec.dtype, spec.shape[1:]) for name, spec in self._stored.items()}
            links["older"] = _NUMBER
        self.columns = {**self._stored, "action": self._action, "reward": _REWARD, "status": _STATUS, **links}
        """The columns of a row: the observations first, the links last."""
        self.is_plain = self.stack == 1 and self.seen.keys is None
        """Whether an observation is one array in one row."""
        self._plain: tuple[Any, ...] = ()
        """Dtypes and shapes of one observation, the next one and an action, if observations are plain."""
        if self.is_plain:
            seen, action = ((spec.dtype, (1, *spec.shape)) for spec in (*self._stored.values(), self._action))
            self._plain = (*seen, *seen, *action)

    def plain(self, transitions: Transitions) -> tuple[Array, Array, float, int] | None:
        """The observation, next observation, reward and status of one plain transition that needs no conversion.

        None if `transitions` is anything else, which `fitted` then accepts or refuses.
        """
        before, after, actions = transitions.observations, transitions.next_observations, transitions.actions
        rewards, statuses = transitions.rewards, transitions.statuses
        if (
            type(before) is not np.ndarray
            or type(after) is not np.ndarray
            or (before.dtype, before.shape, after.dtype, after.shape, actions.dtype, actions.shape) != self._plain
            or rewards.dtype.kind != "f"
            or (rewards.shape, statuses.shape, statuses.dtype) != _ONE_NUMBER
        ):
            return None
        reward, status = rewards.item(), statuses.item()
        if status >= NO_STEP or not -_LARGEST_REWARD < reward < _LARGEST_REWARD:
            return None
        return before, after, reward, status

    def fitted(self, transitions: Transitions, count: int) -> FittedTransitions:
        """Convert `count` transitions to the dtypes of the columns; raises `InputError`."""
        for reward in transitions.rewards.tolist():
            if not -_LARGEST_REWARD < reward < _LARGEST_REWARD:
                raise InputError(f"the reward {reward} is not a finite float32")
        if max(transitions.statuses.tolist(), default=0) >= NO_STEP:
            raise InputError(f"the status {transitions.statuses.max()} is not one of {[*EpisodeStatus]}")
        return FittedTransitions(
            self.seen.fitted(transitions.observations, "observation", count),
            fitted(transitions.actions, self._action, "action", count),
            fitted(transitions.rewards, _REWARD, "reward", count),
            self.seen.fitted(transitions.next_observations, "next_observation", count),
            fitted(transitions.statuses, _STATUS, "status", count),
        )

    def slides(self, given: FittedTransitions) -> NDArray[np.bool_] | Literal[True]:
        """Which next observations continue the stack of their observation; True if all do."""
        if self.stack == 1:
            return True
        return same_rows([given.next_observations[0][:, :-1]], [given.observations[0][:, 1:]])

    def continued(self, given: FittedTransitions, heads: RowNumbers, end: int) -> NewRows:
        """One row per transition, as all of them start from stored rows; the first row has the number `end`."""
        newest, links = given.next_observations, [heads]
        if self.stack > 1:
            newest, links = [given.next_observations[0][:, -1]], [heads, heads]
        columns = [*newest, given.actions, given.rewards, given.statuses, *links]
        return NewRows(columns, list(range(end, end + len(heads))), heads.tolist())

    def started(
        self,
        given: FittedTransitions,
        heads: RowNumbers,
        end: int,
        *,
        starts: NDArray[np.bool_],
        whole: NDArray[np.bool_],
    ) -> NewRows:
        """The rows of transitions; `starts` marks those that start a chain, `whole` those that store all next frames.

        Each transition takes a row for its step. Before it come the rows of its observation if it starts a chain, and
        the older frames of its next observation if that does not continue the stack.
        """
        stack = self.stack
        lengths = 1 + stack * starts + (stack - 1) * whole
        steps = lengths.cumsum() - 1
        previous = np.where(starts, end + steps - (stack - 1) * whole - 1, heads)
        total = int(lengths.sum())

        def column(layout: ArraySpec, fill: int, values: Array) -> Array:
            rows = np.full((total, *layout.shape), fill, layout.dtype)
            rows[steps] = values
            return rows

        first_rows = (steps - lengths + 1)[starts, None] + np.arange(stack)
        whole_rows = steps[whole, None] + np.arange(1 - stack, 1)
        frames: list[Array] = []
        parts = zip(self._stored.values(), given.observations, given.next_observations, strict=True)
        for layout, before, after in parts:
            rows = column(layout, 0, after[:, -1] if stack > 1 else after)
            rows[first_rows] = before[starts] if stack > 1 else before[starts, None]
            if stack > 1:
                rows[whole_rows] = after[whole]
            frames.append(rows)
        columns = [
            *frames,
            column(self._action, 0, given.actions),
            column(_REWARD, 0, given.rewards),
            column(_STATUS, NO_STEP, given.statuses),
            column(_NUMBER, NONE, previous),
        ]
        if stack > 1:
            older = column(_NUMBER, NONE, previous)
            for at in (first_rows, whole_rows):
                older[at[:, 1:]] = end + at[:, :-1]
            columns.append(older)
        return NewRows(columns, (end + steps).tolist(), previous.tolist())


def same_rows(some: list[Array], others: list[Array]) -> NDArray[np.bool_] | Literal[True]:
    """Which rows are bit-identical in all of the arrays; True if all are."""
    for one, other in zip(some, others, strict=True):
        if one.tobytes() != other.tobytes():
            break
    else:
        return True
    same = np.ones(len(some[0]), np.bool_)
    for pair in zip(some, others, strict=True):
        one, other = (np.ascontiguousarray(array).view(np.uint8).reshape(len(same), -1) for array in pair)
        same &= (one == other).all(axis=1)
    return same


def _checked_stack(frame_stack: int | None, seen: ObservationColumns) -> int:
    if frame_stack is None:
        return 1
    column = seen.columns.get("observation")
    if column is None:
        raise ConfigError(f"frame_stack is {frame_stack!r}: only observations of a single array can be stacked frames")
    if frame_stack < 1 or column.shape[:1] != (frame_stack,):
        raise ConfigError(f"frame_stack is {frame_stack!r}, but the shape of an observation is {column.shape}")
    return frame_stack
