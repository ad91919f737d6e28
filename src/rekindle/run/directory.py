"""The run directory, as opened by its single writer."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import msgspec

from rekindle.checks import required_count
from rekindle.errors import ConfigError, StorageError
from rekindle.interrupt import Interrupter
from rekindle.owner import Owner
from rekindle.run.finding import find_run, find_unfinished
from rekindle.run.frames import Aggregate, Frame
from rekindle.run.metadata import ALL_LOGS, LOGS, MOST_CONFIG, Resume, RunDetails, RunMetadata, environment, timestamp
from rekindle.run.reader import RunReader
from rekindle.stats import EpisodeRecord
from rekindle.storage import documents, files, logs
from rekindle.storage.lock import Lock
from rekindle.storage.logs import JsonLines, LogPosition

__all__ = ["RunOptions", "TrainingRun"]

logger = logging.getLogger("rekindle")
_ENCODER = msgspec.json.Encoder(enc_hook=documents.encode_numpy)

Config = Mapping[str, Any] | msgspec.Struct
_DIRECTORIES = ("checkpoints", "replay", "control", "rewound")
_HALF_MADE = ".new-"
"""Prefix of directories that are not a complete run yet, or no longer; the next start removes them."""
_PATIENCE = 60.0
"""Seconds to wait while other processes create runs of the same version, which takes each a fraction of a second."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_RUN_ID = re.compile(r"(\d{8}_\d{6})(?:_(\d+))?")


