"""The list of runs: a summary of each, for thousands of runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from rekindle.run.finding import find_runs
from rekindle.run.groups import config_identity
from rekindle.run.metadata import LOGS, Log, RunMetadata
from rekindle.run.overview import BestReturn, greatest, mapping, real, tolerant
from rekindle.run.reader import RunReader
from rekindle.run.settings import algorithm_name, environment_name, flat_settings, setting_text
from rekindle.run.tags import read_tags
from rekindle.storage.files import open_regular
from rekindle.storage.lock import Lock
from rekindle.text import moment, path_text, printable
from rekindle.ui.dashboard.families import Origin, Relative, family, origin_of
from rekindle.ui.dashboard.rows import Floats, decode_returns
from rekindle.ui.details import sign

__all__ = ["Listing", "RunRow"]

_WHOLE: dict[Log, int] = {"train_episodes": 2**15, "eval_episodes": 2**18}
"""The largest log, in bytes, that is read completely; longer ones are sampled."""
_PIECES = 24
_PIECE = 2**10
_TAIL = 3 * 2**13
_RECENT = 100
"""Episodes in the mean return."""
_LONGEST_NAME = 100
_MOST_SETTINGS = 40
_SIGNS = ("metadata.json", "tags", *(f"{log}.jsonl" for log in LOGS))
_SHARE = 0.005
"""The share of the time that is spent on checking for changes."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run in the list; unknown values are None."""

    id: str
    """Its path below the root directory."""
    name: str
    version: str = ""
    run_id: str = ""
    status: str
    """running, finished, stopped, failed, crashed, or unreadable."""
    algorithm: str | None = None
    environment: str | None = None
    seed: str | None = None
    """As text: JavaScript rounds numbers above 2^53."""
    steps: int | None = None
    episodes: int | None = None
    updates: int | None = None
    mean_return: float | None = None
    best_return: BestReturn | None = None
    spark: list[float | None] = []
    """The return over the whole run, in a few points."""
    started: float | None = None
    """Seconds since 1970, like the next field."""
    updated: float | None = None
    resumes: int = 0
    exact: bool | None = None
    training: str = ""
    """Equal for runs of the same training with other seeds: see `rekindle.run.groups`."""
    settings: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    origin: Origin | None = None
    """The checkpoint of another run that it comes from."""
    problem: str | None = None


class _Known(msgspec.Struct):
    """A run, and the signatures of its files when it was read."""

    path: Path
    signs: tuple[Any, ...] = ()
    row: RunRow | None = None
    version: int = 0

    @property
    def is_running(self) -> bool:
        """Whether it may change at any time."""
        return self.row is not None and self.row.status == "running"


