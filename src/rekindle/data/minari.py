"""Read data sets in Minari's layout: `metadata.json`, and `main_data.hdf5` with a group for each episode."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from rekindle.data.cache import Plan
from rekindle.data.columns import DataLayout
from rekindle.data.hdf5 import Hdf5
from rekindle.data.values import check_actions, check_numbers, check_observations, converted, read_flags
from rekindle.errors import DataError, InputError
from rekindle.experience import Array, EpisodeStatus
from rekindle.replay.links import NO_STEP
from rekindle.space_json import leaf_keys, read_space
from rekindle.spaces import ArraySpec, SpaceParts
from rekindle.storage import files

__all__ = ["MAIN_FILE", "METADATA_FILE", "find_minari", "minari_files", "plan_minari"]

MAIN_FILE = "main_data.hdf5"
METADATA_FILE = "metadata.json"
_MOST_JSON = 2**26
_EPISODE = re.compile(r"episode_(0|[1-9][0-9]*)")


def find_minari(path: Path) -> Path | None:
    """The directory with the files of a Minari data set: the path itself, or `data` in it; None if it is none."""
    for directory in (path, path / "data"):
        if (directory / MAIN_FILE).is_file() and (directory / METADATA_FILE).is_file():
            return directory
        if (directory / METADATA_FILE).is_file() and "data_format" in _metadata_of(directory):
            return directory
    return None


def minari_files(directory: Path) -> list[Path]:
    """The files whose content is the data set; raises `DataError` if it is stored in another format."""
    found = _metadata_of(directory).get("data_format", "hdf5")
    if found != "hdf5":
        raise DataError(f"{directory / METADATA_FILE}: data_format is {found!r:.40}: only hdf5 can be read")
    return [directory / METADATA_FILE, directory / MAIN_FILE]


def _metadata_of(directory: Path) -> dict[str, Any]:
    path = directory / METADATA_FILE
    try:
        found: Any = json.loads(files.read_bytes(path, most=_MOST_JSON))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} is not a JSON object")
    return cast("dict[str, Any]", found)


class _Group(NamedTuple):
    """The group of an episode."""

    name: str
    steps: int


def plan_minari(directory: Path, *, spaces: tuple[Any, Any]) -> Plan:
    """Check the structure of a data set, and plan its conversion; `spaces` replace those of the metadata."""
    metadata = _metadata_of(directory)
    names = ("observation_space", "action_space")
    known = [
        _space(metadata, name, directory) if given is None else given for name, given in zip(names, spaces, strict=True)
    ]
    path = directory / MAIN_FILE
    file = Hdf5(path)
    try:
        groups = _groups(file)
        _check_totals(metadata, groups, directory)
        reward = file.array(f"{groups[0].name}/rewards").dtype
        layout = DataLayout(known[0], known[1], reward, name=str(path))
    except BaseException:
        file.close()
        raise
    reader = _Reader(file, layout, has_jpeg=bool(metadata.get("jpeg_encoding", True)))

    def fill(columns: dict[str, Array], report: Callable[[int], None]) -> None:
        reader.fill(columns, groups, report)

    return Plan(sum(group.steps + 1 for group in groups), layout, (), (), fill, file.close)


def _space(metadata: Mapping[str, Any], name: str, directory: Path) -> Any:
    where = f"{directory / METADATA_FILE}: {name}"
    if name not in metadata:
        raise DataError(f"{where} is missing; give the space when you open the data, or add it")
    return read_space(metadata[name], name=where)


def _groups(file: Hdf5) -> list[_Group]:
    names = [name for name in file.keys() if _EPISODE.fullmatch(name)]  # noqa: SIM118 - a method, not a dict
    if not names:
        raise DataError(f"{file.path}: there is no group episode_0: it has no episodes")
    names.sort(key=lambda name: int(name.removeprefix("episode_")))
    groups: list[_Group] = []
    for name in names:
        rewards = file.array(f"{name}/rewards")
        if rewards is None:
            raise DataError(f"{file.path}: {name}/rewards is missing")
        if len(rewards.shape) != 1 or not rewards.shape[0]:
            raise DataError(f"{file.path}: {name}/rewards has the shape {rewards.shape}: one number a step is needed")
        groups.append(_Group(name, int(rewards.shape[0])))
    return groups


def _check_totals(metadata: Mapping[str, Any], groups: list[_Group], directory: Path) -> None:
    """Raise `DataError` if the metadata count other episodes or steps than there are, as after an unfinished copy."""
    found = {"total_episodes": len(groups), "total_steps": sum(group.steps for group in groups)}
    for name, count in found.items():
        said = metadata.get(name, count)
        if said != count:
            raise DataError(
                f"{directory / METADATA_FILE}: {name} is {said!r:.40}, but {MAIN_FILE} has {count}: copy the data set "
                f"again, or correct {name}"
            )


class _Reader:
    """Reads episodes, and checks them."""

    def __init__(self, file: Hdf5, layout: DataLayout, *, has_jpeg: bool) -> None:
        self._file, self._layout = file, layout
        self._observations = _paths(layout.observation_space)
        self._actions = _paths(layout.action_space)
        self._observation_parts = SpaceParts.of(layout.observation_space).parts
        self._action_parts = SpaceParts.of(layout.action_space).parts
        self._has_jpeg = has_jpeg

    def fill(self, columns: Mapping[str, Array], groups: list[_Group], report: Callable[[int], None]) -> None:
        """Write all episodes to columns."""
        first = 0
        names = list(self._layout.observation.columns)
        for group in groups:
            name, end = group.name, first + group.steps + 1
            for column, part, path in zip(names, self._observation_parts.values(), self._observations, strict=True):
                field = f"{name}/observations{path}"
                columns[column][first:end] = leaf = self._leaf(field, part.spec, group.steps, extra=1)
                check_observations(leaf, part.space, name=f"{self._file.path}: {field}")
            columns["action"][first + 1 : end] = self._read_actions(group)
            columns["reward"][first + 1 : end] = self._rewards(f"{name}/rewards")
            columns["status"][first] = NO_STEP
            columns["status"][first + 1 : end] = self._statuses(group)
            report(end)
            first = end

    def _read_actions(self, group: _Group) -> Array:
        layout, name = self._layout, f"{group.name}/actions"
        leaves: dict[str, Array] = {}
        for (key, part), path in zip(self._action_parts.items(), self._actions, strict=True):
            leaves[key] = self._leaf(f"{name}{path}", part.spec, group.steps, extra=0)
            check_actions(leaves[key], part.space, name=f"{self._file.path}: {name}{path}")
        if layout.structure is None:
            return leaves[""]
        try:
            return layout.structure.flat(leaves, f"{name}", rows=group.steps)
        except InputError as error:
            raise DataError(f"{self._file.path}: {error}") from None

    def _leaf(self, field: str, spec: ArraySpec | None, steps: int, *, extra: int) -> Array:
        """The values of one array in every step, in the dtype of its space."""
        array, rows = self._file.array(field), steps + extra
        where = f"{self._file.path}: {field}"
        if array is None or spec is None:
            raise DataError(f"{where} is missing")
        if self._has_jpeg and array.dtype == np.uint8 and len(array.shape) == 2 and len(spec.shape) in (2, 3):
            raise DataError(f"{where} holds JPEG images: write the data with jpeg_encoding=False")
        if array.shape[:1] == (steps,) and extra:
            raise DataError(
                f"{where} has {steps} rows for {steps} steps: {rows} are needed, as the observation after the last "
                "step belongs to the episode; add it"
            )
        if array.shape[:1] != (rows,):
            raise DataError(f"{where} has {array.shape[:1]} rows, and {steps} rewards need {rows}")
        return converted(self._file.rows(array, field), spec, name=where)

    def _rewards(self, field: str) -> Array:
        rewards = self._file.rows(self._file.array(field), field)
        check_numbers(rewards, name=f"{self._file.path}: {field}")
        return rewards

    def _statuses(self, group: _Group) -> Array:
        flags: list[Array] = []
        for field in ("terminations", "truncations"):
            name = f"{group.name}/{field}"
            array = self._file.array(name)
            if array is None:
                advice = "terminations and truncations cannot be told apart without it; add one flag a step"
                raise DataError(f"{self._file.path}: {name} is missing: {advice}")
            values = self._file.rows(array, name)
            flags.append(read_flags(values, group.steps, name=f"{self._file.path}: {name}"))
        statuses = EpisodeStatus.of_many(*flags)
        early = np.flatnonzero(statuses[:-1])
        if len(early):
            field = "terminations" if flags[0][early[0]] else "truncations"
            where = f"{self._file.path}: {group.name}/{field}"
            raise DataError(f"{where}: row {early[0]} ends the episode, but it has {group.steps} steps")
        return statuses


def _paths(space: Any) -> list[str]:
    """For each array of a space, the path below the group `observations` or `actions`."""
    nesting = SpaceParts.of(space).nesting
    if nesting is None:
        return [""]
    return [
        "".join(f"/_index_{key}" if isinstance(key, int) else f"/{key}" for key in keys)
        for keys in leaf_keys(nesting.tree)
    ]
