"""A data set of transitions, whatever it is stored as."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.checks import checked_count
from rekindle.data.cache import Cache, Converted, Plan, Progress, file_digest
from rekindle.data.flat import plan_flat
from rekindle.data.minari import MAIN_FILE, find_minari, minari_files, plan_minari
from rekindle.data.runs import find_run_data
from rekindle.data.sampling import Batches, TransitionReader
from rekindle.data.shipped import is_shipped, shipped_hint, shipped_path
from rekindle.data.statistics import EpisodeTable, Statistics
from rekindle.data.values import check_fixed_length
from rekindle.errors import DataError, Interrupted
from rekindle.experience import Array, EpisodeStatus, Observations
from rekindle.interrupt import ShouldStop, never
from rekindle.replay.columns import ObservationColumns
from rekindle.replay.links import FRAGMENT, NO_STEP
from rekindle.space_json import space_text
from rekindle.storage import files
from rekindle.storage.user_cache import user_cache

__all__ = ["Dataset", "Episode"]

_HDF5, _ZIP = b"\x89HDF\r\n\x1a\n", b"PK"
_MOST_TRIES = 5
Format = Literal["run", "minari", "d4rl", "npz"]


class Episode(msgspec.Struct, frozen=True, eq=False):
    """One episode of a data set; the arrays are views of the data set, and cannot be changed."""

    observations: Observations
    """One more than transitions: the last is the one after the last transition."""
    actions: Array
    rewards: Array
    statuses: NDArray[np.uint8]
    is_fragment: bool
    """Whether its beginning is not in the data."""

    def __len__(self) -> int:
        """The number of transitions."""
        return len(self.rewards)

    @property
    def status(self) -> EpisodeStatus:
        """How it ended: CONTINUING if its end is not in the data."""
        return EpisodeStatus(int(self.statuses[-1]))

    @property
    def total_reward(self) -> float:
        """The sum of the rewards."""
        return float(self.rewards.sum(dtype=np.float64))


class Dataset:
    """Transitions in episodes, as memory-mapped columns; open one with `Dataset.open`."""

    def __init__(
        self,
        path: Path,
        kind: Format,
        converted: Converted,
        *,
        timeout_after: int | None = None,
        fixed_length: bool = False,
    ) -> None:
        self.path = path
        self.format: Format = kind
        """What it was opened from: `run`, `minari`, `d4rl` or `npz`."""
        self.timeout_after = timeout_after
        self.fixed_length = fixed_length
        """Both as `open` was called."""
        self.columns: Mapping[str, Array] = converted.columns
        """`observation` (or `observation.<name>`), `action`, `reward` and `status`: one row for each observation, with
        the step that led to it. Rows with a status above 2 are first observations (see `rekindle.data.columns`)."""
        self.observation_space: Any = converted.observation_space
        self.action_space: Any = converted.action_space
        self.inferred = converted.inferred
        """Which of the spaces were inferred from the values, because the source does not store them."""
        self.notes = converted.notes
        """What a user should know: transitions that are left out, and why."""
        self.doubt: str | None = None
        """A sentence, if some terminations look like a time limit."""
        self.digest = converted.digest()
        """A digest of the columns: equal for two data sets if and only if they hold the same bits."""
        self._converted = converted

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        cache: str | Path | None = None,
        observation_space: Any = None,
        action_space: Any = None,
        timeout_after: int | None = None,
        fixed_length: bool = False,
        progress: Progress | None = None,
        should_stop: ShouldStop = never,
    ) -> Dataset:
        """Open a data set: a run, a Minari data set (a directory), or a file in D4RL's form or npz.

        The first time, it is converted to columns in the cache. Raises `DataError` with the field and row if the data
        cannot be used.

        Args:
            path: the directory or file; or `rekindle:NAME` for one that comes with the package (`pendulum-medium`).
            cache: the directory of the cache; by default `$REKINDLE_CACHE`, or `rekindle` in your cache directory.
            observation_space: the space of observations, if the source does not store it, or stores another.
            action_space: the same for actions.
            timeout_after: for D4RL and npz files without `timeouts`: episodes were cut short after this many steps.
            fixed_length: accept that every episode terminates after the same number of steps. By default that is
                refused, because such terminations are usually time limits, from which learning must bootstrap.
            progress: called with the rows that are converted, and all rows.
            should_stop: called in between; if it returns true, `Interrupted` is raised and nothing is left behind.
        """
        timeout_after = checked_count("timeout_after", timeout_after, 1)
        where = shipped_path(path) if is_shipped(path) else Path(path)
        spaces = (observation_space, action_space)

        def check() -> None:
            if should_stop():
                raise Interrupted("stopped while a data set was opened")

        options = [None if space is None else space_text(space) for space in spaces]
        store = Cache(Path(cache) if cache is not None else user_cache())
        kind, source = _kind(where)

        def get(identity: Any, plan: Callable[[], Plan]) -> Converted:
            return store.get([kind, identity, options], plan, progress, check)

        if kind == "run":
            converted = _of_run(where, spaces, get)
        else:
            sources = minari_files(source) if kind == "minari" else [source]
            digests = [file_digest(file, check) for file in sources]

            def plan() -> Plan:
                if kind == "minari":
                    made = plan_minari(source, spaces=spaces)
                else:
                    made = plan_flat(source, is_npz=kind == "npz", spaces=spaces, timeout_after=timeout_after)

                def fill(columns: dict[str, Array], report: Callable[[int], None]) -> None:
                    made.fill(columns, report)
                    if [file_digest(file, check) for file in sources] != digests:
                        raise DataError(f"{where} has changed while it was converted: open it again")

                return made._replace(fill=fill)

            converted = get([digests, timeout_after], plan)
        dataset = cls(where, kind, converted, timeout_after=timeout_after, fixed_length=fixed_length)
        if kind != "run" and not fixed_length:
            fields = ("terminations", "truncations") if kind == "minari" else ("terminals", "timeouts")
            dataset.doubt = check_fixed_length(dataset.lengths, dataset._table.final, name=str(where), fields=fields)
            dataset.notes += () if dataset.doubt is None else (dataset.doubt,)
        return dataset

    def __len__(self) -> int:
        """The number of transitions."""
        return len(self.columns["status"]) - len(self._table.starts)

    @property
    def nbytes(self) -> int:
        """The bytes of all columns."""
        return sum(column.nbytes for column in self.columns.values())

    @cached_property
    def _observed(self) -> ObservationColumns:
        return ObservationColumns.of(self.observation_space)

    @cached_property
    def _table(self) -> EpisodeTable:
        return EpisodeTable(self.columns["status"], self.columns["reward"])

    # Episodes

    @property
    def num_episodes(self) -> int:
        """The number of episodes, and fragments of episodes."""
        return len(self._table.starts)

    def episode(self, number: int) -> Episode:
        """One episode, counted from 0."""
        table = self._table
        if not 0 <= number < len(table.starts):
            raise IndexError(f"there is no episode {number}: there are {len(table.starts)}")
        first, end = int(table.starts[number]), int(table.ends[number])
        columns = self.columns
        return Episode(
            self._observed.observations([columns[name][first:end] for name in self._observed.columns]),
            columns["action"][first + 1 : end],
            columns["reward"][first + 1 : end],
            columns["status"][first + 1 : end],
            bool(table.is_fragment[number]),
        )

    def episodes(self) -> Iterator[Episode]:
        """All episodes, in order."""
        return (self.episode(number) for number in range(self.num_episodes))

    @property
    def returns(self) -> NDArray[np.float64]:
        """The return of each episode."""
        return self._table.returns

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of transitions of each episode."""
        return self._table.lengths

    @property
    def is_whole(self) -> NDArray[np.bool_]:
        """Which episodes have their beginning and their end in the data."""
        return self._table.is_whole

    def statistics(self) -> Statistics:
        """Transitions, episodes, how they ended, returns and lengths."""
        return self._table.statistics(self.nbytes)

    def exported_digest(self, *, closes: bool) -> str:
        """The digest of what an export writes: it keeps no fragments, and `closes` episodes without an end."""
        status, ends = np.array(self.columns["status"]), self._table.ends - 1
        status[status == FRAGMENT] = NO_STEP
        if closes:
            status[ends[self._table.final == EpisodeStatus.CONTINUING]] = EpisodeStatus.TRUNCATED
        return self._converted.digest(status)

    # Learning

    def reader(self) -> TransitionReader:
        """Samples transitions with a generator of the caller's, like a replay buffer."""
        return TransitionReader(self.columns, self._observed)

    def batches(self, batch_size: int, *, seed: int = 0, n_step: int = 1, gamma: float = 0.99) -> Batches:
        """Minibatches without end, from a generator of their own that can be saved and restored."""
        return Batches(self.reader(), self.digest, batch_size=batch_size, seed=seed, n_step=n_step, gamma=gamma)


