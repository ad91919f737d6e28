"""TensorBoard: event files beside the run's logs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rekindle.events import Histogram, Media, Stamp, Text
from rekindle.recorders.extras import load, require
from rekindle.recorders.following import Follower, Mark, Place, Row
from rekindle.recorders.video import gif
from rekindle.run.reader import RunReader
from rekindle.storage import files

__all__ = ["TensorBoard"]

_BINS = 64


class TensorBoard:
    """Writes event files for `tensorboard --logdir`.

    They are in the run's own `tensorboard/` directory, or below `directory` as `name/version/run_id`. Rows that are
    missing there, because files were removed or lost in a power cut, are written again from the run's log.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        parts = ("tensorboardX.event_file_writer", "tensorboardX.proto.event_pb2", "tensorboardX.summary", "PIL.Image")
        require("TensorBoard", "tensorboardX", "PIL", extra="tensorboard", parts=parts)
        self._directory = directory

    def open(self, path: Path, report: Callable[[str], None]) -> Follower:
        """The recorder of the run at a path."""
        metadata = RunReader(path).metadata
        parts = (metadata.name, metadata.version, metadata.run_id)
        directory = path / "tensorboard" if self._directory is None else Path(self._directory).joinpath(*parts)
        return Follower("tensorboard", EventFiles(directory), path, report)


class EventFiles:
    """The event files of one run, one for each training process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Any = None
        self._prefix, self._number = "", 0
        self._step = 0

    def start(self, run: RunReader, place: Place) -> None:  # noqa: ARG002 - every service gets the run
        """Truncate files to the rows that count as sent, in case of a kill, and start a new file."""
        if self._writer is not None:
            with contextlib.suppress(OSError, ValueError):  # it failed before
                self._writer.close()
        files.make_directory(self._directory)
        files.require_directory(self._directory)
        self._prefix = f"rekindle-{place.token}-"
        there = {path.name: path for path in self._directory.glob(f"*.{self._prefix}*")}
        for path in there.values():
            os.close(files.open_regular(path))  # do not follow a symbolic link: another file could be truncated
        sizes = {name: path.stat().st_size for name, path in there.items()}
        is_short = any(sizes.get(name, -1) < size for name, size in place.files.items())
        self._number = max((int(name.rpartition("-")[2]) for name in there), default=0)
        for name in sizes.keys() - place.files.keys():
            os.unlink(there[name])
        for name, size in place.files.items():
            if sizes.get(name, 0) > size:
                os.truncate(there[name], size)
        if is_short:
            place.start_over()
        self._begin(purge_from=0 if is_short else None)

    def _begin(self, *, purge_from: int | None) -> None:
        self._number += 1
        suffix = f".{self._prefix}{self._number}"
        writers = load("tensorboardX.event_file_writer")
        self._writer = writers.EventsWriter(str(self._directory / "events"), suffix)
        if purge_from is not None:
            events = load("tensorboardX.proto.event_pb2")
            start = events.SessionLog(status=events.SessionLog.START)
            self._writer.write_event(events.Event(step=purge_from, session_log=start))

    def describe(self, config: Mapping[str, Any]) -> None:
        """Log the config as text."""
        pretty = msgspec.json.format(msgspec.json.encode(config), indent=2).decode()
        self.note("config", "".join(f"    {line}\n" for line in pretty.splitlines()))

    def send(self, rows: Sequence[Row], place: Place, doubtful: Mapping[Mark, float]) -> None:  # noqa: ARG002
        """Write scalars; no row is doubtful, because `start` has truncated the files."""
        summaries = load("tensorboardX.summary")
        for row in rows:
            values = [summaries.scalar(name, value).value[0] for name, value in row.values.items()]
            self._write(summaries.Summary(value=values), row.env_steps, row.wall_time)
        self._flush(place)

    def show(self, name: str, media: Media, stamp: Stamp, place: Place) -> bool:
        """Log a histogram, a text, or a video as an animated image."""
        summaries = load("tensorboardX.summary")
        if isinstance(media, Histogram):
            summary = summaries.histogram(name, media.values, _BINS)
        elif isinstance(media, Text):
            summary = summaries.text(name, media.text)
        else:
            _, height, width, _ = media.frames.shape
            kinds = summaries.Summary
            image = kinds.Image(
                height=height, width=width, colorspace=3, encoded_image_string=gif(media.frames, media.fps)
            )
            summary = kinds(value=[kinds.Value(tag=name, image=image)])
        self._write(summary, stamp.env_steps, stamp.wall_time)
        self._flush(place)
        return True

    def take_back(self, env_steps: int) -> bool:
        """Make TensorBoard hide everything from a step on."""
        self._writer.close()
        self._begin(purge_from=env_steps)
        return True

    def note(self, name: str, text: str) -> None:
        """Log a text."""
        self._write(load("tensorboardX.summary").text(name, text), self._step)

    def finish(self, status: str, place: Place) -> None:
        """Log the status and close the file."""
        self.note("status", status)
        self._flush(place)
        self._writer.close()

    def _write(self, summary: Any, step: int, wall_time: float | None = None) -> None:
        self._step = step
        event = load("tensorboardX.proto.event_pb2").Event(step=step, summary=summary)
        event.wall_time = time.time() if wall_time is None else wall_time
        self._writer.write_event(event)

    def _flush(self, place: Place) -> None:
        self._writer.flush()
        for path in self._directory.glob(f"*.{self._prefix}*"):
            place.files[path.name] = path.stat().st_size
