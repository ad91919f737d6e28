"""Prioritised replay: the larger the priority of a transition, the more often it is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.agent import State, StreamSlots
from rekindle.checks import refuses_misfits
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import Transitions
from rekindle.replay.batches import Batch
from rekindle.replay.links import RowNumbers
from rekindle.replay.memory import Appended, Memory
from rekindle.replay.rows import NumberedRows

__all__ = ["Priorities", "PrioritizedMemory"]

_WHOLE_LEVEL = 1024
"""Levels of the tree with up to so many sums are summed as a whole, not sum by sum."""
_LEAST_PRIORITY = 1e-6
"""No transition has a priority below this, so that each can be drawn again."""


class Priorities:
    """A number for each slot, and a tree of their sums to draw slots by.

    Each sum is that of the two below it, so the tree is the same whatever order the numbers were set in, and a tree
    built anew of the same numbers is the same to the last bit. The numbers are float32, the sums float64.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity!r}: there must be at least 1 slot")
        self.capacity = capacity
        self._leaves = 1 << (capacity - 1).bit_length()
        # Sum i is that of sums 2i and 2i + 1; sum 1 is the total, and the numbers come last.
        self._sums = np.zeros(2 * self._leaves)
        self._pairs = self._sums.reshape(-1, 2)
        self._changed: list[NDArray[np.int64]] = []
        self._changed_count = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the tree."""
        return self._sums.nbytes

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        self._sum_up()
        return float(self._sums[1])

    def get(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """The priorities of slots."""
        return self._sums.take(slots + self._leaves).astype(np.float32)

    def set(self, slots: NDArray[np.int64], priorities: ArrayLike) -> None:
        """Change the priorities of slots; of a slot named more than once, the last one counts."""
        places = slots + self._leaves
        self._sums[places] = np.asarray(priorities, np.float32)
        # The sums wait until they are asked for: many small changes then cost one pass.
        self._changed_count += len(places)
        if self._changed_count * 8 <= self._leaves:
            self._changed.append(places)

    def clear(self) -> None:
        """Set every priority to 0."""
        self._sums[:] = 0
        self._changed, self._changed_count = [], 0

    def sample(self, rng: np.random.Generator, count: int, *, batches: int = 1) -> NDArray[np.int64]:
        """Draw slots with the likelihoods that their priorities have in the total.

        The draws are stratified: each of `batches` equal parts of them has one from each of as many equal shares of
        the total as it has draws, in order. So a batch must be declared, not cut out of the draws afterwards.
        """
        if batches < 1 or count % batches:
            raise InputError(f"{count} draws cannot be {batches} batches of one size")
        self._sum_up()
        if not self._sums[1] > 0:
            raise InputError("there is no priority above 0 to draw by")
        size = count // batches
        shares = (np.arange(size) + rng.random((batches, size))) / max(size, 1)
        # From the widest level that is summed as a whole down to the numbers, one level at a time.
        width = min(self._leaves, _WHOLE_LEVEL)
        bounds = self._sums[width : 2 * width].cumsum()
        rest = np.minimum(shares.ravel() * bounds[-1], np.nextafter(bounds[-1], 0))
        within: NDArray[np.int64] = np.asarray(bounds.searchsorted(rest, "right"), np.int64)
        rest -= np.where(within > 0, bounds.take(within - 1), 0.0)
        places = within + width
        while width < self._leaves:
            below = self._pairs.take(places, axis=0)
            left = below[:, 0]
            # Rounding can leave more than there is: what has no priority is not entered even so.
            goes_right = (rest >= left) & (below[:, 1] > 0)
            rest -= left * goes_right
            places = 2 * places + goes_right
            width *= 2
        return places - self._leaves

    def _sum_up(self) -> None:
        """Bring the sums up to date."""
        if not self._changed_count:
            return
        width = self._leaves // 2
        if self._changed_count * 8 <= self._leaves:
            places = np.concatenate(self._changed)
            while width > _WHOLE_LEVEL:
                places = places >> 1
                below = self._pairs.take(places, axis=0)
                self._sums[places] = below[:, 0] + below[:, 1]
                width //= 2
        while width:
            below = self._pairs[width : 2 * width]
            np.add(below[:, 0], below[:, 1], out=self._sums[width : 2 * width])
            width //= 2
        self._changed, self._changed_count = [], 0


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `state` holds."""

    memory: dict[str, Any]
    priorities: Any
    largest: Annotated[float, msgspec.Meta(gt=0)]


