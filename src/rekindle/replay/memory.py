"""A replay buffer that stores every observation once, and assembles transitions when they are sampled.

A row is an observation and the step that led to it. The rows of an episode are linked: a step starts from the
observation of its previous row.

    row       0    1    2    3    4    5
    stream    a    b    a    b    a    a        both start, a steps, b terminates, a steps, a is truncated
    previous  -    -    0    1    2    4
    status    3    3    0    1    0    2        3: no step led to this observation

A transition can be sampled as soon as it is appended. The final observation of an episode is a row like any other. The
only state beside the rows is the current row of each stream.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.agent import State, StreamSlots
from rekindle.checks import refuses_misfits
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import Array, EpisodeStatus, Transitions
from rekindle.replay.batches import Batch, BatchReader
from rekindle.replay.layout import FittedTransitions, MemoryLayout, same_rows
from rekindle.replay.links import NO_STEP, NONE, Links, RowNumbers, check_links
from rekindle.replay.rows import NumberedRows, Rows

__all__ = ["Appended", "Memory"]

logger = logging.getLogger("rekindle")

_ONE = (1,)

# As plain numbers: numpy is slow to compare an array with an enum member.
_CONTINUING = int(EpisodeStatus.CONTINUING)


class Appended(msgspec.Struct, frozen=True):
    """What appending transitions changed."""

    rows: list[int]
    """The row number of each transition, in the order given."""
    dropped: list[int]
    """Transitions that can no longer be sampled, because the observation they start from was overwritten."""


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `state`."""

    end: _Count
    heads: list[tuple[_Count, _Count]]
    broken_chains: _Count
    whole_stacks: _Count


