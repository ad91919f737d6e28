"""Write data sets in Minari's layout, or as npz."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import zipfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rekindle.data.cache import Progress
from rekindle.data.columns import DataLayout, is_start
from rekindle.data.dataset import Dataset
from rekindle.data.hdf5 import load_h5py
from rekindle.data.minari import MAIN_FILE, METADATA_FILE
from rekindle.errors import ConfigError, DataError, Interrupted, RekindleError, StorageError
from rekindle.experience import Array, EpisodeStatus, Observations
from rekindle.interrupt import ShouldStop, never
from rekindle.nesting import Nesting
from rekindle.space_json import leaf_keys, space_text
from rekindle.spaces import SpaceParts
from rekindle.storage import files, npy

__all__ = ["MinariWriter", "export_minari", "export_npz", "minari_writer"]

_MINARI_VERSION = "0.5.0"
"""The version of the layout; Minari reads files of its version and of earlier ones."""
_ERRNO = re.compile(r"errno = (\d+)")
"""In a message of HDF5."""
_NAME = re.compile(r"[-_\w]+-v\d+")
_MOST_CHUNK = 2**30
"""Bytes of an array above which it is stored in several chunks."""


def export_minari(
    dataset: Dataset, directory: str | Path, *, progress: Progress | None = None, should_stop: ShouldStop = never
) -> str:
    """Write a data set in Minari's layout to a directory that does not exist yet; needs the extra `data`.

    An episode whose end is not in the data is marked as truncated at its last transition, as Minari does. Returns the
    digest of the data that was written, which is another one if there is such an episode, or one without a beginning.
    """
    layout = DataLayout(
        dataset.observation_space, dataset.action_space, dataset.columns["reward"].dtype, name=str(dataset.path)
    )
    with minari_writer(directory, layout) as writer:
        for number, episode in enumerate(dataset.episodes()):
            if should_stop():
                raise Interrupted("stopped while a data set was exported")
            writer.add(episode.observations, episode.actions, episode.rewards, episode.statuses)
            if progress is not None:
                progress(number + 1, dataset.num_episodes)
    return dataset.exported_digest(closes=True)


@contextlib.contextmanager
def minari_writer(
    directory: str | Path, layout: DataLayout, *, about: Mapping[str, Any] | None = None
) -> Generator[MinariWriter]:
    """Write a Minari data set; if the body raises, nothing is left. `about` are more fields of the metadata."""
    target = files.absolute(Path(directory))
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists already: choose another directory")
    h5py = load_h5py()
    files.make_directory(target.parent)
    building = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    with contextlib.ExitStack() as undo:
        files.make_directory(building / "data")
        undo.callback(files.remove_directory, building)
        path = building / "data" / MAIN_FILE
        try:
            with h5py.File(path, "w", track_order=True) as file:
                writer = MinariWriter(file, layout)
                yield writer
        except (OSError, RuntimeError) as error:  # of h5py, which does not always say why
            number = _ERRNO.search(str(error))
            if isinstance(error, RekindleError) or (number is None and not isinstance(error, OSError)):
                raise
            why = " ".join(str(error).split())[:200] if number is None else os.strerror(int(number[1]))
            raise StorageError(f"cannot write {target}: {why}") from error
        if not writer.episodes:
            raise DataError(f"{target}: there is no episode to write")
        npy.sync(path)
        name = target.name if _NAME.fullmatch(target.name) else re.sub(r"[^-_\w]", "-", target.name) + "-v0"
        metadata = {
            "dataset_id": name,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "minari_version": _MINARI_VERSION,
            "observation_space": space_text(layout.observation_space),
            "action_space": space_text(layout.action_space),
            "total_episodes": writer.episodes,
            "total_steps": writer.steps,
            "dataset_size": round(path.stat().st_size / 1e6, 1),
            **(about or {}),
        }
        files.write_atomic(building / "data" / METADATA_FILE, json.dumps(metadata, indent=2).encode())
        try:
            os.rename(building, target)
        except OSError as error:
            raise StorageError(f"cannot create {target}: {error.strerror}") from error
        undo.pop_all()
    files.sync_directory(target.parent)


class MinariWriter:
    """Adds episodes to a Minari data set."""

    def __init__(self, file: Any, layout: DataLayout) -> None:
        self._file, self._layout = file, layout
        self._nesting = SpaceParts.of(layout.observation_space).nesting
        self.episodes = self.steps = 0

    def add(
        self, observations: Observations, actions: Array, rewards: Array, statuses: Array, *, seed: int | None = None
    ) -> None:
        """Add an episode: flat rows of actions, and one more observation than actions."""
        group = self._file.create_group(f"episode_{self.episodes}")
        group.attrs["id"] = self.episodes
        group.attrs["total_steps"] = len(rewards)
        if seed is not None:
            group.attrs["seed"] = seed
        _put(group, "observations", observations, self._nesting)
        structure = self._layout.structure
        if structure is None:
            _put(group, "actions", actions, None)
        else:
            leaves = structure.nesting.leaves(structure.nested(actions), "actions")
            _put(group, "actions", dict(zip(structure.nesting.names, leaves, strict=True)), structure.nesting)
        truncated = statuses == EpisodeStatus.TRUNCATED
        truncated[-1] |= statuses[-1] == EpisodeStatus.CONTINUING
        for name, values in (
            ("rewards", rewards),
            ("terminations", statuses == EpisodeStatus.TERMINATED),
            ("truncations", truncated),
        ):
            _put(group, name, values, None)
        self.episodes += 1
        self.steps += len(rewards)


def _put(group: Any, name: str, values: Observations, nesting: Nesting | None) -> None:
    if nesting is None or not isinstance(values, Mapping):
        array = np.asarray(values)
        if not array.size:
            group.create_dataset(name, data=array)  # HDF5 has no empty chunks
            return
        # Arrays that Minari could extend later; small ones are stored in one chunk. HDF5 limits a chunk to 4 GB.
        rows = min(len(array), max(1, _MOST_CHUNK * len(array) // array.nbytes))
        chunks = (rows, *array.shape[1:])
        group.create_dataset(name, data=array, maxshape=(None, *array.shape[1:]), chunks=chunks)
        return
    for leaf, keys in zip(nesting.names, leaf_keys(nesting.tree), strict=True):
        if unnamed := [key for key in keys if key in ("", ".")]:
            raise ConfigError(f"HDF5 cannot hold {name} with the key {unnamed[0]!r}: rename it, or export to npz")
        path = "/".join(f"_index_{key}" if isinstance(key, int) else key for key in keys)
        _put(group, f"{name}/{path}", values[leaf], None)


def export_npz(dataset: Dataset, file: str | Path, *, should_stop: ShouldStop = never) -> str:
    """Write a data set as a new npz file, with `episode_lengths` and one more observation than transitions an episode.

    The fields are those that `Dataset.open` reads (see `rekindle.data.flat`). An episode whose end is not in the data
    has neither of the two flags. Returns the digest of what was written.
    """
    path, columns = files.absolute(Path(file)), dataset.columns
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already: choose another file")
    is_step = ~is_start(columns["status"])
    statuses = columns["status"][is_step]
    parts: dict[str, Any] = {
        **{name.replace("observation", "observations", 1).replace(".", "/", 1): name for name in _observed(dataset)},
    }
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    layout = DataLayout(dataset.observation_space, dataset.action_space, columns["reward"].dtype, name=str(path))
    actions: dict[str, Array] = {"actions": columns["action"][is_step]}
    if layout.structure is not None:
        nesting = layout.structure.nesting
        leaves = nesting.leaves(layout.structure.nested(actions["actions"]), "actions")
        actions = {f"actions/{name}": leaf for name, leaf in zip(nesting.names, leaves, strict=True)}
    arrays: dict[str, Array] = {
        **{name: columns[column] for name, column in parts.items()},
        **actions,
        "rewards": columns["reward"][is_step],
        "terminations": statuses == EpisodeStatus.TERMINATED,
        "truncations": statuses == EpisodeStatus.TRUNCATED,
        "episode_lengths": dataset.lengths,
        "observation_space": np.array(space_text(dataset.observation_space)),
        "action_space": np.array(space_text(dataset.action_space)),
    }
    try:
        with zipfile.ZipFile(temporary, "x", allowZip64=True) as archive:
            for name, array in arrays.items():
                if should_stop():
                    raise Interrupted("stopped while a data set was exported")
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
        npy.sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        files.remove([temporary])
    files.sync_directory(path.parent)
    return dataset.exported_digest(closes=False)


def _observed(dataset: Dataset) -> list[str]:
    return [name for name in dataset.columns if name.startswith("observation")]