class PrioritizedMemory(NumberedRows):
    """A memory, and a priority for each of its transitions.

    A transition is drawn with the likelihood of `priority ** alpha` in the sum of all; `alpha=0` draws uniformly. A new
    one has the largest priority ever given. The priorities are state, 4 bytes for each row that is held, and take 16
    bytes for each slot in memory (the slots rounded up to a power of 2).
    """

    def __init__(self, memory: Memory, *, alpha: float) -> None:
        if not 0 <= alpha <= 1:
            raise ConfigError(f"alpha is {alpha!r}: use a number from 0 to 1")
        self.memory = memory
        self._rows = memory._rows
        self.alpha = alpha
        self._priorities = Priorities(memory.capacity)
        self._largest = 1.0
        self._unplaced: NDArray[np.float32] | None = None
        """Loaded, and waiting for their rows."""

    def __len__(self) -> int:
        """How many transitions can be sampled."""
        return len(self.memory)

    @property
    def nbytes(self) -> int:
        """The bytes of the memory and of the priorities."""
        return self.memory.nbytes + self._priorities.nbytes

    def append(self, transitions: Transitions, streams: StreamSlots) -> Appended:
        """Remember transitions, by copy; those of one stream must be in order."""
        memory, end = self.memory, self.memory.end
        appended = memory.append(transitions, streams)
        changed = np.array([*range(max(end, memory.first), memory.end), *appended.dropped], np.int64)
        changed = changed[changed >= memory.first]  # the slots of the others belong to new rows
        self._priorities.set(changed % memory.capacity, memory.can_sample(changed) * self._largest)
        return appended

    def cut(self, streams: StreamSlots) -> None:
        """Link nothing to the last transitions of these streams: they were the last of their episodes."""
        self.memory.cut(streams)

    def sample(
        self,
        rng: np.random.Generator,
        count: int,
        *,
        beta: float,
        batches: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
    ) -> tuple[Batch, NDArray[np.float32]]:
        """Draw transitions by priority, and the weights that make up for it: `(N * P) ** -beta`, at most 1 in a batch.

        `count` is shared out to so many `batches`, one after the other: each has its own strata and its own largest
        weight, so reshape to `(batches, count // batches, ...)`.
        """
        first, capacity = self.memory.first, self.memory.capacity
        slots = self._priorities.sample(rng, count, batches=batches)
        batch = self.memory.gather(first + (slots - first) % capacity, n_step=n_step, gamma=gamma)
        priorities = self._priorities.get(slots).astype(np.float64).reshape(batches, -1)
        # N and the total are the same in all of a batch, and go when it is divided by its largest weight.
        weights = (priorities / priorities.min(axis=1, keepdims=True, initial=np.inf)) ** -beta
        return batch, weights.ravel().astype(np.float32)

    def update(self, rows: RowNumbers, priorities: ArrayLike) -> None:
        """Change priorities; rows that can no longer be sampled are passed over, of repeated ones the last counts."""
        given = np.asarray(priorities, np.float64)
        if given.shape != rows.shape:
            raise InputError(f"there are {len(rows)} rows, but the priorities have the shape {given.shape}")
        powers = np.maximum(given, _LEAST_PRIORITY) ** self.alpha
        if not (powers <= np.finfo(np.float32).max).all():
            raise InputError("a priority is not finite")
        known = self.memory.can_sample(rows)
        if np.count_nonzero(known) < len(known):
            rows, powers = rows[known], powers[known]
        self._priorities.set(rows % self.memory.capacity, powers)
        self._largest = max(self._largest, float(powers.max(initial=0)))

    def restore(self, first: int, columns: Mapping[str, ArrayLike]) -> None:
        """Hold exactly these rows, the first of them numbered `first`, with the priorities that were loaded."""
        memory = self.memory
        memory.restore(first, columns)
        rows: RowNumbers = np.arange(memory.first, memory.end)
        can_sample = memory.can_sample(rows)
        priorities = can_sample * self._largest if self._unplaced is None else self._unplaced
        if not np.array_equal(priorities > 0, can_sample):
            raise StateError("the priorities are not those of the rows")
        self._priorities.clear()
        self._priorities.set(rows % memory.capacity, priorities)
        self._unplaced = None

    def state(self) -> State:
        """Everything but the rows."""
        rows: RowNumbers = np.arange(self.first, self.end)
        return {
            "memory": self.memory.state(),
            "priorities": self._priorities.get(rows % self.memory.capacity),
            "largest": self._largest,
        }

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Go on from there; until its rows are restored, the memory is empty."""
        try:
            saved = msgspec.convert(state, _Saved)
        except msgspec.ValidationError as error:
            raise StateError(f"not the state of a prioritised memory: {error}") from None
        priorities = np.asarray(saved.priorities)
        if priorities.dtype != np.float32 or not np.isfinite(priorities).all() or not np.isfinite(saved.largest):
            raise StateError("not the state of a prioritised memory: the priorities must be finite float32")
        self.memory.load_state(saved.memory)
        self._priorities.clear()
        self._largest = saved.largest
        self._unplaced = priorities.copy()
