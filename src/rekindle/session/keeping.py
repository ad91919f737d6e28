"""Keep every transition of a session: a checkpoint adds the new ones to the data of the run.

The rows are those of a replay buffer (see `rekindle.replay.memory`), in the format of the replay journal, but no row is
ever overwritten. The run directory has them in `data/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from rekindle.agent import State, StreamSlots
from rekindle.checkpoint.replay_journal import Manifest, NewRows, ReplayJournal
from rekindle.errors import DataError, StateError
from rekindle.experience import Array, EpisodeStatus, Observations, Transitions
from rekindle.replay.links import FRAGMENT, NO_STEP, NONE
from rekindle.run.directory import TrainingRun
from rekindle.space_json import space_text
from rekindle.spaces import REWARDS, STATUSES, ArraySpec
from rekindle.storage import files

__all__ = ["KeptData", "prepare_data"]

_CONTINUING = int(EpisodeStatus.CONTINUING)
_NUMBER = ArraySpec(np.dtype(np.int64))
_LEAST_ROOM = 1024
_MOST_BYTES = 2**26
"""Bytes of rows that wait in memory for a checkpoint; beyond that they are written at once."""
_MANY = 8
"""From this many rows on, one call of numpy for each column is faster than one for each row."""

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `state`."""

    end: _Count
    heads: list[tuple[_Count, _Count]]
    gaps: list[_Count]


def prepare_data(run: TrainingRun, agent: object, kept: KeptData | None) -> None:
    """If data are kept, make their directory in the run, and store the spaces of the agent in it, if it has any."""
    if kept is None:
        return
    directory = run.path / "data"
    files.make_directory(directory)
    files.require_directory(directory)
    names = ("observation_space", "action_space")
    spaces = {name: getattr(agent, name, None) for name in names}
    try:
        texts = {name: space_text(space) for name, space in spaces.items() if space is not None}
    except DataError:  # a space of another library: a data set of the run infers it from the values
        return
    files.write_atomic(directory / "spaces.json", msgspec.json.encode(texts))


