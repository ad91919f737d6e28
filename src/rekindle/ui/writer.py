"""Find and kill the process that writes a run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from pathlib import Path

from rekindle.errors import RunError
from rekindle.run.reader import RunReader
from rekindle.ui.details import writer

__all__ = ["find_writer", "kill_writer"]

_WRITER = re.compile(r"process (\d+) on (.+)")


def find_writer(reader: RunReader) -> int:
    """The id of the process that writes a run.

    Raises `RunError` if there is none, or if it is not certain which process it is.
    """
    text = writer(reader)
    match = _WRITER.fullmatch(text or "")
    if match is None:
        raise RunError(f"{reader.path} is not live: there is no process to kill")
    if match[2] != socket.gethostname():
        raise RunError(f"{reader.path} is written by {text}: kill it there")
    process = int(match[1])
    # The lock file only contains a claim; the process must have the file open.
    if not _has_open(process, reader.path / "lock"):
        raise RunError(f"{reader.path} names {text} as its writer, which has not opened it: kill it yourself")
    return process


def kill_writer(reader: RunReader) -> int:
    """Kill the process that writes a run, like `kill -9`, and return its id; raises like `find_writer`."""
    process = find_writer(reader)
    try:
        os.kill(process, signal.SIGKILL)
    except OSError as error:
        raise RunError(f"cannot kill process {process}, which writes {reader.path}: {error.strerror}") from None
    return process


def _has_open(process: int, path: Path) -> bool:
    wanted = os.stat(path)
    descriptors = Path(f"/proc/{process}/fd")
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(descriptors):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(descriptors / descriptor), wanted):
                    return True
    return False
