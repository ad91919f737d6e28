"""A replay memory that stores every observation once: transitions are put together when they are sampled.

A row is an observation and the step that led to it. The rows of an episode are linked, so that a step starts from the
observation of the row before it:

    row       0    1    2    3    4    5
    stream    a    b    a    b    a    a        both start, a steps, b terminates, a steps, a is truncated
    previous  -    -    0    1    2    4
    status    3    3    0    1    0    2        3: no step led to this observation

A transition can be sampled as soon as it is appended, the true last observation of an episode is a row like any other,
and the only state beside the rows is where each stream stands.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.agent import State, StreamSlots
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import Array, EpisodeStatus, Observations, Transitions
from rekindle.replay.columns import ObservationColumns, fitted, space_column
from rekindle.replay.links import NO_STEP, NONE, Links, RowNumbers, check_links
from rekindle.replay.rows import Rows
from rekindle.spaces import ArraySpec

__all__ = ["Appended", "Batch", "Memory"]

logger = logging.getLogger("rekindle")

_NUMBER = ArraySpec(np.dtype(np.int64))
_REWARD = ArraySpec(np.dtype(np.float32))
_LARGEST_REWARD = float(np.finfo(np.float32).max)
_STATUS = ArraySpec(np.dtype(np.uint8))
_ONE = (1,)
_ONE_NUMBER = (_ONE, _ONE, _STATUS.dtype)
"""The shapes of one reward and one status, and the dtype of the latter."""

# As plain numbers: numpy is slow to compare an array with a member of an enum.
_CONTINUING = int(EpisodeStatus.CONTINUING)

_FEW = 16
"""Numbers that Python is quicker with than numpy."""

_BOOTSTRAP = np.array([status != EpisodeStatus.TERMINATED for status in EpisodeStatus], np.float32)
"""By status, whether the value of the observation counts."""


class Batch(msgspec.Struct, frozen=True, eq=False):
    """Transitions to learn from, as arrays with a leading axis.

    The target for row `i` is `rewards[i] + discounts[i] * value(next_observations[i])`.
    """

    observations: Observations
    actions: Array
    rewards: NDArray[np.float32]
    """The discounted sum of the rewards in the window."""
    next_observations: Observations
    """Where the window ends."""
    discounts: NDArray[np.float32]
    """`gamma ** k` for a window of `k` steps, and 0 where it ends in a termination."""
    rows: RowNumbers
    """The numbers under which the memory knows the transitions."""


class Appended(msgspec.Struct, frozen=True):
    """What became of the memory when transitions were appended."""

    rows: list[int]
    """The number of each transition, in the order given."""
    dropped: list[int]
    """Transitions that can no longer be sampled, as what they start from was overwritten."""


class _Given(NamedTuple):
    """Transitions whose arrays fit the columns."""

    observations: list[Array]
    actions: Array
    rewards: Array
    next_observations: list[Array]
    statuses: Array

    def only(self, index: int) -> _Given:
        rows = slice(index, index + 1)
        return _Given(
            [part[rows] for part in self.observations],
            self.actions[rows],
            self.rewards[rows],
            [part[rows] for part in self.next_observations],
            self.statuses[rows],
        )


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `state` holds."""

    end: _Count
    heads: list[tuple[_Count, _Count]]
    broken_chains: _Count
    whole_stacks: _Count


