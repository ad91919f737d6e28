"""Prioritised replay: the larger the priority of a transition, the more often it is sampled."""

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
"""Levels of the tree with up to this many sums are summed completely, not sum by sum."""
_LEAST_PRIORITY = 1e-6
"""The minimum priority, so that every transition can be sampled again."""


class Priorities:
    """A priority for each slot, and a tree of their sums for sampling.

    Each node is the sum of its two children, so the tree does not depend on the order in which priorities were set, and
    a tree rebuilt from the same priorities is bit-identical. The priorities are float32, the sums float64.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity!r}: there must be at least 1 slot")
        self.capacity = capacity
        self._leaves = 1 << (capacity - 1).bit_length()
        # Node i is the sum of nodes 2i and 2i + 1; node 1 is the total, and the leaves are the priorities.
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
        """Change the priorities of slots; for a repeated slot, the last one counts."""
        places = slots + self._leaves
        self._sums[places] = np.asarray(priorities, np.float32)
        # Sums are updated when they are needed: many small changes then take one pass.
        self._changed_count += len(places)
        if self._changed_count * 8 <= self._leaves:
            self._changed.append(places)

    def clear(self) -> None:
        """Set every priority to 0."""
        self._sums[:] = 0
        self._changed, self._changed_count = [], 0

    def sample(self, rng: np.random.Generator, count: int, *, batches: int = 1) -> NDArray[np.int64]:
        """Sample slots with probabilities proportional to their priorities.

        Sampling is stratified in each batch of `count // batches` draws: the total is divided into as many equal
        intervals, and one draw is made from each, in order. So pass the number of batches here, and do not split the
        draws of a larger batch.
        """
        if batches < 1 or count % batches:
            raise InputError(f"{count} draws cannot be divided into {batches} equal batches")
        self._sum_up()
        if not self._sums[1] > 0:
            raise InputError("there is no priority above 0")
        size = count // batches
        shares = (np.arange(size) + rng.random((batches, size))) / max(size, 1)
        # From the widest level that is summed completely down to the priorities, one level at a time.
        width = min(self._leaves, _WHOLE_LEVEL)
        bounds = self._sums[width : 2 * width].cumsum()
        rest = np.minimum(shares.ravel() * bounds[-1], np.nextafter(bounds[-1], 0))
        within: NDArray[np.int64] = np.asarray(bounds.searchsorted(rest, "right"), np.int64)
        rest -= np.where(within > 0, bounds.take(within - 1), 0.0)
        places = within + width
        while width < self._leaves:
            below = self._pairs.take(places, axis=0)
            left = below[:, 0]
            # After rounding, the rest can exceed the sum: never go to a child without priority.
            goes_right = (rest >= left) & (below[:, 1] > 0)
            rest -= left * goes_right
            places = 2 * places + goes_right
            width *= 2
        return places - self._leaves

    def _sum_up(self) -> None:
        """Update the sums."""
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
    """The contents of `state`."""

    memory: dict[str, Any]
    priorities: Any
    largest: Annotated[float, msgspec.Meta(gt=0)]


class PrioritizedMemory(NumberedRows):
    """A replay buffer with a priority for each transition.

    The probability of a transition is proportional to `priority ** alpha`; `alpha=0` samples uniformly. A new
    transition has the largest priority ever given. The priorities are part of the state, 4 bytes per stored row, and
    take 16 bytes of memory per slot (with the number of slots rounded up to a power of 2).
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
        """Loaded priorities that wait for their rows."""

    def __len__(self) -> int:
        """How many transitions can be sampled."""
        return len(self.memory)

    @property
    def nbytes(self) -> int:
        """The bytes of the buffer and of the priorities."""
        return self.memory.nbytes + self._priorities.nbytes

    def append(self, transitions: Transitions, streams: StreamSlots) -> Appended:
        """Store copies of transitions; those of one stream must be in order."""
        memory, end = self.memory, self.memory.end
        appended = memory.append(transitions, streams)
        changed = np.array([*range(max(end, memory.first), memory.end), *appended.dropped], np.int64)
        changed = changed[changed >= memory.first]  # the slots of the others are used by new rows
        self._priorities.set(changed % memory.capacity, memory.can_sample(changed) * self._largest)
        return appended

    def cut(self, streams: StreamSlots) -> None:
        """End the episodes of these streams: nothing is linked to their last transitions."""
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
        """Sample transitions by priority, with importance weights `(N * P) ** -beta`, scaled to at most 1 in a batch.

        `count` is divided into `batches`, one after the other: each has its own strata and its own largest weight, so
        reshape to `(batches, count // batches, ...)`.
        """
        first, capacity = self.memory.first, self.memory.capacity
        slots = self._priorities.sample(rng, count, batches=batches)
        batch = self.memory.gather(first + (slots - first) % capacity, n_step=n_step, gamma=gamma)
        priorities = self._priorities.get(slots).astype(np.float64).reshape(batches, -1)
        # N and the total are the same for a whole batch, and cancel when it is divided by its largest weight.
        weights = (priorities / priorities.min(axis=1, keepdims=True, initial=np.inf)) ** -beta
        return batch, weights.ravel().astype(np.float32)

    def update(self, rows: RowNumbers, priorities: ArrayLike) -> None:
        """Change priorities; rows that can no longer be sampled are ignored, and for a repeated row the last counts."""
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
        """Replace all rows; the first has the number `first`. They get the priorities that were loaded."""
        memory = self.memory
        memory.restore(first, columns)
        rows: RowNumbers = np.arange(memory.first, memory.end)
        can_sample = memory.can_sample(rows)
        priorities = can_sample * self._largest if self._unplaced is None else self._unplaced
        if not np.array_equal(priorities > 0, can_sample):
            raise StateError("the priorities do not belong to these rows")
        self._priorities.clear()
        self._priorities.set(rows % memory.capacity, priorities)
        self._unplaced = None

    def state(self) -> State:
        """Everything except the rows."""
        rows: RowNumbers = np.arange(self.first, self.end)
        return {
            "memory": self.memory.state(),
            "priorities": self._priorities.get(rows % self.memory.capacity),
            "largest": self._largest,
        }

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Restore a saved state; the buffer is empty until its rows are restored."""
        try:
            saved = msgspec.convert(state, _Saved)
        except msgspec.ValidationError as error:
            raise StateError(f"not the state of a prioritised replay buffer: {error}") from None
        priorities = np.asarray(saved.priorities)
        if priorities.dtype != np.float32 or not np.isfinite(priorities).all() or not np.isfinite(saved.largest):
            raise StateError("not the state of a prioritised replay buffer: the priorities must be finite float32")
        self.memory.load_state(saved.memory)
        self._priorities.clear()
        self._largest = saved.largest
        self._unplaced = priorities.copy()