class KeptData:
    """The transitions that no checkpoint has written yet, and how they continue the ones that are written."""

    def __init__(self) -> None:
        self.columns: dict[str, ArraySpec] = {}
        """The columns by name; empty before the first transition."""
        self.first = self.end = 0
        """The numbers of the oldest row in memory, and after the newest."""
        self._slots: dict[str, Array] = {}
        self._observations: list[Array] = []
        self._room = 0
        self._row_size = 0
        self._heads: dict[int, int] = {}
        """The row of each stream's last observation, while its episode continues."""
        self._gaps: set[int] = set()
        """The streams whose episode continues after a transition that was dropped."""
        self._full_at = 0
        """The number of rows at which they are written without waiting for a checkpoint."""

    @property
    def is_full(self) -> bool:
        """Whether there are enough rows to write them at once."""
        return self.end >= self._full_at > 0

    def add(self, transitions: Transitions, slots: StreamSlots) -> None:
        """Keep copies of transitions; those of one stream must be in order."""
        before, after = _arrays(transitions.observations), _arrays(transitions.next_observations)
        if not self._slots:
            self._use(transitions, after)
        streams: list[int] = slots.tolist()
        while self.end - self.first + 2 * len(streams) > self._room:
            self._grow()
        if len(streams) >= _MANY and all(stream in self._heads for stream in streams):
            self._add_continued(transitions, after, streams)
            return
        statuses, rewards = transitions.statuses.tolist(), transitions.rewards.tolist()
        for index, stream in enumerate(streams):
            head = self._heads.get(stream, NONE)
            if head == NONE:
                status = FRAGMENT if stream in self._gaps else NO_STEP
                self._gaps.discard(stream)
                self._put([array[index] for array in before], 0, 0.0, status, NONE)
                head = self.end - 1
            self._put(
                [array[index] for array in after], transitions.actions[index], rewards[index], statuses[index], head
            )
            self._follow(stream, self.end - 1, statuses[index])

    def _follow(self, stream: int, row: int, status: int) -> None:
        if status == _CONTINUING:
            self._heads[stream] = row
        else:
            self._heads.pop(stream, None)

    def _put(self, observation: list[Array], action: Any, reward: float, status: int, previous: int) -> None:
        slot = self.end - self.first
        for column, array in zip(self._observations, observation, strict=True):
            column[slot] = array
        slots = self._slots
        slots["action"][slot] = action
        slots["reward"][slot] = reward
        slots["status"][slot] = status
        slots["previous"][slot] = previous
        self.end += 1

    def _add_continued(self, transitions: Transitions, after: list[Array], streams: list[int]) -> None:
        """Add one row a transition, as all of them continue an episode."""
        first = self.end - self.first
        rows, slots = slice(first, first + len(streams)), self._slots
        for column, array in zip(self._observations, after, strict=True):
            column[rows] = array
        slots["action"][rows] = transitions.actions
        slots["reward"][rows] = transitions.rewards
        slots["status"][rows] = transitions.statuses
        slots["previous"][rows] = [self._heads[stream] for stream in streams]
        for row, (stream, status) in enumerate(zip(streams, transitions.statuses.tolist(), strict=True), self.end):
            self._follow(stream, row, status)
        self.end += len(streams)

    def cut(self, slot: int, *, is_gap: bool = False) -> None:
        """End the episode of a stream; with `is_gap` it continues, but its last transition was dropped."""
        self._heads.pop(slot, None)
        if is_gap:
            self._gaps.add(slot)
        else:
            self._gaps.discard(slot)

    # Memory

    def _use(self, transitions: Transitions, after: list[Array]) -> None:
        seen = transitions.next_observations
        names = [f"observation.{name}" for name in seen] if isinstance(seen, Mapping) else ["observation"]
        columns = {name: ArraySpec(array.dtype, array.shape[1:]) for name, array in zip(names, after, strict=True)}
        columns["action"] = ArraySpec(transitions.actions.dtype, transitions.actions.shape[1:])
        self._allocate({**columns, "reward": REWARDS, "status": STATUSES, "previous": _NUMBER})

    def _allocate(self, columns: dict[str, ArraySpec]) -> None:
        self.columns, self._room = columns, _LEAST_ROOM
        self._row_size = sum(spec.nbytes for spec in columns.values())
        self._hold({name: np.zeros((self._room, *spec.shape), spec.dtype) for name, spec in columns.items()})
        self._full_at = self.end + self._most_rows

    @property
    def _most_rows(self) -> int:
        return max(1, _MOST_BYTES // max(1, self._row_size))

    def _hold(self, slots: dict[str, Array]) -> None:
        self._slots = slots
        self._observations = [array for name, array in slots.items() if name.startswith("observation")]

    def _grow(self) -> None:
        held = self.end - self.first
        self._room *= 2
        grown: dict[str, Array] = {}
        for name, array in self._slots.items():
            grown[name] = np.zeros((self._room, *array.shape[1:]), array.dtype)
            grown[name][:held] = array[:held]
        self._hold(grown)

    def read(self, first: int, end: int) -> dict[str, Array]:
        """A copy of the rows `first <= number < end`."""
        rows = slice(first - self.first, end - self.first)
        return {name: array[rows].copy() for name, array in self._slots.items()}

    def restore(self, first: int, columns: Mapping[str, Array]) -> None:
        """Not possible: the rows before are on disk, and no row is needed to continue them."""
        raise StateError(f"kept data cannot be restored from {len(columns)} columns at row {first}")

    def collect(self, journal: ReplayJournal) -> NewRows:
        """Copy the rows that are not in a segment yet, and forget those that no later segment will contain."""
        first = max(self.first, min(self.end, journal.first_mergeable(self._row_size)))
        if first > self.first:
            held, skipped = self.end - first, first - self.first
            for array in self._slots.values():
                array[:held] = array[skipped : skipped + held].copy()
            self.first = first
        self._full_at = self.end + self._most_rows
        return msgspec.structs.replace(journal.collect(self), first=0)

    # State

    def state(self) -> State:
        """Everything except the rows."""
        heads = [list(head) for head in sorted(self._heads.items())]
        return {"end": self.end, "heads": heads, "gaps": sorted(self._gaps)}

    def load_state(self, state: Any, manifest: Manifest) -> None:
        """Continue after the rows in a manifest."""
        saved = msgspec.convert(state, _Saved)
        if saved.end != manifest.end or max((row for _, row in saved.heads), default=0) > saved.end:
            raise StateError(f"the kept data end at row {saved.end}, but {manifest.end} are written")
        self.first = self.end = saved.end
        self._heads, self._gaps = dict(saved.heads), set(saved.gaps)
        if manifest.columns:
            self._allocate(dict(manifest.columns))


def _arrays(observations: Observations) -> list[Array]:
    return list(observations.values()) if isinstance(observations, Mapping) else [observations]