class Memory:
    """Holds the newest `capacity` rows: one for each transition, and one for each episode's first observation.

    With `frame_stack=k`, observations of the shape `(k, ...)`, oldest frame first, are stored as single frames, and an
    episode's first observation takes `k` rows. Each stack must continue the one before it, which is checked bit for
    bit; one that does not is stored whole, in `k` rows.

    A row takes the bytes of one observation (with `frame_stack`, one frame) and one action, and 22 more (38 with
    `frame_stack`). An episode of `T` transitions takes `T + 1` rows (`T + k`).
    """

    def __init__(
        self, capacity: int, observation_space: Any, action_space: Any, *, frame_stack: int | None = None
    ) -> None:
        self._seen = ObservationColumns.of(observation_space)
        self._action = space_column(action_space, "action")
        self._stack = _checked_stack(frame_stack, self._seen)
        if capacity < 2 * self._stack:
            raise ConfigError(f"capacity is {capacity!r}: one transition can take {2 * self._stack} rows")
        stored = self._seen.columns
        links = {"previous": _NUMBER}
        if self._stack > 1:
            stored = {name: ArraySpec(spec.dtype, spec.shape[1:]) for name, spec in stored.items()}
            links["older"] = _NUMBER
        columns = {**stored, "action": self._action, "reward": _REWARD, "status": _STATUS, **links}
        self._rows = Rows(capacity, columns)
        self._links = Links(self._rows, depth=self._stack)
        slots = self._rows.slots
        self._observations = [slots[name] for name in stored]
        self._actions, self._rewards, self._statuses = slots["action"], slots["reward"], slots["status"]
        self._previous: RowNumbers = slots["previous"]
        """The row that a step starts from."""
        self._older: RowNumbers = slots.get("older", self._previous)
        """The row of the frame before, in the same stack."""
        self._heads: dict[int, int] = {}
        """The row of each stream's last observation, while its episode goes on."""
        self._one: tuple[Any, ...] | None = None
        """Dtypes and shapes of one observation, the next and an action, where transitions are so simple."""
        if self._stack == 1 and self._seen.keys is None:
            seen, action = ((spec.dtype, (1, *spec.shape)) for spec in (*self._seen.columns.values(), self._action))
            self._one = (*seen, *seen, *action)
        self.broken_chains = 0
        """Transitions that did not start from the last observation of their stream, though its episode went on: no
        window of several steps crosses there."""
        self.whole_stacks = 0
        """Transitions whose next observation did not continue the stack of their observation."""

    def __len__(self) -> int:
        """How many transitions can be sampled."""
        return self._links.count

    @property
    def capacity(self) -> int:
        """How many rows there is room for."""
        return self._rows.capacity

    @property
    def nbytes(self) -> int:
        """The bytes of all rows and their links, whether already used or not."""
        return self._rows.nbytes + self._links.nbytes

    # Remembering

    def append(self, transitions: Transitions, streams: StreamSlots) -> Appended:
        """Remember transitions, by copy; those of one stream must be in order."""
        if streams.shape == _ONE and (appended := self._append_next(transitions, streams.item())) is not None:
            return appended
        count = len(transitions)
        if streams.shape != (count,):
            raise InputError(f"there are {count} transitions, but the streams have the shape {streams.shape}")
        given = self._fitted(transitions, count)
        ordered: list[int] = streams.tolist()
        if count == 1 or (count * 2 * self._stack <= self.capacity and len(set(ordered)) == count):
            return self._append(given, ordered)
        # One by one, as each must find its stream where the one before has left it.
        appended = Appended([], [])
        for index, stream in enumerate(ordered):
            one = self._append(given.only(index), [stream])
            appended.rows.extend(one.rows)
            appended.dropped.extend(one.dropped)
        return appended

    def cut(self, streams: StreamSlots) -> None:
        """Link nothing to the last transitions of these streams: they were the last of their episodes."""
        for stream in streams.tolist():
            self._heads.pop(stream, None)

    def _append_next(self, transitions: Transitions, stream: int) -> Appended | None:
        """Append one transition that goes on where its stream stands, several times as quick as any other.

        None if it is not that simple, and nothing has changed.
        """
        rows, links, layouts = self._rows, self._links, self._one
        before, after = transitions.observations, transitions.next_observations
        actions, rewards, statuses = transitions.actions, transitions.rewards, transitions.statuses
        head = self._heads.get(stream, NONE)
        if (
            layouts is None
            or head < rows.first
            or type(before) is not np.ndarray
            or type(after) is not np.ndarray
            or (before.dtype, before.shape, after.dtype, after.shape, actions.dtype, actions.shape) != layouts
            or rewards.dtype.kind != "f"
            or (rewards.shape, statuses.shape, statuses.dtype) != _ONE_NUMBER
            or self._observations[0][head % rows.capacity].tobytes() != before.tobytes()
        ):
            return None
        reward, status = rewards.item(), statuses.item()
        if status >= NO_STEP or not -_LARGEST_REWARD < reward < _LARGEST_REWARD:
            return None
        first, step, slot = rows.first, rows.end, rows.end % rows.capacity
        self._observations[0][slot] = after[0]
        self._actions[slot] = actions[0]
        self._rewards[slot] = reward
        self._statuses[slot] = status
        self._previous[slot] = head
        rows.extend(1)
        dropped = links.follow_one(first, step, head)
        if status == _CONTINUING:
            self._heads[stream] = step
        else:
            del self._heads[stream]
        return Appended([step], dropped)

    def _fitted(self, transitions: Transitions, count: int) -> _Given:
        for reward in transitions.rewards.tolist():
            if not -_LARGEST_REWARD < reward < _LARGEST_REWARD:
                raise InputError(f"the reward {reward} is no finite float32")
        if max(transitions.statuses.tolist(), default=0) >= NO_STEP:
            raise InputError(f"the status {transitions.statuses.max()} is none of {[*EpisodeStatus]}")
        return _Given(
            self._seen.fitted(transitions.observations, "observation", count),
            fitted(transitions.actions, self._action, "action", count),
            fitted(transitions.rewards, _REWARD, "reward", count),
            self._seen.fitted(transitions.next_observations, "next_observation", count),
            fitted(transitions.statuses, _STATUS, "status", count),
        )

    def _append(self, given: _Given, streams: list[int]) -> Appended:
        """Append transitions of different streams, few enough not to overwrite each other."""
        first, end = self.first, self.end
        heads = [self._heads.get(stream, NONE) for stream in streams]
        held = [self._links.oldest(head) != NONE for head in heads]
        previous: RowNumbers = np.array(heads, np.int64)
        same = self._same_as_held(given.observations, previous)
        slides = True
        if self._stack > 1:
            slides = _same_rows([given.next_observations[0][:, :-1]], [given.observations[0][:, 1:]])
        if all(held) and same is True and slides is True:
            steps = list(range(end, end + len(streams)))
            newest = given.next_observations if self._stack == 1 else [given.next_observations[0][:, -1]]
            links = [previous] if self._stack == 1 else [previous, previous]
            columns = [*newest, given.actions, given.rewards, given.statuses, *links]
        else:
            broken, whole = np.array(held) & ~np.asarray(same), np.broadcast_to(~np.asarray(slides), len(streams))
            self._count_oddities(broken, whole)
            columns, steps, heads = self._laid_out(given, previous, starts=~np.array(held) | broken, whole=whole)
        self._rows.append(columns, len(columns[0]))
        dropped = self._links.follow(first, end, steps, heads)
        for stream, step, status in zip(streams, steps, given.statuses.tolist(), strict=True):
            if status == _CONTINUING:
                self._heads[stream] = step
            else:
                self._heads.pop(stream, None)
        return Appended(steps, dropped)

    def _same_as_held(self, observations: list[Array], rows: RowNumbers) -> NDArray[np.bool_] | Literal[True]:
        """Which observations are those of rows, bit for bit; True if all are."""
        return _same_rows(observations, self._stacks(rows % self.capacity))

    def _laid_out(
        self, given: _Given, heads: RowNumbers, *, starts: NDArray[np.bool_], whole: NDArray[np.bool_]
    ) -> tuple[list[Array], list[int], list[int]]:
        """The columns of new rows, the numbers of the steps among them, and of the rows that these start from.

        Each transition takes a row for its step; before it, where it starts a chain, the rows of its observation, and
        where its next observation does not continue the stack, the rows of the older frames of that one.
        """
        stack, end = self._stack, self.end
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
        for layout, before, after in zip(self._observations, given.observations, given.next_observations, strict=True):
            rows = np.zeros((total, *layout.shape[1:]), layout.dtype)
            rows[steps] = after[:, -1] if stack > 1 else after
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
        return columns, (end + steps).tolist(), previous.tolist()

    def _count_oddities(self, broken: NDArray[np.bool_], whole: NDArray[np.bool_]) -> None:
        self.broken_chains += int(np.count_nonzero(broken))
        if whole.any():
            if not self.whole_stacks:
                logger.warning(
                    "an observation does not continue the stack of %d frames before it and is stored whole; "
                    "more of them are counted, not told",
                    self._stack,
                )
            self.whole_stacks += int(np.count_nonzero(whole))

    # Sampling

    def sample(self, rng: np.random.Generator, count: int, *, n_step: int = 1, gamma: float = 0.99) -> Batch:
        """Draw transitions, each as likely as any other; one may be drawn more than once.

        A transition becomes a window of the `n_step` steps from it on. A window is shorter where the episode ends or
        was cut, and at the newest steps of a stream: it then bootstraps from the observation it reaches, with the
        discount of its own length, which is as sound a target as a longer one.
        """
        return self._gather(self._draw(rng, count), n_step, gamma)

    def gather(self, rows: RowNumbers, *, n_step: int = 1, gamma: float = 0.99) -> Batch:
        """The transitions with these numbers, as `sample` would give them."""
        if not self.can_sample(rows).all():
            raise InputError("some of these rows cannot be sampled, or not any more")
        return self._gather(rows, n_step, gamma)

    def can_sample(self, rows: RowNumbers) -> NDArray[np.bool_]:
        """Which of these rows are transitions that can be sampled."""
        held = (rows >= self.first) & (rows < self.end)
        return held & self._links.can_sample.take(rows % self.capacity)

    def _draw(self, rng: np.random.Generator, count: int) -> RowNumbers:
        first, held, can_sample = self.first, len(self._rows), self._links.can_sample
        if not self._links.count:
            raise InputError("the memory holds no transition that can be sampled")
        if 4 * self._links.count < held:  # too few to be found by trying
            rows = np.arange(first, first + held)
            return rng.choice(rows[can_sample.take(self._slots(rows))], count)
        rows = _below(rng, held, count)
        if first:
            rows += first
        missed = (~can_sample.take(self._slots(rows))).nonzero()[0]
        while len(missed) > _FEW:
            rows[missed] = again = first + _below(rng, held, len(missed))
            missed = missed[~can_sample.take(self._slots(again))]
        few: list[int] = missed.tolist()
        while few:  # the same once more, which is quicker for a few numbers
            left: list[int] = []
            for index in few:
                rows[index] = row = first + int(rng.random() * held)
                if not can_sample[row % self._rows.capacity]:
                    left.append(index)
            few = left
        return rows

    def _slots(self, rows: RowNumbers) -> RowNumbers:
        """Where rows that are held lie."""
        return rows if self._rows.end <= self._rows.capacity else rows % self._rows.capacity

    def _gather(self, rows: RowNumbers, n_step: int, gamma: float) -> Batch:
        if n_step < 1:
            raise InputError(f"n_step is {n_step!r}: a window has at least 1 step")
        slots = self._slots(rows)
        last, rewards, discounts = slots, self._rewards.take(slots), np.float32(gamma)
        if n_step > 1:
            last, rewards, discounts = self._windows(slots, n_step, gamma)
        before = self._slots(self._previous.take(slots))
        return Batch(
            observations=self._observations_in(before),
            actions=self._actions.take(slots, axis=0),
            rewards=rewards,
            next_observations=self._observations_in(last),
            discounts=_BOOTSTRAP.take(self._statuses.take(last)) * discounts,
            rows=rows,
        )

    def _windows(
        self, slots: RowNumbers, n_step: int, gamma: float
    ) -> tuple[RowNumbers, NDArray[np.float32], NDArray[np.float32]]:
        """Where windows of up to `n_step` steps end, what they earn, and the discount behind them."""
        powers = gamma ** np.arange(n_step + 1)
        earned = self._rewards.take(slots).astype(np.float64)
        steps = np.ones(len(slots), np.int64)
        for power in powers[1:-1]:
            following = self._links.next.take(slots)
            goes_on = following != NONE  # nothing is ever linked to the last step of an episode
            slots = np.where(goes_on, following % self.capacity, slots)
            earned += goes_on * power * self._rewards.take(slots)
            steps += goes_on
        return slots, earned.astype(np.float32), powers.astype(np.float32).take(steps)

    def _observations_in(self, slots: RowNumbers) -> Observations:
        """What agents see of the rows in these slots."""
        if self._one is not None:  # the same, and quicker
            return self._observations[0].take(slots, axis=0)
        return self._seen.observations(self._stacks(slots))

    def _stacks(self, slots: RowNumbers) -> list[Array]:
        """The observations of the rows in these slots, each with the older frames of its stack."""
        if self._stack > 1:
            frames = [slots]
            for _ in range(self._stack - 1):
                frames.append(self._older.take(frames[-1]) % self.capacity)
            slots = np.stack(frames[::-1], axis=1)
        return [column.take(slots, axis=0) for column in self._observations]

    # The rows, for the journal

    @property
    def columns(self) -> Mapping[str, ArraySpec]:
        """The layout, by name."""
        return self._rows.columns

    @property
    def first(self) -> int:
        """The number of the oldest row still held."""
        return self._rows.first

    @property
    def end(self) -> int:
        """One past the number of the newest row."""
        return self._rows.end

    def read(self, first: int, end: int) -> dict[str, Array]:
        """A copy of the rows `first <= number < end`."""
        return self._rows.read(first, end)

    def restore(self, first: int, columns: Mapping[str, ArrayLike]) -> None:
        """Hold exactly these rows, the first of them numbered `first`; the streams stand as `load_state` left them."""
        rows = self._rows.checked(first, columns)
        numbers: RowNumbers = np.arange(first, first + len(rows["status"]))
        _check_heads(self._heads, first + len(numbers))
        check_links(numbers, rows)
        self._rows.restore(first, rows)
        is_step = rows["status"] != NO_STEP
        self._links.rebuild(numbers[is_step], rows["previous"][is_step])

    # Going on later

    def state(self) -> State:
        """Everything but the rows."""
        return {
            "end": self.end,
            "heads": [list(head) for head in sorted(self._heads.items())],
            "broken_chains": self.broken_chains,
            "whole_stacks": self.whole_stacks,
        }

    def load_state(self, state: State) -> None:
        """Go on from there; until its rows are restored, the memory is empty."""
        try:
            saved = msgspec.convert(state, _Saved)
        except msgspec.ValidationError as error:
            raise StateError(f"not the state of a replay memory: {error}") from None
        heads = dict(saved.heads)
        _check_heads(heads, saved.end)
        self._heads = heads
        self._rows.clear(saved.end)
        self._links.count = 0
        self.broken_chains, self.whole_stacks = saved.broken_chains, saved.whole_stacks


def _checked_stack(frame_stack: int | None, seen: ObservationColumns) -> int:
    if frame_stack is None:
        return 1
    column = seen.columns.get("observation")
    if column is None:
        raise ConfigError(f"frame_stack is {frame_stack!r}: only observations of a single array can be stacked frames")
    if frame_stack < 1 or column.shape[:1] != (frame_stack,):
        raise ConfigError(f"frame_stack is {frame_stack!r}, but the shape of an observation is {column.shape}")
    return frame_stack


def _below(rng: np.random.Generator, end: int, count: int) -> RowNumbers:
    """Whole numbers from 0 on, below `end`; several times as quick as `rng.integers`."""
    return (rng.random(count) * end).astype(np.int64)


def _same_rows(some: list[Array], others: list[Array]) -> NDArray[np.bool_] | Literal[True]:
    """Which rows are the same, bit for bit, in all of the arrays; True if all are."""
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


def _check_heads(heads: Mapping[int, int], end: int) -> None:
    newest = max(heads.values(), default=NONE)
    if newest >= end:
        raise StateError(f"a stream stands at row {newest}, but the rows end at {end}")
