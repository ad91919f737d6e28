"""The cache of converted data sets: one directory of columns for each content.

A conversion writes to a hidden directory, which gets its name when it is complete and durable. The next conversion
removes the hidden directory of one that was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from rekindle.data.columns import DataLayout, check_statuses
from rekindle.errors import DataError, FileRefused, StateError, StorageError
from rekindle.experience import Array
from rekindle.space_json import read_space, space_text
from rekindle.spaces import ArraySpec
from rekindle.storage import files, npy
from rekindle.storage.lock import Lock

__all__ = ["Cache", "Check", "Converted", "Plan", "Progress", "SavedColumn", "file_digest"]

Progress = Callable[[int, int], None]
"""Called with the rows that are done, and all rows."""
Check = Callable[[], None]
"""Raises `Interrupted` if a stop was requested."""

_VERSION = 2
"""The version of the conversion; it is part of the key, so that a new version converts again."""
_HALF_MADE = ".new-"
_PATIENCE = 60.0
"""Seconds to wait while other processes start a conversion, which takes each a fraction of a second."""
_MOST_JSON = 2**26
_DAMAGE = (
    *(msgspec.MsgspecError, UnicodeDecodeError, RecursionError),
    *(FileRefused, StorageError, StateError, DataError),
)


class Plan(NamedTuple):
    """What a conversion writes, known before it begins."""

    rows: int
    layout: DataLayout
    inferred: tuple[str, ...]
    """Which spaces are not stored in the source, and were inferred from the values."""
    notes: tuple[str, ...]
    fill: Callable[[dict[str, Array], Callable[[int], None]], None]
    """Writes all rows of the columns; calls its second argument with the number of rows done."""
    close: Callable[[], None] = lambda: None
    """Closes the source."""


class SavedColumn(msgspec.Struct, frozen=True):
    """A column in `dataset.json`."""

    file: str
    dtype: str
    shape: list[int]
    sha256: str


class _Saved(msgspec.Struct, frozen=True):
    """The contents of `dataset.json`."""

    rows: int
    columns: dict[str, SavedColumn]
    observation_space: str
    action_space: str
    inferred: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Converted(NamedTuple):
    """A data set as columns."""

    columns: dict[str, Array]
    observation_space: Any
    action_space: Any
    inferred: tuple[str, ...]
    notes: tuple[str, ...]
    saved: dict[str, SavedColumn]

    def digest(self, status: Array | None = None) -> str:
        """The digest of the names, dtypes, shapes and bytes of the columns, and of nothing else.

        With `status`, the digest of the same data set with these statuses.
        """
        content = {name: [column.dtype, column.shape, column.sha256] for name, column in self.saved.items()}
        if status is not None:
            content["status"][2] = hashlib.sha256(status.astype(np.uint8).tobytes()).hexdigest()
        return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def file_digest(path: Path, check: Check) -> str:
    """The SHA-256 of a file; raises `StorageError`."""
    digest = hashlib.sha256()
    with files.opened(path) as file:
        if file is None:
            raise DataError(f"{path} does not exist")
        buffer = memoryview(bytearray(2**22))
        while size := cast("io.BufferedReader", file).readinto(buffer):
            digest.update(buffer[:size])
            check()
    return digest.hexdigest()


class Cache:
    """Converted data sets in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = files.absolute(directory) / "data"

    def get(self, identity: Any, make_plan: Callable[[], Plan], progress: Progress | None, check: Check) -> Converted:
        """The data set of a source with this identity (any JSON value), converted if it is not in the cache."""
        key = hashlib.sha256(msgspec.json.encode([_VERSION, identity], order="deterministic")).hexdigest()
        path = self.directory / key[:40]
        is_there = os.path.lexists(path)  # looked up first, as another process may create it whole in between
        if not (path / "dataset.json").exists():
            if is_there:
                raise _damaged(path, "dataset.json is missing")
            plan = make_plan()
            try:
                self._convert(path, plan, progress, check)
            finally:
                plan.close()
        return _opened(path, check)

    def _convert(self, path: Path, plan: Plan, progress: Progress | None, check: Check) -> None:
        with contextlib.ExitStack() as undo:
            try:
                files.make_directory(self.directory)
                building, lock = self._begin()
            except StorageError as error:
                advice = "data sets are converted there; set REKINDLE_CACHE to a directory that you can write to"
                raise StorageError(f"{error}: {advice}") from error
            undo.callback(lock.release)
            undo.callback(files.remove_directory, building)
            _write(building, plan, progress, check)
            try:
                os.rename(building, path)
                undo.pop_all()
                lock.release()
            except OSError as error:
                if not (path / "dataset.json").exists():  # unless another process was faster
                    raise StorageError(f"cannot create {path}: {error.strerror}") from error
            files.sync_directory(self.directory)

    def _begin(self) -> tuple[Path, Lock]:
        """A hidden directory for a conversion, locked by this process; removes those of processes that died."""
        advice = "it has been starting a conversion for more than a minute"
        outer = Lock(self.directory / ".lock", patience=_PATIENCE, advice=advice)
        try:
            for path in sorted(self.directory.glob(f"{_HALF_MADE}*")):
                if path.is_dir() and not path.is_symlink() and not Lock.is_held(path / "lock"):
                    files.remove_directory(path)
            building = self.directory / f"{_HALF_MADE}{os.getpid()}-{secrets.token_hex(4)}"
            files.make_directory(building, sync_name=False)
            return building, Lock(building / "lock")
        finally:
            outer.release()


