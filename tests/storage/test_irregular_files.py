"""Pipes, links and endless files in the place of a file: refused, and never waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle.errors import LogCorrupt, StorageError
from rekindle.storage import files, logs
from rekindle.storage.lock import Lock
from rekindle.storage.logs import JsonLines, LogPosition
from rekindle.storage.tail import LogTail


@pytest.mark.parametrize("use", [Lock, Lock.is_held, Lock.holder, JsonLines, files.read_bytes, LogTail.poll])
def test_a_pipe_is_refused_at_once(tmp_path: Path, use: Callable[[Any], Any]) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(StorageError, match=r"pipe: it is not a regular file"):
        use(LogTail(path) if use is LogTail.poll else path)


def test_a_file_that_is_larger_than_allowed_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"12345")
    assert files.read_bytes(path, most=5) == b"12345"
    with pytest.raises(StorageError, match="it has 5 bytes, and at most 4 are expected"):
        files.read_bytes(path, most=4)


def test_a_file_that_memory_cannot_hold_is_a_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "endless"
    path.touch()
    os.truncate(path, 2**42)
    with pytest.raises(StorageError, match=f"its {2**42} bytes do not fit into memory"):
        files.read_bytes(path)
    for read in (logs.read_rows, lambda path: logs.surplus(path, LogPosition())):
        with pytest.raises(LogCorrupt, match="parts of it were never written"):
            read(path)
