"""The run: one directory that holds everything a training leaves behind."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from rekindle import files
from rekindle.errors import ConfigError, RunError, StorageError
from rekindle.files import JsonLines, Lock, LogPosition, LogTail
from rekindle.frames import Aggregate, Frame, log_frame
from rekindle.stats import EpisodeRecord
from rekindle.version import __version__

__all__ = ["Resume", "RunMetadata", "RunReader", "TrainingRun", "find_run", "find_runs"]

Status = Literal["running", "finished", "stopped", "failed"]
Grade = Literal["exact", "approximate"]
Log = Literal["train_episodes", "eval_episodes", "metrics", "warnings"]

LOGS: tuple[Log, ...] = ("train_episodes", "eval_episodes", "metrics")
"""The logs of the training, which a resume cuts back to the checkpoint."""
ALL_LOGS: tuple[Log, ...] = (*LOGS, "warnings")
"""The warnings tell of the run, and stay."""
_DIRECTORIES = ("checkpoints", "replay", "control", "rewound")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_RUN_ID = re.compile(r"(\d{8}_\d{6})(?:_(\d+))?")


class Resume(msgspec.Struct, frozen=True):
    """One resume of a run: from where, and how exact it was."""

    number: int
    """1 for the first; segments written after it carry this number."""
    step: int
    """Env steps of the checkpoint gone back to; 0 when there was none."""
    checkpoint: str | None
    grade: Grade
    lost: tuple[str, ...] = ()
    """What makes it approximate, and what a reader should know."""
    wall_time: str = ""


class RunMetadata(msgspec.Struct, frozen=True):
    """What `metadata.json` says; counters are those of the last checkpoint or change of status."""

    name: str
    version: str
    run_id: str
    seed: int
    status: Status
    started_at: str
    last_updated: str
    total_steps: int = 0
    total_episodes: int = 0
    updates: int = 0
    stop_reason: str | None = None
    exact: bool = True
    """False once anything (a background learner, an approximate resume) made the run one of its kind."""
    resumes: tuple[Resume, ...] = ()
    agent: str | None = None
    """The class of the agent."""
    max_steps: int | None = None
    """Env steps at which the training is finished; None if it has no such end."""
    parent: str | None = None
    """The run and checkpoint that it began with, as `PATH@STEP`."""
    training: dict[str, Any] | None = None
    """What the config said at the beginning that makes it this training; None if no trainer made it."""
    environment: dict[str, str] = {}
    """Versions, processor and host: what the last bits of a result depend on."""


FRAMEWORKS = ("jax", "jaxlib", "torch")
"""Libraries that an agent may compute with: only what is loaded counts."""


def environment() -> dict[str, str]:
    """What the last bits of a result may depend on, besides the code that asks."""
    frameworks = {name: str(sys.modules[name].__version__) for name in FRAMEWORKS if name in sys.modules}
    return {**_platform(), **frameworks}


@cache
def _platform() -> dict[str, str]:
    return {
        "rekindle": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "processors": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
    }


def natural_order(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts v10 after v9."""
    parts = re.findall(r"\d+|\D+", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def timestamp() -> str:
    """This moment, as it stands in the metadata."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _checked_name(kind: str, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ConfigError(
            f"{kind} {text!r} cannot be a directory: use letters, digits, '.', '_', '+', '-', "
            "starting with a letter or digit, at most 100"
        )
    return text


def _is_run(path: Path) -> bool:
    return os.path.isfile(path / "metadata.json")  # False, not an error, in a directory that may not be entered


def find_runs(root: str | Path) -> list[Path]:
    """Every run below a directory (a run, a version, a name or a root), oldest first in each version."""
    top = Path(root)
    if _is_run(top):
        return [top]
    found: list[Path] = []
    pattern = [top]
    for _ in range(3):
        pattern = [
            entry
            for directory in pattern
            for entry in sorted(_subdirectories(directory), key=lambda path: natural_order(path.name))
        ]
        found += [path for path in pattern if _is_run(path)]
        pattern = [path for path in pattern if not _is_run(path)]
    return found


def _subdirectories(path: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [
            entry
            for entry in path.iterdir()
            if not entry.name.startswith(".") and entry.is_dir() and not entry.is_symlink()
        ]
    return []


def find_run(path: str | Path) -> Path:
    """The run at a path: the path itself, or the newest run of a version or name directory.

    Newest is the natural order of names (v10 after v9; run ids never go back, even when the clock does).
    """
    top = Path(path)
    if not top.is_dir():
        raise RunError(f"{top} is not a directory; a run is runs/<name>/<version>/<date_time>")
    runs = find_runs(top)
    if not runs or len(runs[-1].relative_to(top).parts) > 2:
        raise RunError(f"{top} is neither a run, a version nor a name directory: no metadata.json was found")
    return runs[-1]


class RunReader:
    """Reads a run from any process, live, finished or crashed, and never writes to it."""

    def __init__(self, path: str | Path) -> None:
        self.path = find_run(path)

    @property
    def metadata(self) -> RunMetadata:
        """The run's metadata as last written."""
        path = self.path / "metadata.json"
        try:
            return msgspec.json.decode(files.read_bytes(path), type=RunMetadata)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RunError(f"{path} is not the metadata of a run: {error}") from None

    @property
    def is_live(self) -> bool:
        """Whether a process is writing this run now."""
        return Lock.is_held(self.path / "lock")

    @property
    def status(self) -> str:
        """running, finished, stopped, failed, or crashed: said to be running, but nobody holds the lock."""
        status = self.metadata.status
        if status == "running" and not self.is_live:
            # The writer may have ended between the two looks.
            status = self.metadata.status
            return "crashed" if status == "running" and not self.is_live else status
        return status

    def read_config(self) -> dict[str, Any]:
        """What `write_config` stored; empty if nothing was."""
        path = self.path / "config.json"
        if not path.exists():
            return {}
        try:
            return msgspec.json.decode(files.read_bytes(path), type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RunError(f"{path} is not a JSON object: {error}") from None

    def train_episodes(self) -> list[dict[str, Any]]:
        """Every training episode logged so far."""
        return files.read_rows(self.path / "train_episodes.jsonl")

    def eval_episodes(self) -> list[dict[str, Any]]:
        """Every evaluation episode logged so far."""
        return files.read_rows(self.path / "eval_episodes.jsonl")

    def metric_windows(self) -> list[dict[str, Any]]:
        """Every window of metrics logged so far."""
        return files.read_rows(self.path / "metrics.jsonl")

    def warnings(self) -> list[dict[str, Any]]:
        """Every warning so far, over all resumes: a `message` with the counters and the wall time."""
        return files.read_rows(self.path / "warnings.jsonl")

    def frame(self, log: Log, *, aggregate: Aggregate = "mean") -> Frame:
        """A log by column: a pandas frame if pandas is installed, a dict of numpy arrays otherwise.

        Extras are `extras.<name>`; a metric is its mean over each window, or another aggregate.
        """
        return log_frame(self.path / f"{log}.jsonl", aggregate=aggregate)

    def episodes(self, split: Literal["train", "eval"] = "train") -> Frame:
        """Every training or evaluation episode by column, see `frame`."""
        return self.frame("train_episodes" if split == "train" else "eval_episodes")

    def metrics(self, *, aggregate: Aggregate = "mean") -> Frame:
        """Every window of metrics by column, see `frame`."""
        return self.frame("metrics", aggregate=aggregate)

    def _repr_html_(self) -> str:
        from rekindle.ui.notebook import run_html

        return run_html(self.path)

    def last_rows(self, log: Log, count: int) -> list[dict[str, Any]]:
        """The newest rows of a log, oldest first, without reading the rest of it."""
        return files.read_last_rows(self.path / f"{log}.jsonl", count)

    def tail(self, log: Log) -> LogTail:
        """Follow a log as it grows."""
        return LogTail(self.path / f"{log}.jsonl")

    def request_stop(self, reason: str = "asked to stop by another process") -> None:
        """Ask whoever writes this run to checkpoint and stop."""
        # Under a name of its own first, as several processes may ask at once.
        request = self.path / "control" / f"stop-{os.getpid()}-{secrets.token_hex(4)}"
        files.write_atomic(request, reason.encode(), sync_name=False)
        files.rename(request, self.path / "control" / "stop")


class TrainingRun:
    """The directory of one run, opened by its one writer.

    Make one with `create` or `resume`; a session given the run restores itself from it and closes it.
    """

    def __init__(self, path: Path, lock: Lock, metadata: RunMetadata, *, resumed: bool) -> None:
        self.path = path
        self.metadata = metadata
        self.is_resumed = resumed
        """Whether this process opened a run that was there before."""
        self._lock = lock
        self._logs: dict[str, JsonLines] = {}
        self._guard = threading.Lock()
        self.reader = RunReader(path)

    @classmethod
    def create(cls, name: str, version: str = "v1", *, root: str | Path = "runs", seed: int = 0) -> TrainingRun:
        """Make `root/name/version/<YYYYMMDD_HHMMSS>`; a second run in one second gets `_2`, `_3`, ..."""
        _checked_name("name", name)
        _checked_name("version", version)
        if seed < 0:
            raise ConfigError(f"seed {seed} is negative: use 0 or more")
        parent = Path(root) / name / version
        files.make_directory(parent)
        for directory in (parent.parent, parent):
            files.require_directory(directory)
        # Built under a name that no reader sees, then renamed: there is never half a run, nor one without its lock.
        building = parent / f".new-{os.getpid()}-{secrets.token_hex(4)}"
        with contextlib.ExitStack() as undo:
            undo.callback(files.remove_directory, building)
            files.make_directory(building, sync_name=False)
            for directory in _DIRECTORIES:
                files.make_directory(building / directory, sync_name=False)
            lock = Lock(building / "lock")
            undo.callback(lock.release)
            for log in ALL_LOGS:
                JsonLines(building / f"{log}.jsonl").close()
            while True:
                run_id = _next_run_id(parent)
                now = timestamp()
                metadata = RunMetadata(
                    name=name,
                    version=version,
                    run_id=run_id,
                    seed=seed,
                    status="running",
                    started_at=now,
                    last_updated=now,
                    environment={**environment(), "host": socket.gethostname()},
                )
                files.write_atomic(building / "metadata.json", _json(metadata))
                try:
                    os.rename(building, parent / run_id)
                    break
                except OSError as error:
                    if not (parent / run_id).exists():
                        raise StorageError(f"cannot make the run {parent / run_id}: {error.strerror}") from error
            files.sync_directory(parent)
            run = cls(parent / run_id, lock, metadata, resumed=False)
            run.open_logs({}, LogPosition())
            undo.pop_all()
        return run

    @classmethod
    def resume(cls, path: str | Path) -> TrainingRun:
        """Open the run at a path (a run, version or name directory) to go on with it."""
        found = find_run(path)
        files.require_directory(found)
        lock = Lock(found / "lock")
        try:
            for directory in _DIRECTORIES:
                files.make_directory(found / directory)
                files.require_directory(found / directory)
                files.remove_temporaries(found / directory)
            files.remove_temporaries(found)
            files.remove([found / "control" / "stop"])
            return cls(found, lock, RunReader(found).metadata, resumed=True)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def create_or_resume(
        cls, name: str, version: str = "v1", *, root: str | Path = "runs", seed: int = 0
    ) -> TrainingRun:
        """Open the newest run of a version that has not finished, or make one."""
        directory = Path(root) / _checked_name("name", name) / _checked_name("version", version)
        for above in (directory.parent, directory):
            if above.is_symlink():
                files.require_directory(above)
        for path in reversed(find_runs(directory)):
            if RunReader(path).metadata.status != "finished":
                return cls.resume(path)
        return cls.create(name, version, root=root, seed=seed)

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
        """The directory's own name."""
        return self.metadata.run_id

    @property
    def resume_count(self) -> int:
        """How often the run has been resumed."""
        return len(self.metadata.resumes)

    @property
    def stop_file(self) -> Path:
        """Where another process leaves its request to stop."""
        return self.path / "control" / "stop"

    def checkpoint_path(self, step: int) -> Path:
        """The checkpoint taken at this env step."""
        return self.path / "checkpoints" / f"step_{step}.mpk"

    @property
    def latest_checkpoint_path(self) -> Path:
        """Another name of the newest checkpoint."""
        return self.path / "checkpoints" / "latest.mpk"

    @property
    def best_checkpoint_path(self) -> Path:
        """Another name of the best agent so far."""
        return self.path / "checkpoints" / "best.mpk"

    def write_config(self, config: Mapping[str, Any] | msgspec.Struct) -> None:
        """Store everything needed to rebuild the environment and the agent, as JSON."""
        try:
            data = _json(config)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the config of {self.path} cannot be written as JSON: {error}") from None
        files.write_atomic(self.path / "config.json", data)

    def read_config(self) -> dict[str, Any]:
        """What `write_config` stored; empty if nothing was."""
        return self.reader.read_config()

    def episodes(self, split: Literal["train", "eval"] = "train") -> Frame:
        """Every episode logged so far by column: a pandas frame, or numpy arrays by name without pandas."""
        return self.reader.episodes(split)

    def metrics(self, *, aggregate: Aggregate = "mean") -> Frame:
        """Every window of metrics logged so far by column, as `episodes`."""
        return self.reader.metrics(aggregate=aggregate)

    def _repr_html_(self) -> str:
        from rekindle.ui.notebook import run_html

        return run_html(self.path)

    def open_logs(self, positions: Mapping[str, LogPosition], warnings: LogPosition) -> None:
        """Go on with each log at a position."""
        for log in LOGS:
            self._logs[log] = JsonLines(self.path / f"{log}.jsonl", positions.get(log, LogPosition()))
        self._logs["warnings"] = JsonLines(self.path / "warnings.jsonl", warnings)

    def log(self, name: str) -> JsonLines:
        """One of the run's logs."""
        return self._logs[name]

    def rewind(self, positions: Mapping[str, LogPosition]) -> list[str]:
        """Cut the logs back to a checkpoint's positions; what came after goes to `rewound/`. Says what moved."""
        paths = {log: self.path / f"{log}.jsonl" for log in LOGS}
        # All are looked at before any is cut: a log that cannot be used leaves the others as they were.
        tails = {path: files.surplus(path, positions.get(log, LogPosition())) for log, path in paths.items()}
        warnings = files.mend(self.path / "warnings.jsonl", self.rewound)
        moved: list[str] = []
        for path, tail in tails.items():
            rows = files.cut(path, tail, self.rewound)
            if rows:
                moved.append(f"{rows} rows of {path.name}")
        self.open_logs(positions, warnings)
        return moved

    @property
    def rewound(self) -> Path:
        """Where the next resume moves what came after its checkpoint."""
        return self.path / "rewound" / f"resume_{self.resume_count + 1}"

    def log_train_episode(self, record: EpisodeRecord, stamp: Mapping[str, Any]) -> None:
        """Append a training episode; the stamp holds the counters and the wall time."""
        self._logs["train_episodes"].append({**stamp, **record.row()})

    def log_eval_episode(self, record: EpisodeRecord, stamp: Mapping[str, Any]) -> None:
        """Append an evaluation episode, tagged with the steps at which it was run."""
        tag = {"total_steps_at_eval": stamp["env_steps"]}
        self._logs["eval_episodes"].append({**stamp, **tag, **record.row()})

    def log_warning(self, message: str, stamp: Mapping[str, Any]) -> None:
        """Append what went wrong and training survived."""
        self._logs["warnings"].append({**stamp, "message": message})

    def update_metadata(self, **changes: Any) -> None:
        """Change fields of the metadata, durably."""
        self._change_metadata(changes, durably=True)

    def describe(self, agent: str, max_steps: int | None) -> None:
        """Note what trains and how far, for those who look at the run, unless that is known."""
        if (agent, max_steps) != (self.metadata.agent, self.metadata.max_steps):
            self.update_metadata(agent=agent, max_steps=max_steps)

    def update_counts(self, *, total_steps: int, total_episodes: int, updates: int) -> None:
        """Change the counters in the metadata; a power cut may bring the former ones back."""
        counts = {"total_steps": total_steps, "total_episodes": total_episodes, "updates": updates}
        self._change_metadata(counts, durably=False)

    def _change_metadata(self, changes: Mapping[str, Any], *, durably: bool) -> None:
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
        """Close a run that cannot be used after all, and remove one that never began."""
        try:
            yield
        except BaseException:
            self.close()
            if not self.is_resumed:
                files.remove_directory(self.path)
            raise

    def close(self) -> None:
        """Close the logs and let go of the lock."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            for log in self._logs.values():
                stack.callback(log.close)
            self._logs = {}


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _next_run_id(parent: Path) -> str:
    """The date and time, or one after the newest run there: ids never go back, whatever the clock does."""
    stamp, number = time.strftime("%Y%m%d_%H%M%S"), 1
    for existing in (match for entry in parent.iterdir() if (match := _RUN_ID.fullmatch(entry.name))):
        known, known_number = existing[1], int(existing[2] or 1)
        if (known, known_number) >= (stamp, number):
            stamp, number = known, known_number + 1
    return stamp if number == 1 else f"{stamp}_{number}"
