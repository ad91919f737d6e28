"""Read a run from any process."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from rekindle.errors import RunError
from rekindle.run.finding import find_run
from rekindle.run.frames import Aggregate, Frame, log_frame
from rekindle.run.metadata import MOST_JSON, Log, RunMetadata
from rekindle.run.tags import add_tags, checked_tags, read_tags, remove_tags
from rekindle.storage import files, logs
from rekindle.storage.lock import Lock
from rekindle.storage.tail import LogTail

__all__ = ["RunReader"]


class RunReader:
    """Reads a run from any process, whether it is live, finished or crashed; never changes its logs or checkpoints."""

    def __init__(self, path: str | Path) -> None:
        self.path = find_run(path)

    @property
    def metadata(self) -> RunMetadata:
        """The run's metadata, as last written."""
        path = self.path / "metadata.json"
        try:
            return msgspec.json.decode(files.read_bytes(path, most=MOST_JSON), type=RunMetadata)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RunError(f"{path} is not the metadata of a run: {error}") from None

    @property
    def is_live(self) -> bool:
        """Whether a process is writing this run now."""
        return Lock.is_held(self.path / "lock")

    @property
    def status(self) -> str:
        """running, finished, stopped, failed, or crashed (recorded as running, but no process holds the lock)."""
        status = self.metadata.status
        if status == "running" and not self.is_live:
            # The writer may have ended between the two checks.
            status = self.metadata.status
            return "crashed" if status == "running" and not self.is_live else status
        return status

    def read_config(self) -> dict[str, Any]:
        """The config that `write_config` stored; empty if there is none."""
        path = self.path / "config.json"
        if not os.path.lexists(path):
            return {}
        try:
            return msgspec.json.decode(files.read_bytes(path, most=MOST_JSON), type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RunError(f"{path} is not a JSON object: {error}") from None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the run, sorted."""
        return read_tags(self.path)

    def change_tags(self, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> tuple[str, ...]:
        """Add and remove tags, of a live run too, and return all that the run has then; raises `ConfigError`."""
        removed, added = checked_tags(remove), checked_tags(add)
        remove_tags(self.path, removed)
        add_tags(self.path, added)
        return self.tags

    def train_episodes(self) -> list[dict[str, Any]]:
        """Every training episode logged so far."""
        return logs.read_rows(self.path / "train_episodes.jsonl")

    def eval_episodes(self) -> list[dict[str, Any]]:
        """Every evaluation episode logged so far."""
        return logs.read_rows(self.path / "eval_episodes.jsonl")

    def metric_windows(self) -> list[dict[str, Any]]:
        """Every metric window logged so far."""
        return logs.read_rows(self.path / "metrics.jsonl")

    def warnings(self) -> list[dict[str, Any]]:
        """Every warning so far, over all resumes: a `message` with the counters and the wall time."""
        return logs.read_rows(self.path / "warnings.jsonl")

    def frame(self, log: Log, *, aggregate: Aggregate = "mean") -> Frame:
        """A log by column: a pandas frame if pandas is installed, a dict of numpy arrays otherwise.

        Extras are `extras.<name>`; a metric is its mean over each window, or another aggregate.
        """
        return log_frame(self.path / f"{log}.jsonl", aggregate=aggregate)

    def episodes(self, split: Literal["train", "eval"] = "train") -> Frame:
        """Every training or evaluation episode by column; see `frame`."""
        return self.frame("train_episodes" if split == "train" else "eval_episodes")

    def metrics(self, *, aggregate: Aggregate = "mean") -> Frame:
        """Every metric window by column; see `frame`."""
        return self.frame("metrics", aggregate=aggregate)

    def _repr_html_(self) -> str:
        from rekindle.run.notebook import run_html

        return run_html(self.path)

    def last_rows(self, log: Log, count: int) -> list[dict[str, Any]]:
        """The newest rows of a log, oldest first, without reading the rest of it."""
        return logs.read_last_rows(self.path / f"{log}.jsonl", count)

    def tail(self, log: Log) -> LogTail:
        """Follow a log as it grows."""
        return LogTail(self.path / f"{log}.jsonl")

    def request_stop(self, reason: str = "asked to stop by another process") -> None:
        """Ask the process that writes this run to checkpoint and stop."""
        files.require_directory(self.path / "control")  # a symbolic link could lead out of the run
        # Write it under a unique name first, because several processes may ask at once.
        request = self.path / "control" / f"stop-{os.getpid()}-{secrets.token_hex(4)}"
        files.write_atomic(request, reason.encode(), sync_name=False)
        files.rename(request, self.path / "control" / "stop")