class Listing:
    """Every run below a directory; updates read only what has changed. Safe to use from several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.version = 0
        """Increases with every change; each run has the version of its last change."""
        self._runs: dict[str, _Known] = {}
        self._gone: dict[str, int] = {}
        self._guard = threading.Lock()
        self._next_search = self._next_look = 0.0

    def find(self, id_: str) -> Path | None:
        """The run with an id; ids are never joined to a path, so that none leads out of the root."""
        with self._guard:
            if id_ not in self._runs:
                self._search()
            known = self._runs.get(id_)
            return known.path if known else None

    def siblings(self, id_: str) -> list[str]:
        """The runs in the same directory, oldest first, including this one."""
        with self._guard:
            known = self._runs.get(id_)
            return [other for other, run in self._runs.items() if known and run.path.parent == known.path.parent]

    def family(self, id_: str) -> list[Relative]:
        """The runs that a run comes from, and all that come from these, parents first; empty if it is alone."""
        self.refresh()  # if only this run is looked at, no list reads the others
        with self._guard:
            rows = [known.row for known in self._runs.values() if known.row is not None]
        return family((_relative(row) for row in rows), id_)

    def row(self, id_: str) -> RunRow | None:
        """One run, as it is now."""
        with self._guard:
            known = self._runs.get(id_)
            if known is None:
                return None
            self._look_at(id_, known)
            return known.row

    def refresh(self, *, most: int = 100) -> bool:
        """Check for changes, and read at most `most` runs; returns whether some are left."""
        with self._guard:
            now = time.monotonic()
            if now >= self._next_search:
                self._search()
                self._next_search = _pause_after(now)
            unread = [(id_, known) for id_, known in reversed(self._runs.items()) if known.row is None]
            look_at_all = now >= self._next_look
            for id_, known in unread[:most] or self._runs.items():
                if known.row is None or known.is_running or look_at_all:
                    self._look_at(id_, known)
            if look_at_all and not unread:
                self._next_look = _pause_after(now)
            return len(unread) > most

    def changed_since(self, version: int) -> tuple[list[RunRow], list[str], int]:
        """The runs that changed after a version, the ids that are gone, and the current version."""
        with self._guard:
            rows = [known.row for known in self._runs.values() if known.version > version and known.row]
            return rows, [id_ for id_, gone in self._gone.items() if gone > version], self.version

    @property
    def count(self) -> int:
        """The number of runs, read or not."""
        return len(self._runs)

    def _search(self) -> None:
        found = {_id(path, self.root): path for path in find_runs(self.root)}
        for id_ in self._runs.keys() - found.keys():
            del self._runs[id_]
            self.version += 1
            self._gone[id_] = self.version
        for id_ in found.keys() & self._gone.keys():
            del self._gone[id_]
        self._runs = {id_: self._runs.get(id_) or _Known(path) for id_, path in found.items()}

    def _look_at(self, id_: str, known: _Known) -> None:
        # The metadata of a run that is not running change first when it is resumed; its tags change at any time.
        looked_at = None if known.is_running else 2
        if known.row is not None and _signs(known.path, looked_at) == known.signs[:looked_at]:
            return
        known.signs = _signs(known.path)  # before reading: changes in the meantime are noticed next time
        row = _read(id_, known.path)
        if row != known.row:
            self.version += 1
            known.row, known.version = row, self.version


def _pause_after(began: float) -> float:
    """When to check again, so that checking takes only its share of the time."""
    now = time.monotonic()
    return now + max(1.0, (now - began) / _SHARE)


def _id(path: Path, root: Path) -> str:
    return path.name if path == root else path_text(path.relative_to(root))


def _signs(path: Path, most: int | None = None) -> tuple[Any, ...]:
    """Signatures of the files of a run, or of the first `most` of them."""
    if most is not None:
        return tuple(sign(f"{path}/{name}") for name in _SIGNS[:most])
    is_live = tolerant([], lambda: Lock.is_held(path / "lock"), True)
    return (*(sign(f"{path}/{name}") for name in _SIGNS), is_live)


class _Sample(msgspec.Struct, frozen=True):
    """A sample of a log: all of it if it is short, else some pieces and its end."""

    steps: Floats
    returns: Floats
    is_broken: bool
    groups: list[int]
    """Where each piece begins; the last is the end of the log."""
    is_whole: bool
    last: Mapping[str, Any]
    """The newest row."""

    @property
    def end(self) -> slice:
        """The rows at the end of the log, which have no gaps."""
        return slice(0 if self.is_whole else self.groups[-1], None)


def _sample(path: Path, log: Log) -> _Sample | None:
    """Sample a log; None if it has no rows."""
    try:
        descriptor = open_regular(path / f"{log}.jsonl")
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        is_whole = size <= _WHOLE[log]
        if is_whole:
            pieces = [_whole_lines(b"\n" + os.pread(descriptor, size, 0))]
        else:
            between = (size - _TAIL) // _PIECES
            pieces = [_whole_lines(b"\n" + os.pread(descriptor, _PIECE, 0))]
            pieces += [_whole_lines(os.pread(descriptor, _PIECE, at * between)) for at in range(1, _PIECES)]
            pieces.append(_whole_lines(os.pread(descriptor, _TAIL, size - _TAIL)))
    finally:
        os.close(descriptor)
    lines = b"".join(pieces)
    if not lines:
        return None
    steps, returns, is_broken = decode_returns(lines)
    if is_whole:
        groups = sorted({len(steps) * part // _PIECES for part in range(_PIECES)})
    else:
        groups = list(accumulate((piece.count(b"\n") for piece in pieces[:-1]), initial=0))
    return _Sample(steps, returns, is_broken, groups, is_whole, _fields(lines[lines.rfind(b"\n", 0, -1) + 1 :]))


def _whole_lines(data: bytes) -> bytes:
    start = data.find(b"\n") + 1
    return data[start : data.rfind(b"\n") + 1]


def _fields(line: bytes) -> Mapping[str, Any]:
    try:
        return mapping(msgspec.json.decode(line))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _read(id_: str, path: Path) -> RunRow:
    problems: list[str] = []
    reader = tolerant(problems, lambda: RunReader(path), None)
    metadata = tolerant(problems, lambda: reader.metadata, None) if reader else None
    if reader is None or metadata is None:
        return RunRow(id=id_, name=id_, status="unreadable", problem=printable(problems[0]))
    train = tolerant(problems, lambda: _sample(path, "train_episodes"), None)
    evaluations = tolerant(problems, lambda: _sample(path, "eval_episodes"), None)
    if any(sample and sample.is_broken for sample in (train, evaluations)):
        problems.append("a log has lines that cannot be read")
    newest = [sample.last for sample in (train, evaluations) if sample]
    newest += tolerant(problems, lambda: reader.last_rows("metrics", 1), [])
    config = tolerant(problems, reader.read_config, {})
    settings = flat_settings(config)
    algorithm, environment = algorithm_name(settings) or metadata.agent, environment_name(settings)
    recent = _finite(train.returns[train.end][-_RECENT:]) if train else np.empty(0)
    return RunRow(
        id=id_,
        name=printable(metadata.name, most=_LONGEST_NAME),
        version=printable(metadata.version, most=_LONGEST_NAME),
        run_id=printable(metadata.run_id, most=_LONGEST_NAME),
        status=tolerant(problems, lambda: _status(reader, metadata), metadata.status),
        algorithm=printable(algorithm, most=60) if algorithm else None,
        environment=printable(environment, most=60) if environment else None,
        seed=str(metadata.seed),
        steps=greatest(metadata.total_steps, newest, "env_steps"),
        episodes=greatest(metadata.total_episodes, newest, "episodes"),
        updates=greatest(metadata.updates, newest, "updates"),
        mean_return=float(recent.mean()) if len(recent) else None,
        best_return=_best_evaluation(evaluations) or _best_episode(train),
        spark=_spark(train or evaluations),
        started=_seconds(metadata.started_at),
        updated=max([*(real(row.get("wall_time")) or 0.0 for row in newest), _seconds(metadata.last_updated) or 0.0])
        or None,
        resumes=len(metadata.resumes),
        exact=metadata.exact,
        training=config_identity(config or {"agent": metadata.agent, "steps": metadata.max_steps}),
        settings=_texts(settings),
        tags=tolerant(problems, lambda: read_tags(path), ()),
        origin=origin_of(metadata),
        problem=printable(problems[0]) if problems else None,
    )


def _relative(row: RunRow) -> Relative:
    best = None if row.best_return is None else row.best_return.value
    return Relative(row.id, row.name, row.run_id, row.status, row.steps, best, origin=row.origin)


def _status(reader: RunReader, metadata: RunMetadata) -> str:
    return reader.status if metadata.status == "running" else metadata.status


def _seconds(stamp: str) -> float | None:
    then = moment(stamp)
    return then.timestamp() if then else None


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def _best_evaluation(sample: _Sample | None) -> BestReturn | None:
    """The evaluation with the highest mean return."""
    if sample is None:
        return None
    steps, returns = sample.steps[sample.end], sample.returns[sample.end]
    starts = np.flatnonzero(np.diff(steps, prepend=np.nan))
    means = _means(returns, starts)
    if not sample.is_whole and len(starts) > 1:
        starts, means = starts[1:], means[1:]  # the oldest round may have begun before what was read
    return _best(means, steps[starts], "evaluation", sample)


def _best_episode(sample: _Sample | None) -> BestReturn | None:
    return _best(sample.returns, sample.steps, "episode", sample) if sample else None


def _means(values: Floats, starts: Any) -> Floats:
    """The mean of the numbers in each part; NaN where there are none."""
    seen = np.isfinite(values)
    with np.errstate(all="ignore"):
        return np.add.reduceat(np.where(seen, values, 0.0), starts) / np.add.reduceat(seen, starts, dtype=np.float64)


def _best(values: Floats, steps: Floats, of: Literal["evaluation", "episode"], sample: _Sample) -> BestReturn | None:
    if not np.isfinite(values).any():
        return None
    best = int(np.nanargmax(values))
    step = int(steps[best]) if np.isfinite(steps[best]) else None
    return BestReturn(float(values[best]), of, step, at_least=not sample.is_whole)


def _spark(sample: _Sample | None) -> list[float | None]:
    if sample is None:
        return []
    starts = [start for start in sample.groups if start < len(sample.returns)]
    return [float(f"{mean:.4g}") if isfinite(mean) else None for mean in _means(sample.returns, starts).tolist()]


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    first = list(settings.items())[:_MOST_SETTINGS]
    return {printable(name, most=60): printable(setting_text(value), most=60) for name, value in first}
