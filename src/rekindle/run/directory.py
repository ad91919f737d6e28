"""The run directory, as opened by its single writer."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Literal, Unpack

import msgspec

from rekindle.interrupt import Interrupter
from rekindle.owner import Owner
from rekindle.run.creation import (
    DIRECTORIES,
    Config,
    NewRun,
    RunOptions,
    build,
    checked_name,
    config_json,
    json_bytes,
    new_run,
    remove_unused,
    starting,
)
from rekindle.run.finding import find_run, find_unfinished
from rekindle.run.frames import Aggregate, Frame
from rekindle.run.metadata import LOGS, Resume, RunMetadata, environment, timestamp
from rekindle.run.reader import RunReader
from rekindle.stats import EpisodeRecord
from rekindle.storage import files, logs
from rekindle.storage.lock import Lock
from rekindle.storage.logs import JsonLines, LogPosition

__all__ = ["TrainingRun"]


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
        new = new_run(root, name, version, **options)
        with starting(new.directory):
            return cls._make(new)

    @classmethod
    def create_or_resume(
        cls, name: str, version: str = "v1", *, root: str | Path = "runs", **options: Unpack[RunOptions]
    ) -> TrainingRun:
        """Open the newest unfinished run of a version, or create one as `create` does.

        If several processes call this at the same time, only one of them creates the run.
        """
        new = new_run(root, name, version, **options)
        while True:
            # Outside of `starting`: many processes that find the run in use need not wait for each other.
            if (found := cls.resume_unfinished(name, version, root=root)) is not None:
                return found
            with starting(new.directory):
                if find_unfinished(new.directory) is None:
                    return cls._make(new)

    @classmethod
    def _make(cls, new: NewRun) -> TrainingRun:
        built = build(new)
        run = cls(built.path, built.lock, built.metadata, resumed=False)
        with run.let_go_on_failure():
            run.open_logs({}, LogPosition())
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
            for directory in DIRECTORIES:
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
        directory = Path(root) / checked_name("name", name) / checked_name("version", version)
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
        files.write_atomic(self.path / "config.json", config_json(config, self.path))

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
        if record.extras:  # the caller may change them
            record = msgspec.structs.replace(record, extras=dict(record.extras))
        self._logs["train_episodes"].append_later(lambda: {**stamp, **record.row()})

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
            files.write_atomic(self.path / "metadata.json", json_bytes(metadata), sync_name=durably)
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
                    remove_unused(self.path)
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