def _of_run(path: Path, spaces: tuple[Any, Any], get: Callable[[Any, Callable[[], Plan]], Converted]) -> Converted:
    """The transitions of a run; if it is training, it may remove what its last checkpoint was made of."""
    for _ in range(_MOST_TRIES):
        data = find_run_data(path)
        try:
            return get(data.identity, lambda data=data: data.plan(spaces))
        except DataError:
            if find_run_data(path).identity == data.identity:
                raise
    raise DataError(f"{path} takes checkpoints faster than they can be read: wait until it is finished")


def _kind(path: Path) -> tuple[Format, Path]:
    """What a path is, and the file or directory to read."""
    path = path.resolve()
    if path.is_dir():
        minari = find_minari(path)
        return ("run", path) if minari is None else ("minari", minari)
    with files.opened(path) as file:
        if file is None:
            raise DataError(f"{path} does not exist{shipped_hint(path)}")
        head = file.read(len(_HDF5))
    if head == _HDF5:
        minari = find_minari(path.parent) if path.name == MAIN_FILE else None
        return ("d4rl", path) if minari is None else ("minari", minari)
    if head.startswith(_ZIP):
        return "npz", path
    raise DataError(
        f"{path} is not a data set: it is neither HDF5 nor npz, but begins with {head!r}; a run and a Minari data set "
        "are directories"
    )
