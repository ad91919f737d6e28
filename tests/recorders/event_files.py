"""Event files read back, as TensorBoard does."""

from __future__ import annotations

import importlib
import struct
from pathlib import Path
from typing import Any

from recorded_runs import timeless

event_pb2: Any = importlib.import_module("tensorboardX.proto.event_pb2")
masked_crc32c: Any = importlib.import_module("tensorboardX.record_writer").masked_crc32c


def events(directory: Path) -> list[Any]:
    """Every event, file by file; checksums must be right and no file torn."""
    found: list[Any] = []
    for path in sorted(directory.glob("events.out.tfevents.*"), key=lambda path: int(path.name.rpartition("-")[2])):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            body = data[12 : 12 + length]
            assert struct.unpack("<I", data[12 + length : 16 + length]) == (masked_crc32c(body),)
            found.append(event_pb2.Event.FromString(body))
            data = data[16 + length :]
    return found


def scalars(directory: Path) -> list[tuple[int, dict[str, float]]]:
    """Step and values of each row that TensorBoard would show, times aside."""
    rows: list[tuple[int, dict[str, float]]] = []
    for event in events(directory):
        if event.HasField("session_log"):
            rows = [row for row in rows if row[0] < event.step]
        values = {value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")}
        if values:
            rows.append((event.step, timeless(values)))
    return rows


def texts(directory: Path) -> dict[str, str]:
    """The newest text of each name."""
    return {
        value.tag.removesuffix("/text_summary"): value.tensor.string_val[0].decode()
        for event in events(directory)
        for value in event.summary.value
        if value.HasField("tensor")
    }