def _checked_name(kind: str, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ConfigError(
            f"{kind} {text!r} cannot be a directory: use letters, digits, '.', '_', '+', '-', "
            "starting with a letter or digit, at most 100"
        )
    return text


class RunOptions(RunDetails, total=False):
    """The contents of a new run."""

    seed: int
    """The seed in the metadata; 0 by default."""
    config: Config | None
    """Everything needed to rebuild the environment and the agent; see `write_config`."""


class TrainingRun:
    """The directory of one run, opened by its single writer.

    Open it with `create` or `resume`. A session restores itself from the run that it is given, and closes it. A forked
    child cannot write to the run, which belongs to the parent.
    """

    def __init__(self, path: Path, lock: Lock, metadata: RunMetadata, *, resumed: bool) -> None:
        self.path = path
        self.metadata = metadata
        self.is_resumed = resumed
        """Whether this process opened an existing run."""
        self._owner = Owner()
        self._lock = lock
        self._logs: dict[str, JsonLines] = {}
        self._shows_stop = False
        """Whether this process created the stop file itself, to show that it is stopping."""
        self._guard = threading.Lock()
        self.reader = RunReader(path)

    @classmethod
    def create(
        cls, name: str, version: str = "v1", *, root: str | Path = "runs", **options: Unpack[RunOptions]
    ) -> TrainingRun:
        """Create `root/name/version/<YYYYMMDD_HHMMSS>`; a second run in one second gets `_2`, `_3`, ...

        The run appears in one step, with its config and metadata, or not at all.
        """
        new = _new_run(root, name, version, **options)
        with _starting(new.directory):
            return cls._make(new)

    @classmethod
    def create_or_resume(
        cls, name: str, version: str = "v1", *, root: str | Path = "runs", **options: Unpack[RunOptions]
    ) -> TrainingRun:
        """Open the newest unfinished run of a version, or create one as `create` does.

        If several processes call this at the same time, only one of them creates the run.
        """
        new = _new_run(root, name, version, **options)
        with _starting(new.directory):
            return cls.resume_unfinished(name, version, root=root) or cls._make(new)

    @classmethod
    def _make(cls, new: _NewRun) -> TrainingRun:
        # Build it under a name that readers ignore, then rename it: no reader sees an incomplete or unlocked run.
        parent = new.directory
        building = parent / _half_made_name()
        with contextlib.ExitStack() as undo:
            undo.callback(files.remove_directory, building)
            files.make_directory(building, sync_name=False)
            for directory in _DIRECTORIES:
                files.make_directory(building / directory, sync_name=False)
            lock = Lock(building / "lock")
            undo.callback(lock.release)
            for log in ALL_LOGS:
                JsonLines(building / f"{log}.jsonl").close()
            if new.config is not None:
                files.write_atomic(building / "config.json", new.config, sync_name=False)
            while True:
                run_id = _next_run_id(parent)
                now = timestamp()
                metadata = RunMetadata(
                    name=new.name,
                    version=new.version,
                    run_id=run_id,
                    seed=new.seed,
                    status="running",
                    started_at=now,
                    last_updated=now,
                    environment={**environment(), "host": socket.gethostname()},
                    **new.details,
                )
                files.write_atomic(building / "metadata.json", _json(metadata))
                try:
                    os.rename(building, parent / run_id)
                    break
                except OSError as error:
                    if not (parent / run_id).exists():
                        raise StorageError(f"cannot create the run {parent / run_id}: {error.strerror}") from error
            files.sync_directory(parent)
            run = cls(parent / run_id, lock, metadata, resumed=False)
            run.open_logs({}, LogPosition())
            undo.pop_all()
        return run

    @classmethod
    def resume(cls, path: str | Path) -> TrainingRun:
        """Open the run at a path to continue it.

        For a version or name directory, this is the newest unfinished run, or else the newest.
        """
        found = files.absolute(find_run(path, unfinished_first=True))
        files.require_directory(found)
        lock = Lock(found / "lock")
        try:
            for directory in _DIRECTORIES:
                files.make_directory(found / directory)
                files.require_directory(found / directory)
                files.remove_temporaries(found / directory)
            if os.path.lexists(found / "data"):  # only of a run that keeps its data
                files.require_directory(found / "data")
                files.remove_temporaries(found / "data")
            files.remove_temporaries(found)
            files.remove([found / "control" / "stop"])
            return cls(found, lock, RunReader(found).metadata, resumed=True)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def resume_unfinished(cls, name: str, version: str = "v1", *, root: str | Path = "runs") -> TrainingRun | None:
        """Open the newest unfinished run of a version; None if there is none."""
        directory = Path(root) / _checked_name("name", name) / _checked_name("version", version)
        for above in (directory.parent, directory):
            if os.path.islink(above):
                files.require_directory(above)
        path = find_unfinished(directory)
        return None if path is None else cls.resume(path)

    @property
    def name(self) -> str:
        """The name given at creation."""
        return self.metadata.name

    @property
    def version(self) -> str:
        """The version given at creation."""
        return self.metadata.version

    @property
    def run_id(self) -> str:
        """The name of the run directory."""
        return self.metadata.run_id

    @property
    def resume_count(self) -> int:
        """How often the run has been resumed."""
        return len(self.metadata.resumes)

    @property
    def stop_file(self) -> Path:
        """The file with which another process requests a stop."""
        return self.path / "control" / "stop"

    def watch_for_stop(self, interrupter: Interrupter) -> None:
        """Let other processes stop the training, and show them that it is stopping, whatever the reason."""
        interrupter.tell(self._show_stop)
        interrupter.watch(self.stop_file)

    def _show_stop(self, reason: str) -> None:
        if not os.path.lexists(self.stop_file):
            self._shows_stop = True
            self.reader.request_stop(reason)

    def checkpoint_path(self, step: int) -> Path:
        """The path of the checkpoint at this env step."""
        return self.path / "checkpoints" / f"step_{step}.mpk"

    @property
    def latest_checkpoint_path(self) -> Path:
        """The link to the newest checkpoint."""
        return self.path / "checkpoints" / "latest.mpk"

    @property
    def best_checkpoint_path(self) -> Path:
        """The link to the best agent so far."""
        return self.path / "checkpoints" / "best.mpk"

    def write_config(self, config: Config) -> None:
        """Store everything needed to rebuild the environment and the agent, as JSON."""
        self._owner.check(self.path)
        files.write_atomic(self.path / "config.json", _config_json(config, self.path))

    def read_config(self) -> dict[str, Any]:
        """The config that `write_config` stored; empty if there is none."""
        return self.reader.read_config()

    def episodes(self, split: Literal["train", "eval"] = "train") -> Frame:
        """Every training or evaluation episode so far by column: a pandas frame, or a dict of arrays without pandas."""
        return self.reader.episodes(split)

    def metrics(self, *, aggregate: Aggregate = "mean") -> Frame:
        """Every metric window so far by column, like `episodes`."""
        return self.reader.metrics(aggregate=aggregate)

    def _repr_html_(self) -> str:
        from rekindle.run.notebook import run_html

        return run_html(self.path)

    def open_logs(self, positions: Mapping[str, LogPosition], warnings: LogPosition) -> None:
        """Open each log for writing at a position."""
        self._owner.check(self.path)
        for log in LOGS:
            self._logs[log] = JsonLines(self.path / f"{log}.jsonl", positions.get(log, LogPosition()))
        self._logs["warnings"] = JsonLines(self.path / "warnings.jsonl", warnings)

    def log(self, name: str) -> JsonLines:
        """One of the run's logs."""
        return self._logs[name]

    def rewind(self, positions: Mapping[str, LogPosition]) -> list[str]:
        """Truncate the logs to a checkpoint's positions; later rows move to `rewound/`. Returns what was moved."""
        self._owner.check(self.path)
        paths = {log: self.path / f"{log}.jsonl" for log in LOGS}
        # Check all logs before truncating any: if one cannot be used, the others stay as they are.
        tails = {path: logs.surplus(path, positions.get(log, LogPosition())) for log, path in paths.items()}
        warnings = logs.mend(self.path / "warnings.jsonl", self.rewound)
        moved: list[str] = []
        for path, tail in tails.items():
            rows = logs.cut(path, tail, self.rewound)
            if rows:
                moved.append(f"{rows} rows of {path.name}")
        self.open_logs(positions, warnings)
        return moved

    @property
    def rewound(self) -> Path:
        """The directory to which the next resume moves everything after its checkpoint."""
        return self.path / "rewound" / f"resume_{self.resume_count + 1}"

    def log_train_episode(self, record: EpisodeRecord, stamp: Mapping[str, Any]) -> None:
        """Append a training episode; the stamp has the counters and the wall time."""
        self._logs["train_episodes"].append({**stamp, **record.row()})

    def log_eval_episode(self, record: EpisodeRecord, stamp: Mapping[str, Any]) -> None:
        """Append an evaluation episode, with the env steps at which it ran."""
        tag = {"total_steps_at_eval": stamp["env_steps"]}
        self._logs["eval_episodes"].append({**stamp, **tag, **record.row()})

    def log_warning(self, message: str, stamp: Mapping[str, Any]) -> None:
        """Append a warning about a problem that did not stop the training."""
        self._logs["warnings"].append({**stamp, "message": message})

    def update_metadata(self, **changes: Any) -> None:
        """Change fields of the metadata, durably."""
        self._change_metadata(changes, durably=True)

    def describe(self, agent: str, max_steps: int | None, *, step_unit: str = "env steps") -> None:
        """Record the agent, the number of steps and their unit for readers of the run, unless they are known."""
        known = self.metadata
        if (agent, max_steps, step_unit) != (known.agent, known.max_steps, known.step_unit):
            self.update_metadata(agent=agent, max_steps=max_steps, step_unit=step_unit)

    def update_counts(self, *, total_steps: int, total_episodes: int, updates: int) -> None:
        """Change the counters in the metadata; a power cut may undo this."""
        counts = {"total_steps": total_steps, "total_episodes": total_episodes, "updates": updates}
        self._change_metadata(counts, durably=False)

    def _change_metadata(self, changes: Mapping[str, Any], *, durably: bool) -> None:
        self._owner.check(self.path)
        with self._guard:
            metadata = msgspec.structs.replace(self.metadata, **changes, last_updated=timestamp())
            files.write_atomic(self.path / "metadata.json", _json(metadata), sync_name=durably)
            self.metadata = metadata

    def add_resume(self, resume: Resume, **counts: int) -> None:
        """Record a resume and its counters, or correct the grade of the one recorded under the same number."""
        others = tuple(known for known in self.metadata.resumes if known.number != resume.number)
        self.update_metadata(
            resumes=(*others, resume),
            exact=self.metadata.exact and resume.grade == "exact",
            status="running",
            stop_reason=None,
            environment={**environment(), "host": socket.gethostname()},
            **counts,
        )

    @contextlib.contextmanager
    def let_go_on_failure(self) -> Generator[None]:
        """If the body fails, close the run, and remove it if it was just created and never used."""
        try:
            yield
        except BaseException:
            with contextlib.closing(self):
                if not self.is_resumed and self._owner.is_here:
                    _remove(self.path)
            raise

    def close(self) -> None:
        """Close the logs and release the lock."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            for log in self._logs.values():
                stack.callback(log.close)
            if self._shows_stop and self._owner.is_here:
                stack.callback(files.remove, [self.stop_file])
            self._logs = {}


class _NewRun(NamedTuple):
    """The checked parts of a new run."""

    directory: Path
    """The directory of the run's version."""
    name: str
    version: str
    seed: int
    config: bytes | None
    details: RunDetails


def _new_run(
    root: str | Path,
    name: str,
    version: str,
    *,
    seed: int = 0,
    config: Config | None = None,
    **details: Unpack[RunDetails],
) -> _NewRun:
    seed = required_count("seed", seed, 0)
    settings = None if config is None else _config_json(config, name)
    return _NewRun(_version_directory(root, name, version), name, version, seed, settings, details)


def _version_directory(root: str | Path, name: str, version: str) -> Path:
    """The directory of a version, created if it is missing.

    The path is absolute, because the host may change the working directory during the training.
    """
    directory = files.absolute(Path(root)) / _checked_name("name", name) / _checked_name("version", version)
    files.make_directory(directory)
    for above in (directory.parent, directory):
        files.require_directory(above)
    return directory


@contextlib.contextmanager
def _starting(directory: Path) -> Generator[None]:
    """Let one process at a time create a run of a version, and remove what killed processes left behind."""
    with contextlib.ExitStack() as undo:
        advice = f"it has been creating a run there for more than {_PATIENCE:g} s"
        undo.callback(Lock(directory / ".lock", patience=_PATIENCE, advice=advice).release)
        for path in sorted(directory.glob(f"{_HALF_MADE}*")):
            if not path.is_symlink() and path.is_dir() and not Lock.is_held(path / "lock"):
                _remove(path)
        yield


def _half_made_name() -> str:
    return f"{_HALF_MADE}{os.getpid()}-{secrets.token_hex(4)}"


def _remove(path: Path) -> None:
    """Remove a run that was never used; if that fails, readers still ignore what is left."""
    try:
        # Hide it first: no reader must see an incomplete run or resume it.
        hidden = path.with_name(_half_made_name())
        files.rename(path, hidden)
        files.remove_directory(hidden)
    except StorageError as error:
        logger.warning("a run that was never used cannot be removed: %s", error)


def _config_json(config: Config, of: str | Path) -> bytes:
    try:
        data = _json(config)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the config of {of} cannot be written as JSON: {error}") from None
    if len(data) > MOST_CONFIG:
        raise ConfigError(f"the config of {of} takes {len(data)} bytes: use at most {MOST_CONFIG}")
    return data


def _json(value: Any) -> bytes:
    return msgspec.json.format(documents.encode(value, _ENCODER.encode), indent=2) + b"\n"


def _next_run_id(parent: Path) -> str:
    """The date and time, or an id after that of the newest run: ids never go back, even if the clock does."""
    stamp, number = time.strftime("%Y%m%d_%H%M%S"), 1
    for existing in (match for entry in parent.iterdir() if (match := _RUN_ID.fullmatch(entry.name))):
        known, known_number = existing[1], int(existing[2] or 1)
        if (known, known_number) >= (stamp, number):
            stamp, number = known, known_number + 1
    return stamp if number == 1 else f"{stamp}_{number}"