class Memory(NumberedRows):
    """Stores the newest `capacity` rows: one for each transition, and one for each episode's first observation.

    With `frame_stack=k`, observations of the shape `(k, ...)`, oldest frame first, are stored as single frames, and an
    episode's first observation takes `k` rows. Each stack must continue the previous one, which is checked to the
    bit; a stack that does not is stored completely, in `k` rows.

    A row takes the bytes of one observation (with `frame_stack`, one frame) and one action, and 22 more (38 with
    `frame_stack`). An episode of `T` transitions takes `T + 1` rows (`T + k`).
    """

    def __init__(
        self, capacity: int, observation_space: Any, action_space: Any, *, frame_stack: int | None = None
    ) -> None:
        self._layout = MemoryLayout(observation_space, action_space, frame_stack)
        self._most_rows = 2 * self._layout.stack
        """The most rows of a transition: its observation, and its next observation stored completely."""
        if capacity < self._most_rows:
            raise ConfigError(f"capacity is {capacity!r}: one transition can take {self._most_rows} rows")
        self._rows = Rows(capacity, self._layout.columns)
        self._links = Links(self._rows, depth=self._layout.stack)
        self._batches = BatchReader(self._rows, self._links, self._layout)
        slots = self._rows.slots
        self._observations = next(iter(slots.values()))
        self._actions, self._rewards, self._statuses = slots["action"], slots["reward"], slots["status"]
        self._previous: RowNumbers = slots["previous"]
        self._heads: dict[int, int] = {}
        """The row of each stream's last observation, while its episode continues."""
        self.broken_chains = 0
        """Transitions that did not start from the last observation of their stream, although its episode continued: no
        n-step window crosses them."""
        self.whole_stacks = 0
        """Transitions whose next observation did not continue the stack of their observation."""

    def __len__(self) -> int:
        """How many transitions can be sampled."""
        return self._links.count

    @property
    def nbytes(self) -> int:
        """The bytes of all rows and links, used or not."""
        return self._rows.nbytes + self._links.nbytes

    def append(self, transitions: Transitions, streams: StreamSlots) -> Appended:
        """Store copies of transitions; those of one stream must be in order."""
        if streams.shape == _ONE and (appended := self._append_plain(transitions, streams.item())) is not None:
            return appended
        count = len(transitions)
        if streams.shape != (count,):
            raise InputError(f"there are {count} transitions, but the streams have the shape {streams.shape}")
        given = self._layout.fitted(transitions, count)
        ordered: list[int] = streams.tolist()
        if count == 1 or (count * self._most_rows <= self.capacity and len(set(ordered)) == count):
            return self._append(given, ordered)
        # One by one, because each starts from the result of the previous one.
        appended = Appended([], [])
        for index, stream in enumerate(ordered):
            one = self._append(given.only(index), [stream])
            appended.rows.extend(one.rows)
            appended.dropped.extend(one.dropped)
        return appended

    def cut(self, streams: StreamSlots) -> None:
        """End the episodes of these streams: nothing is linked to their last transitions."""
        for stream in streams.tolist():
            self._heads.pop(stream, None)

    def _append_plain(self, transitions: Transitions, stream: int) -> Appended | None:
        """Append one plain transition that continues its stream or starts a chain, several times as fast as `_append`.

        Returns None, and changes nothing, if the transition is not that simple.
        """
        rows, links = self._rows, self._links
        head = self._heads.get(stream, NONE)
        if NONE < head < rows.first:
            return None
        plain = self._layout.plain(transitions)
        if plain is None:
            return None
        before, after, reward, status = plain
        first, end = rows.first, rows.end
        if head == NONE:
            self._put(end, before[0], 0, 0.0, NO_STEP, NONE)
            self._put(end + 1, after[0], transitions.actions[0], reward, status, end)
            rows.extend(2)
            step = end + 1
            dropped = links.follow(first, end, [step], [end])
        else:
            if self._observations[head % rows.capacity].tobytes() != before.tobytes():
                return None
            self._put(end, after[0], transitions.actions[0], reward, status, head)
            rows.extend(1)
            step = end
            dropped = links.follow_one(first, step, head)
        if status == _CONTINUING:
            self._heads[stream] = step
        else:
            self._heads.pop(stream, None)
        return Appended([step], dropped)

    def _put(self, row: int, observation: Array, action: Array | int, reward: float, status: int, head: int) -> None:
        slot = row % self._rows.capacity
        self._observations[slot] = observation
        self._actions[slot] = action
        self._rewards[slot] = reward
        self._statuses[slot] = status
        self._previous[slot] = head

    def _append(self, given: FittedTransitions, streams: list[int]) -> Appended:
        """Append transitions of different streams, few enough not to overwrite each other."""
        first, end = self.first, self.end
        heads = [self._heads.get(stream, NONE) for stream in streams]
        held = [self._links.oldest(head) != NONE for head in heads]
        previous: RowNumbers = np.array(heads, np.int64)
        same = same_rows(given.observations, self._batches.stacks(previous % self.capacity))
        slides = self._layout.slides(given)
        if all(held) and same is True and slides is True:
            new = self._layout.continued(given, previous, end)
        else:
            broken, whole = np.array(held) & ~np.asarray(same), np.broadcast_to(~np.asarray(slides), len(streams))
            self._count_oddities(broken, whole)
            new = self._layout.started(given, previous, end, starts=~np.array(held) | broken, whole=whole)
        self._rows.append(new.columns, len(new.columns[0]))
        dropped = self._links.follow(first, end, new.steps, new.previous)
        for stream, step, status in zip(streams, new.steps, given.statuses.tolist(), strict=True):
            if status == _CONTINUING:
                self._heads[stream] = step
            else:
                self._heads.pop(stream, None)
        return Appended(new.steps, dropped)

    def _count_oddities(self, broken: NDArray[np.bool_], whole: NDArray[np.bool_]) -> None:
        self.broken_chains += int(np.count_nonzero(broken))
        if whole.any():
            if not self.whole_stacks:
                logger.warning(
                    "an observation does not continue the stack of %d frames before it and is stored completely; "
                    "further ones are counted, not reported",
                    self._layout.stack,
                )
            self.whole_stacks += int(np.count_nonzero(whole))

    def sample(self, rng: np.random.Generator, count: int, *, n_step: int = 1, gamma: float = 0.99) -> Batch:
        """Sample transitions uniformly with replacement.

        A transition becomes a window of the `n_step` steps that start with it. A window is shorter if the episode ends
        or was cut, and at the newest steps of a stream: it then bootstraps from the observation that it reaches, with
        the discount of its own length, which is a valid target too.
        """
        return self._batches.gather(self._batches.draw(rng, count), n_step, gamma)

    def gather(self, rows: RowNumbers, *, n_step: int = 1, gamma: float = 0.99) -> Batch:
        """The transitions with these row numbers, in the form of `sample`."""
        if not self.can_sample(rows).all():
            raise InputError("some of these rows are not transitions, or can no longer be sampled")
        return self._batches.gather(rows, n_step, gamma)

    def can_sample(self, rows: RowNumbers) -> NDArray[np.bool_]:
        """Which of these rows are transitions that can be sampled."""
        held = (rows >= self.first) & (rows < self.end)
        return held & self._links.can_sample.take(rows % self.capacity)

    def restore(self, first: int, columns: Mapping[str, ArrayLike]) -> None:
        """Replace all rows; the first has the number `first`. The current rows of streams are those of `load_state`."""
        rows = self._rows.checked(first, columns)
        numbers: RowNumbers = np.arange(first, first + len(rows["status"]))
        _check_heads(self._heads, first + len(numbers))
        check_links(numbers, rows)
        self._rows.restore(first, rows)
        is_step = rows["status"] != NO_STEP
        self._links.rebuild(numbers[is_step], rows["previous"][is_step])

    def state(self) -> State:
        """Everything except the rows."""
        return {
            "end": self.end,
            "heads": [list(head) for head in sorted(self._heads.items())],
            "broken_chains": self.broken_chains,
            "whole_stacks": self.whole_stacks,
        }

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Restore a saved state; the buffer is empty until its rows are restored."""
        try:
            saved = msgspec.convert(state, _Saved)
        except msgspec.ValidationError as error:
            raise StateError(f"not the state of a replay buffer: {error}") from None
        heads = dict(saved.heads)
        _check_heads(heads, saved.end)
        self._heads = heads
        self._rows.clear(saved.end)
        self._links.count = 0
        self.broken_chains, self.whole_stacks = saved.broken_chains, saved.whole_stacks


def _check_heads(heads: Mapping[int, int], end: int) -> None:
    newest = max(heads.values(), default=NONE)
    if newest >= end:
        raise StateError(f"a stream is at row {newest}, but the rows end at {end}")
