"""Read flat arrays, one row a transition: D4RL's HDF5 files, and npz files.

| field | rows |
|---|---|
| `observations` | one a transition; with `episode_lengths`, one more an episode |
| `actions`, `rewards` | one a transition |
| `terminals` or `terminations` | flags: the task ended |
| `timeouts` or `truncations` | flags: the episode was cut short |
| `next_observations` | optional: the observation after each transition |
| `episode_lengths` | optional: the number of transitions of each episode |

Named observations, and parts of composite actions, are `observations/<name>` and `actions/<name>`. An npz file may have
the texts `observation_space` and `action_space`, in Minari's form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from rekindle.checks import every_row
from rekindle.data.cache import Plan
from rekindle.data.columns import DataLayout
from rekindle.data.hdf5 import Hdf5
from rekindle.data.npz import Npz
from rekindle.data.values import check_actions, check_numbers, check_observations, converted, read_flags
from rekindle.errors import DataError, InputError
from rekindle.experience import Array, EpisodeStatus
from rekindle.replay.links import NO_STEP
from rekindle.space_json import inferred_space, read_space
from rekindle.spaces import ArraySpec, SpacePart, SpaceParts

__all__ = ["plan_flat"]

_PIECE_BYTES = 2**25
_TERMINATIONS, _TRUNCATIONS = ("terminals", "terminations"), ("timeouts", "truncations")
_KNOWN = {
    *("observations", "next_observations", "actions", "rewards", "episode_lengths"),
    *("observation_space", "action_space", *_TERMINATIONS, *_TRUNCATIONS),
}
_CONTINUING, _TRUNCATED = int(EpisodeStatus.CONTINUING), int(EpisodeStatus.TRUNCATED)
Numbers = NDArray[np.int64]


class FlatFile(Protocol):
    """Named arrays that are read from their beginning to their end."""

    path: Path

    def names(self) -> list[str]:
        """The names of the arrays."""
        ...

    def spec(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """The shape and dtype of an array."""
        ...

    def pieces(self, name: str, rows: int) -> Iterator[Array]:
        """The rows of an array in order, at most `rows` at a time."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class FlatHdf5(Hdf5):
    """The arrays of an HDF5 file; those of a group are named `group/name`."""

    def names(self) -> list[str]:
        """The names of the arrays, and of what is not an array."""
        found: list[str] = []
        for name in self.keys():
            is_nested = name in ("observations", "next_observations", "actions") and self.is_group(name)
            found += [f"{name}/{key}" for key in self.keys(name)] if is_nested else [name]
        return found

    def spec(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """The shape and dtype of an array."""
        array = self._known(name)
        return tuple(array.shape), array.dtype

    def _known(self, name: str) -> Any:
        array = self.array(name)
        if array is None:
            raise DataError(f"{self.path}: {name} is missing")
        return array

    def pieces(self, name: str, rows: int) -> Iterator[Array]:
        """The rows of an array in order, at most `rows` at a time."""
        array = self._known(name)
        count = array.shape[0]
        for first in range(0, count, rows):
            yield self.rows(array, name, first, min(first + rows, count))


class _Rows(NamedTuple):
    """Which row of the data set each row of the file becomes."""

    total: int
    copies: Numbers
    """How many rows an observation becomes: 0, 1, or 2 with the observation after it."""
    position: Numbers
    """The row of each observation."""
    step: Numbers
    """The row of each transition; -1 if it is left out."""
    status: Array
    """The status of each transition."""
    starts: Numbers
    """The first rows of episodes."""
    shortened: Numbers
    """The rows whose step became the last of its episode, as the true last one was left out."""


def plan_flat(path: Path, *, is_npz: bool, spaces: tuple[Any, Any], timeout_after: int | None) -> Plan:
    """Check the fields of a file, and plan its conversion; `spaces` replace those of the file."""
    file: FlatFile = Npz(path) if is_npz else FlatHdf5(path)
    try:
        return _planned(file, spaces, timeout_after)
    except BaseException:
        file.close()
        raise


def _planned(file: FlatFile, spaces: tuple[Any, Any], timeout_after: int | None) -> Plan:
    fields = _Fields(file)
    rows = fields.rows(timeout_after)
    names = ("observation", "action")
    known = [fields.space(name) if given is None else given for name, given in zip(names, spaces, strict=True)]
    inferred = tuple(f"{name}_space" for name, space in zip(names, known, strict=True) if space is None)
    made = [fields.inferred(name) if space is None else space for name, space in zip(names, known, strict=True)]
    layout = DataLayout(made[0], made[1], file.spec("rewards")[1], name=str(file.path))

    def fill(columns: dict[str, Array], report: Callable[[int], None]) -> None:
        _fill(fields, layout, rows, columns, report)

    return Plan(rows.total, layout, inferred, tuple(fields.notes), fill, file.close)


class _Fields:
    """The fields of a file, checked."""

    def __init__(self, file: FlatFile) -> None:
        self.file = file
        self.notes: list[str] = []
        self._names = set(file.names())
        self.observations = self._parts("observations")
        self.actions = self._parts("actions")
        self.next_observations = self._parts("next_observations", is_optional=True)
        if self.next_observations and self.next_observations.keys() != self.observations.keys():
            raise DataError(f"{file.path}: next_observations has other parts than observations")
        if "rewards" not in self._names:
            raise DataError(f"{file.path}: rewards is missing")
        self.has_lengths = "episode_lengths" in self._names
        ignored = sorted({name.partition("/")[0] for name in self._names} - _KNOWN)
        if ignored:
            self.notes.append(f"ignored what is not part of transitions: {', '.join(ignored[:20])}")
        self.terminations = self._one_of(_TERMINATIONS)
        self.truncations = self._one_of(_TRUNCATIONS)
        self.transitions = self._count(["rewards"])

    def _parts(self, field: str, *, is_optional: bool = False) -> dict[str, str]:
        """The arrays of a field, by the names of the parts of the space."""
        if field in self._names:
            return {"": field}
        parts = {name.removeprefix(f"{field}/"): name for name in sorted(self._names) if name.startswith(f"{field}/")}
        if not parts and not is_optional:
            there = ", ".join(sorted(self._names)[:20]) or "none"
            raise DataError(f"{self.file.path}: {field} is missing; there are {there}")
        return parts

    def _one_of(self, names: tuple[str, str]) -> str | None:
        found = [name for name in names if name in self._names]
        if len(found) > 1:
            raise DataError(f"{self.file.path}: it has {found[0]} and {found[1]}, which mean the same: remove one")
        return found[0] if found else None

    def _count(self, names: list[str]) -> int:
        counts = {name: self.file.spec(name)[0][:1] for name in names}
        for name, count in counts.items():
            if not count or not count[0]:
                raise DataError(f"{self.file.path}: {name} has no rows")
        return next(iter(counts.values()))[0]

    def _values(self, name: str) -> Array:
        self._count([name])
        return np.concatenate([*self.file.pieces(name, _PIECE_BYTES)])

    def _flags(self, name: str) -> Array:
        return read_flags(self._values(name), self.transitions, name=f"{self.file.path}: {name}")

    # Rows

    def rows(self, timeout_after: int | None) -> _Rows:
        """The rows of the data set; raises `DataError` if the file does not say where episodes end, and how."""
        count, path = self.transitions, self.file.path
        if self.terminations is None:
            raise DataError(f"{path}: terminals is missing: add one flag a row, true where the task ended")
        terminated = self._flags(self.terminations)
        if self.truncations is not None:
            truncated = self._flags(self.truncations)
        elif timeout_after is not None:
            truncated = _timeouts(terminated, timeout_after)
            self.notes.append(f"episodes are taken to be cut short after {timeout_after} steps")
        elif self.has_lengths:
            raise DataError(f"{path}: timeouts is missing: add one flag a row, true where an episode was cut short")
        else:
            raise DataError(
                f"{path}: timeouts is missing, so that the end of a task and a time limit cannot be told apart: add "
                "one flag a row, true where an episode was cut short (all false if none was); or pass --timeout-after "
                "N (in Python, timeout_after=N) if every episode was cut short after N steps"
            )
        status = EpisodeStatus.of_many(terminated, truncated)
        whole = [*self.actions.values(), "rewards"] + ([] if self.has_lengths else [*self.observations.values()])
        for name in [*whole, *self.next_observations.values()]:
            self._check_rows(name, count, "rewards")
        if self.has_lengths:
            return self._rows_of_lengths(status)
        return self._rows_of_flags(status)

    def _check_rows(self, name: str, count: int, than: str) -> None:
        rows = self.file.spec(name)[0][:1]
        if rows != (count,):
            raise DataError(f"{self.file.path}: {name} has {rows[0] if rows else 0} rows, but {than} has {count}")

    def _rows_of_lengths(self, status: Array) -> _Rows:
        path = self.file.path
        lengths = self._values("episode_lengths")
        if lengths.dtype.kind not in "iu" or lengths.ndim != 1 or lengths.min() < 1:
            raise DataError(f"{path}: episode_lengths must be whole numbers of at least 1, one an episode")
        steps = sum(lengths.tolist())  # without the limits of an int64
        if steps != len(status):
            raise DataError(f"{path}: episode_lengths has the sum {steps}, but rewards has {len(status)} rows")
        lengths = lengths.astype(np.int64)
        total = len(status) + len(lengths)
        for name in self.observations.values():
            rows = self._count([name])
            if rows == len(status):
                raise DataError(
                    f"{path}: {name} has {rows} rows, one a transition: with episode_lengths each episode needs one "
                    f"more, the observation after its last transition ({total} in all); add them"
                )
            self._check_rows(name, total, "episode_lengths, with one more row for each episode,")
        last = np.cumsum(lengths) - 1
        early = np.flatnonzero(status)
        early = early[~np.isin(early, last)]
        if len(early):
            field = self.terminations if status[early[0]] != _TRUNCATED else self.truncations
            raise DataError(f"{path}: {field}: row {early[0]} ends an episode, but episode_lengths continues after it")
        ones = np.ones(total, np.int64)
        starts = np.cumsum(lengths + 1) - (lengths + 1)
        step = np.delete(np.arange(total), starts)
        return _Rows(total, ones, np.arange(total), step, status, starts, np.empty(0, np.int64))

    def _rows_of_flags(self, status: Array) -> _Rows:
        has_next = bool(self.next_observations)
        ended = status != _CONTINUING
        starts = np.concatenate([[True], ended[:-1]])
        last = ended.copy()
        last[-1] = True
        # Without next_observations, the observation after a cut is unknown. After a termination no value depends on it.
        has_extra = last & ((status == int(EpisodeStatus.TERMINATED)) | has_next)
        left_out = last & ~has_extra
        count = np.where(has_extra, 2, 1) - (left_out & starts)
        position = np.cumsum(count) - count
        step = np.where(left_out, -1, position + 1)
        total = int(count.sum())
        if not total:
            raise DataError(f"{self.file.path}: it has no complete transition: add next_observations")
        shortened = position[left_out & ended & ~starts]
        if left_out.any():
            self.notes.append(
                f"{int(left_out.sum())} transitions at the ends of episodes are left out: the observation after a cut "
                "is only in next_observations, which the file does not have"
            )
        if not has_next and (terminated := int((status == int(EpisodeStatus.TERMINATED)).sum())):
            self.notes.append(
                f"the observations after {terminated} terminations are not in the file: the ones before are repeated, "
                "and nothing bootstraps from them"
            )
        kept = starts & (count > 0)
        return _Rows(total, count, position, step, status, position[kept], shortened)

    # Spaces

    def space(self, name: str) -> Any:
        """The space that an npz file stores; None if there is none."""
        field = f"{name}_space"
        if not isinstance(self.file, Npz) or field not in self._names:
            return None
        return read_space(self.file.text(field), name=f"{self.file.path}: {field}")

    def inferred(self, name: str) -> Any:
        """A space for the values of a field."""
        parts = self.observations if name == "observation" else self.actions
        after = self.next_observations if name == "observation" else {}
        made = {key: self._inferred(array, after.get(key), is_action=name == "action") for key, array in parts.items()}
        from gymnasium.spaces import Dict  # slow to import, and the help of commands needs none of it

        return made[""] if "" in made else Dict(made)

    def _inferred(self, field: str, after: str | None, *, is_action: bool) -> Any:
        shape, dtype = self.file.spec(field)
        if dtype.kind not in "biuf":
            raise DataError(f"{self.file.path}: {field} has the dtype {dtype}, not numbers")
        if 0 in shape:
            raise DataError(f"{self.file.path}: {field} has the shape {shape}: there are no numbers in it")
        least: Any = 0
        most: Any = 0
        if is_action or (dtype.kind in "iu" and len(shape) == 1):
            # An observation may be in next_observations only, as the last one of a task.
            fields = [field] if after is None or self.file.spec(after)[1].kind not in "iu" else [field, after]
            pieces = (piece for each in fields for piece in self.file.pieces(each, self.piece_rows(each)))
            axis = 0 if is_action else None
            ranges = [(piece.min(axis=axis), piece.max(axis=axis)) for piece in pieces]
            least = np.min([low for low, _ in ranges], axis=0)
            most = np.max([high for _, high in ranges], axis=0)
        try:
            return inferred_space(shape[1:], dtype, least, most, is_action=is_action)
        except OverflowError:
            raise DataError(f"{self.file.path}: {field} is from {least} to {most}: too many values") from None

    def piece_rows(self, field: str) -> int:
        """How many rows of a field are read at once."""
        shape, dtype = self.file.spec(field)
        return max(1, _PIECE_BYTES // max(1, int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize))


def _timeouts(terminated: Array, steps: int) -> Array:
    """Flags for an episode that is cut short after this many steps, unless it terminates before."""
    flags = np.zeros(len(terminated), np.bool_)
    ends = [*np.flatnonzero(terminated).tolist(), len(terminated)]
    first = 0
    for end in ends:
        flags[first + steps - 1 : end : steps] = True
        first = end + 1
    return flags


def _fill(
    fields: _Fields, layout: DataLayout, rows: _Rows, columns: dict[str, Array], report: Callable[[int], None]
) -> None:
    file = fields.file
    done = 0
    shares = len(fields.observations) + 2
    for part, column in zip(_parts(layout.observation_space, fields.observations, file), layout.observation.columns):  # noqa: B905 - checked by _parts
        for end in _fill_observations(fields, part, rows, columns[column]):
            report(done + end // shares)
        done += rows.total // shares
    actions = columns["action"]
    first = 0
    parts = _parts(layout.action_space, fields.actions, file)
    size = min(fields.piece_rows(field) for _, field, _ in parts)
    for pieces in zip(*(file.pieces(field, size) for _, field, _ in parts), strict=True):
        end = first + len(pieces[0])
        steps = rows.step[first:end]
        kept = steps >= 0
        actions[steps[kept]] = _actions(layout, parts, pieces, file, first)[kept]
        first = end
        report(done + first // shares)
    first = 0
    for rewards in file.pieces("rewards", _PIECE_BYTES):
        if rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
            raise DataError(f"{file.path}: rewards is {rewards.dtype} {rewards.shape}: one number a row is needed")
        check_numbers(rewards, name=f"{file.path}: rewards", first=first)
        steps = rows.step[first : first + len(rewards)]
        columns["reward"][steps[steps >= 0]] = rewards[steps >= 0]
        first += len(rewards)
    status, kept = columns["status"], rows.step >= 0
    status[rows.step[kept]] = rows.status[kept]
    status[rows.starts] = NO_STEP
    status[rows.shortened] = _TRUNCATED
    report(rows.total)


_Part = tuple[SpacePart, str, str]
"""A part of a space, its array, and its name."""


def _parts(space: Any, arrays: dict[str, str], file: FlatFile) -> list[_Part]:
    parts = SpaceParts.of(space).parts
    if parts.keys() != arrays.keys():
        raise DataError(f"{file.path}: the space has the parts {sorted(parts)}, but the file {sorted(arrays)}")
    return [(part, arrays[name], name) for name, part in parts.items()]


def _fill_observations(fields: _Fields, part: _Part, rows: _Rows, column: Array) -> Iterator[int]:
    """Write the observations of one part; yields how many rows are done."""
    space_part, field, name = part
    file, spec = fields.file, cast("ArraySpec", space_part.spec)  # DataLayout has refused others
    size = fields.piece_rows(field)
    following: Iterator[Array] | None = None
    if fields.next_observations and not fields.has_lengths:
        following = file.pieces(fields.next_observations[name], size)
    first, carried = 0, None
    for piece in file.pieces(field, size):
        values = converted(piece, spec, name=f"{file.path}: {field}", first=first)
        check_observations(values, space_part.space, name=f"{file.path}: {field}", first=first)
        end = first + len(values)
        count = rows.copies[first:end]
        out = np.repeat(values, count, axis=0)
        if following is not None:
            after_field = fields.next_observations[name]
            after = converted(next(following), spec, name=f"{file.path}: {after_field}", first=first)
            check_observations(after, space_part.space, name=f"{file.path}: {after_field}", first=first)
            if carried is not None:
                _check_continued(carried, values[:1], rows, first - 1, file, fields)
            _check_continued(after[:-1], values[1:], rows, first, file, fields)
            carried = after[-1:]
            extra = count == 2
            out[rows.position[first:end][extra] + 1 - rows.position[first]] = after[extra]
        start = int(rows.position[first])
        column[start : start + len(out)] = out
        first = end
        yield start + len(out)


def _check_continued(after: Array, before: Array, rows: _Rows, first: int, file: FlatFile, fields: _Fields) -> None:
    """Raise unless each observation is the one after the transition before it, or starts an episode."""
    if not len(after):
        return
    goes_on = rows.status[first : first + len(after)] == _CONTINUING
    same = every_row(after == before)
    for row in np.flatnonzero(goes_on & ~same).tolist():
        if not np.allclose(after[row], before[row], rtol=1e-4, atol=1e-5):
            raise DataError(
                f"{file.path}: {fields.truncations or 'timeouts'}: row {first + row} is not marked as the end of an "
                f"episode, but observations of row {first + row + 1} are not its next_observations: mark it if the "
                "episode was cut short there"
            )


def _actions(layout: DataLayout, parts: list[_Part], pieces: tuple[Array, ...], file: FlatFile, first: int) -> Array:
    leaves: dict[str, Array] = {}
    for (part, field, name), piece in zip(parts, pieces, strict=True):
        spec = cast("ArraySpec", part.spec)  # DataLayout has refused others
        if not spec.shape and piece.ndim == 2 and piece.shape[1] == 1:
            piece = piece[:, 0]  # noqa: PLW2901 - a column of numbers
        leaves[name] = converted(piece, spec, name=f"{file.path}: {field}", first=first)
        check_actions(leaves[name], part.space, name=f"{file.path}: {field}", first=first)
    if layout.structure is None:
        return leaves[""]
    try:
        return layout.structure.flat(leaves, "actions", rows=len(pieces[0]))
    except InputError as error:
        raise DataError(f"{file.path}: {error}; see the rows from {first}") from None
