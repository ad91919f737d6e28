"""Weights & Biases: a run on its server, or in files that `wandb sync` uploads later."""

from __future__ import annotations

import html
import io
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from rekindle.errors import ConfigError
from rekindle.events import Histogram, Media, Stamp, Text
from rekindle.recorders.extras import load, require
from rekindle.recorders.following import Follower, Mark, Place, Row
from rekindle.recorders.video import gif
from rekindle.run.reader import RunReader
from rekindle.run.tags import readable_tags
from rekindle.storage import files

__all__ = ["WandB", "history"]

_ROW = "rekindle_row"
"""The column with the row number of the log."""
_BLOCK, _HEADER = 2**15, struct.Struct("<IHB")


class WandB:
    """Sends metrics and settings to Weights & Biases; its files are in the run's own `wandb/` directory.

    The default project is `WANDB_PROJECT`, or else the run's name; the default mode is `WANDB_MODE`, or else online.
    Raises `ConfigError` if it is online and you are not logged in.
    """

    def __init__(self, project: str | None = None, *, mode: Literal["online", "offline"] | None = None) -> None:
        parts = ("wandb.proto.wandb_internal_pb2", "wandb.sdk.launch.inputs.internal", "PIL.Image")
        require("WandB", "wandb", "PIL", extra="wandb", parts=parts)
        self._project, self._mode = project, mode
        _check_login(mode or os.environ.get("WANDB_MODE") or "online")

    def open(self, path: Path, report: Callable[[str], None]) -> Follower:
        """The recorder of the run at a path."""
        return Follower("wandb", Project(self._project, self._mode), path, report)


class Project:
    """One W&B run."""

    def __init__(self, project: str | None, mode: str | None) -> None:
        self._project, self._mode = project, mode
        self._run: Any = None

    def start(self, run: RunReader, place: Place) -> None:
        """Create the W&B run, or continue it."""
        wandb = load("wandb")
        failed, self._run = self._run, None
        if failed is not None:
            failed.finish(exit_code=1)
        for name in ("wandb", ".wandb"):  # W&B uses one of them for its files
            _check_directory(run.path / name)
        mode = self._mode or os.environ.get("WANDB_MODE") or "online"
        _check_login(mode)
        metadata = run.metadata
        place.external_id = place.token
        _look_up(run.path, place)
        while list(run.path.glob(f"wandb/*run-{time.strftime('%Y%m%d_%H%M%S')}-{place.token}")):
            time.sleep(0.1)  # W&B would overwrite the files of a run that started in the same second
        self._run = wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT") or metadata.name,
            id=place.external_id,
            name=f"{metadata.name}/{metadata.version}/{metadata.run_id}",
            dir=str(run.path),
            tags=list(readable_tags(run.path)) or None,
            mode=mode,
            resume=None if mode == "offline" else "allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        # W&B drops rows whose step decreases, so env steps are a column of their own.
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def describe(self, config: Mapping[str, Any]) -> None:
        """Send the config."""
        self._run.config.update(dict(config), allow_val_change=True)

    def send(self, rows: Sequence[Row], place: Place, doubtful: Mapping[Mark, float]) -> None:  # noqa: ARG002
        """Log rows; W&B drops a step that it already has."""
        for step, row in enumerate(rows, place.sent):
            counters = {"env_steps": row.env_steps, "updates": row.updates, "episodes": row.episodes, _ROW: row.row}
            self._run.log({**row.values, **counters, "_timestamp": row.wall_time}, step=step, commit=True)

    def show(self, name: str, media: Media, stamp: Stamp, place: Place) -> bool:
        """Log a histogram, a text or a video as a separate row."""
        wandb = load("wandb")
        if isinstance(media, Histogram):
            shown = wandb.Histogram(media.values)
        elif isinstance(media, Text):
            shown = wandb.Html(f"<pre>{html.escape(media.text)}</pre>", inject=False)
        else:
            shown = wandb.Video(io.BytesIO(gif(media.frames, media.fps)), format="gif")
        row = {name: shown, "env_steps": stamp.env_steps, "_timestamp": stamp.wall_time}
        self._run.log(row, step=place.sent, commit=True)
        place.sent += 1
        return True

    def take_back(self, env_steps: int) -> bool:  # noqa: ARG002 - W&B keeps what it has
        """Return False: W&B does not support it."""
        return False

    def note(self, name: str, text: str) -> None:
        """Set a value of the summary."""
        self._run.summary[name] = text

    def finish(self, status: str, place: Place) -> None:  # noqa: ARG002
        """End the W&B run."""
        self.note("status", status)
        self._run.finish(exit_code=1 if status == "failed" else 0)
        self._run = None


def _check_login(mode: str) -> None:
    if mode == "online" and not load("wandb").login(prompt=False, verify=False):
        raise ConfigError("you are not logged in to W&B: run `wandb login`, or set WANDB_MODE=offline")


def _check_directory(directory: Path) -> None:
    """Refuse what a downloaded run may contain: a link out of the run, or settings that W&B would use.

    Such settings can name another server, which would then receive your API key.
    """
    if os.path.lexists(directory):
        files.require_directory(directory)
        if os.path.lexists(directory / "settings"):
            raise ConfigError(f"{directory / 'settings'} would be used by W&B: delete it if you did not create it")


def _look_up(path: Path, place: Place) -> None:
    """Set the progress from the files of an offline run: W&B's process dies with ours, and may have lost rows.

    Missing files count as uploaded and deleted.
    """
    directories = {entry.name: entry for entry in path.glob(f"wandb/offline-run-*-{place.token}")}
    if not directories or place.files.keys() - directories.keys():
        return
    place.files = dict.fromkeys(directories, 0)
    place.last, place.sent, place.sending = Mark(), 0, []
    for directory in directories.values():
        for row in (row for file in directory.glob("*.wandb") for row in history(file)):
            place.sent = max(place.sent, row["_step"] + 1)
            if _ROW in row:
                place.last = max(place.last, Mark(row["env_steps"], row[_ROW]))


def history(path: Path) -> Iterator[dict[str, Any]]:
    """The rows in a `.wandb` file, up to an incomplete record."""
    records = load("wandb.proto.wandb_internal_pb2")
    for data in _chunks(files.read_bytes(path)):
        record = records.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            yield {
                item.key or "/".join(item.nested_key): msgspec.json.decode(item.value_json)
                for item in record.history.item
            }


def _chunks(data: bytes) -> Iterator[bytes]:
    """The records of a `.wandb` file, which is a LevelDB log after the first seven bytes."""
    position, record = 7, b""
    while position + _HEADER.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER.size:
            position += left
            continue
        _, length, kind = _HEADER.unpack_from(data, position)
        part = data[position + _HEADER.size : position + _HEADER.size + length]
        if kind not in (1, 2, 3, 4) or len(part) < length:
            return
        record = part if kind in (1, 2) else record + part  # full, first, middle, last
        if kind in (1, 4):
            yield record
        position += _HEADER.size + length
