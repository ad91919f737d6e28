"""Read the transitions of a run: all of them if it keeps its data, otherwise those in its replay journal.

The rows of a journal are linked (see `rekindle.replay.memory`), and those of several streams alternate. They are sorted
into episodes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.checkpoint.replay_journal import Manifest, ReplayJournal
from rekindle.checkpoint.store import Checkpoint, list_steps
from rekindle.checks import every_row
from rekindle.data.cache import Plan
from rekindle.data.columns import DataLayout
from rekindle.data.values import check_actions, check_numbers, check_observations
from rekindle.errors import DataError, FileRefused
from rekindle.experience import Array, EpisodeStatus
from rekindle.replay.links import FRAGMENT, NO_STEP, NONE
from rekindle.run.reader import RunReader
from rekindle.space_json import inferred_space, read_space
from rekindle.spaces import ArraySpec, SpaceParts
from rekindle.storage import files

__all__ = ["RunData", "find_run_data"]

_MOST_JSON = 2**26
_MOST_FRAMES = 1000
"""The most frames of an observation."""
_CONTINUING = int(EpisodeStatus.CONTINUING)
Numbers = NDArray[np.int64]


class RunData(NamedTuple):
    """The transitions of a run as of its newest checkpoint."""

    path: Path
    manifest: Manifest
    is_kept: bool
    """Whether these are all transitions of the run."""
    spaces: tuple[Any, Any]
    notes: tuple[str, ...]

    @property
    def identity(self) -> Any:
        """A value that is equal for equal rows."""
        segments = [[segment.first, segment.end, segment.checksum] for segment in self.manifest.segments]
        return [self.is_kept, self.manifest.first, self.manifest.end, segments]

    @property
    def _journal(self) -> ReplayJournal:
        return ReplayJournal(self.path / ("data" if self.is_kept else "replay"), resume_count=0)

    def each(self) -> Iterator[dict[str, Array]]:
        """The rows, segment by segment; raises `DataError` for a damaged one."""
        try:
            yield from self._journal.read_each(self.manifest)
        except FileRefused as error:
            raise DataError(str(error)) from None

    def plan(self, spaces: tuple[Any, Any]) -> Plan:
        """Plan the conversion; `spaces` replace those of the run."""
        columns = self.manifest.columns
        if "next_observation" in columns or any(name.startswith("next_observation.") for name in columns):
            return self._planned(spaces, _linked_ring(self))
        if not {"action", "reward", "status", "previous"} <= columns.keys():
            raise DataError(
                f"{self.path}: the replay buffer of its agent has the columns {', '.join(columns)}, which cannot be "
                "read as transitions: train with --keep-data"
            )
        return self._planned(spaces, _linked_rows(self))

    def _planned(self, spaces: tuple[Any, Any], linked: _Linked) -> Plan:
        if not linked.rows:
            if RunReader(self.path).metadata.step_unit == "updates":
                raise DataError(f"{self.path} learned from data alone, and has no transitions: open its data instead")
            raise DataError(f"{self.path}: there is no transition in its newest checkpoint yet")
        observed = {name: spec for name, spec in linked.columns.items() if name.startswith("observation")}
        known = [mine if given is None else given for mine, given in zip(self.spaces, spaces, strict=True)]
        inferred = tuple(
            name for name, space in zip(("observation_space", "action_space"), known, strict=True) if space is None
        )
        if known[0] is None:
            parts = {
                name.removeprefix("observation").removeprefix("."): _inferred(spec, linked.ranges.get(name), False)
                for name, spec in observed.items()
            }
            from gymnasium.spaces import Dict  # slow to import, and the help of commands needs none of it

            known[0] = parts[""] if "" in parts else Dict(parts)
        if known[1] is None:
            known[1] = _inferred(linked.columns["action"], linked.ranges["action"], True)
        layout = DataLayout(known[0], known[1], linked.columns["reward"].dtype, name=str(self.path))
        for name, spec in {**layout.observation.columns, "action": layout.action}.items():
            if linked.columns.get(name) != spec:
                raise DataError(
                    f"{self.path}: {name} is {linked.columns.get(name, 'missing')} in the run, but {spec} in the space"
                )

        def fill(out: dict[str, Array], report: Callable[[int], None]) -> None:
            linked.fill(out, report)
            # Only other spaces are checked: those of the run are the ones that its values came from.
            if spaces[0] is not None:
                for name, part in zip(layout.observation.columns, SpaceParts.of(known[0]).parts.values(), strict=True):
                    check_observations(out[name], part.space, name=f"{self.path}: {name}")
            if spaces[1] is not None:
                _check_actions(out["action"][out["status"] < NO_STEP], layout, name=f"{self.path}: action")

        return Plan(linked.rows, layout, inferred, self.notes, fill)


def _check_actions(actions: Array, layout: DataLayout, *, name: str) -> None:
    """Raise `DataError` with the first action outside of the space of the layout."""
    parts = SpaceParts.of(layout.action_space).parts.items()
    places = [slice(None)] if layout.structure is None else layout.structure.places
    for (part_name, part), place in zip(parts, places, strict=True):
        values = actions if layout.structure is None else actions[:, place].reshape(-1, *part.space.shape)
        check_actions(values, part.space, name=f"{name}.{part_name}" if part_name else name)


def find_run_data(path: str | Path) -> RunData:
    """The transitions of a run; raises `DataError` if it has none."""
    reader = RunReader(path)
    notes: list[str] = []
    for step in reversed(list_steps(reader.path / "checkpoints")):
        try:
            checkpoint = Checkpoint.read(reader.path / "checkpoints" / f"step_{step}.mpk")
        except FileRefused as error:
            notes.append(f"skipped a damaged checkpoint: {error}")
            continue
        manifest = checkpoint.data or checkpoint.replay
        if manifest is None:
            raise DataError(
                f"{reader.path}: its agent has no replay buffer, so that the run has no transitions: train with "
                "--keep-data"
            )
        is_kept = checkpoint.data is not None
        if not is_kept and manifest.first:
            notes.append(f"its replay buffer has lost the first {manifest.first} rows: --keep-data keeps all")
        return RunData(reader.path, manifest, is_kept, _spaces(reader.path) if is_kept else (None, None), tuple(notes))
    raise DataError(f"{reader.path}: there is no intact checkpoint yet, so that the run has no transitions")


def _spaces(run: Path) -> tuple[Any, Any]:
    path = run / "data" / "spaces.json"
    if not path.exists():
        return None, None
    try:
        texts = msgspec.json.decode(files.read_bytes(path, most=_MOST_JSON), type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    observation, action = (
        read_space(texts[name], name=f"{path}: {name}") if name in texts else None
        for name in ("observation_space", "action_space")
    )
    return observation, action


def _inferred(spec: ArraySpec, found: tuple[Any, Any] | None, is_action: bool) -> Any:
    least, most = found or (0, 0)
    return inferred_space(spec.shape, spec.dtype, least, most, is_action=is_action)


class _Linked(NamedTuple):
    """Rows sorted into episodes."""

    rows: int
    columns: Mapping[str, ArraySpec]
    """The columns, with whole observations."""
    ranges: dict[str, tuple[Any, Any]]
    """The least and the greatest value of actions, and of observations that are whole numbers."""
    fill: Callable[[dict[str, Array], Callable[[int], None]], None]


def _fill_nothing(_columns: dict[str, Array], _report: Callable[[int], None]) -> None:
    """There are no rows."""


class _Ranges:
    """Finds the least and the greatest values of columns."""

    def __init__(self, columns: Mapping[str, ArraySpec]) -> None:
        self._names = [
            name
            for name, spec in columns.items()
            if name == "action" or (name.startswith("observation") and spec.dtype.kind in "iu" and not spec.shape)
        ]
        self.found: dict[str, tuple[Any, Any]] = {}

    def add(self, rows: Mapping[str, Array], kept: Array) -> None:
        for name in self._names:
            values = rows[name][kept]
            if len(values):
                least, most = self.found.get(name, (values[0], values[0]))
                self.found[name] = (np.minimum(least, values.min(axis=0)), np.maximum(most, values.max(axis=0)))


def _linked_rows(data: RunData) -> _Linked:
    """The rows of a `Memory`, or of kept data."""
    manifest, base = data.manifest, data.manifest.first
    columns = dict(manifest.columns)
    ranges = _Ranges(columns)
    links = [name for name in ("status", "previous", "older") if name in columns]
    pieces: dict[str, list[Array]] = {name: [] for name in links}
    for rows in data.each():
        ranges.add(rows, rows["status"] < NO_STEP)
        for name in links:
            pieces[name].append(rows[name])
    if not pieces["status"]:
        return _Linked(0, columns, {}, _fill_nothing)
    status = np.concatenate(pieces["status"])
    previous = np.concatenate(pieces["previous"]) - base
    older = np.concatenate(pieces["older"]) - base if "older" in columns else None
    _check_links(data.path, status, previous, np.concatenate(pieces["previous"]))
    frames = [np.arange(len(status))]
    """For each row, the rows with the frames of its observation, the newest first."""
    if older is not None:
        depth = _depth(data.path, status, previous, older)
        for _ in range(depth - 1):
            frames.append(np.where(frames[-1] >= 0, older[np.maximum(frames[-1], 0)], -1))
        for name, spec in columns.items():
            if name.startswith("observation"):
                columns[name] = ArraySpec(spec.dtype, (depth, *spec.shape))
    order, status = _sorted(status, previous, is_whole=np.min(frames, axis=0) >= 0)
    place = np.full(len(status), NONE)
    place[order] = np.arange(len(order))

    def fill(out: dict[str, Array], report: Callable[[int], None]) -> None:
        out["status"][:] = status[order]
        first = 0
        for rows in data.each():
            end = first + len(rows["status"])
            for name, values in rows.items():
                check_numbers(values, name=f"{data.path}: {name}", first=base + first)
                if name.startswith("observation"):
                    for age, sources in enumerate(frames):
                        _scatter(out[name], values, place, sources, first, end, None if older is None else -1 - age)
            here = place[first:end]
            is_step = (here != NONE) & (status[first:end] < NO_STEP)
            for name in ("action", "reward"):
                out[name][here[is_step]] = rows[name][is_step]
            first = end
            report(min(first, len(order)))
        report(len(order))

    return _Linked(len(order), columns, ranges.found, fill)


def _scatter(
    out: Array, values: Array, place: Numbers, sources: Numbers, first: int, end: int, frame: int | None
) -> None:
    """Write the rows `first` to `end` to all places that show them."""
    shows = np.flatnonzero((sources >= first) & (sources < end) & (place != NONE))
    rows = values[sources[shows] - first]
    if frame is None:
        out[place[shows]] = rows
    else:
        out[place[shows], frame] = rows


def _check_links(path: Path, status: Array, previous: Numbers, stored: Numbers) -> None:
    """Raise unless the rows are linked as a replay buffer links them."""
    numbers = np.arange(len(status))
    is_start = status >= NO_STEP
    wrong = (status > FRAGMENT) | (is_start != (stored == NONE)) | (previous >= numbers)
    held = ~is_start & (previous >= 0)
    following = np.full(len(status), NONE)
    following[previous[held]] = numbers[held]
    before = previous[held]
    ended = (status[before] != _CONTINUING) & (status[before] < NO_STEP)
    wrong[numbers[held]] |= (following[before] != numbers[held]) | ended
    if wrong.any():
        raise DataError(
            f"{path}: status: row {int(np.argmax(wrong))} of the journal is not linked to the rows before it"
        )


def _depth(path: Path, status: Array, previous: Numbers, older: Numbers) -> int:
    """How many frames an observation has: those from the first step of an episode back to its first row."""
    steps = np.flatnonzero((status < NO_STEP) & (previous >= 0))
    first = steps[status[previous[steps]] == NO_STEP]
    if len(first):
        row, depth = int(previous[first[-1]]), 1
        while older[row] >= 0 and depth <= _MOST_FRAMES:
            row, depth = int(older[row]), depth + 1
        if depth <= _MOST_FRAMES:
            return depth
    raise DataError(
        f"{path}: older: no episode begins in the replay journal, so that its stacked frames cannot be read"
    )


def _sorted(status: Array, previous: Numbers, *, is_whole: Array) -> tuple[Numbers, Array]:
    """The rows of episodes one after the other, in the order of their first rows, and the statuses of all rows.

    A step whose observation is not held becomes the first row of a fragment. Rows without a step are left out.
    """
    status = status.copy()
    is_step = (status < NO_STEP) & is_whole
    before = np.where(is_step, previous, NONE)
    has_before = (before >= 0) & is_whole[np.maximum(before, 0)]
    status[is_step & ~has_before] = FRAGMENT
    is_step &= has_before
    root = np.where(is_step, before, np.arange(len(status)))
    while not np.array_equal(root, further := root[root]):
        root = further
    has_step = np.zeros(len(status), np.bool_)
    has_step[root[is_step]] = True
    kept = np.flatnonzero(is_whole & has_step[root])
    return kept[np.argsort(root[kept], kind="stable")], status


def _linked_ring(data: RunData) -> _Linked:
    """The rows of a `Ring`: a transition each, which continues the row before if its observation is the same."""
    parts: dict[str, list[Array]] = {name: [] for name in data.manifest.columns}
    for rows in data.each():
        for name, values in rows.items():
            parts[name].append(values)
    rows = {name: np.concatenate(values) for name, values in parts.items() if values}
    columns = {name: spec for name, spec in data.manifest.columns.items() if not name.startswith("next_observation")}
    if not rows:
        return _Linked(0, columns, {}, _fill_nothing)
    status = rows["status"]
    observed = [name for name in rows if name.startswith("observation")]
    continues = np.zeros(len(status), np.bool_)
    continues[1:] = status[:-1] == _CONTINUING
    for name in observed:
        same = rows[name][1:] == rows[f"next_{name}"][:-1]
        continues[1:] &= every_row(same) if len(same) else True
    count = np.where(continues, 1, 2)
    steps = np.cumsum(count) - 1
    starts = steps[~continues] - 1
    ranges = _Ranges(columns)
    ranges.add(rows, np.ones(len(status), np.bool_))

    def fill(out: dict[str, Array], report: Callable[[int], None]) -> None:
        for name in observed:
            for values in (rows[name], rows[f"next_{name}"]):
                check_numbers(values, name=f"{data.path}: {name}", first=data.manifest.first)
            out[name][steps] = rows[f"next_{name}"]
            out[name][starts] = rows[name][~continues]
        for name in ("action", "reward", "status"):
            out[name][steps] = rows[name]
        fragment = np.concatenate([[bool(data.manifest.first)], status[:-1] == _CONTINUING])
        out["status"][starts] = np.where(fragment, FRAGMENT, NO_STEP)[~continues]
        report(int(count.sum()))

    return _Linked(int(count.sum()), columns, ranges.found, fill)