def _write(directory: Path, plan: Plan, progress: Progress | None, check: Check) -> None:
    specs = plan.layout.columns
    names = {name: f"{index:03}.npy" for index, name in enumerate(specs)}
    columns = {name: npy.create(directory / names[name], spec, plan.rows) for name, spec in specs.items()}

    def report(done: int) -> None:
        check()
        if progress is not None:
            progress(done, plan.rows)

    plan.fill(columns, report)
    saved: dict[str, SavedColumn] = {}
    for name, spec in specs.items():
        npy.sync(directory / names[name])
        digest = npy.data_digest(directory / names[name])
        check()
        saved[name] = SavedColumn(names[name], spec.dtype.newbyteorder("<").str, list(spec.shape), digest)
    spaces = (space_text(plan.layout.observation_space), space_text(plan.layout.action_space))
    document = msgspec.json.encode(_Saved(plan.rows, saved, *spaces, plan.inferred, plan.notes))
    files.write_atomic(directory / "dataset.json", document)


def _opened(path: Path, check: Check) -> Converted:
    try:
        saved = msgspec.json.decode(files.read_bytes(path / "dataset.json", most=_MOST_JSON), type=_Saved)
        observation_space, action_space = (
            read_space(text, name="dataset.json") for text in (saved.observation_space, saved.action_space)
        )
        specs = {name: ArraySpec.parse(column.dtype, column.shape) for name, column in saved.columns.items()}
        reward = specs["reward"].dtype if "reward" in specs else np.dtype(np.float64)
        if specs != DataLayout(observation_space, action_space, reward, name="dataset.json").columns:
            raise FileRefused("dataset.json: the columns are not those of the spaces")
        columns: dict[str, Array] = {}
        for (name, column), spec in zip(saved.columns.items(), specs.values(), strict=True):
            file = path / Path(column.file).name
            columns[name] = npy.open_mapped(file, spec, saved.rows)
            if npy.data_digest(file) != column.sha256:
                raise FileRefused(f"{file}: its bytes have changed")
            check()
        check_statuses(columns["status"], name=str(path))
    except _DAMAGE as error:
        raise _damaged(path, error) from None
    return Converted(columns, observation_space, action_space, saved.inferred, saved.notes, saved.columns)


def _damaged(path: Path, reason: object) -> DataError:
    return DataError(f"the cache is damaged, delete {path} to convert the data again: {reason}")
